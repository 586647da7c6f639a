"""What the packages promise by name: a change here is an API break."""

import importlib

import pytest

EXPORTS = {
    "schemas": {
        "CacheDamaged",
        "CacheError",
        "CacheIncomplete",
        "CacheInfo",
        "FingerprintMismatch",
        "Grid",
        "Piece",
        "Probe",
        "REASONS",
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
    },
    "encoders": {
        "Encoder",
        "EncoderSpec",
        "Runtime",
        "SoundEncoder",
        "SoundSpec",
        "check_encoder",
        "check_sound_encoder",
        "encoder_spec",
        "list_encoders",
        "list_sound_encoders",
        "load_encoder",
        "load_sound_encoder",
        "sound_spec",
    },
    "pipeline": {"FeatureCache", "Finding", "open_cache", "read_sources", "verify_cache"},
}


def as_ruff_sorts(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


@pytest.mark.parametrize("package", EXPORTS)
def test_the_public_names_are_these(package):
    assert set(importlib.import_module(package).__all__) == EXPORTS[package]


@pytest.mark.parametrize("package", EXPORTS)
def test_the_list_of_names_is_sorted_and_without_repetition(package):
    names = importlib.import_module(package).__all__
    assert list(names) == sorted(set(names), key=as_ruff_sorts)


@pytest.mark.parametrize(
    ("package", "name"),
    [(package, name) for package, names in EXPORTS.items() for name in sorted(names)],
)
def test_every_public_name_can_be_imported_and_says_what_it_is(package, name):
    value = getattr(importlib.import_module(package), name)
    assert value.__doc__


@pytest.mark.parametrize("package", EXPORTS)
def test_a_name_that_is_not_there_is_an_attribute_error(package):
    with pytest.raises(AttributeError, match="there_is_no_such_name"):
        _ = importlib.import_module(package).there_is_no_such_name


def test_the_flow_can_be_called_from_python():
    import beam_runner

    assert callable(beam_runner.run)
