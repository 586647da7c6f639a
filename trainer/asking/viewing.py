"""View: what a model is shown of a video in a cache, by the functions of training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from pipeline.cache import FeatureCache
from schemas.errors import UsageError
from schemas.settings import nearest
from trainer.data.annotation import Span
from trainer.data.batch import Batch
from trainer.data.batching import RowItem, frames_of, make_batch
from trainer.data.buffers import Buffers
from trainer.data.catalog import Catalog
from trainer.data.clip_reader import ClipReader, audio_tokens_per_clip
from trainer.data.rendering import Rendered, Renderer
from trainer.data.video_view import CachedVideo, VideoView, view_video
from trainer.model.model_folder import AskableModel

Input = Literal["video", "center", "text"]
"""As of `ViewSpec.input`: all, the middle frame alone, or nothing of the video."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A video, or a span of it, as a model sees it."""

    viewer: Viewer
    video_id: str
    view: VideoView


class Viewer:
    """A cache through the eyes of a model."""

    def __init__(self, model: AskableModel, cache: FeatureCache, *, kind: Input = "video") -> None:
        """FingerprintMismatch: the model was trained from other features."""
        preprocessing, shape = model.preprocessing, model.preprocessing.shape
        preprocessing.require_cache(cache)
        preprocessing.require_events(cache)
        self.catalog = Catalog.of(cache, event_kinds=preprocessing.view.events)
        self.spec = replace(preprocessing.view, input=kind)
        with_audio = preprocessing.with_audio
        self.renderer: Renderer = replace(
            model.renderer,
            audio_tokens_per_clip=audio_tokens_per_clip(self.spec, shape) if with_audio else 0,
        )
        self._cache, self._shape = cache, shape
        self._frames_per_clip = preprocessing.frames_per_clip
        self._reader = ClipReader(cache, shape=shape, view=self.spec, with_audio=with_audio)
        self._buffers = Buffers()

    def watch(self, name: str, *, span: Span | None = None) -> Watched:
        """A video by its id, an alias, or the key of one of its samples.

        UsageError: there is none, or nothing of it lies in the span.
        """
        video = self.catalog.find(name, span=span)
        if video is None and name in self._cache:
            video = self.catalog.find(self._cache.row(name).video_id)
        if video is None:
            raise UsageError(
                f"no video {name!r} in {self._cache.layout.root}"
                f"{nearest(name, self.catalog.video_ids)}"
            )
        return self.see(video, span=span)

    def see(self, video: CachedVideo, *, span: Span | None = None) -> Watched:
        """The same of a video of the catalog."""
        if video.events is None:
            kinds = ", ".join(self.spec.events)
            raise UsageError(
                f"the model was trained with events ({kinds}), and nobody has looked for them in"
                f" {video.video_id}",
                hint=f"see: pipeline events {self._cache.layout.root}",
            )
        view = view_video(
            video,
            self.spec,
            cache_fps=self._shape.fps,
            frames_per_clip=self._shape.frames_per_clip,
            span=span,
        )
        if not len(view) and self.spec.input != "text":
            first, last = video.start_seconds[0], video.end_seconds[-1]
            raise UsageError(
                f"nothing of {video.video_id} lies in the span {_words(span)}, its clips are at"
                f" {first:g}-{last:g} seconds"
            )
        if span is not None and self.spec.time_base == "span":
            view = view.since(span[0])
        return Watched(viewer=self, video_id=video.video_id, view=view)

    def batch(self, rendered: Rendered, view: VideoView) -> Batch:
        """A row of one item. Its features are overwritten by the next one."""
        item = RowItem(id=view.video_id, rendered=rendered, view=view)
        self._buffers.clear()
        rows, frames = frames_of([item], frames_per_clip=self._frames_per_clip)
        clips = self._reader.read(rows, frames, into=self._buffers)
        return make_batch([item], clips, frames_CF=frames)


def _words(span: Span | None) -> str:
    return "of nothing" if span is None else f"{span[0]:g}-{span[1]:g}"
