"""OpenTars: views are filled whatever the system gives at a time."""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.layout import CacheLayout
from pipeline.open_tars import OpenTars
from pipeline.places import to_place
from schemas.errors import CacheDamaged

DATA = bytes(range(200))


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> CacheLayout:
    layout = CacheLayout(tmp_path_factory.mktemp("tars"))
    layout.shards.mkdir()
    layout.tar("a").write_bytes(DATA)
    return layout


def rooms(sizes: Sequence[int]) -> list[memoryview]:
    return [memoryview(bytearray(size)) for size in sizes]


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    offset=st.integers(0, 220),
    at_once=st.integers(1, 80),
)
def test_views_are_filled_one_after_another(
    layout: CacheLayout, sizes: list[int], offset: int, at_once: int
) -> None:
    preadv, views = os.preadv, rooms(sizes)

    def a_few_bytes(fd: int, buffers: Sequence[memoryview], position: int) -> int:
        data, start = os.pread(fd, min(at_once, sum(map(len, buffers))), position), 0
        for buffer in buffers:
            part = data[start : start + len(buffer)]
            buffer[: len(part)] = part
            start += len(part)
        return len(data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "preadv", a_few_bytes)
        count = OpenTars(layout, hint="").read_into("a", views, offset=offset)
    assert os.preadv is preadv
    wanted = DATA[offset : offset + sum(sizes)]
    assert count == len(wanted)
    assert b"".join(views)[:count] == wanted


def test_a_store_gives_the_same(layout: CacheLayout) -> None:
    remote = CacheLayout(to_place("memory://open-tars/cache"))
    remote.tar("a").fs.pipe_file(remote.tar("a").path, DATA)
    for sizes in ([3], [3, 10, 1], [150, 100]):
        views, expected = rooms(sizes), rooms(sizes)
        count = OpenTars(remote, hint="").read_into("a", views, offset=5)
        assert count == OpenTars(layout, hint="").read_into("a", expected, offset=5)
        assert views == expected


def test_a_tar_that_is_not_there_is_damage(layout: CacheLayout) -> None:
    with pytest.raises(CacheDamaged, match=r"b\.tar: cannot be read: No such file") as caught:
        OpenTars(layout, hint="look").read_into("b", rooms([1]), offset=0)
    assert caught.value.hint == "look"


def test_another_process_opens_them_anew(layout: CacheLayout) -> None:
    tars = OpenTars(layout, hint="look")
    tars.read_into("a", rooms([1]), offset=0)
    sent = pickle.loads(pickle.dumps(tars))
    assert (len(tars), len(sent)) == (1, 0)
    (view,) = rooms([2])
    assert sent.read_into("a", [view], offset=7) == 2
    assert view.tolist() == [7, 8]
