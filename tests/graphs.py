"""Graphs of the flow, translated as engines get them; nothing here runs or asks a network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import StandardOptions
from apache_beam.runners.dataflow.internal import apiclient
from apache_beam.runners.portability.portable_runner import PortableRunner
from apache_beam.transforms import environments
from upath import UPath

import beam_runner
from pipeline.beam_options import beam_arguments, parse_options, to_flags
from pipeline.encoding import stamp_streams
from pipeline.engine_meeting import EngineMeeting
from pipeline.engines import Stage, find_engine
from pipeline.layout import CacheLayout
from pipeline.limiting import RejectLimit
from pipeline.options import RunOptions
from schemas.recipe import Recipe

IMAGE = "europe-docker.pkg.dev/my-project/my-images/reelcache:0.1"
CACHE = "gs://my-bucket/cache"
DATAFLOW = ("--project=my-project", "--region=europe-west4", "--temp_location=gs://my-bucket/tmp")
TINY = Recipe.load("tiny")


def beam_options(options: RunOptions, stage: Stage) -> Any:
    """As a run on an engine makes them."""
    arguments = beam_arguments(options, stage=stage, run_id="run-0123456789abcdef")
    engine = find_engine(options.runner)
    return parse_options([*arguments, *to_flags(options)], engine=engine)


def graph(stage: Stage, options: RunOptions, *, cache: str, parsed: Any) -> beam.Pipeline:
    """The pipeline of a stage, on a runner that is never started."""
    options = replace(options, device=options.choose_device())
    # Without asking the place whether it is there.
    place: Any = UPath(cache, use_listings_cache=False) if "://" in cache else Path(cache)
    layout = CacheLayout(place)
    meeting = EngineMeeting(place / ".tmp" / "run-0123456789abcdef", cache=cache)
    root = beam.Pipeline(runner="FnApiRunner", options=parsed)
    if stage == "probe":
        beam_runner.probe(root, meeting=meeting, recipe=TINY)
    else:
        stamps = stamp_streams(TINY, device=options.device)
        limit = RejectLimit(
            num_sources=10, max_rate=1.0, before={}, uncounted=frozenset(), cache=cache
        )
        beam_runner.build(
            root,
            layout=layout,
            meeting=meeting,
            recipe=TINY,
            stamps=stamps,
            options=options,
            limit=limit,
        )
    return root


def portable_proto(stage: Stage, options: RunOptions, *, cache: str = CACHE) -> Any:
    """What a portable engine is sent."""
    parsed = beam_options(options, stage)
    return PortableRunner.get_proto_pipeline(
        graph(stage, options, cache=cache, parsed=parsed), parsed
    )


def dataflow_job(stage: Stage, options: RunOptions, *, cache: str = CACHE) -> tuple[Any, Any]:
    """(runner API proto, job as Dataflow's service gets it)."""
    parsed = beam_options(options, stage)
    pipeline = graph(stage, options, cache=cache, parsed=parsed)
    # With this runner a pipeline would ask a network for credentials as soon as it is made.
    parsed.view_as(StandardOptions).runner = "DataflowRunner"
    image = apiclient.get_container_image_from_options(parsed)
    default = environments.DockerEnvironment.from_container_image(
        image, resource_hints=environments.resource_hints_from_options(parsed)
    )
    proto = pipeline.to_runner_api(default_environment=default)
    job = apiclient.Job(parsed, proto)
    environment = apiclient.Environment(
        proto_pipeline_staged_url="gs://my-bucket/tmp/pipeline.pb",
        packages=[],
        options=parsed,
        environment_version="8",
        proto_pipeline=proto,
    )
    job.proto.environment = environment.proto
    return proto, job.proto


def used_environments(proto: Any) -> dict[str, Any]:
    """Those in which a transform runs."""
    used = {t.environment_id for t in proto.components.transforms.values() if t.environment_id}
    return {name: proto.components.environments[name] for name in used}


def leaves(proto: Any) -> dict[str, Any]:
    """Unique name -> transform that has no parts."""
    found = proto.components.transforms.values()
    return {t.unique_name: t for t in found if not t.subtransforms and t.spec.urn}
