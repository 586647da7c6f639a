"""Documents that a change can make untrue."""

from __future__ import annotations

import fnmatch
import os
import re
import subprocess
import sys
import types
from importlib import metadata
from pathlib import Path

import pytest

from encoders import check_encoder, list_encoders, list_sound_encoders, load_encoder, registry
from pipeline.cli import COMMANDS
from pipeline.layout import CacheLayout
from pipeline.measuring import COUNTS, STAGES
from pipeline.verifying import KINDS
from schemas.reject import REASONS
from schemas.tables import INDEX_SCHEMA, REJECT_SCHEMA
from trainer.cli import COMMANDS as TRAINER_COMMANDS

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
FORMAT = (ROOT / "docs" / "format.md").read_text()
PACKAGES = (
    "schemas",
    "encoders",
    "pipeline",
    "pipeline/jailed",
    "trainer",
    "trainer/data",
    "trainer/data/formats",
    "trainer/model",
    "trainer/learning",
    "trainer/asking",
)
"""Whose modules are named one by one."""
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("package", PACKAGES)
def test_the_tree_names_every_module(package: str) -> None:
    tree = README.partition("## The tree")[2].partition("```")[2].partition("```")[0]
    named = set(re.findall(r"\b[a-z0-9_]+\.py\b", tree))
    modules = {path.name for path in (ROOT / package).glob("*.py")} - {"__init__.py", "__main__.py"}
    assert modules <= named


def test_every_file_in_the_tree_exists() -> None:
    tree = README.partition("## The tree")[2].partition("```")[2].partition("```")[0]
    files = {path.name for path in ROOT.glob("*.py")} | {
        path.name for package in PACKAGES for path in (ROOT / package).glob("*.py")
    }
    assert set(re.findall(r"\b[a-z0-9_]+\.py\b", tree)) <= files


def test_reasons_of_rejects_are_documented_as_they_are() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*) \| (yes|no) \|$", FORMAT, re.MULTILINE)
    assert {name: (meaning, later == "yes") for name, meaning, later in rows} == REASONS


def test_findings_are_documented_as_they_are() -> None:
    section = FORMAT.partition("\n## Findings of verify\n")[2].partition("\n## ")[0]
    assert dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.MULTILINE)) == KINDS


def test_counts_and_stages_are_documented_as_they_are() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    for title, names in (("Counts", COUNTS), ("Stages", STAGES)):
        section = text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
        rows = re.findall(r"^\| `([a-z_]+)` \| (.*) \|$", section, re.MULTILINE)
        assert dict(rows) == names


def test_columns_are_documented() -> None:
    text = FORMAT.replace("\n", " ")
    for schema in (INDEX_SCHEMA, REJECT_SCHEMA):
        listed = re.sub(r"\s+", " ", ", ".join(schema.names))
        assert listed in re.sub(r"\s+", " ", text)


def test_files_of_a_cache_are_documented(tmp_path: Path) -> None:
    layout = CacheLayout(tmp_path)
    for path in (layout.info, layout.index, layout.rejects, layout.wids, layout.energon):
        assert str(path.relative_to(tmp_path)) in FORMAT


def test_commands_that_documents_name_exist() -> None:
    for page in PAGES:
        for program, commands in (("pipeline", COMMANDS), ("trainer", TRAINER_COMMANDS)):
            for command in re.findall(rf"^{program} (\w+)", page.read_text(), re.MULTILINE):
                assert command in commands, page


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), (page, target)


@pytest.mark.parametrize("number", range(2))
def test_python_in_the_documents_runs(number: int, tmp_path: Path) -> None:
    """The snippets read `my-cache/`; one is made here from a generated clip."""
    import beam_runner
    from pipeline.sources import read_sources
    from schemas.recipe import Recipe
    from tests.clips import ClipShelf

    (tmp_path / "clips").mkdir()
    clip = ClipShelf(tmp_path / "clips")["25.mp4"]
    cache = tmp_path / "my-cache"
    sources = read_sources([str(clip.path)]).sources
    beam_runner.run(sources, Recipe.load("tiny"), cache_path=cache)
    snippet = re.findall(r"```python\n(.*?)```", [README, FORMAT][number], re.DOTALL)[0]
    (tar,) = (cache / "shards").glob("*.tar")
    snippet = re.sub(r"train-\d{6}-[0-9a-f]{8}\.tar", tar.name, snippet)
    done = subprocess.run(
        [sys.executable, "-c", snippet],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_plug_in_of_the_documentation_works(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "encoders.md").read_text(encoding="utf-8")
    module = types.ModuleType("my_encoders.colours")
    exec(text.partition("```python\n")[2].partition("```")[0], module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    entry = metadata.EntryPoint("mean-colours", module.__name__, "reelcache.encoders")
    monkeypatch.setattr(metadata, "entry_points", lambda *, group: [entry])
    registry._plugged_in.cache_clear()
    try:
        assert "mean-colours" in list_encoders()
        assert check_encoder(load_encoder("mean-colours")) == []
    finally:
        registry._plugged_in.cache_clear()


def test_every_encoder_is_in_the_documentation() -> None:
    text = (ROOT / "docs" / "encoders.md").read_text(encoding="utf-8")
    patterns = re.findall(r"`([a-z0-9]+[a-z0-9-]*-[a-z0-9*-]+)`", text.partition("## Choices")[0])
    names = [*list_encoders(), *list_sound_encoders()]
    told = [p for p in patterns if not p.startswith("-")] + ["random-*", "internvideo2-?14"]
    lacking = [name for name in names if not any(fnmatch.fnmatch(name, p) for p in told)]
    assert lacking == []
