"""Reading after prefixes: outputs equal those of whole sequences, for every mix of known and new prefixes."""

from __future__ import annotations

import pytest
import torch

from rerank.models.packing_check import make_last_token_reader
from rerank.models.prefixes import Continuation, PrefixedPack, StateRecorder, read_continuations
from rerank.models.state_cache import StateCache
from tests.random_models import PACKABLE, random_model

CPU = torch.device("cpu")
TAIL = 3


def token_ids(length: int, seed: int) -> tuple[int, ...]:
    return tuple(torch.randint(60, (length,), generator=torch.Generator().manual_seed(seed)).tolist())


#: Prefixes of one and of many tokens, longer and shorter than a sliding window.
SEQUENCES = [Continuation(token_ids(length, length), token_ids(TAIL + 1, length)) for length in (7, 1, 30, 12)]


@pytest.mark.parametrize("architecture", PACKABLE)
@pytest.mark.parametrize("known", [(), (0,), (1, 3), (0, 1, 2, 3)], ids=str)
def test_outputs_equal_those_of_whole_sequences(architecture: str, known: tuple[int, ...]) -> None:
    reader = make_last_token_reader(random_model(PACKABLE[architecture]))
    states = StateCache(10**8)
    expected = reader.read([torch.tensor(each.prefix + each.rest) for each in SEQUENCES], TAIL)
    if known:
        read_continuations(reader, [SEQUENCES[place] for place in known], TAIL, CPU, states)
    sequences = [Continuation(each.prefix, each.rest, states.get(each.prefix)) for each in SEQUENCES]
    assert [each.state is not None for each in sequences] == [place in known for place in range(len(SEQUENCES))]
    found = read_continuations(reader, sequences, TAIL, CPU, states)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert all(each.prefix in states for each in SEQUENCES)


@pytest.mark.gpu
@pytest.mark.parametrize("known", [(), (1, 3)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_outputs_on_the_gpu_equal_those_on_the_cpu(dtype: torch.dtype, known: tuple[int, ...]) -> None:
    whole = [torch.tensor(each.prefix + each.rest) for each in SEQUENCES]
    expected = make_last_token_reader(random_model(PACKABLE["llama"])).read(whole, TAIL)
    reader, states = make_last_token_reader(random_model(PACKABLE["llama"], dtype).cuda()), StateCache(10**8)
    gpu = torch.device("cuda")
    if known:
        read_continuations(reader, [SEQUENCES[place] for place in known], TAIL, gpu, states)
    sequences = [Continuation(each.prefix, each.rest, states.get(each.prefix)) for each in SEQUENCES]
    found = read_continuations(reader, sequences, TAIL, gpu, states)
    tolerance = (1e-3 if dtype == torch.float32 else 0.2) * expected.std().item()
    torch.testing.assert_close(found.cpu().float(), expected, atol=tolerance, rtol=0)


def test_state_of_another_prefix_gives_other_outputs() -> None:
    reader = make_last_token_reader(random_model(PACKABLE["llama"]))
    states = StateCache(10**8)
    first, second = (Continuation(token_ids(9, seed), token_ids(4, 5)) for seed in (1, 2))
    expected = read_continuations(reader, [first, second], TAIL, CPU, states)
    exchanged = [Continuation(first.prefix, first.rest, states.get(second.prefix))]
    found = read_continuations(reader, exchanged, TAIL, CPU, states)
    assert (found - expected[:TAIL]).abs().max() > 1e-3
    torch.testing.assert_close(found, expected[TAIL:], atol=1e-5, rtol=1e-5)


def test_kept_state_holds_no_more_memory_than_its_numbers() -> None:
    reader = make_last_token_reader(random_model(PACKABLE["llama"]))
    states = StateCache(10**8)
    read_continuations(reader, SEQUENCES, TAIL, CPU, states)
    state = states.get(SEQUENCES[1].prefix)
    assert state is not None
    assert all(each.untyped_storage().nbytes() == each.nbytes for layer in state for each in layer)


def test_positions_of_a_continuation_follow_its_prefix() -> None:
    state = ((torch.zeros(1, 2, 5, 4), torch.zeros(1, 2, 5, 4)),)
    pack = PrefixedPack((2, 3), CPU, 1, [None, state])
    assert pack.position_ids.tolist() == [[0, 1, 5, 6, 7]]
    assert pack.has_prefixes
    assert not PrefixedPack((2, 3), CPU, 1, [None, None]).has_prefixes


def test_layers_in_another_order_are_an_error_of_ours() -> None:
    recorder = StateRecorder([slice(0, 1)])
    with pytest.raises(ValueError, match="layer 1 was read after 0 layers; this is a bug"):
        recorder.store(1, torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 2, 4))
