// Calls of the service that this page comes from.

const KEY = "rerank-api-key";

/** A refusal of the service. `status` is the HTTP status. */
export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The API key that calls carry; kept until the browser's tab closes, and never part of the link. */
export const apiKey = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (key) => (key ? sessionStorage.setItem(KEY, key) : sessionStorage.removeItem(KEY)),
};

export function get(path) {
  return call(path, { headers: authorization() });
}

export function post(path, body, signal) {
  const headers = { "content-type": "application/json", ...authorization() };
  return call(path, { method: "POST", headers, body: JSON.stringify(body), signal });
}

function authorization() {
  const key = apiKey.get();
  return key ? { authorization: `Bearer ${key}` } : {};
}

async function call(path, request) {
  let response;
  try {
    response = await fetch(path, request);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, "The service does not answer. Check that it still runs, then try again.");
  }
  const reply = await response.json().catch(() => null);
  if (response.ok && reply !== null) return reply;
  throw new Refusal(response.status, problem(reply) || `The service answered with HTTP status ${response.status}.`);
}

/** The message of an error: of a google.rpc.Status, or of the form that an HTTP API has. */
function problem(reply) {
  const message = reply?.message ?? reply?.error ?? reply?.detail;
  return typeof message === "string" ? message : "";
}
