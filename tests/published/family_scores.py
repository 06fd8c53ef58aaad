"""Compares the scores of small folders in published layouts with each model's own way; a program of test_families.py.

usage: family_scores.py NAME …, with the harness on PYTHONPATH. Prints a line of JSON for each: name, and the largest
difference of each list, or why the folder is refused. It is a process of its own, as the harness turns off warnings.
"""

import json
import sys
from importlib import import_module
from pathlib import Path

from rerank import Reranker
from rerank.errors import RerankError

#: The harness. A statement would be sorted as our folder build.
build, run = import_module("build"), import_module("run")

#: As the harness's lists, but for two texts that need minutes: some models cut these, too. zerank strips its texts, and
#: the harness does not.
LISTS = {
    "plain": run.L1,
    "odd": (run.L2[0], [*run.L2[1][:-2], ("word " * 300).strip(), "x" * 1200]),
    "long query": (run.L3[0], ["A flea lives a year.", ("word " * 60).strip()]),
}


def write_words(name: str, folder: Path) -> None:
    """Adds what the published folder has, too: a card with the words of the prompt; or what a user writes instead."""
    qwen3 = f"<|im_start|>system\n{build.QSYS}<|im_end|>\n<|im_start|>user\n"
    cards = {"qwen3_old": (qwen3, build.QTASK), "qwen3_seqcls": (qwen3, build.QTASK), "bge_gemma": (build.BG,)}
    if name in cards:
        literals = "\n".join(f"w{number} = {text!r}" for number, text in enumerate(cards[name]))
        (folder / "README.md").write_text(f"# Use\n```python\n{literals}\n```\n")
    elif name == "mxbai_v2_old":
        (folder / "template.yaml").write_text(json.dumps({"system": build.MXP, "task": build.MX}))


def compared(name: str) -> dict[str, object]:
    folder = build.ALL[name]()
    write_words(name, folder)
    own, result = build.own.get(folder.name), dict[str, object]()
    try:
        reranker = Reranker(str(folder))
    except RerankError as error:
        return {"refused": str(error)}
    with reranker:
        for label, (query, passages) in LISTS.items():
            found = {row["corpus_id"]: row["score"] for row in reranker.rank(query, passages)}
            scores = [found[row] for row in range(len(passages))]
            if own is None:
                result[label] = scores
            else:
                result[label] = max(abs(a - b) for a, b in zip(scores, own(query, passages), strict=True))
    return result


for name in sys.argv[1:]:
    print(json.dumps({"name": name} | compared(name)), flush=True)
