"""Exported graphs on ONNX Runtime (CPU): torch's memory is bound to them, so that caches are updated in place."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vlm.backends.graphs.io import GraphIO, Port
from vlm.backends.threads import num_threads
from vlm.errors import EngineError, listed

TYPES = {torch.float32: np.float32, torch.float16: np.float16, torch.int64: np.int64}
# products with DequantizeLinear's results are computed as they are written: their fusions round, and some are invalid
AS_WRITTEN = ["QDQSelectorActionTransformer"]
# processors without VNNI add products of 8 bits up in 16, which overflow; there weights are read as other numbers with
# this, which DequantizeLinear per channel does not survive
EXACT_SUMS = ("session.x64quantprecision", "1")


def require(*packages: str) -> None:
    """Raises EngineError for packages that are missing, with the command that installs them."""
    if absent := [name for name in packages if importlib.util.find_spec(name) is None]:
        raise EngineError(f"the onnxruntime backend needs {listed(absent)}; run: pip install 'vlm-runtime[onnx]'.")


class OnnxGraph:
    """An exported graph, ready to run. `threads` None: as many as torch takes; `whole_numbers`: see GraphForm.

    Raises EngineError for a file that ONNX Runtime cannot read, and where it is not installed.
    """

    def __init__(self, path: Path, io: GraphIO, threads: int | None = None, *, whole_numbers: bool = False):
        require("onnxruntime")
        import onnxruntime

        self.io = io
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or num_threads()
        options.log_severity_level = 4  # its errors come as exceptions
        # threads that spin while they wait hold up whoever has work: beside other load that was 2 to 6 times slower
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if whole_numbers:
            options.add_session_config_entry(*EXACT_SUMS)
        try:
            self.session = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"], disabled_optimizers=AS_WRITTEN
            )
        except Exception as error:
            reason = str(error).splitlines()[0]
            raise EngineError(
                f"ONNX Runtime cannot load {path}: {reason}; rebuild the engine with vlm build."
            ) from error

        tensors = [*self.session.get_inputs(), *self.session.get_outputs()]
        ports = [*io.inputs, *io.outputs]
        if len(tensors) != len(ports) or not all(map(_fits, ports, tensors)):
            raise EngineError(f"{path} was exported by another version of vlm; rebuild the engine with vlm build.")

    def bind(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> Binding:
        """Ties tensors to the graph's names: see vlm.backends.graphs.network.Graph."""
        sizes = {
            name: size
            for port in self.io.inputs
            for name, size in zip(port.shape, inputs[port.name].shape, strict=True)
            if isinstance(name, str)
        }
        buffers = {
            port.name: torch.empty(port.sized(**sizes), dtype=port.dtype)
            for port in self.io.outputs
            if port.name not in outputs
        }
        return Binding(self.session, dict(inputs), {**buffers, **outputs})


def _fits(port: Port, tensor: Any) -> bool:
    """Says whether the file's tensor takes all that the port may be. Its sizes that vary are no numbers."""
    sizes = zip(tensor.shape, port.shape, strict=False)
    same = port.name == tensor.name and len(port.shape) == len(tensor.shape)
    return same and all(size == port_size for size, port_size in sizes if isinstance(size, int))


class Binding:
    """Tensors tied to a graph's names; they live as long as it does."""

    def __init__(self, session: Any, inputs: dict[str, Tensor], outputs: dict[str, Tensor]):
        self.session, self.inputs, self.outputs = session, inputs, outputs
        self.io = session.io_binding()
        for bind, tensors in ((self.io.bind_input, self.inputs), (self.io.bind_output, self.outputs)):
            for name, tensor in tensors.items():
                assert tensor.is_contiguous(), name
                bind(name, "cpu", 0, TYPES[tensor.dtype], tuple(tensor.shape), tensor.data_ptr())

    def __call__(self) -> dict[str, Tensor]:
        self.session.run_with_iobinding(self.io)
        return self.outputs
