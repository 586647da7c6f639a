"""Decoding the wanted frames gives what decoding all gives, or says why it cannot. Never else."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import av.error
import numpy as np
import pytest
from av.video.frame import PictureType

from pipeline.jailed import scheduling
from pipeline.jailed.frames import Tally
from pipeline.jailed.packets import PacketTable, read_packet_table
from pipeline.jailed.rereading import PacketReader
from pipeline.jailed.scheduling import NotSelectable
from pipeline.jailed.selecting import FrameSelector, skips_disposable
from pipeline.sampling import Window
from schemas.errors import VideoError
from tests.orders import (
    Reference,
    Samples,
    assert_same,
    assert_same_when_read_again,
    reading_again,
    select,
    select_or_why,
)
from tests.structures import DAMAGED, WHOLE, StructureShelf

RATES = (0.5, 2.0, 5.0, 25.0)
NO_ENTRY = "a run does not begin with its key frame"
DOES_NOT_DECODE = "a packet does not decode"
MISSING = "a due frame does not come"
NOT_IN_ORDER = "frames do not come in the order of their times"
GOPS_NOT_IN_ORDER = "GOPs are not displayed in the order of decoding"
AHEAD_OF_ALL = "frames ahead of the first key frame"
NO_TIMES = "packets without a time"
FALLS_BACK: dict[str, tuple[str, ...]] = {
    # P frames after the key frame release frames before it, which is an error where there are none.
    "h264_open_pyramid.mp4": (DOES_NOT_DECODE,),
    "h264_open_more_refs.mp4": (DOES_NOT_DECODE,),
    "h264_intra_refresh.mp4": (DOES_NOT_DECODE,),
    "h264_intra_refresh.ts": (NO_ENTRY,),
    "h264_i_frames_as_keys.ts": (NO_ENTRY,),
    **dict.fromkeys(
        (
            *("h264_top_first.mp4", "h264_bottom_first.ts"),
            *("hevc_interlaced.mp4", "mpeg2_interlaced.mpg"),
        ),
        ("interlaced",),
    ),
    **{
        name: (f"codec {codec}",)
        for name, codec in {
            "vp8.webm": "vp8",
            "dv.mov": "dvvideo",
            "magicyuv.mkv": "magicyuv",
            "ffv1.mkv": "ffv1",
            "gif.gif": "gif",
            "apng.apng": "apng",
            "theora.ogv": "theora",
            "flv1.flv": "flv1",
            "wmv2.asf": "wmv2",
        }.items()
    },
    "mpeg4.avi": ("the container stores no times of display",),
    "h264_raw.h264": (NO_TIMES,),
    "xvid.mp4": (MISSING,),  # packed frames: the times are those of others
    "gap.mkv": (MISSING, NOT_IN_ORDER),
    "order_of_decoding.mkv": (MISSING, NOT_IN_ORDER),
    "time_twice.mkv": ("two packets have the same time",),
    **dict.fromkeys(("cut_9.mp4", "cut_11.mp4", "cut_23.mp4"), (AHEAD_OF_ALL,)),
    "cut_15.mkv": (NO_TIMES,),
    **dict.fromkeys(("edits_in_gops.mp4", "edits_open.mp4", "edits_hevc.mp4"), (NO_ENTRY,)),
    **dict.fromkeys(
        (
            *("keys_hevc_wrong.mp4", "keys_hevc_all.mp4"),
            *("keys_mpeg4_wrong.mp4", "keys_mpeg4_missing.mp4", "keys_mpeg4_all.mp4"),
            *("keys_mpeg2_wrong.mp4", "keys_mpeg2_all.mp4"),
        ),
        (GOPS_NOT_IN_ORDER,),
    ),
}
"""Clip -> why its frames cannot be selected at one rate at least."""
DAMAGE = {
    *(NO_ENTRY, DOES_NOT_DECODE, MISSING, NOT_IN_ORDER, GOPS_NOT_IN_ORDER, AHEAD_OF_ALL, NO_TIMES),
    *("damaged packets", "the first packet is no key frame", "two packets have the same time"),
    *("the decoder complains", "a damaged frame", "packets and frames do not match"),
}
"""What a damaged clip may end with; where depends on what the rate wants."""
VARIED = (
    *("h264_closed.mp4", "h264_open.mkv", "h264_open.ts", "h264_pyramid_normal.mp4"),
    *("hevc_open.mp4", "mpeg2.mpg", "mpeg4.mkv", "vp9_alt_ref.webm", "av1.mkv", "cut_14.mp4"),
    *("edits_at_keys.mp4", "variable_rate.mp4", "prores.mov"),
)
"""Clips that are read, and asked for, in every way."""


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> StructureShelf:
    return StructureShelf(tmp_path_factory.mktemp("structures"))


@pytest.fixture(scope="session")
def reference(shelf: StructureShelf) -> Callable[[str], Reference]:
    """Name -> the clip with all its frames decoded, once."""
    made: dict[str, Reference] = {}

    def get(name: str) -> Reference:
        if name not in made:
            made[name] = Reference(shelf[name])
        return made[name]

    return get


def reasons(reference: Reference) -> set[str]:
    """Why it falls back, of all rates; "" where it does not. AssertionError: a difference."""
    found = set()
    for fps in RATES:
        window = Window(fps=fps)
        selected = select_or_why(reference.path, window)
        if isinstance(selected, Samples):
            assert_same(selected, reference.samples(window), f"at {fps} fps")
        found.add(selected if isinstance(selected, str) else "")
    return found


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_selected_frames_are_those_of_decoding_all(
    name: str, reference: Callable[[str], Reference]
) -> None:
    found = reasons(reference(name))
    assert found - {""} == set(FALLS_BACK.get(name, ()))


@pytest.mark.parametrize("name", sorted(DAMAGED))
def test_damage_is_met_or_makes_no_difference(
    name: str, reference: Callable[[str], Reference]
) -> None:
    assert reasons(reference(name)) <= DAMAGE | {""}


@pytest.mark.parametrize("seeking", [False, True])
@pytest.mark.parametrize("name", VARIED)
def test_packets_that_are_read_again_give_the_same(
    name: str,
    seeking: bool,
    reference: Callable[[str], Reference],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    windows = (Window(fps=2), Window(fps=25), Window(fps=2, first_k=3, stop_k=5))
    assert_same_when_read_again(reference(name), windows, monkeypatch, seeking=seeking)


@pytest.mark.parametrize("wrong", ["far", "fails"])
def test_a_seek_that_goes_wrong_costs_nothing_but_time(
    wrong: str, shelf: StructureShelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether one is tried depends on how many processes share a video."""
    path = shelf["h264_closed.mp4"]
    expected = select(path, Window(fps=0.5))
    reading_again(monkeypatch, seeking=True)
    if wrong == "fails":
        monkeypatch.setattr(PacketReader, "_seek_target", lambda *_: 2**62)
    else:
        monkeypatch.setattr(PacketReader, "_seek_target", lambda self, _: self._table.pts[-1])
    assert select(path, Window(fps=0.5, first_k=1)).samples == expected.samples[1:]


@pytest.mark.parametrize("seeking", [False, True])
def test_packets_that_are_others_when_read_again_are_refused(
    seeking: bool, shelf: StructureShelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading_again(monkeypatch, seeking=seeking)

    def read(container: Any, stream: Any, *, alive: Callable[[], None]) -> PacketTable:
        table = read_packet_table(container, stream, alive=alive)
        table.sizes[30] += 1
        return table

    monkeypatch.setattr("pipeline.jailed.sampler.read_packet_table", read)
    monkeypatch.setattr("pipeline.jailed.sampler._tables", OrderedDict())
    with pytest.raises(NotSelectable, match="reading again gives other packets"):
        select(shelf["h264_closed.mp4"], Window(fps=5))


@pytest.mark.parametrize("name", VARIED)
def test_pieces_and_spans_are_those_of_decoding_all(
    name: str, reference: Callable[[str], Reference]
) -> None:
    for first_k, stop_k in ((0, 2), (1, 3), (2, 3), (3, None), (1, None), (0, 99)):
        window = Window(fps=2, first_k=first_k, stop_k=stop_k)
        selected = select(reference(name).path, window)
        assert_same(selected, reference(name).samples(window), str(window))
    begin = reference(name).frames[0].seconds
    for start, end in ((0.0, 1.0), (0.31, 0.97), (0.5, 1.7), (-3.0, 0.1), (1.2, 99.0)):
        window = Window(fps=5, start_seconds=begin + start, end_seconds=begin + end)
        selected = select(reference(name).path, window)
        assert_same(selected, reference(name).samples(window), str(window))


@pytest.mark.parametrize("num_parts", [2, 3])
@pytest.mark.parametrize("name", VARIED)
def test_parts_are_the_whole_in_turns_of_a_segment(
    name: str,
    num_parts: int,
    reference: Callable[[str], Reference],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduling, "SEGMENT_PACKETS", 5)
    window = Window(fps=3.7, first_k=1)
    whole = reference(name).samples(window)
    merged = []
    for part in range(num_parts):
        stops: list[int] = []
        selected = select(reference(name).path, window, part=part, num_parts=num_parts, stops=stops)
        assert selected.end_seconds == whole.end_seconds
        ranges = list(itertools.pairwise([window.first_k, *stops]))[part::num_parts]
        expected = itertools.chain.from_iterable(range(*ends) for ends in ranges)
        assert [sample[0] for sample in selected.samples] == list(expected)
        merged += selected.samples
    assert tuple(sorted(merged)) == whole.samples


def test_a_window_without_samples_is_left_to_decoding_all(
    reference: Callable[[str], Reference],
) -> None:
    with pytest.raises(NotSelectable, match="no sample"):
        select(reference("h264_closed.mp4").path, Window(fps=2, first_k=99))


def test_disposable_frames_are_not_decoded(
    reference: Callable[[str], Reference], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one GOP with three B frames between two others, most B frames are left out."""
    from pipeline.jailed.sampler import VideoSampler
    from tests.orders import MAX_DURATION_SECONDS, MAX_PIXELS, collect

    sampler = VideoSampler(
        str(reference("h264_one_key.mp4").path),
        window=Window(fps=1),
        convert=lambda frame, _: "",
        max_pixels=MAX_PIXELS,
        max_duration_seconds=MAX_DURATION_SECONDS,
    )
    collect(sampler.selected())
    assert sampler.tally.num_frames < 40
    assert len(reference("h264_one_key.mp4").frames) == 75


class ScriptedDecoder:
    """Stands for a stream and its codec context: packet n gives frame n, or what is changed."""

    def __init__(self, num_packets: int) -> None:
        self.codec_context = self
        self.skip_frame = "DEFAULT"
        self.frames: list[list[Any]] = [[self.frame(number)] for number in range(num_packets)]
        self.at_end: list[Any] = []
        self.errors: dict[int, BaseException] = {}

    @staticmethod
    def frame(number: int, **changes: object) -> Any:
        usual: dict[str, object] = {
            "pts": number,
            "width": 16,
            "height": 16,
            "is_corrupt": False,
            "interlaced_frame": False,
            "key_frame": False,
            "pict_type": PictureType.P,
        }
        if number % 20 == 0:
            usual |= {"key_frame": True, "pict_type": PictureType.I}
        return SimpleNamespace(**(usual | changes))

    def decode(self, packet: int | None) -> list[Any]:
        if packet is None:
            return self.at_end
        if packet in self.errors:
            raise self.errors[packet]
        return self.frames[packet]

    def flush_buffers(self) -> None:
        pass


def decode_script(
    decoder: ScriptedDecoder,
    converted: list[int] | None = None,
    *,
    fps: float = 1,
    given: list[int] | None = None,
) -> list[int]:
    """60 frames in 3 GOPs: at 1 fps those at 0, 25 and 50, by a decoder without a file."""
    table = PacketTable(time_base=Fraction(1, 25), container="mov")
    for number in range(60):
        packet = SimpleNamespace(
            pts=number, dts=number, duration=1, size=1, is_keyframe=number % 20 == 0
        )
        table.add(SimpleNamespace(**vars(packet), is_discard=False, is_corrupt=False))
        table.keep(number, num_bytes=0)
    selector = FrameSelector(
        decoder,
        reader=PacketReader(
            None, decoder, table=table, alive=lambda: None, reopen=lambda: (None, decoder)
        ),
        table=table,
        schedule=(schedule := scheduling.schedule_runs(table, Window(fps=fps))),
        tally=Tally(),
        skips_disposable=True,
        max_pixels=256,
    )

    def convert(frame: Any) -> int:
        if converted is not None:
            converted.append(frame.pts)
        return int(frame.pts)

    pictures = []
    for sample in selector.sample(schedule.runs, convert):
        pictures.append(sample.picture)
        if given is not None:
            given.append(sample.picture)
    return pictures


def test_the_last_sample_comes_when_all_is_checked() -> None:
    """The owner goes on to another process then, and would miss what is wrong with the rest."""
    decoder = ScriptedDecoder(60)
    decoder.frames[59] = []  # after the last sample
    given: list[int] = []
    with pytest.raises(NotSelectable, match=MISSING):
        decode_script(decoder, given=given)
    assert given == [0, 25]


def test_a_frame_is_converted_only_for_a_sample() -> None:
    converted: list[int] = []
    assert decode_script(ScriptedDecoder(60), converted, fps=5) == list(range(0, 60, 5))
    assert converted == list(range(0, 60, 5))


@pytest.mark.parametrize(
    ("number", "changes", "why"),
    [
        (0, {"key_frame": False, "pict_type": PictureType.P}, NO_ENTRY),
        (20, {"key_frame": False, "pict_type": PictureType.P}, NO_ENTRY),
        (20, {"pts": 21}, NO_ENTRY),
        (20, {"pts": 19}, NO_ENTRY),
        (23, {"is_corrupt": True}, "a damaged frame"),
        (23, {"interlaced_frame": True}, "interlaced"),
        (23, {"pts": None}, "a frame without a time"),
        (59, {"pts": 60}, "a frame with a time that no packet has"),
        (23, {"pts": 22}, NOT_IN_ORDER),
        (23, {"pts": 26}, MISSING),
    ],
)
def test_a_frame_that_is_not_as_promised(number: int, changes: dict[str, Any], why: str) -> None:
    decoder = ScriptedDecoder(60)
    decoder.frames[number] = [decoder.frame(number, **changes)]
    with pytest.raises(NotSelectable, match=why):
        decode_script(decoder)


@pytest.mark.parametrize(
    ("missing", "why"),
    [
        (0, NO_ENTRY),
        (1, "packets and frames do not match"),
        (20, NO_ENTRY),
        (25, MISSING),
        (26, MISSING),
        (51, MISSING),
        (59, MISSING),  # the end of the video
    ],
)
def test_a_frame_that_does_not_come(missing: int, why: str) -> None:
    decoder = ScriptedDecoder(60)
    decoder.frames[missing] = []
    with pytest.raises(NotSelectable, match=why):
        decode_script(decoder)


def test_packets_at_the_beginning_each_give_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """As fields in two packets do not."""
    monkeypatch.setattr(
        "pipeline.jailed.scheduling._due_ranks", lambda *_, **__: np.array([0, 25, 50])
    )
    table_decoder = ScriptedDecoder(60)
    assert decode_script(table_decoder) == [0, 25, 50]
    monkeypatch.setattr(
        "pipeline.jailed.scheduling._due_ranks", lambda *_, **__: np.array([0, 12, 25, 50])
    )
    for missing in (1, 11):
        decoder = ScriptedDecoder(60)
        decoder.frames[missing] = []
        with pytest.raises(NotSelectable, match="packets and frames do not match"):
            decode_script(decoder)


def test_errors_and_complaints(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = ScriptedDecoder(60)
    decoder.errors[22] = av.error.InvalidDataError(1, "damaged")
    with pytest.raises(NotSelectable, match=DOES_NOT_DECODE):
        decode_script(decoder)
    decoder.errors[22] = MemoryError()
    with pytest.raises(VideoError) as caught:
        decode_script(decoder)
    assert caught.value.reason == "out_of_memory"
    decoder.errors.clear()
    decoder.frames[22] = [decoder.frame(22, width=17)]
    with pytest.raises(VideoError) as caught:
        decode_script(decoder)
    assert caught.value.reason == "too_many_pixels"
    counts = itertools.count()
    monkeypatch.setattr("pipeline.jailed.selecting.num_complaints", lambda: next(counts) > 10)
    with pytest.raises(NotSelectable, match="the decoder complains"):
        decode_script(ScriptedDecoder(60))


def test_complaints_between_packets_are_not_the_decoder_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demuxer's: which it makes depends on the parts of the file that a process reads."""
    counts = itertools.count()
    monkeypatch.setattr("pipeline.jailed.selecting.num_complaints", lambda: next(counts) // 2)
    assert decode_script(ScriptedDecoder(60)) == [0, 25, 50]


@pytest.mark.parametrize(
    ("codec", "num_layers", "expected"),
    [
        ("h264", None, True),
        ("mpeg2video", None, True),
        ("vp9", None, False),
        ("av1", None, False),
        ("mjpeg", None, False),
        ("hevc", None, False),  # the file does not say
        ("hevc", 1, True),
        ("hevc", 0, False),
        ("hevc", 3, False),
    ],
)
def test_disposable_frames_are_left_out_where_that_is_exact(
    codec: str, num_layers: int | None, expected: bool
) -> None:
    extradata = b""
    if num_layers is not None:
        extradata = bytes([1, *[0] * 20, num_layers << 3 | 7, 0])
    stream = SimpleNamespace(codec_context=SimpleNamespace(extradata=extradata))
    assert skips_disposable(stream, codec) == expected


def test_clips_are_what_their_names_say(shelf: StructureShelf) -> None:
    """Encoders do not refuse what they do not know: look at what they made."""
    assert _has_leading_frames(shelf["h264_open.mp4"])
    assert _has_leading_frames(shelf["hevc_open.mp4"])
    assert _has_leading_frames(shelf["mpeg2.ts"])
    assert not _has_leading_frames(shelf["h264_closed.mp4"])
    assert not _has_leading_frames(shelf["mpeg2_closed.ts"])
    assert _num_layers(shelf["hevc_closed.mp4"]) == 1
    assert _num_layers(shelf["hevc_layers.mp4"]) > 1
    assert _num_keys(shelf["h264_one_key.mp4"]) == 1
    assert _num_keys(shelf["keys_hevc_all.mp4"]) == 75
    assert _num_keys(shelf["keys_hevc_missing.mp4"]) == 2
    assert 2 < _num_keys(shelf["h264_i_frames_as_keys.ts"]) < 75


def _packets(path: Path) -> list[tuple[int, bool]]:
    with av.open(str(path)) as container:
        packets = container.demux(video=0)
        return [(packet.pts, packet.is_keyframe) for packet in packets if packet.size]


def _num_keys(path: Path) -> int:
    return sum(key for _, key in _packets(path))


def _has_leading_frames(path: Path) -> bool:
    key_pts = 0
    for pts, key in _packets(path):
        key_pts = pts if key else key_pts
        if pts < key_pts:
            return True
    return False


def _num_layers(path: Path) -> int:
    with av.open(str(path)) as container:
        return container.streams.video[0].codec_context.extradata[21] >> 3 & 7
