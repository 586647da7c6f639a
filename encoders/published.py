"""What published files say of themselves, read without torch and without their tensors."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from encoders.weights import Weights
from schemas.errors import WeightsError

MAX_HEADER_BYTES = 100_000_000
"""As the safetensors format allows; of other files no more is looked at either."""


def mentions(weights: Weights, text: str) -> bool:
    """Whether the name of any tensor contains `text`. WeightsError: not a file of weights.

    safetensors: the header (https://huggingface.co/docs/safetensors: 8 bytes of length, JSON).
    What torch.save wrote is searched for the text and never unpickled.
    """
    return any(_mentions(path, text) for path in weights.paths)


def config_beside(weights: Weights, name: str) -> tuple[Path, dict[str, Any]] | None:
    """The JSON file `name` in the folder of the weights, and its path. WeightsError: no JSON."""
    if weights.is_random:
        return None
    path = weights.paths[0].parent / name
    try:
        config = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise WeightsError(f"{path}: not a configuration in JSON: {error}") from error
    if not isinstance(config, dict):
        raise WeightsError(f"{path}: not a configuration: no JSON object")
    return path, config


def check_fields(
    path: Path,
    found: Mapping[str, Any],
    expected: Mapping[str, tuple[Any, ...]],
    *,
    encoder: str,
    within: str = "",
) -> None:
    """WeightsError: a field of a configuration has a value that is not among those expected.

    `within` is where the fields are in the file, for the message.
    """
    for name, values in expected.items():
        if found.get(name) not in values:
            field = f"{within}.{name}" if within else name
            raise WeightsError(
                f"{path}: {field} = {found.get(name)!r}, and {encoder} has"
                f" {' or '.join(repr(value) for value in values)}",
                hint="these are the weights of another model; see: pipeline encoders list",
            )


def _mentions(path: Path, text: str) -> bool:
    try:
        if path.suffix == ".safetensors":
            return any(text in name for name in _safetensors_names(path))
        if zipfile.is_zipfile(path):
            return text.encode() in _pickle_of_zip(path)
        with path.open("rb") as file:
            return text.encode() in file.read(MAX_HEADER_BYTES)
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error.strerror}") from error


def _safetensors_names(path: Path) -> list[str]:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= MAX_HEADER_BYTES:
            raise WeightsError(f"{path}: not a safetensors file: its header has {length} bytes")
        if length > size - 8:
            raise WeightsError(
                f"{path}: not a safetensors file, or cut off: {size} bytes",
                hint="fetch it again, and compare its sha256 with the published one",
            )
        try:
            header = json.loads(file.read(length))
        except ValueError as error:
            raise WeightsError(f"{path}: not a safetensors file: {error}") from error
    if not isinstance(header, dict):
        raise WeightsError(f"{path}: not a safetensors file: its header is no JSON object")
    return [name for name in header if name != "__metadata__"]


def _pickle_of_zip(path: Path) -> bytes:
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith("data.pkl")]
            if not names:
                return b""
            with archive.open(names[0]) as file:
                return file.read(MAX_HEADER_BYTES)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise WeightsError(f"{path}: not a file of weights: {error}") from error
