"""`pipeline plan`: what it says beside what a run then does, and that it writes nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.cli import call
from pipeline.cli.forecasts import number_text, usd_text
from pipeline.cli.splitting import split_arguments
from schemas.errors import UsageError

if TYPE_CHECKING:
    from tests.clips import ClipShelf

CONTRACT = [
    *("videos", "hours", "frames", "clips", "shards", "bytes"),
    *("gpu_hours", "cost_usd", "done_clips"),
]
MEDIA = (".mp4", ".mkv", ".webm", ".m4v", ".mov", ".ts", ".avi", ".gif", ".mxf", ".mts")
EXACT = ("videos", "clips", "frames", "shards")
ROOT = Path(__file__).resolve().parents[3]

VARIANTS = {
    "plain": ("preview.enabled=false",),
    "int8": ("preview.enabled=false", "streams.image.dtype=int8", "streams.video.dtype=int8"),
    "grid": ("preview.enabled=false", "streams.image.grid=[2, 1]"),
    "sound": ("preview.enabled=false", "audio.encoder=log-mel", "audio.tokens_per_window=20"),
    "other clips": (
        "preview.enabled=false",
        "sampling.fps=3",
        "sampling.frames_per_clip=5",
        "shards.max_seconds=5",
    ),
    "small shards": ("preview.enabled=false", "shards.target_bytes=40000"),
}


def told(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    assert call([*arguments, "--json", "-q"]) == code
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


def sets(overrides: tuple[str, ...]) -> list[str]:
    return [word for one in overrides for word in ("--set", one)]


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file and folder below, with its size and time of change."""
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in [folder, *folder.rglob("*")]
    }


@pytest.fixture(scope="module")
def videos(clips: ClipShelf, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Many kinds of videos, a copy, a broken one, and what is not media."""
    folder = tmp_path_factory.mktemp("plan") / "videos"
    folder.mkdir()
    names = (
        "25.mp4 variable_rate.mkv starts_at_10s.mp4 rotation_90.mp4 half_a_second.mp4"
        " with_audio.mp4 edit_list.mp4 frozen_picture.mp4 one_frame.mp4 b_frames.mp4"
    )
    for name in names.split():
        shutil.copy(clips[name].path, folder / name)
    shutil.copy(clips["25.mp4"].path, folder / "copy.mp4")
    (folder / "broken.mp4").write_text("no video")
    (folder / "notes.md").write_text("not media")
    return folder


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_does_what_the_plan_says(
    variant: str, videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(videos), str(tmp_path / "cache"), "--recipe", "tiny", *sets(VARIANTS[variant])]
    before = snapshot(tmp_path)
    plan = told(capsys, "plan", *arguments)
    assert snapshot(tmp_path) == before
    assert list(plan)[1 : 1 + len(CONTRACT)] == CONTRACT
    run = told(capsys, "run", *arguments)
    assert {name: plan[name] for name in EXACT} == {name: run[name] for name in EXACT}
    assert plan["bytes"] == pytest.approx(run["bytes"], rel=0.03)
    assert plan["sources"] | {"rejects": []} == {
        "named": 12,
        "to_do": 10,
        "cached": 0,
        "copies": 1,
        "rejected": 1,
        "reasons": {"not_a_video": 1},
        "rejects": [],
    }
    cached = told(capsys, "stats", str(tmp_path / "cache"))
    assert plan["hours"] * 3600 == pytest.approx(cached["seconds"], rel=0.01)
    features = {name: n for name, n in cached["member_bytes"].items() if name in _features(plan)}
    headers = 128 * len(features) * run["clips"]
    assert plan["trainer_bytes_per_epoch"] == sum(features.values()) - headers


def _features(plan: dict[str, Any]) -> set[str]:
    names = set(plan["member_bytes"]) - {"preview", "rest"}
    endings = (".npy", "_scale.npy", "_mask.npy")
    return {f"{name}{ending}" for name in names for ending in endings}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "overrides"),
    [
        ("*", ()),
        ("[c-p]*", ("preview.height=128",)),
        ("[c-f]*", ("sampling.fps=1", "sampling.frames_per_clip=8")),
    ],
)
def test_a_run_on_real_files_does_what_the_plan_says(
    names: str,
    overrides: tuple[str, ...],
    corpus_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Previews are real pictures here: their bytes are estimated by a mean."""
    sources = [str(path) for path in corpus_dir.glob(names) if path.suffix in MEDIA]
    arguments = [*sources, str(tmp_path / "cache"), "--recipe", "tiny", *sets(overrides)]
    plan, run = told(capsys, "plan", *arguments), told(capsys, "run", *arguments)
    assert {name: plan[name] for name in EXACT} == {name: run[name] for name in EXACT}
    assert plan["sources"]["rejected"] == run["rejected"]
    assert plan["bytes"] == pytest.approx(run["bytes"], rel=0.10)


def test_what_is_done_is_not_planned_again(
    small_videos: Path, small_cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = told(capsys, "plan", str(small_videos), str(small_cache))
    assert (whole["clips"], whole["bytes"], whole["gpu_hours"]) == (0, 0, 0)
    assert whole["done_clips"] == 6 and not whole["new_cache"]
    assert whole["sources"]["cached"] == 2
    # As after a run that was killed: one shard has no sidecar.
    cache = Path(shutil.copytree(small_cache, tmp_path / "cache"))
    (cache / "cache.json").unlink()
    sidecar = min((cache / "shards").glob("*.json"))
    samples = len(json.loads(sidecar.read_text())["samples"])
    sidecar.unlink()
    before = snapshot(cache)
    part = told(capsys, "plan", str(small_videos), str(cache))
    assert snapshot(cache) == before
    assert (part["done_clips"], part["clips"], part["shards"]) == (6 - samples, samples, 1)
    assert part["done_bytes"] + part["bytes"] == pytest.approx(whole["done_bytes"], rel=0.4)
    assert told(capsys, "plan", str(cache))["clips"] == samples
    run = told(capsys, "run", str(small_videos), str(cache))
    assert {name: part[name] for name in EXACT} == {name: run[name] for name in EXACT}


def test_new_videos_beside_old_ones(
    small_cache: Path, clips: ClipShelf, capsys: pytest.CaptureFixture[str]
) -> None:
    before = snapshot(small_cache)
    plan = told(capsys, "plan", str(clips["30.mp4"].path), str(small_cache))
    assert snapshot(small_cache) == before
    assert (plan["videos"], plan["done_clips"], plan["sources"]["named"]) == (1, 0, 1)


def test_another_recipe_is_refused_as_a_run_would(
    small_videos: Path, small_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["plan", str(small_videos), str(small_cache)]
    assert call([*arguments, "--set", "sampling.fps=1"]) == 4
    assert "sampling.fps: 2.0 -> 1.0" in capsys.readouterr().err
    assert call([*arguments, "--recipe", "apollo"]) == 4
    assert "was made by recipe 'tiny'" in capsys.readouterr().err
    both = told(capsys, *arguments, "--compare", "apollo,tiny", "--set", "shards.max_seconds=4")
    assert [one["recipe"] for one in both["recipes"]] == ["apollo", "tiny"]
    assert [one["new_cache"] for one in both["recipes"]] == [True, False]
    assert [one["done_clips"] for one in both["recipes"]] == [0, 6]


def test_weights_need_not_be_named(
    small_videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cache of real weights goes on without them; of others it does not."""
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        'name = "mine"\nsampling = {fps = 2.0, frames_per_clip = 4}\n'
        'streams.image = {encoder = "efficientnet-lite0", precision = "float32"}\n'
    )
    cache = tmp_path / "cache"
    first = str(small_videos / "first clip.mp4")
    told(capsys, "run", first, str(cache), "--recipe", str(recipe), "--weights", "random")
    plan = ["plan", str(small_videos), str(cache)]
    again = told(capsys, *plan)
    assert again["done_clips"] == 3 and again["clips"] == 3
    assert again["gpu_hours"] > 0
    assert call([*plan, "--set", "streams.image.grid=[2, 2]"]) == 4
    assert "grid" in capsys.readouterr().err
    apollo = ["plan", str(small_videos), "--recipe", "apollo"]
    fresh = told(capsys, *apollo)
    assert told(capsys, *apollo, "--weights", "hub") == fresh  # and nothing is downloaded
    # InternVideo2 and SigLIP without their last blocks: 4.82 TFLOP a clip.
    assert fresh["operations"] / fresh["clips"] == pytest.approx(4.817e12, rel=1e-3)
    (h100, *_) = fresh["cards"]
    assert fresh["card"] == h100["name"] == "H100 SXM"
    assert fresh["gpu_hours"] == pytest.approx(fresh["operations"] / (0.4 * 989e12) / 3600)
    assert fresh["cost_usd"] == pytest.approx(fresh["gpu_hours"] * 3.99)
    assert h100["usd_low"] < h100["usd"] < h100["usd_high"]


def test_figures_of_ones_own(
    small_videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ["plan", str(small_videos), "--recipe", "apollo"]
    base = told(capsys, *plan)
    l4 = told(capsys, *plan, "--card", "l4", "--usd-per-hour", "0.5")
    assert l4["card"] == "L4"
    assert l4["gpu_hours"] == pytest.approx(base["gpu_hours"] * 989 / 121)
    assert l4["cost_usd"] == pytest.approx(l4["gpu_hours"] * 0.5)
    fast = told(capsys, *plan, "--frames-per-second", "100")
    assert fast["speed"] == "measured"
    assert fast["gpu_hours"] == pytest.approx(base["frames"] / 100 / 3600)
    by_name = {card["name"]: card["gpu_hours"] for card in fast["cards"]}
    assert by_name["A100 SXM"] == pytest.approx(fast["gpu_hours"] * 989 / 312)
    one = told(capsys, *plan, "--frames-per-second", "siglip=100")
    assert one["gpu_hours"] > fast["gpu_hours"]
    table = tmp_path / "mine.toml"
    shipped = (resources.files("schemas") / "cards.toml").read_text("utf-8")
    table.write_text(shipped.replace("encoding_utilisation = 0.4", "encoding_utilisation = 0.8"))
    mine = told(capsys, *plan, "--cards", str(table))
    assert mine["gpu_hours"] == pytest.approx(base["gpu_hours"] / 2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--frames-per-second", "fast"], "must be a number above 0"),
        (["--frames-per-second", "0"], "must be a number above 0"),
        (["--frames-per-second", "imige=3"], "did you mean"),
        (["--card", "B300"], "no card named 'B300'"),
        (["--usd-per-hour", "nan"], "must be a number above 0"),
        (["--usd-per-hour", "inf"], "must be a number above 0"),
        (["--cards", "/nowhere.toml"], "cannot be read"),
        (["--compare", ","], "names no recipe"),
        (["--compare", "apollo,apolo"], "did you mean 'apollo'"),
        (["--recipe", "tini"], "did you mean 'tiny'"),
    ],
)
def test_what_is_wrong_is_said(
    arguments: list[str], said: str, small_videos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["plan", str(small_videos), "-q", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and said in err and "Traceback" not in err


def test_the_last_argument_is_the_cache_or_a_source(
    small_cache: Path, small_videos: Path, tmp_path: Path
) -> None:
    videos, cache = str(small_videos), str(small_cache)
    (tmp_path / "empty").mkdir()
    (tmp_path / "begun" / "probes").mkdir(parents=True)
    (tmp_path / "begun" / "probes" / "000000.parquet").touch()
    assert split_arguments([videos, cache]) == ([videos], cache)
    assert split_arguments([cache + "/"]) == ([], cache)
    for name in ("empty", "begun", "new"):
        path = str(tmp_path / name)
        assert split_arguments([videos, path]) == ([videos], path)
    for sources in (
        [videos],
        [videos, str(small_videos / "more")],
        [videos, str(small_videos / "first clip.mp4")],
        [videos, "-"],
        [videos, f"{videos}/*.mp4"],
        [videos, "https://host/b.mp4?X-Amz-Signature=1"],
        [videos, "s3://key:secret@bucket/folder"],
        [str(tmp_path / "new")],
        [str(tmp_path / "empty")],
        [videos, "a\0b"],
        [videos, ""],
    ):
        assert split_arguments(sources) == (sources, None)
    for name in ("typo.mp4", "list.csv"):
        with pytest.raises(UsageError, match="no such file"):
            split_arguments([videos, str(tmp_path / name)])


def test_what_a_person_reads(
    small_videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["plan", str(small_videos), str(tmp_path / "new"), "--recipe", "apollo"]) == 0
    out, err = capsys.readouterr()
    assert "probe: 4 of 4 sources" in err
    lines = out.splitlines()
    assert "sources  4: 2 to do, 1 copy of others, 1 cannot be used, see below" in lines
    assert "ignored  1 file, not media by extension" in lines
    assert "  sample  20 frames at 2 a second, in 6 clips of 4" in lines
    assert "which is still to be made" in out and "H100 SXM" in out and "a month" in out
    assert "not_a_video" in out
    assert max(map(len, lines)) <= 100 or "/" in max(lines, key=len)
    assert call(["plan", str(small_videos), "--compare", "apollo,apollo-compact", "-q"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "apollo-compact" in out and "training reads an epoch" in out
    assert call(["plan", str(small_videos), "--recipe", "tiny", "-q"]) == 0
    assert "no encoder of this recipe needs a GPU" in capsys.readouterr().out
    assert call(["plan", str(small_videos / "broken.mp4"), "-q"]) == 0
    out = capsys.readouterr().out
    assert "Nothing to do: no source can be used." in out and "a month" not in out


def test_an_encoder_that_does_not_say_what_it_computes(
    small_videos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dataclasses import replace

    from pipeline import forecasting

    real = forecasting.all_specs

    def unknown(recipe: Any, **more: Any) -> Any:
        specs = real(recipe, **more)
        return specs | {"image": replace(specs["image"], operations=None)}

    monkeypatch.setattr(forecasting, "all_specs", unknown)
    plan = ["plan", str(small_videos), "--recipe", "tiny"]
    assert told(capsys, *plan)["unknown_streams"] == ["image"]
    assert call([*plan, "-q"]) == 0
    assert "without image: not known; give --frames-per-second image=X" in capsys.readouterr().out
    known = told(capsys, *plan, "--frames-per-second", "image=10")
    assert known["unknown_streams"] == []
    assert known["gpu_hours"] == pytest.approx(known["frames"] / 10 / 3600)


def test_remote_sources_and_caches(
    s3: Any, bucket: str, small_videos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    s3.pipe_file(f"{bucket}/videos/a.mp4", (small_videos / "first clip.mp4").read_bytes())
    arguments = [f"s3://{bucket}/videos/", f"s3://{bucket}/cache", "--recipe", "tiny"]
    plan = told(capsys, "plan", *arguments)
    assert (plan["clips"], plan["new_cache"]) == (3, True)
    assert s3.find(bucket) == [f"{bucket}/videos/a.mp4"]
    told(capsys, "run", *arguments)
    listed = s3.find(bucket, detail=True)
    done = told(capsys, "plan", *arguments)
    assert (done["clips"], done["done_clips"]) == (0, 3)
    assert {k: v["LastModified"] for k, v in s3.find(bucket, detail=True).items()} == {
        k: v["LastModified"] for k, v in listed.items()
    }
    alone = told(capsys, "plan", f"s3://{bucket}/videos/a.mp4", "--recipe", "tiny")
    assert alone["cache"] is None and alone["clips"] == 3


def test_an_interrupted_plan_leaves_no_process(clips: ClipShelf, tmp_path: Path) -> None:
    for number in range(400):
        data = clips["25.mp4"].path.read_bytes()
        (tmp_path / f"{number}.mp4").write_bytes(data + str(number).encode())
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pipeline", "plan", str(tmp_path), "--recipe", "tiny"]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not (children := _children(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert children
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "") and "Interrupted" in err
    while any(Path(f"/proc/{pid}").exists() for pid in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    found = [] if not path.exists() else [int(one) for one in path.read_text().split()]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(one) for one in task.read_text().split()]
    return sorted(set(found))


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1e-9, "<0.001"), (0.0123456, "0.0123"), (12.345, "12.3"), (6100.4, "6,100")],
)
def test_numbers_of_any_size(value: float, text: str) -> None:
    assert number_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "$0.00"), (0.004, "under $0.01"), (0.026, "$0.03"), (16.5, "$16.50"), (67000, "$67,000")],
)
def test_dollars_of_any_size(value: float, text: str) -> None:
    assert usd_text(value) == text
