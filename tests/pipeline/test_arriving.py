"""Files that arrive: what has settled, when it came, and lists that are rewritten."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from pipeline.arriving import Lister, Listing, Moment, Sight, Sights
from schemas.errors import SourceError

START = 1_000_000.0


def at(seconds: float, *, clock_is_wrong_by: float = 0.0) -> Moment:
    return Moment(steady=seconds, wall=START + seconds + clock_is_wrong_by)


def write(path: Path, text: str, *, written: float) -> None:
    path.write_text(text)
    os.utime(path, (START + written, START + written))


def settled(sight: Sight | None, now: Moment) -> bool:
    assert sight is not None
    return sight.has_settled(now, settle_seconds=10)


class TestSettling:
    def test_a_file_is_whole_once_it_has_not_changed_for_a_while(self, tmp_path: Path) -> None:
        path, sights = tmp_path / "a.mp4", Sights()
        write(path, "1", written=0)
        assert not settled(sights.look(str(path), at(1), before=None), at(1))
        write(path, "12", written=8)
        assert not settled(sights.look(str(path), at(11), before=at(1)), at(11))
        assert settled(sights.look(str(path), at(21), before=at(11)), at(21))

    def test_a_file_that_is_older_is_whole_at_once(self, tmp_path: Path) -> None:
        path = tmp_path / "a.mp4"
        write(path, "1", written=-20)
        assert settled(Sights().look(str(path), at(0), before=None), at(0))

    def test_a_time_in_the_future_does_not_keep_a_file_waiting(self, tmp_path: Path) -> None:
        path, sights = tmp_path / "a.mp4", Sights()
        write(path, "1", written=1e6)
        assert not settled(sights.look(str(path), at(0), before=None), at(0))
        assert settled(sights.look(str(path), at(10), before=at(0)), at(10))

    def test_a_clock_that_is_set_does_not_make_a_file_whole(self, tmp_path: Path) -> None:
        path, sights = tmp_path / "a.mp4", Sights()
        write(path, "1", written=0)
        sights.look(str(path), at(1), before=None)
        early = at(5, clock_is_wrong_by=-3600)
        assert not settled(sights.look(str(path), early, before=at(1)), early)

    def test_a_file_that_was_away_is_looked_at_anew(self, tmp_path: Path) -> None:
        path, sights = tmp_path / "a.mp4", Sights()
        write(path, "1", written=0)
        sights.look(str(path), at(0), before=None)
        path.rename(tmp_path / "b")
        assert sights.look(str(path), at(5), before=at(0)) is None
        (tmp_path / "b").rename(path)
        sight = sights.look(str(path), at(9), before=at(5))
        assert sight is not None
        assert sight.first == at(9)


class TestArrival:
    @pytest.mark.parametrize(
        ("written", "before", "arrived"),
        [
            (7, at(5), 7),  # written between the looks
            (-100, at(5), 10),  # moved here: when it was first seen
            (-100, None, 10),  # there when the watch began
            (50, at(5), 10),  # a clock that is wrong
        ],
    )
    def test_a_file_came_when_it_was_written_or_first_seen(
        self, tmp_path: Path, written: float, before: Moment | None, arrived: float
    ) -> None:
        path, sights = tmp_path / "a.mp4", Sights()
        write(path, "1", written=written)
        sight = sights.look(str(path), at(10), before=before)
        assert sight is not None
        assert sight.arrived == START + arrived
        assert sights.look(str(path), at(20), before=at(10)) is sight


class TestLists:
    def names(self, listing: Listing) -> list[str]:
        return [Path(source.uri).name for source in listing.sources]

    def test_nothing_there_yet_is_no_error(self, tmp_path: Path) -> None:
        (tmp_path / "inbox").mkdir()
        arguments = [str(tmp_path / "inbox"), str(tmp_path / "*.mp4")]
        listing = Lister(arguments, settle_seconds=10).list(at(0), before=None)
        assert (listing.sources, listing.errors) == ((), ())

    def test_a_list_that_is_being_written_says_what_it_said_before(self, tmp_path: Path) -> None:
        listed = tmp_path / "list.csv"
        lister = Lister([str(listed)], settle_seconds=10)
        write(listed, "uri\na.mp4\n", written=-20)
        assert self.names(lister.list(at(0), before=None)) == ["a.mp4"]
        write(listed, "uri\na.mp4\nb.m", written=1)
        listing = lister.list(at(2), before=at(0))
        assert (self.names(listing), listing.num_lists_waiting) == (["a.mp4"], 1)
        write(listed, "uri\na.mp4\nb.mp4\n", written=3)
        assert self.names(lister.list(at(4), before=at(2))) == ["a.mp4"]
        listing = lister.list(at(14), before=at(4))
        assert (self.names(listing), listing.num_lists_waiting) == (["a.mp4", "b.mp4"], 0)

    def test_a_list_that_went_says_what_it_said_before_and_is_told(self, tmp_path: Path) -> None:
        listed = tmp_path / "list.txt"
        lister = Lister([str(listed)], settle_seconds=10)
        write(listed, "a.mp4\n", written=-20)
        lister.list(at(0), before=None)
        listed.unlink()
        listing = lister.list(at(1), before=at(0))
        assert self.names(listing) == ["a.mp4"]
        assert [error.message for error in listing.errors] == [f"{listed}: no such file"]

    def test_a_list_that_is_damaged_is_told_until_it_is_mended(self, tmp_path: Path) -> None:
        listed = tmp_path / "list.csv"
        lister = Lister([str(tmp_path / "*.csv")], settle_seconds=10)
        write(listed, "path\na.mp4\n", written=-20)
        for second in (0, 1):
            (error,) = lister.list(at(second), before=None).errors
            assert isinstance(error, SourceError)
            assert "no column 'uri'" in error.message
        write(listed, "uri\na.mp4\n", written=-19)
        assert lister.list(at(2), before=at(1)).errors == ()

    def test_a_folder_that_is_away_does_not_hide_the_others(self, tmp_path: Path) -> None:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            (tmp_path / name / f"{name}.mp4").touch()
        lister = Lister([str(tmp_path / "one"), str(tmp_path / "two")], settle_seconds=10)
        assert self.names(lister.list(at(0), before=None)) == ["one.mp4", "two.mp4"]
        shutil.rmtree(tmp_path / "one")
        listing = lister.list(at(1), before=at(0))
        assert self.names(listing) == ["two.mp4"]
        assert "no such file or folder" in listing.errors[0].message
