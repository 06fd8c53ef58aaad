// The windows that the models ranked, round by round.

import { element, svg, unseen } from "./dom.js";
import { count, duration, score } from "./format.js";

/** Rows of a window's table before the button that shows the others. */
const ROWS = 10;
/** The most windows of an answer whose tables are open at first. */
const OPEN = 2;

/** A section with all windows of an answer, under a heading. */
export function windowsView(outcome, title, open) {
  const rounds = new Map();
  for (const window of outcome.windows) rounds.set(window.round, [...(rounds.get(window.round) ?? []), window]);
  const missing = outcome.execution.windows - outcome.windows.length;
  return element(
    "section",
    { class: "windows" },
    element("h2", {}, title),
    element(
      "p",
      { class: "quiet" },
      outcome.windows.length
        ? "What each model read at once, and the order it gave. Ticks show the first-stage ranks of the passages in a window."
        : "No model ranked a window.",
      missing > 0 ? ` The last ${count(missing, "window")} are left out, because the trace would be too long.` : "",
    ),
    [...rounds].map(([round, windows]) => roundView(round, windows, outcome, outcome.windows.length <= OPEN, open)),
  );
}

function roundView(round, windows, outcome, isOpen, open) {
  const models = [...new Set(windows.map((window) => window.model))].join(", ");
  const slowest = Math.max(...windows.map((window) => Number(window.model_ms)));
  const facts = [count(windows.length, "window"), `${duration(slowest)}`].join(" · ");
  return element(
    "section",
    { class: "round" },
    element("h3", {}, `Round ${round + 1}`, element("span", { class: "quiet" }, `${models} · ${facts}`)),
    windows.map((window) => windowView(window, outcome, isOpen, open)),
  );
}

function windowView(window, outcome, isOpen, open) {
  const moved = window.passages.filter((passage) => passage.before !== passage.after).length;
  const cut = window.passages.filter((passage) => passage.truncated).length;
  const facts = [
    count(window.passages.length, "passage"),
    `${moved} moved`,
    cut ? `${cut} cut to fit` : null,
    `${Number(window.tokens).toLocaleString("en")} positions read`,
    `${duration(Number(window.model_ms))} in its batch`,
  ];
  return element(
    "details",
    { class: "window", open: isOpen },
    element(
      "summary",
      {},
      ticks(window.passages, outcome.firstStage.length),
      element("span", { class: "quiet" }, facts.filter(Boolean).join(" · ")),
    ),
    windowTable(window, open),
  );
}

/** A strip with one tick for each passage of a window, at its rank in the first stage. */
function ticks(passages, total) {
  const marks = passages.map(({ position }) => svg("rect", { x: position, y: 0, width: 0.8, height: 10 }));
  return svg("svg", { class: "ticks", viewBox: `0 0 ${total} 10`, preserveAspectRatio: "none", "aria-hidden": "true" }, marks);
}

function windowTable(window, open) {
  const ordered = [...window.passages].sort((one, other) => one.after - other.after);
  const isLogProb = window.score_kind === "SCORE_KIND_WINDOW_LOG_PROB";
  const body = element("tbody", {}, ordered.slice(0, ROWS).map((passage) => tableRow(passage, isLogProb, open)));
  const table = element(
    "table",
    {},
    element(
      "thead",
      {},
      element(
        "tr",
        {},
        ["after", "read as", "passage", isLogProb ? "log-probability" : "score (order only)"].map(
          (title) => element("th", { scope: "col" }, title),
        ),
      ),
    ),
    body,
  );
  if (ordered.length <= ROWS) return element("div", { class: "scroll" }, table);
  const more = element("button", { type: "button", class: "plain" }, `Show all ${ordered.length}`);
  more.addEventListener("click", () => {
    body.append(...ordered.slice(ROWS).map((passage) => tableRow(passage, isLogProb, open)));
    more.remove();
  });
  return element("div", { class: "scroll" }, table, more);
}

function tableRow(passage, isLogProb, open) {
  const share = isLogProb ? Math.exp(Math.min(0, passage.score)) : 0;
  const bar = svg(
    "svg",
    { class: "bar", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("rect", { x: 0, y: 0, height: 10, width: 100 * share }),
  );
  return element(
    "tr",
    {},
    element("td", { class: "number" }, String(passage.after)),
    element("td", { class: "number" }, String(passage.before)),
    element(
      "td",
      {},
      element("button", { type: "button", class: "name", click: () => open(passage.docId) }, passage.docId),
      passage.truncated ? element("span", { class: "badge", title: "Truncated to fit the prompt" }, "cut") : null,
    ),
    element("td", { class: "number" }, element("span", { class: "value" }, score(passage.score)), isLogProb ? bar : unseen("")),
  );
}
