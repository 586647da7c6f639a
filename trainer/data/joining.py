"""Join annotations with a cache, and account for every row: what becomes an item, and why not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from schemas.errors import AnnotationError
from trainer.config import ViewSpec
from trainer.data.annotation import Annotation, Span, VideoPart, span_text
from trainer.data.catalog import REJECTED, Catalog
from trainer.data.item import Item
from trainer.data.join_report import LOST, JoinReport, LabelReport
from trainer.data.video_view import VideoView, view_video


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """What there is to learn from."""

    items: list[Item]
    """In the order of the labels and of their rows."""
    report: JoinReport


def join(
    annotations: Mapping[str, Sequence[Annotation]],
    catalog: Catalog,
    *,
    view: ViewSpec,
    max_clips: int,
    on_missing: Mapping[str, str],
    max_missing: Mapping[str, float] | None = None,
) -> Joined:
    """Annotations by label become items; `max_clips` is the stage's limit, 0 for none.

    A row whose messages show nothing but spans of the video sees the clips of those. A row without
    an answer is never an item. AnnotationError: rows are lost of a label for which `on_missing`
    says "error" (its default; else "skip"), or more than the share that `max_missing` says of it
    (by default all may be), or no row at all is left.
    """
    limits = [limit for limit in (view.max_clips, max_clips) if limit]
    joiner = _Joiner(
        catalog=catalog,
        view=replace(view, max_clips=0),
        max_clips=min(limits, default=0),
        doubtful=_doubtful_names(annotations, catalog),
    )
    reports = {label: LabelReport() for label in annotations}
    items = []
    for label, rows in annotations.items():
        for annotation in rows:
            found = joiner.join(annotation, label)
            if isinstance(found, _Lost):
                reports[label].add(found.outcome, f"{annotation.id} {found.why}".rstrip())
            else:
                reports[label].add("text_only" if found.view is None else "matched")
                items.append(found)
    report = JoinReport(labels=reports)
    _refuse_lost(report, items, catalog, on_missing=on_missing, max_missing=max_missing or {})
    return Joined(items=items, report=report)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lost:
    outcome: str
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Joiner:
    catalog: Catalog
    view: ViewSpec
    """Without its limit, which counts after spans are cut out."""
    max_clips: int
    doubtful: frozenset[str]
    views: dict[tuple[int, Span | None, tuple[Span, ...]], VideoView | _Lost] = field(
        default_factory=dict
    )
    numbers: dict[tuple[str, Span | None], int | _Lost] = field(default_factory=dict)

    def join(self, annotation: Annotation, label: str) -> Item | _Lost:
        if not annotation.is_supervised:
            return _Lost(outcome="unsupervised")
        if annotation.video is None:
            return Item(id=annotation.id, data=label, annotation=annotation, view=None)
        number = self._find((annotation.video, *annotation.aliases), annotation.span)
        if isinstance(number, _Lost) and annotation.cut is not None:
            cut = self._find((annotation.cut,), None)
            if not isinstance(cut, _Lost):
                assert annotation.span is not None
                number, annotation = cut, replace(annotation.since(annotation.span[0]), span=None)
        if isinstance(number, _Lost):
            return number
        key = number, annotation.span, _spans_seen(annotation)
        if key not in self.views:
            self.views[key] = self._see(*key)
        view = self.views[key]
        if isinstance(view, _Lost):
            return view
        first = view.rows[:1][view.rows[:1] >= 0]
        shard = self.catalog.shard_of(first[0]) if len(first) else ""
        if annotation.span is not None and self.view.time_base == "span":
            start = annotation.span[0]
            annotation, view = annotation.since(start), view.since(start)
        return Item(id=annotation.id, data=label, annotation=annotation, view=view, shard=shard)

    def _find(self, names: tuple[str, ...], span: Span | None) -> int | _Lost:
        lost = []
        for name in names:
            if (name, span) not in self.numbers:
                self.numbers[name, span] = self._look_up(name, span)
            number = self.numbers[name, span]
            if not isinstance(number, _Lost):
                return number
            lost.append(number)
        return lost[0]

    def _look_up(self, name: str, span: Span | None) -> int | _Lost:
        match = self.catalog.match(name)
        if not match.numbers:
            return _Lost(outcome="missing", why=f"({name})")
        if name in self.doubtful:
            why = f"({name}, whose folder no source has, and others of that name)"
            return _Lost(outcome="ambiguous", why=why)
        number = self.catalog.choose(match.numbers, span=span)
        if number is None:
            why = f"({name}: {self.catalog.describe(match.numbers)})"
            return _Lost(outcome="ambiguous", why=why)
        if number == REJECTED:
            return _Lost(outcome="missing", why=f"({name}: {self.catalog.why_rejected(name)})")
        return number

    def _see(
        self, number: int, span: Span | None, spans_seen: tuple[Span, ...]
    ) -> VideoView | _Lost:
        video = self.catalog.video(number)
        if video.events is None:
            return _Lost(outcome="no_events", why=f"({video.video_id})")
        for one in (*spans_seen, *([] if span is None else [span])):
            if not len(video.overlapping(one)):
                end = float(video.end_seconds[-1])
                cached = span_text([(float(video.start_seconds[0]), end)])
                return _Lost(outcome="outside", why=f"({span_text([one])}, of {cached})")
        view = view_video(
            video,
            self.view,
            cache_fps=self.catalog.fps,
            frames_per_clip=self.catalog.frames_per_clip,
            span=span,
        )
        if self.view.input == "text":
            return view
        if spans_seen:
            view = view.take(np.unique(np.concatenate([view.overlapping(s) for s in spans_seen])))
        if not len(view):
            return _Lost(outcome="no_clips", why=f"({video.video_id})")
        return view.spread(self.max_clips) if self.max_clips else view


def _spans_seen(annotation: Annotation) -> tuple[Span, ...]:
    """The spans that messages show, where they show nothing else of the video."""
    parts = [
        part
        for message in annotation.messages
        for part in message.content
        if isinstance(part, VideoPart)
    ]
    spans = [part.span for part in parts if part.span is not None]
    return tuple(sorted(set(spans))) if len(spans) == len(parts) else ()


def _doubtful_names(
    annotations: Mapping[str, Sequence[Annotation]], catalog: Catalog
) -> frozenset[str]:
    """Names in different folders of which only the file's name agrees with one same source."""
    names = {one.video for rows in annotations.values() for one in rows if one.video is not None}
    by_match: dict[tuple[int, ...], list[str]] = {}
    for name in names:
        if "/" in name:
            match = catalog.match(name)
            if match.numbers and not match.is_exact:
                by_match.setdefault(match.numbers, []).append(name)
    doubtful: set[str] = set()
    for some in by_match.values():
        longest = max(some, key=len)
        if not all(f"/{longest}".endswith(f"/{name}") for name in some):
            doubtful.update(some)
    return frozenset(doubtful)


def _refuse_lost(
    report: JoinReport,
    items: list[Item],
    catalog: Catalog,
    *,
    on_missing: Mapping[str, str],
    max_missing: Mapping[str, float],
) -> None:
    known = next(iter(catalog.uris), "") if len(catalog) else ""
    hint = "other names can be given as ids: columns uri,id in the list of sources of pipeline run"
    hint = f"the cache has {known} and {len(catalog) - 1} more; {hint}" if known else hint
    for label, one in report.labels.items():
        lost = [outcome for outcome in LOST if one.counts[outcome]]
        listed = "; ".join(one.sentence(outcome) for outcome in lost)
        if lost and on_missing.get(label, "error") == "error":
            raise AnnotationError(
                f"{label}: of {one.rows} rows {listed}",
                hint=f'{hint}; on_missing = "skip" leaves such rows out',
            )
        limit = max_missing.get(label, 1.0)
        if sum(one.counts[outcome] for outcome in lost) > limit * one.rows:
            raise AnnotationError(
                f"{label}: of {one.rows} rows more than max_missing = {limit:g} of them are lost:"
                f" {listed}",
                hint=hint,
            )
    if not items:
        rows = sum(one.rows for one in report.labels.values())
        lines = "; ".join(line.strip() for line in report.lines())
        raise AnnotationError(f"of {rows} rows none is left to learn from: {lines}", hint=hint)
