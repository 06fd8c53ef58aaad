// The answers of one or two systems to a query: figures, orders side by side and windows.

import { element } from "./dom.js";
import { firstStageTitle, scoreMeaning } from "./outcome.js";
import { rankingView } from "./ranking.js";
import { summaryView } from "./summary.js";
import { windowsView } from "./windows.js";

const SHOWN = 20;

/** The pairs of orders that can be shown, by the name that a link has for them. */
function pairsOf(outcomes) {
  const pairs = {};
  outcomes.forEach((outcome, place) => {
    const letter = "ab"[place];
    pairs[letter] = { title: outcomes.length > 1 ? `First stage → ${outcome.name}` : "First stage → result" };
    Object.assign(pairs[letter], { before: firstStageOrder(outcome), after: resultOrder(outcome) });
    if (outcome.input) {
      const title = `First ranking → ${outcomes.length > 1 ? outcome.name : "result"}`;
      pairs[`${letter}f`] = { title, before: firstRankingOrder(outcome), after: resultOrder(outcome) };
    }
  });
  if (outcomes.length > 1) {
    const [one, other] = outcomes;
    pairs.ab = { title: "A ↔ B", before: resultOrder(one), after: resultOrder(other) };
  }
  return pairs;
}

function firstStageOrder(outcome) {
  const note = firstStageTitle(outcome) || "as given";
  return { title: "First stage", note, outcome, docIds: outcome.firstStage, scoreOf: (passage) => passage.firstStageScore };
}

function firstRankingOrder(outcome) {
  return { title: "First ranking", note: "then what feedback found", outcome, docIds: outcome.input, scoreOf: () => null };
}

function resultOrder(outcome) {
  const has = [...outcome.passages.values()].some((passage) => passage.relevance !== undefined);
  const note = scoreMeaning(outcome.scoreKind) + (has ? " · relevance in %" : "");
  return { title: outcome.name, note, hasRelevance: has, outcome, docIds: outcome.result, scoreOf: (passage) => passage.score };
}

function rowsOf({ outcome, docIds, scoreOf, hasRelevance }, grades) {
  return docIds.map((docId) => {
    const passage = outcome.passages.get(docId);
    const badges = [];
    if (passage.isNew) badges.push({ text: "feedback", title: "Found by the second retrieval" });
    if (passage.truncated) badges.push({ text: "cut", title: "The model read the beginning only" });
    const relevance = hasRelevance ? passage.relevance : undefined;
    return { ...passage, score: scoreOf(passage), relevance, grade: grades[docId], badges };
  });
}

/**
 * The whole report.
 *
 * @param outcomes of one or two systems
 * @param grades doc_id → grade
 * @param state what is shown: `view` names a pair of orders, `all` shows all rows
 * @param change called with the parts of the state that the reader changed
 * @param open called with a docId
 */
export function reportView(outcomes, grades, state, change, open) {
  const pairs = pairsOf(outcomes);
  const name = Object.hasOwn(pairs, state.view) ? state.view : "a";
  const { before, after } = pairs[name];
  const detailed = name === "ab" ? outcomes : [after.outcome];
  const orders = [before, after].map((order) => ({ ...order, rows: rowsOf(order, grades) }));
  const total = Math.max(...orders.map((order) => order.rows.length));
  const shown = state.all ? total : SHOWN;
  return [
    element("div", { class: "summaries" }, outcomes.map((outcome) => summaryView(outcome, grades))),
    Object.keys(pairs).length > 1 ? viewSwitch(pairs, name, change) : null,
    rankingView(...orders, shown, open),
    total > SHOWN ? allSwitch(total, Boolean(state.all), change) : null,
    ...detailed.map((outcome) => windowsView(outcome, headingOf("Windows, round by round", outcome, outcomes), open)),
  ].filter(Boolean);
}

function headingOf(text, outcome, outcomes) {
  return outcomes.length > 1 ? `${text}: ${outcome.name}` : text;
}

function viewSwitch(pairs, current, change) {
  return element(
    "div",
    { class: "source views", role: "radiogroup", "aria-label": "Which orders are shown" },
    Object.entries(pairs).map(([name, { title }]) =>
      element(
        "label",
        {},
        element("input", { type: "radio", name: "view", value: name, checked: name === current, change: () => change({ view: name }) }),
        " ",
        element("span", {}, title),
      ),
    ),
  );
}

function allSwitch(total, all, change) {
  const text = all ? `Show the first ${SHOWN}` : `Show all ${total}`;
  return element("button", { type: "button", class: "plain more", click: () => change({ all: all ? "" : "1" }) }, text);
}
