"""Which video each new source is: equal content is one video, one id is one content."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.settling import settle_ids
from schemas.plan import ShardSpec
from schemas.video import Probe, Source, video_id_of
from tests.pieces import make_piece


def sha(content: str) -> str:
    return content.encode().hex().ljust(64, "0")


def probe(
    content: str, uri: str, *, given_id: str | None = None, span: tuple[float, float] | None = None
) -> Probe:
    """A fresh probe, as the probe stage makes it."""
    start, end = span or (None, None)
    source = Source(uri=uri, video_id=given_id, start_seconds=start, end_seconds=end)
    return Probe(
        source=source, content_sha256=sha(content), video_id=video_id_of(source, sha(content))
    )


def planned(content: str, video_id: str, *, uri: str = "/planned.mp4") -> ShardSpec:
    piece = make_piece(
        uri,
        video_id,
        content_sha256=sha(content),
        size_bytes=1,
        mtime_ns=1,
        estimated_bytes=1,
    )
    return ShardSpec(index=0, split="train", recipe_fingerprint="", pieces=(piece,))


def settle(*fresh: Probe, known: tuple[Probe, ...] = (), existing=()) -> list[Probe]:
    return settle_ids(fresh, known=known, existing=existing)


def reasons(probes: list[Probe]) -> list[str | None]:
    return [probe.reject.reason if probe.reject else None for probe in probes]


def test_a_source_on_its_own_keeps_its_id():
    (given_id,) = settle(probe("A", "/a", given_id="mine"))
    (own_id,) = settle(probe("A", "/a"))
    assert (given_id.video_id, own_id.video_id) == ("mine", "v" + sha("A")[:16])
    assert reasons([given_id, own_id]) == [None, None]


def test_copies_without_an_id_are_one_video():
    settled = settle(probe("A", "/a"), probe("A", "/b"))
    assert len({p.video_id for p in settled}) == 1


def test_the_same_content_under_two_ids_is_one_video_under_the_smaller():
    for order in (("x", "m"), ("m", "x")):
        settled = settle(*(probe("A", f"/{i}", given_id=i) for i in order))
        assert [p.video_id for p in settled] == ["m", "m"]
        assert reasons(settled) == [None, None]


def test_an_id_that_is_given_beats_one_from_the_content():
    settled = settle(probe("A", "/a"), probe("A", "/b", given_id="zzz"))
    assert [p.video_id for p in settled] == ["zzz", "zzz"]


def test_an_id_in_the_plan_beats_all_others():
    settled = settle(
        probe("A", "/a", given_id="a"), probe("A", "/b"), existing=[planned("A", "planned")]
    )
    assert [p.video_id for p in settled] == ["planned", "planned"]
    assert reasons(settled) == [None, None]


def test_one_id_for_two_contents_rejects_both():
    settled = settle(probe("A", "/a", given_id="x"), probe("B", "/b", given_id="x"))
    assert reasons(settled) == ["id_conflict", "id_conflict"]
    assert settled[0].reject is not None
    assert (settled[0].reject.stage, settled[0].reject.uri) == ("plan", "/a")


def test_an_id_that_the_plan_has_for_other_content_is_refused():
    settled = settle(probe("B", "/b", given_id="x"), existing=[planned("A", "x")])
    assert reasons(settled) == ["id_conflict"]


def test_the_plans_owner_of_an_id_is_not_harmed_by_another_claim():
    settled = settle(
        probe("A", "/copy", given_id="x"),
        probe("B", "/b", given_id="x"),
        existing=[planned("A", "x")],
    )
    assert reasons(settled) == [None, "id_conflict"]
    assert settled[0].video_id == "x"


def test_a_file_that_changed_under_its_id_is_told_apart_from_a_conflict():
    settled = settle(probe("B", "/a", given_id="x"), existing=[planned("A", "x", uri="/a")])
    assert reasons(settled) == ["source_changed"]


def test_a_file_that_changed_without_an_id_is_a_new_video():
    old = probe("A", "/a")
    (settled,) = settle(
        probe("B", "/a"), known=(old,), existing=[planned("A", old.video_id, uri="/a")]
    )
    assert settled.reject is None
    assert settled.video_id == "v" + sha("B")[:16]


def test_a_file_that_changed_before_it_was_planned_takes_its_id_along():
    old = probe("A", "/a", given_id="x")
    assert reasons(settle(probe("B", "/a", given_id="x"), known=(old,))) == [None]


def test_an_id_once_given_stays_with_its_content_even_where_another_id_won():
    known = replace(probe("A", "/a", given_id="second"), video_id="first")
    settled = settle(
        probe("B", "/b", given_id="second"), known=(known,), existing=[planned("A", "first")]
    )
    assert reasons(settled) == ["id_conflict"]


def test_content_that_is_probed_but_not_planned_is_still_one_video():

    # added afterwards under a smaller id becomes a second video of the same content.
    known = probe("A", "/a", given_id="zzz")
    (settled,) = settle(probe("A", "/b", given_id="a"), known=(known,))
    assert settled.video_id == "zzz"


def test_spans_of_one_file_are_videos_of_their_own():
    settled = settle(probe("A", "/a", span=(0, 1)), probe("A", "/a", span=(1, 2)), probe("A", "/a"))
    assert reasons(settled) == [None, None, None]
    assert len({p.video_id for p in settled}) == 3


def test_one_id_for_two_spans_is_a_conflict():
    settled = settle(
        probe("A", "/a", given_id="x", span=(0, 1)), probe("A", "/a", given_id="x", span=(1, 2))
    )
    assert reasons(settled) == ["id_conflict", "id_conflict"]


def test_rejects_stay_what_they_are_and_claim_no_id():
    lost = Probe(source=Source(uri="/lost", video_id="x")).rejected("not_found", "no such file")
    settled = settle(lost, probe("A", "/a", given_id="x"))
    assert reasons(settled) == ["not_found", None]
    assert settled[0] == lost


@pytest.mark.parametrize("number", [0, 1])
def test_probes_come_back_in_the_order_given(number):
    fresh = [probe("A", "/a"), probe("B", "/b")]
    settled = settle(*(fresh if number else fresh[::-1]))
    assert [p.source.uri for p in settled] == (["/a", "/b"] if number else ["/b", "/a"])


FRESH = st.lists(
    st.tuples(st.sampled_from("ABC"), st.none() | st.sampled_from("xyz")), min_size=1, max_size=6
)


@given(rows=FRESH, data=st.data())
def test_the_order_of_the_sources_makes_no_difference(rows, data):
    fresh = [probe(content, f"/{n}", given_id=i) for n, (content, i) in enumerate(rows)]
    existing = [planned("A", "y")] if data.draw(st.booleans()) else []
    shuffled = data.draw(st.permutations(fresh))

    def outcomes(probes):
        return {p.source.uri: p for p in settle(*probes, existing=existing)}

    assert outcomes(shuffled) == outcomes(fresh)


@given(rows=FRESH)
def test_what_is_not_rejected_has_one_id_a_content_and_one_content_an_id(rows):
    settled = settle(*(probe(c, f"/{n}", given_id=i) for n, (c, i) in enumerate(rows)))
    usable = {(p.content_sha256, p.video_id) for p in settled if p.reject is None}
    assert len({content for content, _ in usable}) == len(usable)
    assert len({video_id for _, video_id in usable}) == len(usable)
