"""What the exported models share: Triton's Python backend, tensors in and out, a loop for coroutines.

https://github.com/triton-inference-server/python_backend
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from vlm.artifacts.native.engine_dir import EngineDir
from vlm.errors import VlmError
from vlm.processing.processor import Processor
from vlm_app.server.core.setting_names import for_clients
from vlm_app.server.repository.triton_options import ENGINE_FOLDER, FRONTEND_FOLDER
from vlm_app.server.tensors.values import BF16, DTYPES

T = TypeVar("T")
Tensors = dict[str, np.ndarray]


def utils() -> Any:
    """Returns Triton's module; it is there within Triton alone."""
    import triton_python_backend_utils

    return triton_python_backend_utils


def engine_of(args: Mapping[str, str]) -> Path:
    """Returns the engine in the folder of a model's version."""
    return Path(args["model_repository"]) / args["model_version"] / ENGINE_FOLDER


def processor_of(args: Mapping[str, str]) -> Processor:
    """Returns the processor of an engine whose weights are elsewhere."""
    folder = Path(args["model_repository"]) / args["model_version"] / FRONTEND_FOLDER
    return Processor.from_engine(EngineDir.without_weights(folder))


def config_of(args: Mapping[str, str]) -> dict[str, Any]:
    return json.loads(args["model_config"])


def inputs_of(request: Any) -> Tensors:
    return {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}


def response(tensors: Tensors, config: Mapping[str, Any]) -> Any:
    """Returns a response with the outputs that the model's configuration names, in its types."""
    outputs = {each["name"]: _typed(tensors[each["name"]], each["data_type"]) for each in config["output"]}
    return utils().InferenceResponse([utils().Tensor(name, array) for name, array in outputs.items()])


def _typed(array: np.ndarray, data_type: str) -> np.ndarray:
    dtype = DTYPES.get(data_type.removeprefix("TYPE_"))  # texts are TYPE_STRING
    return array if dtype in (None, BF16) else array.astype(dtype, copy=False)  # NumPy has no BF16


def failure(error: Exception) -> Any:
    """Returns one sentence for what the client can mend; else what it was, for who looks after the server."""
    ours = isinstance(error, VlmError)
    text = for_clients(error, "/v2") if ours else f"{type(error).__name__}: {error}"
    return utils().InferenceResponse([], error=utils().TritonError(text))


def answer(request: Any, tensors_of: Callable[[Tensors], Tensors], config: Mapping[str, Any]) -> Any:
    """Returns a request's response: its tensors, or what is wrong with it."""
    try:
        return response(tensors_of(inputs_of(request)), config)
    except Exception as error:
        return failure(error)


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vlm", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
