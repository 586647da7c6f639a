"""Keep the encoders of one run for the next one in the same process: loading them takes seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from encoders import Runtime
from pipeline.encoding import StreamEncoders, load_encoders
from schemas.recipe import Recipe

_KEPT: dict[tuple[str, str, Runtime], StreamEncoders] = {}


def encoders_of(
    recipe: Recipe, *, stamps: Mapping[str, Mapping[str, Any]], runtime: Runtime, keep: bool
) -> StreamEncoders:
    """The encoders of a recipe, those of the run before if they are the same and were kept.

    At most one set is kept. Errors as of `load_encoders`.
    """
    key = (recipe.fingerprint(stamps), repr(recipe.settings()), runtime)
    if keep and key in _KEPT:
        return _KEPT[key]
    _KEPT.clear()
    encoders = load_encoders(recipe, stamps=stamps, runtime=runtime)
    if keep:
        _KEPT[key] = encoders
    return encoders
