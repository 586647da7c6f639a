"""`pipeline index` and `pipeline search` as they are typed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import beam_runner
from pipeline.cache import open_cache
from pipeline.cli import call
from pipeline.sources import read_sources
from schemas.recipe import Recipe
from tests.clips import ClipShelf, draw_frame_number
from tests.siglip_files import NAME, pocket_siglip, write_open_clip


class Shell:
    """Calls `pipeline` and gives what it says."""

    def __init__(self, capsys):
        self._capsys = capsys

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        code = call([str(one) for one in arguments])
        told = self._capsys.readouterr()
        return code, told.out, told.err

    def json(self, *arguments: object):
        code, out, err = self(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)


@pytest.fixture
def shell(capsys) -> Shell:
    return Shell(capsys)


def keys_of(cache: Path) -> list[str]:
    with open_cache(cache) as opened:
        return opened.keys()


def test_an_index_is_made_and_says_so(shell, damaged_cache):
    code, out, _ = shell("index", damaged_cache)
    assert code == 0
    facts = dict(line.split(None, 1) for line in out.splitlines())
    num = len(keys_of(damaged_cache))
    assert facts["index"] == f"{num} clips of image, 32 numbers each"
    assert facts["done"].startswith("made in ")
    assert facts["kind"] == "flat: exact"
    assert facts["file"].startswith("search/image-")
    assert "nothing was new" in shell("index", damaged_cache)[1]
    assert "made anew, as asked, in" in shell("index", damaged_cache, "--rebuild")[1]
    made = shell.json("index", damaged_cache, "--stream", "video", "--kind", "ivf")
    assert (made["kind"], made["dim"], made["vectors"], made["added"]) == ("ivf", 48, num, num)
    assert made["recall_at_10"] >= 0.98
    assert (damaged_cache / made["file"]).stat().st_size == made["bytes"]


def test_what_is_like_a_clip_is_found_with_its_times(shell, damaged_cache, small_videos):
    shell("index", damaged_cache)
    key = keys_of(damaged_cache)[0]
    code, out, err = shell("search", damaged_cache, "--like", key, "--clips", "--top", 3)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["rank", "score", "start", "end", "clips", "video", "key"]
    assert len(lines) == 4
    assert key not in out
    found = shell.json("search", damaged_cache, "--like", key, "--clips", "--elsewhere")
    with open_cache(damaged_cache) as cache:
        own = cache.row(key).video_id
        for number, one in enumerate(found, start=1):
            row = cache.row(one["key"])
            assert one["rank"] == number
            assert one["video_id"] == row.video_id != own
            assert (one["start_seconds"], one["end_seconds"]) == (
                row.start_seconds,
                row.end_seconds,
            )
            assert small_videos in Path(one["source"]).parents
            assert one["preview"] is one["cut"] is None
    scores = [one["score"] for one in found]
    assert scores == sorted(scores, reverse=True)


def test_strips_and_cuts_are_written(shell, damaged_cache, tmp_path):
    shell("index", damaged_cache)
    key = keys_of(damaged_cache)[0]
    code, out, err = shell(
        "search", damaged_cache, "--like", key, "--top", 2, "--json",
        "--previews", tmp_path / "strips", "--export", tmp_path / "cuts",
    )  # fmt: skip
    assert code == 0
    assert "2 spans cut into" in err
    for one in json.loads(out):
        assert Path(one["preview"]).read_bytes()[:2] == b"\xff\xd8"
        assert b"ftyp" in Path(one["cut"]).read_bytes()[:16]


def test_when_no_source_is_left_the_spans_are_told_and_the_cuts_fail(
    shell, clips: ClipShelf, tmp_path
):
    videos = tmp_path / "videos"
    videos.mkdir()
    shutil.copy(clips["25.mp4"].path, videos / "a.mp4")
    sources = read_sources([str(videos)]).sources
    beam_runner.run(sources, Recipe.load("tiny"), cache_path=tmp_path / "cache")
    shell("index", tmp_path / "cache")
    (videos / "a.mp4").unlink()
    key = keys_of(tmp_path / "cache")[0]
    code, out, err = shell(
        "search", tmp_path / "cache", "--like", key, "--export", tmp_path / "cuts"
    )
    assert code == 2
    assert "a.mp4" in out
    assert "not_found" in err
    assert "no span could be cut out" in err


def test_a_picture_finds_the_clip_it_is_of(shell, damaged_cache, clips: ClipShelf, tmp_path):
    shell("index", damaged_cache)
    clip = clips["50.mp4"]
    Image.fromarray(draw_frame_number(140, width=clip.width, height=clip.height)).save(
        tmp_path / "frame.png"
    )
    found = shell.json("search", damaged_cache, "--image", tmp_path / "frame.png", "--clips")
    assert len(found) > 1
    assert found[0]["score"] > 0


def test_new_shards_are_added_by_a_search_unless_it_is_told_not_to(
    shell, clips: ClipShelf, tmp_path
):
    videos, cache = tmp_path / "videos", tmp_path / "cache"
    videos.mkdir()
    shutil.copy(clips["25.mp4"].path, videos / "a.mp4")
    recipe = Recipe.load("tiny")
    beam_runner.run(read_sources([str(videos)]).sources, recipe, cache_path=cache)
    shell("index", cache)
    before = keys_of(cache)
    shutil.copy(clips["30.mp4"].path, videos / "b.mp4")
    beam_runner.run(read_sources([str(videos)]).sources, recipe, cache_path=cache)
    code, out, err = shell("search", cache, "--like", before[0], "--clips", "--as-is")
    assert (code, len(out.splitlines())) == (0, len(before))
    assert "clips of the cache not looked at" in err
    code, out, err = shell("search", cache, "--like", before[0], "--clips")
    assert "clips added to the index" in err
    assert len(out.splitlines()) == len(keys_of(cache))
    assert shell("search", cache, "--like", before[0])[2] == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--like", "nothing"], "no sample 'nothing'"),
        ([], "one thing is looked for at a time, not 0"),
        (["a dog", "--like", "x"], "not 2"),
        (["  ... "], "no word in it"),
        (["a dog", "--space", "features"], "in the text space"),
        (["a dog"], "only those of siglip and siglip2 know text"),
        (["a dog", "--stream", "nope"], "no stream 'nope'"),
        (["--elsewhere", "a dog"], "of a clip's own video"),
        (["--image", "pyproject.toml"], "not a picture"),
        (["--like", "x", "--stream", "video"], "no sample 'x'"),
    ],
)
def test_what_cannot_be_asked_is_said(shell, damaged_cache, arguments, message):
    shell("index", damaged_cache)
    code, out, err = shell("search", damaged_cache, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_without_an_index_it_is_said_how_to_make_one(shell, damaged_cache):
    key = keys_of(damaged_cache)[0]
    code, _, err = shell("search", damaged_cache, "--like", key)
    assert code == 2
    assert f"pipeline index {damaged_cache} --stream image" in err


def test_a_place_that_cannot_be_written_is_searched_as_it_is(shell, damaged_cache, monkeypatch):
    from schemas.errors import StorageError

    shell("index", damaged_cache)
    path = damaged_cache / "search" / "image.json"
    said = json.loads(path.read_text())
    monkeypatch.setattr("pipeline.indexing.GROWTH", 0.5)

    def refuse(*args, **kwargs):
        raise StorageError("the place is read-only")

    monkeypatch.setattr("pipeline.indexing.publish_search_index", refuse)
    code, out, err = shell("search", damaged_cache, "--like", keys_of(damaged_cache)[0])
    assert code == 0
    assert "the index is older than the cache: the place is read-only" in err
    assert out
    assert json.loads(path.read_text()) == said


@pytest.fixture(scope="module")
def pocket(tmp_path_factory):
    with pocket_siglip(tmp_path_factory.mktemp("configs")) as model:
        yield model, write_open_clip(model, tmp_path_factory.mktemp("weights") / "model")


@pytest.fixture
def text_cache(pocket, small_videos: Path, tmp_path: Path) -> Path:
    """Made with SigLIP's small sister, and with weights that lie elsewhere now."""
    _, folder = pocket
    moved = Path(shutil.copytree(folder, tmp_path / "weights"))
    recipe = Recipe.from_mapping(
        {
            "name": "pocket",
            "sampling": {"fps": 2.0, "frames_per_clip": 4},
            "streams": {
                "image": {"encoder": "random-image"},
                "siglip": {"encoder": NAME, "weights": str(moved), "dtype": "float16"},
            },
        }
    )
    sources = read_sources([str(small_videos)]).sources
    beam_runner.run(sources, recipe, cache_path=tmp_path / "cache")
    shutil.rmtree(moved)
    return tmp_path / "cache"


def test_a_sentence_finds_what_the_whole_model_would_find(shell, pocket, text_cache):
    model, folder = pocket
    weights = ("--weights", f"siglip={folder}")
    made = shell.json("index", text_cache, "--space", "text", *weights)
    assert (made["stream"], made["space"], made["dim"]) == ("siglip", "text", 64)
    found = shell.json("search", text_cache, "a dog runs", *weights, "--clips", "--top", 100)
    with open_cache(text_cache) as cache, torch.inference_mode():
        assert {one["key"] for one in found} == set(cache.keys())
        ids = torch.tensor([[2, 3, 4, 0, 0, 0, 0, 0]])
        text_D = model.encode_text(ids, normalize=True)[0].numpy()
        trunk = model.visual.trunk
        for one in found:
            sample = cache[one["key"]]
            tokens = torch.from_numpy(sample.decode("siglip")[sample.mask]).flatten(1, 2)
            images = trunk.forward_head(trunk.norm(trunk.blocks[-1](tokens))).numpy()
            images /= np.linalg.norm(images, axis=1, keepdims=True)
            mean = images.mean(axis=0)
            score = float(mean @ text_D / np.linalg.norm(mean))
            assert one["score"] == pytest.approx(score, abs=1e-3)
    # What was put into the text space is kept, so a clip is found without weights.
    like = shell.json("search", text_cache, "--like", found[0]["key"], "--space", "text")
    assert like[0]["score"] > 0


def test_text_asks_for_its_weights_and_refuses_others(shell, pocket, text_cache, tmp_path):
    _, folder = pocket
    code, _, err = shell("index", text_cache, "--space", "text")
    assert code == 2
    assert "weights" in err
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    from safetensors.torch import load_file, save_file

    path = other / "open_clip_model.safetensors"
    tensors = load_file(path)
    tensors["logit_scale"] = tensors["logit_scale"] + 1
    save_file(tensors, path)
    code, _, err = shell("index", text_cache, "--space", "text", "--weights", f"siglip={other}")
    assert code == 4
    assert "weights_sha256" in err
    weights = ("--weights", f"siglip={folder}")
    assert shell("index", text_cache, "--space", "text", *weights)[0] == 0
    code, _, err = shell("search", text_cache, "a dog")
    assert code == 2
    assert "weights" in err
    (other / "empty").mkdir()
    tokenizer = ("--tokenizer", other / "empty")
    code, _, err = shell("search", text_cache, "a dog", *weights, *tokenizer)
    assert code == 2
    assert "no tokenizer" in err


def test_a_picture_is_looked_for_in_the_text_space_too(shell, pocket, text_cache, tmp_path):
    _, folder = pocket
    weights = ("--weights", f"siglip={folder}")
    shell("index", text_cache, "--space", "text", *weights)
    Image.new("RGB", (80, 60), "red").save(tmp_path / "red.png")
    asked = ("search", text_cache, "--image", tmp_path / "red.png", "--space", "text")
    assert shell.json(*asked, *weights)
    code, _, err = shell(*asked)
    assert code == 2
    assert "weights" in err
