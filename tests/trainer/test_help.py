"""What `trainer -h` says, how soon, and which libraries each command does without."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.small_runs import write_annotations, write_cache
from trainer.cli import COMMANDS, call

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "trainer-help.txt"
VIDEO_LIBRARIES = ("apache_beam", "av", "decord", "open_clip", "timm", "torchvision")
TOML = """
data = [{path = "said.jsonl"}]
batch = {tokens_per_pack = 256, packs = 2}
model = {lm = "tiny", connector = {tokens_per_frame = 1.0, dim = 32, heads = 2}}
stages = [{name = "all", train = ["connector"], lr = {connector = 1e-3}, steps = 2}]
"""


def loaded_by(code: str, *, folder: Path, of: tuple[str, ...]) -> list[str]:
    """Which of the libraries a process has loaded that has run `code`."""
    code += f"\nimport sys; print('loaded', *sorted(set({of!r}) & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].split()[1:]


def test_help_texts_are_as_reviewed(capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for command in ([], *([name] for name in COMMANDS)):
        assert call([*command, "-h"]) == 0
        texts.append(f"$ trainer {' '.join([*command, '-h'])}\n{capsys.readouterr().out}")
    text = "\n".join(texts)
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text(), "UPDATE_GOLDEN=1 rewrites it; read the diff"
    assert all("Example" in one for one in texts)
    assert all("--json" in one and "--quiet" in one for one in texts[1:])


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_loads_nothing_heavy(command: str, tmp_path: Path) -> None:
    heavy = ("torch", "transformers", "peft", "pyarrow", "PIL", *VIDEO_LIBRARIES)
    arguments = [command, "--help"] if command else ["--help"]
    code = f"from trainer.cli import call; assert call({arguments!r}) == 0"
    assert loaded_by(code, folder=tmp_path, of=heavy) == []


def test_training_loads_nothing_that_reads_or_encodes_videos(tmp_path: Path) -> None:
    """A forecast, a run of two steps, and its end again."""
    write_cache(tmp_path / "cache")
    write_annotations(tmp_path / "said.jsonl")
    (tmp_path / "train.toml").write_text(TOML)
    code = """
from trainer.cli import call
assert call(["plan", "cache", "--config", "train.toml", "--json"]) == 0
assert call(["train", "cache", "--config", "train.toml", "--out", "run", "-q"]) == 0
assert call(["resume", "run", "-q", "--json"]) == 0
import torch, transformers
"""
    assert loaded_by(code, folder=tmp_path, of=VIDEO_LIBRARIES) == []
