"""Import transformers with nothing of vision."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def without_torchvision() -> Iterator[None]:
    """Let transformers be imported as where there is no torchvision, which it would import.

    It takes a second and a quarter of the memory, and neither language nor sound needs it.
    """
    absent = "torchvision" not in sys.modules
    if absent:
        sys.modules["torchvision"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if absent:
            del sys.modules["torchvision"]
