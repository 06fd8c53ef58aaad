// nDCG@10, as trec_eval and ir_measures define it.

/**
 * The normalized discounted cumulative gain of the first k passages; null if no judged passage is relevant.
 * The gain is the grade, the discount log2(rank + 1), and passages without judgement count as grade 0.
 */
export function ndcg(docIds, grades, k = 10) {
  const ideal = Object.values(grades).filter((grade) => grade > 0).sort((one, other) => other - one);
  if (!ideal.length) return null;
  return gain(docIds.map((docId) => grades[docId] ?? 0), k) / gain(ideal, k);
}

function gain(grades, k) {
  return grades.slice(0, k).reduce((sum, grade, place) => sum + grade / Math.log2(place + 2), 0);
}
