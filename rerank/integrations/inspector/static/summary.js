// What an answer amounts to, in a few figures and notes.

import { element } from "./dom.js";
import { count, duration, signed } from "./format.js";
import { ndcg } from "./measures.js";
import { pathOf } from "./outcome.js";

/** A list of figures, and the notes on what was left out or deviates. */
export function summaryView(outcome, grades) {
  const figures = [...quality(outcome, grades), ...changes(outcome)];
  return element(
    "section",
    { class: "summary" },
    element("h2", {}, outcome.name, element("span", { class: "quiet" }, pathOf(outcome))),
    element(
      "dl",
      {},
      figures.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))),
    ),
    notesOf(outcome).map((note) => element("p", { class: "note" }, note)),
  );
}

function quality(outcome, grades) {
  const [before, after] = [outcome.firstStage, outcome.result].map((order) => ndcg(order, grades));
  if (after === null) return [];
  const judged = outcome.result.slice(0, 10).filter((docId) => docId in grades).length;
  const change = element("span", { class: after > before ? "gain" : after < before ? "loss" : "quiet" }, ` ${signed(after - before)}`);
  return [
    ["nDCG@10", [`${before.toFixed(3)} → `, element("b", {}, after.toFixed(3)), change]],
    ["judged in the top 10", String(judged)],
  ];
}

function changes(outcome) {
  const top = Math.min(10, outcome.result.length);
  const before = new Set(outcome.firstStage.slice(0, top));
  const risen = outcome.result.slice(0, top).filter((docId) => !before.has(docId)).length;
  const { execution, feedback, passages } = outcome;
  const isNew = [...passages.values()].filter((passage) => passage.isNew).length;
  const found = feedback && !feedback.reason ? [["found by feedback", count(isNew, "passage")]] : [];
  return [
    [`new in the top ${top}`, String(risen)],
    ...found,
    ["windows", `${execution.windows} in ${count(execution.rounds, "round")}`],
    ["time", duration(outcome.wallMs)],
  ];
}

function notesOf({ execution, feedback, passages }) {
  const cut = execution.truncated_doc_ids.length;
  return [
    execution.reason && `Not all was reranked: ${execution.reason}.`,
    cut > 0 && `${count(cut, "passage")} of ${passages.size} cut: the model read the beginning only.`,
    execution.first_stage_weight && `The first stage counts with weight ${Number(execution.first_stage_weight.toFixed(2))}.`,
    execution.kendall_tau !== undefined && `Kendall's tau with the order of the first stage: ${execution.kendall_tau.toFixed(2)}.`,
    execution.model_warning && `About the model: ${execution.model_warning}.`,
    feedback?.reason && `Feedback: ${feedback.reason}.`,
    feedback && !feedback.reason && `Feedback moved the query vector to cosine ${feedback.cosine.toFixed(3)}.`,
  ].filter(Boolean);
}
