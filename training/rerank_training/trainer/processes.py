"""Losses over the lists of all training processes, so that several processes train as one process with all lists would.

Processes average their gradients. The average is the gradient of all lists only if each process contributes its share
of one loss over all lists, which these functions compute. In a single process they change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.nn.functional import pad


def process_count() -> int:
    """Number of training processes."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def is_main_process() -> bool:
    """True in the process that writes files and reports."""
    return not distributed.is_initialized() or distributed.get_rank() == 0


def is_lost_process(error: BaseException) -> bool:
    """True for torch's exceptions when another process has ended: DistError with NCCL, a RuntimeError with gloo."""
    return isinstance(error, distributed.DistError) or (isinstance(error, RuntimeError) and "/gloo/" in str(error))


def wait_for_all_processes() -> None:
    """Returns when every process has called it."""
    if distributed.is_initialized():
        distributed.barrier()


def gather_tensors(local: Tensor) -> list[Tensor]:
    """The tensors that all processes pass to this function, by rank. Their sizes may differ.

    The gradient flows into the tensor of this process only. It is multiplied by the number of processes, because the
    processes average their gradients afterwards.
    """
    if (count := process_count()) == 1:
        return [local]
    received: list[Any] = [None] * count
    distributed.all_gather_object(received, local.detach().cpu())
    found = [tensor.to(local.device) for tensor in received]
    if local.requires_grad:
        found[distributed.get_rank()] = local + (count - 1) * (local - local.detach())
    return found


def gather_rows(local: Tensor) -> Tensor:
    """The rows of all processes in one tensor, by rank; all other dimensions are padded with 0 to the largest size."""
    tensors = gather_tensors(local)
    sizes = torch.tensor([tensor.shape[1:] for tensor in tensors]).amax(dim=0).tolist()
    return torch.cat([_padded(tensor, [len(tensor), *sizes]) for tensor in tensors])


def over_all_processes(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The loss over the lists of all processes, for a loss whose arguments are tensors with one row per list."""
    return lambda *tensors: loss(*map(gather_rows, tensors))


def mean_of_all_processes(total: Tensor, count: Tensor) -> Tensor:
    """The share of this process in a mean over all processes; the average of the shares is that mean.

    Args:
        total: sum of the values of this process.
        count: number of its values. If all processes have 0, the mean is 0.
    """
    return total * process_count() / sum_of_all_processes(count).clamp(min=1)


def sum_of_all_processes(counts: Tensor) -> Tensor:
    """The element-wise sum of the counts of all processes."""
    if process_count() > 1:
        counts = counts.clone()
        distributed.all_reduce(counts)
    return counts


def gather_weights(model: nn.Module) -> None:
    """Gathers the weights of a model that FSDP has divided on the CPU of the main process, which saves them.

    All processes must call this function after the last step.
    """
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = cast(Mapping[str, Tensor], get_model_state_dict(model, options=options))
    for name, tensor in weights.items():
        owner, _, attribute = name.rpartition(".")
        module = model.get_submodule(owner)
        is_parameter = attribute in module._parameters
        setattr(module, attribute, nn.Parameter(tensor, requires_grad=False) if is_parameter else tensor)


def _padded(tensor: Tensor, sizes: Sequence[int]) -> Tensor:
    """The tensor with zeros after its values, up to these sizes."""
    missing = [size - have for size, have in zip(sizes, tensor.shape, strict=True)]
    return pad(tensor, [number for size in reversed(missing) for number in (0, size)])
