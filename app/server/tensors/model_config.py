"""A model's configuration as Triton writes it: what `/v2/models/NAME/config` and a repository's config.pbtxt say."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vlm_app.server.tensors.specs import TensorSpec


def config_fields(
    name: str, max_batch_size: int, inputs: Iterable[TensorSpec], outputs: Iterable[TensorSpec]
) -> dict[str, Any]:
    """Returns the part that tells a client what to send and what comes."""
    return {
        "name": name,
        "max_batch_size": max_batch_size,
        "input": [_input(spec) for spec in inputs],
        "output": [_output(spec) for spec in outputs],
    }


def _output(spec: TensorSpec) -> dict[str, Any]:
    kind = "STRING" if spec.datatype == "BYTES" else spec.datatype
    return {"name": spec.name, "data_type": f"TYPE_{kind}", "dims": list(spec.shape)}


def _input(spec: TensorSpec) -> dict[str, Any]:
    return {**_output(spec), "optional": spec.optional}
