"""Portray a video: what a report shows of its clips, as JSON-ready data and two pictures.

Of a long video some clips are chosen evenly: only they have pictures, and of them only as many have
maps as FEATURE_BYTES allow to be read. The numbers of the index are there of every clip.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.cache import FeatureCache
from pipeline.clip_parts import ClipParts, read_parts
from pipeline.feature_maps import colour_grids, encode_maps
from pipeline.gaps import Gap
from pipeline.overview import VideoFacts
from pipeline.picturing import Sheet, feature_changes, make_sheet, picture_changes
from schemas.event import Event
from schemas.quality import QUALITY_COLUMNS
from schemas.recipe import AUDIO

FEATURE_BYTES = 2**26
"""Of a video, that are read for its maps; one clip at the least."""
MOST_EVENTS = 2000
"""Of a video; the first ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Portrait:
    """What a report shows of one video."""

    data: dict[str, Any]
    """JSON-ready."""
    sheet: bytes | None
    """JPEG: a row for each chosen clip, its frames side by side; None: there are no previews."""
    thumbnail: bytes | None
    """JPEG of one frame."""


def choose_evenly(count: int, *, most: int) -> list[int]:
    """At most `most` of `count` numbers from 0 on, the first and the last among them."""
    if count <= most:
        return list(range(count))
    if most == 1:
        return [count // 2]
    return [round(i * (count - 1) / (most - 1)) for i in range(most)]


def portray(
    cache: FeatureCache,
    video: VideoFacts,
    *,
    most_clips: int,
    events: Sequence[Event] = (),
    gaps: Sequence[Gap] = (),
) -> Portrait:
    """The portrait of a video of the cache. CacheDamaged: a sample is not what was written."""
    chosen = choose_evenly(len(video.keys), most=most_clips)
    row = cache.row(video.keys[0])
    feature_bytes = sum(
        row.members[f"{name}.npy"][1] for name in cache.streams if f"{name}.npy" in row.members
    )
    most_maps = max(1, FEATURE_BYTES // max(1, feature_bytes))
    mapped = choose_evenly(len(chosen), most=most_maps)
    clips = [
        read_parts(cache, video.keys[number], with_features=place in set(mapped))
        for place, number in enumerate(chosen)
    ]
    sheet = make_sheet([clip.preview for clip in clips], num_frames=len(clips[0].mask))
    index = _index_columns(cache, video.keys)
    numbers, step = [index["number"][i] for i in chosen], 1 / cache.recipe.sampling.fps
    data = {
        "id": video.video_id,
        "uris": list(video.uris),
        "start": _time(video.start_seconds),
        "end": _time(video.end_seconds),
        **index,
        "gaps": [
            [_time(g.start_seconds), _time(g.end_seconds), g.reason, g.num_clips] for g in gaps
        ],
        "chosen": chosen,
        "frames": [
            {"times": [_times(pair) for pair in clip.times.tolist()], "real": int(clip.mask.sum())}
            for clip in clips
        ],
        "sheet": _describe_sheet(sheet),
        "picture_change": None if sheet is None else _picture_changes(sheet, clips, numbers, step),
        "maps": _maps(cache, clips, mapped, numbers, step),
        "sound": _sound(cache, clips),
        "events": [
            [_time(e.start_seconds), _time(e.end_seconds), e.kind, e.text, e.score]
            for e in events[:MOST_EVENTS]
        ],
        "num_events": len(events),
        "json": _split_infos([clip.info for clip in clips]),
    }
    if sheet is None:
        return Portrait(data=data, sheet=None, thumbnail=None)
    pictured = np.flatnonzero(sheet.there)
    middle = int(pictured[len(pictured) // 2])
    return Portrait(data=data, sheet=sheet.encode(), thumbnail=sheet.encode_one(middle))


def _index_columns(cache: FeatureCache, keys: Sequence[str]) -> dict[str, Any]:
    rows = [cache.row(key) for key in keys]
    columns: dict[str, Any] = {
        "key": keys[0].rpartition("_")[0],
        "number": [row.clip_index for row in rows],
        "starts": [_time(row.start_seconds) for row in rows],
        "ends": [_time(row.end_seconds) for row in rows],
        "damaged": [i for i, row in enumerate(rows) if row.truncated or row.corrupt],
    }
    for name in QUALITY_COLUMNS:
        values = [None if row.quality is None else getattr(row.quality, name) for row in rows]
        known = any(value is not None for value in values)
        columns[name] = [_round(value, 3) for value in values] if known else None
    return columns


def _describe_sheet(sheet: Sheet | None) -> dict[str, Any] | None:
    if sheet is None:
        return None
    _, num_frames, height, width, _ = sheet.frames.shape
    return {
        "frames": num_frames,
        "width": width,
        "height": height,
        "there": sheet.there.astype(int).tolist(),
    }


def _picture_changes(
    sheet: Sheet, clips: Sequence[ClipParts], numbers: Sequence[int], step: float
) -> list[list[float]]:
    runs = _Runs(step)
    for place, clip in enumerate(clips):
        frames = sheet.frames[place, : int(clip.mask.sum())]
        starts = clip.times[: len(frames), 0].tolist()
        if sheet.there[place]:
            runs.add(numbers[place], starts, frames, picture_changes)
    return runs.changes


def _maps(
    cache: FeatureCache,
    clips: Sequence[ClipParts],
    mapped: Sequence[int],
    numbers: Sequence[int],
    step: float,
) -> list[dict[str, Any]]:
    shown = []
    for name in cache.streams:
        stored = [clips[place].features[name] for place in mapped]
        shape = stored[0][0].shape
        if any(values.shape != shape for values, _ in stored):
            raise cache.damaged(f"{clips[0].info.get('video_id')}: grids of {name} differ in shape")
        stride = max(1, len(clips[0].mask) // shape[0])
        coloured = colour_grids(stored)
        runs = _Runs(step * stride)
        for place, means in zip(mapped, coloured.means, strict=True):
            # Of the grids that see a frame which is not fill.
            starts = clips[place].times[: int(clips[place].mask.sum()) : stride, 0].tolist()
            runs.add(numbers[place], starts, means[: len(starts)], feature_changes)
        png = base64.b64encode(encode_maps(coloured.levels)).decode("ascii")
        shown.append(
            {
                "stream": name,
                "encoder": cache.recipe.streams[name].encoder,
                "grids": shape[0],
                "rows": shape[1],
                "columns": shape[2],
                "dim": shape[3],
                "mapped": list(mapped),
                "png": f"data:image/png;base64,{png}",
                "change": runs.changes,
            }
        )
    return shown


class _Runs:
    """The changes of clips that follow each other, from each frame or grid to the next."""

    def __init__(self, step: float) -> None:
        self.changes: list[list[float]] = []
        """[start, end, change] of each whose predecessor is known; until the next one is due."""
        self._step = step
        self._before: npt.NDArray[Any] | None = None
        self._number = -1

    def add(
        self,
        number: int,
        starts: list[float],
        values: npt.NDArray[Any],
        measure: Callable[[npt.NDArray[Any]], npt.NDArray[np.float64]],
    ) -> None:
        """Those of the clip `number`; its frames or grids begin at `starts`."""
        if self._before is not None and number == self._number + 1:
            values = np.concatenate([self._before, values])
        steps = measure(values)
        first = len(starts) - len(steps)
        ends = [*starts[1:], starts[-1] + self._step] if starts else []
        self.changes += [
            [_time(start), _time(end), round(float(step), 4)]
            for start, end, step in zip(starts[first:], ends[first:], steps, strict=True)
        ]
        self._before, self._number = values[-1:], number


def _sound(cache: FeatureCache, clips: Sequence[ClipParts]) -> dict[str, Any] | None:
    audio = cache.recipe.audio
    if audio is None:
        return None
    places = [
        place
        for place, clip in enumerate(clips)
        if clip.energy and "audio_start_seconds" in clip.info
    ]
    return {
        "encoder": audio.encoder,
        "dim": cache.info.stamps[AUDIO]["dim"],
        "step": round(1 / audio.tokens_per_window, 4),
        "places": places,
        "energies": [
            [_time(float(clips[place].info["audio_start_seconds"])), clips[place].energy]
            for place in places
        ],
    }


def _split_infos(infos: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What all have in common, and of each the rest."""
    common = {
        name: value
        for name, value in infos[0].items()
        if all(name in info and info[name] == value for info in infos[1:])
    }
    own = [{n: v for n, v in info.items() if n not in common} for info in infos]
    return {"common": common, "own": own}


def _time(seconds: float) -> float:
    return round(float(seconds), 4)


def _times(pair: Sequence[float]) -> list[float]:
    return [_time(pair[0]), _time(pair[1])]


def _round(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
