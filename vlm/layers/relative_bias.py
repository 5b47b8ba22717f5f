"""T5's relative position bias (Raffel et al., arXiv:1910.10683, §2.1), as a vector a head over distances."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from vlm.layers.context import ModelContext


def buckets(distances: Tensor, *, bidirectional: bool, num_buckets: int, max_distance: int) -> Tensor:
    """Returns the bucket numbers of key - query distances: one each for the nearest half, logarithmically wider ones
    beyond."""
    offset = torch.zeros_like(distances)
    if bidirectional:
        num_buckets //= 2
        offset = (distances > 0).long() * num_buckets
        distances = distances.abs()
    else:
        distances = (-distances).clamp(min=0)
    exact = num_buckets // 2
    span = math.log(max_distance / exact)
    if span == 0:  # what is not exact is beyond the maximum
        far = torch.full_like(distances, num_buckets - 1)
    else:
        far = exact + (torch.log(distances.clamp(min=1).float() / exact) / span * (num_buckets - exact)).long()
    return offset + torch.where(distances < exact, distances, far.clamp(0, num_buckets - 1))


class RelativeBias(nn.Embedding):
    """Holds a number for each bucket and head of this rank. Call `init_buffers` once the weights are in place."""

    def __init__(
        self, num_buckets: int, max_distance: int, num_heads: int, *, bidirectional: bool, context: ModelContext
    ):
        heads = context.mapping.shard.place(num_heads, num_heads)
        super().__init__(num_buckets, heads.stop - heads.start)
        self.heads = heads
        self.max_distance, self.bidirectional = max_distance, bidirectional

    def cut(self, weight: Tensor) -> Tensor:
        """Returns this rank's part of the whole weight."""
        return weight[:, self.heads]

    def init_buffers(self, device: torch.device) -> None:
        """Fills `by_distance` [H, 2 M + 1] float32, M the distance from which on the bucket is the last one."""
        # a nearest half wider than the maximum distance is all there is
        most = max(self.max_distance, self.num_embeddings)
        indices = buckets(
            torch.arange(-most, most + 1),
            bidirectional=self.bidirectional,
            num_buckets=self.num_embeddings,
            max_distance=self.max_distance,
        )
        self.by_distance = self.weight.detach()[indices.to(device)].float().t().contiguous()
