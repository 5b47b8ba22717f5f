"""Tensors of a batch -> inputs of a pipeline, and outputs -> tensors; names and meanings are FasterTransformer's.

https://github.com/triton-inference-server/fastertransformer_backend: docs/t5_guide.md, docs/gpt_guide.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from vlm.api.outputs import Output
from vlm.errors import InputError
from vlm.processing.media.reading import ImageFile
from vlm.processing.processor import Processor
from vlm.registry.images.processor import QuestionUse
from vlm.requests.pixels import ImagePixels
from vlm_app.server.core.generation_input import GenerationInput
from vlm_app.server.core.messages import decode_data_uri
from vlm_app.server.tensors.aliases import by_own_names
from vlm_app.server.tensors.ft_tensors import without_neutral
from vlm_app.server.tensors.settings import SCALARS, adapter_of, settings_of
from vlm_app.server.tensors.specs import IDS_IN, STRINGS, TEXT_IN, check_names, check_tensors, forms_of, specs_of
from vlm_app.server.tensors.values import text_of

# no image's file begins so: a data URI, an address, base64
_IN_WORDS = re.compile(rb"data:|(https?|file|ftp|s3|gs)://|[a-z0-9+/_-]{64}", re.IGNORECASE)
Row = dict[str, Any]  # one request's part of each tensor: an array, or the one value of a scalar


def read_batch(processor: Processor, inputs: dict[str, np.ndarray]) -> list[GenerationInput]:
    """Requests of tensors (`input_ids`, `pixel_values`), or of texts and images. InputError with one sentence."""
    inputs = without_neutral(inputs)
    if {"input_ids", "text_input"} <= inputs.keys():
        raise InputError("input_ids and text_input are two forms of one input; give one of the two.")
    if by_ids := bool({"input_ids", "pixel_values"} & inputs.keys()):
        size, tensors = check_tensors(inputs, IDS_IN, specs_of(processor, IDS_IN))
    elif {"text_input", "image"} & inputs.keys():
        size, tensors = check_tensors(inputs, TEXT_IN, specs_of(processor, TEXT_IN))
    else:
        check_names(by_own_names(inputs.items()), (*IDS_IN, *TEXT_IN), forms_of(processor))
        raise InputError("there is nothing to work on; give input_ids, or text_input and image.")
    rows = [{name: array[i] for name, array in tensors.items()} for i in range(size)]
    return [_of_tensors(processor, row) if by_ids else _of_text(processor, row) for row in rows]


def write_batch(
    processor: Processor, items: list[GenerationInput], outputs: list[list[Output]]
) -> dict[str, np.ndarray]:
    """Returns all that may be wanted: [batch, beams, …], rows padded at their ends.

    A prompt of a decoder alone stands before what has been generated.
    """
    prompts = [prompt_of(processor, each.source.get("decoder_prompt_token_ids", ())) for each in items]
    tokens = [[prompt + o.token_ids for o in row] for prompt, row in zip(prompts, outputs, strict=True)]
    logprobs = [[o.logprobs for o in row] for row in outputs]
    end, kind = processor.config.eos_token_id, np.int32 if processor.config.cross_attention else np.uint32
    return {
        # first, as a model's metadata list it: litellm reads the first output as the text
        "text_output": padded([[o.text.encode("utf-8", "replace") for o in row] for row in outputs], b"", object),
        "output_ids": padded(tokens, end, kind),
        "sequence_length": padded([[len(x) for x in row] for row in tokens], 0, kind),
        "response_input_lengths": padded(
            [[len(prompt)] * len(row) for prompt, row in zip(prompts, outputs, strict=True)], 0, kind
        ),
        "cum_log_probs": padded([[sum(x) for x in row] for row in logprobs], 0.0, np.float32),
        "output_log_probs": padded(logprobs, 0.0, np.float32),
    }


# --- inputs ---
def _of_tensors(processor: Processor, row: Row) -> GenerationInput:
    source: dict[str, Any] = {}
    if "pixel_values" in row:
        images = _first_of(row, "pixel_values", "num_images")
        processor.check_image_count(len(images))  # each takes the time of a hash
        own = _unpadded(_float32(images), row.get("image_sizes"))
        source = processor.with_pixels(source, [[ImagePixels.of(image) for image in own]])
    if "input_ids" in row:
        ids = without_padding(row, "input_ids", "sequence_length")
        first, task = processor.vocab_size, _task(row)
        if task.get("task", -1) != -1 and "request_prompt_embedding" in row:
            raise InputError("request_prompt_embedding and a task are two prompts of one input; give one of the two.")
        if "request_prompt_embedding" in row:
            table = _first_of(row, "request_prompt_embedding", "request_prompt_lengths")
            source["prompt_table"] = _float32(table)
            ids = [*range(first, first + len(table)), *ids]
        if task:
            ids = processor.request_builder.with_tuned_rows(ids, task["task"])
        source |= task
        source["encoder_input_ids" if processor.encoder else "decoder_prompt_token_ids"] = ids
    if "decoder_input_ids" in row and processor.config.cross_attention:
        source["decoder_prompt_token_ids"] = without_padding(row, "decoder_input_ids", "decoder_input_lengths")
    return GenerationInput({**source, **_start(processor, row), **adapter_of(row)}, [], _sampling(row))


def _float32(array: np.ndarray) -> np.ndarray:
    """Returns values as float32; what is too large for it is infinite, and refused where inputs are read."""
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


def _unpadded(images: np.ndarray, sizes: np.ndarray | None) -> list[np.ndarray]:
    """Maps images [n, C, H, W], sizes [n or more, (height, width)], None where all are alike -> of
    each [C, height, width]"""
    if sizes is None:
        return list(images)
    most = images.shape[2:]
    pairs: list[list[int]] = sizes[: len(images)].tolist()
    if len(pairs) < len(images) or not all(0 < h <= most[0] and 0 < w <= most[1] for h, w in pairs):
        raise InputError(f"image_sizes is {pairs}; give the height and width of each image, at most {list(most)}.")
    return [image[:, :height, :width] for image, (height, width) in zip(images, pairs, strict=True)]


def _first_of(row: Row, name: str, count: str) -> np.ndarray:
    """Returns as many of a row's images, or rows of embeddings, as it says that it has; by default all."""
    values = row[name]
    number = int(row.get(count, len(values)))
    if not 0 <= number <= len(values):
        raise InputError(f"{count} is {number}; {name} has {len(values)} of them.")
    return values[:number]


def without_padding(row: Row, name: str, lengths: str) -> list[int]:
    """Returns a row's ids without the padding."""
    length = int(row.get(lengths, len(row[name])))
    if not 0 < length <= len(row[name]):
        raise InputError(f"{lengths} is {length}; {name} has {len(row[name])} tokens.")
    return row[name][:length].tolist()


def _of_text(processor: Processor, row: Row) -> GenerationInput:
    source, files = read_text(processor, row)
    return GenerationInput({**source, **_task(row), **_start(processor, row), **adapter_of(row)}, files, _sampling(row))


def _task(row: Row) -> dict[str, Any]:
    """Returns whose tuned prompt goes before a text, by its name or number."""
    if {"task", "prompt_learning_task_name_ids"} <= row.keys():
        raise InputError("task and prompt_learning_task_name_ids were sent together; send one of them.")
    if "task" in row:
        task = row["task"]
        return {"task": text_of("task", task) if isinstance(task, bytes) else int(task)}
    number = row.get("prompt_learning_task_name_ids")
    return {} if number is None else {"task": int(number)}


def read_text(processor: Processor, row: Row) -> tuple[dict[str, Any], Sequence[ImageFile]]:
    """Reads a text, which is put into the model's template; images stand where it says <image>, or first. Beside it
    stand a question, and a task of the model's own."""
    text = text_of("text_input", row["text_input"]) if "text_input" in row else ""
    images = row.get("image", ())
    files = [images] if getattr(images, "ndim", 0) == 3 else [_file(each) for each in images]
    told = _task(row) if processor.tasks is not None else {}
    told |= {"question": text_of("question", row["question"])} if "question" in row else {}
    if processor.family.takes_prompt:
        return {"prompt": text, **told}, files
    if processor.family.takes_text:
        return {"text": text, **told}, files
    if not len(files):
        raise InputError(f"{processor.family.name} reads images, and there is none; give image.")
    if processor.question_use is not QuestionUse.DRAWN:
        return {"prompt": text or None, **told}, files
    if text and "question" in told:
        raise InputError("the question was sent as text_input and as question; send it once.")
    return {"question": text or None, **told}, files


def _file(element: bytes) -> bytes:
    """Returns a file's bytes; in JSON, which cannot hold them, a data URI. Raises InputError for an address, and for
    base64 alone."""
    return decode_data_uri(element.decode("ascii", "replace")) if _IN_WORDS.match(element) else element


def _start(processor: Processor, row: Row) -> dict[str, Any]:
    """Returns the start token, where one is sent; a decoder alone starts from its prompt."""
    begins = "start_id" in row and processor.config.cross_attention
    return {"decoder_prompt_token_ids": [int(row["start_id"])]} if begins else {}


def _sampling(row: Row) -> dict[str, Any]:
    """Reads a row's settings: beam_width 1 with runtime_top_k 1, or neither top-k nor top-p, is greedy. Raises
    InputError for NaN and infinity, where they would change nothing, too."""
    for name in SCALARS.keys() & row.keys():
        if row[name].dtype.kind == "f" and not np.isfinite(row[name]):
            raise InputError(f"input {name} is {row[name]}; give a number that is finite.")
    settings = settings_of(row)
    beams, temperature = settings.setdefault("num_beams", 1), settings.pop("temperature", 1.0)
    top_k, top_p = settings.pop("top_k", 0), settings.pop("top_p", 0.0)
    do_sample = beams == 1 and (top_k > 1 or (top_k == 0 and top_p > 0))
    # greedy whatever the model's own temperature is
    settings |= {"num_return_sequences": beams, "temperature": temperature if do_sample else 0.0}
    if do_sample:
        settings |= {"top_k": top_k, "top_p": top_p or 1.0}
    if "end_id" in row:
        settings |= {"stop_token_ids": (int(row["end_id"]),), "ignore_eos": True}
    for name, field in (("stop_words_list", "stop_words_ids"), ("bad_words_list", "bad_words_ids")):
        if name in row:
            settings[field] = _words(name, row[name])
    texts = {field: _strings(name, row[name]) for name, field in STRINGS.items() if name in row}
    return settings | {field: words for field, words in texts.items() if words}


def _strings(name: str, words: Iterable[bytes]) -> tuple[str, ...]:
    """Returns words as texts, without the empty ones: TensorRT-LLM's clients say so that there are none."""
    return tuple(text_of(name, word) for word in words if word)


def _words(name: str, table: np.ndarray) -> tuple[tuple[int, ...], ...]:
    """Reads [2, n]: the words' tokens one after the other, and where each word ends; -1 pads."""
    tokens, ends = table[0].tolist(), [int(end) for end in table[1] if end > 0]
    begins = [0, *ends][: len(ends)]
    if any(begin >= end for begin, end in zip(begins, ends, strict=True)) or max(ends, default=0) > len(tokens):
        raise InputError(f"{name} has ends {ends} over {len(tokens)} tokens; they must rise and stay inside.")
    return tuple(tuple(tokens[begin:end]) for begin, end in zip(begins, ends, strict=True))


# --- outputs ---
def prompt_of(processor: Processor, token_ids: Iterable[int]) -> list[int]:
    """Returns what stands before an output: the ids that a decoder alone was given, without those of rows of
    embeddings."""
    if processor.config.cross_attention:
        return []
    return [i for i in token_ids if i < processor.config.vocab_size]


def padded(rows: list, fill: Any, dtype: Any) -> np.ndarray:
    """Lists of lists, of one depth -> an array with `fill` where they are short"""
    shape = _shape(rows)
    array = np.full(shape, fill, dtype=dtype)
    for index in np.ndindex(shape[:-1]):
        values = rows
        for i in index:
            values = values[i] if i < len(values) else ()
        array[(*index, slice(len(values)))] = values
    return array


def _shape(rows: list) -> tuple[int, ...]:
    if not rows or not any(isinstance(row, list) for row in rows):
        return (len(rows),)
    inner = [_shape(row) for row in rows]
    return (len(rows), *(max(sizes) for sizes in zip(*inner, strict=True)))
