"""E2Rank's cosines equal the reference arithmetic, in plain transformers."""

from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from rerank.config import EncoderConfig
from rerank.models.encoder import Encoder
from rerank.rankers.base import rank_windows
from rerank.rankers.e2rank import E2RankRanker
from tests.fakes import prepared_window
from tests.small_encoder import write_qwen_model

INSTRUCTION = "Given a search query and some documents, find those that answer it:"
END = "<|endoftext|>"
LISTS = [
    ("how long does a flea live", [f"passage {number}" + " of many words" * (number % 7) for number in range(30)]),
    ("tides", ["The moon causes the tides.", "A violin has four strings."]),
    ("what is dry", ["Deserts are dry."]),
]


def reference(folder: Path, query: str, passages: list[str], side: Literal["left", "right"]) -> npt.NDArray[np.float32]:
    """(n,) cosines, with one padded batch of the prompt and the passages."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder, padding_side=side), AutoModel.from_pretrained(folder)
    documents = "\n".join(f"[{number}] {text}" for number, text in enumerate(passages[:20], start=1))
    turn = f"{INSTRUCTION}\nDocuments:\n{documents}\nSearch Query: {query}"
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": turn}], tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    tokens = tokenizer([prompt, *(text + END for text in passages)], padding=True, return_tensors="pt")
    with torch.inference_mode():
        states = model.eval()(**tokens).last_hidden_state
    last = tokens["attention_mask"].cumsum(dim=1).argmax(dim=1)
    vectors = torch.nn.functional.normalize(states[torch.arange(len(last)), last], dim=-1).numpy()
    return vectors[1:] @ vectors[0]


@pytest.mark.parametrize("side", ["left", "right"])
def test_cosines_are_those_of_the_reference(tmp_path, side):
    folder = write_qwen_model(tmp_path / "e2rank", side)
    encoder = Encoder(EncoderConfig(name=str(folder), pooling="lasttoken", end_token=END), "cpu")
    ranker = E2RankRanker(encoder, True, "e2rank", INSTRUCTION, 20, "float32")
    assert ranker.info.supports_batching
    windows = [prepared_window(ranker, query, texts) for query, texts in LISTS]
    packed, alone = rank_windows(ranker, windows), [rank_windows(ranker, [window])[0] for window in windows]
    for (query, texts), together, single in zip(LISTS, packed, alone, strict=True):
        expected = reference(folder, query, texts, side)
        np.testing.assert_allclose(together.scores, expected, atol=1e-5)
        np.testing.assert_allclose(single.scores, expected, atol=1e-5)
        assert len(expected) == 1 or np.ptp(expected) > 1e-3
