"""Videos of shapes and their cache, made once for all workers."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from benchmarks.shapes import Task


@pytest.fixture(scope="session")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Task:
    """Real files, really cached by `pipeline run`. Not to be changed."""
    from benchmarks.shapes import make_task

    base = tmp_path_factory.getbasetemp()
    # The workers of xdist have folders of their own in one of the session.
    shared: Path = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with (shared / "shapes.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return make_task(shared / "shapes", num_train=200, num_test=40)
