"""Writes encoders' outputs into a paged cache: cross K/V, and the rows themselves where steps attend to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from operator import attrgetter

import torch.nn.functional as F
from torch import Tensor

from vlm.executor.graph_pool import GraphPool
from vlm.executor.inputs.packing import PackedInputs, PackedTexts, batched_by_size, graph_rows, packed
from vlm.executor.inputs.prompt_embeds import gather_prompt_embeds
from vlm.executor.inputs.upload import upload
from vlm.executor.networks import DecoderNetwork, TextNetwork, required, rounding_ahead
from vlm.executor.paged.batches import PagedBatches
from vlm.executor.paged.passes import PackedPasses
from vlm.executor.paged.waiting_kv import WaitingKV
from vlm.executor.runner import Embeds
from vlm.layers.forward_batch import ForwardBatch, PromptEmbeds
from vlm.layers.metadata.packed import PackedMetadata
from vlm.requests.sequence import Sequence, any_adapted

LAUNCH_BOUND_ROWS = 4096  # encoder rows up to which a pass is a CUDA graph
CROSS_ROWS = 16384  # of encoders, whose keys and values are computed at once where they have waited


class CrossKV:
    """Writes what a decoder attends to of encoders, over the cache of its batches."""

    def __init__(
        self,
        decoder: DecoderNetwork,
        encoder: TextNetwork | None,
        batches: PagedBatches,
        *,
        graphs: GraphPool | None,
        maximum: Callable[[int], int],
    ):
        """`encoder`: of texts; `graphs`, `maximum`: as PackedPasses has them."""
        self.decoder, self.encoder, self.batches, self.graphs = decoder, encoder, batches, graphs
        self.device, self._padding_slot = batches.device, batches.padding_slot
        self.passes = PackedPasses(encoder, batches, least=LAUNCH_BOUND_ROWS, graphs=graphs, maximum=maximum)
        self.waiting = WaitingKV(self._padding_slot, batches.absorbing_pays)
        self._text_pass = None if encoder is None else rounding_ahead(encoder, self.device)

    def write(self, sequences: list[Sequence], features: Tensor) -> None:
        """Writes the encoder output of these sequences, features [R, hidden] one after the other."""
        graphs = self.graphs if len(features) <= LAUNCH_BOUND_ROWS else None
        rows = len(features) if graphs is None else graph_rows(len(features))
        slots, positions = packed([(s.slot, s.num_features) for s in sequences])
        extra = rows - len(slots)
        slots, positions = F.pad(slots, (0, extra), value=self._padding_slot), F.pad(positions, (0, extra))
        places = upload([slots.numpy(), positions.numpy()], self.device)
        adapted = any_adapted(sequences)
        wait = self.waiting.defers(sequences, rows, adapted=adapted)
        write = partial(self._write_features, adapted=adapted, wait=wait)
        if graphs is None:
            write(features, *places)
        else:
            inputs = F.pad(features, (0, 0, 0, rows - len(features))), *places
            graphs.replay(("write cross", adapted, rows), write, *inputs)

    def encode_texts(self, sequences: list[Sequence], embeds: Embeds) -> None:
        """Encodes token sequences without padding and writes what comes of them."""
        sources = [s.request.source_ids if s.source is None else s.source for s in sequences]
        texts = PackedTexts.from_texts(sources, [s.slot for s in sequences])
        parts = [(embeds.get(s.id), s.request.source_ids) for s in sequences] if embeds else ()
        prompt_embeds = gather_prompt_embeds(parts, required(self.encoder).config.vocab_size, self.device)
        adapted = any_adapted(sequences)
        wait = self.waiting.defers(sequences, texts.num_rows, adapted=adapted)
        encode = partial(self._encode_packed, adapted=adapted, wait=wait)
        self.passes.run(("encode texts", adapted, wait), encode, texts, prompt_embeds)

    def write_waiting(self, sequences: Iterable[Sequence] | None = None) -> None:
        """Writes the keys and values of these sequences, by default of all, that have waited for who reads them."""
        if self.waiting:
            self._write_kv(self.waiting.take(sequences))

    def _write_kv(self, sequences: list[Sequence]) -> None:
        """Writes keys and values of encoders' outputs that are in the cache themselves."""
        for part in batched_by_size(sequences, CROSS_ROWS, attrgetter("num_features")):
            places = [x.numpy() for x in packed([(s.slot, s.num_features) for s in part])]
            batch = self.batches.batch(*upload(places, self.device), adapted=False)
            self.decoder.write_cross_kv(batch.attention.read_hidden(), batch)

    def _encode_packed(
        self, inputs: PackedInputs, prompt_embeds: PromptEmbeds | None, *, adapted: bool, wait: bool
    ) -> None:
        ids = self.batches.adapter_ids(inputs.slots, adapted=adapted)
        batch = ForwardBatch(inputs.positions, PackedMetadata(inputs.tiles), prompt_embeds, ids)
        features = required(self._text_pass)(inputs.token_ids, batch)
        self._write_features(features, inputs.slots, inputs.positions, adapted=adapted, wait=wait)

    def _write_features(self, features: Tensor, slots: Tensor, positions: Tensor, *, adapted: bool, wait: bool) -> None:
        """Writes an encoder's output into the cache, where steps attend to it itself, and its keys and values, if they
        do not `wait`."""
        batch = self.batches.batch(slots, positions, adapted=adapted)
        if not wait:
            self.decoder.write_cross_kv(features, batch)
        batch.attention.write_hidden(features)
