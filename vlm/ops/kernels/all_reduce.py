"""Sums over ranks whose GPUs write into each other's memory, for messages so small that latency is all.

Each rank sends its values to all others as words of 64 bits, the higher half of which is the number of the call: who
finds it has the value, too, so that no second message says so (the LL protocol of NCCL). Buffers take turns: a rank
that is at call n + 2 has had the others' values of call n + 1, so they have read those of call n. In a CUDA graph on
two H200s 10 KB take 2.2 µs, 320 KB 3.9 and 1 MB 7.9; NCCL takes 15 to 28, 23 and 32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vlm.ops.kernels.dependent_launch import dependent, let_next_start, wait_for_inputs
from vlm.ops.kernels.jit import jit

WORDS = 128  # of 32 bits, a program's
POLLS = 1024  # looks for another rank's values, some 0.7 µs each, between two at whether it has ended
TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


@jit
def _low(words, TYPE: tl.constexpr):
    """Returns the value in the lower half of words of 32 bits, or in the whole, as float32."""
    if TYPE == tl.float32:  # noqa: SIM300
        return words.to(tl.float32, bitcast=True)
    else:
        return words.to(tl.int16).to(TYPE, bitcast=True).to(tl.float32)


@jit
def _words(low, high, TYPE: tl.constexpr):
    """Returns words of 32 bits with two values each, or one of float32."""
    if TYPE == tl.float32:  # noqa: SIM300
        return low.to(tl.int32, bitcast=True)
    else:
        lower = low.to(TYPE).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
        return lower | (high.to(TYPE).to(tl.int16, bitcast=True).to(tl.int32) << 16)


@dependent
def _all_reduce(
    x_ptr, buffers_ptr, calls_ptr, ended_ptr, N, capacity,
    RANK: tl.constexpr, RANKS: tl.constexpr, TYPE: tl.constexpr, WORDS: tl.constexpr, POLLS: tl.constexpr,
):  # fmt: skip
    let_next_start()
    wait_for_inputs()
    program = tl.program_id(0)
    i = program * WORDS + tl.arange(0, WORDS)
    inside = i < N
    call = tl.load(calls_ptr + program) + 1
    own = tl.load(x_ptr + i, mask=inside, other=0)
    word = (call.to(tl.int64) << 32) | (own.to(tl.int64) & 0xFFFFFFFF)
    turn = (call & 1) * RANKS
    for peer in tl.static_range(RANKS):  # pyright: ignore[reportGeneralTypeIssues]
        if peer != RANK:
            buffer = tl.load(buffers_ptr + peer).to(tl.pointer_type(tl.int64))
            tl.store(buffer + (turn + RANK) * capacity + i, word, mask=inside)
    buffer = tl.load(buffers_ptr + RANK).to(tl.pointer_type(tl.int64))
    low = tl.zeros([WORDS], tl.float32)  # summed in one order on all ranks: the same bits
    high = tl.zeros([WORDS], tl.float32)
    for source in tl.static_range(RANKS):  # pyright: ignore[reportGeneralTypeIssues]
        words = own
        if source != RANK:
            at = buffer + (turn + source) * capacity + i
            found = tl.load(at, mask=inside, other=0, volatile=True)
            missing = tl.max((inside & ((found >> 32).to(tl.int32) != call)).to(tl.int32))
            polls = 0
            while missing != 0:
                found = tl.load(at, mask=inside, other=0, volatile=True)
                missing = tl.max((inside & ((found >> 32).to(tl.int32) != call)).to(tl.int32))
                polls += 1
                if polls % POLLS == 0:  # pyright: ignore[reportOperatorIssue]
                    missing = tl.where(tl.load(ended_ptr, volatile=True) == 0, missing, 0)
            words = found.to(tl.int32)
        low += _low(words, TYPE)
        high += _low(words >> 16, TYPE)
    tl.store(x_ptr + i, _words(low, high, TYPE), mask=inside)
    tl.store(calls_ptr + program, call)


def all_reduce(
    x: Tensor, buffers: Tensor, calls: Tensor, ended: Tensor, *, capacity: int, rank: int, ranks: int
) -> None:
    """Puts the sum of the ranks' tensors in the place of x, contiguous, whose bytes are a multiple of four and at most
    4 · capacity.

    buffers [ranks] int64: the addresses of the ranks' memory, 2 · ranks · capacity words of 64 bits each; calls
    [capacity / WORDS] int32: how often each program has run; ended [1] int32, in memory of the host that the GPU reads:
    not 0 once a rank has ended, which nobody waits for.
    """
    words = x.view(-1).view(torch.int32)
    _all_reduce[(triton.cdiv(len(words), WORDS),)](
        words, buffers, calls, ended, len(words), capacity,
        RANK=rank, RANKS=ranks, TYPE=TYPES[x.dtype], WORDS=WORDS, POLLS=POLLS, num_warps=1,
    )  # fmt: skip
