"""Block attention: what a dense mask computes, for any split into what is kept and what is read."""

from __future__ import annotations

import pytest
import torch
from transformers import GPT2Config, LlamaConfig, MistralConfig, PretrainedConfig, PreTrainedModel

from rerank.errors import CheckpointError
from rerank.models.blocks import Block, BlockPack, BlockReader, check_block_attention
from rerank.models.packing_check import make_last_token_reader
from tests.random_models import PACKABLE, random_model

CPU = torch.device("cpu")
IDENTIFIERS, TAIL = (7, 8, 9, 10), (3, 1, 4, 1)
#: Blocks with passages of 1 to 30 tokens; the third has the text of the second, and the last none.
BLOCKS: list[Block] = [((1, 2, 3), passage, (5, 6)) for passage in (tuple(range(20, 50)), (11,), (11,), ())]
#: Models of rotary positions without sliding windows.
ARCHITECTURES = ["llama", "qwen2", "qwen3"]


def dense_row(blocks: list[Block]) -> tuple[list[int], torch.Tensor, torch.Tensor]:
    """The token ids of a window, its positions, and its (T, T) mask, token by token."""
    rows = [(token, place, 0) for place, token in enumerate(blocks[0][0])]
    start = len(rows)
    for number, (block, identifier) in enumerate(zip(blocks, IDENTIFIERS, strict=False), 1):
        own = [*block[1], *block[2], identifier]
        rows += [(token, start + place, number) for place, token in enumerate(own)]
    end = max(place for _, place, _ in rows) + 1
    rows += [(token, end + place, -1) for place, token in enumerate(TAIL)]
    mask = [
        [j <= i and (seen in (0, part) or part == -1) for j, (_, _, seen) in enumerate(rows)]
        for i, (_, _, part) in enumerate(rows)
    ]
    return [row[0] for row in rows], torch.tensor([[row[1] for row in rows]]), torch.tensor(mask)


def dense_output(model: PreTrainedModel, blocks: list[Block]) -> torch.Tensor:
    tokens, positions, mask = dense_row(blocks)
    with torch.no_grad():
        return model(
            input_ids=torch.tensor([tokens]), position_ids=positions, attention_mask=mask[None, None], use_cache=False
        )[0][0, -1]


def reader_of(model: PreTrainedModel, max_bytes: int = 10**8) -> BlockReader:
    return BlockReader(make_last_token_reader(model), CPU, max_bytes)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_output_is_that_of_a_dense_mask_and_the_same_from_kept_states(architecture: str) -> None:
    model = random_model(PACKABLE[architecture])
    expected = dense_output(model, BLOCKS)
    reader = reader_of(model)
    for _ in range(2):
        torch.testing.assert_close(reader.read_window(BLOCKS, IDENTIFIERS, TAIL), expected, atol=1e-5, rtol=1e-5)
    none_kept = BlockReader(reader._reader, CPU, 0)
    torch.testing.assert_close(none_kept.read_window(BLOCKS, IDENTIFIERS, TAIL), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("read_before", [[0], [1, 3], [0, 1, 2, 3]], ids=str)
def test_passages_of_another_query_serve_this_one(read_before: list[int]) -> None:
    model = random_model(PACKABLE["llama"])
    expected = dense_output(model, BLOCKS)
    reader = reader_of(model)
    other = [(BLOCKS[place][0], BLOCKS[place][1], (12, 13, 14)) for place in read_before]
    reader.read_window(other, IDENTIFIERS[: len(other)], (2,))
    found = reader.read_window(BLOCKS, IDENTIFIERS, TAIL)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_row_of_a_whole_window_is_that_of_a_dense_mask() -> None:
    """As training reads it."""
    model = random_model(PACKABLE["llama"])
    tokens, positions, _ = dense_row(BLOCKS)
    expected = dense_output(model, BLOCKS)
    pack = BlockPack(3, [len(block[1]) + 3 for block in BLOCKS], len(TAIL), CPU)
    assert torch.equal(pack.position_ids, positions)
    row = torch.tensor(tokens)
    found = make_last_token_reader(model).read_row(row, pack.outputs_at, position_ids=pack.position_ids, pack=pack)[-1]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_order_of_blocks_with_their_identifiers_does_not_matter() -> None:
    reader = reader_of(random_model(PACKABLE["llama"]))
    expected = reader.read_window(BLOCKS, IDENTIFIERS, TAIL)
    found = reader.read_window(BLOCKS[::-1], IDENTIFIERS[::-1], TAIL)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_other_passage_changes_the_output() -> None:
    reader = reader_of(random_model(PACKABLE["llama"]))
    changed = [((1, 2, 3), (12,), (5, 6)), *BLOCKS[1:]]
    difference = reader.read_window(changed, IDENTIFIERS, TAIL) - reader.read_window(BLOCKS, IDENTIFIERS, TAIL)
    assert difference.abs().max() > 1e-3


def test_passage_that_ends_like_a_link_has_a_state_of_its_own() -> None:
    """Its tokens are those of another passage and the link after it."""
    model = random_model(PACKABLE["llama"])
    alike: list[Block] = [((1, 2, 3), (11,), (5, 6)), ((1, 2, 3), (11, 5, 6), (5, 6))]
    expected = dense_output(model, alike)
    reader = reader_of(model)
    for block in alike:
        reader.read_window([block], IDENTIFIERS[:1], TAIL)
    found = reader.read_window(alike, IDENTIFIERS[:2], TAIL)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_states_stay_below_their_bound() -> None:
    model = random_model(PACKABLE["llama"])
    expected = dense_output(model, BLOCKS)
    unbounded = reader_of(model)
    unbounded.read_window(BLOCKS, IDENTIFIERS, TAIL)
    reader = BlockReader(unbounded._reader, CPU, unbounded.states.used_bytes // 2)
    for _ in range(2):
        found = reader.read_window(BLOCKS, IDENTIFIERS, TAIL)
        assert 0 < reader.states.used_bytes <= reader.states.max_bytes
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_window_of_kept_states_reads_identifiers_and_tail_only() -> None:
    reader = reader_of(random_model(PACKABLE["llama"]))
    lengths = list[int]()
    read = reader._reader.read_row
    reader._reader.read_row = lambda row, *rest, **options: lengths.append(len(row)) or read(row, *rest, **options)  # type: ignore[method-assign,func-returns-value]
    for _ in range(2):
        reader.read_window(BLOCKS, IDENTIFIERS, TAIL)
    beginning, passages, links, window = 3, 30 + 1, 3 * 2, 4 + len(TAIL)
    assert lengths == [beginning, passages + links, window, window]


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (GPT2Config(), "gpt2, which has no rotary positions"),
        (MistralConfig(sliding_window=4096), "mistral, which has layers of a sliding window of 4096 tokens"),
    ],
    ids=["gpt2", "mistral"],
)
def test_other_attention_is_refused_by_name(config: PretrainedConfig, problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem):
        check_block_attention(config)


def test_plain_attention_is_accepted() -> None:
    for config in (LlamaConfig(), MistralConfig(sliding_window=None)):
        check_block_attention(config)
