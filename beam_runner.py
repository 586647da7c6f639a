"""The flow on one page: videos in, a verified feature cache out.

    sources --probe (Beam)--> probes --plan (pure)--> ShardSpecs --build (Beam)--> shards --finalize

Running again is planned minus committed: nothing that is done is done twice.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from encoders.devices import choose_device
from pipeline.encoding import audio_spec, stamp_streams, stream_specs
from pipeline.finalizing import account_for, finalize_cache, read_committed, read_sidecars
from pipeline.layout import CacheLayout
from pipeline.locking import hold_cache
from pipeline.options import RunOptions, open_root
from pipeline.places import to_place
from pipeline.planning import check_recipe, estimate_clip_bytes, extend_plan, read_plan, write_plan
from pipeline.probing import read_probes, select_unprobed, write_probes
from pipeline.recovering import pieces_back
from pipeline.report import RunReport
from pipeline.run_folder import RunFolder
from pipeline.settling import settle_ids
from pipeline.signing import learn
from schemas.recipe import Recipe
from schemas.video import Source

Watch = Callable[[str, int, RunFolder], contextlib.AbstractContextManager[None]]
"""(stage, how much there is to do, folder with the counts) -> a context that shows progress."""


def probe(root: Any, *, run_folder: RunFolder, recipe: Recipe) -> Any:
    """Headers and packets in, one small row a source out; a bad video is a row with a reject."""
    import apache_beam as beam

    from pipeline.transforms import ProbeVideos, ReadSources, WriteProbes

    return (
        root
        | "RunFolder" >> beam.Create([str(run_folder.path)])
        | "ReadSources" >> ReadSources()
        | "ProbeVideos" >> ProbeVideos(recipe.limits, run_folder)
        | "WriteProbes" >> WriteProbes(run_folder)
    )


def build(
    root: Any,
    *,
    layout: CacheLayout,
    run_folder: RunFolder,
    recipe: Recipe,
    stamps: dict[str, dict[str, Any]],
    options: RunOptions,
) -> Any:
    """One ShardSpec in, one committed shard out; only its name leaves the step."""
    import apache_beam as beam

    from pipeline.transforms import BuildShards, ReadPlan

    return (
        root
        | "Cache" >> beam.Create([str(layout.root)])
        | "ReadPlan" >> ReadPlan(run_folder)
        | "BuildShards" >> BuildShards(recipe, layout, run_folder, stamps, options)
    )


def run(
    sources: Sequence[Source],
    recipe: Recipe,
    *,
    cache_path: str | os.PathLike[str],
    options: RunOptions | None = None,
    watch: Watch = lambda *_: contextlib.nullcontext(),
) -> RunReport:
    """Cache the features of `sources`; call it again to go on, or with more sources to add them.

    FingerprintMismatch: the cache was made by another recipe. TooManyRejects: see RunOptions.
    StorageError: the place cannot be written. UsageError: another run is at work on this cache.
    WeightsError, DeviceError: the encoders cannot be loaded or run.
    """
    began = time.monotonic()
    options = options or RunOptions()
    options = replace(options, device=choose_device(options.device))
    layout = CacheLayout(to_place(cache_path))
    sources = [replace(source, uri=learn(source.uri)) for source in sources]
    stamps = stamp_streams(recipe, device=options.device)
    fingerprint = recipe.fingerprint(stamps)
    with hold_cache(layout) as hold:
        run_folder = hold.run_folder
        run_folder.seal_urls(source.uri for source in sources)
        check_recipe(layout, recipe, stamps)
        planned = read_plan(layout)

        known = read_probes(layout)
        unprobed = select_unprobed(sources, known)
        if unprobed:
            run_folder.write_sources(unprobed)
            size = len(unprobed)
            with (
                watch("probe", size, run_folder),
                open_root(options, run_folder=run_folder, num_elements=size // 20) as root,
            ):
                probe(root, run_folder=run_folder, recipe=recipe)
            fresh = settle_ids(run_folder.read_probes(), known=known, existing=planned)
            write_probes(fresh, layout)
        probes = read_probes(layout)

        added = extend_plan(
            probes,
            recipe=recipe,
            recipe_fingerprint=fingerprint,
            clip_bytes=estimate_clip_bytes(
                recipe,
                stream_specs(recipe, device=options.device),
                sound=audio_spec(recipe, device=options.device),
            ),
            existing=planned,
            again=pieces_back(planned, read_committed(planned, layout), probes),
        )
        hold.check()
        if added:
            write_plan(added, layout, recipe=recipe, stamps=stamps)
        specs = [*planned, *added]

        committed = layout.committed()
        todo = [spec for spec in specs if spec.name not in committed]
        if todo:
            with (
                watch("build", sum(spec.num_clips for spec in todo), run_folder),
                open_root(options, run_folder=run_folder, num_elements=len(todo)) as root,
            ):
                build(
                    root,
                    layout=layout,
                    run_folder=run_folder,
                    recipe=recipe,
                    stamps=stamps,
                    options=options,
                )

        hold.check()
        measured = run_folder.measured()
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
