"""The columns of a cache by which clips are told apart: those of the index, and of their videos."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.cache import FeatureCache
from pipeline.probing import read_probes
from schemas.tables import PROBE_SCHEMA
from schemas.video import Probe

_OF_MEMBERS = ("member_names", "member_offsets", "member_bytes")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)([.][0-9]+)?([eE][-+]?[0-9]+)?")
OF_VIDEOS = (
    *("uri", "container", "codec", "width", "height", "average_fps", "num_packets"),
    *("duration_seconds", "has_audio", "size_bytes", "content_sha256"),
)
"""Columns of the probes: of the whole file, whichever span of it the video is."""


def clip_columns(cache: FeatureCache) -> pa.Table:
    """(N,): a row a sample, in the order of the index: its columns but for the members' extents.

    Then those of OF_VIDEOS, and the other columns of the lists that the sources are from, where
    their names are plain words that are not taken. Null where a video has none; where several
    sources are one video, those of the first. CacheDamaged: the probes cannot be read.
    """
    table = cache.index.drop_columns(list(_OF_MEMBERS))
    first: dict[str, Probe] = {}
    for probe in read_probes(cache.layout):
        if probe.reject is None:
            first.setdefault(probe.video_id, probe)
    videos = table.column("video_id").combine_chunks().dictionary_encode()
    probes = [first.get(video_id) for video_id in videos.dictionary.to_pylist()]
    rows = pa.array(videos.indices.to_numpy().astype(np.int64))
    columns = {
        name: pa.array([_fact(probe, name) for probe in probes], PROBE_SCHEMA.field(name).type)
        for name in OF_VIDEOS
    }
    extras = [{} if probe is None else probe.source.extra for probe in probes]
    for name in sorted({name for extra in extras for name in extra}):
        if name.isidentifier() and name not in {*columns, *table.schema.names}:
            columns[name] = _as_column([extra.get(name) for extra in extras])
    for name, column in columns.items():
        table = table.append_column(name, column.take(rows))
    return table


def _fact(probe: Probe | None, name: str) -> object:
    if probe is None:
        return None
    return probe.source.uri if name == "uri" else getattr(probe, name)


def _as_column(values: Sequence[Any]) -> pa.Array:
    """True or false, numbers, or text: what all of a column are; else each as JSON.

    Lists of text have no numbers: what is written as plain decimal numbers is some.
    """
    values = [None if value == "" else value for value in values]
    kinds = {bool if isinstance(one, bool) else type(one) for one in values if one is not None}
    if kinds == {str} and all(_NUMBER.fullmatch(one) for one in values if one is not None):
        values, kinds = [None if one is None else float(one) for one in values], {float}
    if kinds == {bool}:
        return pa.array(values, pa.bool_())
    if kinds and kinds <= {int, float}:
        return pa.array([None if one is None else _as_float(one) for one in values], pa.float64())
    if kinds <= {str}:
        return pa.array(values, pa.string())
    texts = [one if one is None else json.dumps(one, ensure_ascii=False) for one in values]
    return pa.array(texts, pa.string())


def _as_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:  # a whole number of more than 300 digits
        return math.inf if number > 0 else -math.inf
