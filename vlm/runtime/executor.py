"""Runs batches of one engine with torch: encoder passes, prefills and decode bursts.

On CUDA a decode step is one CUDA graph per batch bucket and way of choosing tokens, replayed `steps` times without
looking at the result; the CPU runs the same step eagerly.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vlm.config import ModelConfig
from vlm.errors import OutOfMemoryError
from vlm.layers.attention import PackedRows, PagedRows
from vlm.ops import controls, sample
from vlm.ops.advance import advance
from vlm.ops.packed_attention import tiles_of
from vlm.runtime.batch_state import BatchState
from vlm.runtime.request import Sequence
from vlm.runtime.timing import DeviceTimer

LAUNCH_BOUND_ROWS = 4096  # encoder rows up to which a pass is a CUDA graph


@dataclass
class Burst:
    """A launched burst; `result` is on the host once `ready` has passed."""

    sequences: list[Sequence]
    result: Tensor  # [R, 2 + 2 * steps] int32: length, finish code, new tokens, log-probabilities (bits)
    ready: torch.cuda.Event | None

    def collect(self) -> list[tuple[int, int, list[int], list[float]]]:
        """Waits; per row: length, finish code, tokens and log-probabilities (stale beyond the length)."""
        if self.ready is not None:
            self.ready.synchronize()
        rows = self.result[: len(self.sequences)]
        steps = (rows.shape[1] - 2) // 2
        logprobs = rows[:, 2 + steps :].contiguous().view(torch.float32).tolist()
        return [(r[0], r[1], r[2 : 2 + steps], p) for r, p in zip(rows.tolist(), logprobs, strict=True)]


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
        cuda_graphs: bool,
    ):
        self.config, self.decoder, self.visual, self.encoder = config, decoder, visual, encoder
        self.cache, self.state, self.device = cache, state, state.device
        self.dtype = cache.dtype
        self.max_encoder_batch_size, self.max_encoder_tokens = max_encoder_batch_size, max_encoder_tokens
        self.asynchronous = self.device.type == "cuda"
        self.graphs = GraphPool(self.device) if cuda_graphs and self.asynchronous else None
        self.rows = torch.full((state.spare + 1,), state.spare, dtype=torch.int32, device=self.device)
        self.timer = DeviceTimer(self.device)

    @torch.inference_mode()
    def admit(self, sequences: list[Sequence], stop_ids: list[list[int]]) -> None:
        """Encodes what newly admitted sequences see, fills their slots, and prefills all but their last token."""
        self.state.admit(sequences, stop_ids)
        self.state.update_tables(sequences)
        texts = [s for s in sequences if s.request.encoder_input_ids is not None]
        others = [s for s in sequences if s.request.encoder_input_ids is None]
        with self.timer("encode"), self._memory_errors(sequences):
            for chunk in _chunks(others, self.max_encoder_batch_size):
                self._write_cross_kv(chunk, self._features(chunk))
            for chunk in _within(texts, self.max_encoder_tokens):
                self._encode_texts(chunk)
        if any(len(s.tokens) > 1 for s in sequences):
            with self.timer("prefill"):
                self._prefill(sequences)

    @torch.inference_mode()
    def launch(self, sequences: list[Sequence], steps: int) -> Burst:
        """Starts `steps` decode steps of these sequences; returns before they are done."""
        self.state.update_tables(sequences)
        bucket = bucket_of(len(sequences), self.state.spare)
        slots = [s.slot for s in sequences] + [self.state.spare] * (bucket - len(sequences))
        self.rows[:bucket].copy_(torch.tensor(slots, dtype=torch.int32), non_blocking=True)
        rows = self.rows[:bucket]
        start = self.state.slots.lengths[rows.long()].long()
        with self.timer("decode"):
            self._decode(rows, choice_of(sequences), steps)
        return self._fetch(sequences, rows, start, steps)

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
        slots, positions = _packed([(s.slot, s.num_features) for s in sequences], self.device)
        self.decoder.write_cross_kv(features, self._paged(slots, positions))

    def _encode_texts(self, sequences: list[Sequence]) -> None:
        """Encodes token sequences without padding and writes their cross K/V."""
        packed = PackedTexts.of([s.request.encoder_input_ids for s in sequences], [s.slot for s in sequences])
        if self.graphs is None or packed.rows > LAUNCH_BOUND_ROWS:
            self._encode_packed(*packed.tensors(self.device))
            return
        inputs = packed.padded(self.state.spare).tensors(self.device)
        key = ("encode texts", *(len(x) for x in inputs))
        if key not in self.graphs:
            self.graphs.capture(key, self._encode_packed, *inputs)
        self.graphs.run(key, *inputs)

    def _encode_packed(self, token_ids: Tensor, positions: Tensor, slots: Tensor, tiles: Tensor) -> None:
        features = self.encoder(token_ids, PackedRows(positions, tiles))
        self.decoder.write_cross_kv(features, self._paged(slots, positions))

    def _prefill(self, sequences: list[Sequence]) -> None:
        """Puts every token but the last into the cache; the first decode step takes the last one."""
        slots, positions = _packed([(s.slot, len(s.tokens) - 1) for s in sequences], self.device)
        tokens = self.state.slots.tokens[slots.long(), positions.long()]
        self.decoder(tokens, self._paged(slots, positions))

    # --- decode ---
    def _decode(self, rows: Tensor, choice: str, steps: int) -> None:
        if self.graphs is None:
            for _ in range(steps):
                self._step(rows, choice)
            return
        key = ("decode", len(rows), choice)
        if key not in self.graphs:
            self._capture_step(key, rows, choice)
        for _ in range(steps):
            self.graphs.run(key)

    def _capture_step(self, key: tuple, rows: Tensor, choice: str) -> None:
        """Captures over spare rows: what is run before a capture must not advance a sequence."""
        wanted = rows.clone()
        rows.fill_(self.state.spare)
        self.graphs.capture(key, lambda: self._step(rows, choice))
        rows.copy_(wanted)

    def _step(self, rows: Tensor, choice: str) -> None:
        """One token for every row: embedding -> layers -> logits -> sampling -> append -> stop checks."""
        state = self.state
        slots = rows.long()
        positions = state.slots.lengths[slots] - 1
        token_ids = state.slots.tokens[slots, positions.long()]
        logits = self.decoder.logits(self.decoder(token_ids, self._paged(rows, positions)))
        if choice == "greedy":
            token, logprob = sample.greedy(logits)
        else:
            allowed = logits if choice == "sample" else controls.apply(logits, state.slots, state.controls, rows)
            params = (t[slots] for t in (state.temperature, state.top_k, state.top_p, state.min_p, state.seeds))
            token = sample.sample(allowed, *params, positions + 1)
            logprob = sample.log_probability(logits, token)
        advance(state.slots, rows, token, logprob)

    def _paged(self, slots: Tensor, positions: Tensor) -> PagedRows:
        state = self.state
        cross_lengths = state.cross_lengths[slots.long()]
        return PagedRows(
            self.cache, state.self_tables, state.cross_tables, slots, positions, positions + 1, cross_lengths
        )

    def _fetch(self, sequences: list[Sequence], rows: Tensor, start: Tensor, steps: int) -> Burst:
        """Starts the copy of a burst's results to the host."""
        state, slots = self.state.slots, rows.long()
        at = (start[:, None] + torch.arange(steps, device=self.device)).clamp(max=state.tokens.shape[1] - 1)
        head = torch.stack((state.lengths[slots], state.finish[slots]), 1)
        tokens, logprobs = state.tokens[slots[:, None], at], state.logprobs[slots[:, None], at]
        result = torch.cat((head, tokens, logprobs.view(torch.int32)), 1)
        if not self.asynchronous:
            return Burst(sequences, result, None)
        host = torch.empty(result.shape, dtype=result.dtype, pin_memory=True)
        host.copy_(result, non_blocking=True)
        ready = torch.cuda.Event()
        ready.record()
        return Burst(sequences, host, ready)


@dataclass(frozen=True)
class PackedTexts:
    """Token sequences one after the other, on the host."""

    token_ids: list[int]
    positions: list[int]
    slots: list[int]
    tiles: list[tuple[int, int, int]]  # of the rows that CUDA takes; the CPU takes whole sequences
    lengths: list[int]

    @classmethod
    def of(cls, texts: list[tuple[int, ...]], slots: list[int]) -> PackedTexts:
        lengths = [len(text) for text in texts]
        return cls(
            [token for text in texts for token in text],
            [position for n in lengths for position in range(n)],
            [slot for slot, n in zip(slots, lengths, strict=True) for _ in range(n)],
            tiles_of(lengths),
            lengths,
        )

    @property
    def rows(self) -> int:
        return len(self.token_ids)

    def padded(self, spare: int) -> PackedTexts:
        """With rows of the spare slot and empty tiles up to the next powers of two, for a graph."""
        extra = max(16, 1 << (self.rows - 1).bit_length()) - self.rows
        tiles = (1 << (len(self.tiles) - 1).bit_length()) - len(self.tiles)
        zeros, spares, empty = [0] * extra, [spare] * extra, [(0, 0, 0)] * tiles
        return PackedTexts(
            self.token_ids + zeros, self.positions + zeros, self.slots + spares, self.tiles + empty, self.lengths
        )

    def tensors(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """token ids, positions, slots [R] and tiles [T, 3], int32"""
        tiles = self.tiles if device.type == "cuda" else tiles_of(self.lengths, rows=None)
        parts = (self.token_ids, self.positions, self.slots, tiles)
        return tuple(torch.tensor(p, dtype=torch.int32).to(device, non_blocking=True) for p in parts)


class GraphPool:
    """CUDA graphs by key, captured at first use, sharing one memory pool."""

    def __init__(self, device: torch.device):
        self.device = device
        self.pool = torch.cuda.graph_pool_handle()
        self._graphs: dict[tuple, tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...], Tensor | None]] = {}

    def __contains__(self, key: tuple) -> bool:
        return key in self._graphs

    def run(self, key: tuple, *inputs: Tensor) -> Tensor | None:
        """Replays a graph on new inputs. The result is overwritten by the key's next run."""
        graph, static, output = self._graphs[key]
        for target, source in zip(static, inputs, strict=True):
            target.copy_(source, non_blocking=True)
        graph.replay()
        return output

    def capture(self, key: tuple, function: Callable[..., Tensor | None], *inputs: Tensor) -> None:
        """Captures function(*inputs); runs it once before, which compiles kernels and fills lazily made buffers."""
        static = tuple(x.clone() for x in inputs)
        side = torch.cuda.Stream(self.device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            function(*static)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            output = function(*static)
        self._graphs[key] = graph, static, output


def choice_of(sequences: list[Sequence]) -> str:
    """How a batch's tokens are chosen, the plainest way that serves all of its sequences."""
    params = [s.request.params for s in sequences]
    if any(p.controlled for p in params):
        return "control"
    return "sample" if any(p.temperature > 0 for p in params) else "greedy"


def bucket_of(rows: int, limit: int) -> int:
    """The batch size a graph is captured for: powers of two up to 16, then multiples of 16."""
    if rows <= 16:
        return min(1 << (rows - 1).bit_length(), max(limit, 1))
    return min(-(-rows // 16) * 16, limit)


def _chunks(items: list, size: int) -> list[list]:
    return [items[i : i + size] for i in range(0, len(items), size)]


def _within(sequences: list[Sequence], most: int) -> Iterator[list[Sequence]]:
    """Groups of at most `most` encoder tokens, a longer sequence alone."""
    group, held = [], 0
    for sequence in sequences:
        if group and held + sequence.num_features > most:
            yield group
            group, held = [], 0
        group.append(sequence)
        held += sequence.num_features
    if group:
        yield group


def _packed(counts: list[tuple[int, int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """(slot, n) pairs -> the slot and the position of each of their rows, [sum of n] int32 each"""
    slots = torch.cat([torch.full((n,), slot, dtype=torch.int32) for slot, n in counts])
    positions = torch.cat([torch.arange(n, dtype=torch.int32) for _, n in counts])
    return slots.to(device, non_blocking=True), positions.to(device, non_blocking=True)
