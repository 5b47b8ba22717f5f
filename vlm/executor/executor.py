"""Runs batches of one engine: the state of its slots, what is sampled for them, and the way of results to the host.

Networks and caches are a runner's and the encoders'.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Items
from functools import partial
from operator import attrgetter

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vlm.config import ModelConfig
from vlm.errors import OutOfMemoryError, counted
from vlm.executor.collective_time import CollectiveTime, time_calls
from vlm.executor.decode_burst import DecodeBurst, hypotheses_of, to_host
from vlm.executor.encoding.encoders import Encoders
from vlm.executor.encoding.waiting_images import WaitingImages
from vlm.executor.inputs.packing import batched, batched_by_size, bucket_of
from vlm.executor.memory import memory_errors
from vlm.executor.runner import Runner
from vlm.executor.sampling.plan import BeamRows, SamplingPlan
from vlm.executor.sampling.sampler import DecodeRows, Sampler
from vlm.parallel.recording import recorded
from vlm.requests.sequence import PrefillChunk, Sequence, any_adapted
from vlm.requests.token_update import Hypothesis

# sequences from which on a thread sleeps until a burst is done, unless that is the last one: it wakes up some 50 µs
# late, but leaves its core to those who prepare the next inputs
SLEEPING_BATCH_SIZE = 8
num_features = attrgetter("num_features")
PASS_ROWS = 2048  # of features, whose cross K/V a batch-invariant pass writes: one of fewer takes a GPU about as long


class Executor:
    """Admits sequences into slots, fills their caches and decodes them, burst by burst."""

    def __init__(
        self, config: ModelConfig, runner: Runner, encoders: Encoders, sampler: Sampler, *, batch_invariant: bool
    ):
        """`config`: the decoder's; the runner decodes by the same sampler; `batch_invariant`: see RuntimeConfig."""
        self.config, self.runner, self.encoders, self.sampler = config, runner, encoders, sampler
        self.batch_invariant = batch_invariant
        self.state, self.logits, self.adapters = sampler.state, sampler.logits, encoders.networks.adapters
        self.prompt_logprobs = sampler.prompt_logprobs
        self.device, self.timer, self.asynchronous = encoders.device, encoders.timer, encoders.asynchronous
        self.waiting_images = WaitingImages.of(encoders, config)
        padding_slot = self.state.padding_slot
        self.rows = torch.full((2, padding_slot + 1), padding_slot, dtype=torch.int32, device=self.device)
        self.first_rows = self.rows[0].clone()
        self.beam_rows = BeamRows(padding_slot, self.device)
        self._prompt_embeds: dict[int, Tensor] = {}  # [n, hidden] of sequences, while their prompts are computed
        self._placed: dict[Sequence, Items[int]] = {}  # whose slots are yet to be filled, with their end tokens

    @torch.inference_mode()
    def admit(self, sequences: list[Sequence], stop_ids: Items[Items[int]]) -> None:
        """Encodes what newly admitted sequences see. Their slots are filled once the device has their prompts, too:
        nothing before a decode step reads what is in them."""
        self.runner.reserve(sequences)
        self.state.place(sequences)
        if any(s.contents or s.num_features for s in sequences):
            self._encode(sequences)
        self._placed.update(zip(sequences, stop_ids, strict=True))

    @torch.inference_mode()
    def prefill(self, prefills: list[tuple[Sequence, PrefillChunk]]) -> None:
        """Puts chunks of prompts into the cache."""
        self.state.update_tables(list(dict.fromkeys(s for s, _ in prefills)))
        with self.timer("prefill"):
            for part in batched(prefills, 1 if self.batch_invariant else len(prefills)):
                self.runner.prefill(part, self._prompt_embeds)
        self._drop_embeds([s for s, _ in prefills if not s.pending_chunks])
        self._fill_slots()

    @torch.inference_mode()
    def launch(
        self, sequences: list[Sequence], steps: int, drafts: int, *, first: list[Sequence], awaited: bool = False
    ) -> DecodeBurst:
        """Starts `steps` decode steps of these sequences, with so many `drafts` in each; the `first` of them have a
        token of their prefill ahead of these. Returns before they are done. `awaited`: whoever looks at the burst has
        nothing else to do until it is."""
        self._fill_slots()
        sequences = sorted(sequences, key=lambda s: s.width > 1)
        self.state.update_tables(sequences)
        plan, most_new = SamplingPlan.from_sequences(sequences, drafts), steps * (1 + drafts) + bool(first)
        if plan.top:
            self.state.allocate_top()
        if plan.logits:
            self.logits.begin(sequences, most_new, self.config.vocab_size, self.state.slots)
        leaders = torch.from_numpy(np.array([s.slot for s in sequences])).to(self.device, non_blocking=True)
        start = self.state.slots.lengths[leaders].long()
        with self.timer("decode"):
            if first:
                self._append_first(first)
            if steps:
                self._decode(sequences, plan, steps)
        sleeps = len(sequences) >= SLEEPING_BATCH_SIZE and not awaited
        ready = torch.cuda.Event(blocking=sleeps) if self.asynchronous else None
        return self._fetch(sequences, plan, ready, slots=leaders, start=start, steps=steps, most_new=most_new)

    def padded_batch_size(self, rows: int) -> int:
        """Returns the rows of a decode step that so many slots take part in: kernels sum in another order in another
        number of rows."""
        return self.state.padding_slot if self.batch_invariant else bucket_of(rows, self.state.padding_slot)

    @torch.inference_mode()
    def collective_time(self, rows: int) -> CollectiveTime:
        """Measures what ranks tell each other in a decode step of so many slots, by itself."""
        with recorded(self.encoders.ranks) as calls:
            self.runner.dummy_step(self.padded_batch_size(rows))
        return time_calls(calls, self.device)

    @torch.inference_mode()
    def hypotheses(self, sequences: list[Sequence]) -> list[list[Hypothesis]]:
        """Returns the outcomes of ended beam searches, best first, as many as were asked for."""
        beams, counts = self.state.beams, [s.request.params.num_return_sequences for s in sequences]
        slots = [slot for s, count in zip(sequences, counts, strict=True) for slot in s.slots[:count]]
        slots = torch.tensor(slots, device=self.device)
        lengths = torch.where(beams.ended[slots], beams.hypothesis_lengths[slots], 0).tolist()
        start, end = min(s.prompt_length for s in sequences), max(lengths)
        tokens, logprobs = (x[slots, start:end].tolist() for x in (beams.hypotheses, beams.hypothesis_logprobs))
        rows = iter(zip(tokens, logprobs, lengths, beams.hypothesis_scores[slots].tolist(), strict=True))
        return [hypotheses_of(itertools.islice(rows, n), s.prompt_length, start)
                for s, n in zip(sequences, counts, strict=True)]  # fmt: skip

    def encode_waiting(self, sequences: Iterable[Sequence]) -> None:
        """Begins with images of sequences that wait, first come, first served, beside what the device decodes."""
        self.waiting_images.encode(sequences)

    def release(self, sequences: Items[Sequence]) -> None:
        """Drops what is held for sequences, whose slots, if they have any, are others' from now on."""
        self.waiting_images.drop(sequences)
        self._drop_embeds(sequences)
        self.prompt_logprobs.drop(sequences)
        if self._placed:
            for sequence in sequences:
                self._placed.pop(sequence, None)

    def free_cached_memory(self) -> None:
        """Waits for the device and gives back the memory of what is kept for later. Sequences are admitted again."""
        self._prompt_embeds.clear()
        self.waiting_images.clear()
        self.encoders.free_cached_memory()
        self.runner.free_cached_memory()

    # --- admission ---
    def _encode(self, sequences: list[Sequence]) -> None:
        """Encodes images and texts, of which decoders with cross-attention have their caches filled."""
        with self.timer("encode"), memory_errors(partial(self._encoding_error, sequences)):
            self._make_prompt_embeds([s for s in sequences if s.contents])
            texts = [s for s in sequences if s.request.encoder_input_ids is not None]
            for chunk in batched_by_size(texts, self.encoders.max_encoder_tokens, num_features):
                self.runner.encode_texts(chunk, self._prompt_embeds)
            self._drop_embeds(texts)
            others = [s for s in sequences if s.num_features and s.request.encoder_input_ids is None]
            others.sort(key=num_features)  # images of one size share passes
            for chunk in self._passes(others):
                self.runner.write_cross_kv(chunk, self._features(chunk))

    def _encoding_error(self, sequences: list[Sequence]) -> OutOfMemoryError:
        """Returns what says that memory ran out for these sequences' texts or images, and what takes less of it."""
        encoders, texts = self.encoders, [s for s in sequences if s.request.encoder_input_ids is not None]
        what = counted(len(texts), "text") if texts else f"the images of {counted(len(sequences), 'input')}"
        images = "" if texts else f"max_encoder_batch_size (images at once, now {encoders.max_encoder_batch_size}) or "
        return OutOfMemoryError(
            f"{self.device} ran out of memory while it encoded {what}; lower max_batch_size, or from Python in"
            f" RuntimeConfig {images}max_encoder_tokens ({'tokens' if texts else 'patches'} at once, now"
            f" {encoders.max_encoder_tokens}).",
            settings=("max_batch_size", "max_encoder_batch_size", "max_encoder_tokens"),
        )

    def _passes(self, sequences: list[Sequence]) -> Iterator[list[Sequence]]:
        """Yields the sequences, sorted by their features, whose cross K/V are written in one pass."""
        if not self.batch_invariant:
            yield from batched(sequences, self.encoders.max_encoder_batch_size)
            return
        for rows, group in itertools.groupby(sequences, num_features):
            yield from batched(list(group), _pass_size(rows))

    def _features(self, sequences: list[Sequence]) -> Tensor:
        """Returns the features of images, or those that were given: [sum of num_features, hidden]; as many rows as a
        pass always has where it is batch-invariant."""
        known = {s: features for s in sequences if (features := self._known_features(s)) is not None}
        images = [s.request.encoder_image for s in sequences if s not in known and s.request.encoder_image is not None]
        computed = iter(self.encoders.encode_pixels(images) if images else ())
        parts = [known[s] if s in known else next(computed) for s in sequences]
        missing = (_pass_size(len(parts[0])) - len(parts)) * len(parts[0]) if self.batch_invariant else 0
        return F.pad(torch.cat(parts), (0, 0, 0, missing)) if missing else torch.cat(parts)

    def _known_features(self, sequence: Sequence) -> Tensor | None:
        """Returns a sequence's features that were given, or computed while it waited."""
        if (given := sequence.request.encoder_output) is not None:
            return given.to(self.device, self.encoders.dtype, non_blocking=True)
        return self.waiting_images.take(sequence)

    def _fill_slots(self) -> None:
        """Fills the slots of the sequences that were admitted since."""
        if self._placed:
            placed, self._placed = self._placed, {}
            self.state.admit([*placed], [*placed.values()])

    # --- prompt embeddings ---
    def _make_prompt_embeds(self, sequences: list[Sequence]) -> None:
        """Puts the rows that ids beyond the vocabulary address on the device, while a prompt is computed."""
        prompt_embeds = self.encoders.prompt_embeds([s.request for s in sequences])
        for sequence, embeds in zip(sequences, prompt_embeds, strict=True):
            if embeds is None:
                continue
            self._prompt_embeds[sequence.id] = embeds
            last = sequence.tokens[-1] - self.config.vocab_size
            if self.encoders.encoder is None and last >= 0:
                for slot in sequence.slots:
                    self.state.last_prompt_embed[slot] = embeds[last]

    def _drop_embeds(self, sequences: Iterable[Sequence]) -> None:
        if self._prompt_embeds:
            for sequence in sequences:
                self._prompt_embeds.pop(sequence.id, None)

    # --- decode ---
    def _append_first(self, sequences: list[Sequence]) -> None:
        """Appends the tokens that the last prefill has led to."""
        slots = self._padded([s.slot for s in sequences])
        rows = self.first_rows[: len(slots)]
        rows.copy_(torch.from_numpy(np.array(slots, np.int32)), non_blocking=True)
        adapted = any_adapted(sequences)
        self.runner.append_first(DecodeRows(rows, rows, None, adapted), SamplingPlan.from_sequences(sequences))

    def _decode(self, sequences: list[Sequence], plan: SamplingPlan, steps: int) -> None:
        rows, single = self._rows(sequences)
        beams = self.beam_rows.fill(sequences, plan) if plan.groups else None
        cross_rows = sum(s.width * s.num_features for s in sequences)
        self.runner.decode(DecodeRows(rows, single, beams, any_adapted(sequences), cross_rows), plan, steps)

    def _rows(self, sequences: list[Sequence]) -> tuple[Tensor, Tensor]:
        """Returns the slots of a batch, padded with the padding slot; and again without those of beams."""
        slots = self._padded([slot for s in sequences for slot in s.slots])
        single = [slot if s.width == 1 else self.state.padding_slot for s in sequences for slot in s.slots]
        rows = self.rows[:, : len(slots)]
        rows.copy_(torch.from_numpy(np.array([slots, self._padded(single)], np.int32)), non_blocking=True)
        return rows[0], rows[1]

    def _padded(self, slots: list[int]) -> list[int]:
        """Returns the slots of a step's rows, with the padding slot up to a size of batch that steps have."""
        return slots + [self.state.padding_slot] * (self.padded_batch_size(len(slots)) - len(slots))

    def _fetch(
        self,
        sequences: list[Sequence],
        plan: SamplingPlan,
        ready: torch.cuda.Event | None,
        *,
        slots: Tensor,
        start: Tensor,
        steps: int,
        most_new: int,
    ) -> DecodeBurst:
        """Starts the copy of a burst's results to the host, which `ready` tells of: of each slot `most_new` tokens,
        from the place `start` on."""
        state, drafts = self.state.slots, self.state.drafts
        at = (start[:, None] + torch.arange(most_new, device=self.device)).clamp(max=state.tokens.shape[1] - 1)
        counts = (state.lengths, state.finish, drafts.num_drafted, drafts.num_accepted)
        head = torch.stack(counts, 1)[slots]
        tokens, logprobs = state.tokens[slots[:, None], at], state.logprobs[slots[:, None], at]
        result = torch.cat((head, tokens, logprobs.view(torch.int32)), 1)
        top = self.state.top[slots[:, None], at, :, : self.config.vocab_size] if plan.top else None
        logits = self.logits.burst(sequences, most_new) if plan.logits else None
        burst = partial(DecodeBurst, sequences, steps, plan.drafts)
        if ready is None:
            return burst(result, top, None if logits is None else logits.clone(), None)
        top, logits = (None if part is None else to_host(part) for part in (top, logits))
        result = to_host(result)
        ready.record()
        return burst(result, top, logits, ready)


def _pass_size(rows: int) -> int:
    """Returns the sequences of so many features of a batch-invariant pass."""
    return max(1, PASS_ROWS // rows)
