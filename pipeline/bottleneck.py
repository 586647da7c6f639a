"""Bottleneck: what a run was waiting for, from the waits of all its workers, and what helps.

The time of a run is first split into starting, probing and building; building then by what the
workers' main threads did. docs/metrics.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipeline.measuring import Measured

Kind = Literal["start-up", "probe", "fetch", "decode", "encode", "sound", "write", "balanced"]

LEAST_SHARE = 0.4
"""Of the workers' time: what takes less is not what a run is bound by."""
MOST_OF_TIME = 0.5
BUSY_ENCODERS = 0.75
"""Of the time: decoders that let encoders be so busy keep pace."""
BUSY_CORES = 0.85
LEAST_SECONDS = 1.0
"""Shorter runs tell nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """What a run was bound by."""

    kind: Kind
    share: float
    """In [0, 1], of the run's time (start-up, probe), else of the workers' time in shards: how
    long encoders (decode, fetch) or decoders (encode, sound, write) waited, or for `balanced` how
    long the encoders were busy."""
    text: str
    """A sentence that says so, and what helps."""


def find_bottleneck(
    measured: Measured, *, run_seconds: float, num_cores: int | None
) -> Bottleneck | None:
    """What took the time, if one thing stands out; None also where too little was measured.

    `num_cores`: that all workers share; None: not known.
    """
    probing = measured.busiest_seconds.get("probe", 0.0)
    building = measured.busiest_seconds.get("shard", 0.0)
    if run_seconds < LEAST_SECONDS or probing + building == 0:
        return None
    starting = max(0.0, run_seconds - probing - building) / run_seconds
    if starting >= MOST_OF_TIME:
        loading = measured.busiest_seconds.get("load", 0.0)
        of_it = f" ({loading:.1f} s into loading encoders)" if loading >= LEAST_SECONDS else ""
        return Bottleneck(
            kind="start-up",
            share=starting,
            text=f"start-up: {starting:.0%} of the time went into starting and finishing{of_it};"
            " a larger run has little more of it",
        )
    share = probing / run_seconds
    if share >= MOST_OF_TIME:
        return Bottleneck(
            kind="probe",
            share=share,
            text=f"probe-bound: reading the sources took {share:.0%} of the time; add --workers,"
            " or keep the sources on faster storage",
        )
    return _of_building(measured, building=building, num_cores=num_cores)


def _of_building(
    measured: Measured, *, building: float, num_cores: int | None
) -> Bottleneck | None:
    total = measured.seconds("shard")
    if total == 0:
        return None
    shares: dict[Kind, float] = {
        "decode": measured.seconds("wait_decode") / total,
        "encode": measured.seconds("wait_encode") / total,
        "sound": measured.seconds("wait_sound") / total,
        "write": measured.seconds("pack", "wait_hash", "publish") / total,
    }
    kind = max(shares, key=shares.__getitem__)
    share = min(1.0, shares[kind])
    if share < LEAST_SHARE:
        return None
    if kind == "encode":
        text = f"encode-bound: decoders waited {share:.0%} of the time; use a GPU (--device) or"
        text += " more of them, a smaller encoder, or a lower sampling.fps"
    elif kind == "sound":
        text = f"sound-bound: pictures waited {share:.0%} of the time for sound; use a GPU"
        text += " (--device) or a smaller encoder of sound"
    elif kind == "write":
        text = f"write-bound: writing took {share:.0%} of the time; put the cache on faster"
        text += " storage, or store less: a coarser grid or int8 for the streams"
    else:
        return _of_decoding(measured, building=building, num_cores=num_cores)
    return Bottleneck(kind=kind, share=share, text=text)


def _of_decoding(measured: Measured, *, building: float, num_cores: int | None) -> Bottleneck:
    total = measured.seconds("shard")
    busy = min(1.0, measured.stage("encode").active_seconds / total)
    if busy >= BUSY_ENCODERS:
        text = f"balanced: encoders were busy {busy:.0%} of the time, and decoders kept pace"
        return Bottleneck(kind="balanced", share=busy, text=text)
    waited = f"encoders waited {1 - busy:.0%} of the time"
    if measured.stage("fetch").active_seconds > measured.seconds("wait_decode") / 2:
        text = f"fetch-bound: {waited}; bring the workers nearer to the sources, or add --workers"
        return Bottleneck(kind="fetch", share=1 - busy, text=text)
    cpu_seconds = measured.seconds("decode", "decode_sound", "worker")
    if num_cores is not None and cpu_seconds >= BUSY_CORES * num_cores * building:
        more = "all cores are busy: add cores"
    else:
        more = "add --decoders or cores"
    text = f'decode-bound: {waited}; {more}, lower sampling.fps, or set resize = "fast" in streams'
    return Bottleneck(kind="decode", share=1 - busy, text=text)
