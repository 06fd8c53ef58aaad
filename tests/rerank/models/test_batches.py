"""Batches of texts, and the few shapes that a GPU sees."""

import random
from itertools import chain

import pytest

from rerank.models.batches import batches_by_length, batches_of_equal_length, gpu_length

LENGTHS = [random.Random(0).randint(1, 3000) for _ in range(100)]


@pytest.mark.parametrize("batches", [batches_by_length, batches_of_equal_length])
@pytest.mark.parametrize("lengths", [[], [5], [7] * 9, LENGTHS])
def test_batches_hold_each_text_once_within_the_limit(batches, lengths):
    found = list(batches(lengths, 6000))
    assert sorted(chain(*found)) == list(range(len(lengths)))
    assert all(len(rows) * max(lengths[row] for row in rows) <= 6000 for rows in found)


def test_text_beyond_the_limit_is_alone():
    assert list(batches_of_equal_length([9, 9, 3, 3], 6)) == [[0], [1], [2, 3]]
    assert list(batches_by_length([9, 9, 3, 3], 6)) == [[0], [1], [2, 3]]


def test_equal_lengths_share_batches_of_a_power_of_two():
    assert list(batches_of_equal_length([4, 2, 4, 4, 4, 4, 4, 4], 100)) == [[0, 2, 3, 4], [5, 6], [7], [1]]


def test_windows_of_a_dataset_have_few_lengths_on_a_gpu():
    windows = [random.Random(seed).randint(1100, 2400) for seed in range(400)]
    padded = [gpu_length(length, 8192) for length in windows]
    assert len(set(windows)) > 300
    assert len(set(padded)) <= 11
    assert all(length <= more for length, more in zip(windows, padded, strict=True))
    assert sum(padded) / sum(windows) < 1.05


def test_length_on_a_gpu_stays_within_what_the_model_reads():
    assert [gpu_length(length, 300) for length in (1, 128, 129, 256, 257, 300)] == [128, 128, 256, 256, 300, 300]
