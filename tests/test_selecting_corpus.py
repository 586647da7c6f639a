"""Real files: decoding the wanted frames gives what decoding all gives, or is refused as listed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.jailed import scheduling
from pipeline.sampling import Window
from schemas.errors import VideoError
from tests.orders import (
    Reference,
    Samples,
    assert_same,
    assert_same_when_read_again,
    select,
    select_or_why,
)

RATES = (0.5, 2.0, 25.0)
NOT_VIDEO = {".md", ".json", ".tsv", ".tar"}
UNREADABLE = {
    *("WrongFile.mp4", "empty.mp4", "en-AU_little_bottle.mp3", "fixture-moov.mov", "jfk.flac"),
    *("testMP3_coverArt.mp3", "testMP4AudioOnly.mp4", "truncated_no_moov.mp4", "typescript.ts"),
}
FALLS_BACK = {
    "bbb_432_433.webm": "codec vp8",
    "corrupt_midfile.mp4": "a packet does not decode",
    "corrupted_decord.mp4": "a packet does not decode",
    "fixture-null.webm": "codec vp8",
    "fixture-raw.mts": "frames ahead of a key frame are not where they belong",
    "fixture-realmedia-video.rm": "codec rv10",
    "fixture.apng": "codec apng",
    "fixture.avi": "codec msmpeg4v2",
    "llamafactory_2.avi": "the container stores no times of display",
    "minimal_init.mp4": "packets without a time",
    "mmaction_test.avi": "the container stores no times of display",
    "newtonscradle.gif": "codec gif",
    "non_monotonic_dts.ts": "damaged packets",
    "pigs_in_a_polka.gif": "codec gif",
    "testASF_two_video.asf": "codec msmpeg4v2",
    "testFLV.flv": "codec flv1",
    "testWEBM.webm": "codec vp8",
    "testWMV.wmv": "codec wmv3",
    "testvideo-169.avi": "the container stores no times of display",
    "truncated_faststart.mp4": "damaged packets",
}
NUM_SELECTED = 72
VARIED = (
    *("bikes.mp4", "h265_video.mp4", "bipbop0.ts", "dups/bikes_12.5fps_vp9.webm", "fixture.mxf"),
    *("editlist_trim_copy.mp4", "portrait.MOV", "sample_fragmented.mp4", "negative_start.ts"),
    *("testMKV.mkv", "av1_video.mkv"),
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def reference(corpus_dir: Path) -> Callable[[str], Reference]:
    made: dict[str, Reference] = {}

    def get(name: str) -> Reference:
        if name not in made:
            made[name] = Reference(corpus_dir / name)
        return made[name]

    return get


def windows(reference: Reference) -> list[Window]:
    # Where pictures are large, a stretch at the source's own rate is enough.
    long = len(reference.frames) > 60
    stretch = Window(fps=25, first_k=25, stop_k=35) if long else Window(fps=25)
    return [Window(fps=0.5), Window(fps=2), stretch]


def test_every_file_is_selected_or_falls_back_as_listed(
    corpus_dir: Path, reference: Callable[[str], Reference]
) -> None:
    unreadable, why, num_selected = set(), {}, 0
    for path in sorted(corpus_dir.rglob("*")):
        name = str(path.relative_to(corpus_dir))
        if not path.is_file() or path.suffix in NOT_VIDEO:
            continue
        try:
            whole = reference(name)
            reasons = set()
            for window in windows(whole):
                selected = select_or_why(path, window)
                if isinstance(selected, Samples):
                    assert_same(selected, whole.samples(window), f"{name}, {window}")
                else:
                    reasons.add(selected)
        except VideoError:
            unreadable.add(name)
            continue
        if reasons:
            [why[name]] = reasons
        num_selected += not reasons
    assert unreadable == UNREADABLE
    assert why == FALLS_BACK
    assert num_selected == NUM_SELECTED


@pytest.mark.parametrize("seeking", [False, True])
@pytest.mark.parametrize("name", VARIED)
def test_packets_that_are_read_again_give_the_same(
    name: str,
    seeking: bool,
    reference: Callable[[str], Reference],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    windows = (Window(fps=0.5), Window(fps=2, first_k=1))
    assert_same_when_read_again(reference(name), windows, monkeypatch, seeking=seeking)


@pytest.mark.parametrize("name", VARIED)
def test_pieces_and_parts_give_the_same(
    name: str, reference: Callable[[str], Reference], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = reference(name)
    for first_k, stop_k in ((0, 1), (1, 3), (2, 3), (1, None)):
        window = Window(fps=5, first_k=first_k, stop_k=stop_k)
        assert_same(select(whole.path, window), whole.samples(window), str(window))
    monkeypatch.setattr(scheduling, "SEGMENT_PACKETS", 8)
    window = Window(fps=2)
    for num_parts in (2, 3):
        parts = [select(whole.path, window, part=n, num_parts=num_parts) for n in range(num_parts)]
        merged = itertools.chain.from_iterable(part.samples for part in parts)
        assert tuple(sorted(merged)) == whole.samples(window).samples
        assert {part.end_seconds for part in parts} == {whole.samples(window).end_seconds}
