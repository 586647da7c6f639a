"""HDR, wide gamut and alpha, against the formulas in float64 of tests/colours.py."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from pipeline.jailed import tones
from tests.colours import (
    BT709_OF_BT2020,
    Floats,
    hlg_of_scene,
    light_of_srgb,
    nits_of_hlg,
    nits_of_pq,
    planes_of_rgb,
    pq_of_nits,
    srgb_of_light,
    srgb_of_nits,
)
from tests.frames import (
    LIMITED,
    TRANSFER,
    UNSPECIFIED,
    assert_near,
    convert,
    grey_ramp,
    hdr_frame,
    make_frame,
    read_frame,
    scenery,
)


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


@pytest.mark.parametrize("bits", [8, 10])
def test_an_opaque_picture_is_like_one_without_alpha(bits: int) -> None:
    planes = planes_of_rgb(scenery(96, 64), matrix="bt709", full_range=False, bits=bits)
    opaque = np.full_like(planes[0], (1 << bits) - 1)
    suffix = "" if bits == 8 else f"{bits}le"
    for transfer in (UNSPECIFIED, *TRANSFER.values()):
        tags = {"colorspace": 1, "color_trc": transfer}
        plain = make_frame(planes, f"yuv444p{suffix}", **tags)
        with_alpha = make_frame([*planes, opaque], f"yuva444p{suffix}", **tags)
        for size in ((96, 64), (40, 24), (200, 150)):
            assert np.array_equal(convert(plain, size), convert(with_alpha, size))


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
