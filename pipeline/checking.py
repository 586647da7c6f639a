"""Check one sample against what the cache says of it; a step of `verifying`."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas.cache_info import CacheInfo
from schemas.compact import Stored, is_finite, stored_shape
from schemas.recipe import AUDIO, Recipe
from schemas.sample import AUDIO_MASK_MEMBER, AUDIO_MEMBER, SCALE_MEMBER, Sample
from schemas.sidecar import SampleEntry
from schemas.timeline import windows_per_clip


def sample_problems(
    sample: Sample,
    entry: SampleEntry,
    *,
    members: set[str],
    info: CacheInfo,
    recipe: Recipe | None,
    deep: bool,
) -> Iterator[tuple[str, str]]:
    """(kind of finding, detail) of all that is wrong with a sample that could be decoded.

    `members` are the names in the tar. Without a recipe, shapes are not checked.
    """
    if recipe is not None:
        for detail in _shape_problems(sample, info, recipe, members):
            yield "sample", detail
    for detail in _time_problems(sample, entry):
        yield "times", detail
    if deep:
        for detail in _value_problems(sample):
            yield "values", detail


def _shape_problems(
    sample: Sample, info: CacheInfo, recipe: Recipe, members: set[str]
) -> Iterator[str]:
    num_frames = recipe.sampling.frames_per_clip
    names = {f"{name}.npy" for name in recipe.streams} | {"time.npy", "mask.npy", "json"}
    for name, stream in recipe.streams.items():
        stamp, array = info.stamps[name], sample.features[name]
        shape = stored_shape(stream, stamp, num_frames=num_frames)
        if stream.dtype == "int8":
            names.add(f"{name}{SCALE_MEMBER}")
        if array.shape != shape or array.dtype != np.dtype(stream.dtype):
            yield f"{name} is {array.shape} {array.dtype}, expected {shape} {stream.dtype}"
    if recipe.audio is not None and sample.audio is not None and sample.audio_mask is not None:
        yield from _audio_problems(sample.audio, sample.audio_mask, info, recipe)
    if recipe.preview.enabled:
        names.add("preview.jpg")
    if recipe.audio is not None:
        names |= {AUDIO_MEMBER, AUDIO_MASK_MEMBER}
    if members != names:
        yield f"members are {sorted(members)}, expected {sorted(names)}"


def _audio_problems(
    audio: npt.NDArray[Any], mask: npt.NDArray[Any], info: CacheInfo, recipe: Recipe
) -> Iterator[str]:
    assert recipe.audio is not None
    sampling = recipe.sampling
    windows = windows_per_clip(fps=sampling.fps, frames_per_clip=sampling.frames_per_clip)
    shape = (windows, recipe.audio.tokens_per_window, info.stamps[AUDIO]["dim"])
    if audio.shape != shape or audio.dtype != np.dtype(recipe.audio.dtype):
        dtype = recipe.audio.dtype
        yield f"{AUDIO} is {audio.shape} {audio.dtype}, expected {shape} {dtype}"
    if mask.shape != (windows,) or mask.dtype != np.bool_:
        yield f"the mask of sound is {mask.shape} {mask.dtype}, expected ({windows},) bool"


def _time_problems(sample: Sample, entry: SampleEntry) -> Iterator[str]:
    starts, ends = sample.times[:, 0], sample.times[:, 1]
    if not np.isfinite(sample.times).all():
        yield "a time is not finite"
    elif (np.diff(starts) < 0).any() or (ends < starts).any():
        yield "times go back"
    if sample.mask.dtype != np.bool_ or (np.diff(sample.mask.astype(np.int8)) > 0).any():
        yield "the mask is not true values followed by false ones"
    told = {
        "video_id": entry.video_id,
        "clip_index": entry.clip_index,
        "start_seconds": entry.start_seconds,
        "end_seconds": entry.end_seconds,
        "num_frames": int(sample.mask.sum()),
    }
    for name, value in told.items():
        if sample.info.get(name) != value:
            yield f"its json has {name} = {sample.info.get(name)!r}, expected {value!r}"
    if entry.num_frames != told["num_frames"]:
        yield f"{told['num_frames']} frames by the mask, {entry.num_frames} by the sidecar"


def _value_problems(sample: Sample) -> Iterator[str]:
    from PIL import Image

    arrays = sample.features if sample.audio is None else sample.features | {AUDIO: sample.audio}
    for name, array in arrays.items():
        if not is_finite(Stored(values=array, scale=sample.scales.get(name))):
            yield f"{name} holds NaN or infinity"
    if sample.preview is not None:
        try:
            Image.open(io.BytesIO(sample.preview)).load()
        except (OSError, SyntaxError, ValueError) as error:
            yield f"the preview is not a picture: {error}"
