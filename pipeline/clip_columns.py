"""The columns of a cache by which clips are told apart: those of the index, and of their videos."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pipeline.cache import FeatureCache
from pipeline.probing import read_probes
from schemas.tables import PROBE_SCHEMA
from schemas.video import Probe

_OF_MEMBERS = ("member_names", "member_offsets", "member_bytes")
OF_VIDEOS = (
    *("uri", "container", "codec", "width", "height", "average_fps", "num_packets"),
    *("duration_seconds", "has_audio", "size_bytes", "content_sha256"),
)
"""Columns of the probes: of the whole file, whichever span of it the video is."""


def clip_columns(cache: FeatureCache) -> pa.Table:
    """(N,): a row a sample, in the order of the index: its columns but for the members' extents.

    Then those of OF_VIDEOS, null where the probes do not know the video; where several sources are
    one video, of the first of them. CacheDamaged: the probes cannot be read.
    """
    table = cache.index.drop_columns(list(_OF_MEMBERS))
    first: dict[str, Probe] = {}
    for probe in read_probes(cache.layout):
        if probe.reject is None:
            first.setdefault(probe.video_id, probe)
    videos = table.column("video_id").combine_chunks().dictionary_encode()
    probes = [first.get(video_id) for video_id in videos.dictionary.to_pylist()]
    rows = pa.array(videos.indices.to_numpy().astype(np.int64))
    for name in OF_VIDEOS:
        values = [_fact(probe, name) for probe in probes]
        column = pa.array(values, type=PROBE_SCHEMA.field(name).type)
        table = table.append_column(name, column.take(rows))
    return table


def _fact(probe: Probe | None, name: str) -> object:
    if probe is None:
        return None
    return probe.source.uri if name == "uri" else getattr(probe, name)
