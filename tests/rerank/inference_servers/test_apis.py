"""The requests and answers of inference servers."""

from __future__ import annotations

import pytest

from rerank.inference_servers.api import LlamaCppApi, VllmApi


@pytest.mark.parametrize("api", [VllmApi("m"), LlamaCppApi("m")], ids=lambda api: type(api).__name__)
@pytest.mark.parametrize(
    "answer", [{}, [], None, {"choices": []}, {"meta_info": None}, {"completion_probabilities": []}]
)
def test_answer_of_another_form_raises_what_the_ranker_expects(api: VllmApi, answer: object) -> None:
    with pytest.raises((LookupError, TypeError, ValueError, AttributeError)):
        api.log_probs(answer)
