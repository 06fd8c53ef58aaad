"""Names of strategies, first stages and feedback methods, and what is said about a wrong one."""

import time

import pytest

from rerank.errors import InvalidRequest
from rerank.names import FeedbackMethod, FirstStage, StrategyKind

KINDS = (StrategyKind, FirstStage, FeedbackMethod)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("given", ["", "nope", "Single", 3, None, "x" * 1_000_000])
def test_unknown_name_lists_all_choices(kind, given):
    start_s = time.perf_counter()
    with pytest.raises(InvalidRequest) as caught:
        kind.of("a.field", given)
    assert time.perf_counter() - start_s < 5
    assert caught.value.field == "a.field"
    assert caught.value.description.endswith(f"choices: {', '.join(kind)}")
