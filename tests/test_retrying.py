"""Rejects are work: they are listed as sources, tried again, and too many of them end a run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import beam_runner
from pipeline.cli import call
from pipeline.cli.retrying import chosen_reasons, with_values
from pipeline.fetching import Fetcher
from pipeline.layout import CacheLayout
from pipeline.planning import read_plan
from pipeline.report import RunReport
from pipeline.sources import read_sources
from pipeline.verifying import verify_cache
from schemas.errors import NothingUsable, TooManyRejects, UsageError, VideoError
from schemas.recipe import Recipe
from schemas.reject import REASONS, RETRYABLE

if TYPE_CHECKING:
    from tests.clips import ClipShelf

TINY = Recipe.load("tiny", overrides=["shards.max_seconds=4"])


def run(cache: Path, *arguments: Path, retry: Any = (), **options: Any) -> RunReport:
    sources = read_sources([str(path) for path in arguments]).sources if arguments else None
    options_ = beam_runner.RunOptions(**options)
    return beam_runner.run(sources, TINY, cache_path=cache, options=options_, retry=retry)


def num_shards(cache: Path) -> int:
    return len(read_plan(CacheLayout(cache)))


def files(cache: Path) -> dict[str, tuple[int, int]]:
    """Every file, with the time of its last change."""
    found = {}
    for path in cache.rglob("*"):
        if path.is_file():
            status = path.stat()
            found[str(path.relative_to(cache))] = (status.st_mtime_ns, status.st_ino)
    return found


@pytest.fixture
def videos(clips: ClipShelf, tmp_path: Path) -> Path:
    folder = tmp_path / "videos"
    folder.mkdir()
    for name in ("25.mp4", "50.mp4", "one_frame.mp4"):
        shutil.copy(clips[name].path, folder / name)
    return folder


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """File name -> the reason for which its build fails; empty it to mend them."""
    reasons: dict[str, str] = {}
    path_of = Fetcher.path

    def fail(self: Fetcher, piece: Any) -> str:
        name = Path(piece.uri).name
        if name in reasons:
            raise VideoError(reasons[name], "as the test wants it")
        return path_of(self, piece)

    monkeypatch.setattr(Fetcher, "path", fail)
    return reasons


def test_a_build_reject_is_tried_again_when_asked_only(
    videos: Path, tmp_path: Path, failing: dict[str, str]
) -> None:
    cache = tmp_path / "cache"
    failing["25.mp4"] = "timed_out"
    report = run(cache, videos)
    assert (report.videos, report.rejected, report.retryable) == (2, 1, 1)
    before, shards = files(cache), num_shards(cache)
    run(cache, videos)
    assert files(cache) == before
    report = run(cache, videos, retry=RETRYABLE)
    assert (report.rejected, num_shards(cache)) == (1, shards + 1)
    assert verify_cache(cache, deep=True).findings == []
    before = files(cache)
    run(cache, videos)
    assert files(cache) == before
    failing.clear()
    report = run(cache, retry={"timed_out"})
    assert (report.videos, report.rejected, report.skipped) == (1, 0, 2)
    assert num_shards(cache) == shards + 2
    assert verify_cache(cache, deep=True).findings == []
    before = files(cache)
    report = run(cache, retry=RETRYABLE)
    assert (report.videos, report.skipped) == (0, 3)
    assert files(cache) == before


def test_shards_that_are_there_stay_as_they_are(
    videos: Path, tmp_path: Path, failing: dict[str, str]
) -> None:
    cache = tmp_path / "cache"
    failing["50.mp4"] = "timed_out"
    run(cache, videos)
    before = {path: path.read_bytes() for path in (cache / "shards").iterdir()}
    failing.clear()
    run(cache, retry=RETRYABLE)
    assert {path: path.read_bytes() for path in before} == before
    assert len(list((cache / "shards").iterdir())) > len(before)


def test_a_permanent_reject_is_tried_again_only_by_its_name(
    videos: Path, tmp_path: Path, failing: dict[str, str]
) -> None:
    cache = tmp_path / "cache"
    failing["25.mp4"] = "crashed"
    assert run(cache, videos).retryable == 0
    failing.clear()
    assert run(cache, retry=RETRYABLE).rejected == 1
    assert run(cache, retry={"timed_out"}).rejected == 1
    assert run(cache, retry={"crashed"}).rejected == 0


def test_only_the_sources_that_are_named_are_tried_again(
    videos: Path, tmp_path: Path, failing: dict[str, str]
) -> None:
    cache = tmp_path / "cache"
    failing.update({"25.mp4": "timed_out", "50.mp4": "timed_out"})
    run(cache, videos)
    failing.clear()
    report = run(cache, videos / "25.mp4", retry=RETRYABLE)
    assert (report.videos, report.rejected) == (1, 0)
    assert json.loads((cache / "cache.json").read_text())["counts"]["rejected"] == 1


def test_the_newest_reason_counts(videos: Path, tmp_path: Path, failing: dict[str, str]) -> None:
    cache = tmp_path / "cache"
    failing["25.mp4"] = "timed_out"
    run(cache, videos)
    failing["25.mp4"] = "crashed"
    report = run(cache, retry={"timed_out"})
    assert [reject.reason for reject in report.rejects] == ["crashed"]
    assert verify_cache(cache).findings == []


def test_a_file_that_can_be_found_and_never_read_does_not_make_the_cache_grow(
    videos: Path, tmp_path: Path, failing: dict[str, str]
) -> None:
    cache = tmp_path / "cache"
    failing["25.mp4"] = "unreadable"
    run(cache, videos)
    run(cache, videos)
    shards = num_shards(cache)
    run(cache, videos)
    assert num_shards(cache) == shards


def test_a_piece_that_is_planned_again_and_not_built_is_not_planned_once_more(
    videos: Path, tmp_path: Path, failing: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    failing["25.mp4"] = "timed_out"
    run(cache, videos)
    failing.clear()

    def end(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("beam_runner.build", end)
        with pytest.raises(KeyboardInterrupt):
            run(cache, retry=RETRYABLE)
    shards = num_shards(cache)
    assert run(cache, retry=RETRYABLE).rejected == 0
    assert num_shards(cache) == shards
    assert verify_cache(cache).findings == []


def test_a_probe_reject_is_probed_again(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"

    def fail(*_: Any, **__: Any) -> Any:
        raise VideoError("timed_out", "as the test wants it")

    with monkeypatch.context() as patch:
        patch.setattr("pipeline.probing._ask", fail)
        with pytest.raises(NothingUsable, match="none of 3 sources is usable: 3 timed_out"):
            run(cache, videos)
        with pytest.raises(NothingUsable):
            run(cache, retry=RETRYABLE)
        probes = len(list((cache / "probes").iterdir()))
    with pytest.raises(NothingUsable):
        run(cache, videos)
    assert len(list((cache / "probes").iterdir())) == probes == 1
    report = run(cache, retry=RETRYABLE)
    assert (report.videos, report.rejected) == (3, 0)


def test_a_conflict_of_ids_is_told_once(videos: Path, tmp_path: Path) -> None:
    cache, listed = tmp_path / "cache", tmp_path / "list.csv"
    listed.write_text(
        f"uri,id\n{videos / '25.mp4'},x\n{videos / '50.mp4'},x\n{videos / 'one_frame.mp4'},y\n"
    )
    assert run(cache, listed).rejected == 2
    before = files(cache)
    assert run(cache, listed).rejected == 2
    assert files(cache) == before


def test_without_a_cache_there_is_nothing_to_try_again(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no cache"):
        run(tmp_path / "cache", retry=RETRYABLE)
    assert not (tmp_path / "cache").exists()


class TestReasons:
    def test_the_value_may_be_left_out(self) -> None:
        assert with_values(["--retry-rejects", "cache/"]) == [
            "--retry-rejects",
            "retryable",
            "cache/",
        ]
        assert with_values(["c", "--retry-rejects"]) == ["c", "--retry-rejects", "retryable"]
        given = ["--retry-rejects", "timed_out", "--retry-rejects=crashed", "cache/"]
        assert with_values(given) == given

    def test_only_retryable_ones_are_meant_without_a_name(self) -> None:
        assert chosen_reasons(()) == frozenset()
        assert chosen_reasons(("retryable",)) == RETRYABLE < set(REASONS)
        assert chosen_reasons(("retryable", "crashed")) == RETRYABLE | {"crashed"}


class TestCommands:
    def test_rejects_as_sources_are_a_list_that_run_takes(
        self,
        videos: Path,
        tmp_path: Path,
        failing: dict[str, str],
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        listed, cache = tmp_path / "list.jsonl", tmp_path / "cache"
        (videos / "broken.mp4").write_text("no video")
        rows = [
            {"uri": "videos/25.mp4", "start": 0.5, "end": 2.5, "label": "first \u00e4"},
            {"uri": "videos/25.mp4", "start": 2.5, "label": "second"},
            {"uri": "videos/50.mp4", "id": "fifty", "label": "good"},
            {"uri": "videos/broken.mp4", "id": "broken", "label": None},
        ]
        listed.write_text("".join(json.dumps(row) + "\n" for row in rows))
        failing["25.mp4"] = "timed_out"
        assert call(["run", str(listed), str(cache), "-q"]) == 0
        out = capsys.readouterr().out
        assert "3 of 4 sources (2 timed_out, 1 not_a_video)" in out
        assert "2 may succeed later (2 timed_out), 1 is permanent (1 not_a_video)" in out
        assert f"pipeline run --retry-rejects {cache}" in out
        texts = {}
        for name, arguments in {
            "all": (),
            "later": ("--retryable",),
            "never": ("--permanent",),
            "reason": ("--reason", "timed_out"),
            "none": ("--reason", "timed_out", "--permanent"),
        }.items():
            assert call(["rejects", str(cache), "--as-sources", *arguments]) == 0
            texts[name] = capsys.readouterr().out
        again = tmp_path / "elsewhere" / "again.jsonl"
        again.parent.mkdir()
        again.write_text(texts["all"])
        original = read_sources([str(listed)]).sources
        assert {s.identity: s.extra for s in read_sources([str(again)]).sources} == {
            s.identity: s.extra for s in original if s.video_id != "fifty"
        }
        assert texts["later"] == texts["reason"]
        assert sorted((texts["later"] + texts["never"]).splitlines()) == sorted(
            texts["all"].splitlines()
        )
        assert texts["none"] == ""
        failing.clear()
        command = ["run", str(again), str(cache), "--retry-rejects", "--json", "-q"]
        assert call(command) == 0
        report = json.loads(capsys.readouterr().out)
        assert (report["videos"], report["rejected"], report["retryable"]) == (2, 1, 0)
        assert verify_cache(cache).findings == []

    def test_as_sources_has_its_own_form(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert call(["rejects", str(tmp_path), "--as-sources", "--json"]) == 2
        assert "leave out --json" in capsys.readouterr().err

    def test_sources_may_be_left_out(
        self,
        videos: Path,
        tmp_path: Path,
        failing: dict[str, str],
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        cache = str(tmp_path / "cache")
        failing["25.mp4"] = "timed_out"
        assert call(["run", str(videos), cache, "-q"]) == 0
        failing.clear()
        capsys.readouterr()
        assert call(["run", "--retry-rejects", cache, "--json", "-q"]) == 0
        assert json.loads(capsys.readouterr().out)["videos"] == 1
        assert call(["run", cache, "-q"]) == 2
        assert call(["run", "--retry-rejects=timedout", cache, "-q"]) == 2
        assert "timed_out" in capsys.readouterr().err


@pytest.fixture
def many(clips: ClipShelf, tmp_path: Path) -> Path:
    """Twelve videos of different content, each a shard of its own."""
    folder = tmp_path / "many"
    folder.mkdir()
    data = clips["25.mp4"].path.read_bytes()
    for number in range(12):
        tail = b"\0\0\0\x0cfree" + number.to_bytes(4, "big")
        (folder / f"{number:02}.mp4").write_bytes(data + tail)
    return folder


class TestStoppingEarly:
    def test_a_build_stops_once_it_can_only_get_worse(
        self, many: Path, tmp_path: Path, failing: dict[str, str]
    ) -> None:
        cache = tmp_path / "cache"
        failing.update({path.name: "timed_out" for path in many.iterdir()})
        with pytest.raises(
            TooManyRejects, match=r"3 of 12 .* limit is 20.0%\): 3 timed_out; the run"
        ):
            run(cache, many, max_reject_rate=0.2)
        assert len(list((cache / "shards").glob("*.json"))) == 3
        assert not (cache / "cache.json").exists()
        assert call(["rejects", str(cache)]) == 0
        failing.clear()
        with pytest.raises(TooManyRejects):
            run(cache, many, max_reject_rate=0.2)
        report = run(cache, many, max_reject_rate=0.2, retry=RETRYABLE)
        assert (report.videos, report.rejected) == (12, 0)
        assert verify_cache(cache).findings == []

    def test_a_rate_at_the_limit_goes_on(
        self, many: Path, tmp_path: Path, failing: dict[str, str]
    ) -> None:
        failing.update({"03.mp4": "timed_out", "04.mp4": "crashed", "05.mp4": "no_frames"})
        assert run(tmp_path / "cache", many, max_reject_rate=0.25).rejected == 3

    def test_rejects_of_other_sources_do_not_count(
        self,
        many: Path,
        videos: Path,
        tmp_path: Path,
        failing: dict[str, str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        cache = tmp_path / "cache"

        def end(*_: Any, **__: Any) -> Any:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("beam_runner.build", end)
            with pytest.raises(KeyboardInterrupt):
                run(cache, many)
        failing.update({path.name: "timed_out" for path in many.iterdir()})
        report = run(cache, videos, max_reject_rate=0.0)
        assert (report.rejected, report.sources) == (0, 3)
        assert json.loads((cache / "cache.json").read_text())["counts"]["rejected"] == 12

    def test_what_was_cached_before_stays_readable(
        self, many: Path, videos: Path, tmp_path: Path, failing: dict[str, str]
    ) -> None:
        cache = tmp_path / "cache"
        run(cache, videos)
        before = (cache / "cache.json").read_bytes()
        failing.update({path.name: "timed_out" for path in many.iterdir()})
        with pytest.raises(TooManyRejects):
            run(cache, many, max_reject_rate=0.5)
        assert (cache / "cache.json").read_bytes() == before
        assert call(["inspect", str(cache)]) == 0

    @pytest.mark.slow
    def test_workers_count_together(self, many: Path, tmp_path: Path) -> None:
        cache = tmp_path / "cache"
        for path in many.iterdir():  # a header without its pictures
            data = path.read_bytes()
            start = data.index(b"mdat")
            size = int.from_bytes(data[start - 4 : start], "big") - 8
            path.write_bytes(data[: start + 4] + b"\xff" * size + data[start + 4 + size :])
        with pytest.raises(TooManyRejects, match="no_frames; the run was stopped early"):
            run(cache, many, max_reject_rate=0.2, num_workers=2)
        assert 3 <= len(list((cache / "shards").glob("*.json"))) < 12


class TestNothingUsable:
    def test_all_are_rejected_when_they_are_built(
        self, videos: Path, tmp_path: Path, failing: dict[str, str]
    ) -> None:
        failing.update(dict.fromkeys(("25.mp4", "50.mp4", "one_frame.mp4"), "crashed"))
        with pytest.raises(NothingUsable, match="none of 3 sources is usable: 3 crashed"):
            run(tmp_path / "cache", videos)

    @pytest.mark.parametrize("rate", [0.0, 0.5, 1.0])
    def test_none_is_there(self, tmp_path: Path, rate: float) -> None:
        listed = tmp_path / "list.txt"
        listed.write_text("a.mp4\nb.mp4\n")
        with pytest.raises(NothingUsable, match="none of 2 sources is usable: 2 not_found"):
            run(tmp_path / "cache", listed, max_reject_rate=rate)

    @pytest.mark.parametrize("name", ["empty.txt", "empty.csv", "empty", "no*.mp4"])
    def test_nothing_is_named(
        self, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        if name == "empty":
            (tmp_path / name).mkdir()
        elif "*" not in name:
            (tmp_path / name).write_text("uri\n" if name.endswith("csv") else "")
        assert call(["run", str(tmp_path / name), str(tmp_path / "cache")]) == 3
        assert name in capsys.readouterr().err
