"""Convert a published file of weights to safetensors, with only what features need.

An encoder's module takes part by a function `published_tensors(encoder, tensors, *, source)` that
gives (needed, ignored): the tensors that features of any layer need, under keys that its `load`
reads, in the dtypes of the file; and how many keys of each known family are left out. WeightsError:
any other key, a key that is missing, a wrong shape.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from encoders.registry import encoder_module
from encoders.tensors import ALIGNMENT, Tensors, read_tensors
from encoders.weights import Weights, file_sha256
from schemas.errors import StorageError, UsageError, WeightsError

if TYPE_CHECKING:
    import torch

ENDING = ".safetensors"
_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "uint8": "U8",
    "bool": "BOOL",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """What became of a published file."""

    encoder: str
    source: str
    source_sha256: str
    target: str
    target_sha256: str
    num_tensors: int
    num_parameters: int
    num_bytes: int
    ignored: dict[str, int]
    """Family of keys that were left out -> how many."""


def convert_weights(encoder: str, source: Path, target: Path) -> Conversion:
    """Write `target`, whole or not at all; the same bytes from the same source.

    The features of both files have the same bits. WeightsError: not the encoder's weights.
    UsageError: it has none, or `target` is there already. StorageError: it cannot be written.
    """
    published_tensors = getattr(encoder_module(encoder), "published_tensors", None)
    if published_tensors is None:
        raise UsageError(
            f"there is no conversion for {encoder}",
            hint="--weights takes published files as they are",
        )
    if target.suffix != ENDING:
        raise UsageError(f"{target}: the name must end in {ENDING}")
    if os.path.lexists(target):
        raise _refuse(target)
    source_sha256 = file_sha256(source)
    tensors = read_tensors(Weights(paths=(source,)))
    needed, ignored = published_tensors(encoder, tensors, source=str(source))
    metadata = {
        "encoder": encoder,
        "source_sha256": source_sha256,
        "ignored": json.dumps(ignored, sort_keys=True),
        "format": "pt",  # what other readers of safetensors ask for
    }
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            _write_safetensors(file, needed, metadata=metadata)
            file.flush()
            os.fsync(file.fileno())
        if file_sha256(source) != source_sha256:  # what is mapped is read late
            raise WeightsError(f"{source}: changed while it was read", hint="try again")
        _publish(temporary, target)
    except OSError as error:
        raise StorageError(f"{target}: cannot be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    return Conversion(
        encoder=encoder,
        source=str(source),
        source_sha256=source_sha256,
        target=str(target),
        target_sha256=file_sha256(target),
        num_tensors=len(needed),
        num_parameters=sum(tensor.numel() for tensor in needed.values()),
        num_bytes=target.stat().st_size,
        ignored=ignored,
    )


def _write_safetensors(file: BinaryIO, tensors: Tensors, *, metadata: Mapping[str, str]) -> None:
    # The library's own writer orders metadata at random, aligns nothing, and holds all in memory.
    header: dict[str, object] = {"__metadata__": dict(sorted(metadata.items()))}
    end = 0
    for key, tensor in sorted(tensors.items()):
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[key] = {
            "dtype": _dtype_name(key, tensor),
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    file.write(len(text).to_bytes(8, "little") + text)
    for _, tensor in sorted(tensors.items()):
        file.write(_bytes_of(tensor))


def _dtype_name(key: str, tensor: torch.Tensor) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise WeightsError(f"{key} is of {name}, which cannot be converted")
    return _DTYPES[name]


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    import torch

    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _publish(temporary: Path, target: Path) -> None:
    # A link is made only where nothing is, unlike a renaming; some file systems have none.
    try:
        os.link(temporary, target)
    except FileExistsError as error:
        raise _refuse(target) from error
    except OSError:
        if os.path.lexists(target):
            raise _refuse(target) from None
        temporary.replace(target)
    with contextlib.suppress(OSError):  # folders cannot be synced everywhere
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _refuse(target: Path) -> UsageError:
    return UsageError(f"{target} is there already", hint="give another name, or remove it first")
