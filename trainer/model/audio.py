"""AudioConnector: from the features of sound to the language model's width."""

from __future__ import annotations

from torch import Tensor, nn


class AudioConnector(nn.Module):
    """(C, A, dim_in) -> (C, A, width): LayerNorm where there is `norm`, and a linear.

    Tokens whose mask is False are zeros before both, whatever was stored: an encoder's output of
    silence is not zero. So sound that is missing and sound that was taken away in training look
    alike, and what they look like is learnt by the biases.
    """

    def __init__(self, dim_in: int, *, width: int, norm: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim_in) if norm else nn.Identity()
        self.proj = nn.Linear(dim_in, width)
        nn.init.normal_(self.proj.weight, std=dim_in**-0.5)
        nn.init.zeros_(self.proj.bias)

    def forward(self, audio_CAD: Tensor, *, mask_CA: Tensor) -> Tensor:
        """Sound of any float dtype, in that of the parameters."""
        heard = audio_CAD.to(self.proj.weight.dtype).masked_fill(~mask_CA[..., None], 0)
        out: Tensor = self.proj(self.norm(heard))
        return out
