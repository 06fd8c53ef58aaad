"""What a GPU does with the layers and shapes of a model, done here on a CPU."""

import logging
from typing import Any

import pytest
import torch

from rerank.models import last_token
from rerank.models.last_token import LastTokenReader
from tests.random_models import DECODERS, READ_BACK, Operators, last_logits, random_model, random_sequences

#: Models with `layers`, which are compiled.
LAYERED = ["llama", "mistral", "qwen2", "qwen2 with a window in one layer", "qwen3", "gemma2", "gemma3", "gpt-oss"]


class Graphs:
    """Keeps the shapes that CUDA graphs would be made for, and the operators in them."""

    def __init__(self, function: Any) -> None:
        self._function, self.shapes, self.operators = function, set[tuple[int, ...]](), Operators()

    def __call__(self, inputs: torch.Tensor) -> Any:
        self.shapes.add(tuple(inputs.shape))
        with self.operators:
            return self._function(inputs)


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_token, "CudaGraphs", Graphs)
    monkeypatch.setattr(LastTokenReader, "_pause_between_layers", LastTokenReader._speed_up)


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)


@pytest.mark.usefixtures("as_on_a_gpu", "uncompiled")
@pytest.mark.parametrize("name", DECODERS)
def test_padded_sequences_without_a_cache_give_what_each_gives_alone(name):
    expected = last_logits(random_model(DECODERS[name]), random_sequences())
    reader = LastTokenReader(random_model(DECODERS[name]))
    torch.testing.assert_close(reader.read(random_sequences()), expected, atol=1e-5, rtol=0)


@pytest.mark.usefixtures("as_on_a_gpu", "uncompiled")
@pytest.mark.parametrize("name", LAYERED)
def test_pass_has_few_shapes_and_can_be_captured(name):
    reader = LastTokenReader(random_model(DECODERS[name]))
    graphs: Any = reader._graphs
    reader.read([torch.zeros(length, dtype=torch.long) for length in range(1, 400, 13)])
    assert {length for _, length in graphs.shapes} == {128, 256, 384, 512}
    assert {rows for rows, _ in graphs.shapes} <= {1, 2, 4, 8}
    assert graphs.operators.seen.isdisjoint(READ_BACK)


@pytest.mark.usefixtures("as_on_a_gpu", "uncompiled")
def test_sequence_longer_than_a_batch_makes_no_graph():
    """A graph keeps its outputs, and lists of long documents have hundreds of lengths."""
    reader = LastTokenReader(random_model(DECODERS["qwen3"]))
    graphs: Any = reader._graphs
    reader.gpu_batch_tokens, before = 200, set(graphs.shapes)
    ids = torch.arange(300) % 50
    (found,) = reader.read_at([ids], [[299]])
    assert graphs.shapes == before
    torch.testing.assert_close(found, last_logits(random_model(DECODERS["qwen3"]), [ids]), atol=1e-5, rtol=0)


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("name", LAYERED)
def test_layers_get_in_a_capture_what_they_got_before_it(name, monkeypatch):
    """Another mask would make the compiler work in the middle of the capture, which ends it."""
    masks: list[tuple[int, ...] | None] = []

    def compile_(function: Any, **_: Any) -> Any:
        def compiled(*args: Any, **kwargs: Any) -> Any:
            mask = kwargs.get("attention_mask")
            masks.append(mask if mask is None else tuple(mask.shape))
            return function(*args, **kwargs)

        return compiled

    monkeypatch.setattr(torch, "compile", compile_)
    reader = LastTokenReader(random_model(DECODERS[name]))
    given = []
    for capturing in (False, True):
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)  # noqa: B023
        masks.clear()
        reader._outputs(torch.zeros(1, 128, dtype=torch.long))
        given.append([*masks])
    assert given[0] == given[1]
    assert len(given[0]) == reader._model.config.get_text_config().num_hidden_layers


@pytest.mark.usefixtures("as_on_a_gpu", "uncompiled")
def test_large_model_reads_as_many_tokens_as_keep_a_gpu_busy(monkeypatch):
    small = LastTokenReader(random_model(DECODERS["llama"]))
    assert small.gpu_batch_tokens == 16_384
    monkeypatch.setattr(last_token, "_GPU_BATCH_FLOP", 1e8)
    assert 1 < LastTokenReader(random_model(DECODERS["llama"])).gpu_batch_tokens < 16_384


@pytest.mark.slow
@pytest.mark.usefixtures("as_on_a_gpu")
def test_compiled_layers_give_the_scores_of_eager_ones_and_are_one_function():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    expected = last_logits(random_model(DECODERS["llama"]), random_sequences())
    reader = LastTokenReader(random_model(DECODERS["llama"]))
    torch.testing.assert_close(reader.read(random_sequences()), expected, atol=1e-4, rtol=1e-4)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2  # for one sequence, and for several


@pytest.mark.usefixtures("as_on_a_gpu")
def test_layers_that_cannot_be_compiled_run_without_and_the_log_says_why(monkeypatch, caplog):
    def compile_(function: Any, **_: Any) -> Any:
        def fails(*args: Any, **kwargs: Any) -> None:
            raise RuntimeError("no compiler")

        return fails

    monkeypatch.setattr(torch, "compile", compile_)
    expected = last_logits(random_model(DECODERS["llama"]), random_sequences())
    with caplog.at_level(logging.WARNING):
        reader = LastTokenReader(random_model(DECODERS["llama"]))
    said = "the layers of LlamaForCausalLM could not be compiled, and run slower: RuntimeError('no compiler')"
    assert said in caplog.text
    torch.testing.assert_close(reader.read(random_sequences()), expected, atol=1e-5, rtol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_replayed_graphs_give_the_scores_of_the_cpu(name):
    expected = last_logits(random_model(DECODERS[name]), random_sequences())
    reader = LastTokenReader(random_model(DECODERS[name]).cuda())
    for _ in range(2):  # the second time as replays
        found = reader.read([ids.cuda() for ids in random_sequences()]).cpu()
        torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)
    assert reader._graphs._captured
