"""trainer export, generate and evaluate, as they are typed."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from trainer.cli import call
from trainer.cli.generate import Writing, read_span

SOME = ["--device", "cpu", "--max-new-tokens", "8"]


def run(*arguments: object) -> int:
    return call([str(one) for one in arguments])


def test_a_raw_video_beside_its_cache(
    model_path: Path, cache_path: Path, videos: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    told = []
    for where in ([videos[0]], ["--features", cache_path, videos[0]]):
        asked = [*where, "What is it?", "--span", "1.0-3.0", "--json", *SOME]
        assert run("generate", model_path, *asked) == 0
        told.append(json.loads(capsys.readouterr().out))
    raw, cached = told
    assert set(raw.pop("seconds")) == {"load", "encode", "answer"}
    assert set(cached.pop("seconds")) == {"load", "open", "answer"}
    assert raw == cached
    assert raw["clips"] == [
        {"start_seconds": 0.0, "end_seconds": 2.0},
        {"start_seconds": 2.0, "end_seconds": 4.0},
    ]
    assert set(raw["span"]) == {"start_seconds", "end_seconds"}
    assert run("generate", model_path, videos[0], "What is it?", *SOME) == 0
    assert capsys.readouterr().out.count("\n") >= 1


def test_questions_come_from_a_pipe(
    model_path: Path,
    cache_path: Path,
    videos: list[Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Of the second one the model cannot see a clip any more.
    monkeypatch.setattr("sys.stdin", io.StringIO(f"When?\n\n{'x' * 600}\nAnd then?"))
    asked = ["--features", cache_path, videos[0], "What is it?", "--chat", "--json"]
    assert run("generate", model_path, *asked, *SOME) == 0
    out, err = capsys.readouterr()
    answers = [json.loads(line) for line in out.splitlines()]
    assert len(answers) == 3
    assert answers[0]["num_tokens"] < answers[1]["num_tokens"] < answers[2]["num_tokens"]
    assert err.count("leaves no room for a clip") == 1
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert run("generate", model_path, "--features", cache_path, videos[0], "--chat") == 0
    assert capsys.readouterr().out == ""


def test_a_question_about_no_video(model_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("generate", model_path, "--text", "What is it?", "--json", *SOME) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["video"], told["clips"]) == (None, [])
    assert "span" not in told


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gone", "a.mp4", "What?"], "gone is not a model"),
        (["MODEL"], "which VIDEO?"),
        (["MODEL", "a.mp4"], "what is the QUESTION?"),
        (["MODEL", "a.mp4", "What?"], "a.mp4: no such file"),
        (["MODEL", "a.mp4", "What?", "--span", "5-3"], "--span '5-3' must be START-END"),
        (["MODEL", "a.mp4", "--text", "What?"], "--text is a question about no video"),
        (["MODEL", "a.mp4", "What?", "--stream", "--json"], "--stream is for text"),
        (["MODEL", "a", "What?", "--features", "CACHE"], "no video 'a' in"),
        (["MODEL", "a", "What?", "--features", "CACHE", "--weights", "x"], "--weights is for"),
        (["MODEL", "a", "What?", "--features", "MODEL"], "has no cache.json"),
        (["MODEL", "VIDEO", "What?", "--weights", "image=x"], "random-image"),
    ],
)
def test_what_is_wrong_is_said(
    arguments: list[str],
    said: str,
    model_path: Path,
    cache_path: Path,
    videos: list[Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = {"MODEL": model_path, "CACHE": cache_path, "VIDEO": videos[0]}
    assert run("generate", *(names.get(one, one) for one in arguments), "--device", "cpu") in (2, 4)
    out, err = capsys.readouterr()
    assert said in err
    assert out == ""
    assert "Traceback" not in err
    assert "bug" not in err


def test_an_answer_is_written_while_it_is_made(
    model_path: Path,
    cache_path: Path,
    videos: list[Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[str] = []
    go_on = Writing.go_on

    def listen(self: Writing, text: str) -> None:
        go_on(self, text)
        written.append(text)

    asked = ["generate", model_path, "--features", cache_path, videos[0], "What is it?", *SOME]
    assert run(*asked) == 0
    whole = capsys.readouterr().out
    monkeypatch.setattr(Writing, "go_on", listen)
    assert run(*asked, "--stream") == 0
    assert capsys.readouterr().out == whole
    assert 1 < len(written) <= 8 and written[-1] == whole.rstrip("\n")


def test_a_letter_waits_for_its_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    writing = Writing()
    for text in ("caf", "caf\ufffd", "caf\u00e9", "caf\u00e9 au"):
        writing.go_on(text)
        assert "\ufffd" not in capsys.readouterr().out
    writing.end("caf\u00e9 au lait")
    assert capsys.readouterr().out == " lait\n"


def test_a_span() -> None:
    assert read_span("3.0-8.5") == (3.0, 8.5)
    assert read_span("-2-1") == (-2.0, 1.0)


def test_export_and_evaluate(
    whole_run: Path,
    cache_path: Path,
    questions: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert run("export", whole_run, "-o", tmp_path / "model", "--step", 2, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["step"], told["language_model"]) == (2, "lm/")
    assert run("export", whole_run, "-o", tmp_path / "again") == 0
    assert "fingerprint" in capsys.readouterr().out
    common = [tmp_path / "model", cache_path, questions, "--device", "cpu", "--limit", 4]
    out = tmp_path / "new" / "rows.jsonl"
    assert run("evaluate", *common, "-o", out, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == told["settings"]["num_asked"] == 4
    assert capsys.readouterr().err == ""
    now = 0.0

    def pass_six_seconds() -> float:
        nonlocal now
        now += 6
        return now

    with monkeypatch.context() as patch:
        patch.setattr("time.monotonic", pass_six_seconds)
        assert run("evaluate", *common, "-q") == 0
        assert capsys.readouterr().err == ""
        assert run("evaluate", *common, "--input", "text") == 0
    shown, said = capsys.readouterr()
    assert said.splitlines() == ["2 items asked", "4 items asked"]
    for word in ("R@.5", "mIoU", "object", "time", "input", "text", "fingerprint"):
        assert word in shown
    assert run("evaluate", *common, "--input", "blind") == 2


def test_bytes_that_are_no_text_are_said(
    model_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["generate", str(model_path), "--max-new-tokens", "1"]
    assert call([*asked, "--text", "\udcff"]) == 2
    assert "no text" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.StringIO("\udcff\n"))
    assert call([*asked, "--chat", "--text", "a"]) == 0
    assert "no text" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", None)
    assert call([*asked, "--chat", "--text", "a"]) == 0
