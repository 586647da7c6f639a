"""Weights that are named by a URL."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from encoders.fetching import fetch_weights
from encoders.weights import find_weights
from schemas.errors import WeightsError

URL = "memory://models/siglip.safetensors"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def store() -> Iterator[Any]:
    store = fsspec.filesystem("memory")
    store.pipe_file("/models/siglip.safetensors", b"weights")
    yield store
    store.rm("/models", recursive=True)


def test_weights_of_a_url_are_found_with_their_digest(store: Any) -> None:
    weights = find_weights(URL, encoder="x", names=(), hub=None)
    assert weights.sha256() == hashlib.sha256(b"weights").hexdigest()
    assert weights.paths[0].name == "siglip.safetensors"


def test_a_file_is_fetched_once_for_as_long_as_it_is_the_same(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[str] = []
    get = type(store).get_file

    def count(self: Any, path: str, *args: Any, **kwargs: Any) -> Any:
        fetched.append(path)
        return get(self, path, *args, **kwargs)

    monkeypatch.setattr(type(store), "get_file", count)
    first = fetch_weights(URL, encoder="x")
    assert fetch_weights(URL, encoder="x") == first
    assert len(fetched) == 1
    store.pipe_file("/models/siglip.safetensors", b"better weights")
    assert fetch_weights(URL, encoder="x").read_bytes() == b"better weights"
    assert first.read_bytes() == b"weights"


def test_a_transfer_that_breaks_off_leaves_nothing(
    store: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_off(_: Any, __: str, target: str, **___: Any) -> None:
        Path(target).write_bytes(b"wei")
        raise ConnectionError("reset by peer")

    monkeypatch.setattr(type(store), "get_file", break_off)
    with pytest.raises(WeightsError, match="cannot be read: reset by peer"):
        fetch_weights(URL, encoder="x")
    assert [path for path in home.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("memory://models/other", "no file memory://models/other"),
        ("memory://models", "is a folder"),
        ("nothing://models/a", "cannot be read: Protocol not known"),
    ],
)
def test_what_is_wrong_with_a_url_is_said(store: Any, url: str, message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        fetch_weights(url, encoder="x")


def test_the_secret_of_a_signed_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(WeightsError, match="a URL with a query") as caught:
        fetch_weights("https://store/a.safetensors?signature=SECRET", encoder="x")
    assert "SECRET" not in f"{caught.value} {caught.value.hint}"
