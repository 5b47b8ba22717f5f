"""What a decode step keeps of each sequence, on the device."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class SequenceState:
    """What the decode step reads and writes of each slot. `S` slots, the last one is padding."""

    tokens: Tensor  # [S, max_seq_len] int32: prompt and generated tokens
    logprobs: Tensor  # [S, max_seq_len] float32: of the generated ones
    lengths: Tensor  # [S] int32: tokens held; the last one is not in the KV cache yet
    prompt_lengths: Tensor  # [S] int32
    max_lengths: Tensor  # [S] int32
    finish: Tensor  # [S] int32: RUNNING, STOP, LOOP or LENGTH
    stop_ids: Tensor  # [S, n] int32, padded with -1
    forced_bos: Tensor  # [S] int32: token that must follow a single start token; -1: any
    forced_eos: Tensor  # [S] int32: token that a sequence at its length limit must end in; -1: any
    detect_loops: Tensor  # [S] int32: 1 when a loop ends the sequence
    loop_runs: Tensor  # [S, MAX_PERIOD] int32: tokens equal to the token p before, p = 1…
