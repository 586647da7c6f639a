"""A cache opens unmodified in webdataset, wids, Hugging Face datasets and Megatron-Energon."""

from __future__ import annotations

import io
import json
import shutil
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import pytest

import beam_runner
from pipeline.cache import open_cache
from pipeline.choosing import choose_clips
from pipeline.layout import CacheLayout
from pipeline.slicing import plan_slice, write_slice
from pipeline.sources import read_sources
from schemas.recipe import Recipe
from schemas.sample import Sample

NO_DEV_EXTRA = "the dev extra is not installed: pip install -e '.[dev]'"
MEMBERS = {"image.npy", "video.npy", "time.npy", "mask.npy", "json", "preview.jpg"}
FRAME_RATE = 10
# What third parties warn of while they read; nothing that a cache could change.
UNCLOSED = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
NO_GPU = pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning")


@pytest.fixture(scope="module")
def cache_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two videos of 6 and 7 seconds in four shards; tests copy it before they change it."""
    folder = tmp_path_factory.mktemp("readers")
    for name, seconds in (("first", 6), ("second", 7)):
        make_video(folder / "videos" / f"{name}.mp4", seconds=seconds)
    run(folder / "videos", folder / "cache")
    return folder / "cache"


@pytest.fixture(scope="module")
def written(cache_path: Path) -> dict[str, Sample]:
    """Key -> sample, as our own reader gives it; in the order of the shards."""
    with open_cache(cache_path) as cache:
        return {key: cache[key] for key in cache.index.column("key").to_pylist()}


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a reader of a local cache asked for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def make_video(path: Path, *, seconds: int) -> None:
    path.parent.mkdir(exist_ok=True)
    picture = f"testsrc2=size=160x120:rate={FRAME_RATE}:duration={seconds}"
    ffmpeg = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-f", "lavfi", "-i", picture]
    subprocess.run([*ffmpeg, "-pix_fmt", "yuv420p", str(path)], check=True, timeout=60)


def run(videos: Path, cache_path: Path) -> None:
    recipe = Recipe.load("tiny", overrides=["shards.max_seconds=4"])
    beam_runner.run(read_sources([str(videos)]).sources, recipe, cache_path=cache_path)


def tars(cache_path: Path) -> list[str]:
    return [str(path) for path in sorted((cache_path / "shards").glob("*.tar"))]


def assert_same(
    rows: Iterable[Mapping[str, Any]], written: Mapping[str, Sample], *, exact: bool = True
) -> None:
    """Every sample once, in the order of the shards, each member equal; `exact`: dtypes too."""
    rows = list(rows)
    assert [row["__key__"] for row in rows] == list(written)
    for row in rows:
        sample = written[row["__key__"]]
        assert {name for name in row if not name.startswith("__")} == MEMBERS
        assert row["json"] == sample.info
        arrays = {f"{name}.npy": array for name, array in sample.features.items()}
        arrays |= {"time.npy": sample.times, "mask.npy": sample.mask}
        for name, expected in arrays.items():
            found = np.asarray(row[name], dtype=None if exact else expected.dtype)
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found, expected, strict=True)


def test_our_reader_gives_what_is_in_the_tars(cache_path: Path, written: dict[str, Sample]) -> None:
    rows: dict[str, dict[str, Any]] = {}
    for path in tars(cache_path):
        with tarfile.open(path) as tar:
            for member in tar:
                key, name = member.name.split(".", maxsplit=1)
                file = tar.extractfile(member)
                assert file is not None
                value: Any = file.read()
                if name == "json":
                    value = json.loads(value)
                elif name.endswith(".npy"):
                    value = np.load(io.BytesIO(value), allow_pickle=False)
                rows.setdefault(key, {"__key__": key})[name] = value
    assert len(tars(cache_path)) >= 2
    assert_same(rows.values(), written)


def test_the_times_are_those_of_the_videos(written: dict[str, Sample]) -> None:
    for sample in written.values():
        first = sample.info["clip_index"] * len(sample.mask)
        starts = (first + np.arange(len(sample.mask)))[sample.mask] / sample.info["fps"]
        expected = np.stack([starts, starts + 1 / FRAME_RATE], axis=1)
        np.testing.assert_allclose(sample.times[sample.mask], expected, rtol=0, atol=1e-6)


@UNCLOSED
def test_webdataset(cache_path: Path, written: dict[str, Sample]) -> None:
    import webdataset

    dataset = webdataset.WebDataset(tars(cache_path), shardshuffle=False).decode("rgb8")
    assert_same(dataset, written)


def test_wids_from_another_folder(
    cache_path: Path,
    written: dict[str, Sample],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wids = pytest.importorskip("wids", reason=NO_DEV_EXTRA)
    from wids.wids_decode import default_decoder

    monkeypatch.setenv("WIDS_CACHE", str(tmp_path / "copies"))  # it copies even local shards
    monkeypatch.chdir(tmp_path)
    dataset = wids.ShardListDataset(
        str(cache_path / "wids.json"), transformations=[partial(default_decoder, format="numpy")]
    )
    rows = [
        {name.removeprefix("."): value for name, value in dataset[number].items()}
        for number in range(len(dataset))
    ]
    dataset.close()
    assert_same(rows, written)


def test_wids_in_place_by_a_relative_path(
    cache_path: Path, written: dict[str, Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    wids = pytest.importorskip("wids", reason=NO_DEV_EXTRA)
    monkeypatch.chdir(cache_path.parent)
    dataset = wids.ShardListDataset("cache/wids.json", transformations=[], localname=str)
    keys = [dataset[number]["__key__"] for number in range(len(dataset))]
    dataset.close()
    assert keys == list(written)


@pytest.mark.parametrize("streaming", [True, False])
def test_hugging_face_datasets(
    cache_path: Path, written: dict[str, Sample], tmp_path: Path, streaming: bool
) -> None:
    datasets = pytest.importorskip("datasets", reason=NO_DEV_EXTRA)
    dataset = datasets.load_dataset(
        "webdataset",
        data_files={"train": tars(cache_path)},
        split="train",
        streaming=streaming,
        cache_dir=str(tmp_path),
    )
    assert dataset.features["image.npy"].feature.feature.feature.feature.dtype == "float16"
    assert_same(dataset, written, exact=False)


@NO_GPU
def test_energon(cache_path: Path, written: dict[str, Sample]) -> None:
    assert_same(read_with_energon(cache_path), written)


@NO_GPU
def test_energon_trains_on_every_sample_once(cache_path: Path, written: dict[str, Sample]) -> None:
    energon = pytest.importorskip("megatron.energon", reason=NO_DEV_EXTRA)
    dataset = energon.get_train_dataset(
        cache_path,
        worker_config=worker_config(),
        batch_size=None,
        shuffle_buffer_size=4,
        max_samples_per_sequence=None,
        repeat=False,
        task_encoder=crude_encoder(),
    )
    assert sorted(row["__key__"] for row in energon.get_loader(dataset)) == sorted(written)


def test_energon_says_that_there_is_no_validation_split(cache_path: Path) -> None:
    energon = pytest.importorskip("megatron.energon", reason=NO_DEV_EXTRA)
    from megatron.energon.flavors import EmptyDatasetError

    with pytest.raises(EmptyDatasetError, match="No shards found in split part 'val'"):
        energon.get_val_dataset(cache_path, worker_config=worker_config(), batch_size=1)


@NO_GPU
def test_energon_prepare_finds_nothing_to_correct(
    cache_path: Path, written: dict[str, Sample], tmp_path: Path
) -> None:
    copy = shutil.copytree(cache_path, tmp_path / "cache")
    energon_prepare(copy, "--force-overwrite", "--split-ratio", "1,0,0", "--skip-dataset-yaml")
    for path in sorted((cache_path / "shards").iterdir()):
        assert path.read_bytes() == (copy / "shards" / path.name).read_bytes()
    info, our_info = (
        json.loads((folder / ".nv-meta" / ".info.json").read_text())
        for folder in (copy, cache_path)
    )
    assert info == our_info
    assert list(info["shard_counts"]) == list(our_info["shard_counts"])
    assert_same(read_with_energon(copy), written)


@NO_GPU
def test_energon_index_lasts_until_the_shards_change(
    cache_path: Path, written: dict[str, Sample], tmp_path: Path
) -> None:
    copy = shutil.copytree(cache_path, tmp_path / "cache")
    energon_prepare(copy, "--tar-index-only")
    ours = {path.name for path in CacheLayout(cache_path).energon.iterdir()}
    assert {path.name for path in CacheLayout(copy).energon.iterdir()} == {
        *ours,
        "index.sqlite",
        "index.uuid",
    }
    dataset_yaml = CacheLayout(copy).energon / "dataset.yaml"
    dataset_yaml.write_text(dataset_yaml.read_text() + "\n")  # as if by a user

    make_video(tmp_path / "videos" / "third.mp4", seconds=2)
    run(tmp_path / "videos", copy)

    assert {path.name for path in CacheLayout(copy).energon.iterdir()} == ours
    assert dataset_yaml.read_text().endswith("\n\n")
    keys = [row["__key__"] for row in read_with_energon(copy)]
    assert keys[:-1] == list(written) and keys[-1] not in written


@UNCLOSED
@NO_GPU
def test_a_slice_opens_in_all_of_them(
    cache_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import webdataset

    wids = pytest.importorskip("wids", reason=NO_DEV_EXTRA)
    datasets = pytest.importorskip("datasets", reason=NO_DEV_EXTRA)
    with open_cache(cache_path) as cache:
        choice = choose_clips(cache, where="clip_index != 1")
        write_slice(plan_slice(cache, choice), CacheLayout(tmp_path / "slice"))
    with open_cache(tmp_path / "slice") as cache:
        few = {key: cache[key] for key in cache.index.column("key").to_pylist()}
    assert len(few) == 5
    shards = tars(tmp_path / "slice")
    assert_same(webdataset.WebDataset(shards, shardshuffle=False).decode("rgb8"), few)
    assert_same(
        datasets.load_dataset(
            "webdataset", data_files=shards, split="train", cache_dir=str(tmp_path / "hf")
        ),
        few,
        exact=False,
    )
    assert_same(read_with_energon(tmp_path / "slice"), few)
    monkeypatch.setenv("WIDS_CACHE", str(tmp_path / "copies"))
    dataset = wids.ShardListDataset(str(tmp_path / "slice" / "wids.json"), transformations=[])
    assert [dataset[number]["__key__"] for number in range(len(dataset))] == list(few)
    dataset.close()


def read_with_energon(cache_path: Path) -> list[dict[str, Any]]:
    energon = pytest.importorskip("megatron.energon", reason=NO_DEV_EXTRA)
    dataset = energon.get_val_dataset(
        cache_path,
        split_part="train",
        worker_config=worker_config(),
        batch_size=None,
        task_encoder=crude_encoder(),
    )
    return list(energon.get_loader(dataset))


def worker_config() -> Any:
    from megatron import energon

    return energon.WorkerConfig(rank=0, world_size=1, num_workers=0)


def crude_encoder() -> Any:
    from megatron import energon

    @energon.stateless
    def cook(sample: Mapping[str, Any]) -> dict[str, Any]:
        return dict(sample)

    class Encoder(energon.DefaultTaskEncoder):  # type: ignore[misc]
        cookers = [energon.Cooker(cook)]  # noqa: RUF012

    return Encoder()


def energon_prepare(cache_path: Path, *options: str) -> None:
    pytest.importorskip("megatron.energon", reason=NO_DEV_EXTRA)
    command = [sys.executable, "-m", "megatron.energon.cli.main", "prepare", "--non-interactive"]
    options = ("--num-workers", "1", *options)
    done = subprocess.run(
        [*command, *options, str(cache_path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
