// The dialog about one passage: its text, and what each step did with it.

import { element } from "./dom.js";
import { score } from "./format.js";

/**
 * Fills and opens the dialog.
 *
 * @param outcomes the answers whose passage it is, one for each system
 * @param grade of its judgement; undefined if nobody judged it
 */
export function openPassage(dialog, docId, outcomes, grade) {
  const found = outcomes.map((outcome) => outcome.passages.get(docId)).filter((passage) => passage?.text);
  const close = element("button", { type: "button", class: "plain", click: () => dialog.close() }, "Close");
  dialog.replaceChildren(
    element("header", {}, element("h2", { id: "passage-title" }, docId), close),
    element("p", { class: "quiet" }, grade === undefined ? "" : `Judged with grade ${grade}.`),
    ...outcomes.map((outcome) => historyView(outcome, docId)),
    element("p", { class: "full-text" }, ...(found.length ? marked(found) : ["The text of this passage is not at hand."])),
  );
  dialog.showModal();
}

/** The text, with a mark on the part that decided the rank of a divided passage. */
function marked(found) {
  const { text, span } = found.find((passage) => passage.span) ?? found[0];
  if (!span) return [text];
  const characters = [...text];
  const part = (start, end) => characters.slice(start, end).join("");
  const mark = element("mark", { title: "The part that decided" }, part(...span));
  return [part(0, span[0]), mark, part(span[1])];
}

function historyView(outcome, docId) {
  const passage = outcome.passages.get(docId);
  if (!passage) return element("p", { class: "quiet" }, `${outcome.name}: not among its candidates.`);
  const steps = [
    [passage.isNew ? "second retrieval" : "first stage", passage.position + 1, passage.firstStageScore],
    ...outcome.windows.flatMap((window) =>
      window.passages
        .filter((row) => row.docId === docId)
        .map((row) => [`round ${window.round + 1}, ${window.model}`, `${row.before} → ${row.after}`, row.score]),
    ),
    ["result", passage.rank, passage.score],
  ];
  return element(
    "section",
    {},
    element("h3", {}, outcome.name, passage.truncated ? element("span", { class: "badge" }, "cut") : null),
    element(
      "table",
      {},
      element("thead", {}, element("tr", {}, ["step", "place", "score"].map((name) => element("th", { scope: "col" }, name)))),
      element(
        "tbody",
        {},
        steps.map(([name, place, value]) =>
          element(
            "tr",
            {},
            element("td", {}, name),
            element("td", { class: "number" }, String(place)),
            element("td", { class: "number" }, score(value)),
          ),
        ),
      ),
    ),
  );
}
