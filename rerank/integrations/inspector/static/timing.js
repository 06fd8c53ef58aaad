// Where the time of an answer went: one bar, divided into its steps.

import { element, svg } from "./dom.js";
import { duration } from "./format.js";

/** The steps of an answer with their milliseconds, in the order in which they ran. */
function stepsOf(outcome) {
  const { execution, feedback, firstStageMs } = outcome;
  const ranking = Number(execution.total_ms);
  const steps = firstStageMs ? [["first stage", firstStageMs]] : [];
  if (feedback) {
    steps.push(["first ranking", feedback.first_ranking_ms], ["update of the query", feedback.update_ms]);
    steps.push(["second retrieval", feedback.second_retrieval_ms], ["second ranking", feedback.second_ranking_ms]);
  } else {
    const known = execution.queue_ms + execution.prepare_ms + execution.model_ms;
    steps.push(["waiting", execution.queue_ms], ["preparing texts", execution.prepare_ms], ["model", execution.model_ms]);
    steps.push(["schedule and prompts", Math.max(0, ranking - known)]);
  }
  const inService = steps.reduce((sum, [, ms]) => sum + ms, 0);
  steps.push(["network and page", outcome.wallMs - inService]);
  return steps.filter(([, ms]) => ms > 0);
}

/** The bar of an answer with its legend, under a heading. */
export function timingView(outcome, title) {
  const steps = stepsOf(outcome);
  const total = steps.reduce((sum, [, ms]) => sum + ms, 0);
  let start = 0;
  const parts = steps.map(([, ms], place) => {
    const part = svg("rect", { x: start, y: 0, width: (1000 * ms) / total, height: 10, class: `step s${place}` });
    start += (1000 * ms) / total;
    return part;
  });
  return element(
    "section",
    { class: "timing" },
    element("h2", {}, title, element("span", { class: "quiet" }, duration(total))),
    svg("svg", { class: "time", viewBox: "0 0 1000 10", preserveAspectRatio: "none", "aria-hidden": "true" }, parts),
    element(
      "ul",
      { class: "legend" },
      steps.map(([name, ms], place) =>
        element("li", {}, element("span", { class: `key s${place}` }), `${name} `, element("b", {}, duration(ms))),
      ),
    ),
  );
}
