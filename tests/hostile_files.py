"""Video files that mean harm: they claim too much, or point elsewhere."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.clips import H264, VP9, encode_clip, gif_of_any_size, run_ffmpeg

HUGE = 30_000
"""Pixels a side."""
BILLION = 10**9
_PARENTS = (b"moov", b"trak", b"mdia", b"minf", b"dinf", b"stbl")

Edit = Callable[[bytes], bytes]


def edit_atoms(data: bytes, edits: Mapping[bytes, Edit]) -> bytes:
    """An MP4 with the contents of some atoms replaced, wherever they lie; sizes are corrected."""
    result, rest = b"", data
    while rest:
        size, name = int.from_bytes(rest[:4], "big"), rest[4:8]
        content, rest = rest[8:size], rest[size:]
        if name in edits:
            content = edits[name](content)
        elif name in _PARENTS:
            content = edit_atoms(content, edits)
        result += atom(name, content)
    return result


def atom(name: bytes, content: bytes) -> bytes:
    return (8 + len(content)).to_bytes(4, "big") + name + content


def put(offset: int, value: int, *, size: int = 4) -> Edit:
    """Overwrite a number."""

    def edit(content: bytes) -> bytes:
        return content[:offset] + value.to_bytes(size, "big") + content[offset + size :]

    return edit


def small_mp4(path: Path, *, codec: str = H264, suffix: str = "mp4") -> bytes:
    """One second; the index comes after the pictures, so that it may change its size."""
    clip = encode_clip(
        path.with_suffix(f".whole.{suffix}"), num_frames=25, codec=codec, options="-bf 0"
    )
    data = clip.path.read_bytes()
    clip.path.unlink()
    return data


# Pictures beyond all sizes


def huge_in_header(path: Path) -> None:
    """H.264 in MP4: the container and the codec's own header say 30,000 x 30,000."""
    data = edit_atoms(small_mp4(path), {b"stsd": lambda content: _huge_sps(_huge_entry(content))})
    path.write_bytes(data)


def huge_in_codec(path: Path) -> None:
    """The container says 96 x 64, only the codec's header tells the truth."""
    path.write_bytes(edit_atoms(small_mp4(path), {b"stsd": _huge_sps}))


def _huge_entry(content: bytes) -> bytes:
    # Width and height lie 32 bytes into the first sample entry, which is 8 bytes in.
    return put(42, HUGE, size=2)(put(40, HUGE, size=2)(content))


def _huge_sps(content: bytes) -> bytes:
    entry = content[8:]
    name, inside = entry[4:8], entry[8:]
    fixed, children = inside[:78], inside[78:]
    return content[:8] + atom(name, fixed + edit_atoms(children, {b"avcC": _with_huge_sps}))


def _with_huge_sps(content: bytes) -> bytes:
    # ISO/IEC 14496-15: five bytes, the number of SPS, each with its length, then the PPS.
    old = int.from_bytes(content[6:8], "big")
    bits = "".join(map(_golomb, (0, 0, 2, 1)))  # id, frame numbers, order of pictures, references
    bits += "0" + _golomb(HUGE // 16 - 1) * 2 + "1100" + "1"  # blocks a side; progressive; the end
    bits += "0" * (-len(bits) % 8)
    sps = b"\x67\x42\xc0\x34" + int(bits, 2).to_bytes(len(bits) // 8, "big")
    return content[:6] + len(sps).to_bytes(2, "big") + sps + content[8 + old :]


def _golomb(value: int) -> str:
    digits = f"{value + 1:b}"
    return "0" * (len(digits) - 1) + digits


def huge_gif(path: Path) -> None:
    gif_of_any_size(path, width=HUGE, height=HUGE, num_frames=3)


def huge_png_in_mov(path: Path) -> None:
    """The header of every PNG says so, with a right check sum."""
    first, *pictures = small_mp4(path, codec="-c:v png", suffix="mov").split(b"IHDR")
    data = first
    for picture in pictures:
        header = b"IHDR" + HUGE.to_bytes(4, "big") * 2 + picture[8:13]
        data += header + zlib.crc32(header).to_bytes(4, "big") + picture[17:]
    path.write_bytes(data)


def huge_vp9(path: Path) -> None:
    """Every key frame says so; four bits after the sync code."""
    clip = encode_clip(path.with_suffix(".whole.webm"), num_frames=25, codec=VP9, options="-g 1")
    data = clip.path.read_bytes()
    clip.path.unlink()
    sync = b"\x49\x83\x42"
    parts = data.split(sync)
    for number, part in enumerate(parts[1:], 1):
        bits = int.from_bytes(part[:5], "big")
        size = (HUGE - 1) << 16 | HUGE - 1
        bits = bits & ~(0xFFFFFFFF << 4) | size << 4
        parts[number] = bits.to_bytes(5, "big") + part[5:]
    path.write_bytes(sync.join(parts))


# Claims of a billion frames


def billion_in_stts(path: Path) -> None:
    """The table of times of an MP4 and its durations claim a billion frames."""
    edits = {b"stts": put(8, BILLION), b"mvhd": put(16, BILLION), b"mdhd": put(16, BILLION)}
    path.write_bytes(edit_atoms(small_mp4(path), edits))


def billion_samples(path: Path, *, count: int = BILLION) -> None:
    """The table of sizes too: a billion frames of one byte, in one chunk."""
    edits = {
        b"stts": put(8, count),
        b"stsz": lambda content: put(8, count)(put(4, 1)(content))[:12],
        b"stsc": put(12, count),
    }
    path.write_bytes(edit_atoms(small_mp4(path), edits))


def endless_mkv(path: Path) -> None:
    """A duration of 31,000 years, in Matroska."""
    clip = encode_clip(path.with_suffix(".whole.mkv"), num_frames=25, options="-bf 0")
    data = bytearray(clip.path.read_bytes())
    clip.path.unlink()
    place = data.index(b"\x44\x89\x88") + 3
    data[place : place + 8] = bytes.fromhex("42d6bcc41e900000")  # 1e14 in milliseconds
    path.write_bytes(data)


def endless_avi(path: Path) -> None:
    """AVI that claims a billion frames in both of its headers."""
    clip = encode_clip(
        path.with_suffix(".whole.avi"), num_frames=25, codec="-c:v mpeg4", options="-bf 0"
    )
    data = bytearray(clip.path.read_bytes())
    clip.path.unlink()
    for name, offset in ((b"avih", 8 + 16), (b"strh", 8 + 32)):
        place = data.index(name) + offset
        data[place : place + 4] = BILLION.to_bytes(4, "little")
    path.write_bytes(data)


# Files that point at others


def refers_by_alias(path: Path, other: Path, *, absolute: bool) -> None:
    """MOV whose pictures lie in another file, named by a Macintosh alias; its own are zeros.

    Offsets are those of `small_mp4(..., suffix="mov")`: the other file may be one.
    """
    text = str(other).encode() if absolute else other.name.encode()
    alias = bytes(10) + bytes(28) + bytes(12) + bytes(64) + bytes(16)
    alias += (b"\0\0\0\0" if absolute else b"\0\1\0\1") + bytes(16)
    place = b"/" + text if not absolute else text
    place += b"\0" * (len(place) % 2)
    alias += b"\0\2" + len(place).to_bytes(2, "big") + place + b"\xff\xff\0\0" + bytes(20)
    refers(path, b"alis", alias)


def refers_by_url(path: Path, url: str) -> None:
    """MP4 whose pictures lie at a URL; its own are zeros."""
    refers(path, b"url ", url.encode() + b"\0")


def refers(path: Path, kind: bytes, place: bytes) -> None:
    entry = atom(kind, bytes(4) + place)
    table = bytes(4) + (1).to_bytes(4, "big") + entry
    edits: dict[bytes, Edit] = {b"dref": lambda _: table, b"mdat": lambda old: bytes(len(old))}
    path.write_bytes(edit_atoms(small_mp4(path, suffix="mov"), edits))


def linked_mkv(path: Path, other: Path) -> None:
    """Matroska that is linked to other segments by name, with an attachment and chapters."""
    chapters = path.with_suffix(".chapters")
    chapters.write_text(
        f";FFMETADATA1\n[CHAPTER]\nTIMEBASE=1/1\nSTART=0\nEND=1\ntitle=file://{other}\n"
    )
    clip = encode_clip(path.with_suffix(".whole.mkv"), num_frames=25, options="-bf 0")
    data = run_ffmpeg(
        *("-i", clip.path, "-i", chapters, "-map_metadata", "1", "-c", "copy"),
        *("-attach", other, "-metadata:s:t", "mimetype=video/mp4"),
        *("-f", "matroska", "pipe:1"),
    )
    clip.path.unlink()
    chapters.unlink()
    links = b"".join(
        name + (0x4000 | len(value)).to_bytes(2, "big") + value
        for name, value in (
            (b"\x73\x84", str(other).encode()),  # SegmentFilename
            (b"\x3c\x83\xab", str(other).encode()),  # PrevFilename
            (b"\x3e\x83\xbb", str(other).encode()),  # NextFilename
            (b"\x3e\xb9\x23", bytes(range(16))),  # NextUUID
            (b"\x3c\xb9\x23", bytes(range(16))),  # PrevUUID
        )
    )
    start = data.index(b"\x15\x49\xa9\x66") + 4
    width = 9 - data[start].bit_length()
    size = int.from_bytes(data[start : start + width], "big") & (1 << 7 * width) - 1
    new = (0x01 << 56 | size + len(links)).to_bytes(8, "big")
    end = start + width + size
    path.write_bytes(data[:start] + new + data[start + width : end] + links + data[end:])
