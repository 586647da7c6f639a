"""choose_clips: what a manifest, a name or a filter means of a cache with odd names and spans."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.cache import FeatureCache, open_cache
from pipeline.choosing import choose_clips
from pipeline.clip_columns import OF_VIDEOS, _as_column, clip_columns
from pipeline.manifest import read_manifest
from schemas.errors import SourceError, UsageError
from tests.pipeline.odd_videos import ODD_ID, ODD_NAME

SPAN = "vbd7df92dc31e0a1a"
"""What the ids of the two spans of one video begin with."""


@pytest.fixture
def cache(odd_cache: Path) -> Iterator[FeatureCache]:
    with open_cache(odd_cache) as opened:
        yield opened


def chosen(cache: FeatureCache, path: Path | None = None, **options: Any) -> set[str]:
    manifest = None if path is None else read_manifest(str(path))
    choice = choose_clips(cache, manifest=manifest, **options)
    return set(cache.index.column("key").filter(pa.array(choice.rows)).to_pylist())


def keys(cache: FeatureCache, *video_ids: str) -> set[str]:
    return {key for video_id in video_ids for key in cache.videos[video_id]}


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A manifest of the kind that the name tells."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    else:
        names = list(dict.fromkeys(name for row in rows for name in row))
        buffer = io.StringIO(newline="")
        delimiter = "\t" if path.suffix == ".tsv" else ","
        writer = csv.DictWriter(buffer, names, delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
        path.write_text(buffer.getvalue())
    return path


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_a_manifest_of_ids_uris_and_spans(
    cache: FeatureCache, odd_cache: Path, tmp_path: Path, suffix: str
) -> None:
    folder = odd_cache.parent
    rows = [
        {"id": ODD_ID, "uri": None, "start": None, "end": None},
        {"id": None, "uri": str(folder / "with_audio.mp4"), "start": 2.5, "end": 3},
        {"id": None, "uri": str(folder / "starts_at_10s.mp4"), "start": 13.999, "end": None},
    ]
    path = write(tmp_path / f"list{suffix}", rows)
    (sound,) = (name for name in cache.videos if cache.aliases[rows[1]["uri"]] == name)  # type: ignore[index]
    expected = keys(cache, ODD_ID) | {cache.videos[sound][1]} | set(cache.videos["late"][1:])
    assert chosen(cache, path) == expected


@pytest.mark.parametrize(
    "name",
    [
        ODD_ID,
        "copy.mp4",
        "more/copy.mp4",
        "{folder}/more/copy.mp4",
        "file://{folder}/more/copy.mp4",
    ],
)
def test_a_video_by_any_of_its_names(
    cache: FeatureCache, odd_cache: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(odd_cache.parent)
    name = name.format(folder=odd_cache.parent)
    assert chosen(cache, videos=[name]) == keys(cache, ODD_ID)


def test_text_is_relative_to_the_list_and_may_hold_ids(
    cache: FeatureCache, odd_cache: Path, tmp_path: Path
) -> None:
    text = odd_cache.parent / "more" / "names.txt"
    text.write_text("late\n\n copy.mp4\n../with_audio.mp4\n".replace(" copy", "copy"))
    found = chosen(cache, text)
    assert keys(cache, "late", ODD_ID) < found and len(found) == 9
    text.unlink()


def test_spans_of_one_uri_are_told_apart(
    cache: FeatureCache, odd_cache: Path, tmp_path: Path
) -> None:
    uri = str(odd_cache.parent / "50.mp4")
    early, late = sorted(name for name in cache.videos if name.startswith(SPAN))

    def of(**span: float) -> set[str]:
        return chosen(cache, write(tmp_path / "spans.jsonl", [{"uri": uri} | span]))

    assert of(start=1, end=4) == keys(cache, early), "the request itself"
    assert of(start=3.5) == keys(cache, late)
    assert of() == keys(cache, early, late), "all that are of the file"
    assert of(start=3.6, end=3.7) == {cache.videos[early][1], *keys(cache, late)}
    assert of(start=1.2, end=1.3) == {cache.videos[early][0]}


def test_rows_that_match_nothing(cache: FeatureCache, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"id": f"no{i}"} for i in range(7)]
    rows += [{"id": "lat"}, {"id": "late", "start": 100.0, "end": 101.0}, {"id": "late"}]
    path = write(tmp_path / "list.jsonl", rows)
    with pytest.raises(UsageError, match=r"9 of 10 rows match nothing") as caught:
        chosen(cache, path)
    assert "list.jsonl:1: 'no0'" in caught.value.message
    assert "and 4 more" in caught.value.message
    assert "--skip-missing" in caught.value.hint
    choice = choose_clips(cache, manifest=read_manifest(str(path)), skip_missing=True)
    assert int(choice.rows.sum()) == len(cache.videos["late"])
    assert len(choice.skipped) == 9
    assert "did you mean 'late'" in choice.skipped[7]
    assert "no clip of 'late' overlaps [100.0, 101.0) s" in choice.skipped[8]
    with pytest.raises(UsageError, match=r"no video 'lat'.*did you mean 'late'"):
        choose_clips(cache, videos=["lat"])


def test_rejected_sources_are_told_apart_from_unknown_ones(
    cache: FeatureCache, odd_cache: Path
) -> None:
    choice = choose_clips(cache, videos=["broken", "late"])
    assert [identity[1] for identity in choice.rejected] == ["broken"]
    assert int(choice.rows.sum()) == 3
    by_path = choose_clips(cache, videos=[str(odd_cache.parent / "broken.mp4")])
    assert by_path.rejected == choice.rejected
    assert not choose_clips(cache, videos=["broken"], where="true").rejected


def test_a_filter_over_all_columns(cache: FeatureCache) -> None:
    table = clip_columns(cache)
    assert table.num_rows == len(cache)
    assert set(OF_VIDEOS) <= set(table.schema.names)
    assert "member_names" not in table.schema.names
    late = chosen(cache, where="video_id == 'late'")
    assert late == keys(cache, "late")
    assert chosen(cache, where="'starts_at' in uri and start_seconds >= 12") < late
    filled = {sample.key for sample in cache if not sample.mask.all()}
    assert chosen(cache, where="num_frames < 4") == filled != set()
    assert chosen(cache, where="end_seconds - start_seconds >= 2", videos=["late"]) < late


def test_columns_are_documented(cache: FeatureCache) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "caches.md"
    section = page.read_text(encoding="utf-8").partition("### Expressions")[2].partition("\n## ")[0]
    named = re.findall(r"`(\w+)`", section)
    assert [name for name in clip_columns(cache).schema.names if name != "label"] == [
        name for name in dict.fromkeys(named) if name in clip_columns(cache).schema.names
    ]


def test_the_lists_own_columns(cache: FeatureCache) -> None:
    assert chosen(cache, where="label == 'first'") == keys(cache, ODD_ID)
    assert chosen(cache, where="label is null and video_id == 'late'") == keys(cache, "late")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1", "", "-2.5e1", None], [1.0, None, -25.0, None]),
        (["007", "1"], ["007", "1"]),
        (["1", "x", ""], ["1", "x", None]),
        ([True, None, False], [True, None, False]),
        ([1, 2.5, None], [1.0, 2.5, None]),
        ([1, True, "x"], ["1", "true", '"x"']),
        ([["a"], {"ü": 1}, None], ['["a"]', '{"ü": 1}', None]),
        ([None, ""], [None, None]),
        ([10**400, -(10**400)], [float("inf"), float("-inf")]),
    ],
)
def test_columns_are_what_all_of_them_are(values: list[Any], expected: list[Any]) -> None:
    assert _as_column(values).to_pylist() == expected


def test_nulls_are_left_out_and_counted(cache: FeatureCache) -> None:
    silent = choose_clips(cache, where="loudness > -200")
    num_null = cache.index.column("loudness").null_count
    assert silent.num_null == num_null > 0
    assert int(silent.rows.sum()) == len(cache) - num_null
    few = choose_clips(cache, where="loudness > -200", videos=["late"])
    assert few.num_null == 3, "of those that were named"


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("list.mp4", b"", "a list is one of"),
        ("list.csv", b"name\nx\n", "neither a uri nor an id"),
        ("list.csv", b"uri,start\nx,soon\n", "must be a number of seconds"),
        ("list.csv", b"uri,start,end\nx,3,2\n", "must be before its end"),
        ("list.csv", b"uri,id\nx\n", "fewer cells"),
        ("list.csv", b"uri\nx,y\n", "more cells"),
        ("list.txt", b"\n\n", "the list is empty"),
        ("list.txt", b"\xff\xfe", "not a readable list"),
        ("list.jsonl", b"{", "not JSON"),
        ("list.jsonl", b'{"uri": 3}', "neither a uri nor an id"),
        ("list.parquet", b"PAR1", "not a readable list"),
    ],
)
def test_a_manifest_that_cannot_be_read(tmp_path: Path, name: str, data: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(SourceError, match=words):
        read_manifest(str(tmp_path / name))
    with pytest.raises(SourceError, match="not a readable list"):
        read_manifest(str(tmp_path / "nowhere.csv"))


def test_the_odd_name_is_odd() -> None:
    assert {"'", '"', ".", ","} <= set(ODD_NAME)
    assert {"\n", "/", '"', "ü"} <= set(ODD_ID)
