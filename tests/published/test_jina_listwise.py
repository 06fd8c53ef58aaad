"""jina-reranker-v3 with its publisher's words: the profile's hashes find them, and scores are the published ones."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, Qwen3Model

from rerank.profiles import load_profile
from rerank.reranking.blocking import Reranker
from rerank.types import Passage

ROOT = Path(__file__).parents[2]
QUERY = "how long does a flea live"
TEXTS = ["Deserts are dry.", "A flea lives a year.", "日本 🐜\n\n naïve", "", "Most fleas die within three months."]


def strings_of(source: Path) -> list[str]:
    """The strings of the harness from the branch of jina-reranker-v3 on; of f-strings with expressions in braces."""
    tree = ast.parse(
        source.read_text(encoding="utf-8").split('if "jina3" in which:', 1)[1].replace("\n    ", "\n").strip()
    )
    found = list[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (
                one.value if isinstance(one, ast.Constant) else f"{{{ast.unparse(one.value)}}}" for one in node.values
            )  # type: ignore[attr-defined]
            found.append("".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return found


@pytest.mark.shared
@pytest.mark.slow
@torch.inference_mode()
def test_words_beside_the_weights_give_the_published_scores(shared, tmp_path):
    tools = shared.parent / "tools" / "families"
    build = f"import sys; sys.path.insert(0, {str(tools)!r}); from build import jina_v3; jina_v3()"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CHECKPOINTS": str(tmp_path)}
    subprocess.run([sys.executable, "-c", build], env=environment, check=True)
    folder = tmp_path / "jina-reranker-v3"
    strings = strings_of(tools / "more2.py")
    system = max(strings, key=len)
    count, passage, query = (
        next(text for text in strings if begins in text) for begins in ("{len(ps)}", "<passage", "<query>")
    )
    before = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n"
    published = [  # as modeling.py writes them
        before,
        count.replace("{len(ps)}", "{len(docs)}").replace("{q}", "{query}"),
        passage.replace("{d}<|embed_token|>", "{doc}{doc_emb_token}"),
        query.replace("{q}<|rerank_token|>", "{query}{query_emb_token}"),
        "<instruct>\n{instruction}\n</instruct>\n",
        "\n",
    ]
    (folder / "modeling.py").write_text("\n".join(f"{text!r}" for text in published), encoding="utf-8")
    with Reranker(str(folder)) as reranker:
        ranking = reranker.rerank(QUERY, [Passage(str(index), text) for index, text in enumerate(TEXTS)])
    found = {int(one.passage.doc_id): one.score for one in ranking.ranked}

    tokenizer, weights = AutoTokenizer.from_pretrained(folder), load_file(folder / "model.safetensors")
    passages = "\n".join(passage.replace("{i}", str(index)).replace("{d}", text) for index, text in enumerate(TEXTS))
    asked = count.replace("{len(ps)}", str(len(TEXTS))).replace("{q}", QUERY)
    ids = torch.tensor(tokenizer(f"{before}{asked}{passages}\n{query.replace('{q}', QUERY)}")["input_ids"])
    states = Qwen3Model.from_pretrained(folder, dtype=torch.float32).eval()(input_ids=ids[None]).last_hidden_state[0]
    vectors = (states @ weights["projector.0.weight"].T).relu() @ weights["projector.2.weight"].T
    marks = [ids == tokenizer.convert_tokens_to_ids(token) for token in ("<|embed_token|>", "<|rerank_token|>")]
    expected = torch.cosine_similarity(vectors[marks[0]], vectors[marks[1]])
    assert [found[index] for index in range(len(TEXTS))] == pytest.approx(expected.tolist(), abs=1e-5)
    assert float(expected.max() - expected.min()) > 1e-2
    assert load_profile("jina-reranker-v3").publisher_prompt == load_profile("jina-reranker-v3.5").publisher_prompt
