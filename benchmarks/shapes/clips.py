"""Scenes as mp4 files: H.264 and, where the scene has sound, AAC."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from fractions import Fraction
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path

import av
import numpy as np

from benchmarks.shapes.scene import FPS, RATE, SIZE, Scene, make_scene, render_frames, render_sound

_X264 = {"preset": "ultrafast", "crf": "20", "threads": "1", "g": str(FPS)}
_AAC = {"aac_coder": "fast"}
_AAC_FRAME = 1024
_BATCH = 50


def write_clips(folder: Path, *, seed: int, indices: Iterable[int], processes: int = 2) -> None:
    """A file a scene, `<video_id>.mp4`; those that are there are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    there = {entry.name for entry in os.scandir(folder)}
    missing = [index for index in indices if f"{_stem(index)}.mp4" not in there]
    if processes == 1 or len(missing) <= _BATCH:
        for index in missing:
            _write(folder, seed, index)
        return
    # Forking a process in which libraries have threads can hang.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for _ in pool.map(_write, repeat(folder), repeat(seed), missing, chunksize=_BATCH):
            pass


def write_clip(scene: Scene, path: Path) -> None:
    """One file; it gets its name when it is whole."""
    unfinished = path.with_name(f".{path.name}")
    with av.open(str(unfinished), "w", format="mp4") as container:
        video = container.add_stream("libx264", rate=FPS, options=dict(_X264))
        video.width, video.height, video.pix_fmt = SIZE, SIZE, "yuv420p"
        samples = render_sound(scene)
        audio = None
        if samples is not None:
            audio = container.add_stream("aac", rate=RATE, layout="mono", options=dict(_AAC))
            audio.bit_rate = 32_000
        for number, picture in enumerate(render_frames(scene)):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, FPS)
            container.mux(video.encode(frame))
        container.mux(video.encode(None))
        if audio is not None and samples is not None:
            for start in range(0, len(samples), _AAC_FRAME):
                part = np.ascontiguousarray(samples[None, start : start + _AAC_FRAME])
                sound = av.AudioFrame.from_ndarray(part, format="fltp", layout="mono")
                sound.sample_rate, sound.pts, sound.time_base = RATE, start, Fraction(1, RATE)
                container.mux(audio.encode(sound))
            container.mux(audio.encode(None))
    unfinished.replace(path)


def _write(folder: Path, seed: int, index: int) -> None:
    scene = make_scene(seed, index)
    write_clip(scene, folder / f"{scene.video_id}.mp4")


def _stem(index: int) -> str:
    return make_scene(0, index).video_id
