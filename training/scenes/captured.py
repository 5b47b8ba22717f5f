"""Training steps as CUDA graphs: a step of models this small is mostly launches."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from training.scenes.subject import Batch


class Captured:
    """`step`, replayed as a graph for every shape of batch; the first batch of a shape is stepped eagerly.

    step: of tensors on the GPU, with nothing that the host waits for; what it returns is overwritten by the next call.
    """

    def __init__(self, step: Callable[[Batch], Tensor]):
        self.step, self.stream = step, torch.cuda.Stream()
        self.graphs: dict[tuple, tuple[torch.cuda.CUDAGraph, Batch, Tensor]] = {}
        self.met: set[tuple] = set()

    def __call__(self, batch: Batch) -> Tensor:
        shapes = tuple(x.shape for x in batch.values())
        if shapes not in self.met:
            self.met.add(shapes)
            return self._eagerly(batch)
        if shapes not in self.graphs:
            self.graphs[shapes] = self._capture(batch)
        graph, given, out = self.graphs[shapes]
        for name, x in batch.items():
            given[name].copy_(x, non_blocking=True)
        graph.replay()
        return out

    def _eagerly(self, batch: Batch) -> Tensor:
        """On a stream of its own, as what is captured later has to have been warmed up there."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            out = self.step({name: x.cuda() for name, x in batch.items()})
        torch.cuda.current_stream().wait_stream(self.stream)
        return out

    def _capture(self, batch: Batch) -> tuple[torch.cuda.CUDAGraph, Batch, Tensor]:
        graph, given = torch.cuda.CUDAGraph(), {name: x.cuda() for name, x in batch.items()}
        with torch.cuda.graph(graph, stream=self.stream):
            out = self.step(given)
        return graph, given, out
