"""Import transformers with nothing of vision, and let it speak only where libraries may."""

from __future__ import annotations

import contextlib
import logging
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


def hush_transformers() -> None:
    """Transformers has a log and bars of its own; who has silenced the root log wants neither."""
    from transformers.utils import logging as own_logging

    if logging.getLogger().level >= logging.CRITICAL:
        own_logging.set_verbosity_error()
        own_logging.disable_progress_bar()
