"""The page in a browser: elements, positions, filters, keys; no error, and no request leaves it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.browsing import Visit, open_browser, visit, why_not
from pipeline.cache import open_cache
from pipeline.events import write_events
from pipeline.report_folder import write_report
from schemas.event import Event
from tests.pipeline.pictured import LONG, PLAIN, SINGLE, STRANGE, VIDEOS, write_pictured

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pictured")
    layout = write_pictured(root / "cache")
    with open_cache(layout.root) as cache:
        write_report(cache, root / "report")
    return root / "report"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as browser:
        yield browser


@pytest.fixture
def opened(browser: Any, report: Path) -> Iterator[Visit]:
    """The page; whatever a test does with it, it says nothing and stays in its folder."""
    opened = visit(browser, report / "index.html")
    opened.page.wait_for_selector("#videos tbody tr")
    yield opened
    assert opened.said == []
    assert opened.failed == []
    assert opened.page.evaluate("window.pwned") is None
    inside = (report.resolve().as_uri() + "/", "data:")
    assert [url for url in opened.asked if not url.startswith(inside)] == []
    opened.page.close()


def _open(page: Any, video_id: str) -> None:
    page.evaluate("(id) => { location.hash = reelcache.linkTo(id); }", video_id)
    page.wait_for_selector("#video .timeline")


def _names(page: Any) -> list[str]:
    names: list[str] = page.locator("#videos .file").all_text_contents()
    return names


def test_totals_distributions_and_rejects_are_shown(opened: Visit) -> None:
    page = opened.page
    tiles = page.locator("#totals .tile-value").all_text_contents()
    assert tiles[0] == str(len(VIDEOS))
    assert tiles[2] == str(sum(VIDEOS.values()))
    assert tiles[-1] == "1"
    titles = page.locator("#charts h3").all_text_contents()
    assert {"Duration", "Frame rate", "Picture", "Tokens of a video", "Sound"} <= set(titles)
    assert "Loudness, dB" not in titles  # of this cache nothing is known
    assert "not_a_video" in page.locator("#rejects").text_content()
    page.locator("#rejects summary").click()
    assert "<b>moov</b>" in page.locator("#rejects td").all_text_contents()


def test_the_table_is_filtered_and_sorted(opened: Visit) -> None:
    page = opened.page
    assert len(_names(page)) == len(VIDEOS)
    page.fill("#search", "LON")
    assert _names(page) == [LONG]
    page.fill("#search", "no such video")
    assert "No video passes" in page.locator("#videos tbody").text_content()
    page.fill("#search", "")
    page.locator("th.clips button").click()
    assert _names(page)[:2] == [LONG, PLAIN]
    page.locator('#charts button[aria-label^="Codec h264"]').click()
    assert _names(page) == [PLAIN]
    assert page.locator("#found").text_content() == f"1 of {len(VIDEOS)} videos"
    page.locator("#chips button").click()
    assert len(_names(page)) == len(VIDEOS)


def test_pictures_lie_at_their_times(opened: Visit) -> None:
    page = opened.page
    page.locator("#videos a", has_text=PLAIN).click()
    page.wait_for_selector("#video .frame")
    ticks = page.evaluate(
        "[...document.querySelectorAll('.tick')].map((tick) =>"
        " [parseFloat(tick.textContent), tick.getBoundingClientRect()])"
        ".map(([seconds, box]) => [seconds, box.left])"
    )
    (first, left), (second, right) = ticks[:2]
    scale = (right - left) / (second - first)
    frames = page.evaluate(
        "[...document.querySelectorAll('.lane.pictures .frame')]"
        ".map((frame) => frame.getBoundingClientRect().left)"
    )
    # Three clips of four frames, of which the last one fills the clip.
    times = [2 * clip + frame / 2 for clip in range(3) for frame in range(3)]
    assert frames == pytest.approx([left + (time - first) * scale for time in times], abs=1)
    for lane in ("pictures", "maps"):
        assert page.locator(f".lane.{lane} .frame").count() >= len(times)
    clips = page.evaluate(
        "[...document.querySelectorAll('.clip')]"
        ".map((clip) => clip.getBoundingClientRect()).map((box) => [box.left, box.width])"
    )
    assert clips == [
        [pytest.approx(left + 2 * clip * scale, abs=1), pytest.approx(2 * scale - 1, abs=1)]
        for clip in range(3)
    ]


def test_gaps_and_events_lie_at_their_times(opened: Visit) -> None:
    page = opened.page
    _open(page, PLAIN)
    gap = page.locator(".gap")
    assert gap.text_content() == "2 missing: corrupt"
    assert "6.000 s to 10.000 s" in gap.get_attribute("title")
    assert gap.bounding_box()["x"] >= page.locator(".clip").last.bounding_box()["x"]
    labels = page.locator(".lane-name").all_text_contents()
    assert {"pictures", "image", "video", "clips", "Δ picture", "motion", "scene"} <= set(labels)
    assert page.locator(".event").count() == 3
    assert "<i>hi</i>" in page.locator(".event").all_text_contents()
    assert "no sound in this cache" in page.locator(".timeline").text_content()


def test_keys_do_what_a_mouse_does(opened: Visit) -> None:
    page = opened.page
    page.keyboard.press("Tab")
    page.locator("#videos a", has_text=PLAIN).focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#video .timeline")
    assert page.evaluate("document.activeElement.tagName") == "H1"
    page.locator(".tl-view").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(".clip-panel h2").text_content().startswith("Clip 1 ")
    page.keyboard.press("End")
    assert page.locator(".clip-panel h2").text_content().startswith("Clip 2 ")
    width = page.locator(".tl-world").bounding_box()["width"]
    page.keyboard.press("+")
    assert page.locator(".tl-world").bounding_box()["width"] > 1.5 * width
    page.keyboard.press("Escape")
    page.wait_for_selector("#overview", state="visible")
    assert page.evaluate("document.activeElement.textContent") == PLAIN


def test_slash_goes_to_the_filter_from_a_video_too(opened: Visit) -> None:
    page = opened.page
    _open(page, PLAIN)
    page.keyboard.press("/")
    page.wait_for_function("location.hash === ''")
    page.keyboard.type("long")
    assert page.input_value("#search") == "long"
    assert _names(page) == [LONG]


def test_keys_on_a_video_that_is_not_in_the_report_do_no_harm(
    browser: Any, report: Path, tmp_path: Path
) -> None:
    shutil.copytree(report, tmp_path / "part", ignore=shutil.ignore_patterns("000000.js"))
    part = visit(browser, tmp_path / "part" / "index.html")
    part.page.evaluate("location.hash = reelcache.linkTo(reelcache.app.data.videos.columns.id[0])")
    part.page.wait_for_selector("#video .empty")
    part.page.keyboard.press("n")
    part.page.keyboard.press("p")
    part.page.keyboard.press("Escape")
    part.page.wait_for_selector("#overview", state="visible")
    assert [line for line in part.said if "ERR_FILE_NOT_FOUND" not in line] == []
    part.page.close()


def test_a_bar_keeps_the_focus_when_it_is_chosen(opened: Visit) -> None:
    page = opened.page
    label = "document.activeElement.getAttribute('aria-label')"
    bar = page.locator('#charts button[aria-label^="Blur 0.1 to 0.2:"]')
    bar.focus()  # bars of brightness have the same words
    for _ in range(2):
        page.keyboard.press("Enter")
        assert page.evaluate(label).startswith("Blur 0.1 to 0.2:")


def test_numbers_are_shortened_to_what_they_are(opened: Visit) -> None:
    numbers = {
        0: "0",
        999: "999",
        1000: "1k",
        10_000: "10k",
        100_000: "100k",
        123_456: "123k",
        999_499: "999k",
        999_500: "1M",
        20_000_000: "20M",
        1_500_000_000: "1.5G",
    }
    shown = opened.page.evaluate("(numbers) => numbers.map(reelcache.short)", list(numbers))
    assert shown == list(numbers.values())


def test_the_clip_has_its_pictures_maps_and_json(opened: Visit) -> None:
    page = opened.page
    _open(page, SINGLE)
    assert page.locator(".clip-cell").count() == 3 * 4
    assert page.locator(".clip-cell.fill").count() == 3
    page.locator("summary", has_text="JSON").click()
    assert f'"video_id": "{SINGLE}"' in page.locator(".clip-panel pre").text_content()


def test_a_long_video_has_pictures_of_some_clips_and_says_so(opened: Visit) -> None:
    page = opened.page
    _open(page, LONG)
    assert "48 of 60 clips" in page.locator("#video .note").text_content()
    widths = page.evaluate(
        "[...document.querySelectorAll('.frame')].map((frame) => frame.clientWidth)"
    )
    assert min(widths) >= 20
    page.locator(".tl-view").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    titles = []
    for _ in range(6):
        page.keyboard.press("ArrowRight")
        titles.append("numbers only" in page.locator(".clip-panel").text_content())
    assert any(titles)
    assert not all(titles)
    page.locator(".tl-view").press("Home")
    while not page.locator(".clip-panel .empty button").count():
        page.locator(".tl-view").press("ArrowRight")
    page.locator(".clip-panel .empty button").click()
    assert page.locator(".clip-cell").count() == 3 * 4


def test_strange_names_are_text(opened: Visit) -> None:
    page = opened.page
    for name in STRANGE:
        shown = name.replace("\n", "\\u000a").replace("\u202e", "\\u202e").rpartition("/")[2]
        page.evaluate("location.hash = '#'")
        assert shown in _names(page)
        _open(page, name)
        assert page.locator("#video h1 bdi").text_content() == shown
        assert page.locator("#video h1 script, #video h1 b").count() == 0
        assert page.locator("#video code bdi").text_content() in name.replace(
            "\n", "\\u000a"
        ).replace("\u202e", "\\u202e")


def test_an_event_of_any_times_does_not_hang_the_page(browser: Any, tmp_path: Path) -> None:
    layout = write_pictured(tmp_path / "cache")
    times = [(1e300, 2e300), (0.5, 1e290), (-1e290, 1.0)]
    far = [
        Event(video_id=PLAIN, start_seconds=start, end_seconds=end, kind="far")
        for start, end in times
    ]
    write_events(layout, kind="far", events=far, made_by={})
    with open_cache(layout.root) as cache:
        write_report(cache, tmp_path / "report")
    opened = visit(browser, tmp_path / "report" / "index.html")
    _open(opened.page, PLAIN)
    assert "1 event outside of the video" in opened.page.locator("#video .note").text_content()
    assert opened.page.locator(".lane.events .event").count() == 3 + 2
    assert opened.page.locator(".tick").last.text_content().startswith("10")
    assert opened.said == []
    opened.page.close()


def test_a_page_without_its_data_says_so(browser: Any, report: Path, tmp_path: Path) -> None:
    shutil.copytree(report, tmp_path / "part", ignore=shutil.ignore_patterns("data.js", "*.jpg"))
    part = visit(browser, tmp_path / "part" / "index.html")
    assert "data.js is missing" in part.page.locator("main").text_content()
    part.page.close()


def test_light_and_dark(opened: Visit, browser: Any, report: Path) -> None:
    color = "getComputedStyle(document.body).backgroundColor"
    dark = visit(browser, report / "index.html", dark=True)
    assert dark.page.evaluate(color) != opened.page.evaluate(color)
    dark.page.locator("#theme").click()  # auto, then light
    assert dark.page.evaluate(color) == opened.page.evaluate(color)
    assert dark.said == []
    dark.page.close()


def test_a_narrow_window_needs_no_scrolling_sideways(browser: Any, report: Path) -> None:
    narrow = visit(browser, report / "index.html", width=390, height=800)
    assert narrow.page.evaluate("document.documentElement.scrollWidth") <= 390
    _open(narrow.page, PLAIN)
    assert narrow.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert narrow.said == []
    narrow.page.close()
