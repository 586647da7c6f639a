"""Which videos are worth a look before a run."""

from __future__ import annotations

from typing import Any

from pipeline.oddities import find_oddities, packet_fps
from schemas.recipe import Recipe
from schemas.video import Probe, Source

TINY = Recipe.load("tiny")


def make_probe(video_id: str, *, seconds: float = 10.0, fps: float = 25.0, **fields: Any) -> Probe:
    num_frames = max(1, round(seconds * fps))
    values: dict[str, Any] = {
        "source": Source(uri=f"/videos/{video_id}.mp4"),
        "video_id": video_id,
        "width": 640,
        "height": 360,
        "average_fps": fps,
        "num_packets": num_frames,
        "last_seconds": (num_frames - 1) / fps,
        "duration_seconds": num_frames / fps,
        "has_audio": True,
    }
    return Probe(**values | fields)


def kinds(probes: list[Probe], recipe: Recipe = TINY) -> dict[str, list[str]]:
    """Kind -> the examples' ids."""
    found = find_oddities(probes, recipe=recipe)
    return {one.kind: [probe.video_id for probe in one.examples] for one in found}


PLAIN = [make_probe(f"plain{number}") for number in range(5)]


def test_ordinary_videos_are_not_odd():
    assert kinds(PLAIN) == {}
    assert kinds([]) == {}
    assert kinds([PLAIN[0].rejected("not_a_video", "")]) == {}


def test_each_kind_is_found_and_no_other():
    odd = {
        "long": make_probe("long", seconds=21.0),
        "short": make_probe("short", seconds=1.0),
        "large": make_probe("large", width=3840, height=2160),
        "odd_shape": make_probe("odd_shape", width=64, height=640),
        "fast": make_probe("fast", fps=120.0),
        "slow": make_probe("slow", fps=1.0),
        "rate": make_probe("rate", average_fps=30.0),
        "truncated": make_probe("truncated", truncated=True),
        "times_go_back": make_probe("times_go_back", times_go_back=True),
    }
    for kind, probe in odd.items():
        assert kinds([*PLAIN, probe]) == {kind: [kind]}
    assert set(kinds([*PLAIN, *odd.values()])) == set(odd)


def test_sound_is_missed_where_the_recipe_has_some():
    silent = make_probe("silent", has_audio=False)
    with_sound = Recipe.load("tiny", overrides=["audio.encoder=log-mel"])
    assert kinds([*PLAIN, silent]) == {}
    assert kinds([*PLAIN, silent], with_sound) == {"no_sound": ["silent"]}


def test_the_most_striking_come_first_and_all_are_counted():
    longs = [make_probe(f"long{number}", seconds=30.0 + number) for number in range(5)]
    copies = [make_probe("long4", seconds=34.0, source=Source(uri="/again.mp4"))]
    (found,) = find_oddities(
        [*PLAIN, *PLAIN, *longs, *copies, *(make_probe(f"more{number}") for number in range(9))],
        recipe=TINY,
    )
    assert found.num_videos == 5
    assert [probe.video_id for probe in found.examples] == ["long4", "long3", "long2"]
    (first, *_) = found.to_json()["examples"]
    assert (first["seconds"], first["fps"]) == (34.0, 25.0)


def test_the_rate_of_a_single_frame_is_not_known():
    assert packet_fps(make_probe("one", seconds=0.01)) == 0.0
