// What was asked for, and its form in the fragment of the address: the link that holds all of it.

/** Fields of a system and their values if the link has none. */
export const SYSTEM = {
  stage: "hybrid-z-score",
  model: "",
  feedback: "",
  strategy: "",
  window: "",
  stride: "",
  weight: "",
  preranker: "",
};

const SHARED = { source: "index", query: "", depth: "100", chunks: "", instruction: "", passages: "", view: "a", all: "" };

export function emptyState() {
  return { ...SHARED, systems: [{ ...SYSTEM }] };
}

/** The fragment, without "#". Values that are the default are left out. */
export function toFragment(state) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(SHARED)) {
    if (state[name] !== value) parameters.set(name, state[name]);
  }
  state.systems.forEach((system, place) => {
    if (place) parameters.set("compare", "1");
    for (const [name, value] of Object.entries(SYSTEM)) {
      if (system[name] !== value) parameters.set(`${"ab"[place]}.${name}`, system[name]);
    }
  });
  return parameters.toString();
}

/** The state that a link holds; "a." may be left out. */
export function fromFragment(fragment) {
  const parameters = new URLSearchParams(fragment);
  const state = emptyState();
  for (const name of Object.keys(SHARED)) state[name] = parameters.get(name) ?? state[name];
  if (parameters.has("compare")) state.systems.push({ ...SYSTEM });
  state.systems.forEach((system, place) => {
    for (const name of Object.keys(SYSTEM)) {
      const short = place ? null : parameters.get(name);
      system[name] = parameters.get(`${"ab"[place]}.${name}`) ?? short ?? system[name];
    }
  });
  return state;
}
