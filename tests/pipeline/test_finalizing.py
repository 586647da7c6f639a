"""Finalize: no source is lost, and cache.json comes last."""

import hashlib
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import finalizing
from pipeline.encoding import stamp_streams
from pipeline.finalizing import account_for, check_reject_rate, finalize_cache, read_sidecars
from pipeline.layout import CacheLayout
from schemas.account import Account, commonest_reasons
from schemas.cache_info import CacheInfo
from schemas.errors import CacheDamaged, CacheIncomplete, TooManyRejects
from schemas.plan import ShardSpec
from schemas.recipe import Recipe
from schemas.reject import Reject
from schemas.sidecar import SampleEntry, Sidecar
from schemas.video import Probe, Source, sample_key
from tests.pieces import make_piece

RECIPE = Recipe.load("tiny")
SAMPLE_BYTES = 2048


def make_probe(uri: str, video_id: str, *, rejected: str = "") -> Probe:
    probe = Probe(source=Source(uri=uri), video_id=video_id)
    return probe.rejected(rejected, "detail") if rejected else probe


def make_reject(video_id: str, reason: str = "no_frames") -> Reject:
    return Reject(uri="/planned", video_id=video_id, stage="decode", reason=reason, detail="d")


def make_sidecar(index: int, *videos: str, rejects: tuple[Reject, ...] = ()) -> Sidecar:
    """One sample of each video; no tar is written."""
    entries = tuple(
        SampleEntry(
            key=sample_key(video_id, 0),
            video_id=video_id,
            clip_index=0,
            start_seconds=0.0,
            end_seconds=2.0,
            num_frames=4,
            offset=number * SAMPLE_BYTES,
            num_bytes=SAMPLE_BYTES,
            members={"json": (number * SAMPLE_BYTES + 512, 20)},
            truncated=False,
            corrupt=False,
        )
        for number, video_id in enumerate(videos)
    )
    return Sidecar(
        name=f"train-{index:06d}-00000000",
        index=index,
        split="train",
        fingerprint="",
        recipe_fingerprint="",
        tar_sha256="ab" * 32 if videos else "",
        tar_bytes=len(videos) * SAMPLE_BYTES + 1024 if videos else 0,
        samples=entries,
        videos=(),
        missing=(),
        rejects=rejects,
        versions={},
    )


def make_spec(index: int) -> ShardSpec:
    piece = make_piece("/a", "a", estimated_bytes=1)
    return ShardSpec(index=index, split="train", recipe_fingerprint="", pieces=(piece,))


@pytest.fixture
def layout(tmp_path):
    return CacheLayout(tmp_path / "cache")


def finalize(
    layout: CacheLayout, probes: list[Probe], sidecars: list[Sidecar], *, rate: float = 1.0
) -> CacheInfo:
    finalize_cache(
        layout,
        recipe=RECIPE,
        stamps=stamp_streams(RECIPE),
        account=account_for(probes, sidecars),
        sources=[probe.source for probe in probes],
        sidecars=sidecars,
        max_reject_rate=rate,
    )
    return CacheInfo.from_json(layout.info.read_text(), where="")


class TestAccount:
    def test_every_source_is_cached_or_rejected(self):
        probes = [
            make_probe("/a", "a"),
            make_probe("/copy of a", "a"),
            make_probe("/b", "b"),
            make_probe("/c", "", rejected="not_a_video"),
        ]
        account = account_for(probes, [make_sidecar(0, "a", rejects=(make_reject("b"),))])
        assert account.num_cached == 2
        assert [(r.uri, r.reason) for r in account.rejects] == [
            ("/b", "no_frames"),
            ("/c", "not_a_video"),
        ]
        assert len(account.outcomes) == 4

    @given(fates=st.lists(st.sampled_from(["cached", "probe", "decode"]), max_size=12))
    def test_sources_are_the_sum_of_cached_and_rejected(self, fates):
        names = [f"v{number}" for number in range(len(fates))]
        probes = [
            make_probe(f"/{name}", name, rejected="too_long" if fate == "probe" else "")
            for name, fate in zip(names, fates, strict=True)
        ]
        cached = [name for name, fate in zip(names, fates, strict=True) if fate == "cached"]
        failed = [name for name, fate in zip(names, fates, strict=True) if fate == "decode"]
        sidecar = make_sidecar(0, *cached, rejects=tuple(make_reject(name) for name in failed))
        account = account_for(probes, [sidecar])
        assert len(account.outcomes) == len(fates) == account.num_cached + len(account.rejects)
        assert account.num_cached == len(cached)
        assert 0.0 <= account.reject_rate <= 1.0

    def test_a_lost_source_is_a_bug_and_not_a_reject(self):
        with pytest.raises(KeyError):
            account_for([make_probe("/a", "a"), make_probe("/b", "b")], [make_sidecar(0, "a")])

    def test_copies_of_a_rejected_video_are_rejected_under_their_own_name(self):
        probes = [make_probe("/a", "a"), make_probe("/copy", "a")]
        account = account_for(probes, [make_sidecar(0, rejects=(make_reject("a"),))])
        assert [reject.uri for reject in account.rejects] == ["/a", "/copy"]

    def test_a_video_of_which_a_part_is_cached_is_cached(self):
        sidecars = [make_sidecar(0, "a"), make_sidecar(1, rejects=(make_reject("a"),))]
        assert account_for([make_probe("/a", "a")], sidecars).num_cached == 1

    def test_the_commonest_reasons_come_first(self):
        probes = [make_probe(f"/{n}", "", rejected="too_long") for n in range(3)]
        probes += [make_probe("/x", "", rejected="empty_file")]
        rejects = account_for(probes[::-1], []).rejects
        assert commonest_reasons(rejects) == "3 too_long, 1 empty_file"
        assert commonest_reasons(rejects, limit=1) == "3 too_long"

    def test_nothing_at_all_has_no_rejects(self):
        assert Account(outcomes={}).reject_rate == 0.0


class TestRejectRate:
    def account(self, *, cached: int, rejected: int) -> Account:
        probes = [make_probe(f"/c{n}", f"c{n}") for n in range(cached)]
        probes += [make_probe(f"/r{n}", "", rejected="too_long") for n in range(rejected)]
        return account_for(probes, [make_sidecar(0, *(f"c{n}" for n in range(cached)))])

    def test_a_rate_at_the_limit_is_fine(self, layout):
        check_reject_rate(self.account(cached=3, rejected=1), layout, max_reject_rate=0.25)

    def test_a_rate_above_the_limit_names_rate_limit_and_reasons(self, layout):
        with pytest.raises(TooManyRejects) as caught:
            check_reject_rate(self.account(cached=1, rejected=1), layout, max_reject_rate=0.25)
        assert str(caught.value) == (
            "1 of 2 sources were rejected (50.0%, the limit is 25.0%): 1 too_long"
        )
        assert caught.value.exit_code == 3
        assert "pipeline rejects" in caught.value.hint

    def test_nothing_usable_is_too_many_whatever_the_limit(self, layout):
        with pytest.raises(TooManyRejects, match="none of 2 sources is usable: 2 too_long"):
            check_reject_rate(self.account(cached=0, rejected=2), layout, max_reject_rate=1.0)


class TestSidecars:
    def commit(self, layout, spec, text: str, *, tar: bool = True) -> None:
        layout.shards.mkdir(parents=True, exist_ok=True)
        layout.sidecar(spec.name).write_text(text)
        if tar:
            size = json.loads(text)["tar_bytes"] if text.startswith('{"') or "\n" in text else 0
            layout.tar(spec.name).write_bytes(bytes(size))

    def test_they_are_read_in_the_order_of_the_plan(self, layout):
        specs = [make_spec(index) for index in range(3)]
        for spec in reversed(specs):
            self.commit(layout, spec, make_sidecar(spec.index, "a").to_json())
        assert [sidecar.index for sidecar in read_sidecars(specs, layout)] == [0, 1, 2]

    def test_a_shard_that_is_not_committed_is_named(self, layout):
        specs = [make_spec(index) for index in range(3)]
        self.commit(layout, specs[0], make_sidecar(0, "a").to_json())
        layout.tar(specs[1].name).touch()  # a tar without its sidecar does not exist
        message = f"2 of 3 planned shards are not built, first {specs[1].name}"
        with pytest.raises(CacheIncomplete, match=message):
            read_sidecars(specs, layout)

    def test_a_sidecar_without_its_tar_is_damage(self, layout):
        spec = make_spec(0)
        self.commit(layout, spec, make_sidecar(0, "a").to_json(), tar=False)
        with pytest.raises(CacheDamaged, match=f"{spec.name}.tar is gone") as caught:
            read_sidecars([spec], layout)
        assert f"delete {layout.sidecar(spec.name)}" in caught.value.hint

    def test_a_shard_without_samples_needs_no_tar(self, layout):
        spec = make_spec(0)
        sidecar = make_sidecar(0, rejects=(make_reject("a"),))
        self.commit(layout, spec, sidecar.to_json(), tar=False)
        assert read_sidecars([spec], layout) == [sidecar]

    @pytest.mark.parametrize("data", [b"", b"{}", b"\xff\xfe\x00"])
    def test_a_damaged_sidecar_is_named(self, layout, data):
        spec = make_spec(0)
        self.commit(layout, spec, "")
        layout.sidecar(spec.name).write_bytes(data)
        with pytest.raises(CacheDamaged, match=f"{spec.name}.json"):
            read_sidecars([spec], layout)


class TestFinalize:
    SIDECARS = (
        make_sidecar(0, "a", "b"),
        make_sidecar(1, rejects=(make_reject("d"),)),
        make_sidecar(2, "c"),
    )
    PROBES = (
        *(make_probe(f"/{name}", name) for name in "abcd"),
        make_probe("/copy of a", "a"),
        make_probe("/e", "", rejected="empty_file"),
    )

    def finalize(self, layout, **options) -> CacheInfo:
        return finalize(layout, list(self.PROBES), list(self.SIDECARS), **options)

    def test_cache_json_counts_and_names_all(self, layout):
        info = self.finalize(layout)
        assert info.counts == {
            "sources": 6,
            "cached": 4,
            "rejected": 2,
            "retryable": 0,
            "videos": 3,
            "samples": 3,
            "frames": 12,
            "missing": 0,
            "shards": 2,
            "bytes": 3 * SAMPLE_BYTES + 2 * 1024,
        }
        assert [(s.name, s.num_samples) for s in info.shards] == [
            ("train-000000-00000000", 2),
            ("train-000001-00000000", 0),
            ("train-000002-00000000", 1),
        ]
        assert Recipe.from_mapping(info.recipe) == RECIPE
        assert info.fingerprint == RECIPE.fingerprint(info.stamps)
        assert info.index_sha256 == hashlib.sha256(layout.index.read_bytes()).hexdigest()

    def test_the_index_has_a_row_a_sample(self, layout):
        self.finalize(layout)
        rows = pq.read_table(layout.index).to_pylist()
        assert [(row["video_id"], row["shard"], row["offset"]) for row in rows] == [
            ("a", "train-000000-00000000", 0),
            ("b", "train-000000-00000000", SAMPLE_BYTES),
            ("c", "train-000002-00000000", 0),
        ]

    def test_the_rejects_have_a_row_a_source(self, layout):
        self.finalize(layout)
        rows = pq.read_table(layout.rejects).to_pylist()
        assert [(row["uri"], row["stage"], row["reason"]) for row in rows] == [
            ("/d", "decode", "no_frames"),
            ("/e", "probe", "empty_file"),
        ]

    def test_twice_is_once(self, layout):
        self.finalize(layout)
        before = {p: p.read_bytes() for p in layout.root.rglob("*") if p.is_file()}
        self.finalize(layout)
        assert {p: p.read_bytes() for p in layout.root.rglob("*") if p.is_file()} == before

    def test_files_of_other_readers_list_the_shards_that_have_a_tar(self, layout):
        self.finalize(layout)
        shards = json.loads(layout.wids.read_text())["shardlist"]
        assert [(shard["url"], shard["nsamples"]) for shard in shards] == [
            ("shards/train-000000-00000000.tar", 2),
            ("shards/train-000002-00000000.tar", 1),
        ]
        counts = json.loads((layout.energon / ".info.json").read_text())["shard_counts"]
        assert counts == {shard["url"]: shard["nsamples"] for shard in shards}
        offsets = np.fromfile(layout.tar_index("train-000000-00000000"), "<u8")
        assert offsets.tolist() == [0, SAMPLE_BYTES, 2 * SAMPLE_BYTES]
        assert not layout.tar_index("train-000001-00000000").exists()

    def test_too_many_rejects_leave_the_rejects_and_no_cache_json(self, layout):
        with pytest.raises(TooManyRejects):
            self.finalize(layout, rate=0.1)
        assert pq.read_table(layout.rejects).num_rows == 2
        assert not layout.info.exists()

    def test_cache_json_comes_last(self, layout, monkeypatch):
        def fail(*_):
            raise RuntimeError("killed")

        monkeypatch.setattr(finalizing, "write_neighbour_files", fail)
        with pytest.raises(RuntimeError, match="killed"):
            self.finalize(layout)
        assert layout.index.exists()
        assert not layout.info.exists()

    def test_a_key_that_occurs_twice_is_refused(self, layout):
        sidecars = [make_sidecar(0, "a"), make_sidecar(1, "a")]
        with pytest.raises(CacheDamaged, match="1 keys occur twice, the first is a_000000"):
            finalize(layout, [make_probe("/a", "a")], sidecars)
        assert not layout.info.exists()
