"""Recipes: loading, refusals, overrides, and what the fingerprint is taken over."""

import dataclasses
import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from encoders import encoder_spec
from schemas.errors import RecipeError
from schemas.recipe import (
    AudioSpec,
    DecodeLimits,
    DecodeSpec,
    EncoderSettings,
    PreviewSpec,
    Recipe,
    SamplingSpec,
    ShardLimits,
    StreamSpec,
    canonical_json,
    differing_fields,
    list_recipes,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "tiny.fingerprint"
STAMPS = {"image": {"name": "random-image", "dim": 32}, "video": {"name": "random-video"}}


def tiny(*overrides: str) -> Recipe:
    return Recipe.load("tiny", overrides=overrides)


def fingerprint(recipe: Recipe) -> str:
    return recipe.fingerprint({name: STAMPS.get(name, {}) for name in recipe.streams})


def changed(value: object) -> object:
    if isinstance(value, bool):
        return not value
    if isinstance(value, tuple):
        return (2, 2)
    if value is None:
        return -3
    return value + "x" if isinstance(value, str) else value + 1  # type: ignore[operator]


def replaced(recipe: Recipe, part: str, field: str) -> Recipe:
    """The recipe with another value of one field; literals are not checked here."""
    old = recipe.streams["image"] if part == "streams" else getattr(recipe, part)
    new = dataclasses.replace(old, **{field: changed(getattr(old, field))})
    if part == "streams":
        return dataclasses.replace(recipe, streams=recipe.streams | {"image": new})
    return dataclasses.replace(recipe, **{part: new})


def fields_of(**parts: type) -> list[tuple[str, str]]:
    return [(part, f.name) for part, cls in parts.items() for f in dataclasses.fields(cls)]


IN_THE_STAMP = [f.name for f in dataclasses.fields(EncoderSettings) if f.name != "encoder"]


def test_tiny_is_what_the_demo_says():
    recipe = tiny()
    assert (recipe.name, recipe.sampling.fps, recipe.sampling.frames_per_clip) == ("tiny", 2.0, 4)
    assert {name: stream.encoder for name, stream in recipe.streams.items()} == {
        "image": "random-image",
        "video": "random-video",
    }


@pytest.mark.parametrize("name", list_recipes())
def test_every_shipped_recipe_loads_under_its_own_name(name):
    assert Recipe.load(name).name == name


def test_a_recipe_loads_from_a_path(tmp_path):
    path = tmp_path / "my recipe.toml"
    path.write_text(
        'name = "mine"\n[sampling]\nfps = 1\nframes_per_clip = 2\n'
        '[streams.image]\nencoder = "random-image"\n'
    )
    assert Recipe.load(str(path)).sampling == SamplingSpec(fps=1.0, frames_per_clip=2)


def test_a_recipe_survives_its_mapping_as_json():
    recipe = tiny("preview.height=32", "description=a 'b'")
    assert Recipe.from_mapping(json.loads(json.dumps(recipe.to_mapping()))) == recipe


def test_an_unknown_recipe_is_told_the_nearest_name():
    with pytest.raises(RecipeError, match=r"no recipe named 'tinny'; did you mean 'tiny'\?"):
        Recipe.load("tinny")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "cannot be read"),
        (b"\xff\xfe\x00", "it is not text"),
        (b"name = ", "not valid TOML"),
        (b'name = "x"\n', "sampling: missing|streams: missing"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused(tmp_path, content, expected):
    path = tmp_path / "r.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RecipeError, match=expected):
        Recipe.load(str(path))


def test_a_folder_is_no_recipe(tmp_path):
    with pytest.raises(RecipeError, match="cannot be read"):
        Recipe.load(f"{tmp_path}/")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("sampling.fpss=2", "sampling.fpss: unknown field; did you mean 'fps'?"),
        ("smapling.fps=2", "smapling: unknown field; did you mean 'sampling'?"),
        ("streams.image.encodr=x", "streams.image.encodr: unknown field; did you mean 'encoder'?"),
        ("limits.max_pixel=4", "limits.max_pixel: unknown field; did you mean 'max_pixels'?"),
    ],
)
def test_an_unknown_field_is_told_the_nearest_one(override, expected):
    with pytest.raises(RecipeError, match=re.escape(expected)):
        tiny(override)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("sampling.fps=fast", "sampling.fps = 'fast' must be a float"),
        ("sampling.fps=true", "sampling.fps = True must be a float"),
        ("sampling.frames_per_clip=4.0", "sampling.frames_per_clip = 4.0 must be a int"),
        ("sampling.frames_per_clip=true", "must be a int"),
        ("sampling=3", "sampling = 3 must be a table"),
        ("preview.enabled=1", "preview.enabled = 1 must be a bool"),
        ("name=3", "name = 3 must be a str"),
        ("streams=[1]", "must be a table"),
        ("streams.image=3", "streams.image = 3 must be a table"),
        ("sampling.policy=nearest", "must be one of 'displayed'"),
        ("streams.image.dtype=bfloat16", "must be one of 'float16'"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_by_name(override, expected):
    with pytest.raises(RecipeError, match=re.escape(expected)):
        tiny(override)


@pytest.mark.parametrize(
    "override",
    [
        "sampling.fps=0",
        "sampling.fps=-1",
        "sampling.fps=nan",
        "sampling.fps=inf",
        "sampling.frames_per_clip=0",
        "preview.height=7",
        "preview.height=513",
        "shards.target_bytes=0",
        "shards.max_seconds=0",
        "shards.max_seconds=nan",
        "limits.stall_seconds=0",
        "limits.base_seconds=0",
        "limits.memory_bytes=0",
        "limits.max_pixels=0",
        "limits.max_duration_seconds=0",
        "limits.max_duration_seconds=nan",
        "limits.factor=-1",
        "limits.factor=nan",
        "limits.factor=inf",
        "limits.stall_seconds=inf",
        "limits.base_seconds=inf",
        "limits.max_duration_seconds=inf",
        "shards.max_seconds=inf",
    ],
)
def test_a_value_out_of_range_is_refused_by_name(override):
    with pytest.raises(RecipeError, match=re.escape(override.partition("=")[0])):
        tiny(override)


@pytest.mark.parametrize("name", ["Image", "im-age", "im_age", "a.b", "ä", "time", "json", "mask"])
def test_a_stream_is_named_in_plain_letters_and_not_like_another_member(name):
    with pytest.raises(RecipeError, match="stream's name"):
        Recipe(
            name="x",
            sampling=SamplingSpec(fps=1.0, frames_per_clip=1),
            streams={name: StreamSpec(encoder="random-image")},
        )


def test_a_stream_has_a_name_that_fits_into_a_tar_beside_the_longest_key():

    with pytest.raises(RecipeError, match="stream"):
        Recipe(
            name="x",
            sampling=SamplingSpec(fps=1.0, frames_per_clip=1),
            streams={"a" * 40: StreamSpec(encoder="random-image")},
        )


def test_a_recipe_has_a_stream():
    with pytest.raises(RecipeError, match="at least one"):
        Recipe(name="x", sampling=SamplingSpec(fps=1.0, frames_per_clip=1), streams={})


def test_the_last_override_wins():
    assert tiny("sampling.fps=1", "sampling.fps=0.5").sampling.fps == 0.5


def test_an_override_can_add_a_stream():
    recipe = tiny("streams.extra.encoder=random-image")
    assert list(recipe.streams) == ["image", "video", "extra"]


def test_fingerprint_of_tiny_is_the_golden_one():
    recipe = tiny()
    stamps = {name: encoder_spec(s.encoder).stamp() for name, s in recipe.streams.items()}
    text = recipe.fingerprint(stamps) + "\n"
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text(), "existing caches no longer open: a FINGERPRINT break"


@given(data=st.data())
def test_fingerprint_ignores_the_order_of_keys_but_not_of_streams(data):
    mapping = tiny().to_mapping()
    shuffled = {
        key: dict(data.draw(st.permutations(list(value.items()))))
        if isinstance(value, dict) and key != "streams"
        else value
        for key, value in data.draw(st.permutations(list(mapping.items())))
    }
    assert fingerprint(Recipe.from_mapping(shuffled)) == fingerprint(tiny())


def test_fingerprint_ignores_explicit_defaults():
    explicit = tiny(
        "sampling.policy=displayed",
        "decode.backend=pyav",
        "decode.pixels=displayed",
        "streams.image.resize=own",
        "preview.enabled=true",
        "preview.height=64",
        "streams.image.dtype=float16",
        "sampling.fps=2",
    )
    assert fingerprint(explicit) == fingerprint(tiny())


@pytest.mark.parametrize("name", ["name", "description"])
def test_fingerprint_ignores_what_the_recipe_is_called(name):
    assert fingerprint(tiny(f"{name}=other")) == fingerprint(tiny())


@pytest.mark.parametrize(("part", "field"), fields_of(shards=ShardLimits, limits=DecodeLimits))
def test_fingerprint_ignores_limits(part, field):
    assert fingerprint(replaced(tiny(), part, field)) == fingerprint(tiny())


@pytest.mark.parametrize(
    ("part", "field"),
    [
        (part, field)
        for part, field in fields_of(
            sampling=SamplingSpec, decode=DecodeSpec, preview=PreviewSpec, streams=StreamSpec
        )
        if field not in IN_THE_STAMP
    ],
)
def test_fingerprint_changes_with_every_field_that_shapes_the_bytes(part, field):
    assert fingerprint(replaced(tiny(), part, field)) != fingerprint(tiny())


@pytest.mark.parametrize("field", IN_THE_STAMP)
def test_what_an_encoder_makes_of_its_settings_is_in_its_stamp_and_not_told_twice(field):
    assert fingerprint(replaced(tiny(), "streams", field)) == fingerprint(tiny())


def test_fingerprint_changes_with_sound():
    stamps = STAMPS | {"audio": {"name": "some"}}
    heard = dataclasses.replace(tiny(), audio=AudioSpec(encoder="some"))
    fewer = dataclasses.replace(heard, audio=AudioSpec(encoder="some", tokens_per_window=1))
    assert len({tiny().fingerprint(STAMPS), *(r.fingerprint(stamps) for r in (heard, fewer))}) == 3


def test_a_difference_of_two_identities_names_the_stream():
    other = STAMPS | {"image": {"weights_sha256": "b"}}
    old, new = (tiny().identity(s) for s in (STAMPS | {"image": {"weights_sha256": "a"}}, other))
    assert differing_fields(old, new) == ['streams[image].stamp.weights_sha256: "a" -> "b"']


@pytest.mark.parametrize("grid", ["[8]", "[8, 0]", "[1, 2, 3]"])
def test_a_grid_is_two_numbers(grid):
    with pytest.raises(RecipeError, match="grid"):
        tiny(f"streams.image.grid={grid}")


def test_the_identity_names_the_treatment_of_pixels_even_by_default():
    assert tiny().identity(STAMPS)["decode"] == {"pixels": "displayed"}


@pytest.mark.parametrize("field", list(encoder_spec("random-image").stamp()))
def test_fingerprint_changes_with_everything_an_encoder_says_of_itself(field):
    stamp = encoder_spec("random-image").stamp()
    stamps = {"image": stamp, "video": encoder_spec("random-video").stamp()}
    other = stamps | {"image": stamp | {field: "something else"}}
    assert tiny().fingerprint(other) != tiny().fingerprint(stamps)


def test_fingerprint_changes_with_the_order_of_streams():
    recipe = tiny()
    turned = dataclasses.replace(recipe, streams=dict(reversed(recipe.streams.items())))
    assert fingerprint(turned) != fingerprint(recipe)


def test_fingerprint_changes_with_the_name_of_a_stream():
    recipe = tiny()
    renamed = {("picture" if name == "image" else name): s for name, s in recipe.streams.items()}
    stamps = {name: {} for name in ("image", "picture", "video")}
    assert dataclasses.replace(recipe, streams=renamed).fingerprint(stamps) != recipe.fingerprint(
        stamps
    )


def test_fingerprint_is_64_hex_digits():
    assert re.fullmatch("[0-9a-f]{64}", fingerprint(tiny()))


def test_canonical_json_has_no_nan():
    with pytest.raises(ValueError, match="JSON"):
        canonical_json({"a": float("nan")})


def test_differing_fields_name_leaf_and_values():
    old, new = tiny().identity(STAMPS), tiny("sampling.fps=1").identity(STAMPS)
    assert differing_fields(old, new) == ["sampling.fps: 2.0 -> 1.0"]
    assert differing_fields(new, new) == []


def test_differing_fields_show_a_dropped_default():
    old, new = tiny().identity(STAMPS), tiny("preview.height=32").identity(STAMPS)
    assert differing_fields(old, new) == ["preview.height: default -> 32"]


def test_differing_fields_reach_into_streams():
    other = STAMPS | {"image": {"name": "random-image", "dim": 16}}
    assert differing_fields(tiny().identity(STAMPS), tiny().identity(other)) == [
        "streams[image].stamp.dim: 32 -> 16"
    ]


def test_differing_fields_show_streams_of_another_number():
    more = tiny("streams.extra.encoder=random-image")
    lines = differing_fields(
        tiny().identity(STAMPS), more.identity(STAMPS | {"extra": {"name": "random-image"}})
    )
    assert [line.partition(":")[0] for line in lines] == ["streams"]
