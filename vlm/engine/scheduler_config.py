"""How sequences are scheduled."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SchedulerConfig:
    num_slots: int
    block_size: int
    burst: int  # decode steps between two looks of the host
    max_prefill_tokens: int = 8192  # a step
    vocab_size: int = 0  # ids from here on are rows of prompt tables
    prefix_sharing: bool = False  # only where a block's content follows from the prompt: not with cross-attention
    max_adapters: int = 0  # that sequences may run with at once
    batch_invariant: bool = False  # nothing is recomputed, and prompts are cut where they are cut when alone
    num_speculative_tokens: int = 0  # proposed for a sequence in a step, at most
    asynchronous: bool = False  # the device decodes on while the host reads what came before
