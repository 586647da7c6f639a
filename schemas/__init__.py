"""The nouns: dataclasses, the file format, the errors. No torch, Beam, Arrow or video library."""

from schemas.cache_info import CacheInfo
from schemas.errors import (
    CacheDamaged,
    CacheError,
    CacheIncomplete,
    FingerprintMismatch,
    RecipeError,
    ReelcacheError,
    SourceError,
    StorageError,
    TooManyRejects,
    UsageError,
    VideoError,
)
from schemas.plan import Piece, ShardSpec
from schemas.recipe import Recipe, list_recipes
from schemas.reject import REASONS, Reject
from schemas.sample import Sample
from schemas.sidecar import Sidecar
from schemas.timeline import Grid, displayed_indices
from schemas.video import Probe, Source

__all__ = [
    "REASONS",
    "CacheDamaged",
    "CacheError",
    "CacheIncomplete",
    "CacheInfo",
    "FingerprintMismatch",
    "Grid",
    "Piece",
    "Probe",
    "Recipe",
    "RecipeError",
    "ReelcacheError",
    "Reject",
    "Sample",
    "ShardSpec",
    "Sidecar",
    "Source",
    "SourceError",
    "StorageError",
    "TooManyRejects",
    "UsageError",
    "VideoError",
    "displayed_indices",
    "list_recipes",
]
