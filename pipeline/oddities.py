"""Oddities: the largest and the strangest videos among sources, told from probes alone."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from schemas.recipe import Recipe
from schemas.video import Probe

NUM_EXAMPLES = 3
HIGH_FPS = 60.5
LARGEST_PIXELS = 1920 * 1088
ODD_ASPECT = 4.0
RATES_APART = 0.05
"""Between what a header says and what the packets' times give, as a part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Oddity:
    """Videos that are alike in something."""

    kind: str
    meaning: str
    num_videos: int
    examples: tuple[Probe, ...]
    """The most striking first."""

    def to_json(self) -> dict[str, Any]:
        """With a few facts of each example."""
        return {
            "kind": self.kind,
            "meaning": self.meaning,
            "videos": self.num_videos,
            "examples": [
                {
                    "uri": probe.source.uri,
                    "video_id": probe.video_id,
                    "seconds": round(probe.duration_seconds, 3),
                    "width": probe.width,
                    "height": probe.height,
                    "fps": round(packet_fps(probe), 3),
                }
                for probe in self.examples
            ],
        }


def find_oddities(probes: Iterable[Probe], *, recipe: Recipe) -> list[Oddity]:
    """What stands out among usable videos, each named once a kind; kinds without any are left out.

    `large` is a picture of more than 1920 x 1088; `long` a video of over twice the median length,
    or the only one.
    """
    videos = list({probe.video_id: probe for probe in probes if probe.reject is None}.values())
    if not videos:
        return []
    median = statistics.median(probe.duration_seconds for probe in videos)
    fps = recipe.sampling.fps
    clip_seconds = recipe.sampling.frames_per_clip / fps
    kinds: list[tuple[str, str, Callable[[Probe], float]]] = [
        (
            "long",
            f"more than twice as long as most, which are about {median:.4g} s",
            lambda p: p.duration_seconds if p.duration_seconds > 2 * median else 0.0,
        ),
        (
            "short",
            f"shorter than a clip, which is {clip_seconds:.4g} s; the rest of it is fill",
            lambda p: float(p.duration_seconds < clip_seconds) / (p.duration_seconds + 1e-3),
        ),
        (
            "large",
            "pictures of more than 1920 x 1080; slow to decode",
            lambda p: p.width * p.height if p.width * p.height > LARGEST_PIXELS else 0.0,
        ),
        (
            "odd_shape",
            "more than four times as wide as high, or the other way round",
            _aspect_beyond,
        ),
        ("fast", "more than 60 frames a second", lambda p: packet_fps(p) * _is_fast(p)),
        (
            "slow",
            f"fewer frames a second than the {fps:g} that are sampled; some are taken twice",
            lambda p: _is_slow(p, fps=fps) / max(packet_fps(p), 1e-3),
        ),
        (
            "rate",
            "the header tells another rate than the packets; the packets are believed",
            _rates_apart,
        ),
        ("truncated", "the file ends before its video does", lambda p: float(p.truncated)),
        (
            "times_go_back",
            "times that go back; the whole video is decoded and sorted",
            lambda p: p.duration_seconds * p.times_go_back,
        ),
    ]
    if recipe.audio is not None:
        kinds.append(
            ("no_sound", "no sound; silence is stored, and masked", lambda p: not p.has_audio)
        )
    found = [_gather(kind, meaning, weight, videos) for kind, meaning, weight in kinds]
    return [oddity for oddity in found if oddity.num_videos]


def _gather(
    kind: str, meaning: str, weight: Callable[[Probe], float], videos: Sequence[Probe]
) -> Oddity:
    weights = [(float(weight(probe)), probe) for probe in videos]
    odd = sorted(
        ((size, probe) for size, probe in weights if size > 0),
        key=lambda one: (-one[0], one[1].source.uri),
    )
    examples = tuple(probe for _, probe in odd[:NUM_EXAMPLES])
    return Oddity(kind=kind, meaning=meaning, num_videos=len(odd), examples=examples)


def packet_fps(probe: Probe) -> float:
    """Frames a second by the packets' times; 0 where there is only one."""
    lasts = probe.last_seconds - probe.first_seconds
    return (probe.num_packets - 1) / lasts if lasts > 0 and probe.num_packets > 1 else 0.0


def _is_fast(probe: Probe) -> bool:
    return packet_fps(probe) > HIGH_FPS


def _is_slow(probe: Probe, *, fps: float) -> bool:
    return 0 < packet_fps(probe) < fps * (1 - RATES_APART)


def _rates_apart(probe: Probe) -> float:
    told, real = probe.average_fps, packet_fps(probe)
    # Of few frames the last one's length makes the difference.
    if not told or not real or probe.num_packets < 20:
        return 0.0
    apart = abs(told - real) / real
    return apart if apart > RATES_APART else 0.0


def _aspect_beyond(probe: Probe) -> float:
    if not probe.width or not probe.height:
        return 0.0
    aspect = max(probe.width / probe.height, probe.height / probe.width)
    return aspect if aspect > ODD_ASPECT else 0.0
