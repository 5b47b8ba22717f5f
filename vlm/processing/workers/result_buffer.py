"""Results of worker processes: arrays cross by shared memory, what is around them through the pipe."""

from __future__ import annotations

import mmap
import os
import pickle
import weakref
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any

SIZE = 2**24  # bytes; no memory is taken until they are written
ALIGNMENT = 64  # bytes
Message = tuple[bytes, list[tuple[int, int]]]  # a pickle, and where its arrays lie: (start, end)


@dataclass
class ResultBuffer:
    """Memory of two processes, of which one writes a result while the other waits for it.

    It has no name and no file, and goes with the processes. Where the system has no such memory, and for what does not
    fit, arrays are a part of the message.
    """

    file: int
    size: int  # bytes; 0: there is none

    def __post_init__(self) -> None:
        self._memory = mmap.mmap(self.file, self.size) if self.size else None
        self._close_file = weakref.finalize(self, os.close, self.file) if self.size else None

    @classmethod
    def new(cls) -> ResultBuffer:
        if not hasattr(os, "memfd_create"):  # /dev/shm, which others have, is 64 MB in a container
            return cls(-1, 0)
        file = os.memfd_create("vlm-results")
        os.ftruncate(file, SIZE)
        return cls(file, SIZE)

    def write(self, value: Any) -> Message:
        """Writes a value's arrays, as far as there is room, over those of the value before."""
        spans: list[tuple[int, int]] = []

        def keeps_inside(buffer: pickle.PickleBuffer) -> bool:
            content = buffer.raw()
            start = -(-(spans[-1][1] if spans else 0) // ALIGNMENT) * ALIGNMENT
            end = start + content.nbytes
            if self._memory is None or end > self.size:
                return True
            self._memory[start:end] = content
            spans.append((start, end))
            return False

        return pickle.dumps(value, protocol=5, buffer_callback=keeps_inside), spans

    def read(self, message: Message) -> Any:
        """Returns a value with arrays of its own."""
        import numpy as np  # the command line is not to wait for it

        content, spans = message
        shared = np.frombuffer(self._memory, np.uint8) if self._memory is not None else np.empty(0, np.uint8)
        # numpy copies without Python's lock, which a server's other threads wait for
        return pickle.loads(content, buffers=[shared[start:end].copy() for start, end in spans])

    def close(self) -> None:
        """Gives the memory up; the other process keeps it as long as it lives."""
        if self._memory is not None and self._close_file is not None:
            self._memory.close()
            self._close_file()
            self._memory = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _attached, (reduction.DupFd(self.file) if self.size else None, self.size)


def _attached(file: Any, size: int) -> ResultBuffer:
    """Returns the buffer in a process that is being started with it."""
    return ResultBuffer(file.detach() if file is not None else -1, size)
