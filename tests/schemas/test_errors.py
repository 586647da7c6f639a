"""The tree of errors: who must act, exit codes, and pickles."""

import copy
import inspect
import pickle

import pytest

from schemas import errors
from schemas.errors import ReelcacheError, VideoError

TREE = {
    "UsageError": ("ReelcacheError", 2),
    "RecipeError": ("UsageError", 2),
    "SourceError": ("UsageError", 2),
    "NoSources": ("SourceError", 3),
    "ConfigError": ("UsageError", 2),
    "AnnotationError": ("UsageError", 2),
    "Diverged": ("UsageError", 2),
    "CacheHeld": ("UsageError", 2),
    "WorkerDied": ("UsageError", 2),
    "WeightsError": ("UsageError", 2),
    "DeviceError": ("UsageError", 2),
    "StorageError": ("UsageError", 2),
    "EngineError": ("UsageError", 2),
    "TooManyRejects": ("ReelcacheError", 3),
    "NothingUsable": ("TooManyRejects", 3),
    "CacheError": ("ReelcacheError", 4),
    "CacheIncomplete": ("CacheError", 4),
    "CacheDamaged": ("CacheError", 4),
    "ModelDamaged": ("CacheError", 4),
    "FingerprintMismatch": ("CacheError", 4),
    "VideoError": ("ReelcacheError", 70),
}
CLASSES = [
    cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, ReelcacheError)
]


def make(cls: type[ReelcacheError]) -> ReelcacheError:
    if issubclass(cls, VideoError):
        return cls("no_frames", "0 of 'ä' packets", hint="none")
    return cls("cache/ is 'ä'", hint="run again")


def test_the_tree_is_the_one_that_is_documented():
    found = {cls.__name__: (cls.__bases__[0].__name__, cls.exit_code) for cls in CLASSES}
    del found["ReelcacheError"]
    assert found == TREE
    for name, (_, code) in TREE.items():
        line = next(line for line in str(errors.__doc__).splitlines() if f" {name} " in line)
        assert str(code) in line or name == "VideoError"


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_an_error_survives_pickle(cls, protocol):
    error = make(cls)
    back = pickle.loads(pickle.dumps(error, protocol))
    assert type(back) is cls
    assert vars(back) == vars(error)
    assert (str(back), back.args) == (str(error), error.args)
    assert back.exit_code == error.exit_code


class KeywordError(ReelcacheError):
    """As a plug-in may define it."""

    def __init__(self, *, path: str) -> None:
        super().__init__(f"{path}: odd", hint="none")
        self.path = path


def test_an_error_whose_constructor_takes_keywords_only_survives_pickle():
    back = pickle.loads(pickle.dumps(KeywordError(path="a")))
    assert (type(back), str(back), back.hint, back.path) == (KeywordError, "a: odd", "none", "a")


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_survives_copy_and_keeps_its_notes(cls):
    error = make(cls)
    error.add_note("in shard 3")
    back = copy.copy(error)
    assert back.__notes__ == ["in shard 3"]
    assert str(back) == str(error)


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_prints_as_its_message_only(cls):
    error = make(cls)
    assert str(error) == error.message
    assert error.hint not in str(error)
    assert make(cls).hint


@pytest.mark.parametrize("cls", CLASSES)
def test_every_class_says_what_it_is(cls):
    assert cls.__doc__
    assert cls.__doc__ is not cls.__bases__[0].__doc__


def test_a_video_error_carries_reason_and_detail():
    error = VideoError("timed_out", "more than 60 s")
    assert (error.reason, error.detail, str(error)) == (
        "timed_out",
        "more than 60 s",
        "timed_out: more than 60 s",
    )
    assert str(VideoError("timed_out")) == "timed_out"
