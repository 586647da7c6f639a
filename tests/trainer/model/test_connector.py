"""From a batch of cached features to tokens of the language model's width."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.trainer.model.batches import TWO_STREAMS, random_batch
from trainer.model.audio import AudioConnector
from trainer.model.connector import Connector
from trainer.model_spec import AudioConnectorSpec, ConnectorSpec

KINDS = ("perceiver", "conv_pool", "mlp_pool")
DTYPES = (torch.float32, torch.bfloat16)
UNSTRIDED = replace(TWO_STREAMS, streams={"still": TWO_STREAMS.streams["still"]})


def connector(kind="perceiver", *, shape=TWO_STREAMS, frames_per_clip=4, dtype=torch.float32):
    torch.manual_seed(0)
    spec = ConnectorSpec(kind=kind, tokens_per_frame=3, dim=16, heads=4, kv_heads=2)
    made = Connector(
        spec, shape=shape, frames_per_clip=frames_per_clip, width=24, audio=AudioConnectorSpec()
    )
    return made.to(dtype)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_batch_becomes_tokens_and_gradients_reach_everything(kind, dtype):
    made = connector(kind, dtype=dtype)
    batch = random_batch(TWO_STREAMS, num_clips=3)
    batch.frame_mask_CF[1, 2:] = False
    batch.audio_mask_CA[0, 1] = False
    out = made(batch)
    assert out.video_CKH.shape == (3, made.tokens_per_clip, 24) == (3, 12, 24)
    assert out.audio_CAH.shape == (3, 2, 24)
    assert out.video_CKH.dtype == out.audio_CAH.dtype == dtype
    assert out.pooled_CD.shape == (3, made.dim) == (3, 10)
    assert out.pooled_CD.dtype == torch.float32
    loss = (out.video_CKH.float() * torch.randn(3, 12, 24)).sum()
    (loss + (out.audio_CAH.float() ** 2).sum()).backward()
    for name, parameter in made.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name
    again = made(batch)
    assert torch.equal(out.video_CKH, again.video_CKH)
    assert torch.equal(out.audio_CAH, again.audio_CAH)
    assert torch.equal(out.pooled_CD, again.pooled_CD)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_there_may_be_no_clip(kind, dtype):
    made = connector(kind, dtype=dtype)
    out = made(random_batch(TWO_STREAMS, num_clips=0))
    assert out.video_CKH.shape == (0, 12, 24)
    assert out.audio_CAH.shape == (0, 2, 24)
    assert out.pooled_CD.shape == (0, 10)
    out.video_CKH.sum().backward()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_lies_under_the_mask_never_counts_not_even_where_it_is_no_number(kind, dtype):
    made = connector(kind, shape=UNSTRIDED, dtype=dtype)
    batch = random_batch(UNSTRIDED, num_clips=3)
    batch.frame_mask_CF[0, 1] = False
    batch.frame_mask_CF[2] = False
    batch.audio_mask_CA[1, 0] = False
    wanted = made(batch)
    batch.features["still"][0, 1] = float("nan")
    batch.features["still"][2] = float("inf")
    batch.frame_seconds_CF[0, 1] = float("nan")
    batch.audio_CAD[1, 0] = float("nan")
    out = made(batch)
    assert torch.equal(out.video_CKH, wanted.video_CKH)
    assert torch.equal(out.audio_CAH, wanted.audio_CAH)
    assert torch.equal(out.pooled_CD, wanted.pooled_CD)
    assert out.video_CKH.isfinite().all()
    (out.video_CKH.sum() + out.audio_CAH.sum()).backward()
    assert all(one.grad.isfinite().all() for one in made.parameters())


def test_the_batch_is_left_as_it_was():
    batch = random_batch(UNSTRIDED, num_clips=2)
    batch.frame_mask_CF[:, 0] = False
    kept = batch.features["still"].clone()
    connector(shape=UNSTRIDED)(batch)
    assert torch.equal(batch.features["still"], kept)


def test_pooled_is_the_mean_over_cells_of_frames_that_exist():
    batch = random_batch(UNSTRIDED, num_clips=3)
    batch.frame_mask_CF[1, 2:] = False
    batch.frame_mask_CF[2] = False
    pooled = connector(shape=UNSTRIDED)(batch).pooled_CD
    stored = batch.features["still"].float()
    assert torch.allclose(pooled[0], stored[0].mean(dim=(0, 1, 2)), atol=1e-5)
    assert torch.allclose(pooled[1], stored[1, :2].mean(dim=(0, 1, 2)), atol=1e-5)
    assert not pooled[2].any()


def test_a_clip_does_not_depend_on_its_neighbours():
    made = connector()
    batch = random_batch(TWO_STREAMS, num_clips=4)
    together = made(batch).video_CKH
    for clip in range(4):
        one = random_batch(TWO_STREAMS, num_clips=4)
        for name in one.features:
            one.features[name] = one.features[name][[clip]]
        for name in one.scales:
            one.scales[name] = one.scales[name][[clip]]
        for name in ("frame_mask_CF", "frame_seconds_CF", "frames_taken_CF", "audio_CAD"):
            setattr(one, name, getattr(one, name)[[clip]])
        one.audio_mask_CA = one.audio_mask_CA[[clip]]
        assert torch.allclose(made(one).video_CKH[0], together[clip], atol=1e-5)


def test_two_frames_of_four_of_a_stream_with_a_temporal_stride():
    """As many grids as frames are looked at: what says which is which is the cache's shape."""
    made = connector(frames_per_clip=2)
    batch = random_batch(TWO_STREAMS, num_clips=2, frames_per_clip=2)
    batch.frames_taken_CF = torch.tensor([[0, 2], [1, 3]])
    out = made(batch).video_CKH
    batch.frames_taken_CF = torch.tensor([[0, 2], [1, 2]])
    other = made(batch).video_CKH
    assert out.shape == (2, 6, 24)
    assert torch.equal(out[0], other[0])
    assert not torch.equal(out[1], other[1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens_per_frame", [8, 12, 16, 32])
@pytest.mark.parametrize("compression", [0.5, 1.0, 2.0])
def test_tokens_are_those_of_the_settings(kind, tokens_per_frame, compression):
    spec = ConnectorSpec(
        kind=kind, tokens_per_frame=tokens_per_frame, compression=compression, depth=1, heads=2
    )
    for frames in (1, 2, 4):
        made = Connector(spec, shape=UNSTRIDED, frames_per_clip=frames, width=8, audio=None)
        assert made.tokens_per_clip == tokens_per_frame * frames * compression
        batch = random_batch(UNSTRIDED, num_clips=2, frames_per_clip=frames)
        assert made(batch).video_CKH.shape == (2, made.tokens_per_clip, 8)


def test_sound_is_normed_and_projected_and_what_is_masked_is_zeros_before():
    torch.manual_seed(0)
    for norm in (True, False):
        made = AudioConnector(5, width=8, norm=norm)
        sound, mask = torch.randn(2, 3, 5).half(), torch.tensor([[True, False, True]]).expand(2, 3)
        out = made(sound, mask_CA=mask)
        silent = made(torch.zeros(2, 3, 5), mask_CA=torch.ones(2, 3, dtype=torch.bool))
        assert torch.equal(out[:, 1], silent[:, 1])
        heard = made(100 * sound, mask_CA=mask)
        assert torch.allclose(out[:, 0], heard[:, 0], atol=0.01) == norm


def test_a_batch_without_sound_or_a_connector_without_it():
    batch = random_batch(TWO_STREAMS, num_clips=2)
    batch.audio_CAD = batch.audio_mask_CA = None
    assert connector()(batch).audio_CAH is None
    deaf = Connector(ConnectorSpec(), shape=TWO_STREAMS, frames_per_clip=4, width=16, audio=None)
    assert deaf(random_batch(TWO_STREAMS, num_clips=2)).audio_CAH is None
