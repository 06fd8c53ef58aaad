"""FIRST: scores equal the log-probabilities of the first generated token, for each architecture and tokenizer."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rerank.prompting.identifiers import IdentifierKind, derive_identifiers
from rerank.prompting.listwise import ListwiseRenderer
from rerank.prompting.templates import load_template
from rerank.rankers.base import rank_windows
from rerank.rankers.first import FirstRanker
from rerank.types import Window
from tests.causal_lms import CONFIGS, write_causal_lm
from tests.fakes import window_of
from tests.small_tokenizers import FAMILIES

pytestmark = pytest.mark.slow

#: Every architecture and every tokenizer. Qwen2 needs a byte-level one, as transformers loads Qwen's own type for it.
PAIRS = [*((lm, "byte-level") for lm in CONFIGS), *(("llama", family) for family in FAMILIES if family != "byte-level")]
TOLERANCE = 1e-4


def make_window(n: int, words: int = 6) -> Window:
    texts = [" ".join(f"w{(7 * place + word) % 11}" for word in range(1 + (place * words) % 9)) for place in range(n)]
    return window_of("which passage", texts)


def first_step_scores(checkpoint: Path, window: Window) -> list[float]:
    """Log-probabilities of the first token of `generate` over the window's identifiers."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    renderer = ListwiseRenderer(load_template("first"), tokenizer, 4096, answer_tokens=1)
    names = derive_identifiers(tokenizer, IdentifierKind.LETTERS, renderer.prompt_end)
    ids = torch.tensor([[*renderer.prompt(window, names.texts).token_ids, names.bracket_id]])
    options = {"max_new_tokens": 1, "do_sample": False, "output_scores": True, "return_dict_in_generate": True}
    out = model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **options)
    rows = out.scores[0][0][list(names.token_ids[: len(window.passages)])]
    return torch.log_softmax(rows.float(), dim=0).tolist()


@pytest.mark.parametrize(("architecture", "family"), PAIRS)
def test_scores_equal_those_of_the_first_generated_token(tmp_path, architecture, family):
    checkpoint = write_causal_lm(tmp_path / "lm", architecture, FAMILIES[family])
    ranker = FirstRanker(checkpoint, "first", device="cpu")
    windows = [make_window(n) for n in (20, 3, 15, 17)]  # O and Q are the 15th and the 17th letter
    rankings = rank_windows(ranker, windows)
    for window, batched in zip(windows, rankings, strict=True):
        expected = first_step_scores(checkpoint, window)
        alone = rank_windows(ranker, [window])[0]
        assert alone.scores == pytest.approx(expected, abs=TOLERANCE)
        assert batched.scores == pytest.approx(expected, abs=TOLERANCE)
        assert max(expected) - min(expected) > 100 * TOLERANCE, "equal scores prove nothing"
