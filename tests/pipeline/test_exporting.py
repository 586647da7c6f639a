"""export: each format read back by its own library is what the cache holds, bit for bit."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import export_tables, exporting
from pipeline.cache import FeatureCache, open_cache
from pipeline.clip_columns import clip_columns
from pipeline.exporting import INFO, WRITERS, Export, ExportOptions, Format, export_cache
from pipeline.layout import CacheLayout
from pipeline.places import list_sizes, read_bytes, to_place
from schemas.compact import as_float16
from schemas.errors import CacheDamaged, CacheHeld, StorageError, UsageError
from schemas.sample import Sample
from tests.pipeline.handmade import make_sample, write_cache
from tests.pipeline.odd_videos import ODD_ID

if TYPE_CHECKING:
    from s3fs import S3FileSystem

Arrays = dict[str, npt.NDArray[Any]]
FORMATS = get_args(Format)
ALL = ("image", "video", "audio")


@pytest.fixture
def cache(odd_cache: Path) -> Iterator[FeatureCache]:
    with open_cache(odd_cache) as opened:
        yield opened


def export(cache: FeatureCache, out: Any, to: Format, **options: Any) -> Export:
    rows, progress = options.pop("rows", None), options.pop("progress", lambda _: None)
    if to == "lance":
        pytest.importorskip("lance", reason="the extra lance is not installed")
    chosen = ExportOptions(streams=options.pop("streams", ALL), **options)
    return export_cache(cache, to_place(out), to=to, options=chosen, rows=rows, progress=progress)


def read(out: Path, to: Format) -> dict[str, Arrays]:
    """Key -> arrays by name, by the format's own library."""
    info = json.loads((out / INFO).read_text())
    shapes = {name: tuple(one["shape"]) for name, one in info["arrays"].items()}
    dtypes = {name: np.dtype(one["dtype"]) for name, one in info["arrays"].items()}
    found: dict[str, Arrays] = {}
    if to in ("parquet", "lance"):
        for row in read_rows(out, to):
            found[row["key"]] = {
                name: np.asarray(row[name], dtype=dtypes[name]).reshape(shapes[name])
                for name in shapes
            }
        return found
    index = pq.read_table(out / "index.parquet").to_pylist()
    if to == "npy":
        arrays = {name: np.load(out / f"{name}.npy", mmap_mode="r") for name in shapes}
        for number, row in enumerate(index):
            found[row["key"]] = {name: array[number] for name, array in arrays.items()}
        return found
    from safetensors import safe_open

    for row in index:
        with safe_open(out / row["file"], framework="np") as file:
            found[row["key"]] = {name: file.get_tensor(f"{row['key']}.{name}") for name in shapes}
    return found


def read_rows(out: Path, to: Format) -> list[dict[str, Any]]:
    if to == "parquet":
        # A folder, as people read it: export.json must not be in the way.
        rows: list[dict[str, Any]] = pq.read_table(out).to_pylist()
        return rows
    lance = pytest.importorskip("lance")
    return list(lance.dataset(str(out / "clips.lance")).to_table().to_pylist())


def arrays_of(sample: Sample) -> Arrays:
    assert sample.audio is not None and sample.audio_mask is not None
    scales = {f"{name}_scale": scale for name, scale in sample.scales.items()}
    sound = {"audio": sample.audio, "audio_mask": sample.audio_mask}
    return sample.features | scales | sound | {"time": sample.times, "mask": sample.mask}


def assert_equal(found: Arrays, expected: Arrays) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, strict=True)


@pytest.mark.parametrize("to", FORMATS)
def test_reads_back_bit_for_bit(cache: FeatureCache, tmp_path: Path, to: Format) -> None:
    told: list[int] = []
    written = export(cache, tmp_path / "out", to, progress=told.append)
    assert written.num_clips == sum(told) == len(cache)
    found = read(tmp_path / "out", to)
    assert list(found) == cache.index.column("key").to_pylist()
    for sample in cache:
        assert_equal(found[sample.key], arrays_of(sample))
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {*written.names, INFO}
    assert written.num_bytes > sum(array.nbytes for array in found[sample.key].values())


@pytest.mark.parametrize("to", ["parquet", "lance"])
def test_tables_tell_what_is_known_of_clips(
    cache: FeatureCache, odd_cache: Path, tmp_path: Path, to: Format
) -> None:
    export(cache, tmp_path / "out", to)
    for row in read_rows(tmp_path / "out", to):
        sample, told = cache[row["key"]], cache.row(row["key"])
        assert json.loads(row["json"]) == sample.info
        assert row["preview"] == sample.preview
        assert (row["video_id"], row["clip_index"]) == (told.video_id, told.clip_index)
        assert (row["start_seconds"], row["shard"]) == (told.start_seconds, told.shard)
        assert told.quality is not None and row["static"] == told.quality.static
        assert row["uri"].startswith(str(odd_cache.parent))


@pytest.mark.parametrize("to", FORMATS)
def test_pooled_and_decoded(cache: FeatureCache, tmp_path: Path, to: Format) -> None:
    export(cache, tmp_path / "pooled", to, pooled=True)
    export(cache, tmp_path / "decoded", to, decode=True)
    pooled, decoded = read(tmp_path / "pooled", to), read(tmp_path / "decoded", to)
    for sample in cache:
        expected = arrays_of(sample)
        del expected["image_scale"]
        expected["image"] = as_float16(sample.decode("image"))
        assert_equal(decoded[sample.key], expected)
        for name in ("image", "video"):
            expected[name] = as_float16(sample.decode(name).mean(axis=(1, 2)))
            assert expected[name].shape == (4, {"image": 32, "video": 48}[name])
        assert_equal(pooled[sample.key], expected)


@pytest.mark.parametrize("to", FORMATS)
def test_some_clips_and_streams(cache: FeatureCache, tmp_path: Path, to: Format) -> None:
    rows = np.zeros(len(cache), dtype=np.bool_)
    rows[[1, 4, len(cache) - 1]] = True
    written = export(cache, tmp_path / "out", to, streams=("video",), rows=rows)
    assert written.num_clips == 3
    keys = cache.index.column("key").to_pylist()
    found = read(tmp_path / "out", to)
    assert list(found) == [keys[1], keys[4], keys[-1]]
    for key, arrays in found.items():
        expected = arrays_of(cache[key])
        assert_equal(arrays, {name: expected[name] for name in ("video", "time", "mask")})


def test_parquet_is_read_by_pandas_and_datasets(
    cache: FeatureCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pandas = pytest.importorskip("pandas")
    datasets = pytest.importorskip("datasets")
    export(cache, tmp_path / "out", "parquet", compression="zstd")
    frame = pandas.read_parquet(tmp_path / "out").set_index("key")
    files = [str(path) for path in sorted((tmp_path / "out").glob("*.parquet"))]
    loaded = datasets.load_dataset(
        "parquet", data_files=files, split="train", cache_dir=str(tmp_path / "hf")
    )
    assert [row["key"] for row in loaded] == list(frame.index) and len(loaded) == len(cache)
    for row in loaded:
        sample = cache[row["key"]]
        video = sample.features["video"]
        found = frame.loc[row["key"], "video"]
        np.testing.assert_array_equal(found.reshape(video.shape), video, strict=True)
        again = np.asarray(row["video"], dtype=np.float16).reshape(video.shape)
        np.testing.assert_array_equal(again, video)
    column = pq.read_metadata(files[0]).row_group(0).column(0)
    assert column.compression == "ZSTD"
    schema = pq.read_schema(files[0])
    assert schema.metadata[b"reelcache.fingerprint"].decode() == cache.fingerprint
    assert json.loads(schema.field("video").metadata[b"shape"]) == [4, 3, 3, 48]


def test_safetensors_are_aligned_and_read_by_torch(cache: FeatureCache, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    written = export(cache, tmp_path / "out", "safetensors")
    for name in written.names[:-1]:
        data = (tmp_path / "out" / name).read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        assert size % 8 == 0
        assert header.pop("__metadata__")["reelcache.recipe"] == "tiny"
        widths = {"F64": 8, "F32": 4, "F16": 2, "I8": 1, "BOOL": 1}
        assert all(one["data_offsets"][0] % widths[one["dtype"]] == 0 for one in header.values())
        for full, tensor in load_file(tmp_path / "out" / name).items():
            key, _, member = full.partition(".")
            expected = arrays_of(cache[key])[member]
            np.testing.assert_array_equal(tensor.numpy(), expected, strict=True)


@pytest.mark.parametrize("batch_bytes", [1, 12_000])
def test_row_groups_hold_few_bytes(
    cache: FeatureCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_bytes: int
) -> None:
    monkeypatch.setattr(export_tables, "BATCH_BYTES", batch_bytes)
    written = export(cache, tmp_path / "out", "parquet")
    sizes = [
        pq.read_metadata(tmp_path / "out" / name).row_group(0).num_rows for name in written.names
    ]
    assert max(sizes) == (1 if batch_bytes == 1 else 2)
    assert list(read(tmp_path / "out", "parquet")) == cache.index.column("key").to_pylist()


def test_a_stream_may_be_called_as_a_column(
    cache: FeatureCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    selection = exporting.select_clips(cache, ExportOptions(streams=("video",)))
    array = exporting.Array(name="static", dtype=np.dtype("float16"), shape=(1,))
    assert export_tables._column(selection, array) == "static_features"
    assert export_tables._column(selection, selection.arrays[0]) == "video"


@pytest.mark.parametrize("to", FORMATS)
def test_a_lists_own_columns_give_way(
    cache: FeatureCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: Format
) -> None:
    def with_more(opened: FeatureCache) -> pa.Table:
        table = clip_columns(opened)
        for name in ("json", "preview", "file", "time", "image", "mask"):
            table = table.append_column(name, pa.array(["own"] * len(opened)))
        return table

    monkeypatch.setattr(exporting, "clip_columns", with_more)
    export(cache, tmp_path / "out", to)
    found = read(tmp_path / "out", to)
    for sample in cache:
        assert_equal(found[sample.key], arrays_of(sample))
    if to in ("parquet", "lance"):
        labels = {row["video_id"]: row["label"] for row in read_rows(tmp_path / "out", to)}
        assert labels[ODD_ID] == "first" and labels["late"] is None


@pytest.mark.parametrize("to", ["parquet", "safetensors", "npy"])
def test_the_same_bytes_each_time(cache: FeatureCache, tmp_path: Path, to: Format) -> None:
    for name in ("one", "two"):
        export(cache, tmp_path / name, to)
    one, two = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        for name in ("one", "two")
    )
    assert one == two


@pytest.mark.parametrize("to", FORMATS)
def test_what_was_begun_is_written_anew(
    cache: FeatureCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: Format
) -> None:
    class Stop(Exception):
        pass

    publish = exporting.publish_bytes

    def stop(data: bytes, place: Path, **more: Any) -> None:
        if place.name == INFO:
            raise Stop
        publish(data, place, **more)

    with monkeypatch.context() as patch:
        patch.setattr(exporting, "publish_bytes", stop)
        with pytest.raises(Stop):
            export(cache, tmp_path / "out", to)
    assert not (tmp_path / "out" / INFO).exists()
    assert (tmp_path / "out" / exporting.BEGUN).exists()
    (tmp_path / "out" / ".tmp").mkdir()
    (tmp_path / "out" / ".tmp" / "left").write_text("of a killed one")
    export(cache, tmp_path / "out", to)
    assert len(read(tmp_path / "out", to)) == len(cache)
    assert not (tmp_path / "out" / ".tmp").exists()
    assert not (tmp_path / "out" / exporting.BEGUN).exists()


@pytest.mark.parametrize("to", FORMATS)
def test_a_damaged_cache_is_an_error_and_no_export(
    odd_cache: Path, tmp_path: Path, to: Format
) -> None:
    copy = Path(shutil.copytree(odd_cache, tmp_path / "cache"))
    tar = max((copy / "shards").glob("*.tar"))
    os.truncate(tar, 1000)
    with open_cache(copy) as cache, pytest.raises(CacheDamaged, match="ends inside"):
        export(cache, tmp_path / "out", to)
    assert not (tmp_path / "out" / INFO).exists()
    assert not (tmp_path / "out" / ".tmp").exists()


def test_clips_of_other_shapes_are_an_error(tmp_path: Path) -> None:
    def make(video_id: str, clip_index: int) -> Sample:
        sample = make_sample(video_id, clip_index)
        if clip_index:
            sample.features["image"] = sample.features["image"][:, :2].copy()
        return sample

    write_cache(CacheLayout(tmp_path / "cache"), [{"a": 2}], make=make)
    with (
        open_cache(tmp_path / "cache") as cache,
        pytest.raises(CacheDamaged, match=r"image is \(4, 2, 4, 32\) float16, not \(4, 4, 4, 32\)"),
    ):
        export(cache, tmp_path / "out", "npy", streams=("image",))


class TestRefuses:
    def test_a_place_that_is_taken(self, cache: FeatureCache, tmp_path: Path) -> None:
        export(cache, tmp_path / "out", "npy")
        with pytest.raises(UsageError, match="holds an export already"):
            export(cache, tmp_path / "out", "npy")
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "notes.txt").write_text("mine")
        with pytest.raises(UsageError, match=r"other files, such as notes.txt"):
            export(cache, tmp_path / "full", "npy")
        with pytest.raises(UsageError, match="is a file"):
            export(cache, tmp_path / "full" / "notes.txt", "npy")
        with pytest.raises(UsageError, match="is the cache itself"):
            export(cache, cache.layout.root, "npy")
        for name in ("probes", "events"):
            with pytest.raises(UsageError, match="lies in, the cache"):
                export(cache, cache.layout.root / name, "parquet")
        copy = shutil.copytree(cache.layout.root, tmp_path / "copy")
        with pytest.raises(UsageError, match="is a cache"):
            export(cache, copy, "npy")

    @pytest.mark.parametrize(
        ("to", "name"),
        [("npy", "image.npy"), ("safetensors", "index.parquet"), ("parquet", "x.npy")],
    )
    def test_a_file_of_its_own_kind_is_not_overwritten(
        self, cache: FeatureCache, tmp_path: Path, to: Format, name: str
    ) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / name).write_text("mine")
        with pytest.raises(UsageError, match=f"other files, such as {name}"):
            export(cache, tmp_path / "out", to)
        assert [path.name for path in (tmp_path / "out").iterdir()] == [name]
        assert (tmp_path / "out" / name).read_text() == "mine"

    def test_a_place_where_another_one_is_at_work(
        self, cache: FeatureCache, tmp_path: Path
    ) -> None:
        told: list[str] = []

        def another(_: int) -> None:
            with pytest.raises(CacheHeld, match="another export is at work") as caught:
                export(cache, tmp_path / "out", "npy")
            told.append(caught.value.hint)

        options = ExportOptions(streams=ALL)
        export_cache(cache, tmp_path / "out", to="npy", options=options, progress=another)
        assert told
        assert len(read(tmp_path / "out", "npy")) == len(cache)

    def test_no_such_stream_and_no_clip(self, cache: FeatureCache, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="no stream 'imag' in the cache; did you mean 'image'"):
            export(cache, tmp_path / "out", "npy", streams=("imag",))
        none = np.zeros(len(cache), dtype=np.bool_)
        with pytest.raises(UsageError, match="no clip is chosen"):
            export(cache, tmp_path / "out", "npy", rows=none)
        assert not (tmp_path / "out").exists()

    def test_lance_that_is_not_installed(
        self, cache: FeatureCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "lance", None)
        options = ExportOptions(streams=ALL)
        with pytest.raises(UsageError) as caught:
            export_cache(cache, tmp_path / "out", to="lance", options=options)
        assert caught.value.hint == "pip install 'reelcache[lance]'"

    @pytest.mark.parametrize("to", ["parquet", "safetensors", "npy"])
    def test_a_place_that_cannot_be_written(
        self, cache: FeatureCache, tmp_path: Path, to: Format
    ) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / ".tmp").symlink_to("/dev/full/x")
        with pytest.raises(StorageError):
            export(cache, tmp_path / "out", to)


@pytest.mark.parametrize("to", ["parquet", "safetensors", "npy"])
def test_from_a_store_into_a_store(
    s3: S3FileSystem, bucket: str, odd_cache: Path, cache: FeatureCache, tmp_path: Path, to: Format
) -> None:
    s3.put(str(odd_cache), f"{bucket}/cache", recursive=True)
    export(cache, tmp_path / "here", to)
    with open_cache(f"s3://{bucket}/cache") as remote:
        export(remote, f"s3://{bucket}/out", to)
        with pytest.raises(UsageError, match="on a local disk only"):
            export(remote, f"s3://{bucket}/lance", "lance")
    out = to_place(f"s3://{bucket}/out")
    there = {name: read_bytes(out / name) for name in list_sizes(out)}
    assert there == {path.name: path.read_bytes() for path in (tmp_path / "here").iterdir()}


def test_every_format_has_a_writer() -> None:
    assert set(WRITERS) == set(FORMATS)
