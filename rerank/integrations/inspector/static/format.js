// Numbers as the page shows them.

/** A score in at most five characters or so: log-probabilities with two decimals, ranks without. */
export function score(value) {
  if (value === undefined || value === null) return "";
  if (Number.isInteger(value)) return String(value);
  const size = Math.abs(value);
  if (size >= 100) return value.toFixed(0);
  if (size >= 10) return value.toFixed(1);
  return value.toFixed(size < 0.1 ? 3 : 2).replace("-", "−");
}

/** A duration: 0.4 ms, 12 ms, 1.25 s. */
export function duration(ms) {
  if (ms >= 1000) return `${(ms / 1000).toFixed(2)} s`;
  return `${ms < 10 ? ms.toFixed(1) : ms.toFixed(0)} ms`;
}

/** A difference with its sign: +0.135, −0.020, ±0.000. */
export function signed(difference) {
  const sign = difference < 0 ? "−" : difference > 0 ? "+" : "±";
  return `${sign}${Math.abs(difference).toFixed(3)}`;
}

export function count(number, singular, plural = `${singular}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? singular : plural}`;
}

/** The text with single spaces, and no longer than the page can show on two lines. */
export function beginning(text, characters = 240) {
  const line = text.slice(0, 4 * characters).replace(/\s+/g, " ").trim();
  return line.length <= characters ? line : `${line.slice(0, characters)}…`;
}
