// The inspector of a running service: asks what the form says, and shows the answers. The address holds the state.

import { element } from "./dom.js";
import { examplesView } from "./example.js";
import { Form } from "./form.js";
import { count } from "./format.js";
import { byId, outcomeOf } from "./outcome.js";
import { openPassage } from "./passage.js";
import { reportView } from "./report.js";
import { requestOf } from "./requests.js";
import { apiKey, get, post } from "./service.js";
import { emptyState, fromFragment, toFragment } from "./state.js";

const at = (id) => document.getElementById(id);
const [status, problem, report, result] = ["status", "problem", "report", "result"].map(at);

let form;
let firstSource = "index";
let suggested = [];
let example;
let state = emptyState();
let answers = { outcomes: [], grades: {} };
let running = new AbortController();

async function start() {
  try {
    setUp(await get("inspector/service"));
  } catch (error) {
    show(error);
    if (error.status !== 401) return;
    at("form").noValidate = true; // the key is all that is needed
    at("form").addEventListener("submit", enterKey, { once: true });
    return;
  }
  at("form").noValidate = false;
  at("form").addEventListener("submit", submit);
  addEventListener("popstate", () => {
    state = { ...emptyState(), source: firstSource };
    status.textContent = "";
    report.replaceChildren();
    open(link());
  });
  await open(link());
}

/** What the address asks for: its fragment, or the parameters that a person writes, as in ?query=…&model=… */
function link() {
  return location.hash.slice(1) || location.search.slice(1);
}

function enterKey(event) {
  event.preventDefault();
  const { key, query } = at("form").elements;
  apiKey.set(key.value);
  state.query = query.value;
  start();
}

function setUp({ service, judged_queries: judged, example: offered }) {
  const index = service.index;
  at("about").textContent = index
    ? `${count(Number(index.passages), "passage")} of ${index.collection}`
    : "no index: paste passages to rank them";
  suggested = index ? judged : [];
  example = offered;
  at("judged").replaceChildren(...judged.map((query) => element("option", { value: query })));
  form = new Form(at("form"), service.models);
  for (const radio of at("form").elements.source) radio.disabled = radio.value === "index" && !index;
  if (!index) state.source = firstSource = "pasted";
  form.write(state);
}

/** Shows what a link holds, and asks for it if it has a query. */
async function open(fragment) {
  if (fragment) state = fromFragment(fragment);
  form.write(state);
  if (state.query) await ask();
  else report.replaceChildren(examplesView(suggested, example, (parts) => askFor({ ...state, ...parts })));
}

async function askFor(asked) {
  state = asked;
  form.write(state);
  remember();
  await ask();
}

async function submit(event) {
  event.preventDefault();
  const key = at("form").elements.key.value;
  if (key) apiKey.set(key);
  state = form.read({ ...state, all: "" });
  remember();
  await ask();
}

function remember() {
  const fragment = `#${toFragment(state)}`;
  if (fragment !== location.hash) history.pushState(null, "", `${location.pathname}${fragment}`);
}

/** Asks each system, and shows the answers unless something else was asked meanwhile. */
async function ask() {
  running.abort();
  const { signal } = (running = new AbortController());
  show(null);
  status.textContent = "Ranking…";
  result.setAttribute("aria-busy", "true");
  try {
    const outcomes = [];
    for (const [place, system] of state.systems.entries()) outcomes.push(await answerOf(system, place, signal));
    const { grades } = await get(`inspector/judgements?${new URLSearchParams({ query: state.query })}`);
    if (signal.aborted) return;
    answers = { outcomes, grades: byId(grades) };
    render();
  } catch (error) {
    if (error.name === "AbortError" || signal.aborted) return;
    show(error);
  }
  result.removeAttribute("aria-busy");
}

/** One system after the other, so that neither waits for the other's model. */
async function answerOf(system, place, signal) {
  const [path, body] = requestOf(state, system);
  const start = performance.now();
  const reply = await post(path, body, signal);
  const letter = state.systems.length > 1 ? `${"AB"[place]} · ` : "";
  return outcomeOf(`${letter}${reply.execution.model}`, reply, performance.now() - start, body);
}

function render() {
  const { outcomes, grades } = answers;
  document.title = `${state.query} · rerank inspector`;
  const sizes = outcomes.map((outcome) => count(outcome.result.length, "passage"));
  const found = outcomes.some((outcome) => outcome.result.length);
  status.textContent = found ? `Ranked ${sizes.join(" and ")}.` : "The first stage found no passage.";
  report.replaceChildren(...(found ? reportView(outcomes, grades, state, change, openDialog) : []));
}

function change(parts) {
  state = { ...state, ...parts };
  const name = document.activeElement?.name;
  const value = document.activeElement?.value;
  render();
  if (name) report.querySelector(`[name="${CSS.escape(name)}"][value="${CSS.escape(value)}"]`)?.focus();
  remember();
}

function openDialog(docId) {
  openPassage(at("passage"), docId, answers.outcomes, answers.grades[docId]);
}

/** Shows an error instead of a ranking; null removes it. */
function show(error) {
  problem.replaceChildren(...(error ? [element("p", { class: "problem" }, error.message)] : []));
  if (!error) return;
  status.textContent = "";
  report.replaceChildren();
  result.removeAttribute("aria-busy");
  if (error.status === 401) at("key-field").hidden = false;
}

start();
