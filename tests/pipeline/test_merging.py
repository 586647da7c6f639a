"""merge: every clip of every cache once, by the same bytes; what contradicts itself is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import beam_runner
from pipeline.cache import open_cache
from pipeline.choosing import choose_clips
from pipeline.events import read_events, read_made_by, write_events
from pipeline.layout import CacheLayout
from pipeline.merging import plan_merge, write_merge
from pipeline.planning import read_plan
from pipeline.probing import read_probes
from pipeline.slicing import plan_slice, write_slice
from pipeline.sources import read_sources
from pipeline.verifying import verify_cache
from schemas.errors import CacheDamaged, FingerprintMismatch, UsageError
from schemas.event import Event
from schemas.recipe import Recipe
from tests.pipeline.odd_videos import ODD_ID, RECIPE
from tests.pipeline.test_slicing import files_of, members_of, slice_of

if TYPE_CHECKING:
    from tests.clips import ClipShelf

CLIPS = ("25.mp4", "with_audio.mp4", "starts_at_10s.mp4")


def merge(out: Path, *paths: Path, link: bool = False) -> Any:
    caches = [open_cache(path) for path in paths]
    plan = plan_merge(caches)
    num_links = write_merge(plan, CacheLayout(out), link=link)
    for cache in caches:
        cache.close()
    return plan, num_links


def run(out: Path, *sources: dict[str, Any], recipe: Recipe = RECIPE) -> Path:
    path = out.with_suffix(".jsonl")
    path.write_text("\n".join(map(json.dumps, sources)))
    beam_runner.run(read_sources([str(path)]).sources, recipe, cache_path=out)
    return out


@pytest.mark.parametrize("seed", range(3))
def test_a_slice_and_the_rest_are_the_cache_again(
    odd_cache: Path, tmp_path: Path, seed: int
) -> None:
    with open_cache(odd_cache) as cache:
        rows = np.random.default_rng(seed).random(len(cache)) < 0.5
        for name, mask in (("some", rows), ("rest", ~rows)):
            plan = plan_slice(cache, replace(choose_clips(cache), rows=mask))
            write_slice(plan, CacheLayout(tmp_path / name))
    plan, _ = merge(tmp_path / "all", tmp_path / "some", tmp_path / "rest")
    assert plan.num_shared == 0
    assert members_of(tmp_path / "all") == members_of(odd_cache)
    assert verify_cache(tmp_path / "all", deep=True).findings == []
    with open_cache(tmp_path / "all") as again, open_cache(odd_cache) as cache:
        assert again.keys() == cache.keys()
        assert again.aliases == cache.aliases


def test_tars_are_copied_byte_for_byte_under_new_numbers(odd_cache: Path, tmp_path: Path) -> None:
    slice_of(odd_cache, tmp_path / "late", videos=["late"])
    slice_of(odd_cache, tmp_path / "odd", videos=[ODD_ID, "with_audio.mp4"])
    merge(tmp_path / "all", tmp_path / "late", tmp_path / "odd")
    old = [
        tar.read_bytes()
        for name in ("late", "odd")
        for tar in sorted((tmp_path / name / "shards").glob("*.tar"))
    ]
    tars = sorted((tmp_path / "all" / "shards").glob("*.tar"))
    assert [tar.read_bytes() for tar in tars] == old
    assert [spec.index for spec in read_plan(CacheLayout(tmp_path / "all"))] == list(
        range(len(tars))
    )
    assert verify_cache(tmp_path / "all").findings == []


def test_what_is_in_several_is_taken_once_from_the_first(odd_cache: Path, tmp_path: Path) -> None:
    slice_of(odd_cache, tmp_path / "part", where="clip_index == 1")
    plan, _ = merge(tmp_path / "all", tmp_path / "part", odd_cache, odd_cache)
    assert plan.num_shared == len(open_cache(odd_cache)) + len(open_cache(tmp_path / "part"))
    assert members_of(tmp_path / "all") == members_of(odd_cache)
    assert verify_cache(tmp_path / "all").findings == []
    info = json.loads((tmp_path / "all" / "cache.json").read_text())
    old = json.loads((odd_cache / "cache.json").read_text())
    for name in ("sources", "cached", "rejected", "videos", "samples", "frames", "missing"):
        assert info["counts"][name] == old["counts"][name]


def test_merging_again_gives_the_same_bytes_and_a_run_adds(
    odd_cache: Path, tmp_path: Path, clips: ClipShelf
) -> None:
    slice_of(odd_cache, tmp_path / "late", videos=["late"])
    slice_of(odd_cache, tmp_path / "odd", videos=[ODD_ID])
    for name in ("one", "two"):
        merge(tmp_path / name, tmp_path / "late", tmp_path / "odd")
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")
    sources = read_sources([str(odd_cache.parent / "list.jsonl")]).sources
    report = beam_runner.run(sources, RECIPE, cache_path=tmp_path / "one")
    assert report.skipped >= 3
    assert members_of(tmp_path / "one") == members_of(odd_cache)
    assert verify_cache(tmp_path / "one").findings == []


def test_links_where_tars_stay_as_they_are(odd_cache: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(odd_cache, tmp_path / "cache"))
    slice_of(copy, tmp_path / "part", videos=[ODD_ID])
    _, num_links = merge(tmp_path / "all", tmp_path / "part", copy, link=True)
    tars = list((tmp_path / "all" / "shards").glob("*.tar"))
    linked = [tar for tar in tars if tar.stat().st_nlink == 2]
    assert len(linked) == num_links and 0 < num_links < len(tars) + 1
    assert members_of(tmp_path / "all") == members_of(odd_cache)
    assert verify_cache(tmp_path / "all").findings == []
    merge(tmp_path / "plain", tmp_path / "part", copy)
    assert files_of(tmp_path / "plain") == files_of(tmp_path / "all")
    assert all(tar.stat().st_nlink == 1 for tar in (tmp_path / "plain" / "shards").iterdir())


def test_a_damaged_tar_is_not_copied(odd_cache: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(odd_cache, tmp_path / "cache"))
    tar = max((copy / "shards").glob("*.tar"))
    data = bytearray(tar.read_bytes())
    data[len(data) // 2] ^= 1
    tar.write_bytes(data)
    slice_of(odd_cache, tmp_path / "late", videos=["late"])
    with pytest.raises(CacheDamaged, match="not those that were written"):
        merge(tmp_path / "all", tmp_path / "late", copy)
    assert not (tmp_path / "all" / "cache.json").exists()
    tar.write_bytes(data[:-1])
    with pytest.raises(CacheDamaged, match="another size"):
        merge(tmp_path / "linked", tmp_path / "late", copy, link=True)


def test_a_cache_whose_probes_are_gone_is_not_merged(odd_cache: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(odd_cache, tmp_path / "cache"))
    shutil.rmtree(copy / "probes")
    slice_of(odd_cache, tmp_path / "late", videos=["late"])
    with pytest.raises(CacheDamaged, match="does not know the source of 7 of 7 videos"):
        merge(tmp_path / "all", copy, tmp_path / "late")
    assert not (tmp_path / "all").exists()


def test_another_recipe_is_refused_with_what_differs(
    odd_cache: Path, clips: ClipShelf, tmp_path: Path
) -> None:
    other = Recipe.from_mapping(RECIPE.to_mapping(), overrides=["sampling.fps=1"])
    run(tmp_path / "other", {"uri": str(clips["25.mp4"].path)}, recipe=other)
    with pytest.raises(FingerprintMismatch, match=r"sampling.fps: 2.0 -> 1.0"):
        merge(tmp_path / "all", odd_cache, tmp_path / "other")
    assert not (tmp_path / "all").exists()


@pytest.fixture(scope="module")
def made(clips: ClipShelf, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Caches that name three videos in several ways."""
    folder = tmp_path_factory.mktemp("ids")
    first, second, third = (str(clips[name].path) for name in CLIPS)
    missing = str(folder / "nowhere.mp4")
    return {
        "a": run(folder / "a", {"uri": first, "id": "x"}, {"uri": second}, {"uri": missing}),
        "same": run(folder / "same", {"uri": first}, {"uri": third, "id": "z"}),
        "conflict": run(folder / "conflict", {"uri": third, "id": "x"}),
    }


class TestIds:
    def test_one_content_of_two_ids_is_one_video(
        self, made: dict[str, Path], tmp_path: Path
    ) -> None:
        plan, _ = merge(tmp_path / "all", made["a"], made["same"])
        assert plan.num_shared == 3
        assert verify_cache(tmp_path / "all").findings == []
        with open_cache(tmp_path / "all") as cache:
            assert {"x", "z"} < cache.videos.keys() and len(cache.videos) == 3
        probes = {p.source.identity: p for p in read_probes(CacheLayout(tmp_path / "all"))}
        firsts = [p for p in probes.values() if p.source.uri.endswith("25.mp4")]
        assert [p.video_id for p in firsts] == ["x", "x"]
        assert [p.source.video_id for p in firsts] == [None, "x"]
        assert sum(p.reject is not None for p in probes.values()) == 1

    def test_the_other_way_round_it_has_the_other_id(
        self, made: dict[str, Path], tmp_path: Path
    ) -> None:
        merge(tmp_path / "all", made["same"], made["a"])
        assert verify_cache(tmp_path / "all").findings == []
        with open_cache(tmp_path / "all") as cache:
            assert "x" not in cache.videos and len(cache.videos) == 3
            assert cache.aliases["x"] in cache.videos

    def test_an_id_of_two_contents_is_refused(self, made: dict[str, Path], tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"'x' is other content in .*/a than in .*/conflict"):
            merge(tmp_path / "all", made["a"], made["conflict"])

    def test_two_ids_of_one_content_in_parts_are_refused(
        self, made: dict[str, Path], tmp_path: Path
    ) -> None:
        slice_of(made["a"], tmp_path / "part", where="video_id == 'x' and clip_index < 2")
        with pytest.raises(UsageError, match="with clips that the former has not"):
            merge(tmp_path / "all", tmp_path / "part", made["same"])
        merge(tmp_path / "all", made["same"], tmp_path / "part")
        assert verify_cache(tmp_path / "all").findings == []

    def test_what_is_cached_in_one_is_cached(
        self, made: dict[str, Path], clips: ClipShelf, tmp_path: Path
    ) -> None:
        """A source that one cache could not find, another one has."""
        missing = made["a"].parent / "nowhere.mp4"
        shutil.copy(clips["half_a_second.mp4"].path, missing)
        found = run(tmp_path / "found", {"uri": str(missing)})
        missing.unlink()
        for order in ([made["a"], found], [found, made["a"]]):
            out = tmp_path / f"all{order[0].name}"
            merge(out, *order)
            info = json.loads((out / "cache.json").read_text())
            assert (info["counts"]["rejected"], info["counts"]["videos"]) == (0, 3)
            assert verify_cache(out).findings == []


class TestBuildRejects:
    """Videos that were probed well and then not built, as far as the sidecars tell."""

    @pytest.fixture
    def lost(self, odd_cache: Path, tmp_path: Path) -> Path:
        """The odd cache, but the video `late` was away when it was to be built."""
        folder = tmp_path / "videos"
        shutil.copytree(odd_cache.parent, folder)
        sources = read_sources([str(folder / "list.jsonl")]).sources
        late = next(source for source in sources if source.video_id == "late")
        shutil.rmtree(folder / "cache")
        import pipeline.probing as probing

        write = probing.write_probes

        def away(*arguments: Any, **named: Any) -> None:
            write(*arguments, **named)
            Path(late.uri).unlink(missing_ok=True)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(beam_runner, "write_probes", away)
            beam_runner.run(sources, RECIPE, cache_path=folder / "cache")
        info = json.loads((folder / "cache" / "cache.json").read_text())
        assert info["counts"]["missing"] == 3
        return folder / "cache"

    def test_a_slice_keeps_the_reject_and_what_is_missing(self, lost: Path, tmp_path: Path) -> None:
        slice_of(lost, tmp_path / "out", videos=["late", ODD_ID])
        info = json.loads((tmp_path / "out" / "cache.json").read_text())
        counts = {name: info["counts"][name] for name in ("sources", "rejected", "missing")}
        assert counts == {"sources": 3, "rejected": 1, "missing": 3}
        assert verify_cache(tmp_path / "out").findings == []
        slice_of(lost, tmp_path / "few", videos=[ODD_ID])
        info = json.loads((tmp_path / "few" / "cache.json").read_text())
        assert (info["counts"]["rejected"], info["counts"]["missing"]) == (0, 0)

    def test_a_merge_takes_it_from_the_cache_that_has_it(
        self, lost: Path, odd_cache: Path, tmp_path: Path
    ) -> None:
        for order in ([lost, odd_cache], [odd_cache, lost]):
            out = tmp_path / f"all{order.index(lost)}"
            merge(out, *order)
            assert verify_cache(out).findings == []
            assert members_of(out) == members_of(odd_cache)
            info = json.loads((out / "cache.json").read_text())
            assert info["counts"]["missing"] == 0
            assert info["counts"]["videos"] == 7

    def test_a_merge_of_two_that_lack_it_tells_so_once(self, lost: Path, tmp_path: Path) -> None:
        slice_of(lost, tmp_path / "one", videos=["late", ODD_ID])
        slice_of(lost, tmp_path / "two", videos=["late", "with_audio.mp4"])
        merge(tmp_path / "all", tmp_path / "one", tmp_path / "two")
        info = json.loads((tmp_path / "all" / "cache.json").read_text())
        assert (info["counts"]["rejected"], info["counts"]["missing"]) == (1, 3)
        assert verify_cache(tmp_path / "all").findings == []


def test_events_of_all(odd_cache: Path, tmp_path: Path) -> None:
    def event(video_id: str, text: str) -> Event:
        return Event(video_id=video_id, start_seconds=0.0, end_seconds=1.0, kind="scene", text=text)

    slice_of(odd_cache, tmp_path / "a", videos=["late"])
    slice_of(odd_cache, tmp_path / "b", videos=["late", ODD_ID])
    for name, events in (
        ("a", [event("late", "a")]),
        ("b", [event("late", "b"), event(ODD_ID, "b")]),
    ):
        layout = CacheLayout(tmp_path / name)
        write_events(layout, kind="scene", events=events, made_by={"by": name})
    merge(tmp_path / "all", tmp_path / "a", tmp_path / "b")
    new = CacheLayout(tmp_path / "all")
    told = read_events(new)
    assert told == {"late": [event("late", "a")], ODD_ID: [event(ODD_ID, "b")]}
    assert read_made_by(new, kind="scene") == {"merged": [{"by": "a"}, {"by": "b"}]}


def test_refuses_a_place_that_is_taken(odd_cache: Path, tmp_path: Path) -> None:
    slice_of(odd_cache, tmp_path / "late", videos=["late"])
    slice_of(odd_cache, tmp_path / "taken", videos=["late"])
    with pytest.raises(UsageError, match="holds a cache already"):
        merge(tmp_path / "taken", odd_cache, tmp_path / "late")
    with pytest.raises(UsageError, match="the cache it would be made of"):
        merge(odd_cache / "inside", tmp_path / "late", odd_cache)
