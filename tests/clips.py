"""Synthetic clips, made at test time: every picture carries its number, every time is known.

A picture is GRID x GRID dark and bright cells: a frame number and a check sum, so that a picture
which is turned, mixed of two or damaged does not read as another number. Times are exact fractions
of a second and known by construction: nothing here reads a file back.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import numpy.typing as npt

GRID = 4
CHECK_BITS = 6
DARK, BRIGHT = 24, 232
TOLERANCE = Fraction(1, 10**6)
"""A frame that comes at most this much after a grid time counts as shown then."""

H264 = "-c:v libx264 -preset veryfast -threads 1 -pix_fmt yuv420p"
H264_ODD_SIZE = "-c:v libx264 -preset veryfast -threads 1 -pix_fmt yuv444p"
VP9 = "-c:v libvpx-vp9 -deadline realtime -cpu-used 8 -b:v 0 -crf 20 -threads 1"
B_FRAMES = "-bf 2 -g 12"
ALL_KEYFRAMES = "-g 1"
NO_MUX_DELAY = "-muxdelay 0 -muxpreload 0"

Picture = npt.NDArray[np.uint8]


class UnreadablePicture(AssertionError):
    """The picture carries no frame number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """A video file and what is known of it."""

    path: Path
    times: tuple[Fraction, ...]
    """When each frame is shown, increasing, on the file's own clock."""
    numbers: tuple[int, ...]
    """What each frame's picture carries."""
    last_duration: Fraction
    """How long the last frame is shown."""
    width: int
    height: int
    """As coded."""
    rotation: int = 0
    """What a player does to the coded picture: degrees counter-clockwise."""
    sample_aspect: int = 1
    """Width of a pixel over its height."""
    has_audio: bool = False
    truncated: bool = False
    """The file holds fewer frames than it promises; `times` are all those promised."""
    in_order: bool = True
    """The frames come in the order of their times."""

    @property
    def display_size(self) -> tuple[int, int]:
        """(width, height) as seen."""
        width, height = self.width * self.sample_aspect, self.height
        return (height, width) if self.rotation % 180 else (width, height)

    @property
    def end(self) -> Fraction:
        """When the last frame is no longer shown."""
        return self.times[-1] + self.last_duration

    def displayed(self, fps: Fraction) -> list[int]:
        """The index of the frame on display at each grid time: the rule, in exact numbers."""
        shown: list[int] = []
        time = self.times[0]
        while time <= self.times[-1] + TOLERANCE:
            shown.append(max(i for i, t in enumerate(self.times) if t <= time + TOLERANCE))
            time = self.times[0] + len(shown) / fps
        return shown

    def display_range(self, index: int) -> tuple[float, float]:
        """[start, end) seconds during which a frame is shown."""
        end = self.times[index + 1] if index + 1 < len(self.times) else self.end
        return float(self.times[index]), float(end)


def draw_frame_number(number: int, *, width: int, height: int) -> Picture:
    """(height, width) uint8 grey, at least GRID pixels a side."""
    value = number << CHECK_BITS | _check_sum(number)
    bits = [value >> bit & 1 for bit in reversed(range(GRID * GRID))]
    cells = np.where(np.reshape(bits, (GRID, GRID)), BRIGHT, DARK).astype(np.uint8)
    rows = np.arange(height) * GRID // height
    columns = np.arange(width) * GRID // width
    return cells[rows[:, None], columns[None, :]]


def read_frame_number(picture_HWC: npt.NDArray[Any]) -> int:
    """The number in a grey or colour picture of any size. UnreadablePicture: there is none."""
    value = 0
    for rows in np.array_split(np.arange(picture_HWC.shape[0]), GRID):
        for columns in np.array_split(np.arange(picture_HWC.shape[1]), GRID):
            level = float(picture_HWC[_middle(rows), _middle(columns)].mean())
            if abs(level - (DARK + BRIGHT) / 2) < (BRIGHT - DARK) / 4:
                raise UnreadablePicture(f"a cell is neither dark nor bright but {level:.0f}")
            value = value << 1 | (level > (DARK + BRIGHT) / 2)
    number = value >> CHECK_BITS
    if value & (2**CHECK_BITS - 1) != _check_sum(number):
        raise UnreadablePicture(f"the check sum does not belong to {number}: {value:016b}")
    return number


def _middle(pixels: npt.NDArray[np.intp]) -> slice:
    # A cell's edges are soft after coding and resizing.
    margin = len(pixels) // 4
    return slice(int(pixels[0]) + margin, int(pixels[-1]) + 1 - margin)


def _check_sum(number: int) -> int:
    return (number * 37 + 11) % 61


def run_ffmpeg(*arguments: str | Path, stdin: bytes = b"") -> bytes:
    """Run the binary of imageio-ffmpeg; returns its stdout. RuntimeError: it failed."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-y", *map(str, arguments)]
    done = subprocess.run(command, input=stdin, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stderr.decode(errors='replace')}")
    return done.stdout


def encode_clip(
    path: Path,
    *,
    fps: Fraction | int = 25,
    num_frames: int = 125,
    first_number: int = 0,
    width: int = 96,
    height: int = 64,
    codec: str = H264,
    options: str = "",
    quarter_turns: int = 0,
    audio_seconds: Fraction | None = None,
) -> Clip:
    """A clip of constant rate whose pictures carry first_number, first_number + 1, ...

    `quarter_turns` turns the coded pictures counter-clockwise.
    """
    fps = Fraction(fps)
    numbers = range(first_number, first_number + num_frames)
    pictures = [_draw_turned(n, width, height, quarter_turns).tobytes() for n in numbers]
    arguments = f"-f rawvideo -pix_fmt gray -s {width}x{height} -r {fps} -i pipe:0".split()
    if audio_seconds is not None:
        tone = "sine=frequency=440:sample_rate=16000"
        arguments += f"-f lavfi -t {float(audio_seconds)} -i {tone}".split()
    arguments += codec.split() + options.split()
    run_ffmpeg(*arguments, path, stdin=b"".join(pictures))
    return Clip(
        path=path,
        times=tuple(number / fps for number in range(num_frames)),
        numbers=tuple(numbers),
        last_duration=1 / fps,
        width=width,
        height=height,
        has_audio=audio_seconds is not None,
    )


def _draw_turned(number: int, width: int, height: int, quarter_turns: int) -> Picture:
    if quarter_turns % 2:
        width, height = height, width
    return np.rot90(draw_frame_number(number, width=width, height=height), k=quarter_turns)


def encode_variable_rate(path: Path, ticks: Callable[[int], int], expression: str) -> Clip:
    """25 frames at `ticks` of a millisecond; `expression` is the same for ffmpeg, of N."""
    options = f"{B_FRAMES} -fps_mode passthrough -enc_time_base 1/1000"
    options += f" -vf settb=1/1000,setpts={expression}"
    if path.suffix == ".mp4":
        options += " -video_track_timescale 1000"
    clip = encode_clip(path, num_frames=25, options=options)
    return replace(clip, times=tuple(Fraction(ticks(n), 1000) for n in range(25)))


def delayed(clip: Clip, seconds: int) -> Clip:
    """What is known of a clip that was written with `-output_ts_offset seconds`."""
    return replace(clip, times=tuple(time + seconds for time in clip.times))


def in_milliseconds(clip: Clip) -> Clip:
    """What is known of a clip whose container holds whole milliseconds."""

    def rounded(time: Fraction) -> Fraction:
        return Fraction((time * 1000 + Fraction(1, 2)) // 1, 1000)

    times = tuple(map(rounded, clip.times))
    return replace(clip, times=times, last_duration=rounded(clip.last_duration))


def cut_without_decoding(source: Clip, path: Path, *, first_frame: int) -> Clip:
    """A stream copy from a frame that is no key frame: an edit list hides those before it."""
    start = source.times[first_frame]
    run_ffmpeg("-ss", f"{float(start)}", "-i", source.path, "-c", "copy", path)
    times = tuple(time - start for time in source.times[first_frame:])
    return replace(source, path=path, times=times, numbers=source.numbers[first_frame:])


def turned_by_matrix(path: Path, *, rotation: int, width: int = 96, height: int = 64) -> Clip:
    """A clip that is upright only after its display matrix is applied."""
    plain = path.with_name(f"plain_{path.name}")
    clip = encode_clip(plain, width=width, height=height, quarter_turns=-rotation // 90)
    run_ffmpeg("-display_rotation", str(rotation), "-i", plain, "-c", "copy", path)
    return replace(clip, path=path, rotation=rotation)


def truncated(source: Clip, path: Path, *, kept: float) -> Clip:
    """The first part of a file's bytes."""
    data = source.path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept)])
    return replace(source, path=path, truncated=True)


def joined_backwards(path: Path) -> Clip:
    """MPEG-TS whose second half comes before the first in time, as after a clock reset."""
    halves = []
    for first_number, seconds in ((50, 20), (0, 10)):
        half = encode_clip(
            path.with_suffix(f".{seconds}.ts"),
            num_frames=50,
            first_number=first_number,
            options=f"{B_FRAMES} {NO_MUX_DELAY} -output_ts_offset {seconds}",
        )
        halves.append(delayed(half, seconds))
    late, early = halves
    path.write_bytes(late.path.read_bytes() + early.path.read_bytes())
    return replace(
        early,
        path=path,
        times=early.times + late.times,
        numbers=early.numbers + late.numbers,
        in_order=False,
    )


def audio_comes_and_goes(path: Path) -> Clip:
    """MPEG-TS with sound in the middle only, far from where a reader looks for streams."""
    null_packet = b"\x47\x1f\xff\x10" + b"\xff" * 184
    data, parts = b"", []
    for number, sound in enumerate((None, Fraction(2), None)):
        part = encode_clip(
            path.with_suffix(f".{number}.ts"),
            num_frames=50,
            first_number=50 * number,
            audio_seconds=sound,
            options=f"-bf 0 {NO_MUX_DELAY} -output_ts_offset {10 + 2 * number}",
        )
        parts.append(delayed(part, 10 + 2 * number))
        data += part.path.read_bytes() + null_packet * 5000
    path.write_bytes(data)
    return replace(
        parts[0],
        path=path,
        times=sum((part.times for part in parts), ()),
        numbers=sum((part.numbers for part in parts), ()),
    )


def growing_pictures(path: Path) -> Clip:
    """MPEG-TS whose pictures become larger half-way."""
    options = f"-bf 0 {NO_MUX_DELAY}"
    small = encode_clip(path.with_suffix(".small.ts"), num_frames=50, options=options)
    large = encode_clip(
        path.with_suffix(".large.ts"),
        num_frames=50,
        first_number=50,
        width=192,
        height=160,
        options=f"{options} -output_ts_offset 2",
    )
    path.write_bytes(small.path.read_bytes() + large.path.read_bytes())
    times = small.times + delayed(large, 2).times
    return replace(small, path=path, times=times, numbers=small.numbers + large.numbers)


def gif_of_any_size(path: Path, *, width: int, height: int, num_frames: int = 1) -> Path:
    """A whole GIF of 23 bytes a frame, up to 65535 x 65535: one dot is drawn, all is decoded."""
    screen = width.to_bytes(2, "little") + height.to_bytes(2, "little")
    palette = bytes([0xF0, 0, 0]) + bytes(3) + b"\xff\xff\xff"
    dot = b"!\xf9\x04\x00\x0a\x00\x00\x00," + bytes(4) + b"\x01\x00\x01\x00\x00\x02\x02\x44\x01\x00"
    path.write_bytes(b"GIF89a" + screen + palette + dot * num_frames + b";")
    return path


MAKERS: dict[str, Callable[[Path], Clip]] = {
    "23.976.mp4": lambda path: encode_clip(path, fps=Fraction(24000, 1001)),
    "25.mp4": lambda path: encode_clip(path, options="-bf 0"),
    "29.97.mp4": lambda path: encode_clip(path, fps=Fraction(30000, 1001)),
    "30.mp4": lambda path: encode_clip(path, fps=30),
    "50.mp4": lambda path: encode_clip(path, fps=50, num_frames=250),
    "60.mp4": lambda path: encode_clip(path, fps=60, num_frames=250),
    "29.97.mkv": lambda path: in_milliseconds(encode_clip(path, fps=Fraction(30000, 1001))),
    "variable_rate.mp4": lambda path: encode_variable_rate(
        path, lambda n: n * n * 7 + n * 13, "N*N*7+N*13"
    ),
    "variable_rate.mkv": lambda path: encode_variable_rate(
        path, lambda n: n * n * 7 + n * 13, "N*N*7+N*13"
    ),
    "frozen_picture.mp4": lambda path: encode_variable_rate(
        path, lambda n: n * 40 + (n > 12) * 3000, "N*40+gt(N\\,12)*3000"
    ),
    "b_frames.mp4": lambda path: encode_clip(path, options=B_FRAMES),
    "starts_at_10s.mp4": lambda path: delayed(
        encode_clip(path, options=f"{B_FRAMES} -output_ts_offset 10"), 10
    ),
    "starts_at_7s.mkv": lambda path: delayed(encode_clip(path, options="-output_ts_offset 7"), 7),
    "starts_at_10s.ts": lambda path: delayed(
        encode_clip(path, options=f"{B_FRAMES} {NO_MUX_DELAY} -output_ts_offset 10"), 10
    ),
    "edit_list.mp4": lambda path: cut_without_decoding(
        encode_clip(path.with_name("uncut.mp4"), options=B_FRAMES), path, first_frame=30
    ),
    "rotation_90.mp4": lambda path: turned_by_matrix(path, rotation=90),
    "rotation_180.mp4": lambda path: turned_by_matrix(path, rotation=180),
    "rotation_270.mov": lambda path: turned_by_matrix(path, rotation=270),
    "one_frame.mp4": lambda path: encode_clip(path, num_frames=1),
    "half_a_second.mp4": lambda path: encode_clip(path, fps=24, num_frames=12),
    "odd_size.mp4": lambda path: encode_clip(path, width=175, height=143, codec=H264_ODD_SIZE),
    "odd_size.webm": lambda path: encode_clip(path, width=175, height=143, codec=VP9),
    "with_audio.mp4": lambda path: encode_clip(path, audio_seconds=Fraction(6)),
    "wide_pixels.mp4": lambda path: replace(
        encode_clip(path, options="-vf setsar=2/1"), sample_aspect=2
    ),
    "audio_comes_and_goes.ts": audio_comes_and_goes,
    "growing_pictures.ts": growing_pictures,
    "goes_back.ts": joined_backwards,
    "truncated.mp4": lambda path: truncated(
        encode_clip(path.with_name("whole.mp4"), options=f"{ALL_KEYFRAMES} -movflags +faststart"),
        path,
        kept=0.6,
    ),
    "truncated.mkv": lambda path: truncated(
        encode_clip(path.with_name("whole.mkv"), options=ALL_KEYFRAMES), path, kept=0.6
    ),
}
"""Name -> what makes the clip under the path given."""


class ClipShelf(Mapping[str, Clip]):
    """All clips of MAKERS in a folder, each made when first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._made: dict[str, Clip] = {}

    def __getitem__(self, name: str) -> Clip:
        if name not in self._made:
            self._made[name] = MAKERS[name](self.folder / name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(MAKERS)

    def __len__(self) -> int:
        return len(MAKERS)
