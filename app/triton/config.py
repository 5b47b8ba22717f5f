"""The four models of an exported repository, as Triton's model configurations.

https://github.com/triton-inference-server/common: protobuf/model_config.proto
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from vlm.processing.processor import Processor
from vlm_app.server.repository.triton_options import AFTER, BEFORE, ENGINE, ENSEMBLE, KINDS, ExportConfig, parameters_of
from vlm_app.server.tensors.model import INPUT_LENGTHS, LENGTHS_OUT
from vlm_app.server.tensors.model_config import config_fields
from vlm_app.server.tensors.specs import (
    IDS_IN,
    IDS_OUT,
    QUESTION,
    TEXT_IN,
    TEXT_OUT,
    TensorSpec,
    output_specs,
    specs_of,
)

PREPARED = ("input_ids", "sequence_length", "pixel_values", "num_images", "image_sizes")
# all of it from the engine: no step of an ensemble may take tensors of a decoupled model beside others
READ_BACK = ("output_ids", "sequence_length", INPUT_LENGTHS)


def configs(processor: Processor, config: ExportConfig) -> dict[str, dict[str, Any]]:
    """Returns configurations by what each model does. An engine without a tokenizer stands alone, else it is a part of
    an ensemble."""
    if processor.tokenizer is None:
        return {ENGINE: _engine(config.name, processor, config)}
    names, prepared = config.folders, prepared_specs(processor)
    words = [spec for spec in _texts(processor) if spec.name in _of_preprocessing(processor)]
    before = _python(names[BEFORE], config, words, prepared, "KIND_CPU")
    read = [replace(spec, optional=False) for spec in _engine_out(processor) if spec.name in READ_BACK]
    after = _python(names[AFTER], config, read, TEXT_OUT[:1], "KIND_CPU")
    return {
        ENSEMBLE: _ensemble(processor, prepared, config),
        BEFORE: before,
        ENGINE: _engine(names[ENGINE], processor, config),
        AFTER: after,
    }


def _of_preprocessing(processor: Processor) -> tuple[str, ...]:
    """Returns what preprocessing takes of a request; the rest goes to the engine."""
    return ("text_input", "image", QUESTION.name, *(("task",) if processor.tasks is not None else ()))


def prepared_specs(processor: Processor) -> tuple[TensorSpec, ...]:
    """Returns what preprocessing gives: ids, pixels, and where the output of a model without ids begins."""
    by_ids = specs_of(processor, IDS_IN)
    has_ids = any(spec.name == "input_ids" for spec in by_ids)
    names = PREPARED if has_ids else (*PREPARED, "decoder_input_ids", "decoder_input_lengths")
    return tuple(spec for spec in by_ids if spec.name in names)


def _texts(processor: Processor) -> tuple[TensorSpec, ...]:
    """Returns what the ensemble takes; the first tensor must be there."""
    specs = specs_of(processor, TEXT_IN)
    first = "image" if processor.family.takes_images and not processor.family.takes_text else "text_input"
    return tuple(replace(spec, optional=False) if spec.name == first else spec for spec in specs)


def _engine_out(processor: Processor) -> tuple[TensorSpec, ...]:
    return output_specs(processor, (*IDS_OUT, *LENGTHS_OUT))


def _engine(name: str, processor: Processor, config: ExportConfig) -> dict[str, Any]:
    fields = _python(
        name, config, specs_of(processor, IDS_IN), _engine_out(processor), KINDS[config.load.device.partition(":")[0]]
    )
    if number := config.load.device.partition(":")[2]:
        fields["instance_group"][0]["gpus"] = [int(number)]
    fields["instance_group"][0]["count"] = config.instances
    fields["parameters"] = parameters_of(config.load)
    return {**fields, "model_transaction_policy": {"decoupled": config.stream}}


def _python(
    name: str, config: ExportConfig, inputs: Iterable[TensorSpec], outputs: Iterable[TensorSpec], kind: str
) -> dict[str, Any]:
    """Requests of a batch stay apart in Triton's Python models: their shapes may differ."""
    fields = config_fields(name, config.max_batch_size, inputs, outputs)
    for tensor in fields["input"]:
        tensor["allow_ragged_batch"] = -1 in tensor["dims"]
    return {**fields, "backend": "python", "instance_group": [{"kind": kind}], "dynamic_batching": {}}


def _ensemble(processor: Processor, prepared: tuple[TensorSpec, ...], config: ExportConfig) -> dict[str, Any]:
    specs = _texts(processor)
    same = lambda names: {name: name for name in names}  # noqa: E731
    between = {spec.name: f"prepared_{spec.name}" for spec in prepared}
    texts = [spec.name for spec in specs if spec.name in _of_preprocessing(processor)]
    options = [spec.name for spec in specs if spec.name not in texts]
    steps = [
        (BEFORE, same(texts), between),
        (ENGINE, {**between, **same(options)}, same(spec.name for spec in _engine_out(processor))),
        (AFTER, same(READ_BACK), same([TEXT_OUT[0].name])),
    ]
    return {
        **config_fields(config.name, config.max_batch_size, specs, output_specs(processor, TEXT_OUT)),
        "platform": "ensemble",
        "ensemble_scheduling": {
            "step": [
                {"model_name": config.folders[part], "model_version": "-1", "input_map": ins, "output_map": outs}
                for part, ins, outs in steps
            ]
        },
    }
