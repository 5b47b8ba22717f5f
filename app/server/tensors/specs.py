"""The tensors of KServe's protocol here: FasterTransformer's, and those of texts and images."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vlm.errors import InputError, LimitError, listed
from vlm.limits import MAX_STOP_IDS, MAX_STOPS
from vlm.processing.processor import Processor
from vlm_app.server.tensors.aliases import by_own_names, nearest
from vlm_app.server.tensors.settings import SCALARS


@dataclass(frozen=True)
class TensorSpec:
    name: str
    datatype: str
    shape: tuple[int, ...]  # without the batch; -1: any
    optional: bool = True

    def metadata(self) -> dict[str, Any]:
        return {"name": self.name, "datatype": self.datatype, "shape": [-1, *self.shape]}


_OPTIONS = tuple(TensorSpec(name, datatype, (1,)) for name, datatype in SCALARS.items())
STRINGS = {"stop_words": "stop", "bad_words": "bad_words"}  # TensorRT-LLM's words as texts, by their settings
_WORDS = (
    *(TensorSpec(name, "INT32", (2, -1)) for name in ("stop_words_list", "bad_words_list")),
    *(TensorSpec(name, "BYTES", (-1,)) for name in STRINGS),
)
TASK_NAME = TensorSpec("task", "BYTES", (1,))  # or a number, as `prompt_learning_task_name_ids`
TASK = (TensorSpec("prompt_learning_task_name_ids", "UINT32", (1,)), TASK_NAME)
QUESTION = TensorSpec("question", "BYTES", (1,))
WORDS_IN = (TASK_NAME.name, QUESTION.name)  # of an input, beside its text or image
IDS_IN = (
    TensorSpec("input_ids", "UINT32", (-1,), optional=False),
    TensorSpec("sequence_length", "UINT32", (1,)),
    *_OPTIONS,
    *_WORDS,
    TensorSpec("request_prompt_embedding", "FP32", (-1, -1)),
    TensorSpec("request_prompt_lengths", "UINT32", (1,)),
    *TASK,
    TensorSpec("pixel_values", "FP32", (-1, -1, -1, -1)),
    TensorSpec("num_images", "UINT32", (1,)),
    TensorSpec("image_sizes", "UINT32", (-1, 2)),
    TensorSpec("decoder_input_ids", "UINT32", (-1,)),
    TensorSpec("decoder_input_lengths", "UINT32", (1,)),
)
PIXELS = {"pixel_values", "num_images", "image_sizes"}
IDS = {"input_ids", "sequence_length", "request_prompt_embedding", "request_prompt_lengths"}
DECODER_IDS = {"decoder_input_ids", "decoder_input_lengths"}
TEXT_IN = (
    TensorSpec("text_input", "BYTES", (1,)), TensorSpec("image", "BYTES", (-1,)), *_OPTIONS, *_WORDS, *TASK,
    QUESTION,
)  # fmt: skip
# tensors that are no parameters, too
TENSORS_IN = {spec.name for spec in (*IDS_IN, *TEXT_IN)} - {*SCALARS, *WORDS_IN}
LOGPROBS_OUT = (TensorSpec("cum_log_probs", "FP32", (-1,)), TensorSpec("output_log_probs", "FP32", (-1, -1)))
IDS_OUT = (TensorSpec("output_ids", "UINT32", (-1, -1)), TensorSpec("sequence_length", "UINT32", (-1,)), *LOGPROBS_OUT)
TEXT_OUT = (TensorSpec("text_output", "BYTES", (-1,)), *IDS_OUT)

MAX_BATCH = 4096  # rows of a request, whatever the model holds
MAX_WIDTHS = {
    "stop_words_list": 1024, "bad_words_list": 1024, "image": 1024, "stop_words": MAX_STOPS,
    "bad_words": MAX_STOP_IDS,
}  # fmt: skip


def specs_of(processor: Processor, by: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    """Returns those of these tensors (IDS_IN, TEXT_IN) that a model takes."""
    left_out: set[str] = set() if processor.family.takes_images else {"image", *PIXELS}
    if processor.tokenizer is None:
        left_out |= STRINGS.keys()
    if processor.prompt_tables is None:
        left_out |= {spec.name for spec in TASK}
    if processor.tasks is not None and by is TEXT_IN:  # beside ids, what a task stands for is in them
        left_out.discard(TASK_NAME.name)
    if not processor.takes_question:
        left_out.add(QUESTION.name)
    if processor.vision is not None and processor.vision.fixed_size:
        left_out.add("image_sizes")
    if not (processor.family.takes_text or processor.family.takes_prompt):
        left_out |= IDS
    if not processor.config.cross_attention:
        left_out |= DECODER_IDS
    return tuple(spec for spec in by if spec.name not in left_out)


def forms_of(processor: Processor) -> tuple[TensorSpec, ...]:
    """Returns all tensors that a model which writes takes: of ids, and of texts where it has a tokenizer."""
    return either(specs_of(processor, IDS_IN), specs_of(processor, TEXT_IN) if processor.tokenizer else ())


def either(ids: tuple[TensorSpec, ...], texts: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    """Returns the tensors of both forms of an input, each once: where there are two, neither is required."""
    by_name = {spec.name: replace(spec, optional=spec.optional or bool(texts)) for spec in (*ids, *texts)}
    return tuple(by_name.values())


def output_specs(processor: Processor, by: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    """Returns these tensors (IDS_OUT, TEXT_OUT) with ids as FasterTransformer's guides have them: int32 of T5, uint32
    of GPT."""
    ids = "INT32" if processor.config.cross_attention else "UINT32"
    return tuple(replace(spec, datatype=ids) if spec.datatype == "UINT32" else spec for spec in by)


def check_batch(size: int) -> None:
    """Raises LimitError for a batch of more rows than a request may have."""
    if size > MAX_BATCH:
        raise LimitError(f"the batch has {size:,} rows; send at most {MAX_BATCH:,} at once.")


def check_names(names: Iterable[str], specs: Iterable[TensorSpec], own: Iterable[TensorSpec] | None = None) -> None:
    """Raises InputError for a name that none of the specs has; its sentence lists those that the model has of its
    `own`, by default all."""
    known = {spec.name for spec in specs}
    if unknown := [name for name in names if name not in known]:
        inputs = [spec.name for spec in (specs if own is None else own)]
        raise InputError(
            f"{listed(unknown)} is no input here{nearest(unknown, inputs)}; inputs are {listed(inputs, 40)}."
        )


def check_tensors(
    inputs: dict[str, np.ndarray], specs: tuple[TensorSpec, ...], own: tuple[TensorSpec, ...] | None = None
) -> tuple[int, dict[str, np.ndarray]]:
    """Returns (size of the batch, the tensors by the specs' names). InputError for what does not fit the specs; `own`:
    those of the model."""
    tensors = by_own_names(inputs.items())
    check_names(tensors, specs, own)
    by_name = {spec.name: spec for spec in specs}
    sizes = {name: array.shape[0] if array.ndim else 0 for name, array in tensors.items()}
    if len({*sizes.values()}) != 1 or 0 in sizes.values():
        found = listed(f"{name} {size}" for name, size in sizes.items())
        raise InputError(
            f"every tensor's first size is the batch's, at least 1; they differ or there is none: {found}."
        )
    size = next(iter(sizes.values()))
    check_batch(size)
    return size, {
        n: _fitted(array, by_name[n], size) for n, array in tensors.items() if not _is_absent(array, by_name[n])
    }


def _is_absent(array: np.ndarray, spec: TensorSpec) -> bool:
    """Says whether a tensor counts as left out: a list of no words, images or rows. InputError for others without
    values."""
    if array.size or spec.shape == (1,):
        return False
    count_axis = 2 if spec.shape[0] == 2 else 1
    if spec.optional and array.ndim == 1 + len(spec.shape) and not array.shape[count_axis]:
        return True
    raise InputError(f"input {spec.name} has shape {list(array.shape)}, which holds nothing; give at least one value.")


def _fitted(array: np.ndarray, spec: TensorSpec, batch: int) -> np.ndarray:
    """Returns any width of the spec's kind of number; scalars as [batch] or [batch, 1]."""
    if spec.name == "image" and array.dtype == np.uint8:
        return _pictures(array, batch)
    kinds = {"B": "O", "F": "f", "U": "iu", "I": "iu"}[spec.datatype[0]] + ("iu" if spec.name == TASK_NAME.name else "")
    if array.dtype.kind not in ("b" if spec.datatype == "BOOL" else kinds):
        own = (
            "files as BYTES, or pictures as UINT8 [batch, height, width, 3]" if spec.name == "image" else spec.datatype
        )
        raise InputError(f"input {spec.name} has numbers of another kind; give {own}.")
    if spec.shape == (1,):
        if array.size != batch:
            raise InputError(f"input {spec.name} has shape {list(array.shape)}; give [{batch}, 1].")
        return array.reshape(batch)
    most = MAX_WIDTHS.get(spec.name)
    if most and array.ndim > 1 and array.shape[-1] > most:
        raise LimitError(f"input {spec.name} has shape {list(array.shape)}; its last size may be {most:,} at most.")
    fits = array.ndim == 1 + len(spec.shape) and (spec.shape[0] != 2 or array.shape[1] == 2)
    if not fits:
        sizes = ", ".join("n" if size < 0 else str(size) for size in spec.shape)
        raise InputError(f"input {spec.name} has shape {list(array.shape)}; give [batch, {sizes}], a row a request.")
    return array


def _pictures(array: np.ndarray, batch: int) -> np.ndarray:
    """Returns pixels in place of files, a picture a row: [batch, H, W, 3]."""
    if array.ndim != 4:
        raise InputError(
            f"input image has shape {list(array.shape)} of UINT8; give pictures as UINT8 [{batch}, height, width, 3],"
            f" or their files as BYTES [{batch}, images]."
        )
    return array
