"""Engines: graphs as they are sent to them, and runs on what there is of them on one machine."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

import beam_runner
from pipeline import sharding
from pipeline.engine_meeting import EngineMeeting
from pipeline.layout import CacheLayout
from pipeline.meeting import Meeting
from pipeline.options import RunOptions
from pipeline.packing import TarWriter
from pipeline.report import RunReport
from pipeline.sources import read_sources
from pipeline.verifying import verify_cache
from schemas.errors import DeviceError, EngineError, StorageError, UsageError
from schemas.recipe import Recipe
from schemas.tables import PLAN_SCHEMA
from schemas.video import Source
from tests.graphs import (
    CACHE,
    DATAFLOW,
    IMAGE,
    beam_options,
    dataflow_job,
    leaves,
    parse_options,
    portable_proto,
    used_environments,
)

if TYPE_CHECKING:
    from tests.clips import ClipShelf

TINY = Recipe.load("tiny", overrides=["shards.max_seconds=4"])
GROUP = "beam:transform:group_by_key:v1"
MOST_CONSTANT_BYTES = 64 * 1024
MOST_JOB_BYTES = 2_000_000
"""A tenth of what Dataflow takes."""
SAME_BYTES = 512
"""Pickles name things in another order each time and are compressed; names hold the time of day."""
EMBEDDED = ("--job_endpoint=embed", "--environment_type=LOOPBACK")
"""Beam's own job server in this process, and workers in its threads: the portable way, whole."""
JAR = "--flink_job_server_jar=flink.jar"


def on_dataflow(**fields: Any) -> RunOptions:
    arguments = (*DATAFLOW, *fields.pop("beam_arguments", ()))
    chosen = {"container": IMAGE} | fields
    return RunOptions(runner="dataflow", beam_arguments=arguments, **chosen)


def job_size(job: Any) -> int:
    return len(type(job).to_json(job))


# What Dataflow gets


@pytest.mark.parametrize("stage", ["probe", "build"])
def test_a_job_has_one_environment_and_it_is_our_container(stage: Any) -> None:
    proto, job = dataflow_job(stage, on_dataflow(min_ram="24GB", min_cpus=8))
    (environment,) = used_environments(proto).values()
    assert len(proto.components.environments) == 1
    assert IMAGE.encode() in environment.payload
    (pool,) = job.environment.worker_pools
    assert pool.worker_harness_container_image == IMAGE
    assert len(pool.sdk_harness_container_images) == 1


def test_what_builds_says_what_it_needs_and_what_probes_needs_no_gpu() -> None:
    options = on_dataflow(min_ram="24GB", min_cpus=8)
    proto, _ = dataflow_job("build", options)
    build = leaves(proto)["BuildShards/ParDo(_BuildShard)"]
    hints = proto.components.environments[build.environment_id].resource_hints
    assert {name.split(":")[2]: value for name, value in hints.items()} == {
        "accelerator": b"type:nvidia-l4;count:1;install-nvidia-driver",
        "min_ram_bytes": b"24000000000",
        "cpu_count": b"8",
    }
    (environment,) = used_environments(dataflow_job("probe", options)[0]).values()
    assert not environment.resource_hints


def test_defaults_of_a_job_are_as_documented() -> None:
    options = on_dataflow(num_workers=20)
    for stage, machine in (("probe", "n2-standard-8"), ("build", "g2-standard-8")):
        _, job = dataflow_job(stage, options)  # type: ignore[arg-type]
        (pool,) = job.environment.worker_pools
        assert pool.machine_type == machine
        assert pool.disk_size_gb == 100
        assert pool.num_threads_per_worker == 1
        assert pool.autoscaling_settings.max_num_workers == 20
        assert "no_use_multiple_sdk_containers" in job.environment.experiments
        assert "use_multiple_sdk_containers" not in job.environment.experiments
        assert job.name == f"reelcache-{stage}-0123456789ab"
        assert job.type_.name == "JOB_TYPE_BATCH"


def test_what_the_user_says_to_beam_wins() -> None:
    said = ("--machine_type=a2-highgpu-1g", "--disk_size_gb=200", "--max_num_workers=3")
    _, job = dataflow_job("build", on_dataflow(beam_arguments=said))
    (pool,) = job.environment.worker_pools
    assert (pool.machine_type, pool.disk_size_gb) == ("a2-highgpu-1g", 200)
    assert pool.autoscaling_settings.max_num_workers == 3


def test_without_an_accelerator_machines_have_none() -> None:
    proto, job = dataflow_job("build", on_dataflow(accelerator="none"))
    assert job.environment.worker_pools[0].machine_type == "n2-standard-8"
    (environment,) = used_environments(proto).values()
    assert not environment.resource_hints


def test_options_of_a_run_travel_with_the_job() -> None:
    options = on_dataflow(
        num_decoders=6, max_batch=32, compile=True, device="cuda", fetch_bytes=10**9
    )
    _, job = dataflow_job("build", options)
    told = job.environment.sdk_pipeline_options["options"]
    assert (told["decoders"], told["encoder_batch"]) == (6, 32)
    assert told["fetch_bytes"] == 10**9
    assert told["encoder_compile"] is True
    assert told["encoder_device"] == "cuda"


# The graph


@pytest.mark.parametrize(
    ("stage", "work"),
    [("probe", "ProbeVideos/ParDo(_ProbeVideo)"), ("build", "BuildShards/ParDo(_BuildShard)")],
)
def test_work_is_spread_before_it_and_nothing_is_shuffled_after_it(stage: Any, work: str) -> None:
    proto, _ = dataflow_job(stage, on_dataflow())
    steps = leaves(proto)
    groups = [name for name, step in steps.items() if step.spec.urn == GROUP]
    assert len(groups) == 1
    outputs = set(steps[groups[0]].outputs.values())
    after: set[str] = set()
    while outputs:
        following = {n for n, s in steps.items() if outputs & set(s.inputs.values())} - after
        after |= following
        outputs = {one for name in following for one in steps[name].outputs.values()}
    assert work in after


@pytest.mark.parametrize("stage", ["probe", "build"])
def test_all_that_follows_the_spreading_is_one_fused_stage(stage: Any) -> None:
    proto = portable_proto(stage, RunOptions(runner="flink", beam_arguments=(JAR,)))
    _, stages = FnApiRunner().create_stages(proto)
    of_work = [
        {transform.unique_name for transform in one.transforms}
        for one in stages
        if any(
            "_BuildShard" in t.unique_name or "_ProbeVideo" in t.unique_name for t in one.transforms
        )
    ]
    assert len(of_work) == 1
    (names,) = of_work
    assert any("restore_metadata" in name for name in names), "it begins at the spreading"
    others = {name for name in names if "Spread" not in name and "/Read" not in name}
    wanted = {"probe": {"_ProbeVideo", "_WriteProbes"}, "build": {"_BuildShard"}}[stage]
    ours = {name for name in others if "ParDo(_" in name}
    assert {name.partition("ParDo(")[2].rstrip(")") for name in ours} == wanted


@pytest.mark.parametrize("stage", ["probe", "build"])
def test_no_constant_of_a_job_is_large(stage: Any) -> None:
    proto, job = dataflow_job(stage, on_dataflow())
    sizes = {name: len(step.spec.payload) for name, step in leaves(proto).items()}
    assert max(sizes.values()) < MOST_CONSTANT_BYTES
    assert proto.ByteSize() < MOST_JOB_BYTES
    assert job_size(job) < MOST_JOB_BYTES


def test_a_job_for_a_million_videos_is_as_large_as_one_for_ten(tmp_path: Path) -> None:
    layout = CacheLayout(tmp_path)
    layout.plan.mkdir(parents=True)
    sizes = []
    for num_rows in (10, 1_000_000):
        row = plan_row()
        columns = {key: pa.array([value] * num_rows) for key, value in row.items()}
        columns["index"] = pa.array(range(num_rows))
        table = pa.table(columns, schema=PLAN_SCHEMA)
        pq.write_table(table, layout.plan / "000000.parquet")
        proto, job = dataflow_job("build", on_dataflow(), cache=str(tmp_path))
        sizes.append((proto.ByteSize(), job_size(job)))
    (few_proto, few_job), (many_proto, many_job) = sizes
    assert abs(many_proto - few_proto) < SAME_BYTES
    assert abs(many_job - few_job) < SAME_BYTES
    assert many_proto + many_job < MOST_JOB_BYTES


def plan_row() -> dict[str, Any]:
    values = {pa.types.is_string: "x", pa.types.is_boolean: False, pa.types.is_floating: 0.0}
    row: dict[str, Any] = {}
    for field in PLAN_SCHEMA:
        row[field.name] = next((v for test, v in values.items() if test(field.type)), 0)
    return row


def test_sources_of_a_probe_are_a_file_and_not_in_the_job(tmp_path: Path) -> None:
    before, _ = dataflow_job("probe", on_dataflow(), cache=str(tmp_path))
    meeting = EngineMeeting(tmp_path / ".tmp" / "run-0123456789abcdef", cache=str(tmp_path))
    meeting.write_sources(Source(uri=f"gs://videos/{n}.mp4") for n in range(10_000))
    assert Path(meeting.sources_file).stat().st_size > 1_000_000
    after, _ = dataflow_job("probe", on_dataflow(), cache=str(tmp_path))
    assert abs(after.ByteSize() - before.ByteSize()) < SAME_BYTES
    assert after.ByteSize() < 50_000


# Portable engines


@pytest.mark.parametrize(
    ("runner", "arguments"),
    [
        ("flink", ("--flink_master=localhost:8081", "--flink_version=1.20", JAR)),
        ("spark", ("--spark_master_url=spark://host:7077", "--spark_job_server_jar=spark.jar")),
        ("prism", ("--prism_location=/usr/local/bin/prism",)),
    ],
)
@pytest.mark.parametrize(
    ("environment", "urn"),
    [
        (("--environment_type=DOCKER", f"--environment_config={IMAGE}"), "docker"),
        (("--environment_type=EXTERNAL", "--environment_config=localhost:50000"), "external"),
        (
            ("--environment_type=PROCESS", '--environment_config={"command": "/opt/boot"}'),
            "process",
        ),
    ],
)
@pytest.mark.parametrize("stage", ["probe", "build"])
def test_a_graph_for_a_portable_engine_has_the_environment_asked_for(
    runner: str, arguments: tuple[str, ...], environment: tuple[str, ...], urn: str, stage: Any
) -> None:
    options = RunOptions(runner=runner, beam_arguments=(*arguments, *environment), min_ram="8GB")
    proto = portable_proto(stage, options, cache="/mnt/shared/cache")
    (used,) = used_environments(proto).values()
    assert used.urn == f"beam:env:{urn}:v1"
    assert bool(used.resource_hints) == (stage == "build")


def test_a_container_is_enough_to_say_for_a_portable_engine() -> None:
    options = RunOptions(runner="flink", container=IMAGE, beam_arguments=(JAR,), num_workers=4)
    proto = portable_proto("build", options)
    (used,) = used_environments(proto).values()
    assert IMAGE.encode() in used.payload
    assert beam_options(options, "build").get_all_options()["parallelism"] == 4


# What is refused before anything is sent


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"runner": "dataflw"}, "did you mean 'dataflow'"),
        ({"runner": "beam:"}, "must be one of local, dataflow"),
        ({"accelerator": "type:nvidia-l4;count:1"}, "is for engines"),
        ({"min_ram": "16GB"}, "is for engines"),
        ({"runner": "flink", "min_ram": "much"}, "must be a size such as 16GB"),
        ({"runner": "flink", "accelerator": "l4"}, "must be none or such as"),
    ],
)
def test_options_that_no_engine_can_follow_are_refused(fields: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        RunOptions(**fields)


@pytest.mark.parametrize(
    ("runner", "arguments", "message"),
    [
        ("dataflow", ("--region=x",), "needs --project, --temp_location, --sdk_container_image"),
        ("dataflow", ("--macine_type=x",), "unknown"),
        ("flink", (), "needs --job_endpoint or --flink_job_server_jar"),
        ("prism", (), "needs --prism_location or --job_endpoint"),
        ("flink", (JAR, "--runner=SparkRunner"), "is chosen before the --"),
        ("flink", (JAR, "--parallelism=many"), "invalid int value"),
    ],
)
def test_options_that_an_engine_lacks_are_named(
    runner: str, arguments: tuple[str, ...], message: str
) -> None:
    options = RunOptions(runner=runner, beam_arguments=arguments)
    with pytest.raises(UsageError, match=message):
        beam_options(options, "build")


def test_an_unknown_option_is_named_whatever_may_be_logged() -> None:
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.CRITICAL)
    try:
        with pytest.raises(UsageError, match=r"unknown: \['--macine_type=x'\]"):
            parse_options(["--macine_type=x"])
    finally:
        root.setLevel(level)


def test_an_option_that_only_a_job_server_knows_is_passed_on() -> None:
    options = RunOptions(runner="flink", beam_arguments=(JAR, "--checkpointing_interval=5"))
    told = beam_options(options, "build").get_all_options(retain_unknown_options=True)
    assert told["checkpointing_interval"] == "5"


@pytest.mark.parametrize("cache", ["cache", "file:///mnt/cache", "memory://cache"])
def test_a_cache_that_workers_cannot_reach_is_refused(cache: str, tmp_path: Path) -> None:
    place = cache if "://" in cache else tmp_path / cache
    sources = [Source(uri="gs://videos/1.mp4")]
    with pytest.raises(UsageError, match="workers cannot reach the cache"):
        beam_runner.run(sources, TINY, cache_path=place, options=on_dataflow())
    assert not list(tmp_path.iterdir())


def test_sources_that_workers_cannot_reach_are_refused() -> None:
    from pipeline.meeting import check_reachable

    sources = [Source(uri="gs://videos/1.mp4"), Source(uri="/videos/2.mp4")]
    with pytest.raises(UsageError, match=r"1 of 2 sources, such as /videos/2\.mp4"):
        check_reachable(on_dataflow(), root=CACHE, sources=sources)
    check_reachable(on_dataflow(), root=CACHE, sources=sources[:1])
    check_reachable(RunOptions(runner="flink"), root="/mnt/cache", sources=sources)


# Runs


@pytest.fixture
def videos(clips: ClipShelf, tmp_path: Path) -> Path:
    folder = tmp_path / "videos"
    folder.mkdir()
    for name in ("25.mp4", "50.mp4", "b_frames.mp4"):
        shutil.copy(clips[name].path, folder / name)
    return folder


def run(
    cache: Any, videos: Path, *, totals: dict[str, Any] | None = None, **fields: Any
) -> RunReport:
    @contextlib.contextmanager
    def watch(stage: str, _: int, meeting: Meeting) -> Iterator[None]:
        yield
        if totals is not None:
            totals[stage] = meeting.measured().counts

    return beam_runner.run(
        read_sources([str(videos)]).sources,
        TINY,
        cache_path=cache,
        options=RunOptions(**fields),
        watch=watch,
    )


def contents(cache: Path) -> dict[str, bytes]:
    files = (path for path in sorted(cache.rglob("*")) if path.is_file())
    return {str(path.relative_to(cache)): path.read_bytes() for path in files}


@pytest.mark.parametrize(
    ("runner", "arguments"),
    [
        ("flink", EMBEDDED),
        ("spark", EMBEDDED),
        ("prism", EMBEDDED),
        ("beam:PortableRunner", EMBEDDED),
        ("beam:FnApiRunner", ()),
        ("beam:BundleBasedDirectRunner", ()),
    ],
)
def test_every_runner_makes_the_same_bytes_and_counts_its_work(
    runner: str, arguments: tuple[str, ...], videos: Path, tmp_path: Path
) -> None:
    run(tmp_path / "local", videos)
    totals: dict[str, Counter[str]] = {}
    report = run(
        tmp_path / "engine", videos, totals=totals, runner=runner, beam_arguments=arguments
    )
    assert report.videos == 3
    assert contents(tmp_path / "engine") == contents(tmp_path / "local")
    assert totals["probe"]["probed"] == 3
    assert totals["build"]["done"] == report.clips
    again = run(tmp_path / "engine", videos, runner=runner, beam_arguments=arguments)
    assert (again.videos, again.skipped) == (0, 3)


def test_workers_are_told_where_a_cache_lies_whatever_their_working_folder(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Path] = []
    build = beam_runner.build

    def note(*args: Any, layout: CacheLayout, **kwargs: Any) -> Any:
        told.append(layout.root)
        return build(*args, layout=layout, **kwargs)

    monkeypatch.setattr(beam_runner, "build", note)
    monkeypatch.chdir(tmp_path)
    run("cache", videos, runner="beam:BundleBasedDirectRunner")
    assert told == [tmp_path / "cache"]


def test_a_run_on_an_engine_leaves_nothing_beside_a_remote_cache(
    videos: Path, tmp_path: Path
) -> None:
    import fsspec

    run(tmp_path / "local", videos)
    memory = fsspec.filesystem("memory")
    run("memory://bucket/cache", videos, runner="beam:BundleBasedDirectRunner")
    try:
        found = {
            path.removeprefix("/bucket/cache/"): memory.cat_file(path)
            for path in memory.find("/bucket/cache")
            if "/.lock" not in path
        }
    finally:
        memory.rm("/bucket", recursive=True)
    wanted = contents(tmp_path / "local")
    assert found.keys() == wanted.keys()
    tars = [name for name in wanted if name.endswith(".tar")]
    assert tars
    assert all(found[name] == wanted[name] for name in tars)


@pytest.mark.parametrize(
    ("runner", "arguments"), [("flink", EMBEDDED), ("beam:BundleBasedDirectRunner", ())]
)
@pytest.mark.parametrize("error", [StorageError("full", hint="free some"), DeviceError("small")])
def test_an_error_of_a_worker_reaches_the_owner_as_itself(
    runner: str,
    arguments: tuple[str, ...],
    error: UsageError,
    videos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(sharding, "publish", fail)
    with pytest.raises(type(error), match=error.message) as caught:
        run(tmp_path / "cache", videos, runner=runner, beam_arguments=arguments)
    assert caught.value.hint == error.hint
    assert not (tmp_path / "cache" / ".tmp").exists()


def test_a_bug_in_a_worker_stays_a_bug(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise KeyError("lost")

    monkeypatch.setattr(sharding, "publish", fail)
    with pytest.raises(RuntimeError, match="KeyError: 'lost'"):
        run(tmp_path / "cache", videos, runner="flink", beam_arguments=EMBEDDED)


def test_what_an_engine_says_itself_is_one_sentence(videos: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="beam:Nope: ValueError: Unexpected pipeline runner"):
        run(tmp_path / "cache", videos, runner="beam:Nope")
    arguments = ("--prism_location=/nowhere/prism",)
    with pytest.raises(EngineError, match="prism: "):
        run(tmp_path / "cache", videos, runner="prism", beam_arguments=arguments)


class Flaky:
    """Fails in some calls, which then may be tried again."""

    def __init__(self, function: Any, *, fails: set[int], after: bool = False) -> None:
        self.function, self.fails, self.after = function, fails, after
        self.calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.calls not in self.fails:
            return self.function(*args, **kwargs)
        if self.after:
            self.function(*args, **kwargs)
        raise RuntimeError("a bundle that fails")


@pytest.mark.parametrize(
    ("owner", "name", "after"),
    [
        (sharding, "temporary_file", False),  # before anything of the shard is there
        (TarWriter, "add", False),  # in the middle of it
        (TarWriter, "finish", True),  # all written, nothing published
        (sharding, "publish", False),  # just before the tar appears
        (sharding, "publish", True),  # the tar is there, its sidecar is not
        (sharding, "publish_bytes", True),  # committed, and the engine does not know
    ],
)
def test_a_bundle_that_is_tried_again_leaves_the_same_bytes(
    owner: Any,
    name: str,
    after: bool,
    videos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run(tmp_path / "whole", videos)
    flaky = Flaky(getattr(owner, name), fails={1, 3}, after=after)
    # A method gets its owner, which a plain object in a class would not be handed.
    patched = (lambda *a, **k: flaky(*a, **k)) if isinstance(owner, type) else flaky
    monkeypatch.setattr(owner, name, patched)
    report = run(tmp_path / "cache", videos, runner="beam:BundleBasedDirectRunner")
    assert flaky.calls >= 3
    assert report.videos == 3
    monkeypatch.undo()
    assert contents(tmp_path / "cache") == contents(tmp_path / "whole")
    assert verify_cache(tmp_path / "cache", deep=True).findings == []


def cluster(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        pytest.skip(f"{name} names no cluster; see docs/engines.md")
    return value


@pytest.mark.slow
@pytest.mark.parametrize(
    ("runner", "variable", "option"),
    [
        ("flink", "REELCACHE_FLINK_MASTER", "--flink_master"),
        ("spark", "REELCACHE_SPARK_MASTER", "--spark_master_url"),
        ("prism", "REELCACHE_PRISM", "--prism_location"),
    ],
)
def test_a_cluster_makes_the_same_bytes(
    runner: str, variable: str, option: str, videos: Path, tmp_path: Path
) -> None:
    arguments = [f"{option}={cluster(variable)}"]
    arguments += json.loads(os.environ.get(f"{variable}_OPTIONS") or "[]")
    run(tmp_path / "local", videos)
    run(tmp_path / "engine", videos, runner=runner, beam_arguments=tuple(arguments))
    assert contents(tmp_path / "engine") == contents(tmp_path / "local")


@pytest.mark.slow
def test_a_run_that_is_interrupted_says_that_the_job_goes_on(
    clips: ClipShelf, tmp_path: Path
) -> None:
    videos = tmp_path / "videos"
    videos.mkdir()
    for number in range(24):
        data = clips["b_frames.mp4"].path.read_bytes()
        (videos / f"{number}.mp4").write_bytes(data + b"\0\0\0\x0cfree" + number.to_bytes(4, "big"))
    command = [sys.executable, "-m", "pipeline", "run", "videos", "cache", "--runner", "flink"]
    command += ["--set", "shards.max_seconds=2", "--set", "sampling.fps=10", "--", *EMBEDDED]
    child = subprocess.Popen(
        command,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(beam_runner.__file__).parent)},
    )
    try:
        deadline = time.monotonic() + 60
        while not list((tmp_path / "cache" / "shards").glob("*.json")):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        began = time.monotonic()
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=30)
    finally:
        child.kill()
    assert time.monotonic() - began < 5
    assert child.returncode == 130, err
    assert re.search(r"The job \S* ?is still at work on flink: cancel it there", err)
    assert "run the same command again to go on" in err
    assert "Traceback" not in err
