"""Where pictures and sentences meet: encoders with a text tower, and what they are asked for.

An encoder's module takes part by two functions: `load_ending(settings, *, runtime) -> Ending` and
`load_text(settings, *, tokenizer, runtime) -> TextEncoder`. Both read the file that `settings` name
as the weights of the encoder itself.

Shapes: N frames, h, w cells, D channels of the cached features, E of the text space.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from encoders.base import Runtime
from encoders.registry import encoder_module, list_encoders
from schemas.errors import UsageError
from schemas.recipe import EncoderSettings


class Ending(Protocol):
    """What comes after the layer whose features are cached."""

    def finish(self, features_NhwD: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """(N, h, w, D) -> (N, E) of length 1: what the whole tower says of each frame.

        On a grid that was pooled it is near to that, not equal. DeviceError.
        """
        ...


class TextEncoder(Protocol):
    """The text tower."""

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """(len(texts), E) of length 1, near to those of pictures that they describe."""
        ...


def knows_text(encoder: str) -> bool:
    """Whether an encoder has a text tower. RecipeError: no such encoder."""
    return hasattr(encoder_module(encoder), "load_text")


def list_text_encoders() -> list[str]:
    """Names of the encoders with a text tower, sorted."""
    return [name for name in list_encoders() if knows_text(name)]


def load_ending(settings: EncoderSettings, *, runtime: Runtime | None = None) -> Ending:
    """What is missing between the cached layer and the text space.

    UsageError: the encoder has no text tower. WeightsError: no file is named, or it holds the
    blocks only. DeviceError.
    """
    ending: Ending = _module(settings).load_ending(settings, runtime=runtime or Runtime())
    return ending


def load_text(
    settings: EncoderSettings, *, tokenizer: Path | None = None, runtime: Runtime | None = None
) -> TextEncoder:
    """The text tower, with the tokenizer of a folder: that of the weights where none is named.

    UsageError: the encoder has no text tower, or there is no tokenizer. WeightsError: no file is
    named, or it holds the image tower only. DeviceError.
    """
    runtime = runtime or Runtime()
    text: TextEncoder = _module(settings).load_text(settings, tokenizer=tokenizer, runtime=runtime)
    return text


def _module(settings: EncoderSettings) -> Any:
    if not knows_text(settings.encoder):
        raise UsageError(f"the encoder {settings.encoder} knows no text, only those of SigLIP do")
    return encoder_module(settings.encoder)
