"""The flow on one page: videos in, a verified feature cache out.

    sources --probe (Beam)--> probes --plan (pure)--> ShardSpecs --build (Beam)--> shards --finalize

Running again is planned minus committed: nothing that is done is done twice.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from pipeline.encoding import stamp_streams
from pipeline.finalizing import (
    account_for,
    account_so_far,
    finalize_cache,
    read_committed,
    read_sidecars,
    rejects_told,
)
from pipeline.launching import open_root
from pipeline.layout import CacheLayout
from pipeline.limiting import RejectLimit
from pipeline.locking import hold_cache
from pipeline.meeting import Meeting, check_reachable, open_meeting
from pipeline.options import RunOptions
from pipeline.places import is_local, to_place
from pipeline.planning import check_recipe, estimate_clip_bytes, extend_plan, read_plan, write_plan
from pipeline.probing import read_probes, select_changed, select_unprobed, write_probes
from pipeline.recovering import pieces_back
from pipeline.report import RunReport
from pipeline.settling import settle_ids
from pipeline.signing import learn
from schemas.errors import UsageError
from schemas.recipe import Recipe
from schemas.video import Source

Watch = Callable[[str, int, Meeting], contextlib.AbstractContextManager[None]]
"""(stage, how much there is to do, who has the counts) -> a context that shows progress."""


def probe(root: Any, *, meeting: Meeting, recipe: Recipe) -> Any:
    """Headers and packets in, one small row a source out; a bad video is a row with a reject."""
    import apache_beam as beam

    from pipeline.transforms import ProbeVideos, ReadSources, WriteProbes

    return (
        root
        | "Sources" >> beam.Create([meeting.sources_file])
        | "ReadSources" >> ReadSources()
        | "ProbeVideos" >> ProbeVideos(recipe.limits, meeting)
        | "WriteProbes" >> WriteProbes(meeting)
    )


def build(
    root: Any,
    *,
    layout: CacheLayout,
    meeting: Meeting,
    recipe: Recipe,
    stamps: dict[str, dict[str, Any]],
    options: RunOptions,
    limit: RejectLimit,
) -> Any:
    """One ShardSpec in, one committed shard out; only its name leaves the step."""
    import apache_beam as beam

    from pipeline.transforms import BuildShards, ReadPlan

    return (
        root
        | "Cache" >> beam.Create([str(layout.root)])
        | "ReadPlan" >> ReadPlan(meeting)
        | "BuildShards" >> BuildShards(recipe, layout, meeting, stamps, options, limit)
    )


def run(
    sources: Sequence[Source] | None,
    recipe: Recipe,
    *,
    cache_path: str | os.PathLike[str],
    options: RunOptions | None = None,
    retry: Collection[str] = (),
    watch: Watch = lambda *_: contextlib.nullcontext(),
) -> RunReport:
    """Cache the features of `sources`; call it again to go on, or with more sources to add them.

    `retry` names reasons: sources that were rejected for one of them are tried again although
    their file is the same. None as sources is all that the cache knows, of which only those are
    looked at.

    FingerprintMismatch: the cache was made by another recipe. TooManyRejects: see RunOptions.
    StorageError: the place cannot be written. CacheHeld: another run is at work on this cache.
    WeightsError, DeviceError: the encoders cannot be loaded or run. EngineError: see open_root.
    """
    began = time.monotonic()
    options = options or RunOptions()
    options = replace(options, device=options.choose_device())
    place = to_place(cache_path)
    if is_local(place) and not options.is_local:
        place = place.absolute()  # workers have other working folders
    layout = CacheLayout(place)
    check_reachable(options, root=layout.root, sources=sources or ())
    if sources is None and not layout.extensions(layout.probes):
        raise UsageError(f"{layout.root}: no cache, so nothing was rejected", hint="name SOURCES")
    if sources is not None:
        sources = [replace(source, uri=learn(source.uri)) for source in sources]
    stamps = stamp_streams(recipe, device=options.device)
    fingerprint = recipe.fingerprint(stamps)
    with (
        hold_cache(layout) as hold,
        open_meeting(layout, hold.run_folder, options=options) as meeting,
    ):
        meeting.seal_urls(source.uri for source in sources or ())
        check_recipe(layout, recipe, stamps)
        planned = read_plan(layout)

        known = read_probes(layout)
        if sources is None:
            sources = [probe.source for probe in known]
            looked_at = [p.source for p in known if p.reject and p.reject.reason in retry]
        else:
            looked_at = list(sources)
        unprobed = select_unprobed(looked_at, known, retry=retry)
        if unprobed:
            meeting.write_sources(unprobed)
            size = len(unprobed)
            with (
                watch("probe", size, meeting),
                open_root(options, meeting=meeting, stage="probe", num_elements=size // 20) as root,
            ):
                probe(root, meeting=meeting, recipe=recipe)
            fresh = settle_ids(meeting.read_probes(), known=known, existing=planned)
            if changed := select_changed(fresh, known):
                write_probes(changed, layout)
        probes = read_probes(layout)
        own = {source.identity for source in sources}
        video_ids = {probe.video_id for probe in probes if probe.source.identity in own}
        sidecars = read_committed(planned, layout)

        added = extend_plan(
            probes,
            recipe=recipe,
            recipe_fingerprint=fingerprint,
            clip_bytes=estimate_clip_bytes(recipe, stamps),
            existing=planned,
            again=pieces_back(planned, sidecars, probes, retry=retry, video_ids=video_ids),
        )
        hold.check()
        if added:
            write_plan(added, layout, recipe=recipe, stamps=stamps)
        specs = [*planned, *added]

        committed = layout.committed()
        todo = [spec for spec in specs if spec.name not in committed]
        if todo:
            with rejects_told(specs, probes, layout):
                limit = RejectLimit.of(
                    account_so_far(probes, sidecars, todo).part(own),
                    todo,
                    num_sources=len(own),
                    video_ids=video_ids,
                    max_rate=options.max_reject_rate,
                    cache=str(layout.root),
                    is_shared=options.is_local,
                )
                with (
                    watch("build", sum(spec.num_clips for spec in todo), meeting),
                    open_root(
                        options, meeting=meeting, stage="build", num_elements=len(todo)
                    ) as root,
                ):
                    build(
                        root,
                        layout=layout,
                        meeting=meeting,
                        recipe=recipe,
                        stamps=stamps,
                        options=options,
                        limit=limit,
                    )

        hold.check()
        measured = meeting.measured()
        sidecars = read_sidecars(specs, layout)
        account = account_for(probes, sidecars)
        finalize_cache(
            layout,
            recipe=recipe,
            stamps=stamps,
            account=account,
            sources=sources,
            sidecars=sidecars,
            max_reject_rate=options.max_reject_rate,
        )
    built = {spec.name for spec in todo}
    return RunReport.of(
        sources,
        new=[sidecar for sidecar in sidecars if sidecar.name in built],
        account=account,
        fingerprint=fingerprint,
        cache=str(layout.root),
        seconds=time.monotonic() - began,
        measured=measured,
    )
