"""Frames to pictures, against the standards' formulas in float64 (tests/colours.py)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest

from pipeline import tones
from pipeline.pixels import Converter, Pictures, join_pictures
from pipeline.scaling import as_displayed
from schemas.errors import VideoError
from tests.clips import run_ffmpeg
from tests.colours import (
    BT709_OF_BT2020,
    TAGS,
    Floats,
    hlg_of_scene,
    light_of_srgb,
    make_frame,
    nits_of_hlg,
    nits_of_pq,
    planes_of_rgb,
    pq_of_nits,
    read_planes,
    resample,
    rgb_of_planes,
    srgb_of_light,
    srgb_of_nits,
)

Picture = npt.NDArray[np.uint8]

UNSPECIFIED, LIMITED, FULL = 2, 1, 2
"""Matrix, primaries or transfer; ranges."""
TRANSFER = {"pq": 16, "hlg": 18}
SIZES = [(384, 384), (64, 48)]


def convert(frame: Any, size: tuple[int, int], *, sample_aspect: float = 1.0) -> Picture:
    converter = Converter(sizes={"image": size}, preview_height=None)
    return converter.convert(frame, sample_aspect=sample_aspect).frames["image"]


def read_frame(path: Path, number: int) -> Any:
    with av.open(str(path)) as container:
        for index, frame in enumerate(container.decode(video=0)):
            if index == number:
                return frame
    raise AssertionError(f"{path} has no frame {number}")


def assert_near(got: Picture, expected: Floats, *, mean: float, largest: float) -> None:
    """Errors in levels of 255; rounding alone has a mean of 0.25 and at most 0.5."""
    assert got.dtype == np.uint8
    assert got.flags.c_contiguous
    assert got.shape == expected.shape
    error = np.abs(got - expected * 255)
    print(f"{error.mean():.3f} of {mean}, {error.max():.2f} of {largest}")  # noqa: T201 - to -rA
    assert error.mean() <= mean
    assert error.max() <= largest


def grey_ramp(num: int = 256) -> Floats:
    """(8, num, 3) from black to white."""
    return np.broadcast_to(np.linspace(0, 1, num)[None, :, None], (8, num, 3)).copy()


def scenery(width: int, height: int, *, seed: int = 0) -> Floats:
    """(H, W, 3) in [0, 1]: soft coloured blobs that use all of the range."""
    small = np.random.default_rng(seed).random((5, 7, 3))
    return resample(small, (width, height)).clip(0, 1)


@dataclass(frozen=True, kw_only=True)
class Real:
    """A corpus file, its colours as a person reads them off its headers, and allowed errors."""

    name: str
    matrix: str
    bits: int = 8
    full_range: bool = False
    chroma: str = "420"
    siting: str = "left"
    mean: float = 0.30
    largest: float = 2.0
    turns: int = field(default=0, kw_only=True)
    """Quarter turns counter-clockwise that put the picture upright."""


REAL = [
    Real(name="bt709_full_range.mp4", matrix="bt709", full_range=True, largest=4),
    Real(name="h264_10bits.mp4", matrix="bt601", bits=10, largest=12),
    Real(name="h265_10bits.mp4", matrix="bt601", bits=10, largest=6),
    Real(name="bikes.mp4", matrix="bt601"),
    Real(name="water_bottle_drumming.mp4", matrix="bt601", full_range=True, siting="centre"),
    Real(name="cockatoo.mp4", matrix="bt709", chroma="444"),
    Real(name="mmaction_demo_skeleton.mp4", matrix="bt709"),
    # Its alpha is a second stream inside of each packet, which FFmpeg's decoder does not read.
    Real(name="transparent.webm", matrix="bt601", siting="centre"),
    # libswscale stretches 88 samples of chroma over 175 pixels, where they are of 176.
    Real(name="odd_175x143_carphone.webm", matrix="bt601", siting="centre", mean=1.0, largest=32),
    Real(name="video_0.mov", matrix="bt709"),
    Real(name="video_90.mov", matrix="bt709", turns=3),
    Real(name="video_180.mov", matrix="bt709", turns=2),
    Real(name="video_270.mov", matrix="bt709", turns=1),
]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("real", REAL, ids=lambda real: real.name)
def test_real_files(real: Real, size: tuple[int, int], corpus_dir: Path) -> None:
    frame = read_frame(corpus_dir / real.name, 2)
    expected = rgb_of_planes(
        read_planes(frame, bits=real.bits),
        size=size[::-1] if real.turns % 2 else size,
        matrix=real.matrix,
        full_range=real.full_range,
        bits=real.bits,
        chroma=real.chroma,
        siting=real.siting,
    )
    expected = np.rot90(expected, k=real.turns)
    assert_near(convert(frame, size), expected, mean=real.mean, largest=real.largest)


def test_a_real_hdr_file(corpus_dir: Path) -> None:
    """It is dark all through: the picture is black, upright, and its signal is not."""
    frame = read_frame(corpus_dir / "rails_rotated_hdr_video.mov", 8)
    assert frame.color_trc == TRANSFER["hlg"]
    planes = read_planes(frame, bits=10)
    signal = rgb_of_planes(planes, size=(64, 36), matrix="bt2020", full_range=False, bits=10)
    expected = np.rot90(srgb_of_nits(nits_of_hlg(signal)), k=-1)
    assert_near(convert(frame, (36, 64)), expected, mean=0.3, largest=1)
    pictures = Converter(sizes={}, preview_height=64).convert(frame, sample_aspect=1.0)
    assert pictures.preview is not None
    assert pictures.preview.shape == (64, 36, 3)


def test_a_turned_file_is_like_the_one_with_turned_pixels(corpus_dir: Path) -> None:
    turned = convert(read_frame(corpus_dir / "rails_rotated_video.mp4", 8), (48, 64))
    baked = convert(read_frame(corpus_dir / "portrait_baked_rails.mp4", 8), (48, 64))
    assert np.abs(turned.astype(int) - baked).mean() < 3


@pytest.mark.parametrize("bits", [8, 10, 12])
@pytest.mark.parametrize("full_range", [False, True])
@pytest.mark.parametrize("matrix", ["bt601", "bt709", "bt2020"])
def test_matrix_range_and_depth(matrix: str, full_range: bool, bits: int) -> None:
    rgb = scenery(96, 64)
    planes = planes_of_rgb(rgb, matrix=matrix, full_range=full_range, bits=bits)
    frame = make_frame(
        planes,
        "yuv444p" if bits == 8 else f"yuv444p{bits}le",
        colorspace=TAGS[matrix],
        color_range=FULL if full_range else LIMITED,
    )
    # libswscale takes 255/256 for full range in all depths: up to 0.75 too dark at 10 and 12 bits.
    coarse = 0.55 if bits == 8 or full_range else 0.30
    assert_near(convert(frame, (96, 64)), rgb, mean=coarse, largest=2.5)
    small = resample(rgb, (40, 24)).clip(0, 1)
    assert_near(convert(frame, (40, 24)), small, mean=coarse, largest=2.5)


@pytest.mark.parametrize(
    ("width", "height", "matrix"),
    [(1280, 64, "bt709"), (64, 578, "bt709"), (1278, 64, "bt601"), (64, 576, "bt601")],
)
def test_an_unspecified_matrix_is_that_of_players(width: int, height: int, matrix: str) -> None:
    rgb = scenery(width, height)
    planes = planes_of_rgb(rgb, matrix=matrix, full_range=False, bits=8)
    frame = make_frame(planes, "yuv444p", colorspace=UNSPECIFIED)
    assert_near(convert(frame, (64, 64)), resample(rgb, (64, 64)).clip(0, 1), mean=0.6, largest=2.5)


def test_an_unspecified_range_is_limited_but_not_of_yuvj() -> None:
    rgb = scenery(96, 64)
    for name, full_range in (("yuv444p", False), ("yuvj444p", True)):
        planes = planes_of_rgb(rgb, matrix="bt601", full_range=full_range, bits=8)
        frame = make_frame(planes, name, color_range=0, colorspace=UNSPECIFIED)
        assert_near(convert(frame, (96, 64)), rgb, mean=0.6, largest=2.5)


@pytest.mark.parametrize("matrix", [3, 10, 12, 13, 14, 15])
def test_a_matrix_without_a_conversion_is_refused(matrix: int) -> None:
    frame = make_frame([np.full((64, 64), 99, np.uint8)] * 3, "yuv444p", colorspace=matrix)
    with pytest.raises(VideoError) as caught:
        convert(frame, (32, 32))
    assert caught.value.reason == "unsupported_codec"


def hdr_frame(signal: Floats, transfer: str, **tags: int) -> Any:
    planes = planes_of_rgb(signal, matrix="bt2020", full_range=False, bits=10)
    wide = {"colorspace": 9, "color_primaries": 9, "color_range": LIMITED}
    return make_frame(planes, "yuv444p10le", **(wide | {"color_trc": TRANSFER[transfer]} | tags))


def nits_of(signal: Floats, transfer: str) -> Floats:
    return nits_of_pq(signal) if transfer == "pq" else nits_of_hlg(signal)


@pytest.mark.parametrize("transfer", ["pq", "hlg"])
@pytest.mark.parametrize("picture", [grey_ramp(), scenery(96, 64)], ids=["ramp", "scenery"])
def test_hdr_is_as_the_formulas_say(picture: Floats, transfer: str) -> None:
    height, width = picture.shape[:2]
    expected = srgb_of_nits(nits_of(picture, transfer))
    got = convert(hdr_frame(picture, transfer), (width, height))
    inside = expected.min(axis=2) > 0.1  # ten bits are coarse where a colour leaves the gamut
    assert_near(got[inside], expected[inside], mean=0.5, largest=10)
    assert_near(got, expected, mean=0.5, largest=32)


@pytest.mark.parametrize("transfer", ["pq", "hlg"])
def test_hdr_tables_are_as_exact_as_eight_bits_need(transfer: tones.Transfer) -> None:
    """Without the planes' own rounding in between."""
    code = (scenery(96, 64) * tones.WHITE_CODE).round().astype(np.uint16)
    got = tones.to_sdr(code, transfer=transfer, wide_gamut=True)
    assert_near(
        got, srgb_of_nits(nits_of(code / tones.WHITE_CODE, transfer)), mean=0.26, largest=0.75
    )


@pytest.mark.parametrize("transfer", ["pq", "hlg"])
def test_hdr_white_and_greys(transfer: str) -> None:
    ramp = grey_ramp()
    got = convert(hdr_frame(ramp, transfer), (256, 8))[0].astype(int)
    assert np.ptp(got, axis=1).max() == 0, "grey is not grey"
    assert (np.diff(got[:, 0]) >= 0).all()
    nits = nits_of(ramp, transfer)[0, :, 0]
    white = got[np.abs(nits - 203).argmin(), 0]
    assert 222 <= white <= 236
    assert got[np.abs(nits - 203 * 0.18).argmin(), 0] == pytest.approx(118, abs=4)
    assert got[-1, 0] == 255


@pytest.mark.parametrize("transfer", ["pq", "hlg"])
def test_an_ordinary_picture_made_hdr_looks_as_before(transfer: str) -> None:
    """Up to the knee the same; what is bright a little darker, for highlights to have room."""
    rgb = scenery(96, 64) * 0.6
    nits = 203 * light_of_srgb(rgb) @ np.linalg.inv(BT709_OF_BT2020).T
    if transfer == "pq":
        signal = pq_of_nits(nits.clip(0))
    else:
        luminance = (nits / 1000) @ np.array([0.2627, 0.6780, 0.0593])
        signal = hlg_of_scene(nits / 1000 * luminance[..., None].clip(1e-9) ** (1 / 1.2 - 1))
    assert_near(convert(hdr_frame(signal, transfer), (96, 64)), rgb, mean=1.0, largest=8)


def test_hdr_without_other_tags_is_bt2020() -> None:
    picture = scenery(96, 64)
    bare = hdr_frame(picture, "pq", colorspace=UNSPECIFIED, color_primaries=UNSPECIFIED)
    assert np.array_equal(convert(bare, (96, 64)), convert(hdr_frame(picture, "pq"), (96, 64)))


def test_wide_gamut_without_hdr_is_brought_to_bt709() -> None:
    rgb = scenery(96, 64)
    planes = planes_of_rgb(rgb, matrix="bt2020", full_range=False, bits=10)
    frame = make_frame(planes, "yuv444p10le", colorspace=9, color_primaries=9, color_trc=14)
    expected = srgb_of_light(light_of_srgb(rgb) @ BT709_OF_BT2020.T)
    got = convert(frame, (96, 64))
    inside = expected.min(axis=2) > 0.1  # steep where a colour leaves the gamut
    assert_near(got[inside], expected[inside], mean=0.6, largest=4)
    grey = hdr_frame(grey_ramp(), "pq", color_trc=14)
    assert_near(convert(grey, (256, 8)), grey_ramp(), mean=0.3, largest=1)


TABLES = {
    "_sdr_light": "d6214c83946614a9",
    "_pq_light": "9dc25a1538a9819f",
    "_hlg_scene_light": "efdd9add914f897e",
    "_hlg_gain": "f471428bbf0107d4",
    "_tone_gain": "7d74e6c1399faefc",
    "_srgb_code": "405251c9c3a639a7",
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_the_same_on_every_machine(name: str) -> None:
    """Another digest is another treatment: a FINGERPRINT break."""
    table = getattr(tones, name)().astype("<i8")
    assert hashlib.sha256(table.tobytes()).hexdigest()[:16] == TABLES[name]


def test_the_integer_matrices_keep_white() -> None:
    assert tones._TO_BT709.sum(axis=1).tolist() == [1 << tones.MATRIX_BITS] * 3
    assert tones._LUMINANCE.sum() == 1 << tones.MATRIX_BITS
    np.testing.assert_allclose(tones._TO_BT709 / 65536, BT709_OF_BT2020, rtol=0, atol=5e-5)


@pytest.mark.parametrize("name", ["rgb24", "rgb48le"])
def test_a_picture_without_alpha_is_like_an_opaque_one(name: str) -> None:
    kind = np.dtype(np.uint8 if name == "rgb24" else "<u2")
    top = np.iinfo(kind).max
    rgb = (scenery(96, 64) * top).round().astype(kind)
    opaque = np.concatenate([rgb, np.full((64, 96, 1), top, kind)], axis=2)
    for size in ((96, 64), (40, 24), (200, 100)):
        plain = convert(make_frame([rgb], name), size)
        with_alpha = convert(
            make_frame(
                [opaque],
                name.replace("rgb", "rgba").replace("rgba24", "rgba").replace("rgba48", "rgba64"),
            ),
            size,
        )
        assert np.abs(plain.astype(int) - with_alpha).max() <= 1
        assert_near(plain, resample(rgb / top, size).clip(0, 1), mean=0.6, largest=3)


def test_alpha_is_over_black() -> None:
    alpha = np.broadcast_to(np.linspace(0, 255, 256).round().astype(np.uint8), (8, 256))
    seen = np.repeat(alpha[..., None] / 255, 3, axis=2)
    white = np.full((8, 256), 255, np.uint8)
    rgba = np.dstack([white, white, white, alpha])
    neutral = np.full((8, 256), 128, np.uint8)
    for frame in (
        make_frame([rgba], "rgba"),
        make_frame([rgba], "bgra"),
        make_frame([rgba[..., 2:]], "ya8"),
        make_frame(
            [np.full((8, 256), 235, np.uint8), neutral, neutral, np.array(alpha)], "yuva444p"
        ),
    ):
        assert_near(convert(frame, (256, 8)), seen, mean=0.3, largest=1.5)


def test_what_alpha_hides_does_not_show_at_the_edges() -> None:
    """A black disc on transparent white, as GIFs have it, is black at any size."""
    y, x = np.mgrid[:61, :91]
    alpha = np.where((y - 30) ** 2 + (x - 45) ** 2 < 400, 255, 0).astype(np.uint8)
    hidden = np.where(alpha > 0, 0, 255).astype(np.uint8)
    frame = make_frame([np.dstack([hidden, hidden, hidden, alpha])], "rgba")
    for size in ((20, 20), (200, 150)):
        assert convert(frame, size).max() == 0


def test_alpha_is_rounded_to_the_nearest() -> None:
    colour, alpha = np.meshgrid(np.arange(256), np.arange(256))
    rgba = np.dstack([colour, colour, colour, alpha]).astype(np.uint8)
    exact = np.floor(colour * alpha / 255 + 0.5)
    assert np.array_equal(tones.over_black(rgba[..., :3], rgba[..., 3])[..., 0], exact)


def test_hdr_with_alpha() -> None:
    signal = grey_ramp()
    planes = planes_of_rgb(signal, matrix="bt2020", full_range=False, bits=10)
    half = np.full((8, 256), 512, "<u2")
    tags = {"colorspace": 9, "color_primaries": 9, "color_range": LIMITED, "color_trc": 16}
    got = convert(make_frame([*planes, half], "yuva444p10le", **tags), (256, 8))
    opaque = convert(hdr_frame(signal, "pq"), (256, 8))
    assert_near(got, opaque / 255 * 512 / 1023, mean=0.6, largest=1.5)


@pytest.mark.parametrize("name", ["fixture.apng", "newtonscradle.gif", "pigs_in_a_polka.gif"])
def test_transparent_files(name: str, corpus_dir: Path) -> None:
    frame = read_frame(corpus_dir / name, 8)
    pixels = frame.to_ndarray(format="rgba").astype(float) / 255
    expected = pixels[..., :3] * pixels[..., 3:]
    assert_near(convert(frame, (frame.width, frame.height)), expected, mean=0.6, largest=3)


def woven(folder: Path, *, order: str, height: int = 64) -> Any:
    """An interlaced frame whose top field is white and whose bottom field is black."""
    rows = np.where(np.arange(height) % 2 == 0, 235, 16).astype(np.uint8)
    luma = np.repeat(rows, 96)
    raw = luma.tobytes() + bytes([128]) * (96 * height // 2)
    path = folder / f"{order}.ts"
    run_ffmpeg(
        *("-f", "rawvideo", "-pix_fmt", "yuv420p", "-s", f"96x{height}", "-r", "25", "-i", "-"),
        *("-vf", f"setfield={order}", "-c:v", "mpeg2video", "-q:v", "1"),
        *(("-flags", "+ildct+ilme") if order != "prog" else ()),
        path,
        stdin=raw * 5,
    )
    return read_frame(path, 2)


@pytest.mark.parametrize(("order", "level"), [("tff", 255), ("bff", 0)])
def test_of_an_interlaced_frame_the_first_field_is_seen(
    order: str, level: int, tmp_path: Path
) -> None:
    frame = woven(tmp_path, order=order)
    assert frame.interlaced_frame
    for size in ((96, 64), (32, 32)):
        picture = convert(frame, size)
        assert np.abs(picture.astype(int) - level).max() <= 3
    assert frame.height == 64


def test_a_progressive_frame_is_left_whole(tmp_path: Path) -> None:
    frame = woven(tmp_path, order="prog")
    assert not frame.interlaced_frame
    assert as_displayed(frame) is frame
    assert {level // 128 for level in convert(frame, (96, 64))[:, 40, 1].tolist()} == {0, 1}


def test_a_real_interlaced_file(corpus_dir: Path) -> None:
    frame = read_frame(corpus_dir / "fixture-raw.mts", 8)
    assert frame.interlaced_frame
    top = [plane[::2] for plane in read_planes(frame, bits=8)]
    expected = rgb_of_planes(top, size=(96, 64), matrix="bt709", full_range=False, bits=8)
    assert_near(convert(frame, (96, 64)), expected, mean=0.3, largest=2)


@pytest.mark.parametrize("size", [(384, 384), (48, 48), (1, 1), (1, 64), (256, 64)])
@pytest.mark.parametrize(
    ("width", "height"),
    [(1, 1), (1, 2), (2, 1), (3, 5), (17, 1), (1, 4000), (4000, 1), (8190, 3), (5, 8191)],
)
@pytest.mark.parametrize("name", ["yuv420p", "yuv444p", "yuv420p10le", "gray", "rgba", "nv12"])
def test_sizes_of_every_kind(name: str, width: int, height: int, size: tuple[int, int]) -> None:
    frame = av.VideoFrame(width, height, name)
    for plane in frame.planes:
        plane.update(bytes([128, 0] * plane.buffer_size)[: plane.buffer_size])
    picture = convert(frame, size)
    assert picture.shape == (size[1], size[0], 3)
    for transfer in TRANSFER.values():
        frame.color_trc = transfer
        assert convert(frame, size).shape == picture.shape


@pytest.mark.parametrize("name", ["yuv444p", "gray", "gray10le", "rgb24"])
def test_an_even_picture_stays_even_at_any_size(name: str) -> None:
    for width, height in ((1, 1), (1, 4000), (175, 143), (4000, 1)):
        frame = av.VideoFrame(width, height, name)
        for plane in frame.planes:
            fill = b"\x00\x02" if name == "gray10le" else b"\x80"
            plane.update(fill * (plane.buffer_size // len(fill)))
        for size in ((384, 384), (48, 48), (256, 64)):
            assert np.ptp(convert(frame, size)) <= 1


@pytest.mark.parametrize("sample_aspect", [1e-9, 1e9, 0.5, 2.0])
def test_pixels_of_any_shape(sample_aspect: float) -> None:
    frame = make_frame([np.zeros((64, 96), np.uint8)], "gray")
    converter = Converter(sizes={"image": (32, 32)}, preview_height=64)
    pictures = converter.convert(frame, sample_aspect=sample_aspect)
    assert pictures.preview is not None
    assert pictures.preview.shape[0] == 64
    assert 1 <= pictures.preview.shape[1] <= 256


def test_a_video_of_changing_frames_is_as_each_frame_alone(tmp_path: Path) -> None:
    grey = (scenery(40, 30)[..., 0] * 255).astype(np.uint8)
    frames = [
        make_frame([grey], "gray"),
        hdr_frame(scenery(96, 64), "pq"),
        woven(tmp_path, order="tff"),
        make_frame(
            planes_of_rgb(scenery(64, 96), matrix="bt709", full_range=True, bits=8),
            "yuv444p",
            colorspace=1,
            color_range=FULL,
        ),
        make_frame([np.dstack([grey] * 4)], "rgba"),
        hdr_frame(scenery(96, 64), "hlg"),
    ]
    sizes = {"image": (48, 40), "video": (48, 40), "large": (96, 96)}
    converter = Converter(sizes=sizes, preview_height=32)

    def members(pictures: Pictures) -> list[Picture]:
        assert pictures.preview is not None
        return [*pictures.frames.values(), pictures.preview]

    together = [converter.convert(frame, sample_aspect=1.0) for frame in [*frames, *frames]]
    for frame, pictures in zip([*frames, *frames], together, strict=True):
        alone = Converter(sizes=sizes, preview_height=32).convert(frame, sample_aspect=1.0)
        for one, other in zip(members(pictures), members(alone), strict=True):
            assert np.array_equal(one, other)
    joined = join_pictures(together)
    assert {name: {p.shape for p in pictures} for name, pictures in joined.items()} == {
        "image": {(40, 48, 3)},
        "video": {(40, 48, 3)},
        "large": {(96, 96, 3)},
        "": {(32, 43, 3)},
    }


@pytest.mark.parametrize("pixel_format", ["yuv420p", "yuv422p10le", "rgba", "yuvj444p", "nv12"])
@pytest.mark.parametrize("size", ["384:384", "64:48", "200:150"])
def test_the_scaler_gives_the_same_bytes_without_vector_instructions(
    pixel_format: str, size: str
) -> None:
    """Of libswscale in another build than PyAV's, which cannot be told to leave them out."""
    flags = "flags=bicubic+accurate_rnd+bitexact+full_chroma_int+full_chroma_inp"
    for target in ("rgb24", "rgb48le", "rgba", "rgba64le"):
        outputs = {
            run_ffmpeg(
                *cpu,
                *("-f", "lavfi", "-i", "testsrc2=size=176x144:rate=5:duration=1"),
                *(
                    "-vf",
                    f"scale={flags},format={pixel_format},scale={size}:{flags},format={target}",
                ),
                *("-f", "rawvideo", "pipe:1"),
            )
            for cpu in ((), ("-cpuflags", "0"))
        }
        assert len(outputs) == 1
        assert len(outputs.pop()) > 0
