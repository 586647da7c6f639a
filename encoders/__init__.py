"""Pixels to features. No Beam, no tar, no paths of videos."""

from encoders.base import Encoder, EncoderSpec
from encoders.registry import check_encoder, encoder_spec, list_encoders, load_encoder

__all__ = [
    "Encoder",
    "EncoderSpec",
    "check_encoder",
    "encoder_spec",
    "list_encoders",
    "load_encoder",
]
