"""CUDA graphs of whole passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result", Tensor, None)


class GraphPool:
    """CUDA graphs by key, captured at first use, sharing one memory pool."""

    def __init__(self, device: torch.device):
        self.device = device
        self.pool = torch.cuda.graph_pool_handle()
        self._graphs: dict[tuple, tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...], Any]] = {}  # with what each returns

    def __contains__(self, key: tuple) -> bool:
        return key in self._graphs

    def clear(self) -> None:
        """Waits for the device and forgets all graphs: what they work on lies elsewhere now."""
        torch.cuda.synchronize(self.device)
        self._graphs.clear()

    def replay(self, key: tuple, function: Callable[..., Result], *inputs: Tensor) -> Result:
        """Runs function(*inputs) as the key's graph, which is captured when it is first asked for. The result is
        overwritten by the key's next run."""
        if key not in self:
            self.capture(key, function, *inputs)
        return self.run(key, *inputs)

    def run(self, key: tuple, *inputs: Tensor) -> Any:
        """Replays a graph on new inputs. The result is overwritten by the key's next run."""
        graph, static, output = self._graphs[key]
        for target, source in zip(static, inputs, strict=True):
            target.copy_(source, non_blocking=True)
        graph.replay()
        return output

    def capture(self, key: tuple, function: Callable[..., object], *inputs: Tensor) -> None:
        """Captures function(*inputs); runs it once before, which compiles kernels and fills lazily made buffers."""
        static = tuple(x.clone() for x in inputs)
        side = torch.cuda.Stream(self.device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            function(*static)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            output = function(*static)
        self._graphs[key] = graph, static, output
