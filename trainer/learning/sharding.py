"""Sharding: one model over several ranks, by FSDP2, or copies of it whose gradients are averaged.

With FSDP2 a rank holds its share of every parameter, gradient and moment, and a group is gathered
when it is used: each layer of the language model, the connector, and what is left.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from schemas.errors import ConfigError
from trainer.config import ParallelSpec
from trainer.learning.distributed import Ranks
from trainer.model.video_lm import VideoLM


def is_sharded(spec: ParallelSpec, *, world: int) -> bool:
    """Whether parameters are dealt to ranks. ConfigError: there is only one, and they must be."""
    if spec.fsdp == "on" and world == 1:
        raise ConfigError(
            'parallel.fsdp = "on" needs more ranks than one',
            hint="start it with: torchrun --nproc-per-node N -m trainer train ...",
        )
    return spec.fsdp != "off" and world > 1


def shard(model: VideoLM, *, ranks: Ranks, dtype: torch.dtype) -> None:
    """Deal the parameters of a model to the ranks, in place.

    They must be the same on all ranks. A group is computed in `dtype`; gradients are summed in
    float32.
    """
    # Tokens of clips are a view, into which nobody writes.
    warnings.filterwarnings("ignore", message=r"FSDP2-wrapped module \(FSDPConnector\) returned")
    mesh = init_device_mesh(torch.device(ranks.device).type, (ranks.world,))
    policy = MixedPrecisionPolicy()
    if dtype != torch.float32:
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    with warnings.catch_warnings():
        # peft gives its layers a hook of state dicts, which FSDP has no need of.
        warnings.filterwarnings("ignore", message=".*hook", category=UserWarning)
        for layer in layers_of(model.lm):
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(model.connector, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)


def layers_of(language_model: nn.Module) -> list[nn.Module]:
    """The layers of a language model of transformers, with adapters or without."""
    lists = [one for one in language_model.modules() if isinstance(one, nn.ModuleList)]
    return list(max(lists, key=lambda one: sum(p.numel() for p in one.parameters()), default=[]))


def begin_stage(model: nn.Module) -> None:
    """Let the groups know that other parameters are trained from now on."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.unshard()
            module.reshard()


def set_last(model: nn.Module, *, is_last: bool) -> None:
    """Say whether the next backward is a step's last, after which gradients are summed."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(is_last)
        model.set_is_last_backward(is_last)


def average_gradients(parameters: Iterable[nn.Parameter], *, ranks: Ranks) -> None:
    """Of copies: the mean over the ranks, in one message for each dtype."""
    by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
    for parameter in parameters:
        assert parameter.grad is not None
        by_dtype.setdefault(parameter.grad.dtype, []).append(parameter.grad)
    for gradients in by_dtype.values():
        flat = torch.cat([one.flatten() for one in gradients])
        distributed.all_reduce(flat)
        flat /= ranks.world
        parts = torch.split(flat, [one.numel() for one in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))


def full(value: Any) -> Any:
    """A tensor as it is on one rank, of one that may be dealt to several."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value
