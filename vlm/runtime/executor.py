"""Runs batches of one engine with torch: encoder passes, prefills and decode bursts.

On CUDA a decode step is one CUDA graph per batch bucket and way of choosing tokens, replayed `steps` times without
looking at the result; the CPU runs the same step eagerly.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vlm.config import ModelConfig
from vlm.errors import OutOfMemoryError
from vlm.layers.attention import PackedRows, PagedRows, Trace
from vlm.layers.embedding import Virtual
from vlm.limits import MAX_TOP_LOGPROBS
from vlm.ops import beam_search, controls, sample
from vlm.ops.advance import advance
from vlm.ops.likeliest import likeliest
from vlm.runtime.batch_state import BatchState
from vlm.runtime.burst import Burst, hypotheses_of, to_host
from vlm.runtime.choice import BeamRows, Choice
from vlm.runtime.graph_pool import GraphPool
from vlm.runtime.packing import PackedSpans, PackedTexts, bucket_of, chunks, packed, within
from vlm.runtime.prompt_table import EncoderCache, Image
from vlm.runtime.request import Hypothesis, Request, Sequence, Span
from vlm.runtime.timing import DeviceTimer

LAUNCH_BOUND_ROWS = 4096  # encoder rows up to which a pass is a CUDA graph
LAUNCH_BOUND_PREFILL = 1024  # prompt rows, likewise


@dataclass(frozen=True)
class DecodeRows:
    """The slots of a decode step's rows."""

    all: Tensor  # [R] int32
    single: Tensor  # [R] int32: the same, the spare slot in place of beams
    beams: beam_search.Groups | None


class TorchExecutor:
    """The networks of one engine and the device state of its slots."""

    def __init__(
        self,
        config: ModelConfig,
        decoder: nn.Module,
        visual: nn.Module | None,
        encoder: nn.Module | None,
        cache: Tensor,
        state: BatchState,
        *,
        max_encoder_batch_size: int,
        max_encoder_tokens: int,
        encoder_cache_size: int,
        cuda_graphs: bool,
    ):
        self.config, self.decoder, self.visual, self.encoder = config, decoder, visual, encoder
        self.cache, self.state, self.device = cache, state, state.device
        self.dtype = cache.dtype
        self.max_encoder_batch_size, self.max_encoder_tokens = max_encoder_batch_size, max_encoder_tokens
        self.asynchronous = self.device.type == "cuda"
        self.graphs = GraphPool(self.device) if cuda_graphs and self.asynchronous else None
        self.rows = torch.full((2, state.spare + 1), state.spare, dtype=torch.int32, device=self.device)
        self.beam_rows = BeamRows(state.spare, self.device)
        self.encoder_cache = EncoderCache(encoder_cache_size)
        self.timer = DeviceTimer(self.device)

    @torch.inference_mode()
    def admit(self, sequences: list[Sequence], stop_ids: list[list[int]]) -> None:
        """Encodes what newly admitted sequences see and fills their slots."""
        self.state.admit(sequences, stop_ids)
        self.state.update_tables(sequences)
        with self.timer("encode"), self._memory_errors(sequences):
            self._make_tables([s for s in sequences if s.contents])
            texts = [s for s in sequences if s.request.encoder_input_ids is not None]
            for chunk in within(texts, self.max_encoder_tokens, lambda s: s.num_features):
                self._encode_texts(chunk)
            others = [s for s in sequences if s.num_features and s.request.encoder_input_ids is None]
            for chunk in chunks(others, self.max_encoder_batch_size):
                self._write_cross_kv(chunk, self._features(chunk))

    @torch.inference_mode()
    def prefill(self, prefills: list[tuple[Sequence, Span]]) -> None:
        """Puts spans of prompts into the cache: all tokens but the last, which the first decode step takes."""
        packed_spans = PackedSpans.of(prefills)
        parts = [(s.table, s.tokens[span.start : span.end]) for s, span in prefills]
        virtual = self._virtual(parts, self.config)
        with self.timer("prefill"):
            if self.graphs is None or packed_spans.rows > LAUNCH_BOUND_PREFILL:
                self._prefill(*packed_spans.tensors(self.device), *virtual)
            else:
                inputs = packed_spans.tensors(self.device, self.state.spare)
                self._replay("prefill", self._prefill, *inputs, *self._padded(virtual, len(inputs[0])))
        for sequence in {s for s, _ in prefills if not s.work}:
            sequence.table = None

    @torch.inference_mode()
    def launch(self, sequences: list[Sequence], steps: int) -> Burst:
        """Starts `steps` decode steps of these sequences; returns before they are done."""
        sequences = sorted(sequences, key=lambda s: s.width > 1)
        self.state.update_tables(sequences)
        choice = Choice.of(sequences)
        if choice.top and self.state.top is None:
            self.state.allocate_top()
        rows, single = self._rows(sequences)
        beams = self.beam_rows.fill(sequences, choice) if choice.groups else None
        leaders = torch.tensor([s.slot for s in sequences]).to(self.device, non_blocking=True)
        start = self.state.slots.lengths[leaders].long()
        with self.timer("decode"):
            self._decode(DecodeRows(rows, single, beams), choice, steps)
        return self._fetch(sequences, leaders, start, steps, choice.top)

    @torch.inference_mode()
    def hypotheses(self, sequences: list[Sequence]) -> list[list[Hypothesis]]:
        """The outcomes of ended beam searches, best first."""
        beams, slots = self.state.beams, torch.tensor([slot for s in sequences for slot in s.slots], device=self.device)
        kept = (beams.hypotheses, beams.hypothesis_logprobs, beams.hypothesis_lengths, beams.hypothesis_scores)
        rows = iter(zip(*(x[slots].tolist() for x in kept), strict=True))
        return [hypotheses_of(list(itertools.islice(rows, s.width)), s.prompt_length) for s in sequences]

    def encode(self, pixel_values: Tensor) -> Tensor:
        """[n, C, H, W] -> features [n, rows, hidden] in the engine's type."""
        assert self.visual is not None
        pixels = pixel_values.to(self.device, self.dtype, non_blocking=True)
        if self.graphs is None:
            return self.visual(pixels)
        key = ("encode", *pixels.shape)
        if key not in self.graphs:
            self.graphs.capture(key, self.visual, pixels)
        return self.graphs.run(key, pixels)

    @torch.inference_mode()
    def encode_images(self, images: Items[Image]) -> list[Tensor]:
        """Of each its features [num_features, hidden], from the cache where they are there."""
        features = self.encoder_cache.features(images, self._encode_images)
        return [features[image.key] for image in images]

    @torch.inference_mode()
    def encode_texts(self, requests: list[Request], trace: Trace | None) -> list[Tensor]:
        """Each request's hidden rows [T, hidden] of the encoder; the trace takes what else is asked for."""
        texts = [request.encoder_input_ids for request in requests]
        packed_texts = PackedTexts.of(texts, [0] * len(texts))
        token_ids, positions, _, tiles = packed_texts.tensors(self.device)
        virtual = self._virtual(list(zip(self._tables(requests), texts, strict=True)), self.encoder.config)
        rows = PackedRows(positions, tiles, trace, Virtual(*virtual) if virtual else None)
        return list(self.encoder(token_ids, rows).split(packed_texts.lengths))

    # --- admission ---
    @contextlib.contextmanager
    def _memory_errors(self, sequences: list[Sequence]) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError as error:
            raise OutOfMemoryError(
                f"{self.device} ran out of memory while encoding {len(sequences)} inputs; lower max_encoder_batch_size"
                f" (images at once, now {self.max_encoder_batch_size}), max_encoder_tokens (now"
                f" {self.max_encoder_tokens}) or kv_cache_free_gpu_memory_fraction."
            ) from error

    def _features(self, sequences: list[Sequence]) -> Tensor:
        """Of images, or given -> [sum of num_features, hidden]"""
        images = [s.request.pixel_values for s in sequences if s.request.pixel_values is not None]
        encoded = iter(self.encode(torch.stack(images))) if images else iter(())
        given = lambda x: x.to(self.device, self.dtype, non_blocking=True)  # noqa: E731
        parts = [
            next(encoded) if s.request.encoder_output is None else given(s.request.encoder_output) for s in sequences
        ]
        return torch.cat(parts)

    def _write_cross_kv(self, sequences: list[Sequence], features: Tensor) -> None:
        slots, positions = packed([(s.slot, s.num_features) for s in sequences], self.device)
        self.decoder.write_cross_kv(features, self._paged(slots, positions))

    def _encode_texts(self, sequences: list[Sequence]) -> None:
        """Encodes token sequences without padding and writes their cross K/V."""
        texts = PackedTexts.of([s.request.encoder_input_ids for s in sequences], [s.slot for s in sequences])
        virtual = self._virtual([(s.table, s.request.encoder_input_ids) for s in sequences], self.encoder.config)
        for sequence in sequences:
            sequence.table = None
        if self.graphs is None or texts.rows > LAUNCH_BOUND_ROWS:
            self._encode_packed(*texts.tensors(self.device), *virtual)
        else:
            inputs = texts.padded(self.state.spare).tensors(self.device)
            self._replay("encode texts", self._encode_packed, *inputs, *self._padded(virtual, len(inputs[0])))

    def _encode_packed(
        self, token_ids: Tensor, positions: Tensor, slots: Tensor, tiles: Tensor, *virtual: Tensor
    ) -> None:
        rows = PackedRows(positions, tiles, virtual=Virtual(*virtual) if virtual else None)
        self.decoder.write_cross_kv(self.encoder(token_ids, rows), self._paged(slots, positions))

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
    def _make_tables(self, sequences: list[Sequence]) -> None:
        """Puts the rows that ids beyond the vocabulary address on the device, while a prompt is computed."""
        for sequence, table in zip(sequences, self._tables([s.request for s in sequences]), strict=True):
            sequence.table = table
            last = sequence.tokens[-1] - self.config.vocab_size
            if self.encoder is None and last >= 0:
                for slot in sequence.slots:
                    self.state.pending[slot] = sequence.table[last]

    def _tables(self, requests: list[Request]) -> list[Tensor | None]:
        """Each request's prompt table [n, hidden]: the given rows, then its images' features."""
        features = iter(self.encode_images([image for request in requests for image in request.images]))
        given = [r.prompt_table.rows.to(self.device, self.dtype) if r.prompt_table else None for r in requests]
        parts = [[*([g] if g is not None else []), *itertools.islice(features, len(r.images))]
                 for r, g in zip(requests, given, strict=True)]  # fmt: skip
        return [torch.cat(rows) if rows else None for rows in parts]

    def _encode_images(self, pixels: list[Tensor]) -> list[Tensor]:
        """[C, H, W] each -> [num_features, hidden] each"""
        batches = chunks(pixels, self.max_encoder_batch_size)
        # a graph's output is overwritten by its next run
        return [x for batch in batches for x in self.encode(torch.stack(batch)).clone()]

    def _virtual(self, parts: list[tuple[Tensor | None, Items[int]]], config: ModelConfig) -> tuple[Tensor, ...]:
        """What stands for the ids beyond the vocabulary in rows of these (table, tokens), as Virtual has it: () for
        none."""
        if all(table is None for table, _ in parts):
            return ()
        tables, at, begin = [], [], 0
        for table, tokens in parts:
            at += [begin + token - config.vocab_size if token >= config.vocab_size else 0 for token in tokens]
            if table is not None:
                tables.append(table)
                begin += len(table)
        return torch.cat(tables), torch.tensor(at, dtype=torch.int32).to(self.device, non_blocking=True)

    def _padded(self, virtual: tuple[Tensor, ...], rows: int) -> tuple[Tensor, ...]:
        """The same with a row of the table a row of the batch: the shapes of a graph."""
        if not virtual:
            return ()
        table, at = virtual
        picked = torch.zeros(rows, table.shape[1], dtype=table.dtype, device=self.device)
        picked[: len(at)] = table[at]
        return picked, torch.arange(rows, dtype=torch.int32, device=self.device)

    # --- decode ---
    def _rows(self, sequences: list[Sequence]) -> tuple[Tensor, Tensor]:
        """The slots of a batch, padded to its bucket with the spare one; and again without those of beams."""
        spare = self.state.spare
        slots = [slot for s in sequences for slot in s.slots]
        extra = [spare] * (bucket_of(len(slots), spare) - len(slots))
        single = [slot if s.width == 1 else spare for s in sequences for slot in s.slots]
        rows = self.rows[:, : len(slots) + len(extra)]
        rows.copy_(torch.tensor([slots + extra, single + extra], dtype=torch.int32), non_blocking=True)
        return rows[0], rows[1]

    def _decode(self, rows: DecodeRows, choice: Choice, steps: int) -> None:
        if self.graphs is None:
            for _ in range(steps):
                self._step(rows, choice)
            return
        key = ("decode", len(rows.all), choice)
        if key not in self.graphs:
            self._capture_step(key, rows, choice)
        for _ in range(steps):
            self.graphs.run(key)

    def _capture_step(self, key: tuple, rows: DecodeRows, choice: Choice) -> None:
        """Captures over spare rows: what is run before a capture must not advance a sequence."""
        slots = [rows.all, rows.single] + ([rows.beams.slots] if rows.beams else [])
        wanted = [x.clone() for x in slots]
        for x in slots:
            x.fill_(self.state.spare)
        self.graphs.capture(key, lambda: self._step(rows, choice))
        for x, values in zip(slots, wanted, strict=True):
            x.copy_(values)

    def _step(self, rows: DecodeRows, choice: Choice) -> None:
        """One token for every row: embedding -> layers -> logits -> choice -> append -> stop checks."""
        slots = rows.all.long()
        positions = self.state.slots.lengths[slots] - 1
        token_ids = self.state.slots.tokens[slots, positions.long()]
        # a prompt may end in a row of its table
        virtual = None if self.config.cross_attention else Virtual(self.state.pending, rows.all)
        logits = self.decoder.logits(self.decoder(token_ids, self._paged(rows.all, positions, virtual=virtual)))
        if choice.single:
            self._choose(logits, rows, choice.single, choice.top)
        if choice.groups:
            self._search(logits, rows, choice)

    def _choose(self, logits: Tensor, rows: DecodeRows, how: str, top: bool) -> None:
        """The next token of every row that is no beam."""
        state, slots = self.state, rows.all.long()
        if how == "greedy":
            token, logprob = sample.greedy(logits)
        else:
            allowed = logits if how == "sample" else controls.apply(logits, state.slots, state.controls, rows.all)
            token = sample.sample(allowed, state.sampling.of(slots), state.slots.lengths[slots])
            logprob = sample.log_probability(logits, token)
        if top:
            self._keep_top(logits, slots)
        advance(state.slots, rows.single, token, logprob)
        if how != "greedy":
            state.sampling.after(slots, state.slots)

    def _keep_top(self, logits: Tensor, slots: Tensor) -> None:
        values, ids, normalizer = likeliest(logits, min(MAX_TOP_LOGPROBS, logits.shape[1]))
        found = torch.stack((ids.int(), (values - normalizer[:, None]).view(torch.int32)), 1)
        at = self.state.slots.lengths[slots].long().clamp(max=self.state.top.shape[1] - 1)
        self.state.top[slots, at, :, : found.shape[2]] = found

    def _search(self, logits: Tensor, rows: DecodeRows, choice: Choice) -> None:
        """The next tokens of every beam; the cache follows."""
        state = self.state
        if choice.controlled:
            # penalties act on log-probabilities here, as they do in Hugging Face's beam search
            logits = controls.apply(logits.float().log_softmax(-1), state.slots, state.controls, rows.all)
        parents = beam_search.step(logits, choice.controlled, state.slots, state.beams, rows.beams)
        beam_search.follow(self.cache, state.self_tables, state.slots, state.beams, rows.beams, parents)

    def _paged(
        self, slots: Tensor, positions: Tensor, tiles: Tensor | None = None, virtual: Virtual | None = None
    ) -> PagedRows:
        state = self.state
        cross_lengths = state.cross_lengths[slots.long()] if self.config.cross_attention else None
        tables = (state.self_tables, state.cross_tables)
        return PagedRows(self.cache, *tables, slots, positions, positions + 1, cross_lengths, tiles, virtual)

    def _fetch(self, sequences: list[Sequence], slots: Tensor, start: Tensor, steps: int, top: bool) -> Burst:
        """Starts the copy of a burst's results to the host."""
        state = self.state.slots
        at = (start[:, None] + torch.arange(steps, device=self.device)).clamp(max=state.tokens.shape[1] - 1)
        head = torch.stack((state.lengths[slots], state.finish[slots]), 1)
        tokens, logprobs = state.tokens[slots[:, None], at], state.logprobs[slots[:, None], at]
        result = torch.cat((head, tokens, logprobs.view(torch.int32)), 1)
        likeliest = self.state.top[slots[:, None], at] if top else None
        if not self.asynchronous:
            return Burst(sequences, result, likeliest, None)
        result, likeliest = to_host(result), None if likeliest is None else to_host(likeliest)
        ready = torch.cuda.Event()
        ready.record()
        return Burst(sequences, result, likeliest, ready)
