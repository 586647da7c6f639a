"""Errors, sorted by who must act.

    ReelcacheError             exit code   who acts
    |- UsageError                  2       you: a path, a key or an option is wrong
    |  |- RecipeError              2       you: a field of the recipe
    |  |- ConfigError              2       you: a field of a training run's file
    |  |- AnnotationError          2       you: a file of annotations, or rows without their video
    |  |- Diverged                 2       you: the loss is no number any more; a lower rate
    |  |- SourceError              2       you: the list of sources cannot be read
    |  |  `- NoSources             3       you: what was named holds no video
    |  |- WeightsError             2       you: a file of weights is missing or is another model's
    |  |- DeviceError              2       you: the GPU is not there or too small
    |  |- StorageError             2       you: the place cannot be written (read-only, full)
    |  |- CacheHeld                2       you: wait, another run is at work on the cache
    |  |- WorkerDied               2       you: fewer workers, or a machine with more memory
    |  `- EngineError              2       you: the engine refused or lost the job, its log says why
    |- TooManyRejects              3       you: the input, or the limit
    |  `- NothingUsable            3       you: the input
    |- CacheError                  4       the cache is damaged or incompatible
    |  |- CacheIncomplete          4       no cache.json: the run did not finish
    |  |- CacheDamaged             4       bytes on disk are not what was written
    |  |- ModelDamaged             4       a checkpoint or model folder is not what was written
    |  `- FingerprintMismatch      4       made by another recipe
    `- VideoError                  -       nobody: costs this video only, becomes a Reject

Everything else (TypeError, AssertionError, ...) is a bug and is never caught as one of these.
A message says what is wrong with the value and what was expected; `hint` says what to do.
"""

from __future__ import annotations

from typing import Any


class ReelcacheError(Exception):
    """Base of every error that a user may see; prints as one sentence and a hint."""

    exit_code = 70

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # Keyword-only constructors do not survive pickle by default, and every worker process
        # sends its errors as pickles.
        return (_rebuild, (type(self), dict(self.__dict__)))


def _rebuild(cls: type[ReelcacheError], state: dict[str, Any]) -> ReelcacheError:
    error = cls.__new__(cls)
    Exception.__init__(error, state["message"])
    error.__dict__.update(state)
    return error


class UsageError(ReelcacheError):
    """A path, key or option is wrong."""

    exit_code = 2


class RecipeError(UsageError):
    """A field of a recipe is unknown, of the wrong type or out of range."""


class ConfigError(UsageError):
    """A field of a training run's file is unknown, of the wrong type or out of range."""


class AnnotationError(UsageError):
    """Annotations cannot be read, or their videos or spans are not in the cache."""


class Diverged(UsageError):
    """The loss of a training run is no number any more."""


class SourceError(UsageError):
    """The list of sources cannot be read."""


class NoSources(SourceError):
    """What was named can be read and holds no video: an empty folder or list."""

    exit_code = 3


class WeightsError(UsageError):
    """An encoder's weights are missing, cannot be read, or are those of another model."""


class DeviceError(UsageError):
    """The device asked for is not there, or has too little memory for one clip."""


class StorageError(UsageError):
    """The cache's place cannot be read or written: missing, read-only or full."""


class CacheHeld(UsageError):
    """Another run is at work on the cache."""


class WorkerDied(UsageError):
    """A worker process ended without a word, as one does that the system kills for its memory."""


class EngineError(UsageError):
    """An engine refused the job, could not be reached, or ended it for reasons of its own."""


class TooManyRejects(ReelcacheError):
    """More sources were rejected than the limit allows, or none was usable."""

    exit_code = 3


class NothingUsable(TooManyRejects):
    """None of the sources of a run is usable."""


class CacheError(ReelcacheError):
    """The cache cannot be used as it is."""

    exit_code = 4


class CacheIncomplete(CacheError):
    """There is no cache.json: no run has finished here."""


class CacheDamaged(CacheError):
    """A file of the cache is missing or holds other bytes than were written."""


class ModelDamaged(CacheError):
    """A checkpoint or a model folder is incomplete, or is not what was written."""


class FingerprintMismatch(CacheError):
    """The cache was made by a recipe with another fingerprint."""


class VideoError(ReelcacheError):
    """One video cannot be used; becomes a row of the rejects and never stops a run.

    `reason` is one of `schemas.reject.REASONS`.
    """

    def __init__(self, reason: str, detail: str = "", *, hint: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason, hint=hint)
        self.reason = reason
        self.detail = detail
