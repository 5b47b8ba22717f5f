"""What runs a decoder and keeps its keys and values: one protocol for paged and for linear caches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from vlm.executor.kv_cache import CacheShape
from vlm.executor.sampling.plan import SamplingPlan
from vlm.executor.sampling.sampler import DecodeRows
from vlm.requests.sequence import PrefillChunk, Sequence

Embeds = Mapping[int, Tensor]  # prompt embeddings [n, hidden], by the id of their sequence


class Runner(Protocol):
    """The networks of one engine over their cache; who calls it owns the slots' state and times its work."""

    shape: CacheShape  # the blocks that a scheduler shares out
    block_size: int  # tokens
    gives_context_logits: bool
    shares_prefixes: bool  # may a block be of several sequences?
    keeps_hidden_rows: bool  # are there steps that attend to an encoder's rows themselves?

    def reserve(self, sequences: list[Sequence]) -> None:
        """Makes room for newly admitted sequences."""

    def encode_texts(self, sequences: list[Sequence], embeds: Embeds) -> None:
        """Encodes token sequences and writes their cross K/V."""

    def write_cross_kv(self, sequences: list[Sequence], features: Tensor) -> None:
        """Turns the encoder output of these sequences, features [R, hidden] one after the other, into cross K/V. What
        follows theirs is padding."""

    def prefill(self, prefills: list[tuple[Sequence, PrefillChunk]], embeds: Embeds) -> None:
        """Puts chunks of prompts into the cache, and keeps what `append_first` takes of sequences' last tokens."""

    def append_first(self, rows: DecodeRows, plan: SamplingPlan) -> None:
        """Appends to every row the token that follows its last one, which the last prefill has computed; none is a
        beam."""

    def decode(self, rows: DecodeRows, plan: SamplingPlan, steps: int) -> None:
        """Takes every row `steps` tokens further, without a look at what they are."""

    def dummy_step(self, rows: int) -> None:
        """Runs a decode step of so many rows, kernel by kernel, that takes no sequence further."""

    def free_cached_memory(self) -> None:
        """Gives back what was kept for later. All that the cache holds is computed again."""
