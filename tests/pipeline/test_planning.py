"""The plan: which clips go into which shard. Pure, deterministic, append-only."""

import re
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from encoders import encoder_spec
from pipeline.layout import CacheLayout
from pipeline.planning import (
    MadeBy,
    check_recipe,
    estimate_clip_bytes,
    extend_plan,
    read_made_by,
    read_plan,
    write_plan,
)
from schemas.errors import CacheDamaged, FingerprintMismatch, StorageError
from schemas.plan import ShardSpec
from schemas.recipe import Recipe, ShardLimits
from schemas.video import Probe, Source, sample_key

CLIP_BYTES = 1000
TINY = Recipe.load("tiny")  # 2 fps, 4 frames a clip: 2 seconds a clip
SPECS = {name: encoder_spec(stream.encoder) for name, stream in TINY.streams.items()}
STAMPS = {name: spec.stamp() for name, spec in SPECS.items()}


def limited(*, clips: int) -> Recipe:
    """tiny with so many clips a shard."""
    return replace(TINY, shards=ShardLimits(target_bytes=clips * CLIP_BYTES, max_seconds=1e9))


def make_probe(video_id: str, *, clips: int = 1, uri: str = "", **fields: object) -> Probe:
    """A video that has so many clips."""
    last_seconds = 2.0 * clips - 0.5
    values = {
        "source": Source(uri=uri or f"/videos/{video_id}.mp4"),
        "video_id": video_id,
        "content_sha256": video_id.encode().hex().ljust(64, "0"),
        "last_seconds": last_seconds,
        "duration_seconds": last_seconds + 0.04,
    }
    return Probe(**values | fields)


def plan(
    probes: list[Probe], recipe: Recipe = TINY, existing: list[ShardSpec] | None = None
) -> list[ShardSpec]:
    return extend_plan(
        probes,
        recipe=recipe,
        recipe_fingerprint="f" * 64,
        clip_bytes=CLIP_BYTES,
        existing=existing or [],
    )


def clips_of(specs: list[ShardSpec]) -> dict[str, list[int]]:
    """video_id -> its planned clips, in the order of the plan."""
    clips: dict[str, list[int]] = {}
    for spec in specs:
        for piece in spec.pieces:
            numbers = range(piece.first_clip, piece.first_clip + piece.num_clips)
            clips.setdefault(piece.video_id, []).extend(numbers)
    return clips


VIDEO_IDS = st.text(alphabet="abAB01_-. é", min_size=1, max_size=6)
LENGTHS = st.dictionaries(VIDEO_IDS, st.integers(1, 12), min_size=1, max_size=12)


@given(lengths=LENGTHS, limit=st.integers(1, 8), data=st.data())
def test_the_order_of_the_probes_makes_no_difference(lengths, limit, data):
    probes = [make_probe(video_id, clips=n) for video_id, n in lengths.items()]
    shuffled = data.draw(st.permutations(probes))
    assert plan(shuffled, limited(clips=limit)) == plan(probes, limited(clips=limit))


@given(lengths=LENGTHS, limit=st.integers(1, 8))
def test_every_clip_of_every_video_is_planned_once(lengths, limit):
    specs = plan([make_probe(i, clips=n) for i, n in lengths.items()], limited(clips=limit))
    assert clips_of(specs) == {video_id: list(range(n)) for video_id, n in lengths.items()}


@given(
    lengths=LENGTHS,
    target_bytes=st.integers(1, 8 * CLIP_BYTES),
    max_seconds=st.floats(0.5, 20.0),
)
@example(lengths={"a": 3}, target_bytes=1, max_seconds=0.1)
def test_no_shard_is_above_its_limits_unless_a_single_clip_is(lengths, target_bytes, max_seconds):
    limits = ShardLimits(target_bytes=target_bytes, max_seconds=max_seconds)
    probes = [make_probe(i, clips=n) for i, n in lengths.items()]
    for spec in plan(probes, replace(TINY, shards=limits)):
        assert spec.num_clips > 0
        if spec.num_clips > 1:
            assert sum(piece.estimated_bytes for piece in spec.pieces) <= target_bytes
        if len(spec.pieces) > 1:
            assert spec.num_clips * 2.0 <= max_seconds


def test_a_long_video_is_cut_by_bytes_and_not_by_seconds():
    limits = ShardLimits(max_seconds=4.0)
    specs = plan(
        [make_probe(i, clips=n) for i, n in {"a": 9, "b": 1, "c": 1}.items()],
        replace(TINY, shards=limits),
    )
    assert [[(p.video_id, p.num_clips) for p in spec.pieces] for spec in specs] == [
        [("a", 9)],
        [("b", 1), ("c", 1)],
    ]


@given(lengths=LENGTHS, limit=st.integers(1, 8), data=st.data())
def test_extending_leaves_old_shards_unchanged_and_adds_only_what_is_new(lengths, limit, data):
    recipe = limited(clips=limit)
    probes = [make_probe(video_id, clips=n) for video_id, n in lengths.items()]
    number = data.draw(st.integers(0, len(probes)))
    old = plan(data.draw(st.permutations(probes))[:number], recipe)
    planned = set(clips_of(old))
    added = plan(probes, recipe, existing=old)
    assert set(clips_of(added)) == set(lengths) - planned
    assert [spec.index for spec in [*old, *added]] == list(range(len(old) + len(added)))
    assert plan(probes, recipe, existing=[*old, *added]) == []


@given(lengths=LENGTHS, limit=st.integers(1, 8))
def test_keys_are_sorted_within_a_shard(lengths, limit):
    specs = plan([make_probe(i, clips=n) for i, n in lengths.items()], limited(clips=limit))
    for spec in specs:
        keys = [sample_key(i, clip) for i, clips in clips_of([spec]).items() for clip in clips]
        assert keys == sorted(keys)


@given(lengths=LENGTHS, limit=st.integers(1, 8))
def test_only_a_video_longer_than_a_shard_is_cut(lengths, limit):
    specs = plan([make_probe(i, clips=n) for i, n in lengths.items()], limited(clips=limit))
    pieces = [piece for spec in specs for piece in spec.pieces]
    for video_id, n in lengths.items():
        assert sum(piece.video_id == video_id for piece in pieces) == -(-n // limit)


def test_a_long_video_is_cut_at_clips_and_only_its_last_piece_is_the_last():
    specs = plan([make_probe("long", clips=7)], limited(clips=3))
    pieces = [piece for spec in specs for piece in spec.pieces]
    assert [(p.first_clip, p.num_clips, p.is_last) for p in pieces] == [
        (0, 3, False),
        (3, 3, False),
        (6, 1, True),
    ]
    assert len(specs) == 3


def test_a_video_of_exactly_a_shard_is_one_last_piece():
    (spec,) = plan([make_probe("a", clips=3)], limited(clips=3))
    assert [(p.num_clips, p.is_last) for p in spec.pieces] == [(3, True)]


@pytest.mark.parametrize("limit", [4, 5])
def test_short_videos_share_a_shard(limit):
    specs = plan([make_probe(i, clips=2) for i in "abcd"], limited(clips=limit))
    assert [[piece.video_id for piece in spec.pieces] for spec in specs] == [["a", "b"], ["c", "d"]]


def test_a_piece_carries_what_the_probe_told():
    source = Source(uri="/v/a.mp4", video_id="a", start_seconds=1.0, end_seconds=9.0)
    probe = make_probe(
        "a", clips=9, source=source, size_bytes=5, mtime_ns=6, truncated=True, has_audio=True
    )
    (spec,) = plan([probe])
    (piece,) = spec.pieces
    assert (piece.uri, piece.start_seconds, piece.end_seconds) == ("/v/a.mp4", 1.0, 9.0)
    assert (piece.size_bytes, piece.mtime_ns, piece.truncated, piece.has_audio) == (
        5,
        6,
        True,
        True,
    )
    assert piece.num_clips == 4  # 8 seconds, 2 a clip
    assert piece.estimated_bytes == 4 * CLIP_BYTES


def test_rejects_are_not_planned():
    rejected = make_probe("b").rejected("not_a_video", "")
    assert set(clips_of(plan([make_probe("a"), rejected]))) == {"a"}


def test_copies_are_one_video_read_from_the_first_name():
    copies = [make_probe("v1", uri=uri) for uri in ("/z/a.mp4", "/b/b.mp4", "/a/b.mp4")]
    for probes in (copies, copies[::-1]):
        (spec,) = plan(probes)
        assert [piece.uri for piece in spec.pieces] == ["/z/a.mp4"]


def test_a_folder_that_moves_keeps_its_shards():
    before = [make_probe(i, clips=2, uri=f"/old/{i}.mp4") for i in "abc"]
    after = [make_probe(i, clips=2, uri=f"/new/place/{i}.mp4") for i in "abc"]
    names = [[spec.name for spec in plan(probes)] for probes in (before, after)]
    assert names[0] == names[1]


def test_nothing_to_plan_is_no_shard():
    assert plan([]) == []


def test_the_estimate_of_a_clip_grows_with_all_that_is_stored():
    size = estimate_clip_bytes(TINY, STAMPS)
    # Two streams of float16 features, and every member has a header and padding.
    assert size > 2 * 4 * (4 * 4 * 32 + 3 * 3 * 48) + 6 * 512
    assert size % 512 == 0
    smaller = [
        Recipe.load("tiny", overrides=["preview.enabled=false"]),
        Recipe.load("tiny", overrides=["preview.height=16"]),
        Recipe.load("tiny", overrides=["sampling.frames_per_clip=2"]),
        Recipe.load("tiny", overrides=["streams.image.grid=[2, 2]"]),
        Recipe.load("tiny", overrides=["streams.image.dtype=int8"]),
    ]
    assert all(estimate_clip_bytes(recipe, STAMPS) < size for recipe in smaller)


class TestPlanFiles:
    @pytest.fixture
    def layout(self, tmp_path):
        return CacheLayout(tmp_path / "fps=2 cache")

    def test_a_plan_is_read_back_over_all_its_files(self, layout):
        first = plan([make_probe(i, clips=2) for i in "ab"], limited(clips=2))
        write_plan(first, layout, recipe=TINY, stamps=STAMPS)
        second = plan([make_probe("é 'c'", clips=5)], limited(clips=2), existing=first)
        write_plan(second, layout, recipe=TINY, stamps=STAMPS)
        assert read_plan(layout) == [*first, *second]
        assert [path.name for path in layout.extensions(layout.plan)] == [
            "000000.parquet",
            "000001.parquet",
        ]

    def test_no_plan_is_empty(self, layout):
        assert read_plan(layout) == []
        assert read_made_by(layout) is None

    def test_a_plan_says_by_what_it_was_made(self, layout):
        write_plan(plan([make_probe("a")]), layout, recipe=TINY, stamps=STAMPS)
        assert read_made_by(layout) == MadeBy(
            fingerprint=TINY.fingerprint(STAMPS), recipe=TINY, stamps=STAMPS
        )

    def test_extending_leaves_the_old_file_as_it_is(self, layout):
        write_plan(plan([make_probe("a")]), layout, recipe=TINY, stamps=STAMPS)
        (path,) = layout.extensions(layout.plan)
        before = path.read_bytes()
        write_plan(plan([make_probe("b")]), layout, recipe=TINY, stamps=STAMPS)
        assert path.read_bytes() == before

    def test_a_plan_that_cannot_be_written_is_an_error_of_the_place(self, layout):
        layout.root.mkdir()
        layout.plan.touch()  # a file where the folder should be
        with pytest.raises(StorageError):
            write_plan(plan([make_probe("a")]), layout, recipe=TINY, stamps=STAMPS)

    @pytest.mark.parametrize("read", [read_plan, read_made_by])
    @pytest.mark.parametrize("keep", [0, 100])
    def test_a_damaged_plan_is_named(self, layout, read, keep):
        write_plan(plan([make_probe("a")]), layout, recipe=TINY, stamps=STAMPS)
        (path,) = layout.extensions(layout.plan)
        path.write_bytes(path.read_bytes()[:keep])
        with pytest.raises(CacheDamaged, match=r"000000\.parquet"):
            read(layout)

    def test_the_same_recipe_goes_on(self, layout):
        check_recipe(layout, TINY, STAMPS)
        write_plan(plan([make_probe("a")]), layout, recipe=TINY, stamps=STAMPS)
        check_recipe(layout, replace(TINY, name="other", shards=ShardLimits()), STAMPS)

    def test_another_recipe_is_refused_with_the_fields_that_differ(self, layout):
        write_plan(plan([make_probe("a")]), layout, recipe=TINY, stamps=STAMPS)
        other = Recipe.load("tiny", overrides=["sampling.fps=1"])
        with pytest.raises(FingerprintMismatch, match=re.escape("sampling.fps: 2.0 -> 1.0")):
            check_recipe(layout, other, STAMPS)

    def test_other_weights_are_refused(self, layout):
        write_plan(plan([make_probe("a")]), layout, recipe=TINY, stamps=STAMPS)
        stamps = STAMPS | {"image": STAMPS["image"] | {"weights_sha256": "ab"}}
        field = r"streams\[image\].stamp.weights_sha256"
        with pytest.raises(FingerprintMismatch, match=field) as caught:
            check_recipe(layout, TINY, stamps)
        assert caught.value.hint.startswith("give the weights that it was made with")
