"""Annotations of every format, written out here; and all that can be wrong with a file."""

import csv
import gzip
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import AnnotationError
from trainer.data.annotation import Annotation, Message, VideoPart, span_text
from trainer.data.formats import FORMATS, read_annotations

VIDEO = VideoPart()
ASK = [{"role": "user", "content": "<video>What?"}, {"role": "assistant", "content": "A cat."}]


@pytest.fixture
def read(tmp_path):
    """Read rows, or text, or bytes, as a file of a name that says nothing."""

    def read(content, **options):
        path = tmp_path / "some.notes"
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            text = content if isinstance(content, str) else json.dumps(content)
            path.write_text(text, encoding="utf-8")
        return read_annotations(str(path), **options)

    return read


def refused(read, content, **options) -> str:
    with pytest.raises(AnnotationError) as caught:
        read(content, **options)
    assert "some.notes" in caught.value.message
    return caught.value.message


def turns(annotation):
    return [(message.role, message.content) for message in annotation.messages]


class TestMessages:
    def test_a_row_with_everything(self, read):
        row = {
            "id": 7,
            "video": "v1",
            "span": [3, 8.5],
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": [{"type": "video", "span": [4, 5]}, "When?"]},
                {"role": "assistant", "content": "4.0 to 5.0"},
                {"role": "user", "content": "Sure?"},
                {"role": "assistant", "content": "Yes.", "train": False},
            ],
            "answer_spans": [[4, 5]],
            "meta": {"type": "time"},
            "source": "me",
        }
        [one] = read([row])
        assert one == Annotation(
            id="7",
            video="v1",
            span=(3.0, 8.5),
            messages=(
                Message.of("system", "Be brief."),
                Message.of("user", VideoPart(span=(4.0, 5.0)), "When?"),
                Message.of("assistant", "4.0 to 5.0"),
                Message.of("user", "Sure?"),
                Message(role="assistant", content=("Yes.",), supervised=False),
            ),
            answer_spans=((4.0, 5.0),),
            meta={"type": "time", "source": "me"},
        )

    def test_a_row_that_says_little(self, read):
        [one] = read([{"messages": ASK, "video": "a/b.mp4"}], label="mine")
        assert (one.id, one.video, one.span, one.meta) == ("mine/1", "a/b.mp4", None, {})
        assert turns(one) == [("user", (VIDEO, "What?")), ("assistant", ("A cat.",))]
        assert [message.supervised for message in one.messages] == [False, True]

    def test_text_only(self, read):
        row = {"messages": [{"role": "user", "content": "Hi"}, *ASK[1:]], "video": None}
        assert read([row])[0].video is None

    def test_rows_of_ms_swift_and_llama_factory(self, read):
        [one] = read(
            [
                {
                    "messages": [
                        {"role": "user", "content": "<video><audio>\nWhat?", "name": "me"},
                        {"role": "tool_call", "content": '{"name": "ocr"}', "loss": 0},
                        {"role": "tool_response", "content": "nothing"},
                        {
                            "role": "assistant",
                            "content": None,
                            "tool_calls": [
                                {
                                    "type": "function",
                                    "function": {"name": "look", "arguments": '{"at": 5}'},
                                }
                            ],
                        },
                    ],
                    "videos": ["a.mp4"],
                    "audios": ["a.wav"],
                    "tools": [{"name": "ocr"}],
                }
            ]
        )
        assert turns(one) == [
            ("system", ('Tools:\n[{"name": "ocr"}]',)),
            ("user", (VIDEO, "What?")),
            ("assistant", ('{"name": "ocr"}',)),
            ("tool", ("nothing",)),
            ("assistant", ('{"name": "look", "arguments": {"at": 5}}',)),
        ]
        assert [message.supervised for message in one.messages] == [False] * 4 + [True]
        assert one.meta == {
            "audios": ["a.wav"],
            "tools": [{"name": "ocr"}],
            "turn_fields": [{"turn": 1, "name": "me"}],
        }

    def test_parts_of_openai_and_qwen(self, read):
        content = [
            {"type": "video_url", "video_url": {"url": "https://x/a.mp4"}, "fps": 2},
            {"type": "input_audio", "input_audio": "..."},
            {"type": "text", "text": "Is <video> a tag?"},
        ]
        [one] = read([{"messages": [{"role": "user", "content": content}, ASK[1]]}])
        assert one.video == "https://x/a.mp4"
        assert one.messages[0].content == (VIDEO, "Is <video> a tag?")
        parts = [{"part": 1, "fps": 2}, {"part": 2, "input_audio": "...", "type": "input_audio"}]
        assert one.meta == {"turn_fields": [{"turn": 1, "parts": parts}]}

    def test_windows_of_the_truth_in_meta_are_answer_spans(self, read):
        [one] = read([{"messages": ASK, "video": "v", "meta": {"gt_windows": [[1, 2], [3, 4]]}}])
        assert one.answer_spans == ((1.0, 2.0), (3.0, 4.0))
        assert one.meta["gt_windows"] == [[1, 2], [3, 4]]

    def test_ids_that_come_again_are_told_apart(self, read):
        rows = [{"id": name, "video": "v", "messages": ASK} for name in ("a", "b", "a", "a#2", "a")]
        assert [one.id for one in read(rows)] == ["a", "b", "a#3", "a#2", "a#4"]

    @pytest.mark.parametrize(
        ("change", "problem"),
        [
            ({"messages": []}, "messages: has no turns"),
            ({"messages": "hello"}, "messages: must be a list of turns, not 'hello'"),
            ({"messages": [3]}, "messages[1]: must be an object, not 3"),
            (
                {"messages": [{"role": "robot", "content": "x"}]},
                "messages[1].role: 'robot' must be",
            ),
            ({"messages": [{"content": "x"}]}, "messages[1].role: None must be one of"),
            ({"messages": [{"role": "user"}]}, "messages[1].content: must be text or a list"),
            ({"messages": [{"role": "user", "content": 5}]}, "messages[1].content: must be text"),
            (
                {"messages": [{"role": "user", "content": [{"type": "smell"}]}]},
                "messages[1].content[1].type: 'smell' must be text or video",
            ),
            (
                {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
                "messages[1].content[1].text: must be text, not None",
            ),
            (
                {"messages": [{"role": "assistant", "content": "x", "train": "maybe"}]},
                "messages[1].train: 'maybe' must be true or false",
            ),
            ({"messages": ASK[1:]}, "messages: has no turn of the user"),
            (
                {"messages": [{"role": "user", "content": "<video><video>"}]},
                "the video stands in more than one place",
            ),
            (
                {"messages": [{"role": "assistant", "content": [{"type": "video"}]}]},
                "messages[1]: the video cannot stand in a turn of assistant",
            ),
            ({"video": None}, "messages[1]: has a place for a video, but the row names none"),
            ({"video": {"path": "x"}}, "video: must be text, not {'path': 'x'}"),
            ({"video": None, "videos": ["a", "b"]}, "one video, not both 'a' and 'b'"),
            ({"span": [5, 3]}, "span: start 5 must be before its end 3"),
            ({"span": [3, 3]}, "span: start 3 must be before its end 3"),
            ({"span": [0, float("nan")]}, "span: nan must be a number of seconds"),
            ({"span": [0, float("inf")]}, "span: inf must be a number of seconds"),
            ({"span": [0, True]}, "span: True must be a number of seconds"),
            ({"span": "0-3"}, "span: must be [start, end] in seconds, not '0-3'"),
            ({"span": [1, 2, 3]}, "span: must be [start, end] in seconds"),
            ({"answer_spans": [[5, 3]]}, "answer_spans: start 5 must not be after its end 3"),
            ({"answer_spans": [[1, "x"]]}, "answer_spans: 'x' must be a number of seconds"),
            ({"answer_spans": 3}, "answer_spans: must be a list of [start, end], not 3"),
            ({"id": [1]}, "id: must be text, not [1]"),
        ],
    )
    def test_what_is_wrong_is_named_with_its_row_and_field(self, read, change, problem):
        good = {"video": "v", "messages": ASK}
        message = refused(read, [good, good | change], format="messages")
        assert ": row 2: " in message
        assert problem in message

    def test_sound_alone_is_in_no_cache(self, read):
        row = {"messages": [{"role": "user", "content": "<audio>What?"}, ASK[1]], "audios": ["a"]}
        assert "audios: sound without a video" in refused(read, [row])


class TestLlava:
    def test_marks_and_the_newline_beside_them(self, read):
        rows = [
            {"id": "x", "video": "a.mp4", "conversations": [
                {"from": "human", "value": "<video>\nWhat?"},
                {"from": "gpt", "value": "A <video> tag."}]},
            {"image": "b.png", "conversations": [
                {"from": "human", "value": "Look:\n<image>"}, {"from": "gpt", "value": "B"}]},
            {"conversations": [
                {"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}]},
        ]  # fmt: skip
        first, second, third = read(rows)
        assert turns(first) == [("user", (VIDEO, "What?")), ("assistant", ("A <video> tag.",))]
        assert (second.video, second.messages[0].content) == ("b.png", ("Look:", VIDEO))
        assert (third.video, third.messages[0].content) == (None, ("Hi",))


class TestShareGPT:
    def test_calls_and_observations(self, read):
        [one] = read(
            [
                {
                    "conversations": [
                        {"from": "human", "value": "<video>When?"},
                        {"from": "function_call", "value": '{"name": "ocr"}'},
                        {"from": "observation", "value": "12:30"},
                        {"from": "gpt", "value": "Noon."},
                    ],
                    "videos": ["a.mp4"],
                    "system": "Be exact.",
                    "tools": "[ocr]",
                }
            ]
        )
        assert [message.role for message in one.messages] == [
            *("system", "user", "assistant", "tool", "assistant")
        ]
        assert one.messages[0].content == ("Be exact.\n\nTools:\n[ocr]",)
        assert [message.supervised for message in one.messages] == [False, False, True, False, True]


class TestChoices:
    def ask(self, read, *rows, **options):
        base = {"video": "v", "question": "What?"}
        return read([base | row for row in rows], format="mcq", **options)

    def test_the_prompt_lists_options_and_the_letter_is_learned(self, read):
        row = {"options": ["cat", "dog"], "answer": "B", "duration": 12, "category": "animals"}
        [one] = self.ask(read, row | {"question_id": 5, "extra": 1, "start": 2, "end": 4})
        prompt = "What?\nA. cat\nB. dog\nAnswer with the letter of the right option."
        assert turns(one) == [("user", (VIDEO, prompt)), ("assistant", ("B",))]
        assert (one.id, one.span) == ("5", (2.0, 4.0))
        assert one.meta == {
            "options": ["cat", "dog"],
            "answer": "B",
            "duration": 12,
            "category": "animals",
            "extra": 1,
        }

    @pytest.mark.parametrize(
        "options",
        [
            ["cat", "dog"],
            ["A. cat", "B. dog"],
            ["(A) cat", "(B) dog"],
            {"B": "dog", "A": "cat"},
            {"0": "cat", "1": "dog"},
            "A. cat\nB. dog",
            '["cat", "dog"]',
        ],
    )
    @pytest.mark.parametrize("answer", ["B", "b", "(B)", "B.", "B. dog", "dog", 1, "1"])
    def test_every_way_of_saying_options_and_answers(self, read, options, answer):
        [one] = self.ask(read, {"candidates": options, "answer": answer})
        assert one.meta["options"] == ["cat", "dog"]
        assert one.messages[1].content == ("B",)

    def test_lines_of_the_question_are_options(self, read):
        [one] = read([{"video": "v", "question": "What?\nA. cat\nB. dog", "answer": "A. cat"}])
        assert one.messages[0].content[1].startswith("What?\nA. cat\nB. dog\nAnswer")
        assert one.meta["answer"] == "A"

    def test_columns_are_options(self, read):
        text = "video,question,A,B,C,answer\nv,What?,cat,dog,,B\nw,Who?,me,you,us,C\n"
        first, second = read(text)
        assert first.meta["options"] == ["cat", "dog"]
        assert second.messages[1].content == ("C",)

    def test_the_whole_file_says_whether_a_digit_is_a_text_or_a_number(self, read):
        counts = {"options": ["1", "2", "3"]}
        texts = self.ask(read, counts | {"answer": "1"}, counts | {"answer": "3"})
        assert [one.messages[1].content[0] for one in texts] == ["A", "C"]
        message = refused(lambda content: self.ask(read, *content), [counts | {"answer": "1"}])
        assert "answer: '1' can be read as a text and as a number" in message

    def test_a_row_without_an_answer_has_nothing_to_learn(self, read):
        [one] = self.ask(read, {"options": ["cat", "dog"]})
        assert not one.is_supervised

    @pytest.mark.parametrize(
        ("row", "problem"),
        [
            ({"options": ["a", "b"], "answer": "C"}, "answer: 'C' is none of the 2 options"),
            ({"options": ["a", "b"], "answer": 2}, "answer: 2 is none of the 2 options"),
            ({"options": ["a", "b"], "answer": ["a"]}, "answer: ['a'] is none"),
            ({"options": ["cat", "dog"], "answer": "A. dog"}, "'A. dog' is none of the 2"),
            ({"options": ["a"], "answer": "A"}, "options: must be a list of 2 to 26 options"),
            ({"options": 5, "answer": "A"}, "options: must be a list of 2 to 26 options"),
            ({"answer": "A"}, "options: is missing, and the question has no lines A."),
            ({"options": ["a", "b"], "video": ""}, "video or video_path or"),
        ],
    )
    def test_what_is_wrong_is_named(self, read, row, problem):
        good = {"options": ["a", "b"], "answer": "A"}
        message = refused(lambda content: self.ask(read, *content), [good, row])
        assert ": row 2: " in message
        assert problem in message

    def test_a_tree_by_video_and_aspect(self, read):
        question = {"question": "What?\nA. cat\nB. dog", "answer": "B. dog", "hard": True}
        first, second = read({"v": {"action": [question]}, "w": {"order": [question]}})
        assert (first.id, first.video) == ("v/action/1", "v")
        assert second.meta == {
            "category": "order",
            "hard": True,
            "options": ["cat", "dog"],
            "answer": "B",
        }
        message = refused(read, {"v": {"action": 5}}, format="mcq")
        assert "v, action, question 1: expected {video: {aspect: [questions]}}, not 5" in message


class TestGrounding:
    def test_charades_as_text(self, read):
        first, second = read("VXJS4 0.0 3.4##a person walks.\n\nAB 10 12##they sit\n")
        prompt = "When does this happen: a person walks? Answer with start and end in seconds."
        assert turns(first) == [("user", (VIDEO, prompt)), ("assistant", ("0.0 to 3.4",))]
        assert (first.video, first.answer_spans) == ("VXJS4", ((0.0, 3.4),))
        assert first.meta == {"query": "a person walks."}
        assert second.messages[1].content == ("10.0 to 12.0",)

    def test_charades_as_rows(self, read):
        row = {"video": "a.mp4", "caption": "sit", "timestamp": [1, 2], "qid": "q", "extra": 3}
        [one] = read([row])
        assert one.answer_spans == ((1.0, 2.0),)
        assert one.meta == {"query": "sit", "qid": "q", "extra": 3}

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("a 0 1##x\nb 5 3##x", "line 2: timestamp: start 5 must not be after its end 3"),
            ("a 0 1##x\nb nan 3##x", "line 2: timestamp: 'nan' must be a number of seconds"),
            ("a 0 1##x\n\nb 3##x", "line 3: expected VIDEO START END##SENTENCE, not 'b 3##x'"),
            ("a 0 1##", "line 1: caption or sentence or query: is missing or empty"),
        ],
    )
    def test_wrong_lines_of_charades(self, read, text, problem):
        assert problem in refused(read, text)

    def test_qvhighlights_is_told_on_the_clock_of_the_video(self, read):
        row = {
            "qid": 3,
            "query": "A cat.",
            "vid": "a_b_60.0_210.0",
            "duration": 150,
            "relevant_windows": [[0, 10], [20.5, 30]],
            "saliency_scores": [[1, 2, 3]],
        }
        [one] = read(json.dumps(row) + "\n")
        assert (one.id, one.video, one.span, one.cut) == ("3", "a_b", (60.0, 210.0), row["vid"])
        assert one.answer_spans == ((60.0, 70.0), (80.5, 90.0))
        assert one.messages[1].content == ("60.0 to 70.0, 80.5 to 90.0",)
        assert one.meta["saliency_scores"] == [[1, 2, 3]]
        since = one.since(60.0)
        assert since.answer_spans == ((0.0, 10.0), (20.5, 30.0))
        assert since.messages[1].content == ("0.0 to 10.0, 20.5 to 30.0",)
        assert since.span == (0.0, 150.0)

    def test_qvhighlights_without_windows_or_without_a_cut(self, read):
        rows = [
            {"qid": 1, "query": "q", "vid": "a_0_9", "duration": 9},
            {"qid": 2, "query": "q", "vid": "plain", "duration": 9, "relevant_windows": [[1, 2]]},
        ]
        without, plain = read(rows)
        assert not without.is_supervised
        assert (plain.video, plain.span, plain.cut) == ("plain", None, None)
        assert plain.answer_spans == ((1.0, 2.0),)

    @given(st.lists(st.tuples(st.integers(0, 10**5), st.integers(0, 10**5)), max_size=4))
    def test_text_of_spans_can_be_read_again(self, tenths):
        spans = [(start / 10, end / 10) for start, end in tenths]
        said = [part.split(" to ") for part in span_text(spans).split(", ") if part]
        assert [(float(start), float(end)) for start, end in said] == spans


class TestQuestions:
    HEADER = "video,question,answer,qid,type,a0,a1,a2,a3,a4\n"

    def test_nextqa_by_number_and_by_text(self, read, tmp_path):
        [one] = read(self.HEADER + "v,why,3,6,CW,p,q,r,s,t\n")
        assert (one.id, one.messages[1].content, one.meta["category"]) == ("v_6", ("D",), "CW")
        (tmp_path / "gsub_val.json").write_text(
            '{"v": {"duration": 9, "fps": 25, "location": {"6": [[1, 2], [5, 6]]}}}'
        )
        (tmp_path / "val.csv").write_text(
            self.HEADER + "v,why,s,6,CW,p,q,r,s,t\nw,why,p,1,CH,p,q,r,s,t"
        )
        one, other = read_annotations(str(tmp_path / "val.csv"))
        assert one.answer_spans == ((1.0, 2.0), (5.0, 6.0))
        assert (one.meta["duration"], one.messages[1].content) == (9, ("D",))
        assert other.answer_spans == ()
        (tmp_path / "gsub_val.json").write_text('{"v": {"location": {"6": [[3, 2]]}}}')
        with pytest.raises(AnnotationError, match=r"gsub_val\.json: v: 6: start 3 must not be"):
            read_annotations(str(tmp_path / "val.csv"))
        (tmp_path / "gsub_val.json").write_text("[1]")
        with pytest.raises(AnnotationError, match=r"gsub_val\.json: expected \{video: "):
            read_annotations(str(tmp_path / "val.csv"))

    def test_activitynetqa_takes_its_answers_from_the_other_file(self, tmp_path):
        questions = [{"video_name": "x", "question": "Why?", "question_id": "v_x_1"}]
        path = tmp_path / "val_q.json"
        path.write_text(json.dumps(questions))
        with pytest.raises(AnnotationError, match=r"val_a\.json: no such file"):
            read_annotations(str(path))
        (tmp_path / "val_a.json").write_text(
            '[{"question_id": "v_x_1", "answer": "so", "type": 1}]'
        )
        [one] = read_annotations(str(path))
        assert turns(one) == [("user", (VIDEO, "Why?")), ("assistant", ("so",))]
        assert (one.id, one.video, one.aliases) == ("v_x_1", "x", ("v_x",))
        assert one.meta["type"] == 1
        (tmp_path / "val_a.json").write_text('[{"question_id": "other", "answer": "so"}]')
        with pytest.raises(AnnotationError, match="'v_x_1' is not among the answers"):
            read_annotations(str(path))
        path.rename(tmp_path / "questions.json")
        with pytest.raises(AnnotationError, match="questions without answers"):
            read_annotations(str(tmp_path / "questions.json"))


class TestFiles:
    ROWS = ({"id": "a", "video": "v", "question": "é\nA. x\nB. y", "answer": "A"},) * 2

    def spelled(self, how) -> bytes:
        rows = [dict(row, id=str(i)) for i, row in enumerate(self.ROWS)]
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        if how in ("csv", "tsv"):
            text = io.StringIO(newline="")
            writer = csv.DictWriter(text, rows[0], delimiter="\t" if how == "tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
            return text.getvalue().encode()
        if how == "parquet":
            data = io.BytesIO()
            pq.write_table(pa.Table.from_pylist(rows), data)
            return data.getvalue()
        return {
            "json": json.dumps(rows, indent=1),
            "wrapped": json.dumps({"data": rows}),
            "jsonl": "\n".join(lines),
            "jsonl with gaps": "\n\n".join(lines) + "\n\n",
            "jsonl of windows": "\ufeff" + "\r\n".join(lines) + "\r\n",
        }[how].encode()

    @pytest.mark.parametrize(
        "how",
        [
            *("csv", "tsv", "parquet", "json", "wrapped"),
            *("jsonl", "jsonl with gaps", "jsonl of windows"),
        ],
    )
    def test_the_content_says_how_a_file_is_spelled(self, read, how):
        found = read(self.spelled(how))
        assert [one.id for one in found] == ["0", "1"]
        assert found == read(self.spelled("json"))
        assert found[0].messages[0].content[1].startswith("é\nA. x")

    def test_one_row_of_jsonl(self, read):
        assert len(read(json.dumps({"messages": ASK, "video": "v"}))) == 1
        [one] = read({"messages": [{"role": "user", "content": "Hi"}, ASK[1]]})
        assert one.messages[0].content == ("Hi",)

    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            (b"", "is empty"),
            (b"\xef\xbb\xbf \n", "is empty"),
            ("[]", "holds no row"),
            ("{}", "holds no row"),
            ("a,b\n", "holds no row"),
            (b"\x89PNG\r\n\x1a\n", "is not UTF-8 text: byte 0 is 0x89"),
            (b"abc\0def", "it holds a zero byte"),
            (gzip.compress(b"[]", mtime=0), "is compressed by gzip"),
            ("[{}]".encode("utf-16"), "is UTF-16 text"),
            (b"PAR1 and no more", "not a readable Parquet file"),
            ('[{"a": 1}', "line 1, column 10: not JSON"),
            ('[{"a": 1},\n {"a" 2}]', "line 2, column 7: not JSON"),
            ('{"messages": []}\n{"messages": [}', "line 2: not JSON"),
            ('{"messages": []}\n[1]', "line 2: must be an object, not '[1]'"),
            ("[1, 2]", "row 1: must be an object, not '1'"),
            ("[" * 100_000, "not JSON that can be read"),
            ("a,b\n1", "line 2: fewer cells than columns"),
            ("a,b\n1,2,3", "line 2: more cells than columns"),
            ("a,b,a\n1,2,3", "two columns are named 'a'"),
            ('a,b\n1,"2', ": not CSV: unexpected end"),
            ('[{"messages": "\\ud83d"}]', "holds half of a surrogate pair"),
        ],
    )  # fmt: skip
    def test_files_that_are_no_annotations(self, read, content, problem):
        assert problem in refused(read, content)

    def test_a_file_that_is_not_there(self, tmp_path):
        for path in (tmp_path / "none.json", tmp_path):
            with pytest.raises(AnnotationError, match=r"no such file|cannot be read"):
                read_annotations(str(path))

    @pytest.mark.parametrize(
        ("content", "looks"),
        [
            ([{"question": "q", "answer": "a"}], "JSON of 1 rows with answer, question"),
            ({"1": {"timestamp": []}, "2": {}}, "a JSON object of 2 entries: '1', '2'"),
            ("just\nwords", "2 lines, the first 'just'"),
            ("x,y\n1,2", "CSV of 1 rows with x, y"),
            ([{"video": "a", "conversations": []}, {"videos": ["a"], "conversations": []}], ""),
        ],
    )
    def test_a_format_that_cannot_be_told_is_an_error_with_what_was_seen(
        self, read, content, looks
    ):
        with pytest.raises(AnnotationError) as caught:
            read(content)
        assert looks in caught.value.message
        assert all(name in caught.value.hint for name in FORMATS)
        could = "could be llava or sharegpt" if not looks else "is of no format that is known"
        assert could in caught.value.message

    def test_a_format_may_be_said(self, read):
        rows = [{"video": "a", "conversations": [{"from": "human", "value": "x"}]}]
        assert read(rows, format="sharegpt")[0].video == "a"
        assert "conversations: must be a list" in refused(read, [{"x": 1}], format="llava")
        assert "expected rows of llava; it is a JSON object" in refused(
            read, {"a": {}, "b": {}}, format="llava"
        )
        with pytest.raises(AnnotationError, match="did you mean 'llava'"):
            read(rows, format="lava")

    def test_all_formats_have_a_name_in_the_settings(self):
        from typing import get_args

        from trainer.config import Format

        assert set(get_args(Format)) == {"auto", *FORMATS}

    json_values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["role", "from", "content", "value", "type", "text", "a"]), inner
            )
        ),
        max_leaves=8,
    )
    names = st.sampled_from(
        [
            *("id", "video", "videos", "vid", "video_name", "image_id", "meta", "tools", "system"),
            *("messages", "conversations", "audios", "question", "options", "answer", "timestamp"),
            *("span", "answer_spans", "relevant_windows", "duration", "query", "caption"),
            *("question_id", "qid", "a0", "a1", "a2", "a3", "a4"),
        ]
    )

    @pytest.mark.parametrize("name", ["auto", *FORMATS])
    def test_no_row_brings_anything_but_an_error_of_annotations(self, tmp_path_factory, name):
        path = tmp_path_factory.mktemp("any") / "x.json"

        @settings(max_examples=50)
        @given(st.lists(st.dictionaries(self.names, self.json_values, max_size=6), max_size=2))
        def check(rows):
            path.write_text(json.dumps(rows))
            try:
                found = read_annotations(str(path), format=name)
            except AnnotationError as error:
                assert str(path.parent) in error.message
            else:
                assert len(found) == len(rows)

        check()
