"""Files that mean harm, and decoder processes that have been taken over: each costs one video.

Each case is probed, decoded in every order, and built beside a good video, which must be cached.
"""

from __future__ import annotations

import itertools
import json
import shutil
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import av
import pytest

from pipeline import jail
from pipeline.cache import open_cache
from pipeline.cli import call
from pipeline.encoding import StreamEncoders, stamp_streams
from pipeline.jail import DecoderProcess
from pipeline.layout import CacheLayout
from pipeline.planning import estimate_clip_bytes, extend_plan
from pipeline.pool import DecoderPool
from pipeline.probing import probe_source
from pipeline.sharding import BuildTools, build_shard
from schemas.errors import VideoError
from schemas.recipe import Recipe
from schemas.sidecar import Sidecar
from schemas.video import Source
from tests import hostile_files
from tests.asking import ORDERS, assert_usable, decode, probe, recipe_at
from tests.clips import Clip, gif_of_any_size, read_frame_number

GOOD = "good.mp4"


@pytest.fixture(scope="module")
def process() -> Iterator[DecoderProcess]:
    with DecoderProcess(recipe_at().limits) as process:
        yield process


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """Listens on the loopback; whoever connects stays in its queue, also when gone again."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def was_contacted(server: socket.socket) -> bool:
    try:
        connection, _ = server.accept()
    except BlockingIOError:
        return False
    connection.close()
    return True


def rejects(path: Path, process: DecoderProcess) -> set[str]:
    """The reasons for which a file is rejected: probed, and decoded in every order."""
    reasons = set()
    for order in (None, *ORDERS):
        try:
            if order is None:
                probe(path, process)
            elif not decode(path, process, order=order)[0]:
                reasons.add("no_frames")
        except VideoError as error:
            reasons.add(error.reason)
    return reasons


def build(paths: list[Path], cache: Path, *, recipe: Recipe, num_processes: int = 1) -> Sidecar:
    """One shard of some files. VideoError: of a probe."""
    with DecoderPool(recipe.limits, num_processes=num_processes) as pool:
        probes = [
            probe_source(Source(uri=str(path)), limits=recipe.limits, process=pool.processes[0])
            for path in paths
        ]
        for one in probes:
            if one.reject is not None:
                raise VideoError(one.reject.reason, one.reject.detail)
        clip_bytes = estimate_clip_bytes(recipe, stamp_streams(recipe))
        [spec] = extend_plan(
            probes,
            recipe=recipe,
            recipe_fingerprint=recipe.fingerprint(stamp_streams(recipe)),
            clip_bytes=clip_bytes,
            existing=[],
        )
        layout = CacheLayout(cache)
        encoders = StreamEncoders(recipe)
        return build_shard(
            spec, tools=BuildTools(recipe=recipe, layout=layout, encoders=encoders, pool=pool)
        )


# Pictures and durations beyond all sizes

Maker = Callable[[Path], None]
CLAIMS: dict[str, tuple[Maker, set[str]]] = {
    "header.mp4": (hostile_files.huge_in_header, {"too_many_pixels"}),
    "codec.mp4": (hostile_files.huge_in_codec, {"too_many_pixels"}),
    "huge.gif": (hostile_files.huge_gif, {"too_many_pixels"}),
    "png.mov": (hostile_files.huge_png_in_mov, {"too_many_pixels"}),
    "vp9.webm": (hostile_files.huge_vp9, {"too_many_pixels"}),
    "stts.mp4": (hostile_files.billion_in_stts, set()),
    "samples.mp4": (hostile_files.billion_samples, {"no_frames"}),
    "many_samples.mp4": (partial(hostile_files.billion_samples, count=10**6), {"no_frames"}),
    "endless.mkv": (hostile_files.endless_mkv, set()),
    "endless.avi": (hostile_files.endless_avi, set()),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_a_file_that_claims_too_much(
    name: str, tmp_path: Path, plain_clip: Clip, process: DecoderProcess
) -> None:
    """What is there counts: a claim takes neither memory nor time, and the frames are decoded."""
    make, reasons = CLAIMS[name]
    path = tmp_path / name
    make(path)
    assert_usable(process, plain_clip)
    pid, before = process.pid, _peak_bytes(process)
    assert rejects(path, process) == reasons
    assert process.pid == pid
    assert _peak_bytes(process) < before + 300e6
    if not reasons:
        recipe = recipe_at(25.0)
        for order in ORDERS:
            clips, outcome = decode(path, process, recipe=recipe, order=order)
            numbers = [
                read_frame_number(picture)
                for clip in clips
                for picture in clip.frames["image"][: clip.num_frames]
            ]
            assert numbers == list(range(25))
            assert not outcome.corrupt
    assert_usable(process, plain_clip)
    assert process.pid == pid


def _peak_bytes(process: DecoderProcess) -> int:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def test_a_huge_picture_is_said_to_be_so(tmp_path: Path, process: DecoderProcess) -> None:
    hostile_files.huge_in_header(tmp_path / "a.mp4")
    with pytest.raises(VideoError) as caught:
        probe(tmp_path / "a.mp4", process)
    assert caught.value.detail == "30000 x 30000 is more than 67108864 pixels"


def test_a_huge_picture_is_not_blamed_on_another_video(
    tmp_path: Path, plain_clip: Clip, process: DecoderProcess
) -> None:
    """libav says the same of one video several times, and PyAV holds repetitions back."""
    sides = (65535, 30_000, 65535, 65535, 40_000, 30_000)
    for side, order in itertools.product(sides, ORDERS):
        path = gif_of_any_size(tmp_path / "a.gif", width=side, height=side, num_frames=2)
        for ask in (probe, partial(decode, order=order)):
            with pytest.raises(VideoError) as caught:
                ask(path, process)
            assert caught.value.detail == f"{side} x {side} is more than 67108864 pixels"
    assert_usable(process, plain_clip)


# Files that point at others


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A good video that no other file may show."""
    path = tmp_path / "other" / "other.mov"
    path.parent.mkdir()
    path.write_bytes(hostile_files.small_mp4(path, suffix="mov"))
    return path


@pytest.mark.parametrize("absolute", [False, True])
def test_a_mov_never_reads_the_file_that_it_refers_to(
    absolute: bool, other: Path, plain_clip: Clip, process: DecoderProcess
) -> None:
    path = other.with_name("trap.mov")
    hostile_files.refers_by_alias(path, other, absolute=absolute)
    # The trap works: who follows such references gets the other file's pictures.
    options = {"enable_drefs": "1", "use_absolute_path": "1"}
    with av.open(str(path), options=options) as trusting:
        numbers = [read_frame_number(f.to_ndarray(format="gray")) for f in trusting.decode(video=0)]
    assert numbers == list(range(25))
    assert rejects(path, process) == {"no_frames"}
    assert_usable(process, plain_clip)


@pytest.mark.parametrize("scheme", ["file", "http", "tcp"])
def test_a_mov_never_reads_the_url_that_it_refers_to(
    scheme: str, other: Path, server: socket.socket, plain_clip: Clip, process: DecoderProcess
) -> None:
    path = other.with_name("trap.mov")
    host = f"127.0.0.1:{server.getsockname()[1]}"
    url = f"file://{other}" if scheme == "file" else f"{scheme}://{host}/other.mov"
    hostile_files.refers_by_url(path, url)
    assert rejects(path, process) == {"no_frames"}
    assert not was_contacted(server)
    assert_usable(process, plain_clip)


def test_a_matroska_file_never_reads_the_segments_that_it_is_linked_to(
    other: Path, process: DecoderProcess
) -> None:
    """It is a whole video itself, and is read as such."""
    path = other.with_name("linked.mkv")
    hostile_files.linked_mkv(path, other)
    other.unlink()
    assert probe(path, process).num_packets == 25
    for order in ORDERS:
        clips, outcome = decode(path, process, recipe=recipe_at(25.0), order=order)
        assert sum(clip.num_frames for clip in clips) == 25
        assert not outcome.corrupt


HLS = "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:5,\n{url}\n#EXT-X-ENDLIST\n"
DASH = (
    '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static">'
    '<Period duration="PT5S"><AdaptationSet mimeType="video/mp4"><Representation id="1"'
    ' bandwidth="1"><BaseURL>{url}</BaseURL></Representation></AdaptationSet></Period></MPD>'
)
CONCAT = "ffconcat version 1.0\nfile '{url}'\n"


@pytest.mark.parametrize("name", ["list.mp4", "list.m3u8", "list.mpd"])
@pytest.mark.parametrize("text", [HLS, DASH, CONCAT])
def test_a_list_never_contacts_a_server(
    text: str,
    name: str,
    server: socket.socket,
    tmp_path: Path,
    plain_clip: Clip,
    process: DecoderProcess,
) -> None:
    path = tmp_path / name
    path.write_text(text.format(url=f"http://127.0.0.1:{server.getsockname()[1]}/a.ts"))
    assert rejects(path, process) <= {"refused_format", "not_a_video"}
    assert not was_contacted(server)
    assert_usable(process, plain_clip)


def test_a_server_that_is_contacted_shows(server: socket.socket) -> None:
    assert not was_contacted(server)
    socket.create_connection(server.getsockname()).close()
    assert was_contacted(server)


def test_a_run_caches_the_good_video_among_hostile_ones(
    server: socket.socket,
    other: Path,
    tmp_path: Path,
    plain_clip: Clip,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, cache = tmp_path / "videos", tmp_path / "cache"
    fine = {name for name, (_, reasons) in CLAIMS.items() if not reasons}
    folder.mkdir()
    shutil.copy(plain_clip.path, folder / GOOD)
    for name, (make, _) in CLAIMS.items():
        make(folder / name)
    url = f"http://127.0.0.1:{server.getsockname()[1]}/a.ts"
    for number, (text, place) in enumerate(
        (t, u) for t in (HLS, DASH, CONCAT) for u in (url, other)
    ):
        (folder / f"list{number}.mp4").write_text(text.format(url=place))
    hostile_files.refers_by_alias(folder / "alias.mov", other, absolute=True)
    hostile_files.refers_by_url(folder / "url.mov", url)
    (folder / "picture%d.mp4").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    (folder / "subfile,,start,0,end,9,,:x.mp4").write_text("x")
    (folder / "concat:a|b.mp4").write_text("x")
    assert call(["run", str(folder), str(cache), "--recipe", "tiny", "--max-reject-rate", "1"]) == 0
    assert not was_contacted(server)
    capsys.readouterr()
    assert call(["rejects", str(cache), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    reasons = {Path(row["uri"]).name: row["reason"] for row in listed}
    assert reasons.keys() | {GOOD, *fine} == {path.name for path in folder.iterdir()}
    for name, (_, expected) in CLAIMS.items():
        assert {reasons.get(name)} - {None} == expected
    assert (reasons["alias.mov"], reasons["url.mov"]) == ("no_frames", "no_frames")
    cached = {clip.info["source_name"] for clip in open_cache(cache)}
    assert cached == {GOOD, *fine}


# Decoder processes that have been taken over

TAKEN_OVER = """
import ctypes, os, re, signal, socket, sys, time
import numpy as np
from pipeline import messages
from pipeline.jailed import __main__ as jailed
from pipeline.jailed import serving
from schemas.errors import VideoError
def act(owner, *_, path, **request):
    {code}
def choose(honest, word):
    def work(owner, *rest, path, **request):
        (act if word in path else honest)(owner, *rest, path=path, **request)
    return work
serving._decode = choose(serving._decode, "bad")
serving._probe = choose(serving._probe, "worse")
jailed.main()
"""
SAMPLE = """k = 0
    shapes = {name: [p["height"], p["width"], 3] for name, p in request["pictures"].items()}
    sides = ("source_width", "source_height", "display_width", "display_height")
    fields = dict(grid_seconds=0.0, start_seconds=0.0, end_seconds=0.0, num_problems=0, slot=0)
    fields |= dict(shape=dict.fromkeys(sides, 1) | {"rotation": 0}, pictures=shapes)
    """
MISDEEDS = {
    "segmentation fault": (
        "signal.signal(11, signal.SIG_DFL); ctypes.string_at(0)",
        "crashed",
        "signal SIGSEGV",
    ),
    "abort": ("os.abort()", "crashed", "signal SIGABRT"),
    "exit": ("os._exit(3)", "crashed", "exit code 3"),
    "last words": (
        "sys.stderr.write('assertion x failed'); sys.stderr.flush(); os._exit(3)",
        "crashed",
        "exit code 3: assertion x failed",
    ),
    "python spins": ("while True: pass", "timed_out", "no progress within 2 s"),
    "native code spins": (
        "re.match('(a*)*b', 'a' * 60)",
        "timed_out",
        "no progress within 2 s",
    ),
    "eats memory": (
        "held = [np.empty(2**24, np.uint8) for _ in range(10**6)]",  # untouched: takes no time
        "out_of_memory",
        "limits.memory_bytes",
    ),
    "maps memory": (
        "ctypes.CDLL(None).malloc.restype = ctypes.c_void_p\n"
        "    libc = ctypes.CDLL(None)\n"
        "    while libc.malloc(ctypes.c_size_t(2**24)): pass\n"
        "    raise MemoryError",
        "out_of_memory",
        "limits.memory_bytes",
    ),
    "lives for ever": ("while True: owner.answer('alive')", "timed_out", "more than 3 s"),
    "noise on its pipe": ("os.write(owner._out_fd, b'x' * 1000)", "crashed", "claims"),
    "prints": ("os.write(1, b'x' * 1000); os._exit(3)", "crashed", "exit code 3: xxx"),
    "half a message": (
        "os.write(owner._out_fd, messages.HEADER.pack(100, 0)); os._exit(0)",
        "crashed",
        "exit code 0",
    ),
    "closes its pipes": ("os.close(owner._out_fd); os._exit(0)", "crashed", "exit code 0"),
    "deep answer": (
        "os.write(owner._out_fd, messages.HEADER.pack(50000, 0) + b'[' * 50000)",
        "crashed",
        "not JSON",
    ),
    "claims to be read again": (
        "owner.answer('start_again', order='selected', why='')",
        "crashed",
        "nonsense",
    ),
}


@pytest.fixture
def take_over(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def take_over(code: str) -> None:
        monkeypatch.setattr(jail, "CHILD", ("-P", "-c", TAKEN_OVER.replace("{code}", code)))

    return take_over


@pytest.fixture
def strict() -> Recipe:
    return recipe_at(
        stall_seconds=2.0, base_seconds=3.0, factor=0.0, memory_bytes=1024 * 1024 * 1024
    )


@pytest.mark.parametrize("name", MISDEEDS)
def test_what_a_process_does_costs_the_video_in_hand(
    name: str,
    take_over: Callable[[str], None],
    strict: Recipe,
    tmp_path: Path,
    plain_clip: Clip,
) -> None:
    code, reason, detail = MISDEEDS[name]
    take_over(code)
    good, bad, worse = (tmp_path / f"{kind}.mp4" for kind in ("good", "bad", "worse"))
    for path in (good, bad, worse):
        path.write_bytes(plain_clip.path.read_bytes() + path.name.encode())
    with DecoderProcess(strict.limits) as process:
        for ask in (probe, decode):
            path = worse if ask is probe else bad
            with pytest.raises(VideoError) as caught:
                ask(path, process, recipe=strict)
            assert caught.value.reason == reason
            if name != "claims to be read again":
                assert detail in caught.value.detail
            assert probe(good, process).num_packets == len(plain_clip.times)
            assert_usable(process, plain_clip)
    sidecar = build([bad, good], tmp_path / "cache", recipe=strict)
    assert {reject.uri: reject.reason for reject in sidecar.rejects} == {str(bad): reason}
    assert {entry.video_id for entry in sidecar.samples} == {sidecar.videos[0].video_id}
    assert sidecar.videos[0].num_clips == 2


FLOODS = {
    "samples without end": ("while True: {sample}; k += 1", "it reads no more"),
    "samples without pictures": (
        "{sample}; fields['slot'] = None\n    while True: k += 1; {sample}",
        "nonsense: more samples than 4002",
    ),
    "the same sample": ("while True: {sample}", "nonsense: sample 0 and not 1"),
}


@pytest.mark.parametrize("name", FLOODS)
def test_a_process_that_answers_for_ever(
    name: str, take_over: Callable[[str], None], tmp_path: Path, plain_clip: Clip
) -> None:
    """It never reads either: slots that are given back must not stop the owner."""
    code, detail = FLOODS[name]
    take_over(SAMPLE + code.format(sample='owner.answer("sample", k=k, **fields)'))
    recipe = Recipe.load(
        "tiny",
        overrides=[
            "preview.enabled=false",
            "limits.stall_seconds=1",
            "limits.base_seconds=3",
            "limits.factor=0",
            "limits.max_duration_seconds=2000",
        ],
    )
    bad = tmp_path / "bad.mp4"
    bad.write_bytes(plain_clip.path.read_bytes())
    with DecoderProcess(recipe.limits) as process:
        with pytest.raises(VideoError) as caught:
            decode(bad, process, recipe=recipe)
        assert caught.value.reason == "crashed"
        assert detail in caught.value.detail
        assert_usable(process, plain_clip)


def test_a_process_can_do_nothing_but_read_and_answer(
    take_over: Callable[[str], None], tmp_path: Path, plain_clip: Clip
) -> None:
    target = tmp_path / "target"
    target.write_text("whole")
    tries = {
        "socket": "socket.socket()",
        "socket pair": "socket.socketpair()",
        "fork": "os.fork()",
        "program": "os.posix_spawn('/bin/true', ['true'], {})",
        "other program": "os.execv('/bin/true', ['true'])",
        "new file": f"open({str(tmp_path / 'new')!r}, 'w')",
        "changed file": f"open({str(target)!r}, 'r+')",
        "appended file": f"open({str(target)!r}, 'a')",
        "shorter file": f"os.truncate({str(target)!r}, 0)",
        "no file": f"os.unlink({str(target)!r})",
        "moved file": f"os.rename({str(target)!r}, {str(target)!r} + '2')",
        "folder": f"os.mkdir({str(tmp_path / 'folder')!r})",
        "link": f"os.symlink('x', {str(tmp_path / 'link')!r})",
        "mode": f"os.chmod({str(target)!r}, 0o777)",
        "signal": "os.kill(os.getppid(), 0)",
        "limits": "__import__('resource').prlimit(os.getppid(), 4, (0, 0))",
    }
    lines = ["done = []"]
    for name, code in tries.items():
        lines += [f"try: {code}; done.append({name!r})", "except PermissionError: pass"]
    lines += [f"open({str(target)!r}).read()", "raise VideoError('unreadable', repr(done))"]
    take_over("\n    ".join(lines))
    bad = tmp_path / "bad.mp4"
    bad.write_bytes(plain_clip.path.read_bytes())
    with DecoderProcess(recipe_at().limits) as process:
        assert_usable(process, plain_clip)
        if process.unfiltered:
            pytest.skip(f"no filter on this machine: {process.unfiltered}")
        with pytest.raises(VideoError) as caught:
            decode(bad, process)
        assert (caught.value.reason, caught.value.detail) == ("unreadable", "[]")
        assert_usable(process, plain_clip)
    assert target.read_text() == "whole"


# What libav says


def test_a_reject_says_what_libav_said(
    tmp_path: Path, plain_clip: Clip, process: DecoderProcess
) -> None:
    """The same words every time, once, without the path and without addresses."""
    path = tmp_path / "cut.mp4"
    path.write_bytes(plain_clip.path.read_bytes()[:1000])
    details = set()
    for _ in range(2):
        with pytest.raises(VideoError) as caught:
            probe(path, process)
        details.add(caught.value.detail)
        assert_usable(process, plain_clip)
    with DecoderProcess(recipe_at().limits) as another, pytest.raises(VideoError) as caught:
        probe(path, another)
    details.add(caught.value.detail)
    assert details == {"Invalid data found when processing input: moov atom not found"}


def test_a_video_is_not_blamed_for_what_libav_said_of_another(
    tmp_path: Path, plain_clip: Clip, process: DecoderProcess
) -> None:
    bad = tmp_path / "bad.mp4"
    bad.write_bytes(plain_clip.path.read_bytes()[:1000])
    with pytest.raises(VideoError):
        probe(bad, process)
    assert decode(plain_clip.path, process)[1].complaint == ""


def test_frames_that_do_not_decode_are_explained(
    other: Path, tmp_path: Path, plain_clip: Clip
) -> None:
    path = tmp_path / "zeros.mov"
    hostile_files.refers_by_url(path, "file:///nowhere.mov")
    sidecar = build([path, plain_clip.path], tmp_path / "cache", recipe=recipe_at())
    [reject] = sidecar.rejects
    assert reject.reason == "no_frames"
    words = "h264: Error splitting the input into NAL units."
    assert reject.detail == f"25 packets failed to decode; {words}"
