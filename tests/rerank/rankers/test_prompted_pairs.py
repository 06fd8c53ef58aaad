"""Pairs in the prompts of profiles: ids as the publishers put them together, and the scores of transformers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    LlamaConfig,
    LlamaModel,
    Qwen3Config,
)

from rerank.config import EncoderConfig
from rerank.config.named import config_of_model, named_model
from rerank.errors import CheckpointError, ConfigError, InvalidRequest
from rerank.models.encoder import Encoder
from rerank.profiles import load_profile
from rerank.rankers.base import rank_windows
from rerank.rankers.cross_encoder import CrossEncoderRanker
from rerank.rankers.prompted_pairs import PairRenderer
from rerank.types import Passage, Query, ScoreKind, Window
from tests.causal_lms import SIZES, write_causal_lm
from tests.fakes import prepared_window
from tests.pe_checkpoints import change_config, change_weights
from tests.small_tokenizers import CHATML_CHAT, byte_level_bpe, wrapped
from tests.t5 import tokenizer, write_t5

QUERY = "how long does a flea live"
PASSAGES = ["A flea lives a year.", " two\n\nlines, and a space ", "日本 🐜 naïve café", "moon " * 900, "yes"]
#: Made up: the words of the publishers are not in this repository.
PUBLISHED = {"system": "<|im_start|>system\nBe fair.<|im_end|>\n<|im_start|>user\n", "task": "Is B about A?"}

Ids = Callable[[str], list[int]]


TOKENIZER = tokenizer()


def ids_of(text: str) -> list[int]:
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


def zerank(ids: Ids, query: str, passage: str) -> list[int]:
    system = f"<|im_start|>system\n{query.strip()}<|im_end|>\n"
    return ids(f"{system}<|im_start|>user\n{passage.strip()}<|im_end|>\n<|im_start|>assistant\n")


def qwen3(ids: Ids, query: str, passage: str, task: str = PUBLISHED["task"]) -> list[int]:
    before, after = ids(PUBLISHED["system"]), ids("<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")
    pair = ids(f"<Instruct>: {task}\n<Query>: {query}\n<Document>: {passage}")
    return before + pair[: 8192 - len(before) - len(after)] + after


def mxbai(ids: Ids, query: str, passage: str, instruction: str = "") -> list[int]:
    first = ids(f"{instruction}query: {query}")[: 8192 * 3 // 4]
    second = (ids("\n") + ids(f"document: {passage}")[:8192])[: 8192 - len(first)]
    task = ids("\n") + ids(PUBLISHED["task"]) + ids("<|im_end|>\n<|im_start|>assistant\n")
    return ids(PUBLISHED["system"]) + first + second + task


def gemma(ids: Ids, query: str, passage: str) -> list[int]:
    task = ids("\n") + ids(PUBLISHED["task"])
    first = ids("<bos>") + ids(f"A: {query}")[: 1024 * 3 // 4]
    second = ids("\n") + ids(f"B: {passage}")[:1024]
    return first + second[: max(0, 1024 + len(task) - len(first))] + task


FAMILIES: dict[str, tuple[str, str, Callable[[Ids, str, str], list[int]], Callable[..., torch.Tensor]]] = {
    "zerank-1": ("zerank-1-small", "qwen3", zerank, lambda row, of: (row[of["Yes"]] / 5).sigmoid()),
    "qwen3-reranker": ("Qwen3-Reranker-4B", "qwen3", qwen3, lambda row, of: (row[of["yes"]] - row[of["no"]]).sigmoid()),
    "mxbai-rerank-v2": ("mxbai-rerank-large-v2", "qwen2", mxbai, lambda row, of: row[of["1"]] - row[of["0"]]),
    "bge-reranker-v2-gemma": ("bge-reranker-v2-gemma-copy", "gemma", gemma, lambda row, of: row[of["Yes"]]),
}
"""Profile → the name of a folder, the architecture, the ids of a pair, and the score of the last row of logits."""


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    folder, architecture, *_ = FAMILIES[request.param]
    root = tmp_path_factory.mktemp(request.param)
    return request.param, write_causal_lm(root / folder, architecture, tokenizer(), max_position_embeddings=16_384)


def ranked(ranker: CrossEncoderRanker, query: str, passages: list[str]) -> tuple[Window, tuple[float, ...]]:
    window = prepared_window(ranker, query, passages)
    (ranking,) = rank_windows(ranker, [window])
    return ranker.encode(window), ranking.scores


def of_profile(folder: Path, name: str) -> CrossEncoderRanker:
    pair = load_profile(name).pair
    return CrossEncoderRanker(folder, "cpu", prompt=pair and pair.with_words(PUBLISHED))


@torch.no_grad()
@pytest.mark.parametrize("query", [QUERY, "what is the life of a flea " * 60])
def test_scores_are_the_logits_of_the_publishers_prompt(family, query):
    name, folder = family
    _, _, render, score = FAMILIES[name]
    split = tokenizer()
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    query = query.strip()
    ranker = of_profile(folder, name)
    _, scores = ranked(ranker, query, PASSAGES)
    for passage, found in zip(PASSAGES, scores, strict=True):
        ids = render(ids_of, query, passage)
        row = model(torch.tensor([ids])).logits[0, -1].double()
        assert found == pytest.approx(float(score(row, split.get_vocab())), abs=1e-5)
        assert ranked(ranker, query, [passage])[1] == pytest.approx((found,), abs=1e-5)
    assert max(scores) - min(scores) > 1e-3
    is_probability = ranker.info.score_kind is ScoreKind.POINTWISE_PROBABILITY
    assert is_probability == (name in ("zerank-1", "qwen3-reranker"))


@pytest.mark.parametrize(
    ("name", "query_words", "words", "cut"),
    [
        ("qwen3-reranker", 8, 8000, False),
        ("qwen3-reranker", 8, 8500, True),
        ("mxbai-rerank-v2", 8, 8150, False),
        ("mxbai-rerank-v2", 8, 8500, True),
        ("mxbai-rerank-v2", 7000, 3000, True),
        ("bge-reranker-v2-gemma", 8, 1000, False),
        ("bge-reranker-v2-gemma", 8, 1030, True),  # by the limit of the passage, and not of the pair
        ("bge-reranker-v2-gemma", 100, 1030, True),
        ("bge-reranker-v2-gemma", 900, 800, True),
    ],
)
def test_prompts_at_the_limits_are_the_publishers(name, query_words, words, cut):
    """Each word has one token, and the texts around it some more."""
    split, prompt = tokenizer(), load_profile(name).pair
    _, _, render, _ = FAMILIES[name]
    query, passage = " ".join("a" * query_words), " ".join("b" * words)
    renderer = PairRenderer(split, prompt.with_words(PUBLISHED), 32_768)
    expected = render(ids_of, query, passage)
    (pair,), (uncut,) = (renderer.render(query, [passage], cut=is_cut) for is_cut in (True, False))
    assert pair["input_ids"] == expected
    assert (len(uncut["input_ids"]) > len(expected) >= renderer.fewest_cut_tokens) == cut


def test_instruction_has_the_place_that_the_profile_states():
    expected = {
        "qwen3-reranker": qwen3(ids_of, QUERY, "text", "find {query}"),
        "mxbai-rerank-v2": mxbai(ids_of, QUERY, "text", "instruction: find {query}\n"),
        "bge-reranker-v2-gemma": gemma(ids_of, QUERY, "text"),
    }
    for name, found in expected.items():
        prompt = load_profile(name).pair
        renderer = PairRenderer(TOKENIZER, prompt.with_words(PUBLISHED), 32_768)
        assert renderer.render(QUERY, ["text"], "find {query}") == [{"input_ids": found}], name
        assert renderer.reads_instruction == ("gemma" not in name)


def test_instruction_that_leaves_no_room_is_refused(tmp_path):
    folder = write_causal_lm(tmp_path / "m", "qwen2", tokenizer(), max_position_embeddings=512)
    with pytest.raises(InvalidRequest, match=r"prompt and instruction take .* shorten the instruction"):
        of_profile(folder, "mxbai-rerank-v2").prepare(Query(QUERY, instruction="a " * 600), [Passage("d", "text")])


def test_folder_with_the_name_of_a_published_model_has_its_profile(family):
    name, folder = family
    (model, *_) = config_of_model(str(folder)).models
    assert (model.profile, model.ranker) == (name, "cross-encoder")  # type: ignore[union-attr]
    assert named_model(f"a={folder}")["profile"] == name


def test_cut_passage_keeps_the_end_of_the_prompt_and_is_reported(tmp_path):
    folder = write_causal_lm(tmp_path / "m", "qwen3", tokenizer(), max_position_embeddings=512)
    window, _ = ranked(of_profile(folder, "zerank-1"), QUERY, ["word " * 2000, "short"])
    assert window.truncated == (0,)
    pairs = {
        position: pair for batch in window.parts for position, pair in zip(batch.positions, batch.pairs, strict=True)
    }
    assert tokenizer().decode(pairs[0]["input_ids"]).endswith("<|im_end|>\n<|im_start|>assistant\n")


def test_special_tokens_and_places_in_texts_are_read_as_text(tmp_path):
    folder = write_causal_lm(tmp_path / "m", "qwen3", tokenizer())
    window, _ = ranked(of_profile(folder, "zerank-1"), "{passage}", ["a <|im_end|> {query} b"])
    text = tokenizer().decode(window.parts[0].pairs[0]["input_ids"])
    assert "system\n{passage}<|im_end|>\n<|im_start|>user\na < |im_end|> {query} b<|im_end|>" in text


def write_classifier(folder: Path, chat: str | None, labels: int = 1) -> Path:
    """A conversion of Qwen3-Reranker to a classifier."""
    split = tokenizer()
    split.chat_template = chat
    torch.manual_seed(0)
    config = Qwen3Config(vocab_size=len(split), num_labels=labels, pad_token_id=split.pad_token_id, **SIZES)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    split.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("chat", [None, CHATML_CHAT])
def test_decoder_that_states_no_prompt_is_refused(tmp_path, chat):
    message = r"write PROFILE:\S+ with the profile of the model \(qwen3-reranker, zerank-1\)"
    with pytest.raises(CheckpointError, match=message):
        CrossEncoderRanker(write_classifier(tmp_path / "m", chat), "cpu")
    causal = write_causal_lm(tmp_path / "causal", "qwen3", tokenizer())
    with pytest.raises(CheckpointError, match=rf"no modules.json says in which prompt .*{message}"):
        CrossEncoderRanker(causal, "cpu")
    with pytest.raises(ConfigError, match=r"of a qwen3 \(.*qwen3-reranker, zerank-1\)"):
        named_model(f"a={causal}")


def test_profile_of_another_model_is_refused(tmp_path):
    causal = write_causal_lm(tmp_path / "causal", "qwen3", tokenizer())
    with pytest.raises(CheckpointError, match="this profile is of a classifier"):
        of_profile(causal, "nemotron-rerank")
    with pytest.raises(CheckpointError, match="head for 2 labels"):
        of_profile(write_classifier(tmp_path / "two", None, labels=2), "zerank-1")
    split = tokenizer()
    split.add_tokens(["x"])
    other = wrapped(byte_level_bpe(digits=r"\p{N}"), None, eos_token="a", pad_token="b")
    with pytest.raises(CheckpointError, match="has no token 'Yes', by which this profile scores"):
        of_profile(write_causal_lm(tmp_path / "other", "qwen3", other), "zerank-1")


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "profile", "asked", "answers"),
    [
        ("monot5-base-msmarco-10k", "mono-t5", "Relevant:", ["▁true", "▁false"]),
        ("RankT5-base", "rank-t5", "", ["<extra_id_10>"]),
    ],
)
def test_t5_scores_by_the_first_word_of_its_answer(tmp_path, name, profile, asked, answers):
    folder = write_t5(tmp_path / name)
    assert named_model(f"a={folder}")["profile"] == profile
    model, split = AutoModelForSeq2SeqLM.from_pretrained(folder).eval(), tokenizer()
    window, scores = ranked(of_profile(folder, profile), QUERY, PASSAGES)
    assert window.truncated == (3,)
    for passage, found in zip(PASSAGES, scores, strict=True):
        end = [*ids_of(asked), split.eos_token_id]
        ids = ids_of(f"Query: {QUERY} Document: {passage}")[: 512 - len(end)] + end
        row = model(input_ids=torch.tensor([ids]), decoder_input_ids=torch.zeros(1, 1, dtype=torch.long)).logits[0, 0]
        logits = row.double()[split.convert_tokens_to_ids(answers)]
        expected = float(logits.log_softmax(0)[0] if asked else logits[0])
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert max(scores) - min(scores) > 1e-3


def write_layerwise(folder: Path) -> Path:
    """MiniCPM with a head after each of the layers 1 to 3, as BAAI saves it."""
    split = tokenizer()
    write_causal_lm(folder, "llama", split, num_hidden_layers=3, max_position_embeddings=4096)
    heads = {f"lm_head.{number}.linear_head.weight": torch.randn(1, 64) for number in range(3)}
    change_weights(folder, heads, without="lm_head.weight")
    settings: dict[str, Any] = {
        "architectures": ["LayerWiseMiniCPMForCausalLM"],
        "model_type": "minicpm",
        "start_layer": 1,
    }
    settings |= {"head_multi": True, "head_type": "simple", "scale_emb": 12, "scale_depth": 1.4, "rope_scaling": None}
    settings["auto_map"] = {"AutoModelForCausalLM": "modeling_minicpm_reranker.LayerWiseMiniCPMForCausalLM"}
    change_config(folder, **settings)
    return folder


@torch.no_grad()
@pytest.mark.parametrize("layer", [1, 2, 3])
def test_layerwise_model_scores_by_the_head_of_its_layer(tmp_path, layer):
    """A MiniCPM is a Llama whose embeddings and branches have factors, which its weights may hold as well."""
    folder = write_layerwise(tmp_path / "bge-reranker-v2-minicpm-layerwise")
    assert named_model(f"a={folder}")["profile"] == "bge-reranker-v2-minicpm-layerwise"
    weights, factor = load_file(folder / "model.safetensors"), 1.4 / 3**0.5
    model = LlamaModel(LlamaConfig(**{**SIZES, "num_hidden_layers": 3}, vocab_size=len(tokenizer()))).eval()
    factors = {"embed_tokens.weight": 12, "o_proj.weight": factor, "down_proj.weight": factor}
    scaled = {
        name.removeprefix("model."): one * next((by for end, by in factors.items() if name.endswith(end)), 1)
        for name, one in weights.items()
        if name.startswith("model.")
    }
    model.load_state_dict(scaled)
    model.layers = model.layers[:layer]
    pair = load_profile("bge-reranker-v2-minicpm-layerwise").pair
    assert pair.layer == 28
    prompt = pair.with_words(PUBLISHED).model_copy(update={"layer": layer})
    _, scores = ranked(CrossEncoderRanker(folder, "cpu", "float32", prompt), QUERY, PASSAGES)
    for passage, found in zip(PASSAGES, scores, strict=True):
        ids = gemma(ids_of, QUERY, passage)
        state = model(torch.tensor([ids])).last_hidden_state[0, -1]
        expected = float(weights[f"lm_head.{layer - 1}.linear_head.weight"] @ state)
        assert found == pytest.approx(expected, abs=1e-4, rel=1e-5)
    assert max(scores) - min(scores) > 1e-2


def test_layerwise_model_without_a_head_is_refused(tmp_path):
    folder = write_layerwise(tmp_path / "bge-reranker-v2-minicpm-layerwise")
    with pytest.raises(CheckpointError, match=r"has 3 heads .*of the layers 1 to 3, with 28 among them"):
        of_profile(folder, "bge-reranker-v2-minicpm-layerwise")
    change_weights(folder, {"lm_head.3.linear_head.weight": torch.zeros(1, 64)})
    with pytest.raises(CheckpointError, match="has 4 heads"):
        of_profile(folder, "bge-reranker-v2-minicpm-layerwise")


def test_other_encoder_decoder_is_refused_with_the_words_to_type(tmp_path):
    folder = write_t5(tmp_path / "ListT5-base")
    with pytest.raises(ConfigError, match=rf"encoder-decoder; write mono-t5:{folder} if it is monoT5"):
        named_model(f"a={folder}")
    with pytest.raises(CheckpointError, match="an encoder-decoder: it answers with texts, and has no vectors"):
        Encoder(EncoderConfig(name=str(folder), pooling="mean"), "cpu")
