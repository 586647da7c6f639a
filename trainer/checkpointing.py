"""Checkpoints: the trained parts and their optimiser, on any number of ranks.

    RUN/step-00001200/dcp/...      torch.distributed.checkpoint: trained parameters, optimiser
    RUN/step-00001200/state.json   step, stage, seed, fingerprints, config
    RUN/step-00001200/COMPLETE     last; a folder without it is no checkpoint

Frozen parameters are not stored: they come from the language model's own folder.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from schemas.errors import ModelDamaged

COMPLETE = "COMPLETE"
STATE = "state.json"
_NAME = re.compile(r"step-(\d{8})")


def checkpoint_folder(run: Path, *, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return run / f"step-{step:08d}"


def list_checkpoints(run: Path) -> list[Path]:
    """Complete checkpoints, the oldest first."""
    found = [path for path in run.glob("step-*") if _NAME.fullmatch(path.name)]
    return sorted(path for path in found if (path / COMPLETE).is_file())


def read_state(folder: Path) -> dict[str, Any]:
    """state.json of a checkpoint. ModelDamaged: there is none that can be read."""
    path = folder / STATE
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(state, dict):
            raise ValueError("not an object")
    except (OSError, ValueError) as error:
        raise ModelDamaged(
            f"{path}: cannot be read: {error}",
            hint="delete this checkpoint; the one before is used",
        ) from error
    return state


def save_checkpoint(
    run: Path,
    *,
    step: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    trained: set[str],
    state: dict[str, Any],
    keep: int,
    is_first_rank: bool,
) -> Path:
    """Write a checkpoint; `trained` are the names of the parameters that belong into it.

    All ranks call it. Older ones than the newest `keep` are deleted.
    """
    folder = checkpoint_folder(run, step=step)
    writing = folder.with_name(f"{folder.name}.writing")
    if is_first_rank:
        shutil.rmtree(writing, ignore_errors=True)
        writing.mkdir(parents=True)
    barrier()
    state_dict_saver.save(
        _tensors(model, optimizer, trained), checkpoint_id=writing / "dcp", no_dist=alone()
    )
    if is_first_rank:
        (writing / STATE).write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
        (writing / COMPLETE).touch()
        shutil.rmtree(folder, ignore_errors=True)
        writing.rename(folder)
        for old in list_checkpoints(run)[:-keep]:
            shutil.rmtree(old)
    barrier()
    return folder


def load_checkpoint(
    folder: Path,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    trained: set[str],
) -> None:
    """Put a checkpoint into the model, and into the optimiser of the same stage.

    ModelDamaged: a file is missing, or its tensors are others than the model's.
    """
    tensors = _tensors(model, optimizer, trained)
    try:
        state_dict_loader.load(tensors, checkpoint_id=folder / "dcp", no_dist=alone())
    except (OSError, KeyError, ValueError, RuntimeError, CheckpointException) as error:
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelDamaged(f"{folder}: cannot be loaded: {first_line}") from error
    set_model_state_dict(model, tensors["model"], options=StateDictOptions(strict=False))
    if optimizer is not None:
        set_optimizer_state_dict(model, optimizer, optim_state_dict=tensors["optimizer"])


def _tensors(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, trained: set[str]
) -> dict[str, Any]:
    state = get_model_state_dict(model)
    tensors: dict[str, Any] = {"model": {name: state[name] for name in sorted(trained)}}
    if optimizer is not None:
        tensors["optimizer"] = get_optimizer_state_dict(model, optimizer)
    return tensors


def alone() -> bool:
    """Whether there is one rank only, without a process group."""
    return not torch.distributed.is_initialized()


def barrier() -> None:
    """Wait for all ranks."""
    if not alone():
        torch.distributed.barrier()
