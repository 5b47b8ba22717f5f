"""The device's copy of every slot's state, and how the host fills it.

Copies from pageable host memory are staged by the driver before the call returns, so host buffers may be reused at
once, and the stream's order keeps them behind the bursts that still read the old values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from collections.abc import Sequence as Items
from operator import attrgetter

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vlm.executor.adapters import AdapterCache
from vlm.executor.inputs.packing import padded, power_of_two
from vlm.executor.inputs.upload import upload
from vlm.executor.kv_cache import CacheShape
from vlm.executor.state.rule_table import PackedRules, RuleTable, rules_of
from vlm.executor.state.slot_upload import SlotUpload
from vlm.limits import MAX_TOP_LOGPROBS
from vlm.ops.state.beams import NONE, BeamState, EarlyStopping
from vlm.ops.state.drafts import DraftState
from vlm.ops.state.penalties import PenaltyState
from vlm.ops.state.sampling import SamplingState
from vlm.ops.state.sequences import SequenceState
from vlm.requests.adapters import NO_ADAPTER
from vlm.requests.loops import MAX_PERIOD, loop_runs_of
from vlm.requests.sampling_params import SharedSettings
from vlm.requests.sequence import Sequence, any_adapted

NO_RUNS = [0] * MAX_PERIOD
STOP_IDS = 16  # end tokens a request that there is room for at first
Put = Callable[[Tensor, list | npt.NDArray], object]  # (per-slot tensor, its values for the slots that are filled)
EARLY = {False: EarlyStopping.HEURISTIC, True: EarlyStopping.WHEN_FULL, "never": EarlyStopping.NEVER}


class BatchState:
    """Per-slot tensors for `num_slots` sequences and one padding slot, which pads a batch to its bucket."""

    def __init__(
        self,
        num_slots: int,
        max_seq_len: int,
        shape: CacheShape,
        device: torch.device,
        embedding_size: int = 1,
        dtype: torch.dtype = torch.float32,
        adapters: AdapterCache | None = None,
        max_source_len: int = 0,
        position_axes: int = 1,
    ):
        """`max_source_len`: tokens of a text that drafts are looked up in beside a sequence's own."""
        self.padding_slot, self.device = num_slots, device
        self._adapters = adapters or AdapterCache()
        size = num_slots + 1
        ints = lambda *dims: torch.zeros(size, *dims, dtype=torch.int32, device=device)  # noqa: E731
        self.slots = SequenceState(
            tokens=ints(max_seq_len),
            logprobs=torch.zeros(size, max_seq_len, device=device),
            lengths=ints() + 1,
            prompt_lengths=ints(),
            max_lengths=ints() + max_seq_len,
            finish=ints() + 1,  # the padding slot never advances
            stop_ids=ints(STOP_IDS) - 1,
            forced_bos=ints() - 1,
            forced_eos=ints() - 1,
            detect_loops=ints(),
            loop_runs=ints(MAX_PERIOD),
        )
        self.sampling = SamplingState.empty(size, device)
        # [S, max_seq_len, 2, MAX_TOP_LOGPROBS] int32: ids, values (bits)
        self.top = ints(0, 2, MAX_TOP_LOGPROBS)
        self.beams = BeamState.empty(size, max_seq_len, device)
        self.penalties = PenaltyState.empty(size, device)
        self.drafts = DraftState.empty(size, max_source_len, device)
        self.rules = RuleTable(self.padding_slot, device)
        self.self_tables, self.cross_tables = ints(shape.self_table), ints(shape.cross_table)
        self.cross_lengths = ints() + 1
        # by how much positions differ from places: the last token's of a prompt, and those after it
        self.position_deltas = ints(2, position_axes) if position_axes > 1 else None
        self.adapter_ids = ints() + NO_ADAPTER  # their slots in the banks
        # the embedding of a prompt's last token where that is a row of its table
        self.last_prompt_embed = torch.zeros(size, embedding_size, dtype=dtype, device=device)
        self._table_sizes: dict[int, int] = {}
        self._active: set[str] = set()

    def layout(self, with_rules: bool) -> tuple[int, ...]:
        """Returns the sizes of what grows with the requests: another one means other addresses, and another graph."""
        return (self.slots.stop_ids.shape[1], *(self.rules.capacity if with_rules else ()))

    def axes_of(self, slots: Tensor, places: Tensor) -> Tensor | None:
        """Returns the positions [axes, R] of a decode step's rows, by their slots and places in their sequences [R];
        None where positions have one axis."""
        if self.position_deltas is None:
            return None
        s = slots.long()
        after_prompt = (places >= self.slots.prompt_lengths[s]).long()
        return (places[:, None] + self.position_deltas[s, after_prompt]).T.contiguous()

    def place(self, sequences: list[Sequence]) -> None:
        """Tells where newly admitted sequences lie: what passes over their inputs and prompts read."""
        writer = SlotUpload([slot for s in sequences for slot in s.slots], self.device)
        self_blocks = [blocks for s in sequences for blocks in s.self_blocks]
        sequences, put = [s for s in sequences for _ in s.slots], writer.put
        put(self.self_tables, padded(self_blocks, 0))
        put(self.cross_tables, padded([s.cross_blocks for s in sequences], 0))
        put(self.cross_lengths, [s.num_features for s in sequences])
        if self._changes("adapters", any_adapted(sequences)):
            put(self.adapter_ids, [self._adapters[s.request.adapter_id] for s in sequences])
        self._table_sizes.update(zip(writer.slots, map(len, self_blocks), strict=True))
        writer.write()

    def admit(self, sequences: list[Sequence], stop_ids: Items[Items[int]]) -> None:
        """Fills the slots of newly admitted sequences, all beams of one alike: what decode steps read besides."""
        settings = SharedSettings([s.request.params for s in sequences for _ in s.slots])
        self._admit_rules(sequences, settings, stop_ids)
        self._make_room(max(map(len, stop_ids)))
        stop_ids = [stops for s, stops in zip(sequences, stop_ids, strict=True) for _ in s.slots]
        beams = [beam for s in sequences for beam in range(s.width)]
        writer = SlotUpload([slot for s in sequences for slot in s.slots], self.device)
        sequences, put = [s for s in sequences for _ in s.slots], writer.put
        self._admit_slots(sequences, settings, stop_ids, put)
        self._admit_sampling(sequences, settings, put)
        self._admit_penalties(sequences, settings, put)
        self._admit_rare(sequences, settings, put)
        if any(beams):
            self._admit_beams(sequences, settings, beams, put)
        self._admit_drafts(sequences, put)
        writer.write()

    def _admit_slots(
        self, sequences: list[Sequence], settings: SharedSettings, stop_ids: Items[Items[int]], put: Put
    ) -> None:
        state = self.slots
        put(state.tokens, padded([s.history for s in sequences], 0))
        put(state.lengths, [len(s.tokens) for s in sequences])
        put(state.prompt_lengths, [s.prompt_length for s in sequences])
        put(state.max_lengths, [s.max_length for s in sequences])
        put(state.finish, [0] * len(sequences))
        put(state.stop_ids, padded(stop_ids, -1, state.stop_ids.shape[1]))
        if self._changes("forced", settings.any(lambda p: p.forced_tokens)):
            put(state.forced_bos, [_forced_bos(s) for s in sequences])
            put(state.forced_eos, settings.each(lambda p: _forced_eos(p.forced_eos_token_id)))
        if self._changes("loops", settings.any(lambda p: p.loop_detection)):
            put(state.detect_loops, settings.each(lambda p: int(p.loop_detection)))
            put(state.loop_runs, [_loop_runs(s) for s in sequences])
        if self.position_deltas is not None:
            put(self.position_deltas, [s.positions.deltas for s in sequences if s.positions is not None])

    def _admit_sampling(self, sequences: list[Sequence], settings: SharedSettings, put: Put) -> None:
        if not self._changes("draws", settings.any(lambda p: p.temperature > 0)):
            return
        sampling = self.sampling
        for name in ("temperature", "top_p", "min_p", "top_k", "top_p_decay", "top_p_min"):
            put(getattr(sampling, name), settings.each(attrgetter(name)))
        put(sampling.top_p_reset_id, settings.each(lambda p: _or_none(p.top_p_reset_id)))
        put(sampling.seeds, [s.seed for s in sequences])
        put(sampling.decay_steps, [_since(s.generated, s.request.params.top_p_reset_id) for s in sequences])
        if self._changes("filters", settings.any(lambda p: p.filtered)):
            for name in ("top_h", "typical_p", "epsilon_cutoff", "eta_cutoff"):
                put(getattr(sampling, name), settings.each(attrgetter(name)))

    def _admit_penalties(self, sequences: list[Sequence], settings: SharedSettings, put: Put) -> None:
        penalties = self.penalties
        if self._changes("penalties", settings.any(lambda p: p.needs_processors)):
            put(penalties.repetition, settings.each(lambda p: p.repetition_penalty))
            put(penalties.presence, settings.each(lambda p: p.presence_penalty))
            put(penalties.frequency, settings.each(lambda p: p.frequency_penalty))
            put(penalties.min_lengths, [_shortest(s) for s in sequences])
            put(penalties.ngrams, [s.ngram_size for s in sequences])
        if self._changes("input", settings.any(lambda p: p.encoder_repetition_penalty != 1.0)):
            put(penalties.input_repetition, settings.each(lambda p: p.encoder_repetition_penalty))

    def _admit_rare(self, sequences: list[Sequence], settings: SharedSettings, put: Put) -> None:
        penalties = self.penalties
        if self._changes("rare", settings.any(lambda p: p.rare)):
            decays = [s.request.params.exponential_decay_length_penalty or (0, 1.0) for s in sequences]
            # a later start is as good as none, and may be too large for 32 bits
            starts = [s.prompt_length + start for s, (start, _) in zip(sequences, decays, strict=True)]
            latest = [s.max_length for s in sequences]
            put(penalties.decay_starts, [*map(min, starts, latest)])
            put(penalties.decay_factors, [factor for _, factor in decays])
            put(penalties.clean, settings.each(lambda p: p.remove_invalid_values))
            put(penalties.normalize, settings.each(lambda p: p.renormalize_logits))

    def _admit_rules(self, sequences: list[Sequence], settings: SharedSettings, stop_ids: Items[Items[int]]) -> None:
        """Takes over what requests say about tokens."""
        if not self._changes("rules", settings.any(lambda p: p.names_tokens or p.ends_beams)):
            return
        by_slot: dict[int, PackedRules | None] = {}
        for sequence, rules in zip(sequences, rules_of(sequences, stop_ids), strict=True):
            sequence.rule_kinds = rules.kinds if rules else ()
            by_slot.update(dict.fromkeys(sequence.slots, rules))
        self.rules.admit(by_slot)

    def _make_room(self, most: int) -> None:
        """Makes room for so many ends of a sequence."""
        there = self.slots.stop_ids
        if most > there.shape[1]:
            larger = torch.full((len(there), power_of_two(most)), -1, dtype=torch.int32, device=self.device)
            larger[:, : there.shape[1]] = there
            self.slots = dataclasses.replace(self.slots, stop_ids=larger)

    def _changes(self, what: str, is_set: bool) -> bool:
        """Says whether settings that few requests have must be written: once any were, a slot may hold an earlier
        request's."""
        if is_set:
            self._active.add(what)
        return what in self._active

    def _admit_beams(self, sequences: list[Sequence], settings: SharedSettings, beams: list[int], put: Put) -> None:
        state = self.beams
        # only the first beam counts at the start: all are equal
        put(state.scores, [0.0 if beam == 0 else NONE for beam in beams])
        put(state.hypothesis_scores, [NONE] * len(beams))
        put(state.ended, [False] * len(beams))
        put(state.can_improve, [True] * len(beams))
        put(state.length_penalty, settings.each(lambda p: p.length_penalty))
        put(state.early_stopping, settings.each(lambda p: EARLY[p.early_stopping]))
        put(state.diversity, settings.each(lambda p: p.diversity_rate))
        spare_blocks = [s.spare_blocks[beam] if s.spare_blocks else 0 for s, beam in zip(sequences, beams, strict=True)]
        put(state.spare_blocks, spare_blocks)

    def _admit_drafts(self, sequences: list[Sequence], put: Put) -> None:
        if not self._changes("drafts", any(s.max_drafts for s in sequences)):
            return
        drafts = self.drafts
        sources = [list(s.request.encoder_input_ids or ())[: drafts.sources.shape[1]] for s in sequences]
        put(drafts.sources, padded(sources, 0))
        put(drafts.source_lengths, [len(source) for source in sources])
        put(drafts.limits, [s.max_drafts for s in sequences])
        put(drafts.num_drafted, [s.num_drafted for s in sequences])
        put(drafts.num_accepted, [s.num_accepted for s in sequences])

    def update_tables(self, sequences: list[Sequence]) -> None:
        """Uploads what the self block tables have grown by; the rest may have been changed by a beam search."""
        sizes = self._table_sizes
        grown = [
            table
            for s in sequences
            if len(s.self_blocks[0]) > sizes[s.slot]  # all beams of a search grow together
            for table in zip(s.slots, s.self_blocks, strict=True)
        ]
        if grown:
            places = [(slot, at, blocks[at]) for slot, blocks in grown for at in range(sizes[slot], len(blocks))]
            slots, columns, blocks = upload([np.array(places)], self.device)[0].unbind(1)
            self.self_tables[slots, columns] = blocks.int()
            sizes.update((slot, len(blocks)) for slot, blocks in grown)

    def allocate_top(self) -> None:
        """Makes room for the likeliest tokens of each place, when a request first asks for them."""
        size = (*self.slots.tokens.shape, 2, MAX_TOP_LOGPROBS)
        if self.top.shape != size:
            self.top = torch.zeros(size, dtype=torch.int32, device=self.device)


def _since(tokens: list[int], top_p_reset_id: int | None) -> int:
    """Counts the tokens after the last `top_p_reset_id`."""
    return tokens[::-1].index(top_p_reset_id) if top_p_reset_id in tokens else len(tokens)


def _or_none(token: int | None) -> int:
    return -1 if token is None else token


def _forced_bos(sequence: Sequence) -> int:
    """Returns the token that must come first, -1: any. One that is the last, too, is one of several ends instead."""
    params = sequence.request.params
    ends = sequence.max_length == 2 and isinstance(params.forced_eos_token_id, tuple)
    return -1 if ends else _or_none(params.forced_bos_token_id)


def _forced_eos(token: int | tuple[int, ...] | None) -> int:
    """Returns the end that is forced, -1: none. Several that may be are rules, one alone is of the slot's state."""
    return -1 if token is None or isinstance(token, tuple) else token


def _loop_runs(sequence: Sequence) -> list[int]:
    return loop_runs_of(sequence.tokens) if sequence.request.params.loop_detection else NO_RUNS


def _shortest(sequence: Sequence) -> int:
    """Returns the length from which on a sequence may end."""
    params = sequence.request.params
    return max(sequence.prompt_length + params.min_new_tokens, params.min_length)
