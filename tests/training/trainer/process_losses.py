"""Losses and gradients that each of two processes finds, for their comparison with one process."""

from collections.abc import Callable
from pathlib import Path

import torch
from rerank_training.trainer.losses import RANK_LOSSES, stepwise_kl, stepwise_listmle
from rerank_training.trainer.processes import (
    gather_rows,
    gather_weights,
    is_main_process,
    mean_of_all_processes,
    over_all_processes,
    process_count,
)
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM, LlamaConfig

from tests.causal_lms import SIZES

#: Lists and passages of each process. One list of each has a single passage, which does not count in any loss.
SHAPES = ((3, 5), (2, 4))


def lists_of(rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scores with a gradient, relevance and mask."""
    generator = torch.Generator().manual_seed(rank)
    shape = SHAPES[rank]
    mask = torch.ones(shape, dtype=torch.bool)
    mask[0, 1:] = False
    mask[1, 3:] = False
    relevance = torch.randint(0, 4, shape, generator=generator).float()
    return (torch.randn(shape, generator=generator) + 3).requires_grad_(), relevance, mask


def joined(*tensors: Tensor) -> Tensor:
    """The rows of both processes, padded with 0: what one process has."""
    width = max(tensor.shape[1] for tensor in tensors)
    return torch.cat([nn.functional.pad(tensor, (0, width - tensor.shape[1])) for tensor in tensors])


def stepwise(loss: Callable[..., Tensor]) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """A loss of (B, N, N) scores as one of (B, N) scores, which are the same at every rank but for a factor."""

    def of_scores(scores: Tensor, relevance: Tensor, mask: Tensor) -> Tensor:
        ranks = torch.arange(1, scores.shape[1] + 1)
        every_step = scores[:, None, :] / ranks[None, :, None]
        if loss is stepwise_kl:
            left = mask[:, None, :] & (ranks[None, :, None] <= mask.sum(dim=1)[:, None, None])
            return over_all_processes(loss)(every_step, relevance[:, None, :] * every_step.detach(), left)
        return over_all_processes(loss)(every_step, relevance, mask)

    return of_scores


LOSSES = {name: over_all_processes(loss) for name, loss in RANK_LOSSES.items()} | {
    "stepwise listmle": stepwise(stepwise_listmle),
    "stepwise kl": stepwise(stepwise_kl),
}


def tiny_lm() -> nn.Module:
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=50, **SIZES, tie_word_embeddings=True)
    model: nn.Module = AutoModelForCausalLM.from_config(config)
    return model


def stepped(model: nn.Module) -> Tensor:
    """(2,) losses of a causal language model before and after a step."""
    ids = torch.arange(40)[None] % 50
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), list[Tensor]()
    for _ in range(2):
        losses.append(loss := model(input_ids=ids, labels=ids, use_cache=False).loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return torch.stack(losses).detach()


def store_losses(folder: Path) -> None:
    """Writes what this process of two finds to RANK.pt."""
    rank = distributed.get_rank()
    found: dict[str, object] = {"count": process_count(), "main": is_main_process()}
    found["rows"] = gather_rows(torch.full((rank + 1, 2 - rank), float(rank + 1)))
    found["nothing"] = mean_of_all_processes(torch.tensor(0.0), torch.tensor(0))
    for name, loss in LOSSES.items():
        scores, relevance, mask = lists_of(rank)
        value = loss(scores, relevance, mask)
        value.backward()
        found[name] = (value.detach(), scores.grad)
    model = tiny_lm()
    for layer in model.get_submodule("model.layers").children():
        fully_shard(layer)
    fully_shard(model)
    found["divided losses"] = stepped(model)
    gather_weights(model)
    found["divided weights"] = model.state_dict() if is_main_process() else {}
    torch.save(found, folder / f"{rank}.pt")
