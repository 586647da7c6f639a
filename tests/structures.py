"""Synthetic clips of every way to code, store, cut and damage frames, for selective decoding.

Every picture carries its number (see `tests.clips`), so that no frame can pass for another one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import av
from av.bitstream import BitStreamFilterContext

from tests.clips import H264, NO_MUX_DELAY, encode_clip, run_ffmpeg

NUM_FRAMES = 75
H265 = "-c:v libx265 -preset ultrafast -pix_fmt yuv420p -x265-params log-level=none:pools=none"
H265 += ":frame-threads=1:wpp=0"
VP8 = "-c:v libvpx -deadline good -cpu-used 5 -b:v 200k -threads 1"
VP9 = "-c:v libvpx-vp9 -deadline good -cpu-used 5 -b:v 0 -crf 30 -threads 1"
AV1 = "-c:v libsvtav1 -preset 12 -svtav1-params lp=1"
AOM = "-c:v libaom-av1 -cpu-used 8 -usage good -crf 35 -threads 1"
MPEG2 = "-c:v mpeg2video -q:v 3 -pix_fmt yuv420p"
MPEG4 = "-c:v mpeg4 -q:v 3 -pix_fmt yuv420p"

Maker = Callable[[Path], None]


def coded(codec: str, options: str = "", *, num_frames: int = NUM_FRAMES) -> Maker:
    """A clip of constant rate."""

    def make(path: Path) -> None:
        encode_clip(path, codec=codec, options=options, num_frames=num_frames)

    return make


def x264(parameters: str, options: str = "") -> Maker:
    """H.264 by parameters of x264, with the default key frame interval of 12."""
    if "keyint" not in parameters:
        parameters += ":keyint=12"
    return coded(H264, f"-x264-params {parameters} {options}")


def x265(parameters: str, options: str = "") -> Maker:
    """HEVC by parameters of x265."""
    return coded(f"{H265}:{parameters}", options)


def copied(source: Maker, options: str, *, suffix: str = ".mp4", before: str = "") -> Maker:
    """A stream copy of another clip; `before` are options of its input."""

    def make(path: Path) -> None:
        whole = path.with_name(f"source_{path.stem}{suffix}")
        source(whole)
        run_ffmpeg(*before.split(), "-i", whole, "-c", "copy", *options.split(), path)

    return make


def cut(source: Maker, *, frame: int, suffix: str = ".mp4") -> Maker:
    """A stream copy that begins in the middle of a GOP."""
    return copied(source, "", suffix=suffix, before=f"-ss {frame / 25}")


def bytes_changed(source: Maker, change: Callable[[bytes], bytes]) -> Maker:
    """Another clip after a change of its bytes."""

    def make(path: Path) -> None:
        whole = path.with_name(f"source_{path.name}")
        source(whole)
        path.write_bytes(change(whole.read_bytes()))

    return make


def joined(*makers: Maker) -> Maker:
    """The bytes of several clips in a row."""

    def make(path: Path) -> None:
        data = b""
        for number, maker in enumerate(makers):
            part = path.with_name(f"part{number}_{path.name}")
            maker(part)
            data += part.read_bytes()
        path.write_bytes(data)

    return make


def without_packets(source: Maker, *, numbers: range) -> Maker:
    """A copy that lacks some packets."""

    def make(path: Path) -> None:
        whole = path.with_name(f"source_{path.stem}.mp4")
        source(whole)
        _write_packets(whole, path, keep=lambda number: number not in numbers)

    return make


def _write_packets(source: Path, path: Path, *, keep: Callable[[int], bool]) -> None:
    with av.open(str(source)) as read, av.open(str(path), "w") as written:
        stream = read.streams.video[0]
        copy = written.add_stream_from_template(stream)
        packets = (packet for packet in read.demux(stream) if packet.size)
        for number, packet in enumerate(packets):
            if keep(number):
                packet.stream = copy
                written.mux(packet)


def with_keys_at(source: Maker, numbers: Callable[[int], bool]) -> Maker:
    """An MP4 whose table of key frames says something else: packet n is one if `numbers(n)`."""

    def change(data: bytes) -> bytes:
        place = data.index(b"stss")
        count = struct.unpack(">I", data[place + 8 : place + 12])[0]
        flagged = [n + 1 for n in range(NUM_FRAMES) if numbers(n)][:count]
        flagged += flagged[-1:] * (count - len(flagged))
        table = struct.pack(f">{count}I", *flagged)
        return data[: place + 12] + table + data[place + 12 + 4 * count :]

    return bytes_changed(source, change)


def without_key_table(source: Maker) -> Maker:
    """An MP4 without a table of key frames: then every packet counts as one."""
    return bytes_changed(source, lambda data: data.replace(b"stss", b"free", 1))


def with_all_blocks_flagged(source: Maker) -> Maker:
    """A Matroska file all of whose simple blocks are flagged as key frames."""

    def change(data: bytes) -> bytes:
        changed = bytearray(data)
        place = data.find(b"\xa3", data.index(b"\x1f\x43\xb6\x75"))
        while 0 <= place < len(data) - 8:
            first = data[place + 1]
            length = next(n for n in range(1, 9) if first >> (8 - n) & 1) if first else 0
            header = place + 1 + length
            if length and data[header] == 0x81 and data[header + 3] in (0x00, 0x80):
                changed[header + 3] |= 0x80
            place = data.find(b"\xa3", place + 1)
        return bytes(changed)

    return bytes_changed(source, change)


_ = BitStreamFilterContext

B3 = "bframes=3:b-adapt=0"
PLAIN = x264(f"{B3}:b-pyramid=none")
OPEN = x264(f"{B3}:open-gop=1")
TS = NO_MUX_DELAY
MPEG2_B = "-bf 2 -g 12"

MAKERS: dict[str, Maker] = {
    # H.264
    "h264_closed.mp4": PLAIN,
    "h264_open_gop.mp4": OPEN,
    "h264_open_gop.mkv": OPEN,
    "h264_open_gop.ts": x264(f"{B3}:open-gop=1", TS),
    "h264_open_gop.flv": OPEN,
    "h264_open_gop.mov": OPEN,
    "h264_open_gop_pyramid.mp4": x264("bframes=7:b-adapt=0:open-gop=1:b-pyramid=normal:keyint=16"),
    "h264_pyramid_normal.mp4": x264("bframes=5:b-adapt=0:b-pyramid=normal"),
    "h264_pyramid_strict.mp4": x264("bframes=5:b-adapt=0:b-pyramid=strict"),
    "h264_bluray.ts": x264(f"{B3}:open-gop=1:bluray-compat=1:b-pyramid=strict:slices=4", TS),
    "h264_weightp.mp4": x264(f"{B3}:weightp=2:weightb=1"),
    **{f"h264_ref_{n}.mp4": x264(f"{B3}:ref={n}") for n in (1, 2, 3, 5, 8)},
    "h264_intra_refresh.mp4": x264("bframes=3:intra-refresh=1:keyint=24"),
    "h264_intra_refresh.ts": x264("bframes=0:intra-refresh=1:keyint=24", TS),
    "h264_slices.mp4": x264(f"{B3}:slices=4"),
    "h264_one_key.mp4": x264(f"{B3}:keyint=infinite:scenecut=0"),
    "h264_one_key.ts": x264(f"{B3}:keyint=infinite:scenecut=0", TS),
    "h264_scene_cuts.mp4": x264(f"{B3}:keyint=250:min-keyint=3:scenecut=400"),
    "h264_scene_cuts_open.ts": x264(
        f"{B3}:keyint=250:min-keyint=60:scenecut=400:open-gop=1", TS
    ),
    "h264_scene_i_frames.ts": x264("bframes=0:ref=1:keyint=250:min-keyint=200:scenecut=400", TS),
    "h264_scene_i_frames.mp4": x264("bframes=0:ref=1:keyint=250:min-keyint=200:scenecut=400"),
    "h264_no_b.mp4": x264("bframes=0:ref=1"),
    "h264_no_b_refs_3.ts": x264("bframes=0:ref=3:keyint=250:min-keyint=200:scenecut=400", TS),
    "h264_cavlc_baseline.mp4": coded(H264, "-profile:v baseline -g 12"),
    "h264_tff.mp4": x264(f"{B3}:interlaced=1:tff=1"),
    "h264_bff.ts": x264(f"{B3}:bff=1", TS),
    "h264_fake_interlaced.mp4": x264(f"{B3}:fake-interlaced=1"),
    "h264_pulldown.mp4": x264(f"{B3}:pulldown=32"),
    "h264_all_key.mp4": x264("keyint=1"),
    "h264_10bit_444.mp4": coded(H264.replace("yuv420p", "yuv444p10le"), "-bf 3 -g 12"),
    "h264_lossless.mp4": coded(H264, "-qp 0 -bf 3 -g 12"),
    "h264_fragmented.mp4": x264(f"{B3}:open-gop=1", "-movflags frag_keyframe+empty_moov"),
    "h264_fragment_each_frame.mp4": x264(B3, "-movflags frag_every_frame+empty_moov"),
    "h264_raw.h264": PLAIN,
    "openh264.mp4": coded("-c:v libopenh264 -b:v 300k", "-g 12"),
    # Times
    "offset_10.mp4": x264(f"{B3}:open-gop=1", "-output_ts_offset 10"),
    "offset_10.ts": x264(f"{B3}:open-gop=1", f"{TS} -output_ts_offset 10"),
    "negative.mkv": copied(OPEN, "-avoid_negative_ts disabled -output_ts_offset -1.3"),
    "negative.mp4": copied(OPEN, "-avoid_negative_ts disabled -output_ts_offset -1.3"),
    "negative.ts": copied(OPEN, f"{TS} -avoid_negative_ts disabled -output_ts_offset -1.3"),
    "wrapping.ts": x264(B3, f"{TS} -output_ts_offset 95442"),
    "pts_gap.mp4": copied(OPEN, "-bsf:v setts=ts='TS+gt(TS\\,20000)*90000'"),
    "vfr.mp4": x264(
        f"{B3}:open-gop=1", "-fps_mode passthrough -enc_time_base 1/1000"
        " -vf settb=1/1000,setpts=N*N*7+N*13 -video_track_timescale 1000",
    ),
    "vfr.mkv": x264(
        f"{B3}:open-gop=1",
        "-fps_mode passthrough -enc_time_base 1/1000 -vf settb=1/1000,setpts=N*40+mod(N\\,3)*13",
    ),
    "pts_twice.mp4": copied(x264("bframes=0"), "-bsf:v setts=pts='PTS+eq(N\\,20)*512':dts=DTS"),
    "pts_twice.mkv": copied(x264("bframes=0"), "-bsf:v setts=pts='PTS+eq(N\\,20)*512':dts=DTS"),
    "pts_is_dts.mkv": copied(OPEN, "-bsf:v setts=pts=DTS"),
    "pts_swapped.mkv": copied(
        x264("bframes=0"), "-bsf:v setts=pts='PTS+eq(N\\,20)*512-eq(N\\,21)*512':dts=DTS"
    ),
    "pts_backwards.mkv": copied(
        x264("bframes=0"), "-bsf:v setts=pts='PTS+eq(N\\,20)*5120':dts=DTS"
    ),
    # Edit lists
    **{f"cut_{n}.mp4": cut(OPEN, frame=n) for n in range(1, 26)},
    **{f"cut_closed_{n}.mov": cut(PLAIN, frame=n) for n in range(1, 14, 3)},
    **{
        f"cut_pyramid_{n}.mp4": cut(x264("bframes=7:open-gop=1:b-adapt=0:keyint=16"), frame=n)
        for n in range(1, 34, 4)
    },
    "cut_15.mkv": cut(OPEN, frame=15),
    "cut_15.ts": cut(OPEN, frame=15),
    # Key flags that lie
    "keys_one_late.mp4": with_keys_at(PLAIN, lambda n: n % 12 == 1),
    "keys_middle.mp4": with_keys_at(PLAIN, lambda n: n % 12 == 6 or n == 0),
    "keys_some_missing.mp4": with_keys_at(PLAIN, lambda n: n % 24 == 0),
    "keys_one_wrong.mp4": with_keys_at(PLAIN, lambda n: n in (0, 12, 24, 30, 36, 48, 60)),
    "keys_all.mp4": without_key_table(PLAIN),
    "keys_all_open.mp4": without_key_table(OPEN),
    "keys_all_no_b.mp4": without_key_table(x264("bframes=0:ref=1")),
    "keys_all.mkv": with_all_blocks_flagged(PLAIN),
    "keys_all_hevc.mp4": without_key_table(x265("bframes=3:keyint=12")),
    "keys_all_vp9.mp4": without_key_table(coded(VP9, "-g 12")),
    "keys_all_vp9.webm": with_all_blocks_flagged(coded(VP9, "-g 12")),
    "keys_all_av1.mkv": with_all_blocks_flagged(coded(AV1, "-g 12")),
    "keys_all_mpeg4.mp4": without_key_table(coded(MPEG4, MPEG2_B)),
    "keys_all_mpeg2.mp4": without_key_table(coded(MPEG2, MPEG2_B)),
    # HEVC
    "hevc_closed.mp4": x265("bframes=3:keyint=12:open-gop=0"),
    "hevc_open_gop.mp4": x265("bframes=3:keyint=12:open-gop=1"),
    "hevc_open_gop.mkv": x265("bframes=3:keyint=12:open-gop=1"),
    "hevc_open_gop.ts": x265("bframes=3:keyint=12:open-gop=1", TS),
    "hevc_pyramid.mp4": x265("bframes=7:b-pyramid=1:keyint=16:open-gop=1:b-adapt=0"),
    "hevc_radl.mp4": x265("bframes=3:keyint=12:radl=2:open-gop=0"),
    "hevc_layers.mp4": x265("bframes=3:keyint=12:temporal-layers=3:b-adapt=0:b-pyramid=1"),
    "hevc_layers.mkv": x265("bframes=3:keyint=12:temporal-layers=3:b-adapt=0:b-pyramid=1"),
    "hevc_layers.ts": x265("bframes=3:keyint=12:temporal-layers=3:b-adapt=0:b-pyramid=1", TS),
    "hevc_one_key.mp4": x265("bframes=3:keyint=-1"),
    "hevc_hvc1.mp4": x265("bframes=3:keyint=12", "-tag:v hvc1"),
    "hevc_intra_refresh.mp4": x265("intra-refresh=1:keyint=24"),
    "hevc_interlaced.mp4": x265("interlace=tff:keyint=12"),
    "hevc_cut_15.mp4": cut(x265("bframes=3:keyint=12:open-gop=1"), frame=15),
    "hevc_cut_18.mp4": cut(x265("bframes=3:keyint=12:open-gop=1"), frame=18),
    "kvazaar.mp4": coded("-c:v libkvazaar -kvazaar-params period=16,gop=8,threads=0,owf=0"),
    "kvazaar_lowdelay.mp4": coded(
        "-c:v libkvazaar -kvazaar-params period=16,gop=lp-g4d3t2,threads=0,owf=0"
    ),
    # MPEG-1, 2, 4
    "mpeg1.mpg": coded(MPEG2.replace("mpeg2", "mpeg1"), MPEG2_B),
    "mpeg2.ts": coded(MPEG2, f"{MPEG2_B} {TS}"),
    "mpeg2.mpg": coded(MPEG2, MPEG2_B),
    "mpeg2.mkv": coded(MPEG2, MPEG2_B),
    "mpeg2.mp4": coded(MPEG2, MPEG2_B),
    "mpeg2_closed.ts": coded(MPEG2, f"{MPEG2_B} -flags +cgop -sc_threshold 1000000000 {TS}"),
    "mpeg2_closed.mpg": coded(MPEG2, f"{MPEG2_B} -flags +cgop -sc_threshold 1000000000"),
    "mpeg2_interlaced.mpg": coded(MPEG2, f"{MPEG2_B} -flags +ildct+ilme -vf setfield=tff"),
    "mpeg2_no_b.ts": coded(MPEG2, f"-bf 0 -g 12 {TS}"),
    "mpeg4_b.mp4": coded(MPEG4, MPEG2_B),
    "mpeg4_b.mkv": coded(MPEG4, MPEG2_B),
    "mpeg4_b.avi": coded(MPEG4, MPEG2_B),
    "mpeg4_b_closed.mp4": coded(MPEG4, f"{MPEG2_B} -flags +cgop"),
    "mpeg4_qpel.mp4": coded(MPEG4, f"{MPEG2_B} -flags +qpel+mv4"),
    "mpeg4_no_b.mp4": coded(MPEG4, "-g 12"),
    "mpeg4_cut_15.mp4": cut(coded(MPEG4, MPEG2_B), frame=15),
    "xvid.mp4": coded("-c:v libxvid -q:v 3", MPEG2_B),
    # VP8, VP9, AV1
    "vp8.webm": coded(VP8, "-g 12"),
    "vp8_alt_ref.webm": coded(VP8, "-auto-alt-ref 1 -lag-in-frames 16 -g 25 -arnr-maxframes 5"),
    "vp9.webm": coded(VP9, "-g 12"),
    "vp9_alt_ref.webm": coded(VP9, "-auto-alt-ref 1 -lag-in-frames 16 -g 25"),
    "vp9_alt_ref.mp4": coded(VP9, "-auto-alt-ref 1 -lag-in-frames 16 -g 25"),
    "vp9_alt_ref_6.mkv": coded(VP9, "-auto-alt-ref 6 -lag-in-frames 25 -g 50"),
    "vp9_split.mkv": copied(
        coded(VP9, "-auto-alt-ref 1 -lag-in-frames 16 -g 25"), "-bsf:v vp9_superframe_split"
    ),
    "av1_svt.mp4": coded(AV1, "-g 16"),
    "av1_svt.mkv": coded(AV1, "-g 16"),
    "av1_svt.webm": coded(AV1, "-g 32"),
    "av1_aom.mp4": coded(AOM, "-g 16 -lag-in-frames 8", num_frames=40),
    "av1_cut_21.mp4": cut(coded(AV1, "-g 16"), frame=21),
    "vp9_cut_21.mp4": cut(coded(VP9, "-g 12"), frame=21),
    # Intra only and others
    "mjpeg.mov": coded("-c:v mjpeg -q:v 3 -pix_fmt yuvj420p"),
    "mjpeg.avi": coded("-c:v mjpeg -q:v 3 -pix_fmt yuvj420p"),
    "prores.mov": coded("-c:v prores"),
    "ffv1.mkv": coded("-c:v ffv1 -g 1 -pix_fmt yuv420p"),
    "ffv1_g12.mkv": coded("-c:v ffv1 -g 12 -coder 1 -context 1 -pix_fmt yuv420p"),
    "huffyuv.mkv": coded("-c:v huffyuv"),
    "raw.mkv": coded("-c:v rawvideo -pix_fmt yuv420p"),
    "png.mov": coded("-c:v png"),
    "dnxhd.mov": coded("-c:v dnxhd -profile:v dnxhr_lb -pix_fmt yuv422p -s 256x128"),
    "cfhd.mov": coded("-c:v cfhd"),
    "utvideo.mkv": coded("-c:v utvideo"),
    "dv.mov": coded("-c:v dvvideo -s 720x576 -pix_fmt yuv420p", num_frames=20),
    "jpeg2000.mov": coded("-c:v jpeg2000 -q:v 3"),
    "qtrle.mov": coded("-c:v qtrle -g 12"),
    "svq1.mov": coded("-c:v svq1 -g 12 -s 96x64"),
    "magicyuv.mkv": coded("-c:v magicyuv"),
    "vc2.mkv": coded("-c:v vc2"),
    "snow.mkv": coded("-c:v snow -strict -2 -g 12 -pix_fmt yuv420p"),
    "gif.gif": coded("-c:v gif"),
    "apng.apng": coded("-c:v apng -f apng"),
    "theora.ogv": coded("-c:v libtheora -q:v 6 -g 12"),
    "flv1.flv": coded("-c:v flv -q:v 3 -g 12"),
    "wmv2.asf": coded("-c:v wmv2 -q:v 3 -g 12"),
    "h263.3gp": coded("-c:v h263 -q:v 3 -g 12 -s 176x144"),
    "vvc.mp4": coded("-c:v libvvenc -preset faster -pix_fmt yuv420p10le", num_frames=20),
    # Losses, damage, joints
    **{
        f"lost_{first}_{suffix}": without_packets(OPEN, numbers=range(first, first + 1))
        for first in (12, 13, 14, 15, 16, 17, 20, 24)
        for suffix in ("a.mp4", "b.mkv")
    },
    "lost_many.mkv": without_packets(OPEN, numbers=range(13, 30)),
    "lost_key.mkv": without_packets(PLAIN, numbers=range(24, 25)),
    "lost_ref_no_b.mkv": without_packets(x264("bframes=0:ref=1"), numbers=range(27, 28)),
    "lost_ref_no_b.mp4": without_packets(x264("bframes=0:ref=1"), numbers=range(27, 28)),
    "lost_first.mkv": without_packets(PLAIN, numbers=range(1)),
    "lost_first_open.ts": without_packets(OPEN, numbers=range(1)),
    "lost_dropped.mp4": copied(OPEN, "-bsf:v noise=drop='not(mod(n+1\\,17))'"),
    **{
        f"lost_hevc_{n}.mkv": without_packets(
            x265("bframes=3:keyint=12:open-gop=1"), numbers=range(n, n + 1)
        )
        for n in (12, 13, 14, 15)
    },
    "lost_mpeg2_15.mkv": without_packets(coded(MPEG2, MPEG2_B), numbers=range(15, 16)),
    "lost_mpeg2_12.mkv": without_packets(coded(MPEG2, MPEG2_B), numbers=range(12, 13)),
    "lost_mpeg4_15.mkv": without_packets(coded(MPEG4, MPEG2_B), numbers=range(15, 16)),
    "lost_vp9_15.mkv": without_packets(coded(VP9, "-g 12"), numbers=range(15, 16)),
    "noise.mp4": copied(OPEN, "-bsf:v noise=amount=200"),
    "noise_little.mkv": copied(OPEN, "-bsf:v noise=amount='if(eq(n\\,30)\\,20\\,0)'"),
    "noise_hevc.mp4": copied(x265("bframes=3:keyint=12"), "-bsf:v noise=amount=100"),
    "noise_vp9.webm": copied(coded(VP9, "-g 12"), "-bsf:v noise=amount=100"),
    "noise_mpeg2.mkv": copied(coded(MPEG2, MPEG2_B), "-bsf:v noise=amount=100"),
    "noise_mpeg4.mkv": copied(coded(MPEG4, MPEG2_B), "-bsf:v noise=amount=100"),
    "noise_av1.mkv": copied(coded(AV1, "-g 16"), "-bsf:v noise=amount=100"),
    "joined_other_refs.ts": joined(
        x264(f"{B3}:ref=1:open-gop=1", TS),
        x264(f"{B3}:ref=5:b-pyramid=normal:open-gop=1", f"{TS} -output_ts_offset 3"),
    ),
    "joined_other_size.ts": joined(
        x264(B3, TS), x264(B3, f"{TS} -s 160x96 -output_ts_offset 3")
    ),
    "joined_far.ts": joined(x264(B3, TS), x264(B3, f"{TS} -output_ts_offset 30")),
    "joined_same_times.ts": joined(x264(B3, TS), x264(B3, TS)),
    "begins_inside.ts": bytes_changed(
        x264(f"{B3}:open-gop=1", TS), lambda data: data[188 * (len(data) // 188 // 8) :]
    ),
    "begins_inside_mpeg2.ts": bytes_changed(
        coded(MPEG2, f"{MPEG2_B} {TS}"), lambda data: data[188 * (len(data) // 188 // 8) :]
    ),
    "begins_inside_mpeg2.mpg": bytes_changed(
        coded(MPEG2, MPEG2_B), lambda data: data[2048 * (len(data) // 2048 // 3) :]
    ),
    "ends_early.ts": bytes_changed(x264(B3, TS), lambda data: data[: len(data) * 2 // 3]),
    "ends_early.mkv": bytes_changed(OPEN, lambda data: data[: len(data) * 2 // 3]),
}
