"""What an image for engines is made of, as far as it can be told without building one."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import apache_beam
import pytest

from pipeline.beam_options import _FLAGS
from pipeline.cli.run import run
from pipeline.engines import CPU_MACHINE, DATAFLOW_DEFAULTS, ENGINES, GPU_MACHINE

ROOT = Path(__file__).resolve().parents[1]
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
PAGE = "".join((ROOT / "docs" / name).read_text() for name in ("engines.md", "dataflow.md"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_image_has_the_beam_that_sends_the_job() -> None:
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert bases == [f"apache/beam_python3.11_sdk:{apache_beam.__version__}", "python:3.11-slim"]
    assert 'ENTRYPOINT ["/opt/apache/beam/boot"]' in DOCKERFILE


def test_all_that_is_installed_is_copied_and_is_there() -> None:
    copied = " ".join(re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE)).split()
    for name in copied:
        assert name == "$WEIGHTS" or (ROOT / name).exists(), name
    setuptools = PROJECT["tool"]["setuptools"]
    tops = {name.partition(".")[0] for name in setuptools["packages"]}
    assert tops | {f"{name}.py" for name in setuptools["py-modules"]} <= set(copied)
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert not set(copied) & set(ignored)


def test_the_image_installs_extras_that_there_are_and_no_weights_unless_told() -> None:
    extras = re.findall(r"^ARG EXTRAS=(\S+)", DOCKERFILE, re.MULTILINE)[0].split(",")
    assert set(extras) <= PROJECT["project"]["optional-dependencies"].keys()
    weights = re.findall(r"^ARG WEIGHTS=(\S+)", DOCKERFILE, re.MULTILINE)[0]
    assert [path.name for path in (ROOT / weights).iterdir()] == ["README"]


@pytest.mark.parametrize("name", sorted(DATAFLOW_DEFAULTS))
def test_defaults_of_dataflow_are_documented(name: str) -> None:
    (row,) = (line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |"))
    assert f"| `{DATAFLOW_DEFAULTS[name]}` |" in row


def test_engines_their_machines_and_what_they_need_are_documented() -> None:
    for engine in ENGINES.values():
        assert re.search(rf"^## {engine.name}$", PAGE, re.MULTILINE | re.IGNORECASE)
        for option in [*engine.needs, *engine.needs_one]:
            assert option in PAGE, option
        assert engine.accelerator in PAGE
    for text in (GPU_MACHINE, CPU_MACHINE, *_FLAGS):
        assert f"`{text}`" in PAGE, text


def test_options_of_the_command_are_documented() -> None:
    given = {name for parameter in run.params for name in parameter.opts}
    own = {"--runner", "--workers", "--decoders", "--device", "--batch", "--compile"}
    own |= {"--max-reject-rate", "--container", "--accelerator", "--min-ram", "--min-cpus"}
    assert own <= given
    table = PAGE.partition("## Options")[2].partition("What follows")[0]
    assert all(f"`{name}`" in table for name in own)
