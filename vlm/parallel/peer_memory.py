"""Memory of the GPUs of one machine that each rank writes into: small sums without NCCL."""

from __future__ import annotations

import ctypes
import importlib
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

CAPACITY = 1 << 18  # words of 32 bits: messages of at most 1 MB, beyond which NCCL's rings are as fast
HANDLE_BYTES = 64  # CUDA's CUDA_IPC_HANDLE_SIZE


class PeerMemory:
    """One rank's buffer, and those of the others as they let it open them."""

    def __init__(self, store: Any, *, rank: int, size: int, device: torch.device):
        """`store`: where these ranks find each other. Raises RuntimeError where GPUs cannot reach each other, and
        ImportError without CUDA's bindings."""
        from vlm.ops.kernels.all_reduce import WORDS

        self.rank, self.size = rank, size
        addresses = _opened(store, rank, size, device, 2 * size * CAPACITY * 8)
        self._buffers = torch.tensor(addresses, dtype=torch.int64, device=device)
        self._calls = torch.zeros(CAPACITY // WORDS, dtype=torch.int32, device=device)
        self._ended = torch.zeros(1, dtype=torch.int32).pin_memory()  # written without a word to CUDA, which may wait
        others = [address for peer, address in enumerate(addresses) if peer != rank]
        weakref.finalize(self, _close, addresses[rank], others).atexit = False  # a process that ends frees all
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
        self._ended[0] = 1


def _opened(store: Any, rank: int, size: int, device: torch.device, nbytes: int) -> list[int]:
    """Allocates a rank's buffer of zeros and returns the addresses of all ranks' buffers in this process."""
    runtime = _runtime()
    _checked(runtime.cudaSetDevice(device.index))
    own = _checked(runtime.cudaMalloc(nbytes))
    _checked(runtime.cudaMemset(own, 0, nbytes))
    handle = _checked(runtime.cudaIpcGetMemHandle(own))
    store.set(f"buffer {rank}", ctypes.string_at(handle.getPtr(), HANDLE_BYTES))
    addresses = []
    for peer in range(size):
        if peer == rank:
            addresses.append(own)
            continue
        theirs = runtime.cudaIpcMemHandle_t()
        ctypes.memmove(theirs.getPtr(), store.get(f"buffer {peer}"), HANDLE_BYTES)
        addresses.append(_checked(runtime.cudaIpcOpenMemHandle(theirs, runtime.cudaIpcMemLazyEnablePeerAccess)))
    return addresses


def _runtime() -> Any:
    """Returns the bindings of CUDA's runtime, which torch requires, too."""
    return importlib.import_module("cuda.bindings.runtime")


def _close(own: int, others: Iterable[int]) -> None:
    runtime = _runtime()
    for address in others:
        runtime.cudaIpcCloseMemHandle(address)
    runtime.cudaFree(own)


def _checked(result: tuple[Any, ...]) -> Any:
    error, *values = result
    if int(error) != 0:
        raise RuntimeError(f"CUDA says {error.name}")
    return values[0] if values else None
