"""Models that do not fit a device are refused with both numbers, and batches are bounded by what is free."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pydantic import TypeAdapter
from safetensors.torch import load_file

from rerank.config import EncoderConfig, IdentityModel, ModelConfig
from rerank.errors import CheckpointError
from rerank.models import memory
from rerank.models.encoder import Encoder
from rerank.models.loading import load_causal_lm
from rerank.models.memory import check_fits, fitting_tokens, translate_out_of_memory
from rerank.models.sparse_encoder import SparseEncoder
from rerank.rankers.cross_encoder import CrossEncoderRanker
from rerank.reranking.load_models import ModelLoader
from rerank.reranking.registry import load_models
from tests.causal_lms import write_causal_lm
from tests.cross_encoders import write_cross_encoder
from tests.small_encoder import write_qwen_model
from tests.small_tokenizers import byte_level
from tests.sparse_encoders import write_sparse_encoder

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_causal_lm(tmp_path_factory.mktemp("lm") / "lm", "llama", byte_level())


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """Sets the free memory of every device, in bytes."""
    return lambda count: monkeypatch.setattr(memory, "available_bytes", lambda device: count)


def needed(folder: Path, itemsize: int) -> int:
    parameters = sum(tensor.numel() for tensor in load_file(folder / "model.safetensors").values())
    return itemsize * (parameters + 2048 * (3 * 96 + 8 * 64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_model_fits_up_to_the_byte(lm, free, dtype):
    free(needed(lm, dtype.itemsize))
    check_fits(lm, CPU, dtype)
    free(None)
    check_fits(lm, CPU, dtype)
    free(needed(lm, dtype.itemsize) - 1)
    message = rf"lm needs some .* GB, .* weights in {str(dtype).split('.')[1]} .* free"
    with pytest.raises(CheckpointError, match=message):
        check_fits(lm, CPU, dtype)


def test_both_numbers_and_the_ways_out_are_said(tmp_path, free):
    """A model of 7B; only its sizes are on the disk."""
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 4096, "intermediate_size": 14_336}))
    with (tmp_path / "pytorch_model.bin").open("wb") as file:
        file.truncate(29_000_000_000)  # a hole, which takes no room
    free(24_000_000_000)
    with pytest.raises(CheckpointError) as refused:
        check_fits(tmp_path, CUDA, torch.float32)
    assert str(refused.value) == (
        f"{tmp_path} needs some 30 GB, 29 of them for weights in float32 and 0.62 to read a window of 2048 tokens, and "
        "24 GB of the memory of cuda are free; set precision: bfloat16, take a smaller model, or another device"
    )
    check_fits(tmp_path, CUDA, torch.bfloat16)


def test_folder_without_weights_or_with_damaged_ones_is_left_to_its_loader(tmp_path, free):
    free(0)
    check_fits(tmp_path, CPU, torch.float32)
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 100)
    check_fits(tmp_path, CPU, torch.float32)


@pytest.mark.parametrize("kind", ["first", "pe-rank", "cross-encoder"])
def test_model_that_does_not_fit_is_not_served_and_says_why(lm, encoder, checkpoint, tmp_path, free, kind):
    folder = {"first": lm, "pe-rank": checkpoint}.get(kind) or write_cross_encoder(tmp_path / "ce", "bert")
    free(1000)
    model = TypeAdapter(ModelConfig).validate_python({"name": "mine", "ranker": kind, "path": str(folder)})
    models = [model, IdentityModel(name="i", ranker="identity")]
    mine, _ = load_models(models, ModelLoader(encoder, "cpu")).describe()
    assert f"{folder} needs some 0." in mine.problem
    assert "0.00 GB of the memory of cpu are free; take a smaller model" in mine.problem


@pytest.fixture
def pass_takes(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the memory that a pass takes on a GPU, in addition to 100 bytes that are taken already."""

    def take(count: int) -> None:
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 100)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 100 + count)

    return take


@pytest.mark.parametrize(
    ("taken", "available", "tokens"),
    [(1000, 10**6, 16_384), (1000, 20_000, 16_000), (1000, 100, 80), (10**6, 1, 1), (0, 0, 1)],
)
def test_batch_takes_a_share_of_the_free_memory(free, pass_takes, caplog, taken, available, tokens):
    """A pass over 2,000 tokens was measured."""
    free(available)
    pass_takes(taken)
    passes = list[int]()
    assert fitting_tokens(lambda: passes.append(1), 2000, CUDA, 16_384) == tokens
    assert passes == [1]
    assert (f"batches hold {tokens} tokens instead of 16384" in caplog.text) == (tokens < 16_384)


def test_batches_of_a_cpu_are_not_measured(free):
    free(0)
    assert fitting_tokens(lambda: pytest.fail("read"), 2000, CPU, 512) == 512


def test_out_of_memory_on_the_cpu_becomes_a_memory_error():
    @translate_out_of_memory()
    def allocate() -> None:
        torch.empty(2**50, dtype=torch.uint8)

    for _ in range(2):  # the decorated function can be called again
        with pytest.raises(MemoryError, match="DefaultCPUAllocator"):
            allocate()


@pytest.mark.gpu
def test_real_out_of_memory_on_the_gpu_becomes_a_memory_error():
    with pytest.raises(MemoryError), translate_out_of_memory():
        torch.empty(2**50, dtype=torch.uint8, device="cuda")


LOAD: dict[str, Callable[[Path], object]] = {
    "causal LM": lambda folder: load_causal_lm(write_causal_lm(folder, "llama", byte_level()), CPU, "float32"),
    "cross-encoder": lambda folder: CrossEncoderRanker(write_cross_encoder(folder, "bert"), "cpu", "float32"),
    "encoder": lambda folder: Encoder(EncoderConfig(name=str(write_qwen_model(folder)), pooling="lasttoken"), "cpu"),
    "sparse encoder": lambda folder: SparseEncoder(str(write_sparse_encoder(folder)), "cpu"),
}


@pytest.mark.parametrize("load", LOAD.values(), ids=LOAD)
def test_no_file_of_a_loaded_model_is_mapped(tmp_path, load):
    """One that is cut would end the process: SIGBUS."""
    model = load(tmp_path / "model")
    assert f"{tmp_path}/model/" not in Path("/proc/self/maps").read_text()
    del model
