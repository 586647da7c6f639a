"""A picture as a video of one frame: the decoder gives its pixels back, and a clip's vector."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipeline.cache import open_cache
from pipeline.decoding import ClipFrames, Decoding
from pipeline.jail import DecoderProcess
from pipeline.planning import extend_plan
from pipeline.probing import probe_source
from pipeline.searching import vector_of_clip
from pipeline.still_video import write_still
from pipeline.stream_encoder import choose_stream, encode_picture, stream_recipe
from schemas.errors import UsageError
from schemas.recipe import DecodeLimits, Recipe
from schemas.resize import PictureSpec, ResizeSpec
from schemas.video import Source
from tests.clips import ClipShelf, draw_frame_number

MOST = 10**6


def picture(width: int, height: int, *, mode: str = "RGB") -> Image.Image:
    rng = np.random.default_rng(width)
    pixels = rng.integers(0, 256, size=(height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


def decoded(path: Path, *, width: int, height: int) -> np.ndarray:
    """(H, W, 3) of the one frame, in its own size by Pillow: untouched."""
    recipe = Recipe.load("tiny", overrides=["sampling.frames_per_clip=1"])
    spec = PictureSpec(width=width, height=height, resize=ResizeSpec(library="pillow"))
    with DecoderProcess(DecodeLimits()) as process:
        source = Source(uri=str(path))
        probe = probe_source(source, limits=DecodeLimits(), process=process)
        assert probe.reject is None, probe.reject
        (shard,) = extend_plan(
            [probe], recipe=recipe, recipe_fingerprint="x", clip_bytes=1, existing=[]
        )
        decoding = Decoding(
            shard.pieces[0],
            path=str(path),
            recipe=recipe,
            pictures={"one": spec},
            processes=[process],
            order="all",
        )
        (clip,) = [one for one in decoding.clips() if isinstance(one, ClipFrames)]
        decoding.close()
    assert clip.frames["one"].shape[0] == 1
    return clip.frames["one"][0]


@pytest.mark.parametrize("size", [(64, 48), (1, 1), (37, 101)])
def test_the_decoder_gives_the_pixels_back(tmp_path, size):
    image = picture(*size)
    image.save(tmp_path / "picture.png")
    write_still(tmp_path / "picture.png", tmp_path / "still.apng", max_pixels=MOST)
    found = decoded(tmp_path / "still.apng", width=size[0], height=size[1])
    assert np.array_equal(found, np.asarray(image))


@pytest.mark.parametrize("mode", ["L", "P", "1", "CMYK", "RGBA"])
def test_every_mode_becomes_rgb(tmp_path, mode):
    name = "picture.tiff" if mode == "CMYK" else "picture.png"
    picture(20, 10, mode=mode).save(tmp_path / name)
    write_still(tmp_path / name, tmp_path / "still.apng", max_pixels=MOST)
    with Image.open(tmp_path / "still.apng") as still:
        assert (still.mode, still.size) == ("RGB", (20, 10))


def test_what_is_clear_is_black_and_a_phones_picture_stands_upright(tmp_path):
    Image.new("RGBA", (4, 4), (255, 255, 255, 0)).save(tmp_path / "clear.png")
    write_still(tmp_path / "clear.png", tmp_path / "still.apng", max_pixels=MOST)
    with Image.open(tmp_path / "still.apng") as still:
        assert not np.asarray(still).any()
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    picture(30, 10).save(tmp_path / "phone.jpg", exif=exif)
    write_still(tmp_path / "phone.jpg", tmp_path / "still.apng", max_pixels=MOST)
    with Image.open(tmp_path / "still.apng") as still:
        assert still.size == (10, 30)


def test_what_is_no_picture_or_too_large_is_said(tmp_path):
    (tmp_path / "text.jpg").write_text("no picture")
    with pytest.raises(UsageError, match="not a picture"):
        write_still(tmp_path / "text.jpg", tmp_path / "still.apng", max_pixels=MOST)
    with pytest.raises(UsageError, match="No such file"):
        write_still(tmp_path / "none.jpg", tmp_path / "still.apng", max_pixels=MOST)
    picture(50, 50).save(tmp_path / "cut.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:2000])
    with pytest.raises(UsageError, match="cannot be read"):
        write_still(tmp_path / "cut.png", tmp_path / "still.apng", max_pixels=MOST)
    for side in (1_001, 14_000):  # the larger one is too much for Pillow, too
        Image.new("1", (side, side)).save(tmp_path / "large.png")
        with pytest.raises(UsageError, match="pixels"):
            write_still(tmp_path / "large.png", tmp_path / "still.apng", max_pixels=MOST)


def test_a_frame_of_a_video_is_near_to_its_clip(small_cache: Path, clips: ClipShelf, tmp_path):
    clip = clips["25.mp4"]
    with open_cache(small_cache) as cache:
        keys = next(
            keys
            for keys in cache.videos.values()
            if cache[keys[0]].info["source_width"] == clip.width and len(keys) > 2
        )
        stream = choose_stream(cache, None, text=False)
        shown = draw_frame_number(25, width=clip.width, height=clip.height)
        Image.fromarray(shown).save(tmp_path / "frame.png")
        recipe = stream_recipe(cache, stream)
        vector_D = encode_picture(
            tmp_path / "frame.png", cache, recipe=recipe, device="cpu", text=False
        )
        for text_key in keys:
            own_D = vector_of_clip(cache, text_key, stream=stream, kept_as=stream)
            assert own_D.shape == vector_D.shape
            assert own_D.dtype == vector_D.dtype == np.float32
            cosine = own_D @ vector_D / np.linalg.norm(own_D) / np.linalg.norm(vector_D)
            assert cosine > 0.5
