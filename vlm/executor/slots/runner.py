"""Runs compiled graphs over linear caches.

A sequence is a slot, and a pass takes a run of neighbouring slots as a view of the caches: nothing is gathered. Slots
in between that are not asked take part with what they would do next; what that writes is written again when they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from vlm.backends.graphs.io import CACHED, CROSSED
from vlm.backends.graphs.network import Network, Tensors
from vlm.config import Config, ModelConfig
from vlm.executor.kv_cache import CacheShape
from vlm.executor.networks import required
from vlm.executor.runner import Embeds
from vlm.executor.sampling.plan import SamplingPlan
from vlm.executor.sampling.sampler import DecodeRows, Sampler
from vlm.executor.slots.cache import SlotCache
from vlm.executor.slots.inputs import encode_padded, integers, padded_tokens
from vlm.executor.slots.packing import alike, neighbours
from vlm.requests.sequence import PrefillChunk, Sequence

MOST_PASSES = 256  # runs of slots whose decode steps are kept ready


@dataclass(frozen=True)
class DecodePass:
    """A decode step of a run of slots: buffers, and what runs on them."""

    token_ids: Tensor  # [B, 1] int64
    starts: Tensor  # [B] int64
    cross_lengths: Tensor  # [B] int64
    run: Callable[[], Tensors]


class SlotRunner:
    """Compiled graphs over linear caches; a slot is one block that holds a whole sequence."""

    gives_context_logits = shares_prefixes = keeps_hidden_rows = False

    def __init__(
        self,
        decoder: Network[ModelConfig],
        encoder: Network[ModelConfig] | None,
        cross: Network[Config] | None,
        *,
        cache: SlotCache,
        shape: CacheShape,
        block_size: int,
        sampler: Sampler,
    ):
        """`cross` makes the cache's rows of an encoder's output; `encoder`: of texts."""
        self.decoder, self.encoder, self.cross, self.config = decoder, encoder, cross, decoder.config
        self.cache, self.shape, self.block_size = cache, shape, block_size
        self.sampler, self.state, self.device = sampler, sampler.state, cache.device
        self.dtype = self.state.last_prompt_embed.dtype
        self._passes: dict[tuple[int, int], DecodePass] = {}
        self._logits_of = torch.empty(self.state.padding_slot + 1, self.config.vocab_size, device=self.device)

    def reserve(self, sequences: list[Sequence]) -> None:
        """Lets the caches grow to what these prompts need."""
        self._reserve(CACHED, max(len(s.tokens) for s in sequences))
        self._reserve(CROSSED, max(s.num_features for s in sequences))

    def free_cached_memory(self) -> None:
        """Gives back what the caches have grown by, or tried to: all that they held is computed again."""
        if self.cache.reset():
            self._passes.clear()

    def _reserve(self, dimension: str, rows: int) -> None:
        if self.cache.reserve(dimension, rows):
            self._passes.clear()

    # --- prompts ---
    def prefill(self, prefills: list[tuple[Sequence, PrefillChunk]], embeds: Embeds) -> None:
        """Computes the first beams' chunks; the other beams of a search copy them."""
        first = [(s, chunk) for s, chunk in prefills if chunk.beam == 0]
        for group in neighbours(first, self.state.slots.tokens.shape[1]):
            self._prefill(group, embeds)
        for sequence, chunk in prefills:
            if chunk.beam:
                self.cache.copy(sequence.slot, sequence.slots[chunk.beam], chunk.start, chunk.end)

    def _prefill(self, group: list[tuple[Sequence, PrefillChunk]], embeds: Embeds) -> None:
        slots = slice(group[0][0].slot, group[-1][0].slot + 1)
        reach = max(chunk.start for _, chunk in group) + max(chunk.end - chunk.start for _, chunk in group)
        self._reserve(CACHED, reach)
        parts = [(embeds.get(s.id), s.tokens[chunk.start : chunk.end]) for s, chunk in group]
        inputs = padded_tokens(parts, self.config, self.dtype, self.device)
        inputs |= {
            "starts": integers([chunk.start for _, chunk in group], self.device),
            "counts": integers([chunk.end - chunk.start for _, chunk in group], self.device),
            "cross_lengths": self.state.cross_lengths[slots].long(),
        }
        self._bound(slots, inputs)()

    def _bound(self, slots: slice, inputs: dict[str, Tensor]) -> Callable[[], Tensors]:
        graph = self.decoder.graph
        inputs = {**inputs, **self.cache.inputs(slots)}
        outputs = {"logits": self._logits_of[slots], **self.cache.outputs(slots)}
        return graph.bind({port.name: inputs[port.name] for port in graph.io.inputs}, outputs)

    # --- encoders ---
    def encode_texts(self, sequences: list[Sequence], embeds: Embeds) -> None:
        for group in alike(sequences):
            parts = [(embeds.get(s.id), s.request.source_ids) for s in group]
            self._write_padded(group, encode_padded(required(self.encoder), parts, self.dtype, self.device))

    def write_cross_kv(self, sequences: list[Sequence], features: Tensor) -> None:
        counts = [s.num_features for s in sequences]
        rows = features[: sum(counts)].split(counts)
        self._write_padded(sequences, pad_sequence(list(rows), batch_first=True))

    def _write_padded(self, sequences: list[Sequence], hidden: Tensor) -> None:
        """Turns hidden [B, T, hidden] into the cross K/V of every beam"""
        for name, rows in required(self.cross)(hidden=hidden.contiguous()).items():
            for sequence, own in zip(sequences, rows, strict=True):
                for slot in sequence.slots:
                    self.cache.write(name, slot, own[:, : sequence.num_features])

    # --- decode ---
    def append_first(self, rows: DecodeRows, plan: SamplingPlan) -> None:
        self.sampler.sample(self._logits_of[rows.all.long()], rows, plan)

    def decode(self, rows: DecodeRows, plan: SamplingPlan, steps: int) -> None:
        slots = rows.all[rows.all != self.state.padding_slot]
        first, end = int(slots.min()), int(slots.max()) + 1
        reach = int(self.state.slots.lengths[first:end].max()) + steps
        self._reserve(CACHED, min(reach, self.state.slots.tokens.shape[1]))
        at = (rows.all.long() - first).clamp(max=end - first - 1)
        in_order = at.tolist() == list(range(end - first))  # then the rows are not copied
        for _ in range(steps):
            logits = self._logits(first, end)
            logits = logits if in_order else logits[at]
            if (parents := self.sampler.sample(logits, rows, plan)) is not None and rows.beams is not None:
                self.cache.reorder_cache(rows.beams.slots, parents)

    def dummy_step(self, rows: int) -> None:
        self._logits(0, rows)

    def _logits(self, first: int, end: int) -> Tensor:
        """Returns the next logits of a run of slots, [end - first, vocabulary] float32."""
        if (first, end) not in self._passes:
            if len(self._passes) == MOST_PASSES:
                self._passes.clear()
            self._passes[first, end] = self._decode_pass(slice(first, end))
        decode_pass, state, slots = self._passes[first, end], self.state.slots, slice(first, end)
        decode_pass.starts.copy_(state.lengths[slots] - 1)
        decode_pass.cross_lengths.copy_(self.state.cross_lengths[slots])
        ids = state.tokens[slots].gather(1, decode_pass.starts[:, None])
        # a prompt may end in a row of its table: the slot's own
        last = self.config.vocab_size + torch.arange(end - first, device=self.device)[:, None]
        decode_pass.token_ids.copy_(torch.where(ids < self.config.vocab_size, ids, last))
        return decode_pass.run()["logits"]

    def _decode_pass(self, slots: slice) -> DecodePass:
        integers = lambda *dims: torch.ones(slots.stop - slots.start, *dims, dtype=torch.int64, device=self.device)  # noqa: E731
        token_ids, starts, cross_lengths = integers(1), integers(), integers()
        inputs = {"token_ids": token_ids, "starts": starts, "counts": integers(), "cross_lengths": cross_lengths}
        run = self._bound(slots, inputs | {"prompt_table": self.state.last_prompt_embed[slots]})
        return DecodePass(token_ids, starts, cross_lengths, run)
