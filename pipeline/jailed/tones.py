"""HDR and wide-gamut pictures to ordinary ones, in integers: the same bytes on every machine.

Tables are computed in double precision with `math` and rounded to integers; pictures go through
tables, integer products and shifts only. The choices are in docs/decisions/0004-pixels.md.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Literal

import numpy as np
import numpy.typing as npt

Transfer = Literal["sdr", "pq", "hlg"]
Picture16 = npt.NDArray[np.uint16]
Picture = npt.NDArray[np.uint8]
Light = npt.NDArray[np.int64]

PEAK_NITS = 1000.0
"""Of the display that HDR is made for; brighter is clipped."""
WHITE_NITS = 203.0
"""Of a white sheet in HDR (BT.2408): SDR white, 1.0."""
CODES = 1 << 16
WHITE_CODE = 255 << 8
"""What libswscale makes of the white of limited range in 16 bits."""
LIGHT_BITS = 20
"""1.0 of HDR light, PEAK_NITS, is 1 << LIGHT_BITS."""
SDR_BITS = 16
"""1.0 of SDR light is 1 << SDR_BITS; 20 steps of it are the darkest 8-bit level."""
GAIN_BITS = 20
MATRIX_BITS = 16

# BT.2020 luminance, and BT.2020 to BT.709 primaries (BT.2087), in 1 / 2 ** MATRIX_BITS. Every row
# sums to one, so that grey stays grey.
_LUMINANCE = np.array([[17217, 44433, 3886]], dtype=np.int64)
_TO_BT709 = np.array(
    [[108822, -38512, -4774], [-8163, 74246, -547], [-1190, -6592, 73318]], dtype=np.int64
)


def to_sdr(rgb_HWC: Picture16, *, transfer: Transfer, wide_gamut: bool) -> Picture:
    """(H, W, 3) uint8 sRGB of an (H, W, 3) picture whose signal is 1.0 at WHITE_CODE.

    `wide_gamut`: the primaries are those of BT.2020, else those of BT.709. An SDR picture is taken
    as sRGB, so that its greys stay as they are.
    """
    rgb_CHW = np.ascontiguousarray(np.moveaxis(rgb_HWC, 2, 0))
    if transfer == "sdr":
        light_CHW = _sdr_light()[rgb_CHW]
    else:
        light_CHW = _pq_light()[rgb_CHW] if transfer == "pq" else _display_hlg(rgb_CHW)
        brightest_HW = light_CHW.max(axis=0)
        light_CHW *= _tone_gain()[brightest_HW >> (LIGHT_BITS - 16)]
        _shift(light_CHW, GAIN_BITS)
    if wide_gamut:
        light_CHW = _shift(_mix(_TO_BT709, light_CHW), MATRIX_BITS)
    coded_CHW = _srgb_code()[light_CHW.clip(0, 1 << SDR_BITS, out=light_CHW)]
    return np.ascontiguousarray(np.moveaxis(coded_CHW, 0, 2))


def over_black(rgb_HWC: Picture, alpha_HW: Picture) -> Picture:
    """(H, W, 3) uint8: what is seen of a picture with straight alpha in front of black."""
    product_HWC = rgb_HWC * alpha_HW[..., None].astype(np.uint16) + np.uint16(128)
    # Exactly the nearest to product / 255, and it does not overflow.
    return ((product_HWC + (product_HWC >> 8)) >> 8).astype(np.uint8)


def pq_nits(code: float) -> float:
    """Nits of a PQ signal in [0, 1]: the EOTF of SMPTE ST 2084."""
    m1, m2 = 2610 / 16384, 2523 / 4096 * 128
    c1, c2, c3 = 3424 / 4096, 2413 / 4096 * 32, 2392 / 4096 * 32
    root = math.pow(code, 1 / m2)
    return 10000.0 * math.pow(max(root - c1, 0.0) / (c2 - c3 * root), 1 / m1)


def pq_code(nits: float) -> float:
    """The PQ signal in [0, 1] of nits: the inverse of `pq_nits`."""
    m1, m2 = 2610 / 16384, 2523 / 4096 * 128
    c1, c2, c3 = 3424 / 4096, 2413 / 4096 * 32, 2392 / 4096 * 32
    power = math.pow(nits / 10000.0, m1)
    return math.pow((c1 + c2 * power) / (1 + c3 * power), m2)


def compress(nits: float) -> float:
    """Nits on a display of WHITE_NITS of nits on one of PEAK_NITS: the EETF of BT.2390.

    Unchanged up to a knee of about 90 nits, WHITE_NITS at PEAK_NITS.
    """
    peak = pq_code(PEAK_NITS)
    code, top = pq_code(nits) / peak, pq_code(WHITE_NITS) / peak
    knee = 1.5 * top - 0.5
    if code <= knee:
        return nits
    t = (code - knee) / (1 - knee)
    spline = (
        (2 * t**3 - 3 * t**2 + 1) * knee
        + (t**3 - 2 * t**2 + t) * (1 - knee)
        + (3 * t**2 - 2 * t**3) * top
    )
    return pq_nits(spline * peak)


def hlg_scene(code: float) -> float:
    """Scene light in [0, 1] of an HLG signal in [0, 1]: the inverse OETF of BT.2100."""
    a = 0.17883277
    b, c = 1 - 4 * a, 0.5 - a * math.log(4 * a)
    return code * code / 3 if code <= 0.5 else (math.exp((code - c) / a) + b) / 12


def srgb_light(code: float) -> float:
    """Light in [0, 1] of an sRGB signal in [0, 1] (IEC 61966-2-1)."""
    return code / 12.92 if code <= 0.04045 else ((code + 0.055) / 1.055) ** 2.4


def srgb_code(light: float) -> float:
    """The inverse of `srgb_light`."""
    return light * 12.92 if light <= 0.0031308 else 1.055 * light ** (1 / 2.4) - 0.055


def _display_hlg(rgb_CHW: Picture16) -> Light:
    # The OOTF of BT.2100 for a display of 1000 nits: gamma 1.2, on luminance.
    light_CHW = _hlg_scene_light()[rgb_CHW]
    luminance_1HW = _shift(_mix(_LUMINANCE, light_CHW), MATRIX_BITS)
    light_CHW *= _hlg_gain()[luminance_1HW >> (LIGHT_BITS - 16)]
    return _shift(light_CHW, GAIN_BITS)


def _mix(weights: Light, light_CHW: Light) -> Light:
    num_channels, height, width = light_CHW.shape
    mixed = weights @ light_CHW.reshape(num_channels, -1)
    return mixed.reshape(-1, height, width)


def _shift(values: Light, bits: int) -> Light:
    """Divide by 2 ** bits in place, to the nearest."""
    values += 1 << (bits - 1)
    values >>= bits
    return values


def _table(values: Iterable[float], *, one: int) -> Light:
    return np.array([round(value * one) for value in values], dtype=np.int64)


def _of_codes(light: Callable[[float], float], *, bits: int) -> Light:
    signals = (min(code / WHITE_CODE, 1.0) for code in range(CODES))
    return _table((light(signal) for signal in signals), one=1 << bits)


@functools.cache
def _sdr_light() -> Light:
    return _of_codes(srgb_light, bits=SDR_BITS)


@functools.cache
def _pq_light() -> Light:
    return _of_codes(lambda code: min(pq_nits(code) / PEAK_NITS, 1.0), bits=LIGHT_BITS)


@functools.cache
def _hlg_scene_light() -> Light:
    return _of_codes(lambda code: min(hlg_scene(code), 1.0), bits=LIGHT_BITS)


@functools.cache
def _hlg_gain() -> Light:
    return _table(((i / CODES) ** 0.2 for i in range(CODES + 1)), one=1 << GAIN_BITS)


@functools.cache
def _tone_gain() -> Light:
    """By the brightest of red, green and blue: from HDR light to SDR light, ratios kept."""
    one = 1 << (GAIN_BITS + SDR_BITS - LIGHT_BITS)
    brightest = [PEAK_NITS * i / CODES for i in range(1, CODES + 1)]
    gains = [compress(nits) / WHITE_NITS * (PEAK_NITS / nits) for nits in brightest]
    return _table([gains[0], *gains], one=one)


@functools.cache
def _srgb_code() -> Picture:
    codes = _table((srgb_code(i / (1 << SDR_BITS)) for i in range((1 << SDR_BITS) + 1)), one=255)
    return codes.astype(np.uint8)
