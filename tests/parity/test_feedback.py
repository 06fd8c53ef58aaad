"""Updates of query vectors equal those of the code that FIRST (arXiv 2406.15657) was published with."""

import json

import pytest
import torch
from torch.nn import functional

from rerank.retrieval.feedback import update_queries
from rerank.types import FeedbackMethod, FeedbackSettings

pytestmark = pytest.mark.shared


@pytest.mark.parametrize(
    ("method", "published"),
    [(FeedbackMethod.WEIGHTED_RANKNET_FIRST, "llm"), (FeedbackMethod.KL, "ce"), (FeedbackMethod.CHAIN, "ce+llm")],
)
def test_vectors_are_those_of_the_published_code(shared, method, published):
    """That code has no trust region."""
    file = shared.parent / "reference" / "parity" / "feedback.json"
    if not file.is_file():
        pytest.skip(f"there is no file {file}")
    given = json.loads(file.read_text(encoding="utf-8"))
    assert given["examples"]
    for example, expected in zip(given["examples"], given[published]["reps"], strict=True):
        of_llm, of_cross_encoder = (
            torch.tensor([[given[teacher][example["query_id"]][doc_id] for doc_id in example["passage_ids"]]])
            for teacher in ("teacher_llm", "teacher_ce")
        )
        updates = update_queries(
            torch.tensor([example["query_rep"]]),
            torch.tensor([example["passage_embs"]]),
            of_cross_encoder if method is FeedbackMethod.KL else of_llm,
            torch.ones_like(of_llm, dtype=torch.bool),
            FeedbackSettings(method, min_cosine=0.0),
            of_cross_encoder,
        )
        # 100 steps of Adam in float32 round differently where two programs add in another order.
        atol = 1e-6 if method is FeedbackMethod.WEIGHTED_RANKNET_FIRST else 5e-6
        theirs = functional.normalize(torch.tensor(expected), dim=-1)
        torch.testing.assert_close(updates.vectors[0], theirs, atol=atol, rtol=0)
