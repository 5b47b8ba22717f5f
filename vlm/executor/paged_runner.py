"""Runs torch modules over a paged cache: encoder passes, prefills and decode bursts.

On CUDA a decode step is one CUDA graph per batch bucket and way of choosing tokens, replayed `steps` times without
looking at the result; the CPU runs the same step eagerly.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vlm.backends.threads import num_threads, threads_for
from vlm.executor.graph_pool import GraphPool
from vlm.executor.kv_cache import CacheShape, absorbing_pays
from vlm.executor.launch_bound import LaunchBound
from vlm.executor.micro_batches import micro_batches, split_prefills
from vlm.executor.networks import DecoderNetwork, TextNetwork, required, rounding_ahead
from vlm.executor.packing import (
    HostInputs,
    PackedChunks,
    PackedInputs,
    PackedTexts,
    batched_by_tokens,
    graph_rows,
    packed,
)
from vlm.executor.prompt_embeds import gather_prompt_embeds
from vlm.executor.runner import Embeds
from vlm.executor.sampler import DecodeRows, Sampler
from vlm.executor.sampling_plan import SamplingPlan
from vlm.executor.step_rows import StepRows
from vlm.executor.upload import upload
from vlm.executor.waiting_kv import WaitingKV
from vlm.layers.attention_metadata import PackedMetadata, PagedMetadata
from vlm.layers.forward_batch import ForwardBatch, PromptEmbeds
from vlm.layers.quant.w8a8 import rounds_rows
from vlm.ops import beam_search
from vlm.ops.norms_ahead import norms_ahead
from vlm.ops.paged_kv import KVCache
from vlm.requests.sequence import PrefillChunk, Sequence, any_adapted

Pass = Callable[[PackedInputs, PromptEmbeds | None], None]
Step = Callable[[DecodeRows, SamplingPlan], None]

LAUNCH_BOUND_ROWS = 4096  # encoder rows up to which a pass is a CUDA graph
LAUNCH_BOUND_PREFILL = 1024  # prompt rows, likewise
LOGITS_ROWS = 256  # of a prompt, whose logits are computed at once where they are wanted
CROSS_ROWS = 16384  # of encoders, whose keys and values are computed at once where they have waited


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
        layers; `maximum`: the most of a value among all ranks, which capture the same graphs: what they tell each other
        in a pass they tell twice where it is captured."""
        self.decoder, self.encoder, self.config = decoder, encoder, decoder.config
        self.cache, self.shape, self.block_size = cache, shape, cache.block_size
        self.sampler, self.state, self.device, self.graphs = sampler, sampler.state, cache.blocks.device, graphs
        self.num_stages, self.keeps_hidden_rows = num_stages, cache.hidden is not None
        self._waiting_kv = WaitingKV(self.state.padding_slot, self._absorbing_pays)
        self._threads = num_threads()
        self._last_hidden: Tensor | None = None  # [S, hidden], of each slot the last token that a prefill took
        self._parameters, self._rounds = parameters_of(decoder), rounds_rows(decoder.modules())
        self._prompt_pass = rounding_ahead(decoder, self.device)
        self._text_pass = None if encoder is None else rounding_ahead(encoder, self.device)
        self._prefill_graphs = _launch_bound(decoder, LAUNCH_BOUND_PREFILL, maximum)
        self._text_graphs = _launch_bound(encoder, LAUNCH_BOUND_ROWS, maximum)

    def reserve(self, sequences: list[Sequence]) -> None:
        """Does nothing: the scheduler has given them their blocks."""

    def free_cached_memory(self) -> None:
        """Does nothing: the pool stays as it is, and torch's own cache is emptied with the encoders'."""

    # --- prompts ---
    def prefill(self, prefills: list[tuple[Sequence, PrefillChunk]], embeds: Embeds) -> None:
        if self._waiting_kv:  # prompts attend to keys and values
            self._write_waiting_kv(self._waiting_kv.take(s for s, _ in prefills))
        for part in split_prefills(prefills, self.num_stages):
            self._prefill_part(part, embeds)

    def _prefill_part(self, prefills: list[tuple[Sequence, PrefillChunk]], embeds: Embeds) -> None:
        packed_chunks = PackedChunks.from_prefills(prefills)
        own = (embeds.get(s.id) for s, _ in prefills)
        parts = list(zip(own, packed_chunks.token_ids(), strict=True)) if embeds else ()
        prompt_embeds = gather_prompt_embeds(parts, self.config.vocab_size, self.device)
        adapted = any_adapted([s for s, _ in prefills])
        prefill = partial(self._prefill, adapted=adapted)
        if any(s.request.params.return_context_logits for s, _ in prefills):
            self._prefill_with_logits(prefills, packed_chunks, prompt_embeds)
        elif self.graphs is None or not self._prefill_graphs.chooses(packed_chunks.num_rows):
            prefill(packed_chunks.to_device(self.device), prompt_embeds)
        else:
            inputs = packed_chunks.inputs(self.device, self.state.padding_slot)
            embeds_by_row = self._padded(prompt_embeds, inputs.lengths[0])
            _replay(self.graphs, ("prefill", adapted), prefill, inputs=inputs, prompt_embeds=embeds_by_row)

    # --- encoders ---
    def write_cross_kv(self, sequences: list[Sequence], features: Tensor) -> None:
        graphs = self.graphs if len(features) <= LAUNCH_BOUND_ROWS else None
        rows = len(features) if graphs is None else graph_rows(len(features))
        slots, positions = packed([(s.slot, s.num_features) for s in sequences])
        extra = rows - len(slots)
        slots, positions = F.pad(slots, (0, extra), value=self.state.padding_slot), F.pad(positions, (0, extra))
        places = upload([slots.numpy(), positions.numpy()], self.device)
        adapted = any_adapted(sequences)
        wait = self._waiting_kv.defers(sequences, rows, adapted=adapted)
        write = partial(self._write_features, adapted=adapted, wait=wait)
        if graphs is None:
            write(features, *places)
        else:
            inputs = F.pad(features, (0, 0, 0, rows - len(features))), *places
            graphs.replay(("write cross", adapted, rows), write, *inputs)

    def _write_features(self, features: Tensor, slots: Tensor, positions: Tensor, *, adapted: bool, wait: bool) -> None:
        """Writes an encoder's output into the cache, where steps attend to it itself, and its keys and values, if they
        do not `wait`."""
        batch = self._batch(slots, positions, adapted=adapted)
        if not wait:
            self.decoder.write_cross_kv(features, batch)
        batch.attention.write_hidden(features)

    def _write_waiting_kv(self, sequences: list[Sequence]) -> None:
        """Writes keys and values of encoders' outputs that are in the cache themselves."""
        for part in batched_by_tokens(sequences, CROSS_ROWS, attrgetter("num_features")):
            places = [x.numpy() for x in packed([(s.slot, s.num_features) for s in part])]
            batch = self._batch(*upload(places, self.device), adapted=False)
            self.decoder.write_cross_kv(batch.attention.read_hidden(), batch)

    def encode_texts(self, sequences: list[Sequence], embeds: Embeds) -> None:
        """Encodes token sequences without padding and writes their cross K/V."""
        sources = [s.request.source_ids if s.source is None else s.source for s in sequences]
        texts = PackedTexts.from_texts(sources, [s.slot for s in sequences])
        parts = [(embeds.get(s.id), s.request.source_ids) for s in sequences] if embeds else ()
        prompt_embeds = gather_prompt_embeds(parts, required(self.encoder).config.vocab_size, self.device)
        adapted = any_adapted(sequences)
        wait = self._waiting_kv.defers(sequences, texts.num_rows, adapted=adapted)
        encode = partial(self._encode_packed, adapted=adapted, wait=wait)
        if self.graphs is None or not self._text_graphs.chooses(texts.num_rows):
            encode(texts.to_device(self.device), prompt_embeds)
        else:
            inputs = texts.inputs(self.device, self.state.padding_slot)
            embeds_by_row = self._padded(prompt_embeds, inputs.lengths[0])
            _replay(self.graphs, ("encode texts", adapted, wait), encode, inputs=inputs, prompt_embeds=embeds_by_row)

    def _encode_packed(
        self, inputs: PackedInputs, prompt_embeds: PromptEmbeds | None, *, adapted: bool, wait: bool
    ) -> None:
        ids = self._adapter_ids(inputs.slots, adapted=adapted)
        batch = ForwardBatch(inputs.positions, PackedMetadata(inputs.tiles), prompt_embeds, ids)
        features = required(self._text_pass)(inputs.token_ids, batch)
        self._write_features(features, inputs.slots, inputs.positions, adapted=adapted, wait=wait)

    def _prefill_with_logits(
        self, prefills: list[tuple[Sequence, PrefillChunk]], chunks: PackedChunks, prompt_embeds: PromptEmbeds | None
    ) -> None:
        """Prefills, and keeps the logits of the prompts that want them."""
        inputs, adapted = chunks.to_device(self.device), any_adapted([s for s, _ in prefills])
        batch = self._prompt_batch(inputs, prompt_embeds, adapted=adapted)
        hidden, first = self._prefilled(inputs, batch), 0
        for sequence, chunk in prefills:
            # a sequence that is recomputed has tokens of its own there, too
            count = max(0, sequence.prompt_length - 1 - chunk.start)
            if sequence.request.params.return_context_logits and count:
                end = first + min(count, chunk.end - chunk.start)
                spans = [(at, min(at + LOGITS_ROWS, end)) for at in range(first, end, LOGITS_ROWS)]
                rows = (self.decoder.logits(hidden[a:b], batch.rows(a, b)) for a, b in spans)
                self.sampler.logits.keep_context(sequence.id, chunk.start, rows)
            first += chunk.end - chunk.start

    def _prefill(self, inputs: PackedInputs, prompt_embeds: PromptEmbeds | None, *, adapted: bool) -> None:
        self._prefilled(inputs, self._prompt_batch(inputs, prompt_embeds, adapted=adapted))

    def _prefilled(self, inputs: PackedInputs, batch: ForwardBatch) -> Tensor:
        """Writes prompt rows into the cache; returns their hidden rows [R, hidden]."""
        hidden = self._prompt_pass(inputs.token_ids, batch)
        self._keep_last(hidden, inputs.ends)
        return hidden

    def _keep_last(self, hidden: Tensor, ends: Tensor) -> None:
        """Keeps the hidden rows of last tokens out of those of a pass [R, hidden]; `ends` [n, 2] as PackedInputs has
        them."""
        if self._last_hidden is None:
            self._last_hidden = hidden.new_zeros(self.state.padding_slot + 1, hidden.shape[1])
        rows, slots = ends.long().unbind(1)
        self._last_hidden[slots] = hidden[rows]

    def _prompt_batch(self, inputs: PackedInputs, prompt_embeds: PromptEmbeds | None, *, adapted: bool) -> ForwardBatch:
        slots, positions, tiles = inputs.slots, inputs.positions, inputs.tiles
        axes = inputs.axes if len(inputs.axes) else None
        return self._batch(slots, positions, axes=axes, adapted=adapted, tiles=tiles, prompt_embeds=prompt_embeds)

    def _padded(self, prompt_embeds: PromptEmbeds | None, rows: int) -> PromptEmbeds | None:
        """Returns the same with an embedding a row of the batch: the shapes of a graph."""
        if prompt_embeds is None:
            return None
        embeds, index = prompt_embeds
        # rows of padding write keys and values, which masked tiles read: they have to be numbers
        result = torch.zeros(rows, embeds.shape[1], dtype=embeds.dtype, device=self.device)
        torch.index_select(embeds, 0, index, out=result[: len(index)])
        return PromptEmbeds(result, torch.arange(rows, dtype=torch.int32, device=self.device))

    # --- decode ---
    def append_first(self, rows: DecodeRows, plan: SamplingPlan) -> None:
        self._run("append first", self._append_first, rows, plan=plan, times=1)

    def decode(self, rows: DecodeRows, plan: SamplingPlan, steps: int) -> None:
        if self._waiting_kv and not self._absorbs(rows):
            self._write_waiting_kv(self._waiting_kv.take())
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
        assert self._last_hidden is not None
        slots = rows.all.long()
        batch = self._batch(rows.all, self.state.slots.lengths[slots] - 1, adapted=rows.adapted)
        self.sampler.sample(self.decoder.logits(self._last_hidden[slots], batch), rows, plan)

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
        return not rows.adapted and self._absorbing_pays(rows.cross_rows)

    def _absorbing_pays(self, rows: int) -> bool:
        hidden = self.cache.hidden
        return hidden is not None and absorbing_pays(rows, hidden.shape[2], self.config)

    def _logits(self, step: StepRows, *, adapted: bool, absorbs: bool) -> Tensor:
        """Returns the logits [R, V] of a step's rows."""
        # a prompt may end in an embedding of its own
        last = None if self.config.cross_attention else PromptEmbeds(self.state.last_prompt_embed, step.slots)
        attention = self._attention(
            step.slots,
            step.positions,
            self_lengths=step.lengths,
            cross_lengths=step.cross_lengths,
            several=step.several,
            absorbs=absorbs,
        )
        axes, ids = self.state.axes_of(step.slots, step.positions), self._adapter_ids(step.slots, adapted=adapted)
        batch = ForwardBatch(step.positions if axes is None else axes, attention, last, ids)
        with norms_ahead(self.device, rounds=self._rounds, one_reader=not adapted):
            return self.decoder.logits(self._hidden(step.token_ids, batch), batch)

    def _hidden(self, token_ids: Tensor, batch: ForwardBatch) -> Tensor:
        """Returns the hidden rows [R, hidden] of a decode step's tokens [R]."""
        parts = micro_batches(len(token_ids), self.num_stages)
        if len(parts) == 1:
            return self.decoder(token_ids, batch)
        return torch.cat([self.decoder(token_ids[begin:end], batch.sequences(begin, end)) for begin, end in parts])

    def _batch(
        self,
        slots: Tensor,
        positions: Tensor,
        *,
        adapted: bool,
        axes: Tensor | None = None,
        tiles: Tensor | None = None,
        prompt_embeds: PromptEmbeds | None = None,
    ) -> ForwardBatch:
        """Returns the rows at these positions of these slots' sequences, [R] int32 each; `adapted`: some of them have
        adapters; `axes` [axes, R]: positions where they have several axes."""
        crosses = self.state.cross_lengths[slots.long()] if self.config.cross_attention else None
        attention = self._attention(slots, positions, self_lengths=positions + 1, cross_lengths=crosses, tiles=tiles)
        ids = self._adapter_ids(slots, adapted=adapted)
        return ForwardBatch(positions if axes is None else axes, attention, prompt_embeds, ids)

    def _attention(self, slots: Tensor, positions: Tensor, **rows: Any) -> PagedMetadata:
        """Returns where rows see what they see; `rows`: the other fields."""
        state = self.state
        tables = {"self_tables": state.self_tables, "cross_tables": state.cross_tables}
        return PagedMetadata(cache=self.cache, slots=slots, places=positions, **tables, **rows)

    def _adapter_ids(self, slots: Tensor, *, adapted: bool) -> Tensor | None:
        return self.state.adapter_ids[slots.long()] if adapted else None


def parameters_of(network: TextNetwork) -> int:
    """Counts the numbers of a network's parameters."""
    return sum(x.numel() for x in network.parameters())


def _launch_bound(network: TextNetwork | None, least: int, maximum: Callable[[int], int]) -> LaunchBound:
    """Returns which passes of a network, of the largest of all ranks, are graphs."""
    size, rounds = (0, False) if network is None else (parameters_of(network), rounds_rows(network.modules()))
    return LaunchBound(maximum(size), least, in_8_bits=bool(maximum(rounds)))


def _replay(
    graphs: GraphPool, what: tuple, run: Pass, *, inputs: HostInputs, prompt_embeds: PromptEmbeds | None
) -> None:
    """Runs a pass as the graph of its shapes, which takes tensors one after the other."""

    def run_on(whole: Tensor, *embeds: Tensor) -> None:
        run(inputs.parts_of(whole), PromptEmbeds(*embeds) if embeds else None)

    embeds = prompt_embeds or ()
    graphs.replay((*what, *inputs.lengths, *map(len, embeds)), run_on, inputs.whole, *embeds)
