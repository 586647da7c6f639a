"""Connector: cached features of a pack of clips -> tokens of the language model's width."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainer.data.batch import Batch
from trainer.data.cache_shape import CacheShape
from trainer.model.audio import AudioConnector
from trainer.model.fusing import fuse
from trainer.model.perceiver import Perceiver
from trainer.model.pooling import Pooling
from trainer.model_spec import AudioConnectorSpec, ConnectorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorOutput:
    """C clips of K tokens, and A tokens of sound."""

    video_CKH: Tensor
    """(C, K, H), in the dtype of the parameters; H is the language model's width."""
    audio_CAH: Tensor | None
    """(C, A, H); None: no audio connector, or no sound in the batch."""
    pooled_CD: Tensor
    """(C, D) float32: mean of the fused features over the cells of the frames that exist; zeros
    where none does. For reducers."""


class Connector(nn.Module):
    """Fusing, resampling, and the projection of sound. Its dtype is that of its parameters."""

    def __init__(
        self,
        spec: ConnectorSpec,
        *,
        shape: CacheShape,
        frames_per_clip: int,
        width: int,
        audio: AudioConnectorSpec | None,
    ) -> None:
        """`shape` is the cache's, `frames_per_clip` the view's, `width` the language model's.

        `audio` only where the cache has sound. ConfigError: heads that do not divide.
        """
        super().__init__()
        self.tokens_per_clip = spec.tokens_per_clip(frames_per_clip)
        self.dim = sum(stream.dim for stream in shape.streams.values())
        """D: channels of the fused features."""
        self.cached_frames = shape.frames_per_clip
        self.strided = frozenset(
            name
            for name, stream in shape.streams.items()
            if stream.num_grids != shape.frames_per_clip
        )
        positions = spec.positions == "fourier"
        self.resampler: Perceiver | Pooling
        if spec.kind == "perceiver":
            self.resampler = Perceiver(
                self.dim,
                width=width,
                num_tokens=self.tokens_per_clip,
                dim=spec.dim,
                depth=spec.depth,
                heads=spec.heads,
                kv_heads=spec.kv_heads,
                head_dim=spec.head_dim,
                ff_mult=spec.ff_mult,
                positions=positions,
            )
        else:
            self.resampler = Pooling(
                self.dim,
                kind="conv" if spec.kind == "conv_pool" else "mlp",
                width=width,
                num_tokens=self.tokens_per_clip,
                positions=positions,
            )
        self.audio = None
        if audio is not None:
            assert shape.audio is not None
            self.audio = AudioConnector(shape.audio.dim, width=width, norm=audio.norm)

    def forward(self, batch: Batch) -> ConnectorOutput:
        """Tokens of all clips of a batch; there may be no clip.

        Nothing under the frame mask counts, whatever bits it holds, but for streams of a temporal
        stride: their grids are the sample's, each of several frames.
        """
        mask_CF = batch.frame_mask_CF
        fused = fuse(
            batch.features,
            scales=batch.scales,
            num_frames=self.cached_frames,
            frames_taken=batch.frames_taken_CF,
            dtype=self.dtype,
            strided=self.strided,
        )
        features_CFND = fused.features_CFND.masked_fill_(~mask_CF[:, :, None, None], 0)
        cells_CFD = features_CFND.mean(dim=2, dtype=torch.float32)
        num_frames_C1 = mask_CF.sum(dim=1, keepdim=True).clamp(min=1)
        audio_CAH = None
        if self.audio is not None and batch.audio_CAD is not None:
            assert batch.audio_mask_CA is not None
            audio_CAH = self.audio(batch.audio_CAD, mask_CA=batch.audio_mask_CA)
        return ConnectorOutput(
            video_CKH=self.resampler(
                features_CFND,
                grid=fused.grid,
                frame_mask_CF=mask_CF,
                frame_seconds_CF=batch.frame_seconds_CF.masked_fill(~mask_CF, 0),
            ),
            audio_CAH=audio_CAH,
            pooled_CD=cells_CFD.sum(dim=1) / num_frames_C1,
        )

    @property
    def dtype(self) -> torch.dtype:
        return next(self.resampler.parameters()).dtype
