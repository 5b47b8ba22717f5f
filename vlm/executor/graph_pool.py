"""CUDA graphs of whole passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from vlm.garbage import without_collections

Result = TypeVar("Result", Tensor, None)
MOST_GRAPHS = 512  # of a pool: clients choose some of what a step is captured for, how many beams and ends it has
MAX_GRAPH_SHAPES = 16  # of images whose passes are graphs; those of others run as they are
MOST_REMEMBERED = 256  # shapes that were met
ROOM = 4 * 2**30  # bytes of a device in which any pass finds room; what torch keeps for later is not free to a graph


class GraphPool:
    """CUDA graphs by key, captured at first use, sharing one memory pool. Those that were not used for longest give
    way."""

    def __init__(self, device: torch.device, *, priority: int = 0):
        """`priority`: of what the graphs hold, as streams have it: the lower it is, the earlier a kernel gets room."""
        self.device = device
        self.pool, self._stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device, priority=priority)
        # the last one used comes last; with what each takes and returns, and what it was made of, which it reads
        self._graphs: dict[tuple, tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...], Any, Callable[..., object]]] = {}

    def __contains__(self, key: tuple) -> bool:
        return key in self._graphs

    def clear(self) -> None:
        """Waits for the device and forgets all graphs: what they work on lies elsewhere now."""
        torch.cuda.synchronize(self.device)
        self._graphs.clear()

    def replay(self, key: tuple, function: Callable[..., Result], *inputs: Tensor) -> Result:
        """Runs function(*inputs) as the key's graph, which is captured when it is first asked for."""
        if key not in self:
            self.capture(key, function, *inputs)
        return self.run(key, *inputs)

    def run(self, key: tuple, *inputs: Tensor) -> Any:
        """Replays a graph on new inputs, which may lie on the host. Returns a copy of what it results in, if anything:
        other graphs of the pool write to the same memory."""
        graph, static, output, _ = self._graphs[key] = self._graphs.pop(key)
        for target, source in zip(static, inputs, strict=True):
            target.copy_(source, non_blocking=True)
        graph.replay()
        return None if output is None else output.clone()

    def capture(self, key: tuple, function: Callable[..., object], *inputs: Tensor) -> None:
        """Captures function(*inputs); runs it once before, which compiles kernels and fills lazily made buffers."""
        if len(self._graphs) >= MOST_GRAPHS:
            torch.cuda.synchronize(self.device)  # a graph that goes may still run
            del self._graphs[next(iter(self._graphs))]
        static = tuple(x.to(self.device, copy=True) for x in inputs)
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            function(*static)
        graph = torch.cuda.CUDAGraph()
        with self._capturing(graph):
            output = function(*static)
        self._graphs[key] = graph, static, output, function

    @contextmanager
    def _capturing(self, graph: torch.cuda.CUDAGraph) -> Iterator[None]:
        """Captures what its block launches. torch.cuda.graph empties torch's caches before each capture: whatever runs
        next asks the driver for memory again, and waits for the device. Here that is for where there is little."""
        torch.cuda.synchronize(self.device)
        if torch.cuda.mem_get_info(self.device)[0] < ROOM:
            torch.cuda.empty_cache()
        # graphs of a model that was closed may be among what is collected, and CUDA ends a capture in which one goes
        with torch.cuda.stream(self._stream), without_collections():
            graph.capture_begin(pool=self.pool)
            try:
                yield
            finally:
                graph.capture_end()


class GraphShapes:
    """Chooses which shapes of a pass are graphs where inputs come in many: the `most` first ones that have come `after`
    so many times. To capture one halts the work, and takes memory that stays taken."""

    def __init__(self, *, after: int = 0, most: int = MAX_GRAPH_SHAPES):
        self._after, self._most = after, most
        self._chosen: dict[Hashable, bool] = {}  # False: it was refused
        self._met = Counter[Hashable]()

    def chooses(self, shape: Hashable) -> bool:
        """Says whether a pass that comes now is one."""
        if shape in self._chosen or len(self._chosen) >= self._most:
            return self._chosen.get(shape, False)
        if self._met[shape] >= self._after:
            self._chosen[shape] = True
        elif len(self._met) >= MOST_REMEMBERED:
            self._met.clear()
        self._met[shape] += 1
        return shape in self._chosen

    def refuse(self, shape: Hashable) -> None:
        """Chooses a shape no more: there was no memory for its graph."""
        self._chosen[shape] = False
