// What a page without a query offers to try.

import { element } from "./dom.js";

const MOST = 3;
const PASTED = {
  source: "pasted",
  query: "how long does a flea live",
  passages: [
    "How long can people live on a small boat?",
    "An adult flea survives a hundred days.",
    "The flea market is open all day long.",
    "Most fleas die within three months.",
    "Deserts are dry, and their nights are cold.",
    "Some say that a flea's life lasts a year.",
  ].join("\n"),
};

/**
 * Buttons with judged queries of the index; without them, one with example passages.
 *
 * @param queries the judged ones; empty without an index
 * @param ask called with the parts of the state that an example changes
 */
export function examplesView(queries, ask) {
  const examples = queries.length ? queries.slice(0, MOST).map((query) => ({ source: "index", query })) : [PASTED];
  const buttons = examples.map((parts) => element("button", { type: "button", class: "plain", click: () => ask(parts) }, parts.query));
  return element("p", { class: "examples" }, element("span", { class: "quiet" }, "Try"), ...buttons);
}
