"""Sound from a file to a shard, with Whisper's encoder at a tiny random size."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from encoders import load_sound_encoder
from encoders.whisper import SIZES, WhisperSize
from pipeline.cache import open_cache
from pipeline.encoding import StreamEncoders, audio_spec, stamp_streams
from pipeline.encoding_sound import ChunkEncoder
from pipeline.hearing_ahead import ClipSound, HearAhead
from pipeline.jail import DecoderProcess
from pipeline.layout import CacheLayout
from pipeline.listening import decode_sound
from pipeline.planning import estimate_clip_bytes, extend_plan
from pipeline.pool import DecoderPool
from pipeline.probing import probe_source
from pipeline.reencoding import reencode_sample
from pipeline.sharding import BuildTools, build_shard
from pipeline.verifying import verify_cache
from schemas.errors import RecipeError
from schemas.plan import ShardSpec
from schemas.recipe import Recipe
from schemas.sample import Sample
from schemas.sidecar import Sidecar
from schemas.video import Source
from tests.sounds import counting_video

if TYPE_CHECKING:
    from tests.clips import ClipShelf

DIM = 32


@pytest.fixture(autouse=True)
def tiny_whisper(monkeypatch: pytest.MonkeyPatch) -> None:
    size = WhisperSize(dim=DIM, num_layers=1, num_heads=2, file_bytes=100_000)
    monkeypatch.setitem(SIZES, "whisper-tiny", size)


def recipe_of(*overrides: str) -> Recipe:
    mapping = {
        "name": "heard",
        "sampling": {"fps": 2.0, "frames_per_clip": 4},
        "streams": {"image": {"encoder": "random-image"}},
        "audio": {"encoder": "whisper-tiny", "weights": "random", "precision": "float32"},
        "preview": {"enabled": False},
    }
    return Recipe.from_mapping(mapping, overrides=overrides)


@pytest.fixture(scope="module")
def long_video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("heard") / "long.mkv"
    return counting_video(path, seconds=36, sound_seconds=33, late_seconds=2)


@pytest.fixture(scope="module")
def decoders() -> Iterator[tuple[DecoderPool, DecoderProcess]]:
    limits = recipe_of().limits
    with DecoderPool(limits, num_processes=2) as pool, DecoderProcess(limits) as hearer:
        yield pool, hearer


class Builder:
    """Builds shards of paths under a folder."""

    def __init__(self, folder: Path, decoders: tuple[DecoderPool, DecoderProcess]) -> None:
        self.folder = folder
        self.pool, self.hearer = decoders

    def plan(self, paths: list[Path], recipe: Recipe, **span: float) -> list[ShardSpec]:
        probes = [
            probe_source(
                Source(uri=str(path), **span),  # type: ignore[arg-type]
                limits=recipe.limits,
                process=self.pool.processes[0],
            )
            for path in paths
        ]
        clip_bytes = estimate_clip_bytes(recipe, stamp_streams(recipe))
        return extend_plan(
            probes,
            recipe=recipe,
            recipe_fingerprint=recipe.fingerprint(stamp_streams(recipe)),
            clip_bytes=clip_bytes,
            existing=[],
        )

    def build(
        self, specs: list[ShardSpec], recipe: Recipe, *, name: str = "cache"
    ) -> list[Sidecar]:
        self.layout = CacheLayout(self.folder / name)
        tools = BuildTools(
            recipe=recipe,
            layout=self.layout,
            encoders=StreamEncoders(recipe),
            pool=self.pool,
            hearer=self.hearer,
        )
        return [build_shard(spec, tools=tools) for spec in specs]

    def samples(self, sidecars: list[Sidecar]) -> list[Sample]:
        found = []
        for sidecar in sidecars:
            tar = self.layout.tar(sidecar.name).read_bytes()
            for entry in sidecar.samples:
                members = {n: tar[at : at + size] for n, (at, size) in entry.members.items()}
                found.append(Sample.from_members(entry.key, members, streams=("image",)))
        return found

    def cache(self, path: Path, recipe: Recipe, **span: float) -> list[Sample]:
        return self.samples(self.build(self.plan([path], recipe, **span), recipe))


@pytest.fixture
def builder(tmp_path: Path, decoders: tuple[DecoderPool, DecoderProcess]) -> Builder:
    return Builder(tmp_path, decoders)


def silence(recipe: Recipe) -> np.ndarray:
    assert recipe.audio is not None
    encoder = load_sound_encoder(recipe.audio)
    tokens = encoder.encode(np.zeros((1, 480_000), np.float32))[0]
    return tokens.reshape(30, 5, 10, DIM).mean(axis=2).astype(np.float16)


def test_samples_hold_what_the_encoder_makes_of_the_seconds_of_the_clip(
    builder: Builder, long_video: Path
) -> None:
    recipe = recipe_of()
    samples = builder.cache(long_video, recipe)
    assert len(samples) == 18
    windows = list(
        decode_sound(
            str(long_video),
            origin_seconds=0.0,
            num_windows=60,
            rate=16000,
            limits=recipe.limits,
            process=builder.hearer,
        )
    )
    assert recipe.audio is not None
    encoder = load_sound_encoder(recipe.audio)
    chunks = np.concatenate([window.samples for window in windows]).reshape(2, 480_000)
    tokens = encoder.encode(chunks).reshape(60, 5, 10, DIM).mean(axis=2).astype(np.float16)
    nothing = silence(recipe)
    for index, sample in enumerate(samples):
        assert sample.audio is not None
        assert sample.audio_mask is not None
        assert (sample.audio.shape, sample.audio.dtype) == ((2, 5, DIM), np.float16)
        assert (sample.audio_mask.shape, sample.audio_mask.dtype) == ((2,), np.bool_)
        assert sample.info["audio_start_seconds"] == sample.info["start_seconds"] == 2.0 * index
        for slot, k in enumerate((2 * index, 2 * index + 1)):
            is_heard = 2 <= k < 35  # the track begins late and ends early
            assert sample.audio_mask[slot] == is_heard
            expected = tokens[k] if is_heard else nothing[k % 30]
            assert np.array_equal(sample.audio[slot], expected)


@pytest.mark.parametrize("num_clips", [1, 5, 15])
def test_a_long_video_that_is_cut_into_pieces_sounds_the_same(
    num_clips: int, builder: Builder, long_video: Path
) -> None:
    recipe = recipe_of()
    whole = builder.cache(long_video, recipe)
    clip_bytes = estimate_clip_bytes(recipe, stamp_streams(recipe))
    cut = recipe_of(f"shards.target_bytes={num_clips * clip_bytes}")
    specs = builder.plan([long_video], cut)
    assert len(specs) == -(-18 // num_clips)
    parts = builder.samples(builder.build(specs[-2:], cut))
    assert [s.key for s in parts] == [s.key for s in whole][-len(parts) :]
    for one, other in zip(whole[-len(parts) :], parts, strict=True):
        assert np.array_equal(one.audio, other.audio)  # type: ignore[arg-type]
        assert np.array_equal(one.audio_mask, other.audio_mask)  # type: ignore[arg-type]
        assert one.info == other.info


def test_a_video_without_a_track_has_silence_and_no_mask(
    builder: Builder, clips: ClipShelf
) -> None:
    recipe = recipe_of()
    nothing = silence(recipe)
    for index, sample in enumerate(builder.cache(clips["25.mp4"].path, recipe)):
        assert not sample.info["has_audio"]
        assert not sample.audio_mask.any()  # type: ignore[union-attr]
        assert np.array_equal(sample.audio, nothing[2 * index : 2 * index + 2])  # type: ignore[arg-type]


def test_clips_of_half_a_second(builder: Builder, clips: ClipShelf) -> None:
    recipe = recipe_of("sampling.fps=8.0")
    samples = builder.cache(clips["with_audio.mp4"].path, recipe)
    masks = [bool(sample.audio_mask[0]) for sample in samples]  # type: ignore[index]
    assert masks == [index % 2 == 0 for index in range(10)]
    assert {sample.audio.shape for sample in samples} == {(1, 5, DIM)}  # type: ignore[union-attr]


def test_a_span_hears_from_its_start_to_its_end(builder: Builder, long_video: Path) -> None:
    samples = builder.cache(long_video, recipe_of(), start_seconds=30.0, end_seconds=33.0)
    assert [s.info["audio_start_seconds"] for s in samples] == [30.0, 32.0]
    masks = [s.audio_mask.tolist() for s in samples]  # type: ignore[union-attr]
    assert masks == [[True, True], [True, False]]


def test_several_videos_twice_give_the_same_bytes(
    builder: Builder, long_video: Path, clips: ClipShelf
) -> None:
    recipe = recipe_of()
    names = ("with_audio.mp4", "25.mp4", "goes_back.ts", "audio_comes_and_goes.ts", "one_frame.mp4")
    specs = builder.plan([long_video, *(clips[name].path for name in names)], recipe)
    first = builder.build(specs, recipe)
    assert first[0].rejects == ()
    assert len(first[0].videos) == 6
    assert builder.build(specs, recipe, name="again") == first


def test_estimated_bytes_are_the_real_ones(builder: Builder, long_video: Path) -> None:
    recipe = recipe_of()
    (spec,) = builder.plan([long_video], recipe)
    (sidecar,) = builder.build([spec], recipe)
    estimate = sum(piece.estimated_bytes for piece in spec.pieces)
    assert estimate == pytest.approx(sidecar.tar_bytes, rel=0.03)


def test_a_shard_without_a_process_for_sound_makes_its_own(
    builder: Builder, long_video: Path
) -> None:
    recipe = recipe_of()
    specs = builder.plan([long_video], recipe)
    expected = builder.build(specs, recipe)
    builder.hearer = None  # type: ignore[assignment]
    assert builder.build(specs, recipe, name="own") == expected


def test_pictures_that_are_decoded_again_take_their_sound_along(
    builder: Builder, long_video: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_of("sampling.fps=60.0", "sampling.frames_per_clip=16")
    specs = builder.plan([long_video], recipe)
    expected = builder.build(specs, recipe)
    encode, batches = StreamEncoders.encode, 0

    def encode_and_kill(self: StreamEncoders, clips: Any) -> Any:
        nonlocal batches
        batches += 1
        if batches == 4:
            for process in builder.pool.processes:
                if process.pid is not None and not process.is_idle:
                    os.kill(process.pid, 9)
        return encode(self, clips)

    monkeypatch.setattr(StreamEncoders, "encode", encode_and_kill)
    assert builder.build(specs, recipe, name="again") == expected
    assert batches > -(-specs[0].num_clips // 8)


def test_sound_that_cannot_be_decoded_costs_that_video_only(
    builder: Builder, long_video: Path, clips: ClipShelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_of()
    paths = [clips["with_audio.mp4"].path, long_video, clips["25.mp4"].path]
    (spec,) = builder.plan(paths, recipe)
    request = DecoderProcess.request

    def crashing(self: DecoderProcess, message: dict[str, Any], **options: Any) -> Any:
        for number, answer in enumerate(request(self, message, **options)):
            if "long" in message["path"] and message["kind"] == "sound" and number == 10:
                assert self.pid is not None
                os.kill(self.pid, 9)
            yield answer

    monkeypatch.setattr(DecoderProcess, "request", crashing)
    (sidecar,) = builder.build([spec], recipe)
    (reject,) = sidecar.rejects
    assert (reject.uri, reject.stage, reject.reason) == (str(long_video), "decode", "crashed")
    assert reject.detail.startswith("its sound: signal SIGKILL")
    assert [video.num_clips for video in sidecar.videos] == [3, 3]
    assert [gap.num_clips for gap in sidecar.missing] == [18]


def test_features_of_sound_that_are_not_finite_are_a_reject(
    builder: Builder, clips: ClipShelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_of()
    (spec,) = builder.plan([clips["with_audio.mp4"].path, clips["25.mp4"].path], recipe)

    def encode(self: Any, samples: np.ndarray) -> np.ndarray:
        value = np.nan if samples.any() else 1.0
        return np.full((1, 30, 50, DIM), value, np.float32)

    monkeypatch.setattr("encoders.whisper_model.WhisperEncoder.encode", encode)
    (sidecar,) = builder.build([spec], recipe)
    assert [(r.stage, r.reason, r.detail) for r in sidecar.rejects] == [
        ("encode", "non_finite", "its sound")
    ]
    assert len(sidecar.videos) == 1


def children(pid: int) -> set[int]:
    """Decoder processes of a process."""
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == pid and b"pipeline.jailed" in (folder / "cmdline").read_bytes():
                    found.add(int(folder.name))
    return found


def test_an_interrupted_shard_leaves_no_process_and_no_thread(
    builder: Builder, long_video: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_of()
    specs = builder.plan([long_video], recipe)
    builder.pool.spawn()
    before = children(os.getpid())
    builder.hearer = None  # type: ignore[assignment]
    during: set[int] = set()

    def interrupt(self: ChunkEncoder, samples: np.ndarray) -> np.ndarray:
        during.update(children(os.getpid()))
        raise KeyboardInterrupt

    monkeypatch.setattr(ChunkEncoder, "encode", interrupt)
    with pytest.raises(KeyboardInterrupt):
        builder.build(specs, recipe)
    assert len(during - before) == 1
    assert children(os.getpid()) <= before
    assert not [thread for thread in threading.enumerate() if thread.name == "sound"]


KILLED = """
import sys, time
import beam_runner
from encoders import sound_spec
from pipeline import encoding_sound
from schemas.recipe import Recipe
from schemas.video import Source

class Slow:
    def __init__(self, settings, *, runtime):
        self.spec = sound_spec(settings)

    def encode(self, samples):
        print("at work", flush=True)
        time.sleep(60)

encoding_sound.load_sound_encoder = Slow
recipe = Recipe.load(sys.argv[1])
beam_runner.run([Source(uri=sys.argv[2])], recipe, cache_path=sys.argv[3])
"""
RECIPE = """
name = "heard"
sampling = { fps = 2.0, frames_per_clip = 4 }
streams.image.encoder = "random-image"
audio = { encoder = "whisper-tiny", weights = "random" }
"""


def test_a_killed_run_leaves_no_decoder_process(long_video: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    arguments = [str(tmp_path / "recipe.toml"), str(long_video), str(tmp_path / "cache")]
    run = subprocess.Popen(
        [sys.executable, "-c", KILLED, *arguments],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert run.stdout is not None
        assert run.stdout.readline() == b"at work\n"
        left = children(run.pid)
        assert len(left) >= 2  # of pictures and of sound
    finally:
        run.kill()
        run.communicate()
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in left):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_choices_of_the_recipe() -> None:
    with pytest.raises(RecipeError, match="must divide the 50"):
        audio_spec(recipe_of("audio.tokens_per_window=3"))
    prints = {
        recipe.fingerprint(stamp_streams(recipe))
        for recipe in (
            recipe_of(),
            recipe_of("audio.tokens_per_window=10"),
            recipe_of("audio.encoder=whisper-base"),
            recipe_of("audio.precision=bfloat16"),
            replace(recipe_of(), audio=None),
        )
    }
    assert len(prints) == 5


def test_a_cache_with_sound_is_verified_inspected_and_read(
    long_video: Path, clips: ClipShelf, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import beam_runner
    from pipeline.cli import call

    sources = [Source(uri=str(path)) for path in (long_video, clips["25.mp4"].path)]
    cache = tmp_path / "cache"
    report = beam_runner.run(sources, recipe_of(), cache_path=cache)
    assert (report.videos, report.clips) == (2, 21)
    assert verify_cache(cache, deep=True).findings == []
    with open_cache(cache) as reader:
        assert reader.info.stamps["audio"]["name"] == "whisper-tiny"
        key = next(iter(reader.videos.values()))[0]
        sample = reader[key]
        assert sample.audio is not None
        assert {"torch", "transformers", "device"} <= set(sample.info["versions"])
        again = reencode_sample(reader, num_clips=4)
        assert (again.num_clips, again.findings) == (4, ())
        assert [stream.stream for stream in again.streams] == ["image", "audio"]
        assert again.streams[1].channel_error_max == 0
        assert again.streams[1].cosine_min == pytest.approx(1)
    assert call(["inspect", str(cache)]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["audio.npy", "whisper-tiny", "2", "x", "5", "x", "32", "float16"] in shown
    assert ["audio_mask.npy", "2", "bool"] in shown
    assert call(["inspect", f"{cache}::{key}", "--json"]) == 0
    one = json.loads(capsys.readouterr().out)
    assert one["audio_mask"] == sample.audio_mask.tolist()  # type: ignore[union-attr]
    members = {member["name"]: member["shape"] for member in one["members"]}
    assert members["audio.npy"] == [2, 5, 32]
    assert members["audio_mask.npy"] == [2]


def test_sound_that_is_encoded_to_something_else_is_found(
    long_video: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import beam_runner

    beam_runner.run([Source(uri=str(long_video))], recipe_of(), cache_path=tmp_path / "cache")
    take = HearAhead.take

    def other(self: HearAhead, *clip: Any) -> ClipSound:
        sound = take(self, *clip)
        return replace(sound, tokens=-sound.tokens, mask=~sound.mask)

    monkeypatch.setattr(HearAhead, "take", other)
    with open_cache(tmp_path / "cache") as reader:
        findings = reencode_sample(reader, num_clips=1).findings
    assert [detail for _, _, detail in findings] == [
        "audio: heard in other windows",
        "audio: cosine -1.0000 with what is encoded again",
    ]


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        ({"audio": None, "audio_mask": None}, "members are"),
        ({"audio": np.zeros((2, 4, DIM), np.float16)}, "audio is (2, 4, 32) float16, expected"),
        ({"audio": np.zeros((2, 5, DIM), np.float32)}, "audio is (2, 5, 32) float32, expected"),
        ({"audio_mask": np.zeros(2, np.int8)}, "the mask of sound is (2,) int8, expected"),
        ({"audio": np.full((2, 5, DIM), np.nan, np.float16)}, "audio holds NaN or infinity"),
    ],
)
def test_damaged_sound_is_found(
    change: dict[str, Any], finding: str, builder: Builder, clips: ClipShelf
) -> None:
    from pipeline.checking import sample_problems
    from schemas.cache_info import CacheInfo

    recipe = recipe_of()
    (spec,) = builder.plan([clips["one_frame.mp4"].path], recipe)
    sidecars = builder.build([spec], recipe)
    (sample,), (entry,) = builder.samples(sidecars), sidecars[0].samples
    info = CacheInfo(
        fingerprint="",
        recipe=recipe.to_mapping(),
        stamps=stamp_streams(recipe),
        counts={},
        shards=(),
        index_sha256="",
        tables={},
    )

    def problems(sample: Sample) -> list[str]:
        members = {name for name, _ in sample.to_members()}
        found = sample_problems(sample, entry, members=members, info=info, recipe=recipe, deep=True)
        return [detail for _, detail in found]

    assert problems(sample) == []
    (problem,) = problems(replace(sample, **change))
    assert problem.startswith(finding)
