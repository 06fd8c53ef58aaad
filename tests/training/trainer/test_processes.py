"""Losses and gradients of two processes, which must be those of one process with the lists of both.

The losses of the language model and of the retriever are compared in whole trainings, see test_several_processes.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rerank_training.trainer.checkpoint import gather_weights
from rerank_training.trainer.command import LostProcess, end_process_group, report_lost_process, run_training
from rerank_training.trainer.losses import (
    RANK_LOSSES,
    ranknet,
    stepwise_kl,
    stepwise_listmle,
)
from rerank_training.trainer.position_bias import inverse_propensity_loss
from rerank_training.trainer.processes import (
    gather_rows,
    is_main_process,
    mean_of_all_processes,
    over_all_processes,
    process_count,
)
from torch import Tensor, distributed, multiprocessing, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM

from rerank.commands.run import console
from tests.causal_lms import write_causal_lm
from tests.small_tokenizers import uncased

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


WEIGHTS = torch.tensor([0.5, 1.0, 2.0, 1.0, 1.0])
LOSSES = {name: over_all_processes(loss) for name, loss in RANK_LOSSES.items()} | {
    "inverse propensity": over_all_processes(inverse_propensity_loss(ranknet, WEIGHTS)),
    "stepwise listmle": stepwise(stepwise_listmle),
    "stepwise kl": stepwise(stepwise_kl),
}


def sharded_scores(model: Any, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scores of two windows, logits of the tokens 3 to 6, with their relevance and mask."""
    ids = torch.arange(8).reshape(2, 4) + 5 * rank
    scores = model(input_ids=ids).logits[:, -1, 3:7]
    return scores, torch.tensor([[0.0, 1, 2, 0], [3, 0, 0, rank]]), torch.ones(2, 4, dtype=torch.bool)


def divided_among_processes(folder: Path, rank: int) -> dict[str, object]:
    """The loss, a gradient and the weights of a model that FSDP divides, on the CPU."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    mesh = init_device_mesh("cpu", (2,))
    for part in (*model.model.layers, model):
        fully_shard(part, mesh=mesh)
    loss = over_all_processes(ranknet)(*sharded_scores(model, rank))
    loss.backward()
    gradient = model.model.layers[0].self_attn.q_proj.weight.grad.full_tensor()
    return {"loss": loss.detach(), "gradient": gradient, "weights": dict(gather_weights(model))}


def run_process(rank: int, folder: Path) -> None:
    """Stores the losses and gradients that a process finds."""
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    found: dict[str, object] = {"count": process_count(), "main": is_main_process()}
    found["rows"] = gather_rows(torch.full((rank + 1, 2 - rank), float(rank + 1)))
    found["nothing"] = mean_of_all_processes(torch.tensor(0.0), torch.tensor(0))
    for name, loss in LOSSES.items():
        scores, relevance, mask = lists_of(rank)
        value = loss(scores, relevance, mask)
        value.backward()
        found[name] = (value.detach(), scores.grad)
    found["divided"] = divided_among_processes(folder / "model", rank)
    torch.save(found, folder / f"{rank}.pt")
    end_process_group()


def spawn_twice_if_aborted(folder: Path) -> None:
    """Runs both processes, and once more where gloo aborted one.

    Seldom, gloo aborts a process whose peer closed a connection at the wrong moment (pytorch/gloo#514).
    """
    try:
        multiprocessing.spawn(run_process, (folder,), nprocs=2)
    except multiprocessing.ProcessExitedException as error:
        if error.signal_name != "SIGABRT":
            raise
        (folder / "store").unlink(missing_ok=True)
        multiprocessing.spawn(run_process, (folder,), nprocs=2)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes found."""
    folder = tmp_path_factory.mktemp("processes")
    write_causal_lm(folder / "model", "llama", uncased())
    spawn_twice_if_aborted(folder)
    return [torch.load(folder / f"{rank}.pt") | {"folder": folder} for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSES)
def test_two_processes_have_the_loss_and_the_gradient_of_one(found: list[dict[str, Any]], name: str) -> None:
    """The average of the gradients is that of one process, so each is twice its own part of it."""
    parts = [lists_of(rank) for rank in range(2)]
    scores, relevance, mask = (joined(*tensors) for tensors in zip(*parts, strict=True))
    value = LOSSES[name](scores, relevance, mask)
    value.backward()
    for (own, *_), process in zip(parts, found, strict=True):
        loss, gradient = process[name]
        torch.testing.assert_close(loss, value.detach())
        torch.testing.assert_close(gradient, 2 * own.grad)
        assert gradient.abs().max() > 1e-3


@pytest.mark.slow
def test_model_that_is_divided_among_processes_has_the_loss_and_the_gradient_of_one(
    found: list[dict[str, Any]],
) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(found[0]["folder"] / "model", dtype=torch.float32)
    parts = [sharded_scores(model, rank) for rank in range(2)]
    loss = ranknet(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))
    loss.backward()
    expected = model.model.layers[0].self_attn.q_proj.weight.grad
    assert expected.abs().max() > 1e-6
    for process in found:
        torch.testing.assert_close(process["divided"]["loss"], loss.detach())
        torch.testing.assert_close(process["divided"]["gradient"], expected)


@pytest.mark.slow
def test_main_process_gets_the_whole_weights_of_a_model_that_is_divided(found: list[dict[str, Any]]) -> None:
    base = AutoModelForCausalLM.from_pretrained(found[0]["folder"] / "model", dtype=torch.float32).state_dict()
    main, other = (process["divided"]["weights"] for process in found)
    assert main.keys() == base.keys()
    assert all(torch.equal(main[name], base[name]) for name in base)
    assert other == {}


@pytest.mark.slow
def test_first_process_is_the_main_one_and_rows_are_in_the_order_of_the_processes(
    found: list[dict[str, Any]],
) -> None:
    assert [(process["count"], process["main"]) for process in found] == [(2, True), (2, False)]
    for process in found:
        assert process["rows"].tolist() == [[1, 1], [2, 0], [2, 0]]
        assert process["nothing"] == 0


def test_single_process_is_the_main_one_and_gathers_nothing() -> None:
    scores, relevance, mask = lists_of(0)
    assert is_main_process()
    assert process_count() == 1
    assert gather_rows(scores).tolist() == scores.tolist()
    assert over_all_processes(ranknet)(scores, relevance, mask) == ranknet(scores, relevance, mask)


@pytest.mark.parametrize(("rank", "level", "is_quiet"), [("0", logging.INFO, False), ("1", logging.ERROR, True)])
def test_only_the_first_process_logs_and_shows_progress(
    monkeypatch: pytest.MonkeyPatch, rank: str, level: int, is_quiet: bool
) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setattr(console, "quiet", False)
    logging.getLogger().handlers.clear()  # those of pytest; the fixture of all tests restores them
    found: list[object] = []
    run_training(lambda: found.extend([logging.getLogger().level, console.quiet]))
    assert found == [level, is_quiet]


def test_lost_connection_names_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    gone = RuntimeError("[/src/third_party/gloo/gloo/transport/tcp/pair.cc:537] Connection reset by peer")
    for error in (gone, distributed.DistBackendError("NCCL timeout")):
        with pytest.raises(LostProcess, match=r"process 1 lost the connection .* give the same command again"):
            report_lost_process(_raise(error))
    with pytest.raises(RuntimeError, match="shapes differ"):
        report_lost_process(_raise(RuntimeError("shapes differ")))


def _raise(error: Exception) -> Callable[[], None]:
    def command() -> None:
        raise error

    return command
