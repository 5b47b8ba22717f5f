"""A compiled graph beside the configuration of what it was built from: what a backend of slot networks loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from vlm.backends.graphs.io import GraphIO
from vlm.config import Config

Tensors = Mapping[str, Tensor]
C = TypeVar("C", bound=Config, covariant=True)


class Graph(Protocol):
    """A compiled graph of vlm.backends.graphs.io."""

    io: GraphIO

    def bind(self, inputs: Tensors, outputs: Tensors) -> Callable[[], Tensors]:
        """Ties tensors to the graph's names; an output that is not given is allocated. Each call is a run on what the
        inputs hold then, and returns all outputs."""
        ...


@dataclass(frozen=True)
class Network(Generic[C]):
    """A graph and what it was built from."""

    config: C
    graph: Graph

    def __call__(self, **inputs: Tensor) -> Tensors:
        """Runs the graph once on those of the inputs that it takes."""
        tensors = {port.name: inputs[port.name] for port in self.graph.io.inputs}
        return self.graph.bind(tensors, {})()
