"""Frames to sRGB by the formulas of the standards, in float64: what the conversion has to come to.

Nothing here uses libswscale, Pillow or the tables of the pipeline. Pictures are (H, W, 3) or (H, W)
float64, 1.0 is white.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LUMA = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722), "bt2020": (0.2627, 0.0593)}
"""Weights of red and blue: BT.601, BT.709, BT.2020."""
TAGS = {"bt601": 6, "bt709": 1, "bt2020": 9}
"""In H.273; matrix and primaries."""
CHROMA_SHIFT = {"420": (1, 1), "422": (1, 0), "444": (0, 0)}
SHARPNESS = 0.6
"""The cubic of Mitchell and Netravali with B = 0 and C = 0.6."""


def rgb_of_planes(
    planes: list[Floats],
    *,
    size: tuple[int, int],
    matrix: str,
    full_range: bool,
    bits: int,
    chroma: str = "420",
    siting: str = "left",
) -> Floats:
    """RGB in [0, 1] at a size (width, height), of planes in Y, Cb, Cr.

    The siting is where a chroma sample lies in the row of pixels that share it: "left" as in H.264,
    or "centre".
    """
    across, down = CHROMA_SHIFT[chroma]
    shift = -0.25 if across and siting == "left" else 0.0
    luma = resample(planes[0], size)
    height, width = planes[0].shape
    within = (width / (1 << across), height / (1 << down))
    blue, red = (resample(p, size, within=within, shift=shift) for p in planes[1:])
    step = 1 << (bits - 8)
    if full_range:
        top = (1 << bits) - 1.0
        luma, blue, red = luma / top, (blue - 128 * step) / top, (red - 128 * step) / top
    else:
        luma = (luma - 16 * step) / (219 * step)
        blue, red = ((plane - 128 * step) / (224 * step) for plane in (blue, red))
    of_red, of_blue = LUMA[matrix]
    r = luma + 2 * (1 - of_red) * red
    b = luma + 2 * (1 - of_blue) * blue
    g = (luma - of_red * r - of_blue * b) / (1 - of_red - of_blue)
    return np.stack([r, g, b], axis=2).clip(0, 1)


def planes_of_rgb(
    rgb_HWC: Floats, *, matrix: str, full_range: bool, bits: int
) -> list[npt.NDArray[Any]]:
    """The inverse without subsampling, rounded to code values."""
    of_red, of_blue = LUMA[matrix]
    r, g, b = np.moveaxis(rgb_HWC, 2, 0)
    luma = of_red * r + (1 - of_red - of_blue) * g + of_blue * b
    blue, red = (b - luma) / (2 * (1 - of_blue)), (r - luma) / (2 * (1 - of_red))
    step = 1 << (bits - 8)
    top = (1 << bits) - 1
    if full_range:
        coded = [luma * top, blue * top + 128 * step, red * top + 128 * step]
    else:
        coded = [(16 + 219 * luma) * step, *((128 + 224 * c) * step for c in (blue, red))]
    dtype = np.uint8 if bits == 8 else np.dtype("<u2")
    return [plane.round().clip(0, top).astype(dtype) for plane in coded]


def resample(
    picture: Floats,
    size: tuple[int, int],
    *,
    within: tuple[float, float] | None = None,
    shift: float = 0.0,
) -> Floats:
    """To a size (width, height): a separable cubic, widened where a side shrinks, edges repeated.

    `within` is the (width, height) in samples that is to fill the size where it is not the
    picture's; `shift` moves the samples to the right, in samples.
    """
    width, height = within or picture.shape[1::-1]
    rows = _cubic_weights(picture.shape[0], height, size[1], 0.0)
    columns = _cubic_weights(picture.shape[1], width, size[0], shift)
    return np.einsum("ih,hw...,jw->ij...", rows, picture, columns, optimize=True)


def _cubic_weights(num: int, old: float, new: int, shift: float) -> Floats:
    stretch = max(old / new, 1.0)
    centre = (np.arange(new) + 0.5) * old / new - 0.5 - shift
    margin = int(np.ceil(2 * stretch)) + 1
    at = np.arange(-margin, num + margin)
    d = np.abs(at[None, :] - centre[:, None]) / stretch
    c = SHARPNESS
    near = (2 - c) * d**3 + (c - 3) * d**2 + 1
    far = -c * d**3 + 5 * c * d**2 - 8 * c * d + 4 * c
    weights = np.where(d < 1, near, np.where(d < 2, far, 0.0))
    weights /= weights.sum(axis=1, keepdims=True)
    folded = np.zeros((new, num))
    np.add.at(folded.T, at.clip(0, num - 1), weights.T)
    return folded


def srgb_of_light(light: Floats) -> Floats:
    light = light.clip(0, 1)
    return np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)


def light_of_srgb(code: Floats) -> Floats:
    return np.where(code <= 0.04045, code / 12.92, ((code + 0.055) / 1.055) ** 2.4)


def primaries_matrix(chromaticities: list[tuple[float, float]]) -> Floats:
    """RGB to XYZ for a white of D65, from the (x, y) of red, green and blue."""
    columns = np.array([[x / y, 1.0, (1 - x - y) / y] for x, y in chromaticities]).T
    white = np.array([0.3127 / 0.3290, 1.0, (1 - 0.3127 - 0.3290) / 0.3290])
    return columns * np.linalg.solve(columns, white)


XYZ_OF_BT709 = primaries_matrix([(0.640, 0.330), (0.300, 0.600), (0.150, 0.060)])
XYZ_OF_BT2020 = primaries_matrix([(0.708, 0.292), (0.170, 0.797), (0.131, 0.046)])
BT709_OF_BT2020 = np.linalg.solve(XYZ_OF_BT709, XYZ_OF_BT2020)

_M1, _M2 = 0.1593017578125, 78.84375
_C1, _C2, _C3 = 0.8359375, 18.8515625, 18.6875


def nits_of_pq(code: Floats) -> Floats:
    power = code ** (1 / _M2)
    return 10000 * ((power - _C1).clip(0) / (_C2 - _C3 * power)) ** (1 / _M1)


def pq_of_nits(nits: Floats) -> Floats:
    power = (nits / 10000) ** _M1
    return ((_C1 + _C2 * power) / (1 + _C3 * power)) ** _M2


def hlg_of_scene(light: Floats) -> Floats:
    a, b, c = 0.17883277, 0.28466892, 0.55991073
    upper = a * np.log((12 * light - b).clip(1e-9)) + c
    return np.where(light <= 1 / 12, np.sqrt(3 * light.clip(0)), upper)


def scene_of_hlg(code: Floats) -> Floats:
    a, b, c = 0.17883277, 0.28466892, 0.55991073
    return np.where(code <= 0.5, code**2 / 3, (np.exp((code - c) / a) + b) / 12)


def nits_of_hlg(code_HWC: Floats) -> Floats:
    """On a display of 1000 nits: gamma 1.2."""
    scene = scene_of_hlg(code_HWC)
    luminance = scene @ np.array([0.2627, 0.6780, 0.0593])
    return 1000 * luminance[..., None].clip(1e-12) ** 0.2 * scene


def srgb_of_nits(nits_HWC: Floats) -> Floats:
    """BT.2020 light of up to 1000 nits as on an sRGB display of 203 nits: EETF of BT.2390."""
    nits_HWC = nits_HWC.clip(0, 1000)
    brightest = nits_HWC.max(axis=2, keepdims=True).clip(1e-6)
    source = pq_of_nits(np.float64(1000.0))
    e, top = pq_of_nits(brightest) / source, pq_of_nits(np.float64(203.0)) / source
    knee = 1.5 * top - 0.5
    t = ((e - knee) / (1 - knee)).clip(0)
    p = (
        (2 * t**3 - 3 * t**2 + 1) * knee
        + (t**3 - 2 * t**2 + t) * (1 - knee)
        + (-2 * t**3 + 3 * t**2) * top
    )
    seen = np.where(e < knee, brightest, nits_of_pq(p * source))
    return srgb_of_light((nits_HWC * seen / brightest / 203) @ BT709_OF_BT2020.T)
