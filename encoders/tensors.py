"""Read tensors from published files, and load them into a module key for key. Never unpickles."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from encoders.weights import Weights
from schemas.errors import WeightsError

if TYPE_CHECKING:
    import torch

Tensors = dict[str, "torch.Tensor"]
WRAPPERS = ("model", "module", "state_dict")
"""Keys under which training code wraps a model's tensors."""
MAX_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What became of every key of a file."""

    loaded: tuple[str, ...]
    """Keys of the module; all of them."""
    ignored: dict[str, int]
    """Family of keys that are known and not needed -> how many."""
    num_parameters: int
    """Values that were loaded."""
    note: str = ""
    """What was changed on the way, such as an interpolation."""


def read_tensors(weights: Weights) -> Tensors:
    """All tensors of the files, unwrapped, on the CPU.

    safetensors, or what torch.save wrote, read with weights_only. WeightsError: damaged, or it
    holds other things than tensors.
    """
    tensors: Tensors = {}
    for path in weights.paths:
        found = _read_file(path)
        twice = found.keys() & tensors.keys()
        if twice:
            raise WeightsError(f"{path}: {min(twice)} is also in another part")
        tensors |= found
    return tensors


def load_strictly(
    module: torch.nn.Module,
    tensors: Mapping[str, torch.Tensor],
    *,
    source: str,
    ignored: Iterable[str] = (),
    note: str = "",
) -> LoadReport:
    """Put tensors into a module, which may be on the device `meta`.

    Every key of the module must be there in its shape, and every other key must belong to one of
    the `ignored` families: a name that it is, or begins with and a dot. WeightsError, with keys.
    """
    import torch

    expected = module.state_dict()
    families = sorted(ignored, key=len, reverse=True)
    counts: dict[str, int] = {}
    unknown: list[str] = []
    for key in tensors.keys() - expected.keys():
        family = next((f for f in families if key == f or key.startswith(f + ".")), None)
        if family is None:
            unknown.append(key)
        else:
            counts[family] = counts.get(family, 0) + 1
    missing = sorted(expected.keys() - tensors.keys())
    wrong = [
        f"{key} is {tuple(tensors[key].shape)}, expected {tuple(value.shape)}"
        for key, value in expected.items()
        if key in tensors and tensors[key].shape != value.shape
    ]
    for what, keys in (("missing", missing), ("unknown", sorted(unknown)), ("wrong", wrong)):
        if keys:
            more = f" and {len(keys) - MAX_SHOWN} more" if len(keys) > MAX_SHOWN else ""
            shown = ", ".join(keys[:MAX_SHOWN])
            raise WeightsError(
                f"{source}: not the weights of this model: {what}: {shown}{more}",
                hint="see docs/encoders.md for the files that are known",
            )
    needed = {
        key: tensors[key].to(torch.float32) if value.is_floating_point() else tensors[key]
        for key, value in expected.items()
    }
    module.load_state_dict(needed, strict=True, assign=True)
    return LoadReport(
        loaded=tuple(needed),
        ignored=dict(sorted(counts.items())),
        num_parameters=sum(value.numel() for value in needed.values()),
        note=note,
    )


def keep_prefix(tensors: Mapping[str, torch.Tensor], prefix: str) -> Tensors:
    """Those whose keys begin with the prefix, without it; all of them where none does."""
    kept = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
    return kept or dict(tensors)


def _read_file(path: Path) -> Tensors:
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    import torch

    try:
        value = torch.load(path, map_location="cpu", weights_only=True, mmap=_is_zip(path))
    except pickle.UnpicklingError as error:
        raise WeightsError(
            f"{path}: holds more than tensors, and unpickling that could run any code:"
            f" {_first_line(error)}",
            hint="take the safetensors of the same model, or let whoever you trust convert it",
        ) from error
    except (OSError, RuntimeError, ValueError, EOFError, KeyError, TypeError) as error:
        raise WeightsError(f"{path}: not a file of weights: {_first_line(error)}") from error
    return _unwrap(value, path)


def _read_safetensors(path: Path) -> Tensors:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return dict(load_file(path))
    except (SafetensorError, OSError, ValueError) as error:
        raise WeightsError(f"{path}: not a safetensors file: {_first_line(error)}") from error


def _unwrap(value: Any, path: Path) -> Tensors:
    import torch

    while isinstance(value, dict):
        inner = next((value[name] for name in WRAPPERS if isinstance(value.get(name), dict)), None)
        if inner is None:
            break
        value = inner
    tensors = (
        {key: one for key, one in value.items() if isinstance(one, torch.Tensor)}
        if isinstance(value, dict)
        else {}
    )
    if not tensors:
        raise WeightsError(f"{path}: holds no tensors by name")
    while all(key.startswith("module.") for key in tensors):
        tensors = {key.removeprefix("module."): one for key, one in tensors.items()}
    return tensors


def _is_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"PK"


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
