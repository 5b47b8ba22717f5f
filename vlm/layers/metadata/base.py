"""Where the rows of a batch find the keys and values that they attend to."""

from __future__ import annotations

from torch import Tensor

from vlm.ops.attention_variant import Scores
from vlm.ops.layouts.paged_kv import HiddenRows


class AttentionMetadata:
    """Does for attention layers what depends on the layout. Each layout has the kinds of attention its networks need.

    q is [R, H, D]; k and v are [R, H_kv, D]; a result is [R, H, D].
    """

    def self_attention(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scores: Scores, angles: Tensor | None
    ) -> Tensor:
        """Puts the rows' keys and values into the cache and attends to all earlier ones of the same sequence. `angles`
        [R, 2, n]: by which queries and keys are turned."""
        raise NotImplementedError

    def cross_attention(self, layer: int, q: Tensor, *, scores: Scores) -> Tensor:
        """Attends to the encoder's output, as `write_cross` put it into the cache."""
        raise NotImplementedError

    def merged_attention(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scores: Scores, angles: Tensor
    ) -> Tensor:
        """Does what `self_attention` and `cross_attention` do, in one softmax."""
        raise NotImplementedError

    def write_cross(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Puts keys and values of the encoder's output into the cache."""
        raise NotImplementedError

    def write_hidden(self, features: Tensor) -> None:
        """Puts the encoder's output [R, E] itself into the cache, where that has room for it."""

    def read_hidden(self) -> Tensor:
        """Returns the rows of the encoder's output [R, E] that `write_hidden` put into the cache."""
        raise NotImplementedError

    def hidden_rows(self) -> HiddenRows | None:
        """Returns the encoder's output itself where all layers can do with it, and are faster so."""
        return None

    def encoder_attention(self, q: Tensor, k: Tensor, v: Tensor, *, scores: Scores) -> Tensor:
        """Attends to all rows of the same sequence."""
        raise NotImplementedError

    def attention_weights(self, q: Tensor, k: Tensor, *, scores: Scores) -> list[Tensor]:
        """Returns what `encoder_attention` weighs values by: each sequence's [H, T, T] float32."""
        raise NotImplementedError

    def sequences(self, start: int, end: int) -> AttentionMetadata:
        """Returns the same of some rows of a decode step alone; those of a sequence come in their order."""
        raise NotImplementedError
