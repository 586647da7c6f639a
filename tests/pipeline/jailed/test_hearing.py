"""Beeps at known times: are they heard in the right window, to the millisecond?

Sound is a loud tone for 20 ms at each beep and silence elsewhere. Times are on the clock of the
beeps, on which the video starts at 0 unless a test says otherwise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest

from pipeline.jailed.frames import Tally, decode_frames
from pipeline.jailed.hearing import hear_windows
from pipeline.jailed.opening import open_sound
from pipeline.jailed.packets import read_packet_facts
from pipeline.placing import JITTER_SECONDS
from schemas.errors import VideoError
from tests.clips import run_ffmpeg

RATE = 16000
MAX_PIXELS = 2**26
BEEPS = (0.25, 1.5, 3.75)
BEEP_SECONDS = 0.02
EXACT = 0.001
H264 = "-c:v libx264 -preset ultrafast -threads 1"
NO_MUX_DELAY = "-muxdelay 0 -muxpreload 0"


@dataclass(frozen=True, slots=True)
class Heard:
    samples: npt.NDArray[np.float32]
    heard: list[bool]
    tally: Tally

    @property
    def onsets(self) -> list[float]:
        """When each beep begins, in seconds from the start of window 0."""
        loud = np.flatnonzero(np.abs(self.samples) > 0.1)
        starts = loud[np.diff(loud, prepend=-RATE) > RATE // 10]
        return [float(start) / RATE for start in starts]


def hear(path: Path, *, origin: float = 0.0, num: int = 6, rate: int = RATE, **more: Any) -> Heard:
    """All windows, their form checked."""
    tally = Tally()
    windows = list(
        hear_windows(
            str(path),
            origin_seconds=origin,
            num_windows=num,
            rate=rate,
            max_pixels=MAX_PIXELS,
            tally=tally,
            alive=lambda: None,
            **more,
        )
    )
    first = more.get("first_window", 0)
    assert [window.index for window in windows] == list(range(first, first + num))
    for window in windows:
        assert window.samples.shape == (rate,)
        assert window.samples.dtype == np.float32
        assert (np.abs(window.samples) <= 1).all()
        assert window.heard or not window.samples.any()
    joined = np.concatenate([w.samples for w in windows]) if windows else np.zeros(0, np.float32)
    return Heard(joined, [window.heard for window in windows], tally)


def beeps(*times: float, rate: int = 48000, seconds: float = 6, hiss: float = 0) -> list[str]:
    """Input options of ffmpeg: mono sound that beeps at these times.

    With some hiss, what is silent takes room in a file too.
    """
    gates = "+".join(f"between(t\\,{t}\\,{t + BEEP_SECONDS})" for t in times) or "0"
    tone = f"0.8*cos(2*PI*1000*t)*({gates})"
    if hiss:
        tone += f"+{hiss}*(random(0)-0.5)"
    return ["-f", "lavfi", "-i", f"aevalsrc={tone}:s={rate}:d={seconds}"]


def grey(seconds: float = 6) -> list[str]:
    return ["-f", "lavfi", "-i", f"color=c=gray:s=64x48:r=25:d={seconds}"]


def make(path: Path, codecs: str, *sound: str, seconds: float = 6) -> Path:
    """A grey video with the sound given as further input options, beeps at BEEPS by default."""
    run_ffmpeg(*grey(seconds), *(sound or beeps(*BEEPS)), *codecs.split(), path)
    return path


def first_frame_seconds(path: Path) -> float:
    with av.open(str(path)) as container:
        frame = next(container.decode(video=0))
        assert frame.pts is not None
        return float(frame.pts * frame.time_base)


def check_onsets(heard: Heard, *expected: float, within: float = EXACT) -> None:
    assert heard.onsets == pytest.approx(expected, abs=within)


CONTAINERS = {
    "aac.mp4": (f"{H264} -c:a aac", EXACT),
    "mp3.mp4": (f"{H264} -c:a libmp3lame", EXACT),
    "opus.mp4": (f"{H264} -c:a libopus", EXACT),
    "pcm.mov": (f"{H264} -c:a pcm_s16le", EXACT),
    "opus.mkv": (f"{H264} -c:a libopus", EXACT),
    "flac.mkv": (f"{H264} -c:a flac", EXACT),
    "aac.mkv": (f"{H264} -c:a aac", EXACT),
    "vorbis.webm": ("-c:v libvpx -c:a libvorbis", EXACT),
    "opus.webm": ("-c:v libvpx -c:a libopus", EXACT),
    "mp2.ts": (f"{H264} -c:a mp2", EXACT),
    "aac.ts": (f"{H264} -c:a aac", EXACT),
    "ac3.ts": (f"{H264} -c:a ac3", EXACT),
    "mp2.mpg": ("-c:v mpeg2video -c:a mp2", EXACT),
    "aac.flv": (f"{H264} -c:a aac", EXACT),
    "mp3.flv": ("-c:v flv -c:a libmp3lame -ar 44100", EXACT),
    "wma.wmv": ("-c:v wmv2 -c:a wmav2", EXACT),
    "vorbis.ogv": ("-c:v libtheora -c:a libvorbis", EXACT),
    "aac.3gp": (f"{H264} -c:a aac -ar 8000", EXACT),
    "pcm.avi": ("-c:v mpeg4 -c:a pcm_s16le", EXACT),
    "mp3.avi": ("-c:v mpeg4 -c:a libmp3lame", 0.025),  # AVI does not tell the encoder's delay
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_beep_is_heard_when_it_is_seen(name: str, tmp_path: Path) -> None:
    codecs, within = CONTAINERS[name]
    path = make(tmp_path / name, codecs)
    heard = hear(path, origin=first_frame_seconds(path))
    check_onsets(heard, *BEEPS, within=within)
    assert heard.heard == [True] * 6
    assert heard.tally.num_errors == 0


@pytest.mark.parametrize("layout", ["mono", "stereo", "5.1", "7.1"])
@pytest.mark.parametrize("rate", [8000, 22050, 44100, 48000, 96000])
def test_any_rate_and_layout_becomes_mono_of_one_rate(
    rate: int, layout: str, tmp_path: Path
) -> None:
    sound = beeps(*BEEPS, rate=rate)
    spread = f"-af pan={layout}|{'|'.join(f'c{n}=c0' for n in range(channels(layout)))}"
    path = make(tmp_path / "a.mkv", f"{H264} -c:a flac {spread}", *sound)
    heard = hear(path)
    check_onsets(heard, *BEEPS)
    assert 0.7 < np.abs(heard.samples).max() < 0.9  # equal channels are as loud as one


def channels(layout: str) -> int:
    return {"mono": 1, "stereo": 2}.get(layout) or int(layout[0]) + int(layout[2])


@pytest.mark.parametrize("layout", ["BL+BR", "LFE", "FC+LFE", "7.1(wide)", "octagonal"])
def test_channels_without_a_rule_are_mixed(layout: str, tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    num = {"BL+BR": 2, "LFE": 1, "FC+LFE": 2}.get(layout, 8)
    spread = "|".join(f"c{n}=c0" for n in range(num))
    run_ffmpeg(*beeps(*BEEPS), "-af", f"pan={layout}|{spread}", "-c:a", "pcm_s16le", path)
    with av.open(str(path)) as container:
        assert container.streams.audio[0].layout.name.endswith(
            (layout, f"({layout})", "7.1(wide)", f"{num} channels")
        )
    heard = hear(path)
    check_onsets(heard, *BEEPS)
    assert heard.tally.num_errors == 0


@pytest.mark.parametrize("rate", [8000, 11025, 16000, 22050, 48000])
def test_any_rate_can_be_asked_for(rate: int, tmp_path: Path) -> None:
    path = make(tmp_path / "a.mp4", f"{H264} -c:a aac")
    whole = hear(path, rate=rate)
    loud = np.flatnonzero(np.abs(whole.samples) > 0.1)
    assert loud[0] / rate == pytest.approx(BEEPS[0], abs=EXACT)


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.ts"])
def test_late_sound_is_preceded_by_silence(name: str, tmp_path: Path) -> None:
    path = make(
        tmp_path / name, f"{H264} -c:a aac {NO_MUX_DELAY}", "-itsoffset", "2", *beeps(0.25, 1.5)
    )
    heard = hear(path, origin=first_frame_seconds(path))
    check_onsets(heard, 2.25, 3.5)
    assert heard.heard[0] is False
    assert heard.heard[2:] == [True] * 4


@pytest.mark.parametrize("name", ["a.mkv", "a.ts", "a.mp4"])
def test_sound_before_the_picture_is_dropped(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    run_ffmpeg(
        *(*beeps(0.25, 1.5, 3.75), "-itsoffset", "1", *grey()),
        *f"{H264} -c:a aac {NO_MUX_DELAY}".split(),
        path,
    )
    origin = first_frame_seconds(path)
    assert origin > 0.9
    check_onsets(hear(path, origin=origin), 0.5, 2.75)


def test_times_below_zero(tmp_path: Path) -> None:
    path = make(tmp_path / "a.mkv", f"{H264} -c:a flac")
    # The picture starts at -1 of a clock on which the sound starts at 0: 1 s of silence.
    heard = hear(path, origin=-1.0, num=7)
    check_onsets(heard, *(beep + 1 for beep in BEEPS))
    assert heard.heard == [False] + [True] * 6


def test_short_sound_is_followed_by_silence(tmp_path: Path) -> None:
    path = make(tmp_path / "a.mp4", f"{H264} -c:a aac", *beeps(0.25, 1.5, seconds=1.75))
    heard = hear(path)
    check_onsets(heard, 0.25, 1.5)
    assert heard.heard == [True, True, False, False, False, False]


@pytest.mark.parametrize("codec", ["aac", "mp2"])
def test_a_gap_is_silence_of_its_length(codec: str, tmp_path: Path) -> None:
    data = b""
    for number, offset in enumerate((10, 14)):
        part = make(
            tmp_path / f"{number}.ts",
            f"{H264} -c:a {codec} {NO_MUX_DELAY} -output_ts_offset {offset}",
            *beeps(0.25, 0.75, seconds=1.5),
            seconds=1.5,
        )
        data += part.read_bytes()
    path = tmp_path / "gap.ts"
    path.write_bytes(data)
    heard = hear(path, origin=first_frame_seconds(path))
    check_onsets(heard, 0.25, 0.75, 4.25, 4.75, within=0.002)
    assert heard.heard == [True, True, False, heard.heard[3], True, True]


def test_a_short_gap_is_kept(tmp_path: Path) -> None:
    """Two frames of 21 ms are missing."""
    path = make(
        tmp_path / "a.mkv",
        f"{H264} -c:a aac -bsf:a noise=drop=between(n\\,100\\,101)",
        *beeps(*BEEPS),
    )
    check_onsets(hear(path), *BEEPS)


@pytest.mark.parametrize("default", [0, 1])
def test_the_default_track_is_heard(default: int, tmp_path: Path) -> None:
    flags = f"-disposition:a:{default} default -disposition:a:{1 - default} 0"
    path = make(
        tmp_path / "a.mkv",
        f"-map 0 -map 1 -map 2 {H264} -c:a flac {flags}",
        *(*beeps(0.25), *beeps(2.5)),
    )
    check_onsets(hear(path), (0.25, 2.5)[default])


def test_without_a_default_the_first_that_is_no_commentary(tmp_path: Path) -> None:
    flags = (
        "-disposition:a:0 comment -disposition:a:1 0 -disposition:a:2 0 -default_mode passthrough"
    )
    path = make(
        tmp_path / "a.mkv",
        f"-map 0 -map 1 -map 2 -map 3 {H264} -c:a flac {flags}",
        *(*beeps(0.25), *beeps(2.5), *beeps(3.5)),
    )
    check_onsets(hear(path), 2.5)


def test_no_track_is_silence(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    run_ffmpeg(*grey(1), *H264.split(), path)
    heard = hear(path, num=3)
    assert heard.heard == [False] * 3
    assert not heard.samples.any()


def test_a_track_without_a_decoder_is_silence(tmp_path: Path) -> None:
    path = make(tmp_path / "a.mkv", f"{H264} -c:a flac")
    assert path.read_bytes().count(b"A_FLAC") == 1
    path.write_bytes(path.read_bytes().replace(b"A_FLAC", b"A_XXXX"))
    assert hear(path).heard == [False] * 6


def test_a_file_of_sound_only(tmp_path: Path) -> None:
    path = tmp_path / "a.mp3"
    run_ffmpeg(*beeps(*BEEPS), path)
    with av.open(str(path)) as container:
        first = next(container.decode(audio=0))
    assert first.pts is not None
    # An mp3 file without a picture counts its times from the encoder's delay on.
    check_onsets(hear(path, origin=float(first.pts * first.time_base)), *BEEPS)


def test_an_edit_list_hides_what_it_cuts(tmp_path: Path) -> None:
    whole = make(tmp_path / "whole.mp4", f"{H264} -g 25 -c:a aac")
    path = tmp_path / "cut.mp4"
    run_ffmpeg("-ss", "1.2", "-i", whole, "-c", "copy", path)
    check_onsets(hear(path, origin=first_frame_seconds(path)), 0.3, 2.55, within=0.002)


def test_another_rate_and_layout_in_mid_stream(tmp_path: Path) -> None:
    data = b""
    for number, form in enumerate(("-ar 48000 -ac 2", "-ar 22050 -ac 1", "-ar 44100 -ac 2")):
        part = make(
            tmp_path / f"{number}.ts",
            f"{H264} -c:a mp2 {form} {NO_MUX_DELAY} -output_ts_offset {10 + 2 * number}",
            *beeps(0.5, 1.5, seconds=2),
            seconds=2,
        )
        data += part.read_bytes()
    path = tmp_path / "joined.ts"
    path.write_bytes(data)
    heard = hear(path, origin=first_frame_seconds(path))
    # The delay of the encoder is time of the sound: 481 samples, more of them at a lower rate.
    check_onsets(heard, 0.5, 1.5, 2.5, 3.5, 4.5, 5.5, within=0.013)


def test_times_that_go_back(tmp_path: Path) -> None:
    """The late half comes first, as after a clock reset."""
    data = b""
    for offset in (30, 10):
        part = make(
            tmp_path / f"{offset}.ts",
            f"{H264} -c:a aac {NO_MUX_DELAY} -output_ts_offset {offset}",
            *beeps(0.5, 1.5, seconds=2),
            seconds=2,
        )
        data += part.read_bytes()
    path = tmp_path / "back.ts"
    path.write_bytes(data)
    origin = first_frame_seconds(tmp_path / "10.ts")
    assert hear(path, origin=origin, num=23).onsets == pytest.approx([20.5, 21.5], abs=EXACT)
    both = hear(path, origin=origin, num=23, in_order=False)
    check_onsets(both, 0.5, 1.5, 20.5, 21.5, within=0.002)


@pytest.mark.parametrize("codec", ["aac", "pcm_s16le"])
@pytest.mark.parametrize("kept", [0.25, 0.55])
def test_what_is_left_of_a_cut_file(kept: float, codec: str, tmp_path: Path) -> None:
    whole = make(tmp_path / "whole.mkv", f"{H264} -c:a {codec}")
    path = tmp_path / "cut.mkv"
    path.write_bytes(whole.read_bytes()[: int(whole.stat().st_size * kept)])
    heard = hear(path)
    assert 1 <= len(heard.onsets) < 3
    check_onsets(heard, *BEEPS[: len(heard.onsets)])
    assert heard.heard[-1] is False


@pytest.mark.parametrize("name", ["aac.mp4", "mp3.mp4", "flac.mkv", "aac.ts", "vorbis.webm"])
def test_damage_costs_what_it_hits(name: str, tmp_path: Path) -> None:
    codecs, _ = CONTAINERS[name]
    if name.endswith(("mkv", "webm")):
        codecs += " -cluster_time_limit 500"  # a reader goes on at the next cluster
    path = make(tmp_path / name, codecs, *beeps(*BEEPS, hiss=0.05))
    origin = first_frame_seconds(path)
    data = bytearray(path.read_bytes())
    middle = len(data) * 45 // 100
    noise = np.random.default_rng(5).integers(0, 256, len(data) // 20, dtype=np.uint8).tobytes()
    data[middle : middle + len(noise)] = noise
    path.write_bytes(data)
    heard = hear(path, origin=origin)
    near = [min(abs(onset - beep) for onset in heard.onsets) for beep in (BEEPS[0], BEEPS[2])]
    assert max(near) < 0.002, heard.onsets
    again = hear(path, origin=origin)
    assert again.samples.tobytes() == heard.samples.tobytes()
    assert again.tally == heard.tally


def test_lost_packets_are_counted_and_silent(tmp_path: Path) -> None:
    """Noise inside the packets of a second in which nothing else is said."""
    damage = "noise=amount=between(n\\,22\\,30)*3"
    path = make(
        tmp_path / "a.mkv", f"{H264} -c:a flac -bsf:a {damage}", *beeps(0.25, 3.75, seconds=6)
    )
    heard = hear(path)
    assert heard.tally.num_problems > 0
    assert [heard.onsets[0], heard.onsets[-1]] == pytest.approx([0.25, 3.75], abs=EXACT)


@pytest.mark.parametrize("name", ["aac.mp4", "opus.mkv", "aac.ts"])
def test_later_windows_are_a_slice_of_all(name: str, tmp_path: Path) -> None:
    path = make(tmp_path / name, CONTAINERS[name][0])
    origin = first_frame_seconds(path)
    whole = hear(path, origin=origin)
    for first, num in ((0, 2), (2, 3), (5, 1), (3, 0)):
        part = hear(path, origin=origin, first_window=first, num=num)
        assert part.heard == whole.heard[first : first + num]
        expected = whole.samples[first * RATE : (first + num) * RATE]
        assert part.samples.tobytes() == expected.tobytes()


def test_rounded_times_do_not_tear_the_sound(tmp_path: Path) -> None:
    """Matroska rounds to milliseconds; a pure tone through it has no clicks."""
    sound = ["-f", "lavfi", "-i", "sine=frequency=1000:sample_rate=44100:duration=6"]
    heard = hear(make(tmp_path / "a.mkv", f"{H264} -c:a flac", *sound))
    inside = heard.samples[RATE : 5 * RATE].astype(np.float64)
    spectrum = np.abs(np.fft.rfft(inside * np.hanning(len(inside)))) ** 2
    tone = 4 * 1000
    near = spectrum[tone - 40 : tone + 40].sum()
    assert spectrum.sum() - near < near * 1e-7


def test_a_clock_that_drifts_is_followed(tmp_path: Path) -> None:
    """The times run 1 % faster than the samples."""
    path = make(tmp_path / "a.mkv", f"{H264} -c:a flac -bsf:a setts=pts=PTS*1.01:dts=DTS*1.01")
    expected = [beep * 1.01 for beep in BEEPS]
    check_onsets(hear(path), *expected, within=JITTER_SECONDS + EXACT)


def test_streams_in_another_order(tmp_path: Path) -> None:
    """Each decoder gives out its last frames, also that of the second stream."""
    codecs = "-map 1 -map 0 -c:v libx264 -bf 3 -threads 1 -c:a libopus"
    path = make(tmp_path / "a.mkv", codecs)
    assert hear(path).heard == [True] * 6
    frames = decode_frames(
        str(path),
        tally=Tally(),
        max_pixels=10**6,
        max_duration_seconds=60,
        alive=lambda: None,
    )
    assert len(list(frames)) == 150


@pytest.mark.parametrize("offset", [36000, 95440])
def test_large_clocks_and_a_wrap(offset: int, tmp_path: Path) -> None:
    """The clock of a transport stream wraps after 95443.7 s."""
    codecs = f"{H264} -c:a aac {NO_MUX_DELAY} -output_ts_offset {offset}"
    path = make(tmp_path / "a.ts", codecs)
    check_onsets(hear(path, origin=first_frame_seconds(path)), *BEEPS)


@pytest.mark.parametrize("origin", [1e10, -1e10, 315e6])
def test_windows_far_from_the_sound_are_silence(origin: float, tmp_path: Path) -> None:
    path = make(tmp_path / "a.mp4", f"{H264} -c:a aac")
    assert hear(path, origin=origin, num=3).heard == [False] * 3


def test_sound_far_beyond_the_picture_takes_no_memory(tmp_path: Path) -> None:
    path = make(tmp_path / "a.mkv", f"{H264} -c:a flac", "-itsoffset", "300000000", *beeps(0.25))
    assert hear(path, num=5).heard == [False] * 5
    assert hear(path, num=5, in_order=False).heard == [False] * 5


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"no media at all" * 100)
    for name, reason in (("a.mp4", "not_a_video"), ("missing.mp4", "not_found")):
        with pytest.raises(VideoError) as caught:
            hear(tmp_path / name)
        assert caught.value.reason == reason
    (tmp_path / "list.m3u8").write_text("#EXTM3U\n#EXTINF:1,\na.ts\n")
    with pytest.raises(VideoError):
        hear(tmp_path / "list.m3u8")


def test_each_packet_is_a_sign_of_life(tmp_path: Path) -> None:
    path = make(tmp_path / "a.mp4", f"{H264} -c:a aac", *beeps(0.25, seconds=1))
    signs = 0

    def alive() -> None:
        nonlocal signs
        signs += 1

    list(
        hear_windows(
            str(path),
            origin_seconds=0,
            num_windows=6,
            rate=RATE,
            max_pixels=MAX_PIXELS,
            tally=Tally(),
            alive=alive,
        )
    )
    assert signs > 150 + 40  # also those of the video, past the end of the sound


@pytest.mark.parametrize("name", ["flt", "dbl"])
def test_values_that_are_no_numbers(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    run_ffmpeg(*beeps(*BEEPS), "-c:a", {"flt": "pcm_f32le", "dbl": "pcm_f64le"}[name], path)
    data = bytearray(path.read_bytes())
    dtype = np.dtype("<f4" if name == "flt" else "<f8")
    middle = len(data) // 2 // 16 * 16
    bad = np.array([np.nan, np.inf, -np.inf, 1e30], dtype)
    for shift in range(dtype.itemsize):  # wherever the samples begin
        place = middle + 4096 * shift + shift
        data[place : place + bad.nbytes] = bad.tobytes()
    path.write_bytes(data)
    heard = hear(path)  # checks that all values are in [-1, 1]
    assert heard.onsets[0] == pytest.approx(0.25, abs=EXACT)


def test_a_rate_of_one_a_second_is_not_decoded(tmp_path: Path) -> None:
    """A packet of it would last for hours."""
    path = tmp_path / "a.wav"
    run_ffmpeg(*beeps(0.25, seconds=0.5), "-c:a", "pcm_s16le", "-bitexact", path)
    data = bytearray(path.read_bytes())
    assert data[24:28] == (48000).to_bytes(4, "little")
    data[24:28] = (1).to_bytes(4, "little")
    path.write_bytes(data)
    heard = hear(path)
    assert heard.heard == [False] * 6
    assert heard.tally.num_errors > 0


NO_SOUND = {"not_a_video", "empty_file"}
GOES_BACK = {"non_monotonic_dts.ts"}
STEP = {"testWMV.wmv"}
"""Times step by 22 ms: heard at its time here, and pulled together by the other reader."""


def corpus_files(folder: Path) -> list[Path]:
    media = {path for path in folder.rglob("*") if path.is_file()}
    return sorted(path for path in media if path.suffix not in {".tsv", ".md", ".json", ".tar"})


def where(path: Path) -> tuple[float, int]:
    """The time of the first frame, and how many windows the video covers."""
    try:
        facts = read_packet_facts(
            str(path), max_pixels=10**9, max_duration_seconds=1e6, alive=lambda: None
        )
    except VideoError:
        return 0.0, 3
    return facts["first_seconds"], math.ceil(facts["duration_seconds"])


def read_otherwise(path: Path, *, origin: float, num: int) -> npt.NDArray[np.float64]:
    """The same windows by the program ffmpeg, joined."""
    with open_sound(str(path), max_pixels=MAX_PIXELS) as (container, stream):
        index, start = stream.index, (container.start_time or 0) / 1e6
    output = run_ffmpeg(
        *("-i", f"file:{path}", "-map", f"0:{index}", "-ac", "1", "-f", "s16le"),
        *("-af", f"aresample={RATE}:async=1:first_pts=0", "pipe:1"),
    )
    samples = np.frombuffer(output, "<i2") / 32768
    shift = round((origin - start) * RATE)  # the program begins at the start of the file
    samples = samples[shift:] if shift >= 0 else np.pad(samples, (-shift, 0))
    return np.pad(samples, (0, max(0, num * RATE - len(samples))))[: num * RATE]


def test_real_files_sound_as_another_reader_says(corpus_dir: Path) -> None:
    num_compared = 0
    for path in corpus_files(corpus_dir):
        if path.name in GOES_BACK:
            continue
        origin, num = where(path)
        try:
            heard = hear(path, origin=origin, num=num)
        except VideoError as error:
            assert error.reason in NO_SOUND, path
            continue
        with open_sound(str(path), max_pixels=MAX_PIXELS) as (_, stream):
            if stream is None:
                assert not any(heard.heard), path
                continue
        other = read_otherwise(path, origin=origin, num=num)
        levels = np.sqrt((heard.samples.reshape(num, RATE).astype(np.float64) ** 2).mean(axis=1))
        expected = np.sqrt((other.reshape(num, RATE) ** 2).mean(axis=1))
        np.testing.assert_allclose(levels, expected, rtol=0, atol=0.003, err_msg=str(path))
        power = np.sqrt((heard.samples.astype(np.float64) ** 2).sum() * (other**2).sum())
        if power > 1 and path.name not in STEP:
            assert (heard.samples * other).sum() > 0.95 * power, path
        num_compared += 1
    assert num_compared > 35


def test_real_files_where_the_track_ends_and_begins(corpus_dir: Path) -> None:
    for name, expected in {
        "audio_starts_2s_late.mp4": "00111",
        "rails_no_audio.mp4": "00000",
        "negative_start.ts": "00000",
        "two_audio_60fps.mp4": "11111",
        "video_with_failing_audio.mp4": "111111111111",
        "testFLV.flv": "10",
        "testASF_two_video.asf": "000011111111111",
    }.items():
        origin, num = where(corpus_dir / name)
        heard = hear(corpus_dir / name, origin=origin, num=num).heard
        assert "".join("01"[value] for value in heard)[: len(expected)] == expected, name


def test_a_real_file_whose_times_go_back(corpus_dir: Path) -> None:
    [name] = GOES_BACK
    origin, num = where(corpus_dir / name)
    streamed = hear(corpus_dir / name, origin=origin, num=num)
    whole = hear(corpus_dir / name, origin=origin, num=num, in_order=False)
    assert all(whole.heard)
    assert sum(streamed.heard) < len(whole.heard)
