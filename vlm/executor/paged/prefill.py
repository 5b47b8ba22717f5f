"""Runs prefills: chunks of prompts go into a paged cache, and what first tokens follow from is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from torch import Tensor

from vlm.executor.graph_pool import GraphPool
from vlm.executor.inputs.micro_batches import split_prefills
from vlm.executor.inputs.packing import PackedChunks, PackedInputs
from vlm.executor.inputs.prompt_embeds import gather_prompt_embeds
from vlm.executor.networks import DecoderNetwork, rounding_ahead
from vlm.executor.paged.batches import PagedBatches
from vlm.executor.paged.passes import PackedPasses
from vlm.executor.runner import Embeds
from vlm.executor.sampling.sampler import Sampler
from vlm.layers.forward_batch import ForwardBatch, PromptEmbeds
from vlm.requests.sequence import PrefillChunk, Sequence, any_adapted

LAUNCH_BOUND_PREFILL = 1024  # prompt rows up to which a pass is a CUDA graph
LOGITS_ROWS = 256  # of a prompt, whose logits are computed at once where they are wanted


class Prefill:
    """Runs a decoder's passes over prompts, and keeps the hidden rows of their last tokens."""

    def __init__(
        self,
        decoder: DecoderNetwork,
        batches: PagedBatches,
        *,
        sampler: Sampler,
        graphs: GraphPool | None,
        num_stages: int,
        maximum: Callable[[int], int],
    ):
        """`sampler`: its recorders keep what is wanted of prompts' logits; `graphs`, `maximum`: as PackedPasses
        has them; `num_stages`: of the pipeline that shares the layers."""
        self.decoder, self.batches, self._num_stages = decoder, batches, num_stages
        self._logits, self._scores = sampler.logits, sampler.prompt_logprobs
        self.device, self._num_slots = batches.device, batches.padding_slot + 1
        self.passes = PackedPasses(decoder, batches, least=LAUNCH_BOUND_PREFILL, graphs=graphs, maximum=maximum)
        self._forward = rounding_ahead(decoder, self.device)
        self._last_hidden: Tensor | None = None  # [S, hidden], of each slot the last token that a prefill took

    @property
    def last_hidden(self) -> Tensor:
        """Returns the hidden rows [S, hidden] of the last token of each slot's prompt, of those that came so far."""
        assert self._last_hidden is not None
        return self._last_hidden

    def run(self, prefills: list[tuple[Sequence, PrefillChunk]], embeds: Embeds) -> None:
        """Writes chunks of prompts into the cache."""
        for part in split_prefills(prefills, self._num_stages):
            self._run_part(part, embeds)

    def _run_part(self, prefills: list[tuple[Sequence, PrefillChunk]], embeds: Embeds) -> None:
        chunks = PackedChunks.from_prefills(prefills, self.batches.padding_slot)
        own = (embeds.get(s.id) for s, _ in prefills)
        parts = list(zip(own, chunks.token_ids(), strict=True)) if embeds else ()
        prompt_embeds = gather_prompt_embeds(parts, self.decoder.config.vocab_size, self.device)
        if any(s.request.params.scores_prompt for s, _ in prefills):
            self._run_with_logits(prefills, chunks, prompt_embeds)
            return
        adapted = any_adapted([s for s, _ in prefills])
        self.passes.run(("prefill", adapted), partial(self._pass, adapted=adapted), chunks, prompt_embeds)

    def _run_with_logits(
        self, prefills: list[tuple[Sequence, PrefillChunk]], chunks: PackedChunks, prompt_embeds: PromptEmbeds | None
    ) -> None:
        """Prefills, and keeps what is wanted of prompts' logits."""
        inputs, adapted = chunks.to_device(self.device), any_adapted([s for s, _ in prefills])
        batch = self._batch(inputs, prompt_embeds, adapted=adapted)
        hidden, first = self._forward(inputs.token_ids, batch), 0
        self._keep_last(hidden[inputs.ends[:, 0].long()], inputs.ends)
        for sequence, chunk in prefills:
            # a sequence that is recomputed has tokens of its own there, too
            count = max(0, sequence.prompt_length - 1 - chunk.start)
            if sequence.request.params.scores_prompt and count:
                end = first + min(count, chunk.end - chunk.start)
                spans = [(at, min(at + LOGITS_ROWS, end)) for at in range(first, end, LOGITS_ROWS)]
                self._keep(
                    sequence, chunk.start, (self.decoder.logits(hidden[a:b], batch.rows(a, b)) for a, b in spans)
                )
            first += chunk.end - chunk.start

    def _keep(self, sequence: Sequence, start: int, parts: Iterable[Tensor]) -> None:
        """Keeps what a sequence wants of the logits [n, vocab] of its prompt's rows from `start` on."""
        params = sequence.request.params
        for logits in parts:
            if params.return_context_logits:
                self._logits.keep_context(sequence.id, start, logits)
            if params.prompt_logprobs is not None:
                self._scores.keep(sequence, start, logits)
            start += len(logits)

    def _pass(self, inputs: PackedInputs, prompt_embeds: PromptEmbeds | None, *, adapted: bool) -> None:
        batch = self._batch(inputs, prompt_embeds, adapted=adapted)
        batch = replace(batch, rows_to_keep=inputs.ends[:, 0].long())
        self._keep_last(self._forward(inputs.token_ids, batch), inputs.ends)

    def _batch(self, inputs: PackedInputs, prompt_embeds: PromptEmbeds | None, *, adapted: bool) -> ForwardBatch:
        slots, positions, tiles = inputs.slots, inputs.positions, inputs.tiles
        axes = inputs.axes if len(inputs.axes) else None
        options = {"axes": axes, "tiles": tiles, "prompt_embeds": prompt_embeds}
        return self.batches.batch(slots, positions, adapted=adapted, **options)

    def _keep_last(self, hidden: Tensor, ends: Tensor) -> None:
        """Keeps the hidden rows of last tokens [n, hidden]; `ends` [n, 2] as PackedInputs has them."""
        if self._last_hidden is None:
            self._last_hidden = hidden.new_zeros(self._num_slots, hidden.shape[1])
        self._last_hidden[ends[:, 1].long()] = hidden
