// The table of an evaluation's queries with the measure before and after, and the difference as a bar.

import { element, svg, unseen } from "./dom.js";
import { signed } from "./format.js";

/** The queries with {before, after, difference}, in the order that the state asks for. */
export function sortedRows(queries, state) {
  const rows = queries.map((query) => {
    const [before, after] = [query.values[state.baseline], query.values[state.system]];
    return { ...query, before, after, difference: after - before };
  });
  if (state.order === "id") return rows;
  const sign = state.order === "gain" ? -1 : 1;
  return rows.sort((one, other) => sign * (one.difference - other.difference));
}

/** The summary and the table. `open` is called with the query_id of a query that was chosen. */
export function queriesView(rows, measure, state, open) {
  const wins = rows.filter((row) => row.difference > 0).length;
  const losses = rows.filter((row) => row.difference < 0).length;
  const mean = rows.reduce((sum, row) => sum + row.difference, 0) / rows.length;
  const figures = [
    [`mean difference of ${measure}`, signed(mean)],
    ["queries better", wins],
    ["equal", rows.length - wins - losses],
    ["worse", losses],
  ];
  return element(
    "div",
    { class: "queries" },
    element(
      "section",
      { class: "summary" },
      element("h2", {}, state.system, element("span", { class: "quiet" }, `compared with ${state.baseline}`)),
      element("dl", {}, figures.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, String(value))))),
    ),
    element(
      "div",
      { class: "scroll" },
      element(
        "table",
        {},
        element(
          "thead",
          {},
          element("tr", {}, ["query", state.baseline, state.system, "difference"].map((title) => element("th", { scope: "col" }, title))),
        ),
        element("tbody", {}, rows.map((row) => queryRow(row, open))),
      ),
    ),
  );
}

function queryRow(row, open) {
  return element(
    "tr",
    {},
    element(
      "td",
      {},
      element("button", { type: "button", class: "name", click: () => open(row.query_id) }, row.text || row.query_id),
      unseen(` query ${row.query_id}`),
    ),
    element("td", { class: "number" }, row.before.toFixed(3)),
    element("td", { class: "number" }, row.after.toFixed(3)),
    element("td", { class: "number" }, element("span", { class: "value" }, signed(row.difference)), differenceBar(row.difference)),
  );
}

/** A bar from the middle to the right for a gain, to the left for a loss. */
function differenceBar(difference) {
  const size = 50 * Math.min(1, Math.abs(difference));
  return svg(
    "svg",
    { class: "bar both", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("rect", { x: 49.75, y: 0, width: 0.5, height: 10, class: "zero" }),
    svg("rect", { x: difference < 0 ? 50 - size : 50, y: 1, width: size, height: 8, class: difference < 0 ? "loss" : "gain" }),
  );
}
