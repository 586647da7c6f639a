"""Pictures as encoders' reference code makes them, against that code."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipeline.decoding import ClipFrames, Decoding, Order
from pipeline.jail import DecoderProcess
from pipeline.jailed.pixels import MAX_PIXEL_ASPECT, Converter, Shape, full_size
from pipeline.jailed.resizing import FullPicture, pad_to_square, resize_like_opencv
from schemas.errors import VideoError
from schemas.recipe import DecodeLimits
from schemas.resize import PictureSpec, ResizeSpec
from tests.asking import piece_of, recipe_at
from tests.clips import ClipShelf, run_ffmpeg
from tests.frames import Picture, convert, hdr_frame, make_frame, read_frame, scenery, woven

GREY, MEAN = (127, 127, 127), (123, 116, 103)
SQUASH = PictureSpec(width=56, height=56, resize=ResizeSpec(library="pillow"))
PAD = PictureSpec(
    width=56, height=56, resize=ResizeSpec(library="pillow", fit="pad", background=GREY)
)
APOLLO = PictureSpec(
    width=48,
    height=48,
    resize=ResizeSpec(library="opencv", filter="bilinear", fit="pad", background=MEAN),
)
CROP = PictureSpec(
    width=56, height=56, resize=ResizeSpec(library="pillow", fit="crop", short_side=64)
)
ALL = (SQUASH, PAD, APOLLO, CROP)
SHAPES = [(96, 64), (64, 96), (63, 95), (97, 31), (56, 56), (200, 40), (7, 300), (1, 1)]


def noise(width: int, height: int, *, seed: int = 0) -> Picture:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, size=(height, width, 3), dtype=np.uint8)


def make(frame: object, *specs: PictureSpec, sample_aspect: float = 1.0) -> list[Picture]:
    pictures = {str(number): spec for number, spec in enumerate(specs)}
    converter = Converter(pictures=pictures, preview_height=None)
    return list(converter.convert(frame, sample_aspect=sample_aspect).frames.values())


# Against the reference code


@pytest.mark.parametrize("name", ["bicubic", "bilinear"])
@pytest.mark.parametrize(("width", "height"), SHAPES)
def test_pillow_is_what_torchvision_and_open_clip_do_to_an_image(
    width: int, height: int, name: str
) -> None:
    from torchvision.transforms import CenterCrop, InterpolationMode, Resize

    picture = noise(width, height)
    image, mode = Image.fromarray(picture), InterpolationMode(name)
    squash = PictureSpec(width=56, height=40, resize=ResizeSpec(library="pillow", filter=name))  # type: ignore[arg-type]
    expected = Resize((40, 56), interpolation=mode)(image)
    assert np.array_equal(FullPicture(picture).resize(squash), np.asarray(expected))
    for short_side, size in ((64, 56), (57, 56), (256, 224)):
        how = ResizeSpec(library="pillow", filter=name, fit="crop", short_side=short_side)  # type: ignore[arg-type]
        crop = PictureSpec(width=size, height=size, resize=how)
        expected = CenterCrop(size)(Resize(short_side, interpolation=mode)(image))
        assert np.array_equal(FullPicture(picture).resize(crop), np.asarray(expected))


def test_pillow_is_what_siglips_image_processor_does() -> None:
    transformers = pytest.importorskip("transformers")
    processor = transformers.SiglipImageProcessorPil(size={"height": 56, "width": 56})
    picture = noise(97, 61)
    given = processor(Image.fromarray(picture), return_tensors="np", do_rescale=False)
    levels = given["pixel_values"][0].transpose(1, 2, 0) * 0.5 + 0.5
    assert np.array_equal(FullPicture(picture).resize(SQUASH), levels.round().astype(np.uint8))


@pytest.mark.parametrize(("width", "height"), SHAPES)
def test_padding_puts_the_picture_in_the_middle_of_a_square(width: int, height: int) -> None:
    picture = noise(width, height)
    side = max(width, height)
    expected = Image.new("RGB", (side, side), MEAN)
    expected.paste(Image.fromarray(picture), ((side - width) // 2, (side - height) // 2))
    padded = pad_to_square(picture, background=MEAN)
    assert np.array_equal(padded, np.asarray(expected))
    resized = expected.resize((56, 56), Image.Resampling.BICUBIC)
    how = ResizeSpec(library="pillow", fit="pad", background=MEAN)
    spec = PictureSpec(width=56, height=56, resize=how)
    assert np.array_equal(FullPicture(picture).resize(spec), np.asarray(resized))


@pytest.mark.parametrize(
    ("shape", "size"), list(product(SHAPES, [(48, 48), (224, 224), (5, 9), (96, 64)]))
)
def test_opencvs_resize_is_bilinear_without_antialiasing(
    shape: tuple[int, int], size: tuple[int, int]
) -> None:
    import torch
    from torch.nn.functional import interpolate

    picture = noise(*shape)
    given = resize_like_opencv(picture, width=size[0], height=size[1])
    pixels = torch.from_numpy(picture).permute(2, 0, 1)[None].double()
    expected = interpolate(pixels, size[::-1], mode="bilinear", antialias=False)[0]
    difference = np.abs(given - expected.permute(1, 2, 0).numpy())
    assert difference.max() <= 1
    assert difference.mean() <= 0.3  # rounding alone has 0.25
    if importlib.util.find_spec("cv2"):
        cv2 = importlib.import_module("cv2")
        assert np.array_equal(given, cv2.resize(picture, size, interpolation=cv2.INTER_LINEAR))


def test_opencvs_resize_has_its_special_cases() -> None:
    picture = noise(96, 64)
    assert np.array_equal(resize_like_opencv(picture, width=96, height=64), picture)
    fours = picture.reshape(32, 2, 48, 2, 3).astype(int).sum(axis=(1, 3))
    assert np.array_equal(resize_like_opencv(picture, width=48, height=32), (fours + 2) >> 2)
    grey = np.full((37, 53, 3), 255, np.uint8)
    assert resize_like_opencv(grey, width=200, height=111).min() >= 254


def test_the_bytes_are_the_same_on_every_machine() -> None:
    """And of every release of Pillow that is allowed."""
    full = FullPicture(noise(97, 61))
    digest = hashlib.sha256()
    for spec in ALL:
        digest.update(full.resize(spec))
    assert digest.hexdigest()[:16] == "307e3b9cbd908b6d"


# Of frames


def test_they_are_made_of_the_frame_as_displayed_in_full_size(tmp_path: Path) -> None:
    grey = (scenery(96, 64)[..., 0] * 255).astype(np.uint8)
    alpha = np.linspace(0, 255, 96 * 64).astype(np.uint8).reshape(64, 96)
    frames = [
        make_frame([grey, grey[::2, ::2], grey[1::2, ::2]], "yuv420p"),
        make_frame([np.dstack([grey, grey.T.reshape(64, 96), grey, alpha])], "rgba"),
        hdr_frame(scenery(96, 64), "pq"),
        hdr_frame(scenery(96, 64), "hlg"),
        woven(tmp_path, order="tff"),
    ]
    for frame in frames:
        full = convert(frame, (96, 64))
        for spec, made in zip(ALL, make(frame, *ALL), strict=True):
            assert made.flags.c_contiguous
            assert np.array_equal(made, FullPicture(full).resize(spec))


def test_a_large_hdr_frame_is_mapped_in_bands() -> None:
    signal = np.tile(scenery(128, 64), (24, 12, 1))
    small, large = convert(hdr_frame(signal[:64, :128], "hlg"), (128, 64)), None
    large = convert(hdr_frame(signal, "hlg"), (1536, 1536))
    assert np.array_equal(large[64:128, 128:256], large[-64:, -128:])
    assert np.abs(large[64:128, 128:256].astype(int) - small).mean() < 1


def test_a_turned_file_is_turned_before_it_is_resized(corpus_dir: Path) -> None:
    turned = make(read_frame(corpus_dir / "rails_rotated_video.mp4", 8), *ALL)
    baked = make(read_frame(corpus_dir / "portrait_baked_rails.mp4", 8), *ALL)
    for one, other in zip(turned, baked, strict=True):
        assert np.abs(one.astype(int) - other).mean() < 3


@pytest.mark.parametrize(("sample_aspect", "width"), [(2.0, 32), (0.5, 128), (64 / 45, 45)])
def test_pixels_that_are_not_square_are_made_square_before(
    sample_aspect: float, width: int
) -> None:
    """A square that is coded narrow or wide comes out as a square, padded or cropped."""
    rgb = np.zeros((64, width, 3), np.uint8)
    rgb[16:48, width // 4 : width - width // 4] = 255
    frame = make_frame([rgb], "rgb24")
    for spec in (PAD, CROP):
        [picture] = make(frame, spec, sample_aspect=sample_aspect)
        white = picture[..., 0] > 190
        rows, columns = white.any(axis=1).sum(), white.any(axis=0).sum()
        assert rows == pytest.approx(columns, abs=2)
        assert rows > 20


@pytest.mark.parametrize("sample_aspect", [1e-9, 1e9])
def test_pixels_of_an_absurd_shape_cost_no_memory(sample_aspect: float) -> None:
    frame = make_frame([np.full((64, 96), 99, np.uint8)], "gray")
    shape = Shape.of(frame, sample_aspect=sample_aspect)
    width, height = full_size(shape, sample_aspect=sample_aspect)
    assert width * height <= 96 * 64 * MAX_PIXEL_ASPECT
    for picture in make(frame, *ALL, sample_aspect=sample_aspect):
        assert 99 in picture


def test_only_who_needs_pillow_loads_it() -> None:
    code = "import sys, pipeline.jailed.serving; print('PIL' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False\n"


# In decoder processes


def decode(
    path: Path, *processes: DecoderProcess, order: Order, specs: dict[str, PictureSpec]
) -> list[ClipFrames]:
    decoding = Decoding(
        piece_of(path),
        path=str(path),
        recipe=recipe_at(5.0),
        pictures=specs,
        processes=processes,
        order=order,
    )
    return [clip for clip in decoding.clips() if isinstance(clip, ClipFrames)]


def test_no_order_and_no_number_of_processes_makes_a_difference(clips: ClipShelf) -> None:
    specs = {"squash": SQUASH, "pad": PAD, "apollo": APOLLO, "crop": CROP}
    clip = clips["25.mp4"]
    expected = [
        make(read_frame(clip.path, number), *specs.values())
        for number in range(0, len(clip.times), 5)
    ]
    with DecoderProcess(DecodeLimits()) as one, DecoderProcess(DecodeLimits()) as other:
        ways: list[tuple[Order, list[DecoderProcess]]] = [
            ("selected", [one]),
            ("selected", [one, other]),
            ("all", [one]),
            ("sorted", [other]),
        ]
        for order, processes in ways:
            given = decode(clip.path, *processes, order=order, specs=specs)
            for name, wanted in zip(specs, zip(*expected, strict=True), strict=True):
                made = np.concatenate([c.frames[name][: c.num_frames] for c in given])
                assert np.array_equal(made, np.stack(wanted))


def test_what_does_not_fit_into_memory_is_rejected(tmp_path: Path) -> None:
    """The full picture has 200 MB, and Pillow's form of it 270."""
    path = tmp_path / "large.mp4"
    size = ("-f", "lavfi", "-i", "color=gray:size=8192x8192:rate=1:duration=1")
    run_ffmpeg(*size, *("-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p"), path)
    with DecoderProcess(DecodeLimits(memory_bytes=700 * 1024**2)) as process:
        fast = {"image": PictureSpec(width=56, height=56)}
        assert len(decode(path, process, order="all", specs=fast)) == 1
        with pytest.raises(VideoError) as caught:
            decode(path, process, order="all", specs={"image": SQUASH})
        assert caught.value.reason == "out_of_memory"
        assert len(decode(path, process, order="all", specs=fast)) == 1
    with DecoderProcess(DecodeLimits()) as process:
        assert len(decode(path, process, order="all", specs={"image": SQUASH})) == 1
