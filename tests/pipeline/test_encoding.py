"""Which encoders of a recipe take the weights that a user names."""

from __future__ import annotations

import pytest

from pipeline.encoding import with_weights
from schemas.errors import UsageError
from schemas.recipe import Recipe


def recipe(**encoders: str) -> Recipe:
    streams = {name: {"encoder": encoder} for name, encoder in encoders.items()}
    sampling = {"fps": 1.0, "frames_per_clip": 4}
    return Recipe.from_mapping({"name": "r", "sampling": sampling, "streams": streams})


def places(recipe: Recipe) -> dict[str, str]:
    return {name: one.weights for name, one in recipe.settings().items()}


def test_a_place_without_a_stream_is_for_the_encoders_that_have_no_weights(monkeypatch):
    monkeypatch.setattr("encoders.efficientnet.weights_sha256", lambda *_, **__: "ab" * 32)
    both = recipe(a="efficientnet-lite0", b="siglip-b-16-224", c="random-image")
    assert places(with_weights(both, ["w.pt"])) == {"a": "", "b": "w.pt", "c": ""}
    alone = recipe(a="efficientnet-lite0", c="random-image")
    assert places(with_weights(alone, ["w.pt"])) == {"a": "w.pt", "c": ""}


def test_a_place_that_no_encoder_takes_is_refused():
    plain = recipe(c="random-image")
    with pytest.raises(UsageError, match="no encoder of the recipe takes weights"):
        with_weights(plain, ["w.pt"])
    assert places(with_weights(plain, ["random"])) == {"c": ""}
