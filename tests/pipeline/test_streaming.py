"""The streaming graph: translated for an engine, and run here over a bounded stream.

What only an engine shows (unbounded sources, timers, updates of a running job) was not run.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apache_beam as beam
import pytest
from apache_beam.portability import common_urns
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.transforms.window import TimestampedValue

import beam_runner
from pipeline.cache import open_cache
from pipeline.encoding import stamp_streams
from pipeline.launching import open_root
from pipeline.layout import CacheLayout
from pipeline.locking import hold_cache
from pipeline.options import RunOptions
from pipeline.planning import read_plan
from pipeline.probing import read_probes
from pipeline.run_folder import RunFolder
from pipeline.sources import read_sources
from pipeline.streaming import (
    HASH_BITS,
    ReadNotifications,
    StreamSettings,
    WatchPattern,
    build_stream,
    plan_batch,
    to_sources,
    window_number,
)
from pipeline.verifying import verify_cache
from schemas.recipe import Recipe
from schemas.video import Probe, Source

if TYPE_CHECKING:
    from tests.clips import ClipShelf

TINY = Recipe.load("tiny", overrides=["shards.max_seconds=4"])
SETTINGS = StreamSettings(window_seconds=60, batch_videos=2, num_buckets=2)


def make_probe(name: str, *, content: str = "", num_seconds: float = 3.0) -> Probe:
    sha256 = (content or name).encode().hex().ljust(64, "0")
    return Probe(
        source=Source(uri=f"/{name}"),
        video_id=f"v{sha256[:16]}",
        content_sha256=sha256,
        size_bytes=1,
        last_seconds=num_seconds,
        duration_seconds=num_seconds,
    )


def plan(layout: CacheLayout, *probes: Probe, end: float = 1_800_000_060.0) -> list[Any]:
    return plan_batch(
        [(probe, True) for probe in probes],
        layout,
        window_end_seconds=end,
        recipe=TINY,
        stamps=stamp_streams(TINY),
        clip_bytes=1000,
        window_seconds=60,
    )


def translated(read: Any, layout: CacheLayout) -> Any:
    """The graph as an engine gets it."""
    root = beam.Pipeline(runner=FnApiRunner())
    build_stream(
        root | "Read" >> read,
        layout=layout,
        meeting=RunFolder(layout.scratch / "run"),
        recipe=TINY,
        stamps=stamp_streams(TINY),
        options=RunOptions(),
        settings=replace(SETTINGS, buffer_seconds=5.0),
    )
    return root.to_runner_api()


@pytest.mark.parametrize(
    ("read", "urn"),
    [
        (
            ReadNotifications("projects/my-project/subscriptions/new-videos"),
            common_urns.composites.PUBSUB_READ.urn,
        ),
        (WatchPattern("/inbox/*.mp4", interval_seconds=10), None),
    ],
    ids=["notifications", "pattern"],
)
def test_the_graph_translates_for_an_engine(read: Any, urn: str | None, tmp_path: Path) -> None:
    graph = translated(read, CacheLayout(tmp_path))
    transforms = graph.components.transforms
    names = [one.unique_name for one in transforms.values()]
    order = ["Read/", "ProbeVideos", "Settle/OneContent", "Batch/GroupIntoBatches", "Plan"]
    order += ["BuildShards"]
    assert all(any(name.startswith(part) for name in names) for part in order)
    urns = {one.spec.urn for one in transforms.values()}
    assert urn is None or urn in urns
    # From the plan to the committed shard there is one shuffle, of ShardSpecs, and no other.
    builds = [one for one in transforms.values() if one.unique_name.startswith("BuildShards")]
    assert common_urns.primitives.GROUP_BY_KEY.urn not in {one.spec.urn for one in builds}
    stateful = [
        one.unique_name
        for one in transforms.values()
        if one.spec.urn == common_urns.primitives.PAR_DO.urn
        and beam.portability.api.beam_runner_api_pb2.ParDoPayload.FromString(
            one.spec.payload
        ).state_specs
    ]
    assert {name.split("/")[0] for name in stateful} <= {"Settle", "Batch", "Read"}
    windows = [s.window_fn.urn for s in graph.components.windowing_strategies.values()]
    assert common_urns.fixed_windows.urn in windows
    assert len(graph.SerializeToString()) < 200_000


def test_a_bounded_stream_gives_the_samples_of_a_run(clips: ClipShelf, tmp_path: Path) -> None:
    inbox, cache, whole = tmp_path / "inbox", tmp_path / "cache", tmp_path / "whole"
    inbox.mkdir()
    for name in ("25.mp4", "50.mp4", "b_frames.mp4", "one_frame.mp4"):
        shutil.copy(clips[name].path, inbox / name)
    shutil.copy(clips["25.mp4"].path, inbox / "copy.mp4")
    (inbox / "broken.mp4").write_text("no video")
    sources = read_sources([str(inbox)]).sources
    layout = CacheLayout(cache)
    with (
        hold_cache(layout) as hold,
        open_root(RunOptions(), meeting=hold.run_folder, stage="build", num_elements=1) as root,
    ):
        build_stream(
            root
            | beam.Create(sources)
            | beam.Map(lambda source: TimestampedValue(source, 1.8e9 + len(source.uri))),
            layout=layout,
            meeting=hold.run_folder,
            recipe=TINY,
            stamps=stamp_streams(TINY),
            options=RunOptions(),
            settings=SETTINGS,
        )
    specs = read_plan(layout)
    assert {spec.name for spec in specs} == layout.committed()
    assert len({spec.index for spec in specs}) == len(specs) >= 4
    report = beam_runner.run(sources, TINY, cache_path=cache)
    assert (report.videos, report.rejected, report.skipped) == (0, 1, 5)
    assert verify_cache(cache, deep=True).findings == []
    beam_runner.run(sources, TINY, cache_path=whole)
    with open_cache(cache) as streamed, open_cache(whole) as batch:
        assert streamed.keys() == batch.keys()
        for key in batch.keys():  # noqa: SIM118 - iterating gives samples
            one, other = (
                {n: b"".join(bytes(p) for p in d) for n, d in opened[key].to_members()}
                for opened in (streamed, batch)
            )
            # A copy may lend its name.
            one.pop("json"), other.pop("json")
            assert one == other
    (inbox / "more.mp4").write_bytes(clips["variable_rate.mp4"].path.read_bytes())
    report = beam_runner.run(read_sources([str(inbox)]).sources, TINY, cache_path=cache)
    assert report.videos == 1
    assert verify_cache(cache).findings == []


def test_a_batch_that_is_planned_again_is_the_same(tmp_path: Path) -> None:
    layout = CacheLayout(tmp_path)
    probes = [make_probe(name) for name in "abc"]
    first = plan(layout, *probes)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*.parquet")}
    assert plan(layout, *probes) == first
    assert sorted(first, key=lambda spec: spec.index) == read_plan(layout)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.parquet")} == files
    assert read_probes(layout) == probes


def test_the_same_videos_in_another_window_are_other_shards(tmp_path: Path) -> None:
    layout = CacheLayout(tmp_path)
    (one,) = plan(layout, make_probe("a"))
    (other,) = plan(layout, make_probe("b"), end=1_800_000_120.0)
    assert other.index >> HASH_BITS == (one.index >> HASH_BITS) + 1
    assert one.index < other.index < 2**63
    assert read_plan(layout) == [one, other]


def test_two_batches_of_one_hash_do_not_overwrite_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "pipeline.streaming.window_number",
        lambda end, text, *, window_seconds: window_number(
            end, text.split()[0], window_seconds=window_seconds
        ),
    )
    layout = CacheLayout(tmp_path)
    specs = [*plan(layout, make_probe("a")), *plan(layout, make_probe("b"))]
    assert len({spec.index for spec in specs}) == 2
    assert sorted(specs, key=lambda spec: spec.index) == read_plan(layout)
    assert {probe.source.uri for probe in read_probes(layout)} == {"/a", "/b"}


@pytest.mark.parametrize("end", [-9e12, 0.0, 2.0e9, 4.0e9])
def test_a_number_of_a_window_fits_its_column(end: float) -> None:
    assert 0 <= window_number(end, "a", window_seconds=10) < 2**63


def test_windows_are_not_too_short_for_their_number() -> None:
    with pytest.raises(ValueError, match="window_seconds = 5 must be at least 10"):
        replace(SETTINGS, window_seconds=5)


def test_a_notification_names_an_object_that_is_new() -> None:
    told = {"bucketId": "b", "objectId": "day 1/a.mp4"}
    assert to_sources(told) == [Source(uri="gs://b/day 1/a.mp4")]
    assert to_sources(told | {"eventType": "OBJECT_FINALIZE"}) == to_sources(told)
    assert to_sources(told | {"eventType": "OBJECT_DELETE"}) == []
