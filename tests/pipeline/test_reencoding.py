"""Encoding clips again: what is stored is what comes out, and a change is found."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import beam_runner
from encoders.projection import RandomProjection
from pipeline.cache import FeatureCache, open_cache
from pipeline.cli import call
from pipeline.reencoding import reencode_sample
from pipeline.sources import read_sources
from schemas.errors import FingerprintMismatch
from schemas.recipe import Recipe

if TYPE_CHECKING:
    from tests.clips import ClipShelf

NAMES = ("25.mp4", "b_frames.mp4", "variable_rate.mkv", "rotation_90.mp4", "half_a_second.mp4")


@pytest.fixture(scope="module")
def made(clips: ClipShelf, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of a few clips, one stream compact, beside its sources."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "videos").mkdir()
    for name in NAMES:
        shutil.copy(clips[name].path, folder / "videos" / name)
    recipe = Recipe.load(
        "tiny", overrides=["streams.image.dtype=int8", "streams.image.grid=[2, 2]"]
    )
    sources = read_sources([str(folder / "videos")]).sources
    beam_runner.run(sources, recipe, cache_path=folder / "cache")
    return folder


@pytest.fixture
def cache(made: Path, tmp_path: Path) -> FeatureCache:
    shutil.copytree(made / "cache", tmp_path / "cache")
    return open_cache(tmp_path / "cache")


def test_what_is_stored_is_what_comes_out_again(cache: FeatureCache) -> None:
    told: list[int] = []
    again = reencode_sample(cache, num_clips=1000, progress=told.append)
    assert again.num_clips == len(cache) == sum(told)
    assert (again.not_encoded, again.findings) == ({}, ())
    image, video = again.streams
    assert image.stream == "image"
    assert 0 < image.channel_error_median <= image.channel_error_max < 0.02
    assert 0.9999 < image.cosine_min <= 1
    assert video.channel_error_max < 1e-3, "float16"
    assert video.cosine_mean > 1 - 1e-6


def test_a_few_clips_are_of_different_videos(cache: FeatureCache) -> None:
    again = reencode_sample(cache, num_clips=len(NAMES))
    assert again.num_clips == len(NAMES)


def test_other_features_are_a_finding(cache: FeatureCache, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = RandomProjection.encode

    def other(self: RandomProjection, frames: Any) -> Any:
        noise = np.random.default_rng(0).standard_normal(self.spec.dim)
        return encode(self, frames) + noise.astype(np.float32)

    monkeypatch.setattr(RandomProjection, "encode", other)
    again = reencode_sample(cache, num_clips=2)
    assert {kind for kind, _, _ in again.findings} == {"features"}
    assert {key for _, key, _ in again.findings} <= set(cache.keys())


def test_other_weights_are_refused_by_name(
    cache: FeatureCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamp = cache.info.stamps["video"] | {"weights_sha256": "ab"}
    cache.info = replace(cache.info, stamps=cache.info.stamps | {"video": stamp})
    with pytest.raises(FingerprintMismatch, match=r"streams\[video\].stamp.weights_sha256"):
        reencode_sample(cache, num_clips=1)


def test_a_source_that_is_gone_or_other_is_counted(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(made / "videos", tmp_path / "videos")
    path = str(tmp_path / "cache")
    assert call(["run", str(tmp_path / "videos"), path, "-q"]) == 0
    (tmp_path / "videos" / "25.mp4").unlink()
    shutil.copy(made / "videos" / "25.mp4", tmp_path / "videos" / "b_frames.mp4")
    capsys.readouterr()
    assert call(["verify", path, "--deep", "--clips", "100", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    told = document["encoded_again"]
    assert set(told["not_encoded"]) == {"not_found", "source_changed"}
    assert told["clips"] + sum(told["not_encoded"].values()) == document["samples"]
    assert set(told["streams"]) == {"image", "video"}


def test_the_command_shows_a_table(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["verify", str(made / "cache"), "--deep", "--clips", "3"]) == 0
    out = capsys.readouterr().out
    assert "3 clips encoded again from the sources" in out
    assert "worst channel" in out


def test_without_deep_nothing_is_encoded(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(RandomProjection, "encode", None)
    assert call(["verify", str(made / "cache"), "--json"]) == 0
    assert "encoded_again" not in json.loads(capsys.readouterr().out)


def test_weights_that_are_named_and_cannot_be_used_are_an_error(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "cache")
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        'name = "r"\n[sampling]\nfps = 1.0\nframes_per_clip = 1\n'
        '[streams.image]\nencoder = "efficientnet-lite0"\nweights = "random"\n'
    )
    video = str(made / "videos" / "25.mp4")
    assert call(["run", video, path, "--recipe", str(recipe), "-q"]) == 0
    assert call(["verify", path, "--deep", "--clips", "1"]) == 0
    assert call(["verify", path, "--deep", "--weights", str(tmp_path / "none")]) == 2
    assert "no file or folder" in capsys.readouterr().err
