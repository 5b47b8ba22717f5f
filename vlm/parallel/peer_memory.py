"""Memory of the GPUs of one machine that each rank writes into: small sums without NCCL."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CAPACITY = 1 << 18  # words of 32 bits: messages of at most 1 MB, beyond which NCCL's rings are as fast


class PeerMemory:
    """One rank's buffer, which the others know, and what it knows of theirs."""

    def __init__(self, store: Any, name: str, *, rank: int, size: int, device: torch.device):
        """`name`: one for all ranks, and for these alone. Raises RuntimeError where GPUs cannot reach each other."""
        from torch._C import _distributed_c10d as distributed

        from vlm.ops.kernels.all_reduce import WORDS

        memory: Any = distributed._SymmetricMemory
        self.rank, self.size = rank, size
        memory.set_group_info(name, rank, size, store)
        shape = (2 * size * CAPACITY,)
        self._buffer = memory.empty_strided_p2p(shape, (1,), torch.int64, device, name).zero_()
        self._handle = memory.rendezvous(self._buffer, name)
        self._buffers = torch.tensor(self._handle.buffer_ptrs, dtype=torch.int64, device=device)
        self._calls = torch.zeros(CAPACITY // WORDS, dtype=torch.int32, device=device)
        self._ended, self._stream = torch.zeros(1, dtype=torch.int32, device=device), torch.cuda.Stream(device)
        self._one = torch.ones(1, dtype=torch.int32).pin_memory()
        torch.cuda.synchronize(device)

    @staticmethod
    def takes(x: Tensor) -> bool:
        """Tells whether a tensor is summed here."""
        return x.nbytes <= 4 * CAPACITY and x.nbytes % 4 == 0 and x.dtype.is_floating_point

    def all_reduce(self, x: Tensor) -> None:
        """Puts the sum of the ranks' tensors in the place of x, contiguous, one that `takes` says yes to."""
        from vlm.ops.kernels.all_reduce import all_reduce

        kind = {"capacity": CAPACITY, "rank": self.rank, "ranks": self.size}
        all_reduce(x, self._buffers, self._calls, self._ended, **kind)

    def abort(self) -> None:
        """Lets kernels that wait for another rank go on, with what is there. Callable from any thread."""
        with torch.cuda.stream(self._stream):
            self._ended.copy_(self._one, non_blocking=True)
