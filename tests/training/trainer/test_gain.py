"""One line says whether a training gained, against what, and which weights it kept."""

import re

import pytest
from rerank_training.retriever import distillation
from rerank_training.trainer.run import InitialEvaluation, gain_line
from transformers import TrainerState

START = [0.2, 0.4, 0.3, 0.5, 0.1, 0.3]


@pytest.mark.parametrize(
    ("before", "added", "expected", "has_gained"),
    [
        (START, [0.1, 0.11, 0.1, 0.09, 0.1, 0.1], r"gain: \+0.1000 nDCG@10 over the weights at the start; kept", True),
        (START, [0.5, 0, 0, 0, 0, 0], r"gain: not shown, as \+0.0833 nDCG@10 .* chance .*; kept: .* step 7", False),
        (START, [0.0] * 6, r"gain: none, \+0.0000 nDCG@10 .* step 7, and those at the start are as good", False),
        (START, [-0.1] * 6, "gain: none, -0.1000 nDCG@10 against the weights at the start; kept", False),
        ([], [0.1] * 6, "gain: unknown, as the start was not measured; kept: the weights of step 7", False),
    ],
)
def test_gain_is_against_the_start_and_names_the_weights(before, added, expected, has_gained):
    after = [value + more for value, more in zip(START, added, strict=True)]
    line, found = gain_line(before, after, step=7)
    assert re.match(expected, line), line
    assert found is has_gained


@pytest.mark.parametrize(
    ("after", "p", "expected"),
    [(0.9, 0.01, ""), (0.9, 0.3, "gain: not shown"), (0.5, 1.0, "gain: none"), (0.4, 0.01, "gain: none")],
)
def test_distilled_encoder_without_a_gain_says_so(after, p, expected):
    measured = {"p": {"R@100": p}, "before": {"mean": {"R@100": 0.5}}, "after": {"mean": {"R@100": after}}}
    line = distillation.gain_line(measured)
    assert line.startswith(expected)
    assert bool(line) == bool(expected)
    assert distillation.gain_line(None).startswith("gain: not measured")


class Counting:
    """A trainer that counts its measurements."""

    def __init__(self) -> None:
        self.measured = 0

    def held_out_values(self) -> list[float]:
        self.measured += 1
        return [0.25, 0.75]


def test_start_is_measured_once_and_not_again_by_a_resumed_run():
    trainer, state = Counting(), TrainerState(max_steps=9, is_world_process_zero=False)
    measure = InitialEvaluation(trainer)  # type: ignore[arg-type]
    measure.on_train_begin(None, state, None)
    assert state.log_history == [{"step": 0, "before_nDCG@10": [0.25, 0.75]}]
    state.global_step = 3
    measure.on_train_begin(None, state, None)
    assert len(state.log_history) == trainer.measured == 1
