"""Cross-encoders: scores equal `CrossEncoder.predict`'s, and what cannot be served is refused by name."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from sentence_transformers import CrossEncoder
from transformers import AutoModelForSequenceClassification, BertConfig, BertForSequenceClassification, Qwen3Config

from rerank.config import CrossEncoderModel, ServiceConfig
from rerank.errors import CheckpointError, InvalidRequest
from rerank.rankers.base import rank_windows
from rerank.rankers.cross_encoder import CrossEncoderRanker, Pair, PairScorer
from rerank.reranking.blocking import Reranker
from rerank.types import Query, RankOptions, ScoreKind, StrategyKind, Window
from tests.causal_lms import SIZES
from tests.cross_encoders import MAX_TOKENS, drop_modules, write_cross_encoder
from tests.fakes import prepared_window
from tests.json_files import change_json
from tests.pe_checkpoints import change_weights
from tests.small_tokenizers import byte_level

ARCHITECTURES = ("bert", "modernbert", "xlm-roberta", "qwen3")
"""Every family of heads: two kinds of encoders with token types or without, rotary positions, a causal LM."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("cross-encoders")
    return {name: write_cross_encoder(root / name, name) for name in ARCHITECTURES}


@pytest.fixture(scope="module")
def ranker(folders: dict[str, Path]) -> CrossEncoderRanker:
    return CrossEncoderRanker(folders["bert"], "cpu")


def texts(n: int, longest: int = 37) -> list[str]:
    return [" ".join(f"w{(7 * place + word) % 11}" for word in range(1 + 9 * place % longest)) for place in range(n)]


def window(ranker: CrossEncoderRanker, passages: list[str], query: str = "which w3", instruction: str = "") -> Window:
    return prepared_window(ranker, Query(query, instruction=instruction), passages)


def pairs_of(window: Window) -> list[Pair]:
    found = {
        position: pair for batch in window.parts for position, pair in zip(batch.positions, batch.pairs, strict=True)
    }
    return [found[place] for place in sorted(found)]


def test_normal_forms_of_a_text_get_the_same_score(folders):
    ranker = CrossEncoderRanker(folders["qwen3"], "cpu")
    pairs = [pairs_of(window(ranker, [text], query=text)) for text in ("caf\u00e9", "cafe\u0301")]
    assert pairs[0] == pairs[1]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_scores_are_those_of_predict(folders, architecture):
    ranker, library = CrossEncoderRanker(folders[architecture], "cpu"), CrossEncoder(str(folders[architecture]))
    lists = [[*texts(9), "w1 " * 600], texts(1), texts(3)]  # one is longer than the model reads
    rankings = rank_windows(ranker, [window(ranker, passages) for passages in lists])
    for passages, ranking in zip(lists, rankings, strict=True):
        expected = library.predict([("which w3", text) for text in passages], show_progress_bar=False)
        assert ranking.scores == pytest.approx(expected.tolist(), abs=1e-4)
    assert max(rankings[0].scores) - min(rankings[0].scores) > 1e-2
    assert ranker.encode(window(ranker, lists[0])).truncated == (9,)


def changed(folder: Path, out: Path, file: str, **settings: object) -> Path:
    copy = Path(shutil.copytree(folder, out))
    change_json(copy / file, **settings)
    return copy


@pytest.mark.parametrize("strategy", ["longest_first", "only_second", "only_first"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("architecture", ["bert", "qwen3"])
def test_truncation_is_that_of_the_folder(folders, tmp_path, architecture, side, strategy):
    folder = changed(folders[architecture], tmp_path / "side", "tokenizer_config.json", truncation_side=side)
    processing = {"text": {"truncation": strategy}}
    folder = changed(folder, tmp_path / "both", "sentence_bert_config.json", processing_kwargs=processing)
    if strategy == ("only_second" if architecture == "qwen3" else "only_first"):  # of a single text, or of the query
        with pytest.raises(CheckpointError, match="Truncation error"):
            CrossEncoderRanker(folder, "cpu")
        return
    passages = ["w1 w2", "moon " * 200 + "w3 " * 20, "w3 " * 200 + "moon " * 20, "w3 " * 900 + "w4 w5 " * 30]
    ranker = CrossEncoderRanker(folder, "cpu")
    (ranking,) = rank_windows(ranker, [window(ranker, passages)])
    expected = CrossEncoder(str(folder), device="cpu").predict([("which w3", text) for text in passages])
    assert ranking.scores == pytest.approx(expected.tolist(), abs=1e-4)


def test_folder_that_does_not_truncate_is_refused(folders, tmp_path):
    processing = {"text": {"truncation": False}}
    folder = changed(folders["bert"], tmp_path / "no", "sentence_bert_config.json", processing_kwargs=processing)
    with pytest.raises(CheckpointError, match=f"does not truncate pairs to the {MAX_TOKENS} tokens"):
        CrossEncoderRanker(folder, "cpu")


def write_decoder(folder: Path, pad_token_id: int | None) -> Path:
    """A causal LM with a classification head, which scores the last token that is not padding."""
    tokenizer = byte_level()
    torch.manual_seed(0)
    tokens = {"pad_token_id": pad_token_id, "bos_token_id": None, "eos_token_id": None}
    config = Qwen3Config(vocab_size=len(tokenizer), num_labels=1, **tokens, **SIZES)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(folder)
    module = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"}
    (folder / "modules.json").write_text(json.dumps([module]))  # which says that it reads bare pairs
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"model_type": "CrossEncoder"}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"transformer_task": "sequence-classification"}))
    return folder


@pytest.mark.parametrize("pad_token_id", [None, 65])
def test_classifier_pads_with_the_token_of_its_tokenizer(tmp_path, pad_token_id):
    folder = write_decoder(tmp_path / "decoder", pad_token_id)
    ranker, library = CrossEncoderRanker(folder, "cpu"), CrossEncoder(str(folder), device="cpu")
    library.model.config.pad_token_id = library.tokenizer.pad_token_id
    passages = ["A", "a flea lives a year", "glaciers flow"]
    (ranking,) = rank_windows(ranker, [window(ranker, passages)])
    pairs = [("which w3", text) for text in passages]
    alone = [float(library.predict([pair])[0]) for pair in pairs]
    assert ranking.scores == pytest.approx(alone, abs=1e-4)


def write_two_labels(folder: Path, names: dict[int, str] | None) -> Path:
    """A BERT with two labels, as monoBERT has them."""
    write_cross_encoder(folder, "bert")
    drop_modules(folder)
    config = BertConfig.from_pretrained(folder, num_labels=2, **({"id2label": names} if names else {}))
    torch.manual_seed(3)
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("names", "relevant"), [({0: "irrelevant", 1: "relevant"}, 1), ({0: "Relevant", 1: "no"}, 0)])
def test_score_of_two_labels_is_the_probability_of_the_relevant_one(tmp_path, names, relevant):
    ranker = CrossEncoderRanker(folder := write_two_labels(tmp_path / "mono", names), "cpu")
    assert ranker.info.score_kind is ScoreKind.POINTWISE_PROBABILITY
    (ranking,) = rank_windows(ranker, [window(ranker, texts(5))])
    pairs = [("which w3", text) for text in texts(5)]
    both = CrossEncoder(str(folder), device="cpu").predict(pairs, apply_softmax=True)
    assert ranking.scores == pytest.approx(both[:, relevant].tolist(), abs=1e-5)


@pytest.mark.parametrize("names", [None, {0: "NEGATIVE", 1: "POSITIVE"}, {0: "relevant", 1: "relevant"}])
def test_two_labels_of_which_none_is_named_relevant_are_refused(tmp_path, names):
    with pytest.raises(CheckpointError, match=r"head for two labels \(.*does not say which of them means relevant"):
        CrossEncoderRanker(write_two_labels(tmp_path / "mono", names), "cpu")


def test_activation_decides_on_the_meaning_of_scores(tmp_path, folders):
    logits = write_cross_encoder(tmp_path / "logits", "bert", torch.nn.Identity())
    of_logits, of_sigmoid = CrossEncoderRanker(logits, "cpu"), CrossEncoderRanker(folders["bert"], "cpu")
    assert of_logits.info.score_kind is ScoreKind.POINTWISE
    assert of_sigmoid.info.score_kind is ScoreKind.POINTWISE_PROBABILITY
    (raw,) = rank_windows(of_logits, [window(of_logits, texts(5))])
    (probabilities,) = rank_windows(of_sigmoid, [window(of_sigmoid, texts(5))])
    expected = torch.tensor(raw.scores, dtype=torch.float64).sigmoid().tolist()
    assert probabilities.scores == pytest.approx(expected, abs=1e-6)


def test_instruction_reaches_the_chat_template_and_no_other_model(folders):
    ranker = CrossEncoderRanker(folders["qwen3"], "cpu")
    library = CrossEncoder(str(folders["qwen3"]))
    passages = texts(4)
    (ranking,) = rank_windows(ranker, [window(ranker, passages, instruction="Find moons.")])
    pairs = [("which w3", text) for text in passages]
    expected = library.predict(pairs, prompt="Find moons.", show_progress_bar=False)
    assert ranking.scores == pytest.approx(expected.tolist(), abs=1e-4)
    assert expected.tolist() != pytest.approx(library.predict(pairs, show_progress_bar=False).tolist(), abs=1e-3)
    reads = [CrossEncoderRanker(folder, "cpu").info.reads_instruction for folder in folders.values()]
    assert reads == [False, False, False, True]


def test_passage_cannot_write_special_tokens(folders, ranker):
    chat = CrossEncoderRanker(folders["qwen3"], "cpu")
    for model, markup in ((chat, "<|im_end|>"), (ranker, "[SEP]")):
        token = model._scorer.tokenizer.convert_tokens_to_ids(markup)
        plain, forged = pairs_of(model.encode(window(model, ["w1 w2", f"w1 {markup} w2"])))
        assert list(forged["input_ids"]).count(token) == list(plain["input_ids"]).count(token)


def test_text_that_is_the_address_of_an_image_is_read_as_text(folders):
    ranker = CrossEncoderRanker(folders["qwen3"], "cpu")
    address, other = pairs_of(ranker.encode(window(ranker, ["http://localhost/a.png", "http://localhost/b.txt"])))
    assert len(address["input_ids"]) == len(other["input_ids"])


@pytest.mark.parametrize("architecture", ARCHITECTURES[:3])
def test_long_query_has_the_scores_of_predict(folders, architecture):
    """Of two texts, the library cuts the longer one first."""
    ranker, library = CrossEncoderRanker(folders[architecture], "cpu"), CrossEncoder(str(folders[architecture]))
    long, text = " ".join(f"w{place % 9}" for place in range(2 * MAX_TOKENS)), "w2 " * 2 * MAX_TOKENS
    for query, passages, truncated in ((long, ["w1"], True), (long, [text], True), ("w3", ["w1", text], False)):
        prepared = window(ranker, passages, query=query)
        expected = library.predict([(query, passage) for passage in passages], show_progress_bar=False)
        assert rank_windows(ranker, [prepared])[0].scores == pytest.approx(expected.tolist(), abs=1e-4)
        assert prepared.query.is_truncated == truncated


def test_long_query_in_a_chat_leaves_half_of_the_room_to_the_passage(folders):
    ranker = CrossEncoderRanker(folders["qwen3"], "cpu")
    prepared = window(ranker, ["w1", "w2 " * 9], query="w3 " * ranker._scorer.max_tokens)
    assert prepared.query.is_truncated
    full, other = (pair["input_ids"] for pair in pairs_of(ranker.encode(prepared)))
    assert len(full) < len(other) < 0.7 * ranker._scorer.max_tokens
    with pytest.raises(InvalidRequest, match=r"prompt and instruction take .*; shorten the instruction"):
        window(ranker, ["w1"], instruction="w3 " * ranker._scorer.max_tokens)


def test_served_model_gives_its_scores_and_those_of_the_last_step_of_a_cascade(folders):
    cascade = {"strategy": StrategyKind.CASCADE, "preranker": "ce", "window_size": 3}
    last = CrossEncoderModel(name="last", ranker="cross-encoder", path=folders["modernbert"], **cascade)
    models = (CrossEncoderModel(name="ce", ranker="cross-encoder", path=folders["bert"]), last)
    documents = [(f"d{place}", text) for place, text in enumerate(texts(9))]
    pairs = [("which w3", text) for _, text in documents]
    of_bert, of_last = (
        CrossEncoder(str(folders[name])).predict(pairs, show_progress_bar=False).tolist()
        for name in ("bert", "modernbert")
    )
    of_two = [pair for text, other in zip(texts(9), texts(9), strict=True) for pair in (("w1", text), ("w3", other))]
    with Reranker(ServiceConfig(models=models)) as reranker:
        assert reranker.predict(of_two) == pytest.approx(  # of several queries in turn
            CrossEncoder(str(folders["bert"])).predict(of_two, show_progress_bar=False), abs=1e-4
        )
        alone = reranker.rerank("which w3", documents)
        best = reranker.rerank("which w3", documents, RankOptions(model="last", top_n=3))
        with pytest.raises(InvalidRequest, match="ce has no place for an instruction"):
            reranker.rerank(Query("which w3", instruction="Find."), documents)
    first = sorted(range(9), key=lambda place: -of_bert[place])
    assert [item.position for item in alone.ranked] == first
    assert [item.score for item in alone.ranked] == pytest.approx(sorted(of_bert, reverse=True), abs=1e-4)
    order = sorted(first[:3], key=lambda place: -of_last[place])
    assert [item.position for item in best.ranked] == order
    assert best.score_kind is ScoreKind.POINTWISE_PROBABILITY
    assert [item.score for item in best.ranked] == pytest.approx([of_last[place] for place in order], abs=1e-4)


def change(name: str, **values: object) -> Callable[[Path], None]:
    return lambda folder: change_json(folder / name, **values)


def bare_bert(folder: Path) -> None:
    drop_modules(folder)
    change_json(folder / "config.json", architectures=["BertModel"])


def without_head(folder: Path) -> None:
    change_weights(folder, {}, without="classifier")


def without_pad_token(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    kept = {name: value for name, value in json.loads(path.read_text()).items() if "pad" not in name}
    path.write_text(json.dumps(kept))


def foreign_module(folder: Path) -> None:
    path = folder / "modules.json"
    path.write_text(path.read_text().replace("sentence_transformers.base", "publisher"))


CODE = {"AutoModelForSequenceClassification": "modeling.Reranker"}


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (bare_bert, "is BertModel, which has no head for scores: they would come from random weights"),
        (without_head, "does not fit its config.json: weights without classifier.bias, classifier.weight"),
        (without_pad_token, "has no pad token"),
        (change("config.json", id2label={"0": "a", "1": "b", "2": "c"}), "has a head for 3 labels; a reranker has one"),
        (change("config.json", auto_map=CODE), r"needs code from its publisher \(modeling.Reranker\)"),
        (change("config_sentence_transformers.json", activation_fn="mine.Act"), r"needs code .*\(mine.Act\)"),
        (
            change("config_sentence_transformers.json", model_type="SentenceTransformer"),
            r"is a sentence encoder .* give it as `encoder`",
        ),
        (foreign_module, r"needs code from its publisher \(publisher.modules.transformer.Transformer\)"),
    ],
)
def test_model_that_cannot_score_is_refused_by_name(folders, tmp_path, edit, message):
    folder = shutil.copytree(folders["bert"], tmp_path / "model")
    edit(folder)
    with pytest.raises(CheckpointError, match=message):
        PairScorer(folder, "cpu")


def test_token_outside_the_vocabulary_is_refused(tmp_path, folders):
    folder = shutil.copytree(folders["qwen3"], tmp_path / "model")
    (path,) = folder.glob("1_*/config.json")
    change_json(path, true_token_id=99_999)
    with pytest.raises(CheckpointError, match="scores by token 99999, and the model has the tokens 0 to"):
        PairScorer(folder, "cpu")
