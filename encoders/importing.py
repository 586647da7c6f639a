"""Import packages that are not everywhere; transformers with nothing of vision, and hushed."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from importlib import metadata

from schemas.errors import UsageError


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


def package_version(package: str, *, what: str, extra: str) -> str:
    """Of a package that `what`, such as `scenes are found by`, needs; it is not imported.

    UsageError: it is not installed; `extra` of this distribution asks for it.
    """
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError as error:
        raise UsageError(
            f"{what} the package {package}, which is not installed",
            hint=f"pip install 'reelcache[{extra}]'",
        ) from error


@contextlib.contextmanager
def told_if_broken(package: str, *, extra: str) -> Iterator[None]:
    """Within this context a package is imported. UsageError: it is there but cannot be."""
    try:
        yield
    except ImportError as error:
        raise UsageError(
            f"the package {package} cannot be imported: {error}",
            hint=f"pip install --force-reinstall 'reelcache[{extra}]'",
        ) from error
