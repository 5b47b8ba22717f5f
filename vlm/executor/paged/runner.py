"""Runs torch modules over a paged cache: encoder passes, prefills and decode bursts.

On CUDA a decode step is one CUDA graph per batch bucket and way of choosing tokens, replayed `steps` times without
looking at the result; the CPU runs the same step eagerly.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vlm.backends.threads import num_threads, threads_for
from vlm.executor.graph_pool import GraphPool
from vlm.executor.inputs.micro_batches import micro_batches
from vlm.executor.kv_cache import CacheShape
from vlm.executor.networks import DecoderNetwork, TextNetwork, parameters_of
from vlm.executor.paged.batches import PagedBatches
from vlm.executor.paged.cross_kv import CrossKV
from vlm.executor.paged.prefill import Prefill
from vlm.executor.paged.step_rows import StepRows
from vlm.executor.runner import Embeds
from vlm.executor.sampling.plan import SamplingPlan
from vlm.executor.sampling.sampler import DecodeRows, Sampler
from vlm.layers.forward_batch import ForwardBatch, PromptEmbeds
from vlm.layers.quant.w8a8 import rounds_rows
from vlm.ops.layouts.paged_kv import KVCache
from vlm.ops.products.norms_ahead import norms_ahead
from vlm.ops.sampling import beam_search
from vlm.requests.sequence import PrefillChunk, Sequence

Step = Callable[[DecodeRows, SamplingPlan], None]


class PagedRunner:
    """Modules over one pool of blocks."""

    gives_context_logits = shares_prefixes = True

    def __init__(
        self,
        decoder: DecoderNetwork,
        encoder: TextNetwork | None,
        *,
        cache: KVCache,
        shape: CacheShape,
        sampler: Sampler,
        graphs: GraphPool | None,
        num_stages: int = 1,
        maximum: Callable[[int], int] = int,
    ):
        """`encoder`: of texts; `graphs` None: all is run eagerly; `num_stages`: of the pipeline that shares the
        layers; `maximum`: the most of a value among all ranks."""
        self.decoder, self.config = decoder, decoder.config
        self.cache, self.shape, self.block_size = cache, shape, cache.block_size
        self.sampler, self.state, self.device, self.graphs = sampler, sampler.state, cache.blocks.device, graphs
        self.num_stages, self.keeps_hidden_rows = num_stages, cache.hidden is not None
        self._threads = num_threads()
        self._parameters, self._rounds = parameters_of(decoder), rounds_rows(decoder.modules())
        self.batches = PagedBatches(cache, self.state, self.config)
        passes = {"graphs": graphs, "maximum": maximum}
        self.prompts = Prefill(decoder, self.batches, sampler=sampler, num_stages=num_stages, **passes)
        self.cross_kv = CrossKV(decoder, encoder, self.batches, **passes)

    def reserve(self, sequences: list[Sequence]) -> None:
        """Does nothing: the scheduler has given them their blocks."""

    def free_cached_memory(self) -> None:
        """Does nothing: the pool stays as it is, and torch's own cache is emptied with the encoders'."""

    # --- encoders and prompts ---
    def write_cross_kv(self, sequences: list[Sequence], features: Tensor) -> None:
        self.cross_kv.write(sequences, features)

    def encode_texts(self, sequences: list[Sequence], embeds: Embeds) -> None:
        self.cross_kv.encode_texts(sequences, embeds)

    def prefill(self, prefills: list[tuple[Sequence, PrefillChunk]], embeds: Embeds) -> None:
        self.cross_kv.write_waiting(s for s, _ in prefills)  # prompts attend to keys and values
        self.prompts.run(prefills, embeds)

    # --- decode ---
    def append_first(self, rows: DecodeRows, plan: SamplingPlan) -> None:
        self._run("append first", self._append_first, rows, plan=plan, times=1)

    def decode(self, rows: DecodeRows, plan: SamplingPlan, steps: int) -> None:
        if self.cross_kv.waiting and not self._absorbs(rows):
            self.cross_kv.write_waiting()
        self._run("decode", self._step, rows, plan=plan, times=steps)

    def _run(self, what: str, step: Step, rows: DecodeRows, *, plan: SamplingPlan, times: int) -> None:
        """Runs a step so many times, on CUDA as the graph of its rows."""
        if self.graphs is None:
            with threads_for(len(rows.all) * self._parameters, self._threads):
                for _ in range(times):
                    step(rows, plan)
            return
        key = (what, len(rows.all), rows.adapted, self._absorbs(rows), plan, self._layout(plan))
        if key not in self.graphs:
            self._capture(self.graphs, key, rows, lambda: step(rows, plan))
        for _ in range(times):
            self.graphs.run(key)

    def dummy_step(self, rows: int) -> None:
        slots = torch.full((rows,), self.state.padding_slot, dtype=torch.int32, device=self.device)
        self._step(DecodeRows(slots, slots, None, adapted=False), SamplingPlan(None))

    def _layout(self, plan: SamplingPlan) -> tuple[int, ...]:
        """Returns the sizes of the buffers that a step works on and that may be others by the next one."""
        return (*self.state.layout(bool(plan.processing.rules)), *(self.sampler.logits.layout if plan.logits else ()))

    def _capture(self, graphs: GraphPool, key: tuple, rows: DecodeRows, step: Callable[[], None]) -> None:
        """Captures over padding rows: what is run before a capture must not advance a sequence."""
        slots = [rows.all, rows.single] + ([rows.beams.slots] if rows.beams else [])
        copies = [x.clone() for x in slots]
        for x in slots:
            x.fill_(self.state.padding_slot)
        graphs.capture(key, step)
        for x, values in zip(slots, copies, strict=True):
            x.copy_(values)

    def _append_first(self, rows: DecodeRows, plan: SamplingPlan) -> None:
        """Appends a token to every row: its last one's hidden row -> logits -> choice -> append -> stop checks."""
        slots = rows.all.long()
        batch = self.batches.batch(rows.all, self.state.slots.lengths[slots] - 1, adapted=rows.adapted)
        self.sampler.sample(self.decoder.logits(self.prompts.last_hidden[slots], batch), rows, plan)

    def _step(self, rows: DecodeRows, plan: SamplingPlan) -> None:
        """Appends a token to every row, more where drafts are right: embedding -> layers -> logits -> choice -> append
        -> stop checks."""
        crosses = self.state.cross_lengths if self.config.cross_attention else None
        step, proposed = StepRows.last(self.state.slots, rows.all, crosses), None
        if plan.drafts:
            proposed = self.sampler.propose(rows, plan, self.config.vocab_size)
            step = step.with_drafts(proposed, self.state.padding_slot, crosses)
        logits = self._logits(step, adapted=rows.adapted, absorbs=self._absorbs(rows)).unflatten(0, (-1, len(rows.all)))
        parents = self.sampler.sample(logits[0], rows, plan)
        if proposed is not None:
            self.sampler.verify(logits[1:], rows, plan, proposed)
        if parents is not None and rows.beams is not None:
            beam_search.reorder_cache(
                self.cache, self.state.self_tables, self.state.slots, self.state.beams, rows.beams, parents
            )

    def _absorbs(self, rows: DecodeRows) -> bool:
        """Says whether a step attends to encoders' rows themselves: where that pays, and no adapter changes their keys
        and values."""
        return not rows.adapted and self.batches.absorbing_pays(rows.cross_rows)

    def _logits(self, step: StepRows, *, adapted: bool, absorbs: bool) -> Tensor:
        """Returns the logits [R, V] of a step's rows."""
        # a prompt may end in an embedding of its own
        last = None if self.config.cross_attention else PromptEmbeds(self.state.last_prompt_embed, step.slots)
        attention = self.batches.attention(
            step.slots,
            step.positions,
            self_lengths=step.lengths,
            cross_lengths=step.cross_lengths,
            several=step.several,
            absorbs=absorbs,
        )
        axes = self.state.axes_of(step.slots, step.positions)
        ids = self.batches.adapter_ids(step.slots, adapted=adapted)
        batch = ForwardBatch(step.positions if axes is None else axes, attention, last, ids)
        with norms_ahead(self.device, rounds=self._rounds, one_reader=not adapted):
            return self.decoder.logits(self._hidden(step.token_ids, batch), batch)

    def _hidden(self, token_ids: Tensor, batch: ForwardBatch) -> Tensor:
        """Returns the hidden rows [R, hidden] of a decode step's tokens [R]."""
        parts = micro_batches(len(token_ids), self.num_stages)
        if len(parts) == 1:
            return self.decoder(token_ids, batch)
        return torch.cat([self.decoder(token_ids[begin:end], batch.sequences(begin, end)) for begin, end in parts])
