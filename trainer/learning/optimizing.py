"""The optimiser of a stage and its schedule, which is a function of the step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from trainer.config import OptimSpec, StageSpec


def make_optimizer(
    parts: Mapping[str, Sequence[nn.Parameter]], *, stage: StageSpec, optim: OptimSpec
) -> torch.optim.AdamW:
    """AdamW with a group a trained part; all other parameters are frozen."""
    for name, parameters in parts.items():
        for parameter in parameters:
            parameter.requires_grad_(name in stage.train)
    groups: list[dict[str, Any]] = [
        {"params": list(parts[name]), "lr": stage.lr[name], "peak_lr": stage.lr[name], "name": name}
        for name in stage.train
    ]
    first, second = optim.betas
    return torch.optim.AdamW(groups, betas=(first, second), weight_decay=optim.weight_decay)


def rate_factor(step: int, *, num_steps: int, optim: OptimSpec) -> float:
    """What the peak rates are multiplied by in a step of a stage, in (0, 1].

    Linear warm-up, then a half cosine from 1 towards `final`, which the step after the last has.
    """
    warmup = round(optim.warmup if optim.warmup >= 1 else optim.warmup * num_steps)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    if optim.schedule == "constant":
        return 1.0
    share = (step - warmup) / max(1, num_steps - warmup)
    return optim.final + (1 - optim.final) * (1 + math.cos(math.pi * min(1.0, share))) / 2


def set_rates(optimizer: torch.optim.Optimizer, *, factor: float) -> None:
    """Give every group its peak rate times `factor`."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak_lr"] * factor


def trained_by(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """The parameters that an optimiser moves."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def names_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> set[str]:
    """Their names in a model."""
    trained = {id(parameter) for parameter in trained_by(optimizer)}
    return {name for name, parameter in model.named_parameters() if id(parameter) in trained}
