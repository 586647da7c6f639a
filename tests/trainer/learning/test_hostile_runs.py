"""Runs of someone else, full disks, numbers out of range: said in a sentence, and nothing run."""

from __future__ import annotations

import io
import json
import pickle
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import BytesStorageMetadata

from pipeline.cache import FeatureCache, open_cache
from schemas.errors import AnnotationError, ConfigError, ModelDamaged, StorageError, UsageError
from tests.trainer.small_runs import config_of, lines_of, write_annotations, write_cache
from trainer.config import TrainConfig
from trainer.learning.checkpointing import list_checkpoints
from trainer.learning.exporting import export_run
from trainer.learning.metrics_log import MetricsLog
from trainer.learning.run_folder import begin_run, read_run
from trainer.learning.tensor_reader import TensorReader
from trainer.learning.training import TrainingRun


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FeatureCache]:
    with open_cache(write_cache(tmp_path_factory.mktemp("cache"))) as opened:
        yield opened


@pytest.fixture(scope="module")
def annotations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_annotations(tmp_path_factory.mktemp("said") / "said.jsonl")


@pytest.fixture(scope="module")
def whole(cache: FeatureCache, annotations: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole")
    TrainingRun(config_of(out, annotations), cache=cache).train()
    return out


@pytest.fixture
def tensors(whole: Path, tmp_path: Path) -> Path:
    """The tensors of a checkpoint, of which a test may make what it likes."""
    shutil.copytree(whole, tmp_path / "run")
    return list_checkpoints(tmp_path / "run")[-1] / "dcp"


class Touching:
    """Runs code where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_a_list_of_tensors_runs_nothing(tensors: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    listed = tensors / ".metadata"
    metadata = TensorReader(tensors).read_metadata()
    metadata.planner_data = Touching(made)
    listed.write_bytes(pickle.dumps(metadata))
    with pytest.raises(ValueError, match="it names pathlib"):
        TensorReader(tensors).read_metadata()
    complete = tensors.parent / "COMPLETE"
    sizes = json.loads(complete.read_text()) | {"dcp/.metadata": listed.stat().st_size}
    complete.write_text(json.dumps(sizes))
    with pytest.raises(ModelDamaged, match="cannot be loaded"):
        export_run(tmp_path / "run", out=tmp_path / "model")
    assert not made.exists()
    pickle.loads(listed.read_bytes())
    assert made.exists()


def test_an_entry_that_is_no_tensor_is_not_read(tensors: Path) -> None:
    metadata = TensorReader(tensors).read_metadata()
    name = next(iter(metadata.state_dict_metadata))
    metadata.state_dict_metadata[name] = BytesStorageMetadata()
    (tensors / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(ValueError, match="list of tensors"):
        TensorReader(tensors).read_metadata()


@pytest.mark.parametrize("name", ["../state.json", "/etc/hostname", "..\\x"])
def test_a_file_of_another_folder_is_not_read(name: str, tensors: Path) -> None:
    metadata = TensorReader(tensors).read_metadata()
    next(iter(metadata.storage_data.values())).relative_path = name
    (tensors / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(ValueError, match="a file that is not its own"):
        TensorReader(tensors).read_metadata()


@pytest.mark.parametrize("data", [b"", b"junk", pickle.dumps({}), pickle.dumps(torch.float32)])
def test_what_is_no_list_is_said(data: bytes, tensors: Path) -> None:
    (tensors / ".metadata").write_bytes(data)
    with pytest.raises(ValueError, match="list of tensors"):
        TensorReader(tensors).read_metadata()


@contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """Stands for a disk that is full after so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("num_bytes", [300, 5_000, 60_000])
def test_a_full_disk_is_said_and_the_run_goes_on(
    num_bytes: int, cache: FeatureCache, annotations: Path, whole: Path, tmp_path: Path
) -> None:
    config = config_of(tmp_path, annotations)
    with largest_file(num_bytes), pytest.raises(StorageError, match="cannot be written"):
        TrainingRun(config, cache=cache).train()
    assert not list_checkpoints(tmp_path)
    assert not list(tmp_path.glob("step-*"))
    TrainingRun(config, cache=cache).train()
    assert lines_of(tmp_path) == lines_of(whole)


@pytest.mark.parametrize("num_bytes", [100, 20_000])
def test_an_export_to_a_full_disk_is_said(num_bytes: int, whole: Path, tmp_path: Path) -> None:
    with largest_file(num_bytes), pytest.raises(StorageError, match="cannot be written"):
        export_run(whole, out=tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_an_export_into_a_file_is_said(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be written: Not a directory"):
        export_run(whole, out=tmp_path / "file" / "model")


def test_metrics_that_were_damaged_are_left_out(tmp_path: Path) -> None:
    good = '{"step": 1}\n'
    damaged = b'\xff\xfe{}\n[]}\n{}\n{"step": "a"}\nx}\n'
    (tmp_path / "metrics.jsonl").write_bytes(good.encode() + damaged)
    with MetricsLog(tmp_path, kinds=["jsonl"], config={}, done=2) as log:
        log.log(3, {"loss": 1.0})
    assert [json.loads(line)["step"] for line in io.StringIO(
        (tmp_path / "metrics.jsonl").read_text()
    )] == [1, 3]  # fmt: skip


@pytest.mark.parametrize("field", ["step", "stage", "seed", "plan", "config", "preprocessing"])
@pytest.mark.parametrize("value", [None, -1, [], 1.5])
def test_a_state_of_other_types_is_said(
    field: str, value: object, whole: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    folder = list_checkpoints(run)[-1]
    state = json.loads((folder / "state.json").read_text()) | {field: value}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "COMPLETE").write_text("{}")
    with pytest.raises(ModelDamaged, match="its state"):
        export_run(run, out=tmp_path / "model")


def test_a_run_of_other_types_is_said(annotations: Path, tmp_path: Path) -> None:
    begin_run(config_of(tmp_path, annotations), cache="cache")
    begun = json.loads((tmp_path / "run.json").read_text())
    for changed in (begun | {"config": 5}, begun | {"cache": 5}):
        (tmp_path / "run.json").write_text(json.dumps(changed))
        with pytest.raises(ModelDamaged, match=r"run\.json: cannot be read"):
            read_run(tmp_path)


@pytest.mark.parametrize(
    "override",
    [
        "run.seed=-1",
        f"run.seed={2**64}",
        f"optim.clip={10**400}",
        "optim.warmup=inf",
        "optim.weight_decay=nan",
        "optim.weight_decay=-1",
        f"batch.window_shards={10**20}",
        f"batch.packs={10**15}",
        f"view.frames_per_clip={10**12}",
        "model.connector.tokens_per_frame=inf",
        "model.connector.tokens_per_frame=1e300",
        "model.connector.compression=inf",
        f"model.connector.ff_mult={10**15}",
        f"model.connector.depth={10**30}",
        f"model.lora={{r={10**11}}}",
        "model.time.text={start:999999999999f}",
        "model.time.regression_weight=inf",
        "stages.tune.data={said=0}",
        "stages.tune.data={said=nan}",
        "stages.tune.data={said=1e300}",
        "data.0.weight=1e300",
    ],
)
def test_numbers_out_of_range_are_said(override: str, annotations: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        config_of(tmp_path, annotations, override)


def test_weights_that_leave_nothing_are_said(
    cache: FeatureCache, annotations: Path, tmp_path: Path
) -> None:
    config = config_of(tmp_path, annotations, "data.0.weight=1e-300")
    with pytest.raises(AnnotationError, match="less than one of 60 items"):
        TrainingRun(config, cache=cache)


def test_toml_that_is_too_deep_is_said(tmp_path: Path) -> None:
    (tmp_path / "deep.toml").write_text("x=" + "[" * 5000)
    with pytest.raises(UsageError, match="not valid TOML"):
        TrainConfig.load(str(tmp_path / "deep.toml"))
