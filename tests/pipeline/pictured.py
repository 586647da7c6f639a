"""A small cache to look at: with pictures, gaps, events, strange names and one longer video."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from pipeline.encoding import stamp_streams
from pipeline.events import write_events
from pipeline.finalizing import account_for, finalize_cache
from pipeline.layout import CacheLayout
from pipeline.packing import encode_preview
from pipeline.probing import write_probes
from pipeline.storage import publish_bytes
from schemas.event import Event
from schemas.quality import Quality
from schemas.sample import Sample
from schemas.sidecar import MissingClips
from schemas.video import Probe, Source
from tests.pipeline.handmade import RECIPE, make_sample, write_shard

PLAIN, SINGLE, LONG = "plain", "single", "long"
STRANGE = (
    "<script>window.pwned = 1</script>",
    "quotes ' \" & <b>bold</b>\nand a new line",
    "שלום\u202egpj.exe",
    "dots.and.ünïcode.視頻.mp4",
)
VIDEOS = {PLAIN: 3, SINGLE: 1, LONG: 60, **dict.fromkeys(STRANGE, 1)}
WIDTH = 96
"""Of a frame in a preview."""
MISSING = MissingClips(video_id=PLAIN, first_clip=3, num_clips=2, reason="corrupt")
EVENTS = [
    Event(video_id=PLAIN, start_seconds=0.0, end_seconds=2.5, kind="scene"),
    Event(video_id=PLAIN, start_seconds=2.5, end_seconds=6.0, kind="scene"),
    Event(video_id=PLAIN, start_seconds=1.0, end_seconds=4.0, kind="transcript", text="<i>hi</i>"),
]


def grey_level(clip_index: int, frame: int) -> int:
    """What the pictures of a frame show."""
    return 20 + 30 * frame + 4 * (clip_index % 20)


def make_pictured(video_id: str, clip_index: int) -> Sample:
    """A sample with a preview in which each frame has a grey of its own."""
    levels = [grey_level(clip_index, frame) for frame in range(4)]
    frames = np.stack([np.full((64, WIDTH, 3), level, dtype=np.uint8) for level in levels])
    sample = make_sample(video_id, clip_index)
    info = {"end_seconds": 2.0 * clip_index + 2.0, "fps": 2.0, "decoder": "pyav"}
    return replace(sample, preview=encode_preview(frames), info=sample.info | info)


def write_pictured(root: Path) -> CacheLayout:
    """Write it."""
    layout = CacheLayout(root)
    written = write_shard(layout, 0, VIDEOS, make=make_pictured)
    samples = [
        replace(entry, quality=Quality(brightness=0.5, black=0.0, static=0.25, blur=0.1))
        for entry in written.samples
    ]
    sidecar = replace(written, missing=(MISSING,), samples=tuple(samples))
    publish_bytes(sidecar.to_json().encode(), layout.sidecar(sidecar.name), scratch=layout.scratch)
    probes = [
        Probe(
            source=Source(uri=f"/videos/{video_id}"),
            video_id=video_id,
            codec="h264" if video_id == PLAIN else "vp9",
            width=96,
            height=64,
            average_fps=25.0,
            last_seconds=9.96,
            duration_seconds=10.0 if video_id == PLAIN else 2.0 * num_clips,
        )
        for video_id, num_clips in VIDEOS.items()
    ]
    broken = Probe(source=Source(uri="/videos/broken.mp4")).rejected("not_a_video", "<b>moov</b>")
    probes.append(broken)
    write_probes(probes, layout)
    finalize_cache(
        layout,
        recipe=RECIPE,
        stamps=stamp_streams(RECIPE),
        account=account_for(probes, [sidecar]),
        sources=[probe.source for probe in probes],
        sidecars=[sidecar],
        max_reject_rate=1.0,
    )
    for kind in ("scene", "transcript"):
        own = [event for event in EVENTS if event.kind == kind]
        write_events(layout, kind=kind, events=own, made_by={})
    return layout
