"""Hostile videos and dying decoder processes: each costs one video, and never more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline import jail, messages
from pipeline.decoding import ClipFrames
from pipeline.jail import DecoderProcess
from pipeline.probing import probe_source
from schemas.errors import VideoError
from schemas.recipe import DecodeLimits
from schemas.reject import REASONS
from schemas.video import Source
from tests.asking import ORDERS, assert_usable, decode, probe, recipe_at, start
from tests.clips import Clip, ClipShelf, gif_of_any_size

MEBIBYTE = 1024 * 1024
PATIENT = DecodeLimits()
MANY = recipe_at(25.0)
"""Of five seconds, 32 clips."""


@pytest.fixture(scope="module")
def process() -> Iterator[DecoderProcess]:
    with DecoderProcess(PATIENT) as process:
        yield process


def ask_in_every_way(path: Path, process: DecoderProcess, **limits: Any) -> Iterator[str]:
    """The reasons for which a file is rejected, probed and in every order."""
    recipe = recipe_at(**limits)
    for order in (None, *ORDERS):
        with pytest.raises(VideoError) as caught:
            if order is None:
                probe(path, process, recipe=recipe)
            else:
                decode(path, process, recipe=recipe, order=order)
        yield caught.value.reason


# The process itself


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc on this system")
def test_cpu_seconds_of_children_add_up(plain_clip: Clip) -> None:
    seen = []
    with DecoderProcess(PATIENT) as process:
        assert process.cpu_seconds == 0
        for _ in range(2):
            probe(plain_clip.path, process)
            seen.append(process.cpu_seconds)
            pid = process.pid
            assert pid is not None
            process.kill()
            seen.append(process.cpu_seconds)
    seen.append(process.cpu_seconds)
    assert seen == sorted(seen)
    assert 0 < seen[0] < 30
    assert seen[2] > seen[1]
    assert seen[4] == seen[3]


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
def test_a_crash_in_mid_video_costs_that_video(number: signal.Signals, plain_clip: Clip) -> None:
    with DecoderProcess(PATIENT) as process:
        clips = start(plain_clip.path, process, recipe=MANY).clips()
        next(clips)
        first_pid = process.pid
        assert first_pid is not None
        os.kill(first_pid, number)
        with pytest.raises(VideoError) as caught:
            list(clips)
        assert caught.value.reason == "crashed"
        assert signal.Signals(number).name in caught.value.detail
        assert_usable(process, plain_clip)
        assert process.pid not in (None, first_pid)


def test_a_crash_between_videos_costs_nothing(plain_clip: Clip) -> None:
    with DecoderProcess(PATIENT) as process:
        assert_usable(process, plain_clip)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert_usable(process, plain_clip)


def test_a_process_that_hangs_is_killed(plain_clip: Clip) -> None:
    with DecoderProcess(DecodeLimits(stall_seconds=1.0)) as process:
        clips = start(plain_clip.path, process, recipe=recipe_at(200.0)).clips()
        next(clips)
        pid = process.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(VideoError) as caught:
            list(clips)
        assert caught.value.reason == "timed_out"
        assert 0.9 < time.monotonic() - began < 20
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert_usable(process, plain_clip)


def test_a_video_without_end_is_killed_though_it_makes_progress(
    tmp_path: Path, plain_clip: Clip
) -> None:
    """46 KB that are 2000 pictures of 4000 x 4000: signs of life do not extend the time."""
    bomb = gif_of_any_size(tmp_path / "bomb.gif", width=4000, height=4000, num_frames=2000)
    limits = DecodeLimits(stall_seconds=2.0, base_seconds=3.0, factor=0.0)
    with DecoderProcess(limits) as process:
        began = time.monotonic()
        with pytest.raises(VideoError) as caught:
            decode(bomb, process, recipe=recipe_at(0.001))
        assert caught.value.reason == "timed_out"
        assert caught.value.detail == "more than 3 s"
        assert 2.9 < time.monotonic() - began < 30
        assert_usable(process, plain_clip)


def test_a_video_over_its_time_is_ended_even_while_it_answers(
    plain_clip: Clip, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every answer comes soon, all together take longer than the video may."""
    receive = messages.Receiver.receive

    def receive_late(receiver: messages.Receiver, *, timeout_seconds: float | None) -> Any:
        receiver.waited_seconds += 0.4
        return receive(receiver, timeout_seconds=timeout_seconds)

    monkeypatch.setattr(messages.Receiver, "receive", receive_late)
    with DecoderProcess(DecodeLimits(stall_seconds=60, base_seconds=1.0, factor=0)) as process:
        decoding = start(plain_clip.path, process, recipe=MANY)
        with pytest.raises(VideoError) as caught:
            list(decoding.clips())
        assert caught.value.reason == "timed_out"
        assert caught.value.detail == "more than 1 s"
        assert process.pid is None


def test_a_slow_owner_is_not_the_videos_fault(plain_clip: Clip) -> None:
    with DecoderProcess(DecodeLimits(stall_seconds=1.5, base_seconds=1.5, factor=0)) as process:
        clips = start(plain_clip.path, process, recipe=MANY).clips()
        next(clips)
        time.sleep(2.0)
        assert len(list(clips)) == 32  # 31 more, and the outcome


def test_an_owner_that_stops_listening_keeps_the_process(plain_clip: Clip) -> None:
    with DecoderProcess(PATIENT) as process:
        clips = start(plain_clip.path, process, recipe=MANY).clips()
        next(clips)
        pid = process.pid
        del clips
        assert_usable(process, plain_clip)
        assert process.pid == pid


def test_a_bug_in_the_process_is_not_the_videos_fault(
    process: DecoderProcess, plain_clip: Clip
) -> None:
    request = {"kind": "probe", "path": str(plain_clip.path), "surprise": 1}
    with pytest.raises(RuntimeError, match="surprise"):
        list(process.request(request, duration_seconds=1.0))
    assert_usable(process, plain_clip)


def test_one_process_serves_many_videos_but_not_for_ever(
    plain_clip: Clip, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jail, "MAX_VIDEOS_PER_CHILD", 3)
    pids = []
    with DecoderProcess(PATIENT) as process:
        for _ in range(4):
            probe(plain_clip.path, process)
            pids.append(process.pid)
    assert pids[0] == pids[1] == pids[2] != pids[3]


FACTS = {
    "container": "mov",
    "codec": "h264",
    "width": 160,
    "height": 120,
    "average_fps": 25.0,
    "num_packets": 125,
    "first_seconds": 0.0,
    "last_seconds": 4.96,
    "duration_seconds": 5.0,
    "has_audio": False,
    "truncated": False,
    "times_go_back": False,
}


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"kind": "pickle"},
        {"kind": []},
        {"kind": "reject", "reason": "bored", "detail": ""},
        {"kind": "reject", "reason": ["crashed"], "detail": ""},
        {"kind": "reject", "reason": "crashed"},
        {"kind": "bug"},
        {"kind": "facts"},
        {"kind": "facts", "facts": {"width": 1}},
        {"kind": "facts", "facts": None},
        {"kind": "facts", "facts": FACTS | {"last_seconds": 1e15}},
        {"kind": "facts", "facts": FACTS | {"last_seconds": -1.0}},
        {"kind": "done"},
        {"kind": "cancelled"},
        {"kind": "start_again", "order": "all", "why": ""},
    ],
)
def test_an_answer_of_another_kind_costs_that_video(
    answer: dict[str, Any], plain_clip: Clip, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has read hostile bytes may say anything."""
    with DecoderProcess(PATIENT) as process:
        assert_usable(process, plain_clip)
        with monkeypatch.context() as patch:
            patch.setattr(messages.Receiver, "receive", lambda *_, **__: (answer, bytearray()))
            with pytest.raises(VideoError) as caught:
                probe(plain_clip.path, process)
        assert caught.value.reason == "crashed"
        assert_usable(process, plain_clip)


def test_closing_ends_the_process(plain_clip: Clip) -> None:
    process = DecoderProcess(PATIENT)
    probe(plain_clip.path, process)
    pid = process.pid
    assert pid is not None
    process.close()
    process.close()
    assert process.pid is None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_process_ends_with_its_owner() -> None:
    owner = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import time; from pipeline.jail import DecoderProcess\n"
            "from schemas.recipe import DecodeLimits\n"
            "p = DecoderProcess(DecodeLimits()); p._ensure()\n"
            "print(p.pid, flush=True); time.sleep(60)",
        ],
        stdout=subprocess.PIPE,
        cwd=Path(jail.__file__).parents[1],
    )
    with owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        owner.kill()
    deadline = time.monotonic() + 20
    while _is_running(pid):
        assert time.monotonic() < deadline, "the decoder process outlives its owner"
        time.sleep(0.05)


def _is_running(pid: int) -> bool:
    try:
        # A zombie has ended; whoever adopted it may be slow to bury it.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_the_process_does_not_see_the_owners_secrets(
    plain_clip: Clip, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUD_TOKEN", "hush")
    with DecoderProcess(PATIENT) as process:
        probe(plain_clip.path, process)
        environment = Path(f"/proc/{process.pid}/environ").read_bytes()
    assert b"OMP_NUM_THREADS=1" in environment
    assert b"hush" not in environment


# Limits


@pytest.mark.parametrize("size", [8000, 7500])
def test_a_picture_that_needs_too_much_memory(size: int, tmp_path: Path, plain_clip: Clip) -> None:
    bomb = gif_of_any_size(tmp_path / "bomb.gif", width=size, height=size)
    with DecoderProcess(DecodeLimits(memory_bytes=512 * MEBIBYTE)) as process:
        with pytest.raises(VideoError) as caught:
            decode(bomb, process)
        assert caught.value.reason == "out_of_memory"
        assert_usable(process, plain_clip)


def test_the_same_picture_within_the_limit(tmp_path: Path, process: DecoderProcess) -> None:
    dot = gif_of_any_size(tmp_path / "dot.gif", width=500, height=500)
    assert decode(dot, process)[1].num_frames_decoded == 1


def test_a_picture_beyond_all_sizes_is_never_made(tmp_path: Path, process: DecoderProcess) -> None:
    bomb = gif_of_any_size(tmp_path / "bomb.gif", width=65535, height=65535)
    assert set(ask_in_every_way(bomb, process)) == {"too_many_pixels"}


def test_too_many_pixels(process: DecoderProcess, plain_clip: Clip) -> None:
    pixels = plain_clip.width * plain_clip.height
    reasons = ask_in_every_way(plain_clip.path, process, max_pixels=pixels - 1)
    assert list(reasons) == ["too_many_pixels"] * 4
    exact = recipe_at(max_pixels=pixels)
    assert probe(plain_clip.path, process, recipe=exact).num_packets == len(plain_clip.times)
    for order in ORDERS:
        assert len(decode(plain_clip.path, process, recipe=exact, order=order)[0]) == 2


def test_pictures_that_grow_beyond_the_limit_in_mid_video(
    clips: ClipShelf, process: DecoderProcess
) -> None:
    """The header promises little; what comes later is refused or lost, and never decoded."""
    path = clips["growing_pictures.ts"].path
    shown = 0
    try:
        for given in start(path, process, recipe=recipe_at(2.0, max_pixels=96 * 64)).clips():
            if isinstance(given, ClipFrames):
                shown += given.num_frames
            else:
                assert given.num_frames_decoded <= 50
                assert given.corrupt
    except VideoError as error:
        assert error.reason == "too_many_pixels"
    assert shown <= 4


def test_too_long(process: DecoderProcess, clips: ClipShelf) -> None:
    path = clips["starts_at_10s.mp4"].path
    reasons = ask_in_every_way(path, process, max_duration_seconds=4.9)
    assert list(reasons) == ["too_long"] * 4
    enough = recipe_at(max_duration_seconds=5.1)  # not of the start at 10 s
    assert probe(path, process, recipe=enough)
    for order in ORDERS:
        assert decode(path, process, recipe=enough, order=order)


# Files that are not what they seem

HLS = "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:5,\nfile://{path}\n#EXT-X-ENDLIST\n"
HLS_RELATIVE = "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:5,\n{name}\n#EXT-X-ENDLIST\n"
HLS_REMOTE = "#EXTM3U\n#EXTINF:5,\nhttp://127.0.0.1:9/a.ts\n#EXT-X-ENDLIST\n"
CONCAT = "ffconcat version 1.0\nfile '{path}'\n"
CONCAT_RELATIVE = "ffconcat version 1.0\nfile {name}\n"
DASH = (
    '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static">'
    '<Period duration="PT5S"><AdaptationSet mimeType="video/mp4"><Representation id="1"'
    ' bandwidth="1"><BaseURL>{name}</BaseURL></Representation></AdaptationSet></Period></MPD>'
)
SDP = "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n"
META = ";FFMETADATA1\ntitle=x\n"


@pytest.mark.parametrize("name", ["list.mp4", "list.m3u8", "list.ts", "list.txt", "list.mpd"])
@pytest.mark.parametrize(
    "text", [HLS, HLS_RELATIVE, HLS_REMOTE, CONCAT, CONCAT_RELATIVE, DASH, SDP, META]
)
def test_a_list_never_reads_another_file(
    text: str, name: str, tmp_path: Path, plain_clip: Clip, process: DecoderProcess
) -> None:
    beside = tmp_path / "beside.mp4"
    beside.write_bytes(plain_clip.path.read_bytes())
    trap = tmp_path / name
    trap.write_text(text.format(path=beside, name=beside.name))
    assert set(ask_in_every_way(trap, process)) <= {"refused_format", "not_a_video"}
    assert decode(beside, process)[1].num_frames_decoded == len(plain_clip.times)


def test_a_list_is_refused_as_such(
    tmp_path: Path, plain_clip: Clip, process: DecoderProcess
) -> None:
    for name, text in (("list.m3u8", HLS), ("list.mp4", CONCAT), ("list.mp4", SDP)):
        trap = tmp_path / name
        trap.write_text(text.format(path=plain_clip.path))
        with pytest.raises(VideoError) as caught:
            probe(trap, process)
        assert caught.value.reason == "refused_format"


def test_a_pattern_never_reads_an_image_sequence(tmp_path: Path, process: DecoderProcess) -> None:
    from PIL import Image

    for number in range(3):
        Image.new("RGB", (64, 64)).save(tmp_path / f"picture{number}.png")
        Image.new("RGB", (64, 64)).save(tmp_path / f"picture{number}.jpg")
    for pattern in ("picture%d.png", "picture*.jpg", "picture%01d.jpg"):
        with pytest.raises(VideoError) as caught:
            decode(tmp_path / pattern, process)
        assert caught.value.reason in ("not_found", "refused_format")
    (tmp_path / "picture%d.png").write_bytes((tmp_path / "picture0.png").read_bytes())
    with pytest.raises(VideoError) as caught:
        decode(tmp_path / "picture%d.png", process)
    assert caught.value.reason in ("refused_format", "not_a_video")


@pytest.mark.parametrize(
    "name",
    [
        "clip%d.mp4",
        "concat:a.mp4|b.mp4",
        "http:example.mp4",
        "pipe:0",
        "subfile,,start,9,end,99,,:x.mp4",
        "-i.mp4",
        "?*[a].mp4",
        "line\nbreak.mp4",
        "data:video;base64,AAAA",
        "no_extension",
        "picture.png",
    ],
)
def test_a_name_is_only_a_name(
    name: str, tmp_path: Path, plain_clip: Clip, process: DecoderProcess
) -> None:
    path = tmp_path / name
    path.write_bytes(plain_clip.path.read_bytes())
    assert probe(path, process).num_packets == len(plain_clip.times)
    assert decode(path, process)[1].num_frames_decoded == len(plain_clip.times)


def test_a_relative_name_is_only_a_name(
    tmp_path: Path, plain_clip: Clip, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with DecoderProcess(PATIENT) as process:
        for name in ("concat:a.mp4", "http:example.mp4", "pipe:0", "-i.mp4"):
            Path(name).write_bytes(plain_clip.path.read_bytes())
            assert probe(Path(name), process).num_packets == len(plain_clip.times)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty_file"),
        (b"\0" * 5000, "not_a_video"),
        (b"just text\n" * 50, "not_a_video"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'><image href='a.png'/></svg>", "refused_format"),
        (bytes(range(256)) * 40, "not_a_video"),
    ],
)
def test_other_data(data: bytes, reason: str, tmp_path: Path, process: DecoderProcess) -> None:
    path = tmp_path / "data.mp4"
    path.write_bytes(data)
    with pytest.raises(VideoError) as caught:
        probe(path, process)
    assert caught.value.reason == reason
    assert str(tmp_path) not in caught.value.detail  # it is in the reject's uri


def test_no_file_and_no_regular_file(tmp_path: Path, process: DecoderProcess) -> None:
    for path, reason in ((tmp_path / "none.mp4", "not_found"), (tmp_path, "unreadable")):
        source = Source(uri=str(path))
        reject = probe_source(source, limits=PATIENT, process=process).reject
        assert reject is not None
        assert (reject.reason, reject.stage) == (reason, "probe")
        assert reject.retryable


@pytest.mark.parametrize("seed", range(12))
def test_damaged_bytes_cost_at_most_the_video(
    seed: int, tmp_path: Path, clips: ClipShelf, process: DecoderProcess
) -> None:
    import random

    chance = random.Random(seed)
    names = ["b_frames.mp4", "odd_size.webm", "starts_at_10s.ts", "29.97.mkv"]
    source = clips[names[seed % len(names)]]
    data = bytearray(source.path.read_bytes())
    for _ in range(chance.choice([3, 30, 300])):
        data[chance.randrange(len(data))] = chance.randrange(256)
    path = tmp_path / source.path.name
    path.write_bytes(data)
    # A damaged time may claim a day of one picture.
    recipe = recipe_at(max_duration_seconds=600)
    for ask in (probe, decode):
        try:
            assert ask(path, process, recipe=recipe)
        except VideoError as error:
            assert error.reason in REASONS
    assert_usable(process, clips["25.mp4"])
