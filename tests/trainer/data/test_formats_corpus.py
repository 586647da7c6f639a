"""The real files of annotations: every row is there, with what it said."""

import csv
import json
from pathlib import Path

import pytest

from schemas.errors import AnnotationError
from trainer.data.annotation import span_text
from trainer.data.formats import read_annotations


@pytest.fixture(scope="module")
def folder(corpus_dir) -> Path:
    folder = corpus_dir.parent / "annotations"
    if not (folder / "PROVENANCE.tsv").is_file():
        pytest.skip(f"no real annotations at {folder}")
    return folder


def count_csv(text: str) -> int:
    return len(list(csv.reader(text.splitlines()))) - 1


def count_rows(text: str) -> int:
    return len(json.loads(text))


COUNTS = {
    "tempcompass_multi_choice_questions.json": lambda text: text.count('"question"'),
    "nextqa_val.csv": count_csv,
    "nextgqa_val.csv": count_csv,
    "charades_sta_timechat_gt.json": lambda text: text.count('"timestamp"'),
    "qvhighlights_val_250.jsonl": lambda text: len(text.splitlines()),
    "llamafactory_mllm_video_demo.json": count_rows,
    "llamafactory_mllm_video_audio_demo.json": count_rows,
    "activitynetqa_val_300_q.json": count_rows,
}
EXPECTED = [698, 4996, 3358, 500, 250, 3, 3, 300]


@pytest.mark.parametrize(("name", "expected"), list(zip(COUNTS, EXPECTED, strict=True)))
def test_no_row_is_lost(folder, name, expected):
    text = (folder / name).read_text(encoding="utf-8")
    found = read_annotations(str(folder / name))
    assert len(found) == COUNTS[name](text) == expected
    assert all(one.is_supervised and one.video for one in found)
    assert len({one.id for one in found}) == expected


def test_other_files_are_no_annotations(folder):
    for path in sorted(folder.iterdir()):
        if path.name in COUNTS or "tempcompass_predictions" in path.name:
            continue
        with pytest.raises(AnnotationError, match="is of no format that is known"):
            read_annotations(str(path))


def test_tempcompass_answers_are_those_of_the_file(folder):
    path = folder / "tempcompass_multi_choice_questions.json"
    found = {one.id: one for one in read_annotations(str(path))}
    for video, aspects in json.loads(path.read_text()).items():
        for aspect, rows in aspects.items():
            for number, row in enumerate(rows, start=1):
                one = found[f"{video}/{aspect}/{number}"]
                letter = one.messages[-1].content[0]
                option = one.meta["options"][ord(letter) - ord("A")]
                assert f"{letter}. {option}" == row["answer"]
                asked = one.messages[0].content[1].split("\n")[:-1]
                assert asked == [line.strip() for line in row["question"].strip().split("\n")]


@pytest.mark.parametrize("name", ["nextqa_val.csv", "nextgqa_val.csv"])
def test_nextqa_answers_are_those_of_the_file(folder, name):
    with (folder / name).open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = read_annotations(str(folder / name))
    for one, row in zip(found, rows, strict=True):
        number = ord(one.messages[-1].content[0]) - ord("A")
        assert row["answer"] in (str(number), row[f"a{number}"])
        assert row["type"] == one.meta["type"]
    grounds = json.loads((folder / "nextgqa_gsub_val.json").read_text())
    with_spans = [one for one in found if one.answer_spans]
    assert len(with_spans) == (len(rows) if "gqa" in name else 0)
    for one in with_spans:
        spans = grounds[one.video]["location"][one.meta["qid"]]
        assert [list(span) for span in one.answer_spans] == spans


def test_times_of_charades_and_qvhighlights(folder):
    path = folder / "charades_sta_timechat_gt.json"
    rows = json.loads(path.read_text())["annotations"]
    for one, row in zip(read_annotations(str(path)), rows, strict=True):
        assert one.answer_spans == (tuple(row["timestamp"]),)
        assert one.messages[-1].content == (span_text(one.answer_spans),)
    path = folder / "qvhighlights_val_250.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for one, row in zip(read_annotations(str(path)), rows, strict=True):
        assert one.span is not None
        assert f"{one.video}_{one.span[0]}_{one.span[1]}" == row["vid"]
        assert [[s - one.span[0], e - one.span[0]] for s, e in one.answer_spans] == row[
            "relevant_windows"
        ]
        assert one.meta["saliency_scores"] == row["saliency_scores"]
    assert max(len(one.answer_spans) for one in read_annotations(str(path))) > 1


def test_activitynetqa_and_llama_factory(folder):
    answers = json.loads((folder / "activitynetqa_val_300_a.json").read_text())
    by_id = {row["question_id"]: row["answer"] for row in answers}
    for one in read_annotations(str(folder / "activitynetqa_val_300_q.json")):
        assert one.messages[-1].content == (by_id[one.id],)
    [one, *_] = read_annotations(str(folder / "llamafactory_mllm_video_audio_demo.json"))
    assert one.video == "mllm_demo_data/4.mp4"
    assert one.messages[0].content[1] == "What is the video describing?"
    assert one.meta["audios"] == ["mllm_demo_data/4.mp3"]
