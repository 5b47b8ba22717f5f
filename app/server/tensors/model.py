"""What a served model takes and gives under KServe's protocol, and in which types."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from vlm.errors import InputError, listed
from vlm.processing.processor import Processor
from vlm_app.server.tensors.aliases import ALIASES
from vlm_app.server.tensors.settings import ADAPTER, SCALARS
from vlm_app.server.tensors.specs import IDS_IN, IDS_OUT, TEXT_IN, TEXT_OUT, TensorSpec, either, forms_of, output_specs
from vlm_app.server.tensors.values import DTYPES

HIDDEN = ("output_hidden_states", "output_hidden_state")  # T5-Encoder's guide, its code and config.pbtxt
ATTENTIONS = "output_attentions"
INPUT_LENGTHS = "response_input_lengths"  # GPT's: tokens of output_ids that are the prompt's
INTEGERS = ("INT32", "UINT32", "INT64", "UINT64")
TYPES = {
    "output_ids": INTEGERS, "sequence_length": INTEGERS, INPUT_LENGTHS: INTEGERS,
    "cum_log_probs": ("FP32",), "output_log_probs": ("FP32",), "text_output": ("BYTES",),
}  # fmt: skip
LENGTHS_OUT = (TensorSpec(INPUT_LENGTHS, "UINT32", (-1,)),)
FOLLOW_IDS = ("output_ids", "sequence_length", INPUT_LENGTHS)

_ENCODER_OPTIONS = (TensorSpec("is_return_attentions", "BOOL", (1,)), TensorSpec(ADAPTER, SCALARS[ADAPTER], (1,)))
ENCODER_IN = (*(spec for spec in IDS_IN if spec.name in ("input_ids", "sequence_length")), *_ENCODER_OPTIONS)
ENCODER_TEXT_IN = (*(spec for spec in TEXT_IN if spec.name == "text_input"), *_ENCODER_OPTIONS)
KNOWN_INPUTS = {spec.name for spec in (*IDS_IN, *TEXT_IN, *ENCODER_IN)} | ALIASES.keys()
KNOWN_OUTPUTS = {*TYPES, *HIDDEN, ATTENTIONS}

Tensors = dict[str, np.ndarray]


@dataclass(frozen=True)
class ModelTensors:
    """The tensors of one model."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    datatypes: Mapping[str, str] = field(default_factory=dict)  # types of outputs that its config.pbtxt names
    by_name: tuple[str, ...] = (INPUT_LENGTHS,)  # outputs that come where they are asked for by their names

    @classmethod
    def from_processor(
        cls, processor: Processor, dtype: str = "float32", datatypes: Mapping[str, str] | None = None
    ) -> ModelTensors:
        """Ids where the model reads tokens, texts where it has a tokenizer. `dtype`: the engine's."""
        datatypes = datatypes or {}
        if not processor.generates:
            return cls._of_encoder(processor, dtype, datatypes)
        inputs = forms_of(processor)
        outputs = (
            *(TEXT_OUT if processor.tokenizer else IDS_OUT),
            *(LENGTHS_OUT if INPUT_LENGTHS in datatypes else ()),
        )
        output_tensors = (
            replace(s, datatype=datatypes.get(s.name, s.datatype)) for s in output_specs(processor, outputs)
        )
        return cls(inputs, tuple(output_tensors), datatypes)

    @classmethod
    def _of_encoder(cls, processor: Processor, dtype: str, datatypes: Mapping[str, str]) -> ModelTensors:
        hidden = next((name for name in HIDDEN if name in datatypes), HIDDEN[0])
        own = {"float16": "FP16", "bfloat16": "BF16"}.get(dtype, "FP32")
        # JSON has no BF16, so it has to be declared
        datatype = "FP32" if own == "BF16" and datatypes.get(hidden) != own else own
        outputs = (
            TensorSpec(hidden, datatype, (-1, processor.config.hidden_size)),
            TensorSpec(ATTENTIONS, datatype, (-1, -1, -1, -1)),
        )
        inputs = either(ENCODER_IN, ENCODER_TEXT_IN if processor.tokenizer else ())
        return cls(inputs, outputs, datatypes, by_name=HIDDEN)

    def check_outputs(self, names: Iterable[str]) -> None:
        """Raises InputError for a name that no output has."""
        known = dict.fromkeys((*(spec.name for spec in self.outputs), *self.by_name))
        if unknown := [name for name in names if name not in known]:
            raise InputError(f"{listed(unknown)} is no output here; there are {listed(known)}.")

    def cast(self, outputs: Tensors, inputs: Tensors, names: Collection[str] | None) -> Tensors:
        """Returns the outputs in their types; ids come as those of a request do, where no configuration declares them.
        `names`: by name; None: all but what only a name brings."""
        kinds = {spec.name: spec.datatype for spec in self.outputs}
        ids = inputs.get("input_ids")
        if ids is not None and ids.dtype == np.int32:
            kinds |= {name: "INT32" for name in FOLLOW_IDS if name not in self.datatypes}
        left_out = {*self.by_name} - kinds.keys() if names is None else set()
        to_type = lambda name, array: array.astype(DTYPES[kinds[name]], copy=False) if name in kinds else array  # noqa: E731
        return {name: to_type(name, array) for name, array in outputs.items() if name not in left_out}


def type_errors(datatypes: Mapping[str, str]) -> list[str]:
    """Returns what is wrong with the types that a configuration declares. An encoder's outputs are of its own type,
    whatever is declared, as FasterTransformer has it."""
    return [
        f"output {name} is declared as {datatypes[name]}; it must be {' or '.join(types)}"
        for name, types in TYPES.items()
        if name in datatypes and datatypes[name] not in types
    ]
