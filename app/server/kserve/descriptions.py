"""What KServe's protocol tells of a server and its models, over HTTP and gRPC."""

from __future__ import annotations

from typing import Any

from vlm import __version__
from vlm.errors import ModelNotFoundError
from vlm_app.server.repository.service import Service, Services
from vlm_app.server.tensors.model_config import config_fields
from vlm_app.server.tensors.specs import TensorSpec

EXTENSIONS = [
    "binary_tensor_data", "generate", "model_configuration", "model_repository", "parameters", "statistics",
]  # fmt: skip


def server_metadata() -> dict[str, Any]:
    return {"name": "vlm", "version": __version__, "extensions": EXTENSIONS}


def find(services: Services, name: str, version: str | None) -> Service:
    """Returns a model by its name and version, none: the one that there is. Raises ModelNotFoundError."""
    service = services[name]
    if version not in (None, "", service.version):
        raise ModelNotFoundError(f"version {version!r} of {name} is not there; there is {service.version}.")
    return service


def model_metadata(service: Service) -> dict[str, Any]:
    inputs, outputs = specs(service)
    tensors = {"inputs": [spec.metadata() for spec in inputs], "outputs": [spec.metadata() for spec in outputs]}
    return {"name": service.name, "versions": [service.version], "platform": "vlm", **tensors}


def model_config(service: Service) -> dict[str, Any]:
    """Returns a ModelConfig's fields. `decoupled`: streams hold a response a burst; other requests get one anyway."""
    inputs, outputs = specs(service)
    fields = config_fields(service.name, service.pipeline.capabilities.max_batch_size, inputs=inputs, outputs=outputs)
    return {"backend": "vlm", **fields, "model_transaction_policy": {"decoupled": service.decoupled}}


def model_statistics(services: Services, name: str | None, version: str | None) -> dict[str, Any]:
    """Returns the statistics of one model, or of all of them."""
    selection = [find(services, name, version)] if name else services
    return {"model_stats": [service.statistics.as_json(service.name, service.version) for service in selection]}


def specs(service: Service) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Returns all that a model takes and gives."""
    return service.tensors.inputs, service.tensors.outputs
