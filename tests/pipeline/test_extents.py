"""Extents: beside the rows of the index, as Python sees them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pipeline.extents import NOWHERE, Extents
from schemas.tables import INDEX_SCHEMA

NAMES = ("json", "image.npy", "time.npy", "preview.jpg")


def table(rows: list[dict[str, tuple[int, int]]]) -> pa.Table:
    def row(number: int, members: dict[str, tuple[int, int]]) -> dict[str, Any]:
        return {
            "key": f"v_{number:06d}",
            "shard": f"shard-{number % 3}",
            "offset": 1000 * number,
            "bytes": 900,
            "member_names": list(members),
            "member_offsets": [offset for offset, _ in members.values()],
            "member_bytes": [size for _, size in members.values()],
        }

    return pa.Table.from_pylist(
        [row(number, members) for number, members in enumerate(rows)], schema=INDEX_SCHEMA
    )


members = st.dictionaries(
    st.sampled_from(NAMES), st.tuples(st.integers(0, 2**40), st.integers(1, 2**40))
)


@given(rows=st.lists(members, min_size=1, max_size=6), data=st.data())
def test_members_are_found_by_row_and_name(
    rows: list[dict[str, tuple[int, int]]], data: st.DataObject
) -> None:
    extents = Extents.of(table(rows))
    wanted = data.draw(st.lists(st.sampled_from([*NAMES, "none"]), unique=True))
    numbers = data.draw(st.lists(st.integers(0, len(rows) - 1)))
    offsets, sizes = extents.find(np.array(numbers, dtype=np.int64), names=wanted)
    assert offsets.shape == sizes.shape == (len(numbers), len(wanted))
    for number, found, size in zip(numbers, offsets.tolist(), sizes.tolist(), strict=True):
        expected = [rows[number].get(name, (NOWHERE, 0)) for name in wanted]
        assert list(zip(found, size, strict=True)) == expected
        assert extents.shard_names[extents.shard_codes[number]] == f"shard-{number % 3}"
        assert {name: (at, count) for name, at, count in extents.members(number)} == rows[number]
