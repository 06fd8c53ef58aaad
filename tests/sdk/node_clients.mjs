// Reranks with one client package: node node_clients.mjs CLIENT BASE_URL MODEL FOLDER, where FOLDER has node_modules.
// Prints {"version", "results"} or {"version", "error"} as JSON, as python_clients.py does.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const QUERY = "how long does a flea live";
const DOCUMENTS = ["relevance 1", "relevance 3", "relevance 2"];
const TOP_N = 2;
const KEY = "unused";

const [name, baseUrl, model, folder] = process.argv.slice(2);
const require = createRequire(join(folder, "package.json"));

const pairs = (results) => results.map((result) => [result.index, result.relevanceScore]);

// Client → its package, and a function that reranks.
const CLIENTS = {
  "npm cohere-ai v2": [
    "cohere-ai",
    async () => {
      const client = new (require("cohere-ai").CohereClientV2)({ token: KEY, baseUrl });
      return pairs((await client.rerank({ model, query: QUERY, documents: DOCUMENTS, topN: TOP_N })).results);
    },
  ],
  "npm cohere-ai v1": [
    "cohere-ai",
    async () => {
      const client = new (require("cohere-ai").CohereClient)({ token: KEY, baseUrl });
      return pairs((await client.rerank({ model, query: QUERY, documents: DOCUMENTS, topN: TOP_N })).results);
    },
  ],
  "npm @langchain/cohere": [
    "@langchain/cohere",
    async () => {
      const { CohereRerank } = require("@langchain/cohere");
      const client = new (require("cohere-ai").CohereClient)({ token: KEY, environment: baseUrl });
      const ranker = new CohereRerank({ client, apiKey: KEY, model, topN: TOP_N });
      const found = await ranker.compressDocuments(DOCUMENTS.map((text) => ({ pageContent: text, metadata: {} })), QUERY);
      return found.map((each) => [DOCUMENTS.indexOf(each.pageContent), each.metadata.relevanceScore]);
    },
  ],
  "npm ai with @ai-sdk/cohere": [
    "@ai-sdk/cohere",
    async () => {
      const cohere = require("@ai-sdk/cohere").createCohere({ baseURL: `${baseUrl}/v2`, apiKey: KEY });
      const { ranking } = await require("ai").rerank({
        model: cohere.reranking(model),
        query: QUERY,
        documents: DOCUMENTS,
        topN: TOP_N,
      });
      return ranking.map((each) => [each.originalIndex, each.score]);
    },
  ],
};

const [packageName, rerank] = CLIENTS[name];
const manifest = join(folder, "node_modules", packageName, "package.json");
const answer = { version: JSON.parse(readFileSync(manifest, "utf-8")).version };
try {
  answer.results = await rerank();
} catch (error) {
  answer.error = `${error.name}: ${error.message}`;
}
console.log(JSON.stringify(answer));
