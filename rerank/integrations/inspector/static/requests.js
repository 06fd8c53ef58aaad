// Messages to the service: the JSON forms of SearchRequest and RerankRequest (rerank.proto).

/** The path and the message that ask a system. Throws an Error for unreadable passages. */
export function requestOf(state, system) {
  const shared = {
    query: state.query,
    model: system.model,
    instruction: state.instruction,
    max_chunks_per_doc: Number(state.chunks),
    strategy: strategyOf(system),
    ...(system.weight === "" ? {} : { first_stage_weight: { number: Number(system.weight) } }),
    return_passages: true,
    include_trace: true,
  };
  if (state.source === "pasted") return ["rerank", { ...shared, candidates: candidatesOf(state.passages) }];
  const feedback = system.feedback ? { feedback: { method: enumName("FEEDBACK_METHOD", system.feedback) } } : {};
  const search = { first_stage: enumName("FIRST_STAGE", system.stage), depth: Number(state.depth) };
  return ["search", { ...shared, ...search, ...feedback }];
}

/** The member of a protobuf enum for a name with hyphens: FIRST_STAGE_HYBRID_RRF for hybrid-rrf. */
function enumName(prefix, name) {
  return `${prefix}_${name.toUpperCase().replaceAll("-", "_")}`;
}

function strategyOf(system) {
  const strategy = { window_size: Number(system.window), stride: Number(system.stride), preranker: system.preranker };
  if (system.strategy) strategy.kind = enumName("STRATEGY_KIND", system.strategy);
  return strategy;
}

/** The candidates in a pasted text: JSON lines if the first line is an object, else one passage per line. */
export function candidatesOf(text) {
  const lines = text.split("\n").filter((line) => line.trim());
  if (!lines.length) throw new Error("There is no passage to rank. Paste one passage per line.");
  if (!lines[0].trim().startsWith("{")) return lines.map((line, place) => ({ doc_id: String(place + 1), text: line }));
  return lines.map(candidateOf);
}

function candidateOf(line, place) {
  let row;
  try {
    row = JSON.parse(line);
  } catch {
    throw new Error(`Line ${place + 1} of the passages is not JSON. Write every line as {"doc_id": …, "text": …}.`);
  }
  if (typeof row.text !== "string") throw new Error(`Line ${place + 1} of the passages has no "text".`);
  const { doc_id, _id, docid, id, text, title, score, ...others } = row;
  const unknown = Object.keys(others)[0];
  if (unknown !== undefined)
    throw new Error(
      `Line ${place + 1} of the passages has the unknown field "${unknown}". Known are doc_id (or _id, docid, id), text, title and score.`,
    );
  const candidate = { doc_id: String(doc_id ?? _id ?? docid ?? id ?? place + 1), text, title: title ?? "" };
  return typeof score === "number" ? { ...candidate, first_stage_score: score } : candidate;
}
