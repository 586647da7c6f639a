"""Checkpoints: the trained parts and their optimiser, on any number of ranks.

    RUN/step-00001200/dcp/...      torch.distributed.checkpoint: trained parameters, optimiser
    RUN/step-00001200/state.json   see RunState
    RUN/step-00001200/COMPLETE     last: what the files are; a folder without it is no checkpoint

Frozen parameters are not stored: they come from the language model's own folder.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException

from schemas.errors import ModelDamaged
from trainer.learning.distributed import ALONE, Ranks
from trainer.learning.optimizing import trained_by
from trainer.learning.run_folder import COMPLETE, written_into
from trainer.learning.tensor_reader import TensorReader

STATE = "state.json"
TENSORS = "dcp"
_NAME = re.compile(r"step-(\d{8,})")
_WRITER = ("PytorchStreamWriter", "inline_container")
_MOMENTS = ("exp_avg", "exp_avg_sq")


def checkpoint_folder(run: Path, *, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return run / f"step-{step:08d}"


def list_checkpoints(run: Path) -> list[Path]:
    """Complete checkpoints, the oldest first."""
    found = [
        (int(match[1]), path)
        for path in run.glob("step-*")
        if (match := _NAME.fullmatch(path.name)) and (path / COMPLETE).is_file()
    ]
    return [path for _, path in sorted(found)]


def read_state(folder: Path) -> dict[str, Any]:
    """state.json of a checkpoint. ModelDamaged: files are missing, or are not what was written."""
    try:
        sizes = json.loads((folder / COMPLETE).read_text(encoding="utf-8"))
        for name, size in sizes.items():
            if (folder / name).stat().st_size != size:
                raise ValueError(f"{name} has not the {size} bytes that were written")
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        if not isinstance(state, dict):
            raise ValueError(f"{STATE} is not an object")
    except (OSError, ValueError, AttributeError) as error:
        raise ModelDamaged(
            f"{folder}: the checkpoint is damaged: {error}",
            hint="delete this folder, and the checkpoint before it is used",
        ) from error
    return state


def save_checkpoint(
    run: Path,
    *,
    step: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    trained: set[str],
    state: Mapping[str, Any],
    keep: int,
    ranks: Ranks,
) -> Path:
    """Write a checkpoint; `trained` are the names of the parameters that belong into it.

    All ranks call it. It has its name only when it is complete and on the disk. Older ones than the
    newest `keep` are deleted. StorageError: the place is read-only or full.
    """
    folder = checkpoint_folder(run, step=step)
    writing = folder.with_name(f"{folder.name}.writing")
    tensors = {**_parameters(model, trained), **_moments(model, optimizer)}
    with written_into(run, scratch=writing), _told_by_torch():
        if ranks.is_first:
            for left in run.glob("step-*.writing"):
                _remove(left)
            writing.mkdir(parents=True)
        ranks.wait()
        with _alone_on_purpose():
            state_dict_saver.save(
                tensors, checkpoint_id=writing / TENSORS, no_dist=ranks.world == 1
            )
        if ranks.is_first:
            _complete(writing, state)
            if folder.exists():  # not complete, or this step would not have been done again
                _remove(folder)
            writing.rename(folder)
            _to_disk(run)
            for old in list_checkpoints(run)[:-keep]:
                (old / COMPLETE).unlink()
                shutil.rmtree(old)
    ranks.wait()
    return folder


def _complete(writing: Path, state: Mapping[str, Any]) -> None:
    (writing / STATE).write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
    sizes = {
        path.relative_to(writing).as_posix(): path.stat().st_size
        for path in sorted(writing.rglob("*"))
        if path.is_file()
    }
    (writing / COMPLETE).write_text(json.dumps(sizes, indent=1) + "\n", encoding="utf-8")
    for path in (writing / STATE, writing / COMPLETE, writing / TENSORS, writing):
        _to_disk(path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def load_checkpoint(
    folder: Path,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    trained: set[str],
    ranks: Ranks = ALONE,
) -> None:
    """Put a checkpoint into the model, and into the optimiser of the same stage.

    All ranks call it, whose number need not be that of those which wrote it. ModelDamaged: a file
    is missing, or its tensors are others than the model's.
    """
    tensors = _parameters(model, trained)
    if optimizer is not None:
        _add_moments(optimizer)
        tensors |= _moments(model, optimizer)
    try:
        with _alone_on_purpose():
            reader = TensorReader(folder / TENSORS)
            state_dict_loader.load(tensors, storage_reader=reader, no_dist=ranks.world == 1)
    except (OSError, KeyError, ValueError, RuntimeError, CheckpointException) as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise ModelDamaged(
            f"{folder}: cannot be loaded: {lines[-1] if lines else type(error).__name__}",
            hint="delete this folder, and the checkpoint before it is used",
        ) from error


def _parameters(model: nn.Module, trained: set[str]) -> dict[str, Tensor]:
    # Loading writes into these.
    return {
        f"model.{name}": parameter.detach()
        for name, parameter in model.named_parameters()
        if name in trained
    }


def _moments(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"optimizer.{name}.{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def _add_moments(optimizer: torch.optim.Optimizer) -> None:
    # As AdamW does in its first step.
    for parameter in trained_by(optimizer):
        state: dict[str, Tensor] = {key: torch.zeros_like(parameter) for key in _MOMENTS}
        optimizer.state[parameter] = {"step": torch.tensor(0.0), **state}


@contextlib.contextmanager
def _alone_on_purpose() -> Iterator[None]:
    # torch remarks on it each time.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


@contextlib.contextmanager
def _told_by_torch() -> Iterator[None]:
    """What the system said to torch, as an OSError again."""
    try:
        yield
    except CheckpointException as error:  # is no Exception, and nobody would catch it
        for cause, _ in error.failures.values():
            if _is_of_system(cause):
                raise _as_os_error(cause) from error
        raise RuntimeError(str(error)) from error
    except RuntimeError as error:
        if _is_of_system(error):
            raise _as_os_error(error) from error
        raise


def _is_of_system(error: BaseException) -> bool:
    return isinstance(error, OSError) or any(name in str(error) for name in _WRITER)


def _as_os_error(error: BaseException) -> OSError:
    # torch says only that it failed to write, which it does when a disk is full.
    return error if isinstance(error, OSError) else OSError(errno.ENOSPC, str(error))


def _to_disk(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
