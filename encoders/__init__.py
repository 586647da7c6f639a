"""Pixels and sound to features. No Beam, no tar, no paths of videos."""

from encoders.base import Encoder, EncoderSpec, Runtime
from encoders.checking import check_encoder, check_sound_encoder
from encoders.registry import (
    encoder_spec,
    list_encoders,
    list_sound_encoders,
    load_encoder,
    load_sound_encoder,
    sound_spec,
)
from encoders.sound import SoundEncoder, SoundSpec

__all__ = [
    "Encoder",
    "EncoderSpec",
    "Runtime",
    "SoundEncoder",
    "SoundSpec",
    "check_encoder",
    "check_sound_encoder",
    "encoder_spec",
    "list_encoders",
    "list_sound_encoders",
    "load_encoder",
    "load_sound_encoder",
    "sound_spec",
]
