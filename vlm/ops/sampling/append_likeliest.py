"""Appends each row's likeliest token: the last operation of a greedy decode step."""

from __future__ import annotations

from torch import Tensor

from vlm.ops.sampling.append_and_check_stop import append_and_check_stop
from vlm.ops.sampling.append_and_check_stop import reference as append_reference
from vlm.ops.sampling.sample import greedy, greedy_reference
from vlm.ops.state.sequences import SequenceState


def reference(state: SequenceState, slots: Tensor, logits: Tensor) -> None:
    append_reference(state, slots, *greedy_reference(logits))


def append_likeliest(state: SequenceState, slots: Tensor, logits: Tensor) -> None:
    """Appends the likeliest token (the first of equals) of logits[r] [V] to slot slots[r], with its log-probability;
    all else as `append_and_check_stop`."""
    if logits.is_cuda:
        from vlm.ops.kernels.append_likeliest import append_likeliest as kernel

        kernel(state, slots, logits)
    else:
        append_and_check_stop(state, slots, *greedy(logits))
