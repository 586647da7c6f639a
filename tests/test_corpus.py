"""Real files: the times are right, nothing is lost, and the same input gives the same bytes."""

from __future__ import annotations

import collections
import csv
import itertools
import json
import shutil
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import beam_runner
from pipeline.cache import FeatureCache, open_cache
from pipeline.layout import CacheLayout
from pipeline.options import RunOptions
from pipeline.planning import read_plan
from pipeline.probing import read_probes
from pipeline.report import RunReport
from pipeline.sources import read_sources
from schemas.recipe import Recipe
from schemas.reject import REASONS
from schemas.sidecar import Sidecar
from schemas.tables import REJECT_SCHEMA
from schemas.video import Probe, Source

TIME_TOLERANCE = 2e-6
RATES = ("1", "2")

REJECTED = {
    "WrongFile.mp4": "not_a_video",
    "empty.mp4": "empty_file",
    "en-AU_little_bottle.mp3": "no_video_stream",
    "fixture-moov.mov": "not_a_video",
    "jfk.flac": "no_video_stream",
    "minimal_init.mp4": "no_frames",
    "testMP3_coverArt.mp3": "no_video_stream",
    "testMP4AudioOnly.mp4": "no_video_stream",
    "truncated_no_moov.mp4": "not_a_video",
    "typescript.ts": "not_a_video",
}
COPIES = (
    {"bikes.mp4", "dups/bikes_exact_copy.mp4"},
    {"h265_video.mp4", "wrong_ext_mp4.avi"},
    {"rails_video.webm", "wrong_ext_webm.mp4"},
)
TRUNCATED = {"truncated_faststart.mp4", "fixture2_truncated.mkv"}
LONG = {"long_400s_loop.mp4"}  # decoded in pieces
CORRUPT = {"corrupt_midfile.mp4", "corrupted_decord.mp4"}
ODD_NAMES = {
    "-video-with-dash-.mp4",
    "names/100%d {brace} $HOME #1.mp4",
    "names/a/clip.mp4",
    "names/b/clip.mp4",
    "names/clip.v1.2.final.mp4",
    "names/double\"quote 'single'.mp4",
    "names/new\nline.mp4",
    "names/te[s]t_ video ' _ .flv",
    "names/видео 视频 ñé 🎬.mp4",
}
# Times that readers of these files may differ on, and streams that the manifest did not measure.
NOT_AS_IN_MANIFEST = {
    "mmaction_test.avi",  # B-frames in AVI: no presentation times
    "llamafactory_2.avi",  # the same
    "fixture-null.webm",
    "nasa_13013.mp4",  # the manifest is of the smaller of two streams
    "non_monotonic_dts.ts",
    "testASF_two_video.asf",
}


@dataclass(frozen=True)
class Corpus:
    """The files, by the names of the manifest."""

    folder: Path
    unpacked: Path

    @cached_property
    def rows(self) -> dict[str, dict[str, str]]:
        with (self.folder / "MANIFEST.tsv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
        return {row["file"].replace("\\n", "\n"): row for row in rows}

    @cached_property
    def truth(self) -> dict[str, Any]:
        truth: dict[str, Any] = json.loads((self.folder / "sampling_truth.json").read_text())
        return truth["files"]

    def path(self, name: str) -> Path:
        return (self.unpacked if name in ODD_NAMES else self.folder) / name

    def name(self, uri: str) -> str:
        path = Path(uri)
        base = self.unpacked if path.is_relative_to(self.unpacked) else self.folder
        return str(path.relative_to(base))


@dataclass(frozen=True)
class Run:
    """One run over the corpus, and what it left."""

    corpus: Corpus
    sources: tuple[Source, ...]
    recipe: Recipe
    report: RunReport
    cache: FeatureCache

    @property
    def layout(self) -> CacheLayout:
        return self.cache.layout

    @cached_property
    def probes(self) -> dict[str, Probe]:
        return {self.corpus.name(probe.source.uri): probe for probe in read_probes(self.layout)}

    @cached_property
    def sidecars(self) -> list[Sidecar]:
        return [
            Sidecar.from_json(path.read_text(), where=str(path))
            for path in (self.layout.sidecar(spec.name) for spec in read_plan(self.layout))
        ]

    @cached_property
    def rejects(self) -> dict[str, dict[str, Any]]:
        import pyarrow.parquet as pq

        table = pq.read_table(self.layout.rejects)
        assert table.schema.names == REJECT_SCHEMA.names
        return {self.corpus.name(row["uri"]): row for row in table.to_pylist()}

    def frame_starts(self, name: str) -> np.ndarray[Any, Any]:
        """When each sampled frame of a file begins to be shown, as stored."""
        samples = list(self.cache.video(self.probes[name].video_id))
        return np.concatenate([sample.times[sample.mask, 0] for sample in samples])


@pytest.fixture(scope="module")
def corpus(corpus_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    unpacked = tmp_path_factory.mktemp("odd_names")
    with tarfile.open(corpus_dir / "odd_names.tar") as archive:
        archive.extractall(unpacked, filter="data")
    return Corpus(corpus_dir, unpacked)


@pytest.fixture(scope="module")
def runs(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Iterable[dict[str, Run]]:
    """Rate -> a run over all files."""
    sources = read_sources([str(corpus.folder), str(corpus.unpacked)]).sources
    made = {}
    for fps in RATES:
        recipe = Recipe.load("tiny", overrides=[f"sampling.fps={fps}"])
        path = tmp_path_factory.mktemp("caches") / f"fps_{fps}"
        report = beam_runner.run(sources, recipe, cache_path=path)
        made[fps] = Run(corpus, sources, recipe, report, open_cache(path))
    yield made
    for run in made.values():
        run.cache.close()


@pytest.fixture(scope="module", params=RATES)
def run(request: pytest.FixtureRequest, runs: dict[str, Run]) -> Run:
    run: Run = runs[request.param]
    return run


pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_every_file_of_the_manifest_is_a_source(run: Run) -> None:
    assert run.probes.keys() == run.corpus.rows.keys()
    assert len(run.sources) == len(run.probes)


def test_sampled_frames_are_the_true_ones(run: Run) -> None:
    checked = 0
    for name, truth in run.corpus.truth.items():
        if truth.get("ambiguous"):
            continue
        expected = [entry["pts"] for entry in truth[f"fps_{run.recipe.sampling.fps:.0f}"]]
        found = run.frame_starts(name)
        assert len(found) == len(expected), name
        np.testing.assert_allclose(found, expected, rtol=0, atol=TIME_TOLERANCE, err_msg=name)
        checked += 1
    assert checked == 18


def test_stored_times_bracket_the_grid(run: Run) -> None:
    """Of every sample of every file: its frame begins at or before the grid time and lasts on."""
    fps = run.recipe.sampling.fps
    for video_id, keys in run.cache.videos.items():
        first = run.cache[keys[0]].times[0, 0]
        ks = [run.cache.row(key).clip_index * 4 + np.arange(4) for key in keys]
        masks = [run.cache[key].mask for key in keys]
        grid = first + np.concatenate(ks)[np.concatenate(masks)] / fps
        times = np.concatenate([run.cache[key].times[run.cache[key].mask] for key in keys])
        assert (times[:, 0] <= grid + TIME_TOLERANCE).all(), video_id
        assert (times[:, 1] > grid - TIME_TOLERANCE).all(), video_id
        assert (times[:, 0] < times[:, 1]).all(), video_id


def test_clips_tile_every_video(run: Run) -> None:
    n = run.recipe.sampling.frames_per_clip
    for video_id, keys in run.cache.videos.items():
        rows = [run.cache.row(key) for key in keys]
        assert [row.clip_index for row in rows] == list(range(len(rows))), video_id
        assert all(row.num_frames == n for row in rows[:-1]), video_id
        for before, after in itertools.pairwise(rows):
            assert before.end_seconds == after.start_seconds, video_id
        last = run.cache[keys[-1]]
        assert list(last.mask) == [number < rows[-1].num_frames for number in range(n)]
        for fill in range(rows[-1].num_frames, n):
            assert np.array_equal(last.times[fill], last.times[rows[-1].num_frames - 1])
            for features in last.features.values():
                assert features.shape[0] == n


def test_first_frame_and_number_of_samples_agree_with_the_manifest(run: Run) -> None:
    fps = run.recipe.sampling.fps
    checked = 0
    for name, row in run.corpus.rows.items():
        if name in REJECTED or name in NOT_AS_IN_MANIFEST:
            continue
        first, last = float(row["first_pts"]), float(row["last_pts"])
        starts = run.frame_starts(name)
        assert starts[0] == pytest.approx(first, abs=TIME_TOLERANCE), name
        assert len(starts) == int((last - first + 1e-6) * fps) + 1, name
        assert starts[-1] <= last + TIME_TOLERANCE, name
        checked += 1
    assert checked > 90


def test_frames_were_decoded_as_far_as_needed(run: Run) -> None:
    orders = collections.Counter[str]()
    outcomes = {o.video_id: o for sidecar in run.sidecars for o in sidecar.videos}
    for name, row in run.corpus.rows.items():
        if name in REJECTED or name in NOT_AS_IN_MANIFEST or name in LONG:
            continue
        outcome = outcomes[run.probes[name].video_id]
        # Of a cut file the two readers of the manifest decode a different number.
        counts = {int(row["nb_frames_pyav"]), int(row["nb_frames_ffprobe"])}
        orders[outcome.order] += 1
        if outcome.order == "selected":
            assert 0 < outcome.num_frames_decoded <= max(counts), name
        else:
            assert outcome.num_frames_decoded in counts, name
    assert orders["selected"] > 2 * (orders["all"] + orders["sorted"]) > 0


def test_every_file_has_samples_or_exactly_one_reject(run: Run) -> None:
    cached = {name for name, probe in run.probes.items() if probe.video_id in run.cache.videos}
    assert cached.isdisjoint(run.rejects)
    assert cached | run.rejects.keys() == run.probes.keys()
    assert {(row["uri"], row["reason"]) for row in run.rejects.values()} == {
        (reject.uri, reject.reason) for reject in run.report.rejects
    }
    assert len(run.report.rejects) == len(run.rejects)
    counts = run.cache.info.counts
    assert counts["sources"] == len(run.probes)
    assert counts["cached"] == len(cached)
    assert counts["rejected"] == len(run.rejects)
    assert counts["samples"] == len(run.cache)


def test_rejects_have_the_expected_reasons(run: Run) -> None:
    assert {name: row["reason"] for name, row in run.rejects.items()} == REJECTED
    for row in run.rejects.values():
        assert row["reason"] in REASONS
        assert row["retryable"] == REASONS[row["reason"]][1]
        assert row["stage"] == "probe"
        assert row["detail"]


def test_the_report_counts_every_source_once(run: Run) -> None:
    report = run.report
    assert report.rejected == len(REJECTED)
    assert report.skipped == sum(len(names) - 1 for names in COPIES)
    assert report.videos + report.rejected + report.skipped == len(run.sources)
    assert report.clips == len(run.cache)
    assert report.videos == len(run.cache.videos)


def test_identical_files_are_one_video(run: Run) -> None:
    sharing: dict[str, set[str]] = {}
    for name, probe in run.probes.items():
        if probe.reject is None:
            sharing.setdefault(probe.video_id, set()).add(name)
    shared = [names for names in sharing.values() if len(names) > 1]
    assert sorted(map(sorted, shared)) == sorted(map(sorted, COPIES))
    for names in COPIES:
        video_id = run.probes[next(iter(names))].video_id
        pieces = [p for spec in read_plan(run.layout) for p in spec.pieces]
        uris = {piece.uri for piece in pieces if piece.video_id == video_id}
        assert len(uris) == 1


def test_truncated_and_corrupt_files_say_so(run: Run) -> None:
    truncated, corrupt = set(), set()
    for name in run.probes.keys() - REJECTED.keys():
        samples = list(run.cache.video(run.probes[name].video_id))
        if any(sample.info["truncated"] for sample in samples):
            truncated.add(name)
        if any(sample.info["corrupt"] for sample in samples):
            corrupt.add(name)
    assert truncated == TRUNCATED
    # A cut file ends in half a frame, which is damage too.
    assert corrupt >= CORRUPT
    assert corrupt <= CORRUPT | TRUNCATED


def test_missing_clips_have_a_reason(run: Run) -> None:
    missing = {m.video_id: m for sidecar in run.sidecars for m in sidecar.missing}
    names = {n for n, probe in run.probes.items() if probe.video_id in missing}
    assert names <= TRUNCATED | CORRUPT | {"non_monotonic_dts.ts"}
    assert {m.reason for m in missing.values()} <= {"truncated", "corrupt", "timestamps"}


def test_odd_names_are_ordinary(run: Run) -> None:
    for name in ODD_NAMES:
        keys = run.cache.videos[run.probes[name].video_id]
        assert keys
        assert run.cache[keys[0]].info["source_name"] == Path(name).name
    for key in itertools.chain(*run.cache.videos.values()):
        assert set(key) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
    a, b = (run.probes[f"names/{folder}/clip.mp4"].video_id for folder in "ab")
    assert a != b


def test_rotation_and_pixel_shape_are_applied(run: Run) -> None:
    expected = {
        "portrait.MOV": (320, 568),
        "rails_rotated_video.mp4": (480, 640),
        "rails_rotated_hdr_video.mov": (1080, 1920),
        "video_90.mov": (320, 568),
        "video_180.mov": (568, 320),
        "video_270.mov": (320, 568),
        "nasa_13013.mp4": (480, 270),
        "big_buck_bunny_metadata.m4v": (320, 180),
    }
    for name, size in expected.items():
        [info, *_] = [s.info for s in run.cache.video(run.probes[name].video_id)]
        assert (info["display_width"], info["display_height"]) == size, name
    wide = next(run.cache.video(run.probes["rails_rectangular_samples.mp4"].video_id)).info
    assert (wide["source_width"], wide["source_height"]) == (1280, 1080)
    assert (wide["display_width"], wide["display_height"]) == (1920, 1080)


def test_sound_is_noted(run: Run) -> None:
    for name in run.probes.keys() - REJECTED.keys():
        has_audio = run.corpus.rows[name]["has_audio"] == "yes"
        for sample in run.cache.video(run.probes[name].video_id):
            assert sample.info["has_audio"] == has_audio, name


def test_a_second_run_does_nothing(run: Run) -> None:
    before = snapshot(run.layout.root)
    report = beam_runner.run(run.sources, run.recipe, cache_path=run.layout.root)
    assert (report.videos, report.clips, report.shards, report.bytes) == (0, 0, 0, 0)
    assert report.rejected == len(REJECTED)
    assert report.skipped == len(run.sources) - len(REJECTED)
    assert snapshot(run.layout.root) == before


def snapshot(root: Path) -> dict[str, tuple[int, int]]:
    """Path -> (inode, time of change): equal only where nothing was written again."""
    return {
        str(path.relative_to(root)): (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in root.rglob("*")
        if path.is_file()
    }


# A few files, in several shards: the same input, the same bytes

FEW = (
    "fps_120_bikes.mp4",
    "video_90.mov",
    "corrupt_midfile.mp4",
    "testMKV.mkv",
    "wrong_ext_mp4.avi",
    "h265_video.mp4",
    "non_monotonic_dts.ts",
    "WrongFile.mp4",
    "start_at_10s.mp4",
)
SMALL_SHARDS = Recipe.load("tiny", overrides=["shards.max_seconds=6"])


def run_few(
    corpus: Corpus, names: Iterable[str], cache_path: Path, *, num_workers: int = 1
) -> RunReport:
    return beam_runner.run(
        [Source(uri=str(corpus.path(name))) for name in names],
        SMALL_SHARDS,
        cache_path=cache_path,
        options=RunOptions(num_workers=num_workers),
    )


def shard_bytes(root: Path) -> dict[str, bytes]:
    layout = CacheLayout(root)
    files = [*layout.shards.iterdir(), layout.index, layout.info, layout.wids, layout.rejects]
    return {path.name: path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def few(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("few") / "cache"
    run_few(corpus, FEW, root)
    assert len(list(CacheLayout(root).shards.glob("*.tar"))) >= 4
    return root


def test_the_order_of_the_sources_makes_no_difference(
    few: Path, corpus: Corpus, tmp_path: Path
) -> None:
    run_few(corpus, reversed(FEW), tmp_path / "cache")
    assert shard_bytes(tmp_path / "cache") == shard_bytes(few)


def test_the_number_of_workers_makes_no_difference(
    few: Path, corpus: Corpus, tmp_path: Path
) -> None:
    run_few(corpus, FEW, tmp_path / "cache", num_workers=2)
    assert shard_bytes(tmp_path / "cache") == shard_bytes(few)


def test_where_the_files_lie_makes_no_difference_to_the_shards(
    few: Path, corpus: Corpus, tmp_path: Path
) -> None:
    moved = tmp_path / "moved"
    for name in FEW:
        # So that the order of the paths is another one than that of the names.
        folder = moved / ("b" if name.startswith("h265") else "a")
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(corpus.path(name), folder / name)
    sources = read_sources([str(moved)]).sources
    beam_runner.run(sources, SMALL_SHARDS, cache_path=tmp_path / "cache")
    ours, theirs = shard_bytes(tmp_path / "cache"), shard_bytes(few)
    assert [n for n in ours if n.endswith(".tar")] != []
    for name in ours:
        if name.endswith((".tar", ".idx")):
            assert ours[name] == theirs[name]


def test_what_a_killed_run_left_is_built_again_to_the_same_bytes(
    few: Path, corpus: Corpus, tmp_path: Path
) -> None:
    """A tar without its sidecar does not exist; scratch files and a lost index do no harm."""
    root = tmp_path / "cache"
    shutil.copytree(few, root)
    layout = CacheLayout(root)
    first, second, *_ = read_plan(layout)
    layout.sidecar(first.name).unlink()
    layout.tar(first.name).write_bytes(b"half a tar")
    layout.sidecar(second.name).unlink()
    layout.tar(second.name).unlink()
    layout.info.unlink()
    layout.scratch.mkdir()
    (layout.scratch / "leftover.tar").write_bytes(b"x")
    report = run_few(corpus, FEW, root)
    assert report.shards == 2
    assert shard_bytes(root) == shard_bytes(few)
    assert not layout.scratch.exists()


def test_more_videos_add_shards_and_change_none(corpus: Corpus, tmp_path: Path) -> None:
    root = tmp_path / "cache"
    run_few(corpus, FEW[:4], root)
    layout = CacheLayout(root)
    before = {path.name: path.read_bytes() for path in layout.shards.iterdir()}
    plan_before = read_plan(layout)
    with open_cache(root) as cache:
        keys = set(cache.keys())
    report = run_few(corpus, FEW, root)
    assert report.videos == 3
    after = {path.name: path.read_bytes() for path in layout.shards.iterdir()}
    assert {name: after[name] for name in before} == before
    assert len(after) > len(before)
    assert read_plan(layout)[: len(plan_before)] == plan_before
    with open_cache(root) as cache:
        assert keys < set(cache.keys())
        assert len(cache.videos) == 7


def test_fewer_sources_take_nothing_away(few: Path, corpus: Corpus, tmp_path: Path) -> None:
    root = tmp_path / "cache"
    shutil.copytree(few, root)
    report = run_few(corpus, FEW[:2], root)
    assert (report.videos, report.rejected, report.skipped) == (0, 0, 2)
    assert shard_bytes(root) == shard_bytes(few)
