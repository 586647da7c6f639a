"""slice: the same bytes of the same clips, and a cache as any other for every reader and run."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import beam_runner
from pipeline import repacking
from pipeline.cache import FeatureCache, open_cache
from pipeline.choosing import choose_clips
from pipeline.events import read_events, read_made_by, write_events
from pipeline.holdings import keep_clips, read_holdings
from pipeline.layout import CacheLayout
from pipeline.merging import plan_merge, write_merge
from pipeline.places import list_sizes, read_bytes, to_place
from pipeline.slicing import plan_slice, write_slice
from pipeline.sources import read_sources
from pipeline.verifying import verify_cache
from schemas.errors import CacheDamaged, CacheIncomplete, FingerprintMismatch, UsageError
from schemas.event import Event
from schemas.sidecar import MissingClips
from tests.pipeline.odd_videos import ODD_ID, RECIPE, SOURCES
from trainer.data.catalog import Catalog

if TYPE_CHECKING:
    from s3fs import S3FileSystem

    from pipeline.places import Place
    from tests.clips import ClipShelf

WHERE = "num_frames == 4 and (clip_index != 1 or video_id == 'late')"
"""Takes the middle out of videos, and leaves some whole."""


def slice_of(path: str | Path, out: str | Path, **options: Any) -> Place:
    """A slice, as the command makes it."""
    root = to_place(out)
    with open_cache(path) as cache:
        write_slice(plan_slice(cache, choose_clips(cache, **options)), CacheLayout(root))
    return root


def members_of(root: str | Path) -> dict[str, bytes]:
    """Name in a tar -> bytes, of all shards."""
    found: dict[str, bytes] = {}
    shards = to_place(root) / "shards"
    for name in list_sizes(shards):
        if not name.endswith(".tar"):
            continue
        with tarfile.open(fileobj=io.BytesIO(read_bytes(shards / name))) as archive:
            for member in archive:
                file = archive.extractfile(member)
                assert file is not None and member.name not in found
                found[member.name] = file.read()
    return found


def files_of(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def keys_of(members: Mapping[str, bytes]) -> set[str]:
    return {name.partition(".")[0] for name in members}


@pytest.fixture(scope="module")
def sliced(odd_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A slice by WHERE; not to be changed."""
    out = tmp_path_factory.mktemp("sliced") / "out"
    slice_of(odd_cache, out, where=WHERE)
    return out


def test_holds_the_same_bytes_of_the_chosen_clips(odd_cache: Path, sliced: Path) -> None:
    with open_cache(odd_cache) as cache, open_cache(sliced) as few:
        wanted = {
            key
            for key in cache.keys()  # noqa: SIM118 - iteration gives samples
            if cache.row(key).num_frames == 4
            and (cache.row(key).clip_index != 1 or cache.row(key).video_id == "late")
        }
        assert few.keys() == [key for key in cache.keys() if key in wanted]  # noqa: SIM118
        assert 0 < len(few) < len(cache)
        assert few.fingerprint == cache.fingerprint
        assert few.recipe == cache.recipe
        for key in few.keys():  # noqa: SIM118
            one, other = few.row(key), cache.row(key)
            assert replace(one, shard="", offset=0, members={}) == replace(
                other, shard="", offset=0, members={}
            )
    everything, found = members_of(odd_cache), members_of(sliced)
    assert keys_of(found) == wanted
    assert found == {n: data for n, data in everything.items() if n.partition(".")[0] in wanted}


def test_is_valid_from_end_to_end(sliced: Path) -> None:
    result = verify_cache(sliced, deep=True)
    assert result.findings == []
    assert not (sliced / ".tmp").exists()
    info = json.loads((sliced / "cache.json").read_text())
    assert info["counts"]["samples"] == result.num_samples
    assert info["counts"]["rejected"] == info["counts"]["missing"] == 0


def test_is_the_same_each_time(odd_cache: Path, sliced: Path, tmp_path: Path) -> None:
    slice_of(odd_cache, tmp_path / "again", where=WHERE)
    assert files_of(tmp_path / "again") == files_of(sliced)


def test_a_slice_of_all_is_the_cache(odd_cache: Path, tmp_path: Path) -> None:
    names = [source.get("id") or str(odd_cache.parent / source["uri"]) for source in SOURCES]
    slice_of(odd_cache, tmp_path / "all", videos=names)
    assert verify_cache(tmp_path / "all").findings == []
    assert members_of(tmp_path / "all") == members_of(odd_cache)
    new, old = (
        json.loads((path / "cache.json").read_text()) for path in (tmp_path / "all", odd_cache)
    )
    assert {**new["counts"], "bytes": 0} == {**old["counts"], "bytes": 0}
    assert new["counts"]["rejected"] == 1
    tables = [CacheLayout(path).rejects.read_bytes() for path in (tmp_path / "all", odd_cache)]
    assert tables[0] == tables[1]


def test_a_run_with_the_same_sources_does_nothing_and_with_others_adds(
    odd_cache: Path, sliced: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(sliced, tmp_path / "out"))
    before = members_of(copy)
    with open_cache(copy) as few:
        cached = set(few.aliases)
    sources = read_sources([str(odd_cache.parent / "list.jsonl")]).sources
    known = [one for one in sources if one.uri in cached and "50.mp4" not in one.uri]
    assert len(known) >= 4
    with open_cache(copy) as few:
        recipe = few.recipe
    report = beam_runner.run(known, recipe, cache_path=copy)
    assert (report.clips, report.skipped) == (0, len(known))
    assert files_of(copy)["cache.json"] == files_of(sliced)["cache.json"]
    report = beam_runner.run(sources, recipe, cache_path=copy)
    assert report.rejected == 1
    assert verify_cache(copy).findings == []
    after = members_of(copy)
    assert before.items() <= after.items()
    assert after.items() <= members_of(odd_cache).items()


def test_a_shard_that_was_lost_is_built_again_with_the_same_bytes(
    sliced: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(sliced, tmp_path / "out"))
    for sidecar in (copy / "shards").glob("*.json"):
        sidecar.with_suffix(".tar").unlink()
        sidecar.unlink()
    with open_cache(copy) as few:
        recipe = few.recipe
    beam_runner.run(None, recipe, cache_path=copy)
    assert members_of(copy) == members_of(sliced)
    assert verify_cache(copy).findings == []


def test_the_trainer_finds_videos_by_all_their_names(odd_cache: Path, sliced: Path) -> None:
    with open_cache(sliced) as few, open_cache(odd_cache) as cache:
        small, large = Catalog.of(few), Catalog.of(cache)
        assert set(small.video_ids) == {few.row(key).video_id for key in few.keys()}  # noqa: SIM118
        for name in (ODD_ID, str(odd_cache.parent / "more" / "copy.mp4")):
            found, whole = small.find(name), large.find(name)
            assert found is not None and whole is not None
            assert found.video_id == whole.video_id == ODD_ID
            assert set(found.clip_index) < set(whole.clip_index)
        with pytest.raises(KeyError):
            few.aliases[str(odd_cache.parent / "broken.mp4")]


def test_a_slice_can_be_sliced(odd_cache: Path, sliced: Path, tmp_path: Path) -> None:
    slice_of(sliced, tmp_path / "two", where="clip_index > 0 or video_id == 'late'")
    assert verify_cache(tmp_path / "two").findings == []
    slice_of(
        odd_cache, tmp_path / "one", where=f"({WHERE}) and (clip_index > 0 or video_id == 'late')"
    )
    assert members_of(tmp_path / "two") == members_of(tmp_path / "one")


def test_named_rejects_come_along(odd_cache: Path, tmp_path: Path) -> None:
    slice_of(odd_cache, tmp_path / "out", videos=["broken", "late"])
    info = json.loads((tmp_path / "out" / "cache.json").read_text())
    assert (info["counts"]["sources"], info["counts"]["rejected"]) == (2, 1)
    assert verify_cache(tmp_path / "out").findings == []


def test_shards_are_packed_as_a_run_packs_them(odd_cache: Path, sliced: Path) -> None:
    # Six seconds of video are three clips a shard; a longer video has one of its own.
    with open_cache(sliced) as few:
        shards = few.index.column("shard").to_pylist()
        assert len(set(shards)) < len(json.loads((odd_cache / "cache.json").read_text())["shards"])
        order = few.index.column("key").to_pylist()
    for sidecar in (sliced / "shards").glob("*.json"):
        told = json.loads(sidecar.read_text())
        assert len(told["samples"]) <= 3 or len(told["videos"]) == 1
        keys = [entry["key"] for entry in told["samples"]]
        assert keys == sorted(keys)
        assert sum(video["num_clips"] for video in told["videos"]) == len(keys)
    assert order == sorted(order)


class TestAccounts:
    """What is missing or rejected of kept videos, and what is not."""

    def holdings(self, cache: FeatureCache, *, missing: bool) -> list[Any]:
        found = read_holdings(cache)
        gap = MissingClips(video_id="late", first_clip=3, num_clips=2, reason="corrupt")
        return [
            replace(one, missing=(gap,)) if missing and one.piece.video_id == "late" else one
            for one in found
        ]

    def test_of_a_whole_video_the_missing_stay(self, odd_cache: Path) -> None:
        with open_cache(odd_cache) as cache:
            holdings = self.holdings(cache, missing=True)
            keys = {f"late_{clip:06d}" for clip in range(3)}
            kept = keep_clips(holdings, keys)
            assert [one.piece.video_id for one in kept] == ["late"] * len(kept)
            assert sum(len(one.samples) for one in kept) == 3
            assert kept[-1].missing and kept == [one for one in holdings if one in kept]

    def test_of_a_part_only_runs_of_kept_clips_are_planned(self, odd_cache: Path) -> None:
        with open_cache(odd_cache) as cache:
            holdings = self.holdings(cache, missing=True)
            kept = keep_clips(holdings, {"late_000000", "late_000002"})
            pieces = [
                (one.piece.first_clip, one.piece.num_clips, one.piece.is_last) for one in kept
            ]
            assert pieces == [(0, 1, False), (2, 1, True)]
            assert not any(one.missing or one.rejects for one in kept)

    def test_nothing_is_kept_of_a_video_without_kept_clips(self, odd_cache: Path) -> None:
        with open_cache(odd_cache) as cache:
            assert keep_clips(read_holdings(cache), set()) == []


def test_events_of_kept_videos_come_along(odd_cache: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(odd_cache, tmp_path / "cache"))
    events = [
        Event(video_id=name, start_seconds=0.0, end_seconds=1.0, kind="scene", text="x\n")
        for name in ("late", ODD_ID, "unknown")
    ]
    write_events(CacheLayout(copy), kind="scene", events=events, made_by={"by": "hand"})
    (copy / "vectors").mkdir()
    slice_of(copy, tmp_path / "out", videos=[ODD_ID])
    new = CacheLayout(tmp_path / "out")
    assert read_events(new) == {ODD_ID: [events[1]]}
    assert read_made_by(new, kind="scene") == {"by": "hand"}
    assert not new.vectors.exists()
    assert verify_cache(tmp_path / "out").findings == []


def test_a_run_that_has_not_finished_is_no_part_of_it(
    odd_cache: Path, sliced: Path, tmp_path: Path, clips: ClipShelf
) -> None:
    copy = Path(shutil.copytree(odd_cache, tmp_path / "cache"))
    source = replace(
        read_sources([str(clips["half_a_second.mp4"].path)]).sources[0], video_id="new"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beam_runner, "build", lambda *_, **__: None)
        with pytest.raises(CacheIncomplete):
            beam_runner.run([source], RECIPE, cache_path=copy)
    slice_of(copy, tmp_path / "out", where=WHERE)
    assert files_of(tmp_path / "out") == files_of(sliced)
    for out, name in ((tmp_path / "late", "late"), (tmp_path / "both", "new")):
        slice_of(copy, out, videos=[name, "late"])
    assert files_of(tmp_path / "both") == files_of(tmp_path / "late")
    with open_cache(tmp_path / "late") as one, open_cache(copy) as two:
        write_merge(plan_merge([one, two]), CacheLayout(tmp_path / "merged"))
    assert verify_cache(tmp_path / "merged").findings == []
    assert members_of(tmp_path / "merged") == members_of(odd_cache)


class TestRefuses:
    def test_no_clip(self, odd_cache: Path, tmp_path: Path) -> None:
        for options in ({"where": "false"}, {"videos": ["broken"]}):
            with pytest.raises(UsageError, match="no clip is chosen"):
                slice_of(odd_cache, tmp_path / "out", **options)
        assert not (tmp_path / "out").exists()

    def test_a_place_that_is_taken(self, odd_cache: Path, sliced: Path, tmp_path: Path) -> None:
        copy = Path(shutil.copytree(sliced, tmp_path / "copy"))
        with pytest.raises(UsageError, match="holds a cache already"):
            slice_of(odd_cache, copy, where=WHERE)
        (copy / "cache.json").unlink()
        with pytest.raises(UsageError, match="unfinished cache of something else"):
            slice_of(odd_cache, copy, videos=["late"])
        slice_of(odd_cache, copy, where=WHERE)
        assert files_of(copy) == files_of(sliced), "what was unfinished is finished"
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "x").write_text("x")
        with pytest.raises(UsageError, match="holds other files"):
            slice_of(odd_cache, tmp_path / "full", where=WHERE)
        assert [path.name for path in (tmp_path / "full").iterdir()] == ["x"]

    def test_a_place_in_the_cache(self, odd_cache: Path, tmp_path: Path) -> None:
        link = tmp_path / "link"
        link.symlink_to(odd_cache)
        for out in (odd_cache / "inside", link / "inside"):
            with pytest.raises(UsageError, match="the cache it would be made of"):
                slice_of(odd_cache, out, where=WHERE)

    def test_an_index_of_other_shards(self, odd_cache: Path, tmp_path: Path) -> None:
        copy = Path(shutil.copytree(odd_cache, tmp_path / "cache"))
        info = json.loads((copy / "cache.json").read_text())
        info["shards"].pop()
        (copy / "cache.json").write_text(json.dumps(info))
        with pytest.raises(CacheDamaged, match="of them are in the shards"):
            slice_of(copy, tmp_path / "out", where="true")
        info["shards"].append(info["shards"][0] | {"name": "train-000099-00000000"})
        (copy / "cache.json").write_text(json.dumps(info))
        with pytest.raises(CacheDamaged, match="does not know the shard train-000099"):
            slice_of(copy, tmp_path / "out", where="true")

    def test_a_cache_whose_probes_are_gone(self, odd_cache: Path, tmp_path: Path) -> None:
        copy = Path(shutil.copytree(odd_cache, tmp_path / "cache"))
        shutil.rmtree(copy / "probes")
        with pytest.raises(CacheDamaged, match="does not know the source of 7 of 7 videos"):
            slice_of(copy, tmp_path / "out", where="true")
        assert not (tmp_path / "out").exists()

    def test_a_fingerprint_of_another_version(self, odd_cache: Path, tmp_path: Path) -> None:
        copy = Path(shutil.copytree(odd_cache, tmp_path / "cache"))
        info = json.loads((copy / "cache.json").read_text())
        (copy / "cache.json").write_text(json.dumps(info | {"fingerprint": "0" * 64}))
        with pytest.raises(FingerprintMismatch, match="do not give its fingerprint"):
            slice_of(copy, tmp_path / "out", where=WHERE)

    @pytest.mark.parametrize("damage", ["header", "short", "byte"])
    def test_damage(self, odd_cache: Path, tmp_path: Path, damage: str) -> None:
        copy = Path(shutil.copytree(odd_cache, tmp_path / "cache"))
        for tar in (copy / "shards").glob("*.tar"):
            data = bytearray(tar.read_bytes())
            if damage == "header":
                data[3] ^= 1
            elif damage == "byte":
                data[len(data) // 2] ^= 1
            size = len(data) if damage != "short" else 2048
            tar.write_bytes(data[:size])
        # A byte inside a member is found where a tar is copied whole.
        where = "true" if damage == "byte" else WHERE
        with pytest.raises(CacheDamaged):
            slice_of(copy, tmp_path / "out", where=where)
        assert not (tmp_path / "out" / "cache.json").exists()


KILL = """
import os, signal, sys
from pathlib import Path
from pipeline import storage
from tests.pipeline.test_slicing import WHERE, slice_of
left = int(sys.argv[3])
def counting(function):
    def call(*arguments, **named):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **named)
    return call
os.fsync = counting(os.fsync)
os.writev = counting(os.writev)
Path.replace = counting(Path.replace)
slice_of(sys.argv[1], sys.argv[2], where=WHERE)
"""


@pytest.mark.parametrize("count", [0, 5, 11, 17, 40])
def test_a_killed_slice_goes_on(odd_cache: Path, sliced: Path, tmp_path: Path, count: int) -> None:
    root = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [sys.executable, "-c", KILL, str(odd_cache), str(tmp_path / "out"), str(count)],
        env=os.environ | {"PYTHONPATH": root},
        cwd=root,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "out" / "cache.json").exists()
    slice_of(odd_cache, tmp_path / "out", where=WHERE)
    assert files_of(tmp_path / "out") == files_of(sliced)


def test_large_samples_are_read_one_by_one(
    odd_cache: Path, sliced: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repacking, "READ_BYTES", 1)
    slice_of(odd_cache, tmp_path / "out", where=WHERE)
    assert files_of(tmp_path / "out") == files_of(sliced)


def test_progress_is_told_of_all_bytes(odd_cache: Path, tmp_path: Path) -> None:
    told: list[int] = []
    with open_cache(odd_cache) as cache:
        plan = plan_slice(cache, choose_clips(cache, where=WHERE))
        write_slice(plan, CacheLayout(tmp_path / "out"), progress=told.append)
    assert sum(told) == plan.num_bytes > 0


def test_from_a_store_into_a_store(
    s3: S3FileSystem, bucket: str, odd_cache: Path, sliced: Path
) -> None:
    s3.put(str(odd_cache), f"{bucket}/cache", recursive=True)
    out = slice_of(f"s3://{bucket}/cache", f"s3://{bucket}/out", where=WHERE)
    assert verify_cache(str(out)).findings == []
    for folder in ("shards", "index", "rejects"):
        there = {name: read_bytes(out / folder / name) for name in list_sizes(out / folder)}
        here = {path.name: path.read_bytes() for path in (sliced / folder).iterdir()}
        assert there == here


def test_a_slice_and_the_rest_are_all(odd_cache: Path, tmp_path: Path) -> None:
    """Of every choice of clips the slice and the rest share nothing and lack nothing."""
    everything = members_of(odd_cache)
    for seed in range(3):
        with open_cache(odd_cache) as cache:
            rows = np.random.default_rng(seed).random(len(cache)) < 0.5
            choice = choose_clips(cache)
            for name, mask in (("some", rows), ("rest", ~rows)):
                plan = plan_slice(cache, replace(choice, rows=mask))
                write_slice(plan, CacheLayout(tmp_path / f"{name}{seed}"))
        some, rest = (members_of(tmp_path / f"{name}{seed}") for name in ("some", "rest"))
        assert not some.keys() & rest.keys()
        assert some | rest == everything
        assert verify_cache(tmp_path / f"some{seed}").findings == []
