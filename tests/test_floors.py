"""The floors of the house: an import may only go down, and heavy libraries have their rooms."""

from __future__ import annotations

import ast
import functools
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("schemas", "encoders", "pipeline", "trainer")
FLOORS = {"schemas": 0, "encoders": 1, "pipeline": 2, "trainer": 3, "beam_runner": 3}
ROOF = 4
"""pipeline.cli: knows the commands, and imports one when it is called."""
JAIL = "pipeline.jailed"
"""What runs inside a decoder process."""
ROOMS = {
    "apache_beam": {
        "pipeline.streaming",
        "beam_runner",
        "pipeline.beam_metrics",
        "pipeline.beam_options",
        "pipeline.engine_meeting",
        "pipeline.launching",
        "pipeline.local_workers",
        "pipeline.transforms",
    },
}
BANNED_NAMES = {"utils", "util", "common", "helpers", "types", "io", "inspect", "logging", "misc"}


@functools.cache
def modules() -> dict[str, Path]:
    """Dotted name -> file, of everything that is installed."""
    found = {"beam_runner": ROOT / "beam_runner.py"}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path) -> Iterator[str]:
    """Names imported anywhere in a file, also inside functions and for type checkers."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in modules() else node.module


@functools.cache
def imports() -> dict[str, frozenset[str]]:
    return {name: frozenset(imported(path)) for name, path in modules().items()}


def floor(module: str) -> int:
    if f"{module}.".startswith(("trainer.cli.", "trainer.__main__.")):
        return ROOF + 1  # its commands are made as those of `pipeline` are
    in_roof = f"{module}.".startswith(("pipeline.cli.", "pipeline.__main__."))
    return ROOF if in_roof else FLOORS[module.partition(".")[0]]


def users_of(library: str) -> set[str]:
    return {
        name
        for name, used in imports().items()
        if any(one == library or one.startswith(f"{library}.") for one in used)
    }


def test_the_house_is_not_empty():
    assert len(modules()) > 40
    assert "schemas.recipe" in imports()["pipeline.planning"]
    assert "pipeline.messages" in imports()["pipeline.jail"]  # from pipeline import messages


@pytest.mark.parametrize("module", sorted(modules()))
def test_an_import_only_goes_down(module):
    top = module.partition(".")[0]
    for name in imports()[module] & modules().keys():
        if floor(name) == floor(module):
            assert name.partition(".")[0] == top, f"{module} imports its neighbour {name}"
        assert floor(name) <= floor(module), f"{module} imports {name}, which is above it"


@pytest.mark.parametrize("library", sorted(ROOMS))
def test_a_heavy_library_stays_in_its_rooms(library):
    assert users_of(library) <= ROOMS[library]


def test_only_the_decoder_process_imports_what_reads_videos():
    for name, used in imports().items():
        if not f"{name}.".startswith(f"{JAIL}."):
            inside = {one for one in used if f"{one}.".startswith(f"{JAIL}.")}
            assert not inside, f"{name} imports the decoder into its own process"
            assert not used & {"av", "decord"}, f"{name} reads videos by itself"


def test_schemas_need_numpy_and_arrow_only_and_arrow_only_for_tables():
    allowed = sys.stdlib_module_names | {"schemas", "numpy"}
    for name, used in imports().items():
        if name.startswith("schemas"):
            extra = {"pyarrow"} if name == "schemas.tables" else set()
            assert {one.partition(".")[0] for one in used} <= allowed | extra, name


def test_encoders_know_no_beam_no_tar_and_no_video():
    for library in ("apache_beam", "tarfile", "av", "webdataset", "pyarrow"):
        assert not [name for name in users_of(library) if name.startswith("encoders")]


def test_torch_is_for_encoders_and_trainer_and_commands_that_look_at_the_machine():
    assert not [name for name in users_of("torch") if floor(name) in (0, 2)]


def test_no_imports_in_a_circle():
    edges = {name: used & modules().keys() - {name} for name, used in imports().items()}
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " -> ".join([*above[above.index(name) :], name])
        if name not in done:
            for used in sorted(edges[name]):
                visit(used, (*above, name))
            done.add(name)

    for name in sorted(edges):
        visit(name, ())


@pytest.mark.parametrize("module", sorted(modules()))
def test_a_module_is_named_for_what_it_holds(module):
    name = module.rpartition(".")[2]
    assert name not in BANNED_NAMES
    if "." in module:
        assert name not in sys.stdlib_module_names, "python would find it instead of its own"


@pytest.mark.parametrize("name", [*PACKAGES, "beam_runner"])
def test_our_names_lead_to_this_checkout(name):
    # `trainer`, `pipeline` and `encoders` are also names of other distributions.
    spec = importlib.util.find_spec(name)
    assert spec is not None
    if name == "beam_runner":
        assert spec.origin == str(ROOT / "beam_runner.py")
    else:
        assert list(spec.submodule_search_locations or ()) == [str(ROOT / name)]


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import schemas", "torch apache_beam pyarrow av PIL"),
        ("import encoders", "torch apache_beam pyarrow av PIL"),
        ("import pipeline", "numpy torch apache_beam pyarrow av"),
        ("import pipeline.cache", "torch apache_beam av PIL"),
        ("import pipeline.jail", "torch apache_beam av pyarrow"),
        ("import beam_runner", "torch apache_beam av"),
        ("import pipeline.cli", "torch apache_beam av pyarrow"),
    ],
)
def test_an_import_loads_no_more_than_it_needs(statement, unwanted, tmp_path):
    program = f"{statement}\nimport sys\nprint(*set({unwanted.split()}) & set(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.split() == []
