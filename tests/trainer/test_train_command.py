"""`trainer train` and `trainer resume` as a user calls them, and as a cluster ends them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.small_runs import lines_of, write_annotations, write_cache
from trainer.cli import call
from trainer.cli.progress import Lines, open_display
from trainer.learning.interrupting import listening
from trainer.learning.reporting import StepReport
from trainer.learning.stepping import SECTIONS

ROOT = Path(__file__).resolve().parents[2]
TOML = """
data = [{path = "said.jsonl"}]
[run]
save_every = 0
log_every = 1
[batch]
tokens_per_pack = 256
packs = 4
[model]
lm = "tiny"
connector = {tokens_per_frame = 1.0, depth = 1, dim = 32, heads = 2}
[[stages]]
name = "align"
train = ["connector"]
lr = {connector = 3e-3}
steps = 2
[[stages]]
name = "tune"
train = ["connector", "lm"]
lr = {connector = 1e-3, lm = 1e-3}
steps = 3
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("command")
    write_cache(folder / "cache")
    write_annotations(folder / "said.jsonl")
    (folder / "train.toml").write_text(TOML)
    return folder


def train(folder: Path, out: Path, *options: str) -> int:
    config = str(folder / "train.toml")
    return call(["train", str(folder / "cache"), "--config", config, "--out", str(out), *options])


def test_train_says_what_it_does(folder, tmp_path, capsys):
    assert train(folder, tmp_path / "run", "--json") == 0
    said = capsys.readouterr()
    result = json.loads(said.out)
    assert (result["step"], result["num_steps"], result["signal"]) == (5, 5, 0)
    assert result["data"]["tune"]["said"]["rows"] == 60
    assert result["checkpoint"].endswith("run/step-00000005")
    lines = said.err.splitlines()
    assert lines[0].startswith("said: 60 rows, ")
    assert any(line.startswith("parameters: connector ") for line in lines)
    assert any("stage tune: trains connector, lm on 60 items" in line for line in lines)
    assert any("5/5 steps, loss " in line for line in lines)
    assert lines[-1].startswith("5 steps done: ")
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        figures = json.loads(line)
        spent = [figures[f"{section}_seconds"] for section in SECTIONS]
        assert min(spent) >= 0 and figures["forward_seconds"] > 0 < figures["backward_seconds"]
        assert sum(spent) <= figures["seconds"]
        assert figures["wait_share"] == pytest.approx(spent[0] / figures["seconds"])
    # Nothing is left to do, and another run would be lost.
    assert call(["resume", str(tmp_path / "run"), "-q"]) == 0
    assert train(folder, tmp_path / "run", "-q") == 2
    said = capsys.readouterr()
    assert "trainer resume" in said.err and "Traceback" not in said.err


def test_options_stand_for_fields(folder, tmp_path, capsys):
    """--log, --data and --on-missing, of train and of plan."""
    rows = (folder / "said.jsonl").read_text().splitlines()
    gone = json.loads(rows[0]) | {"id": "gone", "video": "nowhere"}
    more = tmp_path / "more.jsonl"
    more.write_text("".join(f"{row}\n" for row in (rows[1], json.dumps(gone))))
    for command in ("plan", "train"):
        arguments = [command, str(folder / "cache"), "--config", str(folder / "train.toml")]
        arguments += ["--data", str(more), "--json", "--set", f"run.out={tmp_path / 'run'}"]
        assert call(arguments) == 2
        assert "more: of 2 rows 1 whose video is not in the cache" in capsys.readouterr().err
        last = ["--on-missing", "skip"] + ["--log", "tensorboard"] * (command == "train")
        assert call([*arguments, *last]) == 0
        counts = json.loads(capsys.readouterr().out)["data"]["tune"]["more"]
        assert (counts["rows"], counts["missing"]) == (2, 1)
    assert list((tmp_path / "run").glob("events.out.tfevents.*"))
    [config] = [json.loads((tmp_path / "run" / "run.json").read_text())["config"]]
    assert config["run"]["log"] == ["tensorboard"]
    assert {data["on_missing"] for data in config["data"]} == {"skip"}


def test_quiet_is_silent(folder, tmp_path, capsys):
    assert train(folder, tmp_path / "run", "-q", "--set", "stages.tune.steps=1") == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "")


def test_the_cache_may_be_named_in_the_config(folder, tmp_path, capsys):
    config = ["--config", str(folder / "train.toml"), "--out", str(tmp_path / "run"), "-q"]
    assert call(["train", *config]) == 2
    assert "no cache is named" in capsys.readouterr().err
    path = f"cache.path={folder / 'cache'}"
    assert call(["train", *config, "--set", path, "--set", "stages.tune.steps=1"]) == 0
    assert call(["train", *config, "--set", path, "--set", "cache.fingerprint=abc"]) == 2
    other = [*config[:3], str(tmp_path / "other"), "-q", "--set", path]
    assert call(["train", *other, "--set", "cache.fingerprint=abc"]) == 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["resume", "{}/nowhere"], "is not the folder of a run"),
        (["train", "{}/nowhere", "--config", "{}/train.toml"], "no such folder"),
        (["train", "{}/cache", "--config", "{}/none.toml"], "cannot be read"),
        (["train", "{}/cache", "--config", "{}/train.toml", "--set", "model.lm={}"], "model.lm"),
        (
            ["train", "{}/cache", "--config", "{}/train.toml", "--set", "parallel.fsdp=on"],
            "torchrun",
        ),
    ],
)
def test_wrong_use_is_a_sentence(arguments, words, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert call([one.replace("{}", str(folder)) for one in arguments]) == 2
    said = capsys.readouterr().err
    assert words in said and "bug" not in said


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for_step(out: Path, step: int, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 100
    while time.monotonic() < end and process.poll() is None:
        path = out / "metrics.jsonl"
        if path.is_file() and len(path.read_text().splitlines()) >= step:
            return
        time.sleep(0.05)
    process.terminate()
    raise AssertionError(process.communicate()[0])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killed_told_to_end_and_resumed_by_two_ranks(folder, tmp_path):
    """kill -9, then torchrun with SIGTERM, then to the end: as if nothing had been."""
    more = ["--set", "stages.tune.steps=30", "--set", "run.save_every=4"]
    assert train(folder, tmp_path / "whole", "-q", *more) == 0
    out = tmp_path / "run"
    options = ["--config", "train.toml", "--out", str(out), *more]
    process = start(folder, "-m", "trainer", "train", "cache", *options)
    wait_for_step(out, 7, process)
    process.kill()
    process.communicate()
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    process = start(folder, *launcher, "-m", "trainer", "resume", str(out))
    wait_for_step(out, 12, process)
    process.send_signal(signal.SIGTERM)
    said = process.communicate()[0]
    assert f"which is saved: trainer resume {out}" in said, said
    done = [json.loads(line)["step"] for line in lines_of(out)]
    assert done == list(range(1, len(done) + 1))
    assert (out / f"step-{done[-1]:08d}" / "COMPLETE").is_file()
    assert call(["resume", str(out), "-q"]) == 0
    losses, expected = (
        [json.loads(line)["loss"] for line in lines_of(folder)]
        for folder in (out, tmp_path / "whole")
    )
    assert len(losses) == 32
    assert losses == pytest.approx(expected, rel=2e-5, abs=1e-6)


def test_a_signal_is_taken_note_of_and_a_second_one_ends():
    with listening() as told:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)  # at once after: passed on twice
        assert told.number == signal.SIGTERM
    code = (
        "import os, signal, time\n"
        "from trainer.learning.interrupting import listening\n"
        "with listening():\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(1.1)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    time.sleep(9)\n"
    )
    process = start(ROOT, "-c", code)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 143, said


def test_a_terminal_has_a_bar(monkeypatch, capsys):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    fields: dict[str, Any] = {"num_steps": 4, "stage": "a", "loss": 1.5, "num_tokens": 2000}
    with open_display(quiet=False) as display:
        display.say("said: 60 rows [all]")
        for step in range(1, 5):
            display.show(StepReport(step=step, **fields))
    said = capsys.readouterr()
    assert said.out == ""
    assert "said: 60 rows [all]" in said.err
    assert "a: 4/4 steps, loss 1.5000" in said.err
    with open_display(quiet=True) as display:
        display.say("said: 60 rows [all]")
        display.show(StepReport(step=1, **fields))
    assert capsys.readouterr().err == ""


def test_lines_come_every_ten_seconds(monkeypatch, capsys):
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    display = Lines()
    fields: dict[str, Any] = {"num_steps": 100, "stage": "a", "loss": 1.5, "num_tokens": 2000}
    for step in range(1, 101):
        now += 0.5
        display.show(StepReport(step=step, **fields))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "a: 1/100 steps, loss 1.5000"
    assert lines[1] == "a: 21/100 steps, loss 1.5000, 4,000 tokens/s, 39.5 s left"
    assert [line.split()[1].split("/")[0] for line in lines] == ["1", "21", "41", "61", "81", "100"]
