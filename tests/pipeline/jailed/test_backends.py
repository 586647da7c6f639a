"""Other decoders: the frame on display at its own time, or a reason to leave it to PyAV."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from pipeline.cli import cli
from pipeline.decoding import ClipFrames, DecodeOutcome, Decoding, Order, StartAgain
from pipeline.encoding import StreamEncoders, stamp_streams
from pipeline.jail import DecoderProcess
from pipeline.jailed import ffmpeg_frames
from pipeline.jailed.backends import check_times
from pipeline.jailed.scheduling import NotSelectable
from pipeline.layout import CacheLayout
from pipeline.planning import cut_pieces, estimate_clip_bytes, extend_plan
from pipeline.pool import DecoderPool
from pipeline.probing import probe_source
from pipeline.sharding import BuildTools, build_shard
from schemas.errors import SourceError, VideoError
from schemas.recipe import Recipe
from schemas.resize import PictureSpec
from schemas.sidecar import Sidecar
from schemas.video import Source
from tests.clips import MAKERS, Clip, ClipShelf, read_frame_number, run_ffmpeg

TINY = Recipe.load("tiny")
BACKENDS = ["ffmpeg", "decord"]
FALLS_BACK = {
    ("decord", "audio_comes_and_goes.ts"): "damaged packets",
    ("ffmpeg", "audio_comes_and_goes.ts"): "damaged packets",
    ("decord", "growing_pictures.ts"): "damaged packets",
    ("ffmpeg", "growing_pictures.ts"): "damaged packets",
    ("decord", "starts_at_10s.ts"): "decord is not trusted with mpegts",
    ("decord", "edit_list.mp4"): "decord has 101 frames where the packets have 95",
}
WHOLE = sorted(set(MAKERS) - {"truncated.mp4", "truncated.mkv", "goes_back.ts"})

needs_decord = pytest.mark.skipif(
    importlib.util.find_spec("decord") is None, reason="decord is an optional extra"
)
backends = pytest.mark.parametrize(
    "backend", ["ffmpeg", pytest.param("decord", marks=needs_decord)]
)


@pytest.fixture(scope="module")
def process() -> Iterator[DecoderProcess]:
    with DecoderProcess(TINY.limits, allow_programs=True) as process:
        yield process


def decode(
    path: Path, process: DecoderProcess, *, order: Order
) -> tuple[list[ClipFrames], DecodeOutcome]:
    probe = probe_source(Source(uri=str(path)), limits=TINY.limits, process=process)
    [piece] = cut_pieces(probe, TINY, shard_clips=10**6, clip_bytes=1)
    decoding = Decoding(
        piece,
        path=str(path),
        recipe=TINY,
        pictures={"image": PictureSpec(width=64, height=64)},
        processes=[process],
        order=order,
    )
    *clips, outcome = decoding.clips()
    assert isinstance(outcome, DecodeOutcome)
    return [clip for clip in clips if isinstance(clip, ClipFrames)], outcome


@backends
@pytest.mark.parametrize("name", WHOLE)
def test_the_same_frames_at_the_same_times(
    name: str, backend: Order, clips: ClipShelf, process: DecoderProcess
) -> None:
    clip = clips[name]
    if (backend, name) in FALLS_BACK:
        with pytest.raises(StartAgain) as caught:
            decode(clip.path, process, order=backend)
        assert (caught.value.order, caught.value.why) == ("selected", FALLS_BACK[backend, name])
        return
    decoded, _ = decode(clip.path, process, order=backend)
    shown = clip.displayed(Fraction(2))
    numbers = [
        read_frame_number(picture)
        for part in decoded
        for picture in part.frames["image"][: part.num_frames]
    ]
    assert numbers == [clip.numbers[index] for index in shown]
    ranges = np.concatenate([part.times[: part.num_frames] for part in decoded])
    expected = np.array([clip.display_range(index) for index in shown])
    np.testing.assert_allclose(ranges, expected, rtol=0, atol=2e-6)


def test_times_have_to_agree() -> None:
    times = np.array([0.0, 0.04, 0.08])
    check_times(times + 1e-3, times, what="it")
    for other, why in ((times[:2], "2 frames where"), (times + 0.04, "other times")):
        with pytest.raises(NotSelectable, match=why):
            check_times(other, times, what="it")


@backends
def test_corpus_files_agree_or_fall_back(
    backend: Order, corpus_dir: Path, process: DecoderProcess
) -> None:
    """Those of decode.md that fool decord, and ordinary ones."""
    fallen: dict[str, str] = {}
    for name in (
        "bikes.mp4",
        "editlist_trim_copy.mp4",
        "start_at_10s.mp4",
        "bipbop0.ts",
        "negative_start.ts",
        "no_duration.webm",
        "av1_video.mkv",
        "video_90.mov",
        "h265_10bits.mp4",
        "fixture.mxf",
    ):
        path = corpus_dir / name
        record, _ = decode(path, process, order="all")
        try:
            found, _ = decode(path, process, order=backend)
        except StartAgain as again:
            fallen[name] = again.why
            continue
        assert len(found) == len(record)
        for one, other in zip(found, record, strict=True):
            assert np.array_equal(one.times, other.times)
            difference = one.frames["image"].astype(int) - other.frames["image"]
            assert np.abs(difference).mean() < 4, name
    if backend == "ffmpeg":
        assert fallen == {}
    else:
        assert fallen.pop("editlist_trim_copy.mp4") == (
            "decord has 220 frames where the packets have 217"
        )
        not_tried = {"bipbop0.ts", "negative_start.ts", "fixture.mxf"}
        assert set(fallen) - {"no_duration.webm"} == not_tried


def test_a_decoder_that_is_not_installed_is_left_out(
    plain_clip: Clip, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline.jailed.decord_frames import read_frames

    monkeypatch.setitem(sys.modules, "decord", None)
    wanted = ffmpeg_frames.WantedFrames(
        container="mov",
        stream_index=0,
        is_only_stream=True,
        seconds=np.zeros(1),
        ranks=np.zeros(1, np.int64),
        max_pixels=1,
    )
    with pytest.raises(NotSelectable, match="not installed"):
        next(read_frames(str(plain_clip.path), wanted, alive=lambda: None))


def test_a_choice_of_many_frames_stays_a_short_expression() -> None:
    wanted = ffmpeg_frames.WantedFrames(
        container="mov",
        stream_index=0,
        is_only_stream=True,
        seconds=np.arange(10**6) / 30,
        ranks=np.arange(0, 10**6, 10**6 // ffmpeg_frames.MAX_FRAMES, dtype=np.int64),
        max_pixels=1,
    )
    command = ffmpeg_frames.ffmpeg_command("video.mp4", wanted)
    assert max(map(len, command)) < 128 * 1024  # what Linux takes for one argument


def build(path: Path, root: Path, *, backend: str) -> Sidecar:
    recipe = Recipe.load("tiny", overrides=[f"decode.backend={backend}"])
    with DecoderPool(recipe.limits, num_processes=2, allow_programs=True) as pool:
        tools = BuildTools(
            recipe=recipe,
            layout=CacheLayout(root),
            encoders=StreamEncoders(recipe),
            pool=pool,
        )
        source = Source(uri=str(path))
        probe = probe_source(source, limits=recipe.limits, process=pool.processes[0])
        [spec] = extend_plan(
            [probe],
            recipe=recipe,
            recipe_fingerprint=recipe.fingerprint(stamp_streams(recipe)),
            clip_bytes=estimate_clip_bytes(recipe, stamp_streams(recipe)),
            existing=[],
        )
        return build_shard(spec, tools=tools)


@backends
def test_the_decoder_used_is_in_the_sample(backend: str, clips: ClipShelf, tmp_path: Path) -> None:
    import tarfile

    for name, decoder in (("25.mp4", backend), ("starts_at_10s.ts", None)):
        root = tmp_path / name
        sidecar = build(clips[name].path, root, backend=backend)
        used = decoder or ("ffmpeg" if backend == "ffmpeg" else "pyav")
        [video] = sidecar.videos
        assert video.order == (used if used != "pyav" else "selected")
        with tarfile.open(root / "shards" / f"{sidecar.name}.tar") as tar:
            infos = [
                json.load(tar.extractfile(member))  # type: ignore[arg-type]
                for member in tar
                if member.name.endswith(".json")
            ]
        assert {info["decoder"] for info in infos} == {used}


@backends
@pytest.mark.parametrize("reason", ["timed_out", "crashed", "out_of_memory"])
def test_another_decoders_failure_is_not_the_videos(
    reason: str,
    backend: str,
    plain_clip: Clip,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clips_of = Decoding.clips

    def fail(self: Decoding) -> Any:
        if self._order == backend:
            raise VideoError(reason, "as told")
        yield from clips_of(self)

    monkeypatch.setattr(Decoding, "clips", fail)
    sidecar = build(plain_clip.path, tmp_path, backend=backend)
    assert [(v.order, v.why) for v in sidecar.videos] == [("selected", f"{backend} {reason}")]


def test_doctor_says_that_a_file_does_not_decode(plain_clip: Clip, tmp_path: Path) -> None:
    content = plain_clip.path.read_bytes()
    start = content.index(b"mdat") + 4
    stop = max(content.find(b"moov", start) - 4, start)  # where it is ahead, to the end
    stop = stop if stop > start else len(content)
    damaged = tmp_path / "damaged.mp4"
    damaged.write_bytes(content[:start] + bytes(stop - start) + content[stop:])
    path = str(damaged)
    result = CliRunner().invoke(cli, ["doctor", "--decode", path, "--json"], standalone_mode=False)
    found = json.loads(result.output)
    assert not found["ok"]
    assert found["decoders"][0]["problem"] == "no frame can be decoded"


def test_doctor_compares_the_decoders_on_a_file(plain_clip: Clip) -> None:
    path = str(plain_clip.path)
    result = CliRunner().invoke(cli, ["doctor", "--decode", path, "--json"], standalone_mode=False)
    found = json.loads(result.output)
    assert found["ok"]
    assert found["codec"] == "h264"
    ways = {way["way"]: way for way in found["decoders"]}
    assert list(ways) == ["pyav, all frames", "pyav, selected", "ffmpeg", "decord"]
    record, selected = ways["pyav, all frames"], ways["pyav, selected"]
    assert record["num_samples"] == selected["num_samples"] == ways["ffmpeg"]["num_samples"] == 10
    assert record["num_frames_decoded"] == 125 > selected["num_frames_decoded"]
    assert selected["max_difference"] == 0
    assert [way["num_other_times"] for way in found["decoders"]] == [0, 0, 0, 0]
    assert 0 < ways["ffmpeg"]["mean_difference"] < 4


@needs_decord
def test_decord_is_left_out_where_it_would_choose_another_stream(
    tmp_path: Path, process: DecoderProcess
) -> None:
    path = tmp_path / "two.mp4"
    source = "-f lavfi -i testsrc2=s=96x64:d=2 -f lavfi -i color=red:s=96x64:d=2"
    run_ffmpeg(*f"{source} -map 0 -map 1 -c:v libx264 -pix_fmt yuv420p".split(), path)
    with pytest.raises(StartAgain) as caught:
        decode(path, process, order="decord")
    assert caught.value.why == "decord chooses among video streams by itself"


@needs_decord
@pytest.mark.parametrize("width", [16, 32, 48, 80, 96])
def test_decord_gives_narrow_videos_without_the_padding_of_their_rows(
    width: int, tmp_path: Path, process: DecoderProcess
) -> None:
    path = tmp_path / "narrow.mp4"
    source = f"-f lavfi -i testsrc2=s={width}x64:d=1 -c:v libx264 -pix_fmt yuv420p"
    run_ffmpeg(*source.split(), path)
    decoded, expected = (
        decode(path, process, order=order)[0][0].frames["image"] for order in ("decord", "selected")
    )
    assert np.abs(decoded.astype(int) - expected).mean() < 20  # rows that run on differ by 60


@backends
def test_a_name_that_is_no_text_is_taken_or_left(
    backend: Order, plain_clip: Clip, tmp_path: Path, process: DecoderProcess
) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe.mp4"))
    path.write_bytes(plain_clip.path.read_bytes())
    if backend == "ffmpeg":
        assert len(decode(path, process, order=backend)[0]) == 3
    else:
        with pytest.raises(StartAgain, match="does not open"):
            decode(path, process, order=backend)


@pytest.mark.parametrize("name", ["none.mp4", "empty.mp4", "text.mp4", "."])
def test_doctor_says_what_is_wrong_with_a_file(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "text.mp4").write_text("no video")
    path = str(tmp_path / name)
    with pytest.raises(SourceError) as caught:
        CliRunner().invoke(
            cli, ["doctor", "--decode", path], standalone_mode=False, catch_exceptions=False
        )
    assert path in caught.value.message
    assert caught.value.exit_code == 2
