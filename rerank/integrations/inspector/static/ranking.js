// Two orders of passages side by side, with a line from each passage's place in the one to its place in the other.

import { element, svg, unseen } from "./dom.js";
import { beginning, score } from "./format.js";

/**
 * The two orders.
 *
 * @param before, after {title, note, rows}: rows are {docId, text, score, relevance, badges: [{text, title}], grade}
 * @param shown number of rows of each order; lines to further rows leave the picture at its lower edge
 * @param open called with the docId of a passage that was chosen
 */
export function rankingView(before, after, shown, open) {
  const ranks = [before, after].map(({ rows }) => new Map(rows.map((row, place) => [row.docId, place + 1])));
  const height = Math.min(shown, Math.max(before.rows.length, after.rows.length));
  const [lines, lineOf] = linesBetween(ranks[0], ranks[1], height);
  const places = new Map();
  const column = (side, order, other) =>
    element(
      "section",
      { class: `order ${side}` },
      element("h3", {}, order.title, order.note ? element("span", { class: "quiet" }, order.note) : null),
      element(
        "ol",
        {},
        order.rows.slice(0, shown).map((row, place) => {
          const item = rowView(row, place + 1, side === "after" ? (other.get(row.docId) ?? null) : undefined, open);
          places.set(row.docId, [...(places.get(row.docId) ?? []), item]);
          return item;
        }),
      ),
    );
  const view = element(
    "div",
    { class: "ranking" },
    column("before", before, ranks[1]),
    lines,
    column("after", after, ranks[0]),
  );
  linkRows(view, places, lineOf);
  return view;
}

/** The lines in rows as units of height, so that they fit whatever height the rows have. */
function linesBetween(before, after, height) {
  const lineOf = new Map();
  const drawing = svg("svg", { viewBox: `0 0 100 ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const y = (rank) => rank - 0.5;
  for (const [docId, from] of before) {
    const to = after.get(docId);
    if (to === undefined || Math.min(from, to) > height) continue;
    const kind = to < from ? "up" : to > from ? "down" : "same";
    const [start, end] = [y(from), y(to)];
    const line = svg("path", { d: `M0,${start} C45,${start} 55,${end} 100,${end}`, class: kind });
    lineOf.set(docId, line);
    drawing.append(line);
  }
  return [element("div", { class: "lines" }, drawing), lineOf];
}

function rowView(row, rank, was, open) {
  const move = was === undefined ? null : moveView(was, rank);
  const grade = row.grade === undefined ? "" : ` g${Math.min(row.grade, 3)}`;
  return element(
    "li",
    { class: row.isNew ? "row new" : "row" },
    element(
      "button",
      { type: "button", class: `passage${grade}`, click: () => open(row.docId) },
      element("span", { class: "rank" }, unseen("Rank "), String(rank)),
      element(
        "span",
        { class: "words" },
        element(
          "span",
          { class: "id" },
          row.grade === undefined
            ? null
            : element("span", { class: "grade", title: "Grade of the judgement" }, unseen("grade "), String(row.grade)),
          element("span", { class: "name" }, row.docId),
          row.badges.map((badge) => element("span", { class: "badge", title: badge.title }, badge.text)),
        ),
        element("span", { class: "text" }, beginning(row.text)),
      ),
      element(
        "span",
        { class: "figures" },
        move,
        element(
          "span",
          { class: "score" },
          ...[unseen("score "), score(row.score)],
          ...(row.relevance === undefined ? [] : [" · ", relevanceView(row.relevance)]),
        ),
      ),
    ),
  );
}

function relevanceView(relevance) {
  const title = "Relevance: the probability that the passage answers the query";
  return element("span", { title }, unseen("relevance "), `${Math.round(100 * relevance)} %`);
}

function moveView(was, rank) {
  if (was === null) return element("span", { class: "move up" }, "new");
  if (was === rank) return element("span", { class: "move same" }, unseen("unchanged"), element("span", {}, "="));
  const up = was > rank;
  return element(
    "span",
    { class: up ? "move up" : "move down", title: `was ${was}` },
    unseen(`${up ? "up" : "down"} from ${was}: `),
    `${up ? "↑" : "↓"}${Math.abs(was - rank)}`,
  );
}

/** Points out a passage on both sides, with its line, while the pointer or the focus is on it. */
function linkRows(view, places, lineOf) {
  for (const [docId, items] of places) {
    const mark = (on) => {
      view.classList.toggle("linking", on);
      for (const part of [...items, lineOf.get(docId)]) part?.classList.toggle("linked", on);
      if (on && lineOf.has(docId)) lineOf.get(docId).parentNode.append(lineOf.get(docId));
    };
    for (const item of items) {
      for (const [event, on] of Object.entries({ pointerenter: true, pointerleave: false, focusin: true, focusout: false })) {
        item.addEventListener(event, () => mark(on));
      }
    }
  }
}
