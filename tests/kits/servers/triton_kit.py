"""Stands for Triton: its Python backend's module, and models and ensembles run as Triton's configuration says."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from google.protobuf import json_format

from tests.kits.servers.server_kit import alone
from vlm_app.server.repository.pbtxt import parse

FINAL = 1


@dataclass
class Tensor:
    _name: str
    _array: np.ndarray

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._array


class TritonError(Exception):
    def message(self) -> str:
        return str(self)


@dataclass
class InferenceResponse:
    output_tensors: list[Tensor]
    error: TritonError | None = None

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        assert self.error is None, self.error
        return {tensor.name(): tensor.as_numpy() for tensor in self.output_tensors}


class Sender:
    """Takes a streamed request's responses."""

    def __init__(self) -> None:
        self.responses: list[InferenceResponse] = []
        self.ended, self.cancelled = threading.Event(), False

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        assert not self.ended.is_set()
        self.responses += [response] if response is not None else []
        if flags == FINAL:
            self.ended.set()

    def is_cancelled(self) -> bool:
        return self.cancelled


@dataclass
class Request:
    arrays: dict[str, np.ndarray]
    sender: Sender = field(default_factory=Sender)

    def inputs(self) -> list[Tensor]:
        return [Tensor(name, array) for name, array in self.arrays.items()]

    def get_response_sender(self) -> Sender:
        return self.sender


def fake_module() -> ModuleType:
    module = ModuleType("triton_python_backend_utils")
    module.Tensor, module.InferenceResponse, module.TritonError = Tensor, InferenceResponse, TritonError
    module.TRITONSERVER_RESPONSE_COMPLETE_FINAL = FINAL
    module.using_decoupled_model_transaction_policy = lambda config: config["model_transaction_policy"]["decoupled"]
    return module


def config_of(folder: Path) -> Any:
    """A model's ModelConfig."""
    return parse((folder / "config.pbtxt").read_text(), folder)


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Any]:
    """A repository's Python model as Triton starts and ends it."""
    config = json_format.MessageToDict(
        config_of(folder), preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    args = {
        "model_config": json.dumps(config), "model_repository": str(folder), "model_version": "1",
        "model_instance_kind": "CPU", "model_instance_device_id": "0",
    }  # fmt: skip
    sys.modules.setdefault("triton_python_backend_utils", fake_module())
    spec = importlib.util.spec_from_file_location(f"model_{id(args)}", folder / "1" / "model.py")
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    model = program.TritonPythonModel()
    model.initialize(args)
    yield model
    getattr(model, "finalize", lambda: None)()


def asked(model: Any, *requests: dict[str, np.ndarray]) -> list[InferenceResponse]:
    return model.execute([Request(arrays) for arrays in requests])


def streamed(model: Any, *requests: dict[str, np.ndarray]) -> list[list[InferenceResponse]]:
    """Returns each request's responses."""
    made = [Request(arrays) for arrays in requests]
    assert model.execute(made) is None
    for request in made:
        assert request.sender.ended.wait()
    return [request.sender.responses for request in made]


def through(repository: Path, name: str, models: dict[str, Any], given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """One request through an ensemble: each step gets the tensors that its maps name."""
    config = config_of(repository / name)
    assert given.keys() <= {each.name for each in config.input}
    known = dict(given)
    for step in config.ensemble_scheduling.step:
        inputs = {own: known[outer] for own, outer in step.input_map.items() if outer in known}
        [response] = asked(models[step.model_name], inputs)
        known |= {outer: response.arrays[own] for own, outer in step.output_map.items()}
    return {each.name: known[each.name] for each in config.output}


# --- tensors ---
def texts(*given: str) -> np.ndarray:
    return np.array([[text.encode()] for text in given], object)


def ids_of(*given: str) -> dict[str, np.ndarray]:
    ids = [alone("mini-t5").request(text).encoder_input_ids for text in given]
    table = np.zeros((len(ids), max(map(len, ids))), np.uint32)
    for row, own in zip(table, ids, strict=True):
        row[: len(own)] = own
    return {"input_ids": table, "sequence_length": np.array([[len(own)] for own in ids], np.uint32)}


def rows(arrays: dict[str, np.ndarray]) -> list[list[int]]:
    """The best beam's tokens of each row."""
    pairs = zip(arrays["output_ids"][:, 0], arrays["sequence_length"][:, 0], strict=True)
    return [ids[:length].tolist() for ids, length in pairs]
