"""Late interaction: MaxSim as sentence-transformers computes it, in the layouts of ColBERT and of PyLate."""

import json
import shutil
import string
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import MultiVectorEncoder
from transformers import AutoModel, BertConfig

from rerank.config.named import named_model
from rerank.errors import CheckpointError
from rerank.rankers.cross_encoder import CrossEncoderRanker
from rerank.rankers.late_interaction import LateInteractionRanker
from rerank.reranking.blocking import Reranker
from rerank.types import Passage, Query
from tests.cross_encoders import MAX_TOKENS, SIZES
from tests.fakes import ranking_of
from tests.small_tokenizers import uncased

QUERY = "how long does a flea live"
PASSAGES = ["A flea lives a year.", "moon", "...", "", "Most fleas, they say, die within three months!", "word " * 300]


def write(folder: Path, layout: str) -> Path:
    """A folder as ColBERT ("colbert") or PyLate ("pylate") saves it."""
    tokenizer = uncased()
    tokenizer.add_special_tokens(
        {"mask_token": "[MASK]", "additional_special_tokens": ["[unused0]", "[unused1]", "[Q] ", "[D] "]}
    )
    tokenizer.model_max_length = MAX_TOKENS
    torch.manual_seed(0)
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=MAX_TOKENS, pad_token_id=0, **SIZES)
    AutoModel.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    linear = torch.randn(12, 32)
    if layout == "colbert":
        weights = {f"bert.{name}": one for name, one in load_file(folder / "model.safetensors").items()}
        save_file(weights | {"linear.weight": linear}, folder / "model.safetensors", metadata={"format": "pt"})
        settings = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(settings | {"architectures": ["HF_ColBERT"]}))
        stated = {"query_maxlen": 16, "doc_maxlen": 100, "dim": 12, "similarity": "cosine", "mask_punctuation": True}
        stated |= {"query_token_id": "[unused0]", "doc_token_id": "[unused1]", "attend_to_mask_tokens": False}
        (folder / "artifact.metadata").write_text(json.dumps(stated))
        return folder
    types = {"": "sentence_transformers.models.Transformer", "1_Dense": "pylate.models.Dense.Dense"}
    modules = [{"idx": n, "name": str(n), "path": path, "type": kind} for n, (path, kind) in enumerate(types.items())]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Dense").mkdir()
    dense = {"in_features": 32, "out_features": 12, "bias": False}
    dense["activation_function"] = "torch.nn.modules.linear.Identity"  # type: ignore[assignment]
    (folder / "1_Dense" / "config.json").write_text(json.dumps(dense))
    save_file({"linear.weight": linear}, folder / "1_Dense" / "model.safetensors", metadata={"format": "pt"})
    settings = {"query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": 16, "document_length": 100}
    settings |= {"attend_to_expansion_tokens": False, "skiplist_words": [*string.punctuation], "prompts": {}}
    settings |= {"similarity_fn_name": "MaxSim", "default_prompt_name": None}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 99, "do_lower_case": False}))
    return folder


@pytest.fixture(scope="module", params=["colbert", "pylate"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp(request.param) / "model", request.param)


def scores_of(ranker: LateInteractionRanker, passages: list[str]) -> tuple[float, ...]:
    return ranking_of(ranker, QUERY, passages).scores


def test_scores_are_those_of_the_library_alone_and_together(folder):
    ranker, library = LateInteractionRanker(folder, "cpu"), MultiVectorEncoder(str(folder), device="cpu")
    vectors = library.encode_document(PASSAGES, show_progress_bar=False)
    expected = library.similarity(library.encode_query([QUERY]), vectors)[0].tolist()
    assert scores_of(ranker, PASSAGES) == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert [scores_of(ranker, [passage])[0] for passage in PASSAGES] == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert max(expected) - min(expected) > 1e-1


def test_no_file_of_the_model_is_mapped(folder, tmp_path):
    """One that is cut would end the process: SIGBUS."""
    copy = shutil.copytree(folder, tmp_path / "model")  # the library maps the other one in this process
    ranker = LateInteractionRanker(copy, "cpu")
    assert f"{copy}/" not in Path("/proc/self/maps").read_text()
    del ranker


def test_vectors_of_passages_are_kept(folder, monkeypatch):
    ranker = LateInteractionRanker(folder, "cpu", cache_bytes=1_000_000)
    first = scores_of(ranker, PASSAGES)
    monkeypatch.setattr(ranker._model, "encode_document", None)
    assert scores_of(ranker, PASSAGES[::-1])[::-1] == first


def test_long_texts_are_reported(folder):
    ranker = LateInteractionRanker(folder, "cpu")
    library = MultiVectorEncoder(str(folder), device="cpu")
    given = (Passage("long", "word " * 300), Passage("short", "word"))
    assert ranker.prepare(Query("flea"), given).truncated_doc_ids == ("long",)
    most = next(n for n in range(20) if ranker.prepare(Query("a " * n + "b"), ()).query.is_truncated)
    same, cut = (library.encode_query([text]) for text in ("a " * (most + 1), "a " * most + "b"))
    assert torch.equal(same[0], cut[0])  # the last word is not read
    short, longer = (library.encode_query([text]) for text in ("a " * most, "a " * (most - 1) + "b"))
    assert not torch.equal(short[0], longer[0])


def test_folder_alone_is_served_and_no_cross_encoder(folder):
    assert named_model(f"a={folder}")["ranker"] == "late-interaction"
    with Reranker(str(folder)) as reranker:
        found = reranker.rank(QUERY, PASSAGES[:3])
    assert {row["corpus_id"] for row in found} == {0, 1, 2}
    with pytest.raises(CheckpointError, match=f"write late-interaction:{folder}"):
        CrossEncoderRanker(folder, "cpu")


@pytest.mark.parametrize("layout", ["colbert", "pylate"])
@pytest.mark.parametrize("what", ["missing", "unknown", "projection"])
def test_other_weights_are_refused(tmp_path, layout, what):
    folder = write(tmp_path / "model", layout)
    name = "1_Dense/model.safetensors" if (layout, what) == ("pylate", "projection") else "model.safetensors"
    weights = load_file(folder / name)
    if what == "unknown":
        weights["more"] = torch.zeros(2)
    else:
        part = "linear.weight" if what == "projection" else "encoder.layer.0.output.dense.bias"
        del weights[next(key for key in weights if key.endswith(part))]
        weights = weights or {"other": torch.zeros(1)}
    save_file(weights, folder / name, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"weights with|linear\.weight"):
        LateInteractionRanker(folder, "cpu")


def test_model_of_another_kind_is_refused(tmp_path):
    folder = write(tmp_path / "model", "colbert")
    (folder / "artifact.metadata").unlink()
    with pytest.raises(CheckpointError, match=r"has no artifact\.metadata"):
        LateInteractionRanker(folder, "cpu")
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"architectures": ["BertModel"]}))
    with pytest.raises(CheckpointError, match="is no late-interaction model"):
        LateInteractionRanker(folder, "cpu")
