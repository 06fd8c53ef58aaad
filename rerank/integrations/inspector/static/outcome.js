// What a system answered: its passages, and their order at each step from the first stage to the result.

/**
 * The answer of a system as the page shows it.
 *
 * - passages: doc_id → {docId, text, span, position, firstStageScore, score, relevance, rank, truncated, isNew}; ranks
 *   are 1-based; relevance: undefined where there is none; span: [start, end] of the part of `text` that decided, in code points; null if the passage was not divided
 * - firstStage, input, result: doc_ids in the order of the first stage, as the ranking received them, and of the result;
 *   with relevance feedback, the passages that only the second retrieval found come last in the first two
 *
 * @param reply a RerankResponse in JSON, with its trace
 * @param wallMs the time until the reply arrived, in milliseconds
 * @param request what was asked for: a SearchRequest or a RerankRequest
 */
export function outcomeOf(name, reply, wallMs, request) {
  const { execution, trace } = reply;
  const truncated = new Set(execution.truncated_doc_ids);
  const hits = reply.first_stage_hits ?? reply.results.length;
  const passages = new Map();
  reply.results.forEach((result, place) => {
    passages.set(result.doc_id, {
      docId: result.doc_id,
      text: result.title ? `${result.title} ${result.text}` : (result.text ?? ""),
      span: result.span ? spanOf(result) : null,
      position: result.original_position,
      firstStageScore: result.first_stage_score,
      score: result.score,
      relevance: result.relevance,
      rank: place + 1,
      truncated: truncated.has(result.doc_id),
      isNew: result.original_position >= hits,
    });
  });
  const byPosition = new Map([...passages.values()].map((passage) => [passage.position, passage.docId]));
  const firstStage = [...byPosition.keys()].sort((one, other) => one - other).map((place) => byPosition.get(place));
  const input = trace.input_order.map((position) => byPosition.get(position));
  return {
    name,
    passages,
    firstStage,
    input: input.length ? input : null,
    result: reply.results.map((result) => result.doc_id),
    scoreKind: reply.score_kind,
    execution,
    feedback: reply.feedback ?? null,
    firstStageName: request.first_stage ?? null,
    windows: trace.windows.map((window) => windowOf(window, byPosition, truncated)),
    wallMs,
  };
}

/** The part that decided of a result's title and text, whose places count from the beginning of the text. */
function spanOf({ span, title }) {
  const added = title ? [...title].length + 1 : 0;
  return [span.start + added, span.end + added];
}

/** An object whose keys are ids, without those that every object has: an id may be "constructor". */
export function byId(values) {
  return { __proto__: null, ...values };
}

/** A window with its passages in the order that the model read. `after` is the 1-based place it gave them. */
function windowOf(window, byPosition, truncated) {
  const after = new Map(window.permutation.map((place, rank) => [place, rank + 1]));
  const passages = window.positions.map((position, place) => ({
    docId: byPosition.get(position),
    position,
    before: place + 1,
    after: after.get(place),
    score: window.scores[place],
    truncated: truncated.has(byPosition.get(position)),
  }));
  return { ...window, passages };
}

/** The first stage and the strategy of an answer, such as "BM25 → sliding(20/10)". */
export function pathOf(outcome) {
  return [firstStageTitle(outcome), outcome.execution.strategy].filter(Boolean).join(" → ");
}

/** The name of the first stage; empty if the passages were given. */
export function firstStageTitle(outcome) {
  const titles = {
    FIRST_STAGE_BM25: "BM25",
    FIRST_STAGE_DENSE: "dense",
    FIRST_STAGE_HYBRID_RRF: "hybrid (RRF)",
    FIRST_STAGE_HYBRID_Z_SCORE: "hybrid (z-score)",
  };
  return titles[outcome.firstStageName] ?? "";
}

/** What the scores of an answer mean. */
export function scoreMeaning(kind) {
  const meanings = {
    SCORE_KIND_RANK: "rank only",
    SCORE_KIND_WINDOW_LOG_PROB: "log-probability",
    SCORE_KIND_POINTWISE: "score of the passage alone",
    SCORE_KIND_POINTWISE_PROBABILITY: "probability of the passage alone",
    SCORE_KIND_WINDOW_SCORE: "the model's score",
  };
  return `score: ${meanings[kind]}`;
}
