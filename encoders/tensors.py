"""Read tensors from published files, and load them into a module key for key. Never unpickles."""

from __future__ import annotations

import pickle
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError

from encoders.weights import Weights
from schemas.errors import WeightsError

if TYPE_CHECKING:
    import torch

Tensors = dict[str, "torch.Tensor"]
WRAPPERS = ("model", "module", "state_dict")
"""Keys under which training code wraps a model's tensors."""
MAX_WRAPPERS = 4
"""One in the other; a pickle may hold itself."""
MAX_SHOWN = 5
ALIGNMENT = 64
"""Bytes. Products of matrices that begin elsewhere may be rounded differently, so that the same
weights in two files would give two results."""
_FORBIDDEN = re.compile(r"(?:GLOBAL|unrecognized function|but got(?: <class)?) '?([\w.]+)")
"""How torch names what weights_only does not unpickle."""


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
    """All tensors of the files, unwrapped, on the CPU; mapped, not read, where the format can.

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
    while tensors and all(key.startswith("module.") for key in tensors):
        tensors = {key.removeprefix("module."): one for key, one in tensors.items()}
    return tensors


def load_strictly(
    module: torch.nn.Module,
    tensors: Mapping[str, torch.Tensor],
    *,
    source: str,
    ignored: Iterable[str] = (),
    dropped: Mapping[str, int] | None = None,
    note: str = "",
) -> LoadReport:
    """Put tensors into a module, which may be on the device `meta`; floating ones as float32.

    Keys and shapes as of `match_keys`, whose errors it raises. `dropped` are families that were
    taken out before, for the report.
    """
    expected = module.state_dict()
    counts = match_keys(expected, tensors, source=source, ignored=ignored)
    needed = {key: _as_parameter(tensors[key]) for key in expected}
    module.load_state_dict(needed, strict=True, assign=True)
    return LoadReport(
        loaded=tuple(needed),
        ignored=dict(sorted((Counter(counts) + Counter(dropped or {})).items())),
        num_parameters=sum(value.numel() for value in needed.values()),
        note=note,
    )


def match_keys(
    expected: Mapping[str, torch.Tensor],
    tensors: Mapping[str, torch.Tensor],
    *,
    source: str,
    ignored: Iterable[str] = (),
) -> dict[str, int]:
    """Family of the keys that are known and not needed -> how many.

    Every key that is expected must be there in its shape and kind of number, and every other one
    must belong to one of the `ignored` families: a name that it is, or begins with and a dot.
    WeightsError, with keys.
    """
    families = sorted(ignored, key=len, reverse=True)
    counts: Counter[str] = Counter()
    unknown: list[str] = []
    for key in tensors.keys() - expected.keys():
        family = next((f for f in families if key == f or key.startswith(f + ".")), None)
        if family is None:
            unknown.append(key)
        else:
            counts[family] += 1
    missing = sorted(expected.keys() - tensors.keys())
    wrong = [
        f"{key} is {_describe(tensors[key])}, expected {_describe(value)}"
        for key, value in expected.items()
        if key in tensors and not _fits(tensors[key], value)
    ]
    for what, keys in (("missing", missing), ("unknown", sorted(unknown)), ("wrong", wrong)):
        if keys:
            more = f" and {len(keys) - MAX_SHOWN} more" if len(keys) > MAX_SHOWN else ""
            shown = ", ".join(keys[:MAX_SHOWN])
            raise WeightsError(
                f"{source}: not the weights of this model: {what}: {shown}{more}",
                hint="see docs/encoders.md for the files that are known",
            )
    return dict(sorted(counts.items()))


def keep_prefix(tensors: Mapping[str, torch.Tensor], prefix: str) -> Tensors:
    """Those whose keys begin with the prefix, without it; all of them where none does."""
    kept = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
    return kept or dict(tensors)


def as_float16_by_torch(features: npt.NDArray[np.float32]) -> npt.NDArray[np.float16]:
    """As `schemas.compact.as_float16`, to the bit but for what is no number, and 3 x as fast."""
    import torch

    values: npt.NDArray[np.float16] = torch.from_numpy(features).to(torch.float16).numpy()
    return values


def count_families(keys: Iterable[str]) -> dict[str, int]:
    """First name of a key, before its dot -> how many keys have it."""
    return dict(sorted(Counter(key.partition(".")[0] for key in keys).items()))


def _as_parameter(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    # Always a copy: what is mapped changes with its file, and one may be written over another
    # while the model is at work. torch allocates aligned.
    dtype = torch.float32 if tensor.is_floating_point() else tensor.dtype
    return tensor.to(dtype, copy=True, memory_format=torch.contiguous_format)


def _fits(tensor: torch.Tensor, expected: torch.Tensor) -> bool:
    import torch

    same_kind = tensor.is_floating_point() == expected.is_floating_point()
    return same_kind and tensor.shape == expected.shape and tensor.layout == torch.strided


def _describe(tensor: torch.Tensor) -> str:
    kind = "" if tensor.is_floating_point() else f" {str(tensor.dtype).removeprefix('torch.')}"
    return f"{tuple(tensor.shape)}{kind}"


def _read_file(path: Path) -> Tensors:
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pickles by other versions
            value = torch.load(path, map_location="cpu", weights_only=True, mmap=_is_zip(path))
    except Exception as error:  # a damaged file may raise anything
        code = _named_code(error) if isinstance(error, pickle.UnpicklingError) else ""
        if not code:
            raise WeightsError(
                f"{path}: not a file of weights, or damaged: {_say(error)}",
                hint="fetch it again, and compare its sha256 with the published one",
            ) from error
        raise WeightsError(
            f"{path}: holds {code} beside tensors, and whoever unpickles such things may run"
            " any code",
            hint="take the safetensors of the same model, or let whoever you trust convert it",
        ) from error
    return _unwrap(value, path)


def _read_safetensors(path: Path) -> Tensors:
    from safetensors.torch import load_file

    try:
        tensors: Tensors = dict(load_file(path))
    except (SafetensorError, OSError, ValueError) as error:
        raise WeightsError(
            f"{path}: not a safetensors file, or damaged: {_say(error)}",
            hint="fetch it again, and compare its sha256 with the published one",
        ) from error
    if not tensors:
        raise WeightsError(f"{path}: holds no tensors by name")
    return tensors


def _unwrap(value: Any, path: Path) -> Tensors:
    import torch

    for _ in range(MAX_WRAPPERS):
        inside = value if isinstance(value, dict) else {}
        inner = next(
            (inside[name] for name in WRAPPERS if isinstance(inside.get(name), dict)), None
        )
        value = inside if inner is None else inner
    tensors = {
        key: one
        for key, one in value.items()
        if isinstance(key, str) and isinstance(one, torch.Tensor)
    }
    if not tensors:
        raise WeightsError(f"{path}: holds no tensors by name")
    return tensors


def _named_code(error: pickle.UnpicklingError) -> str:
    found = _FORBIDDEN.search(str(error))
    return found[1] if found else ""


def _is_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"PK"


def _say(error: Exception) -> str:
    # Of a pickle that is none, torch says what helps nobody.
    lines = str(error).strip().splitlines()
    told = bool(lines) and isinstance(error, OSError | RuntimeError | SafetensorError)
    return lines[0] if told else "it is empty, cut off or of another kind"
