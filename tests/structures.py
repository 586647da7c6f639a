"""Clips of many ways to code, store, cut and damage video, for selective decoding.

Every picture carries its number (see `tests.clips`), so that no frame can pass for another one.
Makers of copies name their source, which is made beside them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import av

from tests.clips import H264, NO_MUX_DELAY, encode_clip, run_ffmpeg

Maker = Callable[[Path], None]

NUM_FRAMES = 75
H265 = (
    "-c:v libx265 -preset ultrafast -pix_fmt yuv420p"
    " -x265-params log-level=none:pools=none:frame-threads=1:wpp=0"
)
VP8 = "-c:v libvpx -deadline realtime -cpu-used 8 -b:v 200k -threads 1"
VP9 = "-c:v libvpx-vp9 -deadline good -cpu-used 8 -b:v 0 -crf 30 -threads 1"
SVT_AV1 = "-c:v libsvtav1 -preset 12 -svtav1-params lp=1"
AOM_AV1 = "-c:v libaom-av1 -cpu-used 8 -crf 35 -threads 1 -lag-in-frames 8"
MPEG2 = "-c:v mpeg2video -q:v 3 -pix_fmt yuv420p"
MPEG4 = "-c:v mpeg4 -q:v 3 -pix_fmt yuv420p"
GOP = "-bf 2 -g 12"
ALT_REF = "-auto-alt-ref 1 -lag-in-frames 16 -g 25"
B3 = "bframes=3:b-adapt=0:b-pyramid=none"
OPEN = f"{B3}:open-gop=1"
PYRAMID = "bframes=5:b-adapt=0:b-pyramid=normal"
SCENES = "keyint=250:min-keyint=200:scenecut=400"
LAYERS = "bframes=3:keyint=12:temporal-layers=3:b-adapt=0:b-pyramid=1"
TS_PACKET = 188


def coded(codec: str, options: str = "", *, num_frames: int = NUM_FRAMES) -> Maker:
    """A clip of 25 frames a second."""

    def make(path: Path) -> None:
        encode_clip(path, codec=codec, options=options, num_frames=num_frames)

    return make


def x264(parameters: str, options: str = "") -> Maker:
    """H.264; a key frame every 12 frames unless `parameters` say else."""
    keyint = "" if "keyint" in parameters else ":keyint=12"
    return coded(H264, f"-x264-params {parameters}{keyint} {options}")


def x265(parameters: str, options: str = "") -> Maker:
    """HEVC by parameters of x265."""
    return coded(f"{H265}:{parameters}", options)


def copied(source: str, options: str = "", *, before: str = "") -> Maker:
    """A stream copy; `before` are options of the input."""

    def make(path: Path) -> None:
        run_ffmpeg(*before.split(), "-i", _made(source, path), "-c", "copy", *options.split(), path)

    return make


def cut(source: str, frame: int) -> Maker:
    """A stream copy that is to begin with a frame in the middle of a GOP."""
    return copied(source, before=f"-ss {frame / 25}")


def changed(source: str, change: Callable[[bytes], bytes]) -> Maker:
    """The file with other bytes."""

    def make(path: Path) -> None:
        path.write_bytes(change(_made(source, path).read_bytes()))

    return make


def joined(*makers: Maker) -> Maker:
    """The bytes of several files in a row."""

    def make(path: Path) -> None:
        parts = [path.with_name(f"part{number}_{path.name}") for number in range(len(makers))]
        for maker, part in zip(makers, parts, strict=True):
            maker(part)
        path.write_bytes(b"".join(part.read_bytes() for part in parts))

    return make


def without_packets(source: str, *lost: int) -> Maker:
    """A copy that lacks some packets, counted in the order of decoding."""

    def make(path: Path) -> None:
        with av.open(str(_made(source, path))) as read, av.open(str(path), "w") as written:
            stream = read.streams.video[0]
            copy = written.add_stream_from_template(stream)
            packets = (packet for packet in read.demux(stream) if packet.size)
            for number, packet in enumerate(packets):
                if number not in lost:
                    packet.stream = copy
                    written.mux(packet)

    return make


def with_keys_at(source: str, *numbers: int) -> Maker:
    """An MP4 whose table of key frames lists other packets; the last number fills the table."""

    def change(data: bytes) -> bytes:
        place = data.index(b"stss") + 8
        [count] = struct.unpack(">I", data[place : place + 4])
        listed = [*numbers, *[numbers[-1]] * count][:count]
        table = struct.pack(f">{count}I", *(number + 1 for number in listed))
        return data[: place + 4] + table + data[place + 4 + 4 * count :]

    return changed(source, change)


def without_key_table(source: str) -> Maker:
    """An MP4 without a table of key frames: every packet counts as one."""
    return changed(source, lambda data: data.replace(b"stss", b"free"))


def with_two_edits(source: str, *, first: tuple[int, int], second: tuple[int, int]) -> Maker:
    """An MP4 (its index at the end) that shows two ranges of frames, [begin, stop) each."""

    def change(data: bytes) -> bytes:
        changed_data = bytearray(data)
        place = changed_data.index(b"elst") - 4
        [scale] = struct.unpack(">I", data[(at := data.index(b"mvhd") + 16) : at + 4])
        [ticks] = struct.unpack(">I", data[(at := data.index(b"mdhd") + 16) : at + 4])
        [delay] = struct.unpack(">i", data[place + 20 : place + 24])
        edits = [
            struct.pack(
                ">IiI",
                (stop - begin) * scale // 25,
                delay + begin * ticks // 25,
                0x10000,
            )
            for begin, stop in (first, second)
        ]
        changed_data[place + 12 : place + 28] = struct.pack(">I", 2) + b"".join(edits)
        for box in (b"moov", b"trak", b"edts", b"elst"):
            at = changed_data.index(box) - 4
            [size] = struct.unpack(">I", changed_data[at : at + 4])
            changed_data[at : at + 4] = struct.pack(">I", size + 12)
        return bytes(changed_data)

    return changed(source, change)


def from_byte(source: str, *, part: float, unit: int) -> Maker:
    """A file without its first part."""
    return changed(source, lambda data: data[int(len(data) * part) // unit * unit :])


def up_to_byte(source: str, *, part: float) -> Maker:
    """A file without its last part."""
    return changed(source, lambda data: data[: int(len(data) * part)])


def _made(source: str, beside: Path) -> Path:
    path = beside.with_name(source)
    if not path.exists():
        MAKERS[source](path)
    return path


WHOLE: dict[str, Maker] = {
    # H.264
    "h264_closed.mp4": x264(B3),
    "h264_closed.ts": x264(B3, NO_MUX_DELAY),
    "h264_open.mp4": x264(OPEN),
    "h264_open.mkv": x264(OPEN),
    "h264_open.flv": x264(OPEN),
    "h264_open.ts": x264(OPEN, NO_MUX_DELAY),
    "h264_open_more_refs.mp4": x264(f"{OPEN}:weightp=2:ref=5"),
    "h264_open_pyramid.mp4": x264("bframes=7:b-adapt=0:open-gop=1:b-pyramid=normal:keyint=16"),
    "h264_pyramid_normal.mp4": x264(PYRAMID),
    "h264_pyramid_strict.mp4": x264("bframes=5:b-adapt=0:b-pyramid=strict"),
    "h264_one_ref.mp4": x264(f"{B3}:ref=1"),
    "h264_weights.mp4": x264(f"{B3}:ref=5:weightp=2:weightb=1"),
    "h264_intra_refresh.mp4": x264("bframes=3:intra-refresh=1:keyint=24"),
    "h264_intra_refresh.ts": x264("bframes=0:intra-refresh=1:keyint=24", NO_MUX_DELAY),
    "h264_slices.mp4": x264(f"{B3}:slices=4"),
    "h264_one_key.mp4": x264(f"{B3}:keyint=infinite:scenecut=0"),
    "h264_scene_cuts.mp4": x264("bframes=3:keyint=250:min-keyint=3:scenecut=400"),
    "h264_i_frames_as_keys.ts": x264(f"bframes=0:ref=1:{SCENES}", NO_MUX_DELAY),
    "h264_no_b.mp4": x264("bframes=0:ref=1"),
    "h264_baseline.mp4": coded(H264, "-profile:v baseline -g 12"),
    "h264_top_first.mp4": x264(f"{B3}:tff=1"),
    "h264_bottom_first.ts": x264(f"{B3}:bff=1", NO_MUX_DELAY),
    "h264_fake_interlaced.mp4": x264(f"{B3}:fake-interlaced=1"),
    "h264_all_key.mp4": x264("keyint=1"),
    "h264_10_bits.mp4": coded(H264.replace("yuv420p", "yuv444p10le"), "-bf 3 -g 12"),
    "h264_fragments.mp4": x264(OPEN, "-movflags frag_keyframe+empty_moov"),
    "h264_raw.h264": x264(B3),
    "openh264.mp4": coded("-c:v libopenh264 -b:v 300k", "-g 12"),
    # HEVC
    "hevc_closed.mp4": x265("bframes=3:keyint=12:open-gop=0"),
    "hevc_open.mp4": x265("bframes=3:keyint=12:open-gop=1"),
    "hevc_open.mkv": x265("bframes=3:keyint=12:open-gop=1"),
    "hevc_open.ts": x265("bframes=3:keyint=12:open-gop=1", NO_MUX_DELAY),
    "hevc_pyramid.mp4": x265("bframes=7:b-pyramid=1:keyint=16:min-keyint=16:rc-lookahead=16"),
    "hevc_radl.mp4": x265("bframes=3:keyint=12:radl=2:open-gop=0"),
    "hevc_layers.mp4": x265(LAYERS),
    "hevc_layers.mkv": x265(LAYERS),
    "hevc_layers.ts": x265(LAYERS, NO_MUX_DELAY),
    "hevc_interlaced.mp4": x265("interlace=tff:keyint=12"),
    "kvazaar.mp4": coded("-c:v libkvazaar -kvazaar-params period=16,gop=8,threads=0,owf=0"),
    # MPEG-1, 2, 4
    "mpeg1.mpg": coded(MPEG2.replace("mpeg2", "mpeg1"), GOP),
    "mpeg2.mpg": coded(MPEG2, GOP),
    "mpeg2.mkv": coded(MPEG2, GOP),
    "mpeg2.mp4": coded(MPEG2, GOP),
    "mpeg2.ts": coded(MPEG2, f"{GOP} {NO_MUX_DELAY}"),
    "mpeg2_closed.ts": coded(MPEG2, f"{GOP} -flags +cgop -sc_threshold 1000000000 {NO_MUX_DELAY}"),
    "mpeg2_interlaced.mpg": coded(MPEG2, f"{GOP} -flags +ildct+ilme -vf setfield=tff"),
    "mpeg4.mp4": coded(MPEG4, GOP),
    "mpeg4.mkv": coded(MPEG4, GOP),
    "mpeg4.avi": coded(MPEG4, GOP),
    "mpeg4_qpel.mp4": coded(MPEG4, f"{GOP} -flags +qpel+mv4"),
    "xvid.mp4": coded("-c:v libxvid -q:v 3", GOP),
    # VP8, VP9, AV1
    "vp8.webm": coded(VP8, "-g 12"),
    "vp9.webm": coded(VP9, "-g 12"),
    "vp9_alt_ref.webm": coded(VP9, ALT_REF),
    "vp9_alt_ref.mp4": coded(VP9, ALT_REF),
    "av1.mp4": coded(SVT_AV1, "-g 16"),
    "av1.mkv": coded(SVT_AV1, "-g 32"),
    "aom.mp4": coded(AOM_AV1, "-g 16", num_frames=40),
    # Every picture by itself, and codecs that cannot be selected
    "mjpeg.mov": coded("-c:v mjpeg -q:v 3 -pix_fmt yuvj420p"),
    "prores.mov": coded("-c:v prores"),
    "huffyuv.mkv": coded("-c:v huffyuv"),
    "raw.mkv": coded("-c:v rawvideo -pix_fmt yuv420p"),
    "dnxhd.mov": coded("-c:v dnxhd -profile:v dnxhr_lb -pix_fmt yuv422p -s 256x128"),
    "dv.mov": coded("-c:v dvvideo -s 720x576 -pix_fmt yuv420p", num_frames=12),
    "jpeg2000.mov": coded("-c:v jpeg2000 -q:v 3", num_frames=40),
    "magicyuv.mkv": coded("-c:v magicyuv"),
    "ffv1.mkv": coded("-c:v ffv1 -g 12 -coder 1 -context 1 -pix_fmt yuv420p"),
    "gif.gif": coded("-c:v gif"),
    "apng.apng": coded("-c:v apng -f apng"),
    "theora.ogv": coded("-c:v libtheora -q:v 6 -g 12"),
    "flv1.flv": coded("-c:v flv -q:v 3 -g 12"),
    "wmv2.asf": coded("-c:v wmv2 -q:v 3 -g 12"),
    # Times
    "offset.mp4": x264(OPEN, "-output_ts_offset 10"),
    "wrapping.ts": x264(OPEN, f"{NO_MUX_DELAY} -output_ts_offset 95442"),
    "negative.mp4": copied("h264_open.mp4", "-avoid_negative_ts disabled -output_ts_offset -1.3"),
    "negative.ts": copied(
        "h264_open.mp4", f"{NO_MUX_DELAY} -avoid_negative_ts disabled -output_ts_offset -1.3"
    ),
    "gap.mkv": copied("h264_closed.mp4", "-bsf:v setts=ts='TS+gte(N\\,36)*90000'"),
    "variable_rate.mp4": x264(
        OPEN,
        "-fps_mode passthrough -enc_time_base 1/1000 -video_track_timescale 1000"
        " -vf settb=1/1000,setpts=N*N*7+N*13",
    ),
    "variable_rate.mkv": x264(
        OPEN,
        "-fps_mode passthrough -enc_time_base 1/1000 -vf settb=1/1000,setpts=N*40+mod(N\\,3)*9",
    ),
    "time_twice.mkv": copied("h264_no_b.mp4", "-bsf:v setts=pts='PTS+eq(N\\,20)*512':dts=DTS"),
    "order_of_decoding.mkv": copied("h264_open.mp4", "-bsf:v setts=pts=DTS"),
    # Edit lists
    **{f"cut_{n}.mp4": cut("h264_open.mp4", n) for n in (1, 5, 8, 9, 11, 12, 14, 16, 19, 23)},
    **{f"cut_{n}.mov": cut("h264_closed.mp4", n) for n in (3, 10, 13)},
    "cut_pyramid.mp4": cut("h264_pyramid_normal.mp4", 16),
    "cut_15.mkv": cut("h264_open.mp4", 15),
    "cut_hevc_15.mp4": cut("hevc_open.mp4", 15),
    "cut_mpeg4_15.mp4": cut("mpeg4.mp4", 15),
    "cut_vp9_21.mp4": cut("vp9_alt_ref.mp4", 21),
    "cut_av1_21.mp4": cut("av1.mp4", 21),
    "edits_at_keys.mp4": with_two_edits("h264_closed.mp4", first=(0, 24), second=(36, 60)),
    "edits_in_gops.mp4": with_two_edits("h264_closed.mp4", first=(5, 20), second=(41, 60)),
    "edits_open.mp4": with_two_edits("h264_open.mp4", first=(5, 20), second=(40, 60)),
    "edits_hevc.mp4": with_two_edits("hevc_closed.mp4", first=(5, 20), second=(41, 60)),
    "edits_backwards.mp4": with_two_edits("h264_closed.mp4", first=(36, 60), second=(0, 24)),
    # Key flags that lie; those of H.264 are looked up in the packets by the demuxer
    "keys_h264.mp4": with_keys_at("h264_closed.mp4", 0, 6, 18, 30),
    "keys_hevc_wrong.mp4": with_keys_at("hevc_closed.mp4", 0, 7, 19, 31, 43),
    "keys_hevc_missing.mp4": with_keys_at("hevc_closed.mp4", 0, 24),
    "keys_hevc_all.mp4": without_key_table("hevc_closed.mp4"),
    "keys_mpeg4_wrong.mp4": with_keys_at("mpeg4.mp4", 0, 6, 18, 31, 43),
    "keys_mpeg4_missing.mp4": with_keys_at("mpeg4.mp4", 0, 24),
    "keys_mpeg4_all.mp4": without_key_table("mpeg4.mp4"),
    "keys_mpeg2_wrong.mp4": with_keys_at("mpeg2.mp4", 0, 6, 18, 31, 43),
    "keys_mpeg2_all.mp4": without_key_table("mpeg2.mp4"),
    "keys_vp9_wrong.mp4": with_keys_at("vp9_alt_ref.mp4", 0, 6, 18, 31, 43),
    "keys_vp9_all.mp4": without_key_table("vp9_alt_ref.mp4"),
    "keys_av1_wrong.mp4": with_keys_at("av1.mp4", 0, 6, 18, 31, 43),
    "keys_av1_all.mp4": without_key_table("av1.mp4"),
}
DAMAGED: dict[str, Maker] = {
    **{f"lost_open_{n}.mp4": without_packets("h264_open.mp4", n) for n in (12, 14, 17)},
    **{f"lost_closed_{n}.mkv": without_packets("h264_closed.mp4", n) for n in (12, 13, 14)},
    **{f"lost_b_{n}.mkv": without_packets("h264_pyramid_normal.mp4", n) for n in (13, 14, 17)},
    "lost_no_b.mkv": without_packets("h264_no_b.mp4", 27),
    "lost_many.mkv": without_packets("h264_open.mp4", *range(13, 30)),
    "lost_first.mkv": without_packets("h264_closed.mp4", 0),
    **{f"lost_hevc_{n}.mkv": without_packets("hevc_open.mp4", n) for n in (12, 13, 15)},
    **{f"lost_mpeg2_{n}.mkv": without_packets("mpeg2.mkv", n) for n in (12, 15)},
    "lost_mpeg4.mkv": without_packets("mpeg4.mp4", 15),
    "lost_vp9.mkv": without_packets("vp9.webm", 15),
    "noise_h264.mp4": copied("h264_open.mp4", "-bsf:v noise=amount=200"),
    "noise_hevc.mp4": copied("hevc_closed.mp4", "-bsf:v noise=amount=100"),
    "noise_mpeg2.mkv": copied("mpeg2.mkv", "-bsf:v noise=amount=100"),
    "noise_mpeg4.mkv": copied("mpeg4.mkv", "-bsf:v noise=amount=100"),
    "noise_vp9.webm": copied("vp9.webm", "-bsf:v noise=amount=100"),
    "joined_refs.ts": joined(
        x264(f"{OPEN}:ref=1", NO_MUX_DELAY),
        x264(f"{OPEN}:ref=5", f"{NO_MUX_DELAY} -output_ts_offset 3"),
    ),
    "joined_sizes.ts": joined(
        x264(B3, NO_MUX_DELAY), x264(B3, f"{NO_MUX_DELAY} -s 160x96 -output_ts_offset 3")
    ),
    "joined_mpeg2_sizes.mpg": joined(
        coded(MPEG2, GOP), coded(MPEG2, f"{GOP} -s 160x96 -output_ts_offset 3")
    ),
    "begins_inside.ts": from_byte("h264_open.ts", part=0.12, unit=TS_PACKET),
    "begins_inside.mpg": from_byte("mpeg2.mpg", part=0.33, unit=2048),
    "ends_early.ts": up_to_byte("h264_closed.ts", part=0.66),
    "ends_early.mkv": up_to_byte("h264_open.mkv", part=0.66),
}
MAKERS = WHOLE | DAMAGED
"""Name -> what makes the clip under the path given."""


class StructureShelf(Mapping[str, Path]):
    """All clips of MAKERS in a folder, each made when first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __getitem__(self, name: str) -> Path:
        return _made(name, self.folder / name)

    def __iter__(self) -> Iterator[str]:
        return iter(MAKERS)

    def __len__(self) -> int:
        return len(MAKERS)
