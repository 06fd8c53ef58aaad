// What a page without a query offers to try.

import { element } from "./dom.js";

const MOST = 3;

/**
 * Buttons with judged queries of the index, or one with an example that needs none.
 *
 * @param queries the judged ones; empty without an index
 * @param example a query and its passages
 * @param ask called with the parts of the state that a button changes
 */
export function examplesView(queries, example, ask) {
  const pasted = { source: "pasted", query: example.query, passages: example.passages.join("\n") };
  const examples = queries.length ? queries.slice(0, MOST).map((query) => ({ source: "index", query })) : [pasted];
  const buttons = examples.map((parts) => element("button", { type: "button", class: "plain", click: () => ask(parts) }, parts.query));
  return element("p", { class: "examples" }, element("span", { class: "quiet" }, "Try"), ...buttons);
}
