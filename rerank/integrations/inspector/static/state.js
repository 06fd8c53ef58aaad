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

const SHARED = { source: "index", query: "", depth: "100", chunks: "", instruction: "", view: "a", all: "" };

export function emptyState() {
  return { ...SHARED, passages: "", systems: [{ ...SYSTEM }] };
}

/** The fragment, without "#". Values that are the default are left out; pasted passages are compressed. */
export async function toFragment(state) {
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
  if (state.source === "pasted" && state.passages) parameters.set("passages", await compressed(state.passages));
  return parameters.toString();
}

/** The state that a link holds; "a." may be left out. Throws an Error if its passages cannot be read. */
export async function fromFragment(fragment) {
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
  if (parameters.has("passages")) state.passages = await decompressed(parameters.get("passages"));
  return state;
}

async function compressed(text) {
  const bytes = await through(new CompressionStream("deflate-raw"), new TextEncoder().encode(text));
  let binary = "";
  for (const byte of bytes) binary += String.fromCharCode(byte);
  return btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

async function decompressed(text) {
  try {
    const binary = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
    const bytes = Uint8Array.from(binary, (character) => character.charCodeAt(0));
    return new TextDecoder().decode(await through(new DecompressionStream("deflate-raw"), bytes));
  } catch {
    throw new Error("The passages in this link cannot be read; it may have been cut off when it was copied.");
  }
}

async function through(transform, bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(transform);
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
