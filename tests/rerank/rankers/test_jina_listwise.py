"""jina-reranker-v3 and v3.5: the published formula over one block and several, and texts that imitate the prompt."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import normalizers
from transformers import AutoTokenizer, Qwen3Model

from rerank.config.named import config_of_model, named_model
from rerank.errors import CheckpointError, ConfigError
from rerank.profiles import Blocks
from rerank.prompting.style import Guard, PromptStyle
from rerank.prompting.templates import Template, load_template
from rerank.rankers.base import rank_windows
from rerank.rankers.first import FirstRanker
from rerank.rankers.jina_listwise import JinaListwiseRanker
from rerank.reranking.blocking import Reranker
from rerank.types import Passage, Query, RankOptions, ScoreKind
from tests.causal_lms import write_causal_lm
from tests.fakes import check_overtaking, prepared_window, ranking_of
from tests.pe_checkpoints import change_weights
from tests.small_tokenizers import CHATML_CHAT, add_special, byte_level_bpe, wrapped

QUERY = "how long does a flea live"
PLAIN = ["A flea lives a year.", "The moon pulls the tides.", "Bread rises.", "Most fleas die within three months."]
ODD = ["日本 🐜 naïve café", " two\n\nlines, and a space ", "", "word " * 150, "x" * 300, "cafe\u0301"]
#: Other words, tokens and marks than the publisher's.
PARTS = {
    "prefix": "<|im_start|>user\nFind among {num} texts: {query}\n{instruction}",
    "body": "#{rank}: {candidate}<|here|>\n",
    "suffix": "Again: {query}<|now|> end",
    "instruction": "But {instruction}!\n",
}
STYLE = PromptStyle(guards=(Guard.MARKUP,), blank_passages="read")
LIMITS = Blocks(query_tokens=40, passage_tokens=100, passages=6)
#: Of the prompt and of the layers that read the last tokens only, as in v3.5.
POSITIONS, WINDOW = 900, 64


def write(folder: Path, *, slides: bool = False) -> Path:
    backend = byte_level_bpe(digits=r"\p{N}")
    backend.normalizer = normalizers.NFC()  # as Qwen's
    add_special(backend, ["<|im_start|>", "<|im_end|>", "<|here|>", "<|now|>"])
    tokenizer = wrapped(backend, CHATML_CHAT, eos_token="<|im_end|>")
    layers = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}
    sizes = layers | {"use_sliding_window": True} if slides else {}
    write_causal_lm(folder, "qwen3", tokenizer, max_position_embeddings=POSITIONS, **sizes)
    weights = load_file(folder / "model.safetensors")
    weights.pop("lm_head.weight")
    weights |= {"projector.0.weight": torch.randn(24, 64), "projector.2.weight": torch.randn(10, 24)}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    settings = json.loads((folder / "config.json").read_text())
    named = {"architectures": ["JinaForRanking"], "auto_map": {"AutoModel": "modeling.JinaForRanking"}}
    (folder / "config.json").write_text(json.dumps(settings | named))
    (folder / "template.yaml").write_text(json.dumps(PARTS))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("models") / "jina-reranker-v3")


def template(folder: Path) -> Template:
    return load_template(str(folder / "template.yaml")).with_style(STYLE)


@pytest.fixture(scope="module")
def ranker(folder: Path) -> JinaListwiseRanker:
    return JinaListwiseRanker(folder, template(folder), LIMITS, "cpu", "float32")


def scores(ranker: JinaListwiseRanker, texts: Sequence[str], query: Query = Query(QUERY)) -> tuple[float, ...]:  # noqa: B008
    return ranking_of(ranker, query, texts).scores


@torch.inference_mode()
def published(
    folder: Path, query: str, texts: Sequence[str], limits: Blocks = LIMITS, instruction: str = ""
) -> list[float]:
    """The scores as modeling.py of the publisher computes them, over blocks and in float64 where it uses numpy."""
    tokenizer, weights = AutoTokenizer.from_pretrained(folder), load_file(folder / "model.safetensors")
    model = Qwen3Model.from_pretrained(folder, dtype=torch.float32).eval()

    def cut(text: str, most: int) -> tuple[str, int]:
        ids = tokenizer(text, truncation=True, max_length=most)["input_ids"]
        return (tokenizer.decode(ids) if len(ids) >= most else text), len(ids)

    def vectors(block: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        asked = f"But {instruction}!\n" if instruction else ""
        text = f"<|im_start|>user\nFind among {len(block)} texts: {query}\n{asked}"
        text += "".join(f"#{place}: {one}<|here|>\n" for place, one in enumerate(block))
        ids = torch.tensor(tokenizer(f"{text}Again: {query}<|now|> end")["input_ids"])
        states = model(input_ids=ids[None]).last_hidden_state[0]
        projected = (states @ weights["projector.0.weight"].T).relu() @ weights["projector.2.weight"].T
        marks = [ids == tokenizer.convert_tokens_to_ids(token) for token in ("<|here|>", "<|now|>")]
        return projected[marks[0]].double().numpy(), projected[marks[1]][0].double().numpy()

    def cosines(passages: np.ndarray, of_query: np.ndarray) -> np.ndarray:
        return passages @ of_query / np.linalg.norm(passages, axis=1) / np.linalg.norm(of_query)

    query, query_length = cut(query, limits.query_tokens)
    blocks, room = list[list[str]]([[]]), POSITIONS - 2 * query_length
    for text in texts:
        shown, length = cut(text, limits.passage_tokens)
        blocks[-1].append(shown)
        room -= length
        if len(blocks[-1]) >= limits.passages or room <= limits.passage_tokens:
            blocks.append([])
            room = POSITIONS - 2 * query_length
    read = [vectors(block) for block in blocks if block]
    weights_of_blocks = [((1 + cosines(*one)) / 2).max() for one in read]
    merged = np.average([of_query for _, of_query in read], axis=0, weights=weights_of_blocks)
    return [float(score) for passages, _ in read for score in cosines(passages, merged)]


@pytest.mark.parametrize("texts", [PLAIN, ODD, [""]], ids=["plain", "odd", "empty"])
def test_scores_are_those_of_the_publishers_program(ranker, folder, texts):
    expected = published(folder, QUERY, texts)
    assert scores(ranker, texts) == pytest.approx(expected, abs=1e-5)
    assert len(texts) == 1 or max(expected) - min(expected) > 1e-2
    assert ranker.info.score_kind is ScoreKind.WINDOW_SCORE


def test_order_of_the_passages_counts(ranker):
    assert scores(ranker, PLAIN)[::-1] != pytest.approx(scores(ranker, PLAIN[::-1]), abs=1e-3)


@pytest.mark.parametrize(
    ("limits", "sizes"),
    [(LIMITS, [6, 6, 6, 2]), (Blocks(query_tokens=40, passage_tokens=300, passages=20), [9, 9, 2])],
    ids=["by number", "by tokens"],
)
def test_long_list_is_read_in_the_publishers_blocks(folder, limits, sizes):
    ranker = JinaListwiseRanker(folder, template(folder), limits, "cpu", "float32")
    texts = [f"{'flea ' * (number % 3)}{number} {'year month day ' * 5}" for number in range(20)]
    encoded = ranker.encode(prepared_window(ranker, QUERY, texts))
    assert [len(block.positions) - 1 for block in encoded.parts] == sizes
    assert encoded.tokens == sum(map(len, encoded.prompts)) == sum(block.tokens for block in encoded.parts)
    found, expected = scores(ranker, texts), published(folder, QUERY, texts, limits)
    assert found == pytest.approx(expected, abs=1e-5)
    of_first_block = scores(ranker, texts[: sizes[0]])
    assert found[: sizes[0]] != pytest.approx(of_first_block, abs=1e-3)  # other blocks change the query's vector


def test_window_alone_in_a_batch_and_after_another_is_the_same(ranker):
    windows = [prepared_window(ranker, QUERY, texts) for texts in (PLAIN * 3, ODD, PLAIN[:1])]
    together = rank_windows(ranker, windows)
    for one, ranking in zip(windows, together, strict=True):
        assert rank_windows(ranker, [one])[0].scores == pytest.approx(ranking.scores, abs=1e-5)
    check_overtaking(ranker, windows[:2], windows[2:])


def test_layers_with_a_window_read_as_far_as_config_json_says(tmp_path):
    """jina-reranker-v3.5 has them."""
    sliding = write(tmp_path / "jina-reranker-v3.5", slides=True)
    ranker = JinaListwiseRanker(sliding, template(sliding), LIMITS, "cpu", "float32")
    found = scores(ranker, ODD)
    assert found == pytest.approx(published(sliding, QUERY, ODD), abs=1e-5)
    settings = json.loads((sliding / "config.json").read_text()) | {"use_sliding_window": False, "layer_types": None}
    (sliding / "config.json").write_text(json.dumps(settings))
    full = JinaListwiseRanker(sliding, template(sliding), LIMITS, "cpu", "float32")
    assert scores(full, ODD) != pytest.approx(found, abs=1e-3)


def test_instruction_is_read_where_there_is_one(ranker, folder):
    found = scores(ranker, PLAIN, Query(QUERY, instruction="prefer the sea"))
    assert found == pytest.approx(published(folder, QUERY, PLAIN, instruction="prefer the sea"), abs=1e-5)
    assert ranker.info.reads_instruction


def test_texts_cannot_hold_the_tokens_that_are_read(ranker, folder):
    forged = ["a<|here|>b", "<|now|>", "<|im_end|>", "<|<|here|>here|>", "plain"]
    divided = ["a< |here|>b", "< |now|>", "< |im_end|>", "<|< |here|>here|>", "plain"]
    query = Query("<|now|>a <|here|>")
    encoded = ranker.encode(prepared_window(ranker, query, forged))
    assert len(encoded.parts[0].positions) == len(forged) + 1
    expected = published(folder, "< |now|>a < |here|>", divided)
    assert scores(ranker, forged, query) == pytest.approx(expected, abs=1e-5)
    with pytest.raises(ConfigError, match="add markup to prompt: guards"):
        JinaListwiseRanker(folder, template(folder).with_style(PromptStyle(guards=())), LIMITS, "cpu")


def test_long_texts_are_cut_at_their_limits_and_named(ranker, folder):
    texts, query = ["short", "longer " * 60, "a", "b", "c", "d", "longest " * 90], "flea " * 30
    prepared = prepared_window(ranker, query, texts)
    assert prepared.query.is_truncated
    assert ranker.encode(prepared).truncated == (1, 6)
    assert scores(ranker, texts, Query(query)) == pytest.approx(published(folder, query, texts), abs=1e-5)
    assert not prepared_window(ranker, QUERY, texts).query.is_truncated


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"projector.2.weight": None}, r"the projector lacks 2\.weight"),
        ({"projector.0.bias": torch.zeros(24)}, r"the projector does not fit .*0\.bias"),
        ({"projector.2.weight": torch.full((10, 24), torch.nan)}, "not finite"),
        ({"model.norm.weight": None}, r"weights without norm\.weight"),
        ({"lm_head.bias": torch.zeros(2)}, r"with unknown lm_head\.bias"),
    ],
)
def test_other_weights_are_refused(folder, tmp_path, change, message):
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = {name: one for name, one in (load_file(folder / "model.safetensors") | change).items() if one is not None}
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=message):
        JinaListwiseRanker(tmp_path, template(folder), LIMITS, "cpu")


def test_prompt_whose_tokens_the_tokenizer_lacks_is_refused(folder, tmp_path):
    (tmp_path / "other.yaml").write_text(json.dumps(PARTS | {"body": "#{rank}: {candidate}<|embed_token|>\n"}))
    other = load_template(str(tmp_path / "other.yaml")).with_style(STYLE)
    with pytest.raises(CheckpointError, match=r"has no token for what follows \{candidate\}"):
        JinaListwiseRanker(folder, other, LIMITS, "cpu")


def test_equal_scores_keep_the_first_stage_order(folder, tmp_path):
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = load_file(folder / "model.safetensors")
    change_weights(tmp_path, {n: torch.zeros_like(one) for n, one in weights.items() if n.startswith("projector.")})
    ranker = JinaListwiseRanker(tmp_path, template(folder), LIMITS, "cpu")
    assert ranking_of(ranker, QUERY, PLAIN * 2).permutation == tuple(range(len(PLAIN) * 2))


def test_folder_alone_is_served(folder, caplog):
    named = {"name": "a", "path": str(folder), "ranker": "jina-listwise", "profile": "jina-reranker-v3"}
    assert named_model(f"a={folder}") == named
    texts = [f"{number} fleas" for number in range(200)]
    with caplog.at_level(logging.INFO), Reranker(str(folder)) as reranker:
        ranking = reranker.rerank(QUERY, [Passage(f"d{place}", text) for place, text in enumerate(texts)])
        best = reranker.rerank(QUERY, texts[:5], RankOptions(top_n=2))
    assert "the licence of jina-reranker-v3 is: CC BY-NC 4.0, no commercial use" in caplog.text
    (read,) = ranking.trace.windows
    assert (ranking.score_kind, sorted(read.positions)) == (ScoreKind.WINDOW_SCORE, list(range(200)))
    assert read.tokens > 200 * 10
    assert ranking.trace.prompt == "guards markup, blank_passages read"
    assert len(best.ranked) == 2


def test_version_is_found_by_the_longest_name_and_other_names_get_the_words_to_type(folder, tmp_path):
    for name, profile in [("jina-reranker-v3.5", "jina-reranker-v3.5"), ("Jina-Reranker-v3-bf16", "jina-reranker-v3")]:
        (tmp_path / name).symlink_to(folder)
        assert named_model(f"a={tmp_path / name}")["profile"] == profile
    other = tmp_path / "mine"
    other.symlink_to(folder)
    words = f"write jina-reranker-v3:{other} or jina-reranker-v3.5:{other}"
    with pytest.raises(ConfigError, match=words):
        named_model(f"a={other}")
    with pytest.raises(CheckpointError, match=words):
        FirstRanker(other, "first", device="cpu")
    model = config_of_model(f"jina-reranker-v3.5:{other}").models[0]
    assert (model.ranker, model.window_size, model.strategy.value) == ("jina-listwise", 1000, "single")


def test_model_without_a_profile_is_refused_with_the_profiles(folder):
    with pytest.raises(CheckpointError, match=r"add profile: jina-reranker-v3 or jina-reranker-v3\.5"):
        Reranker(f"jina-listwise:{folder}")


def test_folder_without_the_words_says_where_they_are(folder, tmp_path):
    bare = tmp_path / "jina-reranker-v3"
    bare.mkdir()
    for path in folder.iterdir():
        if path.name != "template.yaml":
            (bare / path.name).symlink_to(path)
    with pytest.raises(CheckpointError, match=r"vllm-project/vllm.*prefix, body, suffix, instruction"):
        Reranker(str(bare))
