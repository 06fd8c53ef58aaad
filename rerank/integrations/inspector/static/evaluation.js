// The results of an evaluation: queries by gain and loss against a baseline, each with its rankings.

import { choices } from "./choices.js";
import { element } from "./dom.js";
import { byId, outcomeOf } from "./outcome.js";
import { openPassage } from "./passage.js";
import { queriesView, sortedRows } from "./queries.js";
import { reportView } from "./report.js";
import { get } from "./service.js";

const FIRST_STAGE = "first stage";
const ORDERS = { gain: "largest gain first", loss: "largest loss first", id: "as in the collection" };

const at = (id) => document.getElementById(id);
const [status, problem, report, result] = ["status", "problem", "report", "result"].map(at);

let evaluation;
let state;

async function start() {
  try {
    evaluation = await get("/inspector/evaluation");
  } catch (error) {
    problem.replaceChildren(element("p", { class: "problem" }, error.message));
    return;
  }
  at("about").textContent = evaluation.title;
  at("form").addEventListener("change", () => {
    const { elements } = at("form");
    change({ system: elements.system.value, baseline: elements.baseline.value, order: elements.order.value });
  });
  addEventListener("popstate", read);
  await read();
}

/** Reads the state from the address, and shows it. */
async function read() {
  const names = evaluation.systems.map((system) => system.name);
  const fields = new URLSearchParams(location.hash.slice(1));
  const defaults = { system: names[1], baseline: FIRST_STAGE, order: "gain", query: "", view: "", all: "" };
  state = Object.fromEntries(Object.entries(defaults).map(([name, value]) => [name, fields.get(name) ?? value]));
  for (const name of ["system", "baseline"]) if (!names.includes(state[name])) state[name] = defaults[name];
  await show();
}

/** Shows another part of the evaluation; the address follows. */
async function change(parts) {
  state = { ...state, ...parts };
  const fields = Object.entries(state).filter(([, value]) => value);
  history.pushState(null, "", `#${new URLSearchParams(fields)}`);
  await show();
}

async function show() {
  const titles = Object.fromEntries(evaluation.systems.map(({ name, mean }) => [name, `${name} (${mean.toFixed(3)})`]));
  const { [FIRST_STAGE]: _, ...reranked } = titles;
  const field = (name, label, options) =>
    element("label", { class: "field" }, element("span", {}, label), choices(options)(name, state[name]));
  at("choices").replaceChildren(
    field("system", `System (mean ${evaluation.measure})`, reranked),
    field("baseline", "Compared with", titles),
    field("order", "Queries", ORDERS),
  );
  problem.replaceChildren();
  const rows = sortedRows(evaluation.queries, state);
  if (state.query) await showRanking(rows);
  else showQueries(rows);
}

function showQueries(rows) {
  document.title = `${evaluation.title} · rerank inspector`;
  status.textContent = "";
  report.replaceChildren(queriesView(rows, evaluation.measure, state, (query) => change({ query, view: "", all: "" })));
}

async function showRanking(rows) {
  status.textContent = "Reading the ranking…";
  try {
    const names = state.baseline === FIRST_STAGE || state.baseline === state.system ? [] : [state.baseline];
    const replies = await Promise.all([...names, state.system].map((name) => rankingOf(name, state.query)));
    const outcomes = replies.map(([name, reply]) => outcomeOf(name, reply, 0));
    const grades = byId(replies[0][1].grades);
    const view = { ...state, view: state.view || (outcomes.length > 1 ? "ab" : "a") };
    const open = (docId) => openPassage(at("passage"), docId, outcomes, grades[docId]);
    report.replaceChildren(heading(rows), ...reportView(outcomes, grades, view, change, open));
    status.textContent = "";
    result.scrollIntoView({ block: "start" });
  } catch (error) {
    status.textContent = "";
    report.replaceChildren(heading(rows));
    problem.replaceChildren(element("p", { class: "problem" }, error.message));
  }
}

async function rankingOf(name, query) {
  return [name, await get(`/inspector/evaluation/ranking?${new URLSearchParams({ system: name, query_id: query })}`)];
}

/** The query, and the ways to the next one and back to all. */
function heading(rows) {
  const place = rows.findIndex((row) => row.query_id === state.query);
  const row = rows[place];
  const step = (text, to) =>
    element("button", { type: "button", class: "plain", disabled: !rows[to], click: () => change({ query: rows[to].query_id, all: "" }) }, text);
  document.title = `${row?.text ?? state.query} · rerank inspector`;
  return element(
    "header",
    { class: "query" },
    element("h2", {}, row?.text || state.query, element("span", { class: "quiet" }, `query ${state.query}`)),
    element(
      "nav",
      { "aria-label": "Queries" },
      element("button", { type: "button", class: "plain", click: () => change({ query: "" }) }, "All queries"),
      step("Previous", place - 1),
      step("Next", place + 1),
    ),
  );
}

start();
