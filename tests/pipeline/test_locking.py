"""One run at a time, only on a cache's own folder, with a clean scratch folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.layout import CacheLayout
from pipeline.locking import hold_cache
from schemas.errors import StorageError, UsageError


@pytest.fixture
def layout(tmp_path):
    return CacheLayout(tmp_path / "cache")


def test_a_new_folder_is_made_with_its_parents(tmp_path):
    layout = CacheLayout(tmp_path / "new" / "deep" / "cache")
    with hold_cache(layout) as hold:
        assert hold.run_folder.path.parent == layout.scratch
        assert hold.run_folder.path.is_dir()
    assert layout.root.is_dir()
    assert not layout.scratch.exists()


def test_an_empty_folder_is_taken(layout):
    layout.root.mkdir()
    with hold_cache(layout):
        pass


def test_a_second_run_is_refused_while_the_first_is_at_work(layout):
    with hold_cache(layout) as hold:
        mine = f"another run is at work on this cache: process {os.getpid()} on "
        with pytest.raises(UsageError, match=mine), hold_cache(layout):
            pytest.fail("two runs at once")
        assert hold.run_folder.path.is_dir(), "the second may not touch the first's files"
    with hold_cache(layout):
        pass


def test_a_run_in_another_process_is_refused_too(layout):
    program = (
        "import sys; from pathlib import Path\n"
        "from pipeline.layout import CacheLayout\n"
        "from pipeline.locking import hold_cache\n"
        "with hold_cache(CacheLayout(Path(sys.argv[1]))):\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, "-c", program, str(layout.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": root},
    ) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(UsageError, match="another run"), hold_cache(layout):
            pytest.fail("two runs at once")
        other.kill()  # a lock goes with its process, however that ends
        other.wait()
        leftovers = list(layout.scratch.iterdir())
        with hold_cache(layout) as hold:
            assert set(layout.scratch.iterdir()) == {
                hold.run_folder.path,
                layout.scratch / "owner.json",
            }
            assert hold.run_folder.path not in leftovers


def test_what_a_killed_run_left_is_removed(layout):
    (layout.scratch / "run-old" / "probes").mkdir(parents=True)
    (layout.scratch / "train-000000.tar.ab").write_bytes(b"half")
    with hold_cache(layout) as hold:
        assert set(layout.scratch.iterdir()) == {
            hold.run_folder.path,
            layout.scratch / "owner.json",
        }


def test_the_scratch_folder_is_gone_after_an_error(layout):
    with pytest.raises(ZeroDivisionError), hold_cache(layout):
        raise ZeroDivisionError
    assert not layout.scratch.exists()
    with hold_cache(layout):
        pass


@pytest.mark.parametrize("name", ["cache.json", "plan/000000.parquet", "probes/0.parquet"])
def test_a_folder_of_an_earlier_run_is_taken_and_kept(layout, name):
    (layout.root / name).parent.mkdir(parents=True)
    (layout.root / name).write_bytes(b"x")
    (layout.root / "notes.txt").write_bytes(b"mine")
    with hold_cache(layout):
        pass
    assert (layout.root / name).read_bytes() == b"x"
    assert (layout.root / "notes.txt").read_bytes() == b"mine"


def test_a_folder_that_holds_something_else_is_refused_and_left_as_it_is(layout):
    layout.root.mkdir()
    (layout.root / "video.mp4").write_bytes(b"x")
    refused = pytest.raises(UsageError, match="holds other files and is not a cache")
    with refused, hold_cache(layout):
        pytest.fail("a foreign folder was taken")
    assert [path.name for path in layout.root.iterdir()] == ["video.mp4"]


def test_a_file_is_refused(layout):
    layout.root.write_bytes(b"x")
    with pytest.raises(UsageError, match="is a file; CACHE must be a folder"), hold_cache(layout):
        pytest.fail("a file was taken")
    assert layout.root.read_bytes() == b"x"


def test_a_place_below_a_file_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    layout = CacheLayout(tmp_path / "file" / "cache")
    with pytest.raises(StorageError, match="cannot be written"), hold_cache(layout):
        pytest.fail("there is no such place")
