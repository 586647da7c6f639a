"""Video files to a cache, and reading it. `from pipeline import open_cache`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.cache import FeatureCache, open_cache
    from pipeline.sources import read_sources
    from pipeline.verifying import Finding, verify_cache

_MODULES = {
    "FeatureCache": "pipeline.cache",
    "Finding": "pipeline.verifying",
    "open_cache": "pipeline.cache",
    "read_sources": "pipeline.sources",
    "verify_cache": "pipeline.verifying",
}

__all__ = ["FeatureCache", "Finding", "open_cache", "read_sources", "verify_cache"]


def __getattr__(name: str) -> Any:
    # Loaded when used: the decoder process and `pipeline --help` import this package too.
    if name not in _MODULES:
        raise AttributeError(f"module 'pipeline' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
