"""Runs batches of one engine with torch: encoder passes, prefills and decode bursts.

On CUDA a decode step is one CUDA graph per batch bucket and way of choosing tokens, replayed `steps` times without
looking at the result; the CPU runs the same step eagerly.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from vlm.backends.threads import num_threads, threads_for
from vlm.config import ModelConfig, RuntimeConfig
from vlm.executor.base_executor import Executor
from vlm.executor.batch_state import BatchState
from vlm.executor.encoders import TorchEncoders
from vlm.executor.packing import PackedChunks, PackedTexts, packed
from vlm.executor.prompt_embeds import virtual_rows
from vlm.executor.sampler import DecodeRows
from vlm.executor.sampling_plan import SamplingPlan
from vlm.layers.attention import PackedRows, PagedRows
from vlm.layers.embedding import Virtual
from vlm.ops import beam_search
from vlm.requests.sequence import PrefillChunk, Sequence

LAUNCH_BOUND_ROWS = 4096  # encoder rows up to which a pass is a CUDA graph
LAUNCH_BOUND_PREFILL = 1024  # prompt rows, likewise
LOGITS_ROWS = 256  # of a prompt, whose logits are computed at once where they are wanted


class TorchExecutor(Executor, TorchEncoders):
    """The networks of one engine and the device state of its slots."""

    def __init__(
        self,
        config: ModelConfig,
        decoder: nn.Module,
        visual: nn.Module | None,
        encoder: nn.Module | None,
        cache: Tensor,
        state: BatchState,
        runtime: RuntimeConfig,
    ):
        super().__init__(config, visual, encoder, state, cache.dtype, runtime)
        self.decoder, self.cache = decoder, cache
        self._threads = num_threads()
        self._parameters = sum(x.numel() for x in decoder.parameters())

    @torch.inference_mode()
    def prefill(self, prefills: list[tuple[Sequence, PrefillChunk]]) -> None:
        """Puts chunks of prompts into the cache: all tokens but the last, which the first decode step takes."""
        packed_chunks = PackedChunks.from_prefills(prefills)
        parts = [(s.table, s.tokens[chunk.start : chunk.end]) for s, chunk in prefills]
        virtual = virtual_rows(parts, self.config.vocab_size, self.device)
        with self.timer("prefill"):
            if any(s.request.params.return_context_logits for s, _ in prefills):
                self._prefill_with_logits(prefills, packed_chunks, virtual)
            elif self.graphs is None or packed_chunks.rows > LAUNCH_BOUND_PREFILL:
                self._prefill(*packed_chunks.tensors(self.device), *virtual)
            else:
                inputs = packed_chunks.tensors(self.device, self.state.padding_slot)
                self._replay("prefill", self._prefill, *inputs, *self._padded(virtual, len(inputs[0])))
        for sequence in {s for s, _ in prefills if not s.pending_chunks}:
            sequence.table = None

    # --- admission ---
    def _write_cross_kv(self, sequences: list[Sequence], features: Tensor) -> None:
        slots, positions = packed([(s.slot, s.num_features) for s in sequences], self.device)
        self.decoder.write_cross_kv(features, self._paged(slots, positions))

    def _encode_texts(self, sequences: list[Sequence]) -> None:
        """Encodes token sequences without padding and writes their cross K/V."""
        texts = PackedTexts.from_texts([s.request.encoder_input_ids for s in sequences], [s.slot for s in sequences])
        virtual = virtual_rows(
            [(s.table, s.request.encoder_input_ids) for s in sequences], self.encoder.config.vocab_size, self.device
        )
        for sequence in sequences:
            sequence.table = None
        if self.graphs is None or texts.rows > LAUNCH_BOUND_ROWS:
            self._encode_packed(*texts.tensors(self.device), *virtual)
        else:
            inputs = texts.padded(self.state.padding_slot).tensors(self.device)
            self._replay("encode texts", self._encode_packed, *inputs, *self._padded(virtual, len(inputs[0])))

    def _encode_packed(
        self, token_ids: Tensor, positions: Tensor, slots: Tensor, tiles: Tensor, *virtual: Tensor
    ) -> None:
        rows = PackedRows(positions, tiles, virtual=Virtual(*virtual) if virtual else None)
        self.decoder.write_cross_kv(self.encoder(token_ids, rows), self._paged(slots, positions))

    def _prefill_with_logits(
        self, prefills: list[tuple[Sequence, PrefillChunk]], chunks: PackedChunks, virtual: tuple[Tensor, ...]
    ) -> None:
        """Prefills, and keeps the logits of the prompts that want them."""
        token_ids, positions, slots, tiles = chunks.tensors(self.device)
        rows = self._paged(slots, positions, tiles, Virtual(*virtual) if virtual else None)
        parts = self.decoder(token_ids, rows).split([chunk.end - chunk.start for _, chunk in prefills])
        for (sequence, chunk), hidden in zip(prefills, parts, strict=True):
            # a sequence that is recomputed has tokens of its own there, too
            wanted = max(0, sequence.prompt_length - 1 - chunk.start)
            if sequence.request.params.return_context_logits and wanted:
                if chunk.start == 0:
                    sequence.context_logits = []
                for some in hidden[:wanted].split(LOGITS_ROWS):
                    sequence.context_logits.append(self.decoder.logits(some).float().cpu())

    def _prefill(self, token_ids: Tensor, positions: Tensor, slots: Tensor, tiles: Tensor, *virtual: Tensor) -> None:
        rows = self._paged(slots, positions, tiles, Virtual(*virtual) if virtual else None)
        self.decoder(token_ids, rows)

    def _replay(self, what: str, function: Callable[..., None], *inputs: Tensor) -> None:
        """Runs a pass as the graph of its shapes."""
        key = (what, *(len(x) for x in inputs))
        if key not in self.graphs:
            self.graphs.capture(key, function, *inputs)
        self.graphs.run(key, *inputs)

    # --- prompt tables ---
    def _padded(self, virtual: tuple[Tensor, ...], rows: int) -> tuple[Tensor, ...]:
        """The same with a row of the table a row of the batch: the shapes of a graph."""
        if not virtual:
            return ()
        table, at = virtual
        picked = torch.zeros(rows, table.shape[1], dtype=table.dtype, device=self.device)
        picked[: len(at)] = table[at]
        return picked, torch.arange(rows, dtype=torch.int32, device=self.device)

    # --- decode ---
    def _decode(self, rows: DecodeRows, plan: SamplingPlan, steps: int) -> None:
        if self.graphs is None:
            with threads_for(len(rows.all) * self._parameters, self._threads):
                for _ in range(steps):
                    self._step(rows, plan)
            return
        key = ("decode", len(rows.all), plan, self._layout(plan))
        if key not in self.graphs:
            self._capture_step(key, rows, plan)
        for _ in range(steps):
            self.graphs.run(key)

    def _layout(self, plan: SamplingPlan) -> tuple[int, ...]:
        """Sizes of the buffers that a step works on and that may be others by the next one."""
        return (*self.state.layout(bool(plan.processing.rules)), *(self.logits.layout if plan.logits else ()))

    def _capture_step(self, key: tuple, rows: DecodeRows, plan: SamplingPlan) -> None:
        """Captures over padding rows: what is run before a capture must not advance a sequence."""
        slots = [rows.all, rows.single] + ([rows.beams.slots] if rows.beams else [])
        wanted = [x.clone() for x in slots]
        for x in slots:
            x.fill_(self.state.padding_slot)
        self.graphs.capture(key, lambda: self._step(rows, plan))
        for x, values in zip(slots, wanted, strict=True):
            x.copy_(values)

    def _step(self, rows: DecodeRows, plan: SamplingPlan) -> None:
        """One token for every row: embedding -> layers -> logits -> choice -> append -> stop checks."""
        slots = rows.all.long()
        positions = self.state.slots.lengths[slots] - 1
        token_ids = self.state.slots.tokens[slots, positions.long()]
        # a prompt may end in a row of its table
        virtual = None if self.config.cross_attention else Virtual(self.state.pending, rows.all)
        logits = self.decoder.logits(self.decoder(token_ids, self._paged(rows.all, positions, virtual=virtual)))
        if (parents := self.sampler.sample(logits, rows, plan)) is not None:
            beam_search.reorder_cache(
                self.cache, self.state.self_tables, self.state.slots, self.state.beams, rows.beams, parents
            )

    def _paged(
        self, slots: Tensor, positions: Tensor, tiles: Tensor | None = None, virtual: Virtual | None = None
    ) -> PagedRows:
        state = self.state
        cross_lengths = state.cross_lengths[slots.long()] if self.config.cross_attention else None
        tables = (state.self_tables, state.cross_tables)
        return PagedRows(self.cache, *tables, slots, positions, positions + 1, cross_lengths, tiles, virtual)
