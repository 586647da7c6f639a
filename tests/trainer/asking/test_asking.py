"""Asking: a raw video and its cache give the same features and the same words."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from pipeline.cache import FeatureCache
from schemas.errors import FingerprintMismatch, UsageError
from schemas.recipe import Recipe
from trainer.asking.answering import answer
from trainer.asking.conversation import Conversation
from trainer.asking.viewing import Viewer, Watched
from trainer.asking.watching import encode_for
from trainer.data.annotation import Message
from trainer.model.model_folder import AskableModel, open_model

if TYPE_CHECKING:
    from tests.clips import ClipShelf

ASKED = [Message.of("user", "What is it?")]
TOKENS = 8


def batch_of(watched: Watched) -> dict[str, Any]:
    rendered = watched.viewer.renderer.render_prompt(ASKED, view=watched.view)
    batch = watched.viewer.batch(rendered, watched.view)
    values = {name: getattr(batch, name) for name in batch.__slots__}
    return values


def assert_same(one: Any, other: Any, name: str) -> None:
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype, name
        assert torch.equal(one, other), name
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), name
        for key in one:
            assert_same(one[key], other[key], f"{name}.{key}")
    elif name != "item_ids":
        assert one == other, name


@pytest.mark.parametrize("span", [None, (2.2, 3.1), (4.0, 9.0)])
@pytest.mark.parametrize("number", range(4))
def test_a_raw_video_and_its_cache_are_the_same(
    number: int,
    span: tuple[float, float] | None,
    videos: list[Path],
    cache: FeatureCache,
    model: AskableModel,
    tmp_path: Path,
) -> None:
    cached = Viewer(model, cache).watch(str(videos[number]), span=span)
    with encode_for(
        model.preprocessing, str(videos[number]), folder=tmp_path / "own", span=span
    ) as own:
        (video_id,) = own.videos
        raw = Viewer(model, own).watch(video_id, span=span)
        first, second = batch_of(cached), batch_of(raw)
        assert first["features"]["image"].abs().sum() > 0
        assert first["audio_CAD"].shape[1] > 0
        for name, value in first.items():
            assert_same(value, second[name], name)
        ours = answer(model, ASKED, watched=cached, max_new_tokens=TOKENS)
        theirs = answer(model, ASKED, watched=raw, max_new_tokens=TOKENS)
    assert replace(ours, seconds=0) == replace(theirs, seconds=0)
    assert ours.video == video_id
    assert ours.span is not None
    assert ours.clips[0][0] <= ours.span[0] <= ours.span[1] <= ours.clips[-1][1]


@pytest.mark.parametrize(
    "view",
    [
        {"fps": 1.0},
        {"frames_per_clip": 3},
        {"fps": 1.0, "frames_per_clip": 3},
        {"policy": "uniform", "num_frames": 3},
        {"streams": ("video",)},
        {"max_clips": 2},
    ],
)
def test_every_view_of_a_span_is_encoded_in_whole(
    view: dict[str, Any],
    videos: list[Path],
    cache: FeatureCache,
    model: AskableModel,
    tmp_path: Path,
) -> None:
    preprocessing = replace(
        model.preprocessing, view=replace(model.preprocessing.view, **view), with_audio=False
    )
    seen = replace(model, config=replace(model.config, preprocessing=preprocessing))
    span = (2.1, 2.9)
    cached = Viewer(seen, cache).watch(str(videos[0]), span=span)
    with encode_for(preprocessing, str(videos[0]), folder=tmp_path / "own", span=span) as own:
        (video_id,) = own.videos
        assert len(own) <= len(cache.videos[video_id])
        raw = Viewer(seen, own).watch(video_id, span=span)
        first, second = batch_of(cached), batch_of(raw)
        for name, value in first.items():
            assert_same(value, second[name], name)


def test_a_model_of_spans_counts_from_their_start(
    cache: FeatureCache, model: AskableModel, videos: list[Path]
) -> None:
    by_video = Viewer(model, cache).watch(str(videos[0]), span=(2.0, 4.0))
    view = replace(model.preprocessing.view, time_base="span")
    preprocessing = replace(model.preprocessing, view=view)
    seen = replace(model, config=replace(model.config, preprocessing=preprocessing))
    by_span = Viewer(seen, cache).watch(str(videos[0]), span=(2.0, 4.0))
    said = [
        model.tokenizer.decode(
            one.viewer.renderer.render_prompt(ASKED, view=one.view).ids_L.tolist()
        )
        for one in (by_video, by_span)
    ]
    assert "2.0-4.0 seconds: " in said[0]
    assert "0.0-2.0 seconds: " in said[1]
    for one in (by_video, by_span):
        assert answer(seen, ASKED, watched=one, max_new_tokens=1).clips == ((2.0, 4.0),)
    first, second = batch_of(by_video), batch_of(by_span)
    assert_same(first["frame_seconds_CF"], second["frame_seconds_CF"], "frame_seconds_CF")


def test_generate_gives_the_words_of_transformers(
    cache: FeatureCache, model: AskableModel, videos: list[Path]
) -> None:
    watched = Viewer(model, cache).watch(str(videos[0]))
    rendered = watched.viewer.renderer.render_prompt(ASKED, view=watched.view)
    prompt = model.lm.embed_prompt(watched.viewer.batch(rendered, watched.view))
    expected = model.lm.lm.generate(
        inputs_embeds=prompt.embeds_LH[None],
        attention_mask=torch.ones(1, len(prompt.embeds_LH)),
        max_new_tokens=TOKENS,
        do_sample=False,
        eos_token_id=sorted(model.eos_ids),
        pad_token_id=0,
    )[0].tolist()
    ours = answer(model, ASKED, watched=watched, max_new_tokens=TOKENS)
    stopped = [one for one in expected if one not in model.eos_ids]
    assert ours.text == model.tokenizer.decode(stopped, skip_special_tokens=True).strip()
    assert ours.num_new_tokens == len(stopped) > 0
    assert ours.num_tokens == len(rendered)


QUESTIONS = ["What is it?", "And then?", "Is that all of it?", "When?"]


@pytest.mark.parametrize("text_only", [False, True])
def test_a_prefix_changes_no_answer(
    text_only: bool,
    cache: FeatureCache,
    model: AskableModel,
    videos: list[Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = None if text_only else Viewer(model, cache).watch(str(videos[0]))
    read: list[int] = []
    generate = type(model.lm).generate

    def counted(self: Any, embeds_LH: torch.Tensor, **rest: Any) -> Any:
        read.append(len(embeds_LH))
        return generate(self, embeds_LH, **rest)

    monkeypatch.setattr(type(model.lm), "generate", counted)
    kept, fresh = (
        Conversation(model, watched=watched, keeps_prefix=keeps) for keeps in (True, False)
    )
    ours = [kept.ask(one, max_new_tokens=TOKENS) for one in QUESTIONS]
    num_kept, read[:] = list(read), []
    theirs = [fresh.ask(one, max_new_tokens=TOKENS) for one in QUESTIONS]
    assert [one.text for one in ours] == [one.text for one in theirs]
    assert [one.num_tokens for one in ours] == [one.num_tokens for one in theirs] == read
    assert [one.clips for one in ours] == [one.clips for one in theirs]
    # Each question is read without what was before it.
    assert num_kept[0] == read[0]
    assert all(few < 60 <= 30 + few + all_ for few, all_ in zip(num_kept[1:], read, strict=False))
    assert sum(num_kept) < sum(read)


def test_a_conversation_beyond_a_row_is_shown_fewer_clips(
    cache: FeatureCache, model: AskableModel, videos: list[Path]
) -> None:
    watched = Viewer(model, cache).watch(str(videos[0]))
    first = answer(model, ASKED, watched=watched, max_new_tokens=2)
    small = replace(model.preprocessing, max_tokens=first.num_tokens + 40)
    seen = replace(model, config=replace(model.config, preprocessing=small))
    watched = replace(watched, viewer=Viewer(seen, cache))
    kept = Conversation(seen, watched=watched)
    fresh = Conversation(seen, watched=watched, keeps_prefix=False)
    clips = []
    for question in ("What is it?", "And what is it then, after all of that?"):
        ours = kept.ask(question, max_new_tokens=4)
        assert replace(ours, seconds=0) == replace(fresh.ask(question, max_new_tokens=4), seconds=0)
        assert ours.num_tokens <= small.max_tokens
        clips.append(len(ours.clips))
    assert clips[0] > clips[1] >= 1
    with pytest.raises(UsageError, match="leaves no room for a clip"):
        kept.ask("x" * 500, max_new_tokens=4)


def test_clips_that_are_left_out_are_not_told(
    cache: FeatureCache, train: Any, videos: list[Path]
) -> None:
    from tests.trainer.asking.asked_runs import FROZEN
    from trainer.learning.exporting import export_run

    run = train(FROZEN, model={"reduce": {"kind": "prune", "keep": 0.34}})
    model = open_model(Path(export_run(run).model))
    watched = Viewer(model, cache).watch(str(videos[0]))
    kept = Conversation(model, watched=watched)
    fresh = Conversation(model, watched=watched, keeps_prefix=False)
    for question in QUESTIONS:
        ours, theirs = (one.ask(question, max_new_tokens=TOKENS) for one in (kept, fresh))
        assert ours.text == theirs.text
        assert ours.num_tokens == theirs.num_tokens
        assert len(ours.clips) == 2 < len(watched.view)


def test_a_question_without_a_video(model: AskableModel) -> None:
    found = answer(model, ASKED, watched=None, max_new_tokens=TOKENS)
    assert (found.video, found.clips, found.span) == (None, (), None)
    assert found.num_tokens == len(model.renderer.render_prompt(ASKED, view=None))


def test_what_is_not_in_the_cache_is_refused(
    cache: FeatureCache, model: AskableModel, videos: list[Path]
) -> None:
    viewer = Viewer(model, cache)
    (key, *_), video_id = next((keys, name) for name, keys in cache.videos.items())
    assert viewer.watch(key).video_id == video_id
    with pytest.raises(UsageError, match="no video 'v12' in"):
        viewer.watch("v12")
    with pytest.raises(UsageError, match=r"lies in the span 90-95, its clips are at 0-5"):
        viewer.watch(str(videos[0]), span=(90.0, 95.0))


def test_a_cache_of_another_recipe_is_refused(
    clips: ClipShelf, model: AskableModel, tmp_path: Path
) -> None:
    other = Recipe.from_mapping(model.preprocessing.recipe, overrides=["sampling.fps=1.0"])
    preprocessing = replace(model.preprocessing, recipe=other.to_mapping())
    with (
        encode_for(preprocessing, str(clips["25.mp4"].path), folder=tmp_path / "own") as own,
        pytest.raises(FingerprintMismatch, match=r"sampling\.fps: .*2.* .*1"),
    ):
        Viewer(model, own)


def test_other_weights_are_refused(clips: ClipShelf, model: AskableModel, tmp_path: Path) -> None:
    stamps = model.preprocessing.stamps
    stamps = stamps | {"image": stamps["image"] | {"weights_sha256": "12"}}
    preprocessing = replace(model.preprocessing, stamps=stamps)
    with pytest.raises(FingerprintMismatch, match=r"image.*weights_sha256"):
        encode_for(preprocessing, str(clips["25.mp4"].path), folder=tmp_path / "own")


FORBIDDEN = """
import sys
from trainer.cli import call
code = call(sys.argv[1:])
banned = ("av", "decord", "apache_beam", "torchvision", "pipeline.jail", "pipeline.encoding",
          "pipeline.jailed", "encoders.siglip", "encoders.projection", "beam_runner")
loaded = [name for name in banned if sys.modules.get(name)]
assert not loaded, loaded
sys.exit(code)
"""


def test_features_need_no_decoder_and_no_encoder(
    cache_path: Path, model_path: Path, videos: list[Path]
) -> None:
    arguments = [str(model_path), "--features", str(cache_path), str(videos[0]), "What is it?"]
    found = subprocess.run(
        [sys.executable, "-c", FORBIDDEN, "generate", *arguments, "--device", "cpu", "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert found.returncode == 0, found.stderr
    assert found.stderr == ""
    assert '"answer"' in found.stdout


def test_center_and_text_show_less(
    cache: FeatureCache, model: AskableModel, videos: list[Path]
) -> None:
    center = Viewer(model, cache, kind="center").watch(str(videos[0]))
    assert int(np.sum(center.view.rows >= 0)) == 1
    found = answer(model, ASKED, watched=center, max_new_tokens=2)
    assert len(found.clips) == 1
    blind = Viewer(model, cache, kind="text").watch(str(videos[0]))
    assert answer(model, ASKED, watched=blind, max_new_tokens=2).clips == ()
