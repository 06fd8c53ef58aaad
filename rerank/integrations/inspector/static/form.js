// The form: its fields, filled with what the service offers, and the state that it holds.

import { element } from "./dom.js";
import { SYSTEM } from "./state.js";

const STAGES = {
  "hybrid-rrf": "hybrid (RRF)",
  "hybrid-z-score": "hybrid (z-score)",
  bm25: "BM25",
  dense: "dense",
};
/** Fields that all systems share. */
const ASKED = ["source", "query", "depth", "chunks", "instruction", "passages"];
const FEEDBACK = {
  "": "none",
  "weighted-ranknet": "weighted RankNet",
  "weighted-ranknet-first": "weighted RankNet, as FIRST",
  kl: "KL divergence",
  chain: "chain (of a cascade)",
  rocchio: "Rocchio",
};
const STRATEGIES = {
  "": "the model's own",
  single: "single window",
  sliding: "sliding",
  "top-down": "top-down",
  cascade: "cascade",
};

/** The fields of the page's form. `models` is the list of ListModels. */
export class Form {
  constructor(form, models) {
    this.form = form;
    this.models = models;
    this.systems = form.querySelector("#systems");
    this.compare = form.querySelector("#compare");
    this.readsInstruction = models.some((model) => model.reads_instruction && (model.is_loaded || model.load_s));
    this.compare.addEventListener("click", () => this.#setCompared(this.systems.children.length === 1));
    for (const radio of form.elements.source) radio.addEventListener("change", () => this.#showSource());
  }

  /** Writes a state into the fields. */
  write(state) {
    const { elements } = this.form;
    for (const name of ASKED) elements[name].value = state[name];
    const refused = !this.readsInstruction && !state.instruction; // by every model
    elements.instruction.closest("label").hidden = refused;
    this.form.querySelector("#more summary").textContent = refused ? "Long passages" : "Instruction and long passages";
    this.form.querySelector("#more").open = Boolean(state.instruction || state.chunks);
    this.systems.replaceChildren(...state.systems.map((system, place) => this.#systemView(system, place)));
    this.#showSource();
  }

  /** The state in the fields, with the parts of `shown` that no field holds. */
  read(shown) {
    const { elements } = this.form;
    const state = { ...shown, systems: [] };
    for (const name of ASKED) state[name] = elements[name].value;
    for (const place of this.systems.children.length === 2 ? [0, 1] : [0]) {
      const names = Object.keys(SYSTEM);
      state.systems.push(Object.fromEntries(names.map((name) => [name, elements[`${"ab"[place]}.${name}`].value])));
    }
    if (state.systems.length === 1) state.view = "a";
    return state;
  }

  #setCompared(compared) {
    const systems = this.read({}).systems.slice(0, 1);
    const other = this.models.find((model) => model.name !== (systems[0].model || this.models[0].name) && !model.problem);
    if (compared) systems.push({ ...SYSTEM, stage: systems[0].stage, model: other?.name ?? "" });
    this.systems.replaceChildren(...systems.map((system, place) => this.#systemView(system, place)));
    this.#showSource();
    if (compared) this.form.elements["b.model"].focus();
  }

  #showSource() {
    const pasted = this.form.elements.source.value === "pasted";
    this.form.querySelector(".pasted").hidden = !pasted;
    for (const field of this.form.querySelectorAll(".from-index")) field.hidden = pasted;
    this.form.elements.passages.required = pasted;
    this.compare.textContent = this.systems.children.length === 2 ? "Remove system B" : "Compare with a second system";
  }

  #systemView(system, place) {
    const letter = "ab"[place];
    const field = (name, label, control, kind = "") =>
      element("label", { class: `field ${kind}` }, element("span", {}, label), control(`${letter}.${name}`, system[name]));
    const names = Object.fromEntries(this.models.map((model) => [model.name, model.name]));
    const [first = "", ...others] = this.models.map((model) => model.name);
    const answering = { "": first === "default" ? first : `${first} (default)` };
    for (const name of others) answering[name] = name;
    const advanced = ["strategy", "window", "stride", "weight", "preranker"].some((name) => system[name] !== "");
    return element(
      "fieldset",
      { class: "system" },
      element("legend", {}, `System ${letter.toUpperCase()}`),
      field("stage", "First stage", choices(STAGES), "from-index"),
      field("model", "Model", (name) => choices(answering)(name, system.model === first ? "" : system.model)),
      field("feedback", "Relevance feedback", choices(FEEDBACK), "from-index"),
      element(
        "details",
        { open: advanced },
        element("summary", {}, "Strategy"),
        element(
          "div",
          { class: "fields" },
          field("strategy", "Windows", choices(STRATEGIES)),
          field("window", "Window size", numbers({ min: 0, step: 1 }), "small"),
          field("stride", "Stride", numbers({ min: 0, step: 1 }), "small"),
          field("weight", "First-stage weight", numbers({ min: 0, max: 100, step: "any" }), "small"),
          field("preranker", "Preranker", choices({ "": "the model's own", ...names })),
        ),
      ),
    );
  }
}

/** A function from a name and a value to a select element with these titles by value. */
function choices(titles) {
  return (name, value) => {
    const known = Object.hasOwn(titles, value) ? titles : { ...titles, [value]: value };
    const options = Object.entries(known).map(([key, title]) => element("option", { value: key, selected: key === value }, title));
    return element("select", { name }, options);
  };
}

function numbers(limits) {
  return (name, value) => element("input", { type: "number", name, value, placeholder: "default", ...limits });
}
