"""Operations: how much an encoder computes, as a function of a clip's frames; no weights needed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """Floating-point operations of one forward over T frames: fixed + each T + pairs T^2.

    A multiplication and its addition are two. What torch's FlopCounterMode counts: matrix products,
    convolutions and attention, which is all that takes time on a GPU. All zero: nothing on a GPU.
    """

    fixed: float = 0.0
    each: float = 0.0
    pairs: float = 0.0
    """Above zero where tokens of different frames attend to each other."""

    def of_clip(self, num_frames: int) -> float:
        """Of one clip."""
        return self.fixed + self.each * num_frames + self.pairs * num_frames**2


def transformer_operations(
    *,
    num_blocks: int,
    width: int,
    mlp_width: int,
    patches_per_frame: float,
    patch_values: int,
    tokens_per_frame: float | None = None,
    extra_tokens: int = 0,
    mlp_matrices: int = 2,
    is_joint: bool = False,
) -> Operations:
    """Of `num_blocks` blocks over tokens of patches of `patch_values` numbers.

    With N tokens, D width, M width of the MLP and G its matrices (3 where it is gated), a block
    takes 2 (4 D^2 + G D M) N for products and 4 N^2 D for attention; a patch of P numbers 2 P D.
    `extra_tokens` are those of class and registers: of each frame, or of the clip where all its
    frames attend to each other (`is_joint`). `tokens_per_frame` is other than the patches where a
    token takes several frames. Hoffmann et al. 2022 (arXiv 2203.15556), appendix F, counts alike.
    """
    per_token = 2.0 * num_blocks * (4 * width**2 + mlp_matrices * width * mlp_width)
    per_pair = 4.0 * num_blocks * width
    tokens = patches_per_frame if tokens_per_frame is None else tokens_per_frame
    embedding = 2.0 * patch_values * width * patches_per_frame
    if not is_joint:
        num_tokens = tokens + extra_tokens
        frame = per_token * num_tokens + per_pair * num_tokens**2
        return Operations(each=frame + embedding)
    return Operations(
        fixed=per_token * extra_tokens + per_pair * extra_tokens**2,
        each=(per_token + 2 * per_pair * extra_tokens) * tokens + embedding,
        pairs=per_pair * tokens**2,
    )
