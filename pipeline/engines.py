"""Engines: what can execute a run, by name, and what each of them needs.

See docs/engines.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from schemas.errors import UsageError
from schemas.settings import nearest

Stage = Literal["probe", "build"]
OTHER = "beam:"
"""Prefix of a runner that is named as Beam names it."""
NO_ACCELERATOR = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Something that executes a Beam pipeline elsewhere than in this run's own processes."""

    name: str
    beam_runner: str
    is_far: bool = False
    """Its workers share no folder with this machine."""
    accelerator: str = ""
    """Asked for where nothing else is said."""
    knows_all_options: bool = False
    """Whether an option that Beam does not know here is a mistake."""
    needs: Mapping[str, str] = field(default_factory=dict)
    """Options of Beam without which it does not start -> an example."""
    needs_one: Mapping[str, str] = field(default_factory=dict)
    """Of these options one; without any Beam would download a program, and wait for it for ever."""
    install: str = ""


ENGINES = {
    engine.name: engine
    for engine in (
        Engine(
            name="dataflow",
            beam_runner="DataflowRunner",
            is_far=True,
            accelerator="type:nvidia-l4;count:1;install-nvidia-driver",
            knows_all_options=True,
            needs={
                "project": "my-project",
                "region": "us-central1",
                "temp_location": "gs://my-bucket/tmp",
                "sdk_container_image": "REGION-docker.pkg.dev/PROJECT/REPO/reelcache:TAG",
            },
            install="pip install 'reelcache[gcp]'",
        ),
        Engine(
            name="flink",
            beam_runner="FlinkRunner",
            needs_one={
                "job_endpoint": "localhost:8099",
                "flink_job_server_jar": "beam-runners-flink-2.2-job-server-2.77.0.jar",
            },
        ),
        Engine(
            name="spark",
            beam_runner="SparkRunner",
            needs_one={
                "job_endpoint": "localhost:8099",
                "spark_job_server_jar": "beam-runners-spark-3-job-server-2.77.0.jar",
            },
        ),
        Engine(
            name="prism",
            beam_runner="PrismRunner",
            needs_one={"prism_location": "/usr/local/bin/prism", "job_endpoint": "localhost:8073"},
        ),
    )
}
RUNNERS = ("local", *ENGINES)

DATAFLOW_DEFAULTS = {
    "disk_size_gb": "100",
    "experiments": "no_use_multiple_sdk_containers",
    "number_of_worker_harness_threads": "1",
    "sdk_location": "container",
}
"""One process a worker, one shard at a time in it: a shard has its own threads and decoders."""
GPU_MACHINE, CPU_MACHINE = "g2-standard-8", "n2-standard-8"


def find_engine(runner: str) -> Engine:
    """The engine of this name. UsageError: there is none."""
    if runner in ENGINES:
        return ENGINES[runner]
    if runner.startswith(OTHER) and runner != OTHER:
        return Engine(name=runner, beam_runner=runner.removeprefix(OTHER))
    known = ", ".join(RUNNERS)
    raise UsageError(
        f"runner {runner!r} must be one of {known}, or {OTHER}NAME{nearest(runner, RUNNERS)}"
    )
