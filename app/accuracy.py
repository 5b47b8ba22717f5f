"""Our tokens and log-probabilities beside Hugging Face's: the same ids, pixels, type and device, greedily decoded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vlm.artifacts.files import read_json
from vlm.build.store import locate
from vlm.errors import InputError, OutOfMemoryError, listed
from vlm.limits import MAX_TOP_LOGPROBS
from vlm.registry.registry import converter_of
from vlm.requests.sampling_params import SamplingParams

if TYPE_CHECKING:
    from vlm.api.outputs import Output
    from vlm.api.pipeline import Pipeline
    from vlm.requests.request import Request

# what both sides do, over a model's own settings: penalties would count the rows of images in ways of their own
GREEDY = {"temperature": 0.0, "num_beams": 1, "num_return_sequences": 1, "repetition_penalty": 1.0,
          "no_repeat_ngram_size": 0, "loop_detection": False, "top_logprobs": MAX_TOP_LOGPROBS}  # fmt: skip
# options that both sides heed, and one that greedy decoding has no use for; others must be as if they were not there
COMMON = ("max_new_tokens", "max_length", "min_new_tokens", "forced_bos_token_id", "forced_eos_token_id", "seed",
          "loop_detection", "top_logprobs")  # fmt: skip


@dataclass(frozen=True)
class Accuracy:
    """How far we are from Hugging Face."""

    requests: int
    tokens: int  # that we generated
    agreement: float  # percent of the tokens that are the same at their place; of the longer output of the two
    error: float  # largest difference of a log-probability: of our tokens and the likeliest ones at each place

    def __str__(self) -> str:
        return (
            f"token agreement with Hugging Face {self.agreement:.2f}%, maximum log-probability error {self.error:.3g}"
            f" ({self.tokens} tokens of {self.requests} {'request' if self.requests == 1 else 'requests'})"
        )


def greedy(sampling: dict[str, Any]) -> dict[str, Any]:
    """The options with what a comparison needs. InputError for those that cannot be compared."""
    plain = SamplingParams()
    if unsupported := [n for n, value in sampling.items() if n not in COMMON and value != getattr(plain, n)]:
        raise InputError(f"the accuracy check decodes greedily, one output a request; leave {listed(unsupported)} out.")
    return {**sampling, **GREEDY}


def folder_of(model: str | Path, **options: Any) -> Path:
    """The Hugging Face folder that a model's name stands for; InputError where there is none, or no class for it."""
    source = locate(model, **options)
    if source.kind in ("engine", "checkpoint"):
        what = "an engine" if source.kind == "engine" else "a checkpoint"
        raise InputError(f"{model} is {what}; the accuracy check needs the model's Hugging Face folder, give that.")
    converter = converter_of(source.path)
    config = {} if converter else read_json(source.path / "config.json", InputError, "Hugging Face model folder")
    kind = converter.name if converter else config.get("model_type")
    if converter or not _known(kind):
        raise InputError(f"Hugging Face's transformers has no class for {kind} models; there is nothing to compare to.")
    return source.path


def _known(model_type: Any) -> bool:
    from transformers import CONFIG_MAPPING

    return model_type in CONFIG_MAPPING


def compare(
    folder: Path,
    pipeline: Pipeline,
    inputs: Iterable[Any],
    outputs: Iterable[Output],
    sampling: dict[str, Any],
    reference_dtype: str | None = None,
) -> Accuracy:
    """inputs, and the outputs that `pipeline` gave for them with `greedy(sampling)` -> how they compare.

    `reference_dtype`: what Hugging Face computes in; None: the engine's type. Raises InputError for an input that
    cannot be compared, and OutOfMemoryError where both do not fit.
    """
    requests = [pipeline.request(given, **greedy(sampling)) for given in inputs]
    with fitting_beside():
        return compared(Reference.load(folder, pipeline, reference_dtype), requests, list(outputs))


@contextmanager
def fitting_beside() -> Iterator[None]:
    """Raises OutOfMemoryError with a step to take where two models are too much for the device."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise OutOfMemoryError(
            "Hugging Face's model does not fit beside ours on this device; check with --device cpu."
        ) from None


def compared(reference: Reference, requests: list[Request], outputs: list[Output]) -> Accuracy:
    """What the pipeline gave for these requests beside what the reference gives."""
    same, longest, error = 0, 0, 0.0
    for request, output in zip(requests, outputs, strict=True):
        theirs, ours = reference.tokens(request), output.token_ids
        same += sum(a == b for a, b in zip(ours, theirs, strict=False))
        longest += max(len(ours), len(theirs))
        exact = reference.log_probabilities(request, ours)
        error = max(error, _error(exact, output, request.params.forced_tokens))
    tokens = sum(len(output.token_ids) for output in outputs)
    return Accuracy(len(outputs), tokens, 100 * same / max(longest, 1), error)


def _error(exact: Tensor, output: Output, forced: frozenset[int]) -> float:
    """exact [tokens, vocabulary]: log-probabilities -> the largest difference of ours; a token that was `forced` has
    the log-probability 0, which is not the model's."""
    error, given = 0.0, zip(output.token_ids, output.logprobs, output.top_logprobs or [], strict=True)
    for row, (token, own, top) in zip(exact, given, strict=True):
        chosen = [] if own == 0.0 and token in forced else [(token, own)]
        ids, ours = zip(*chosen, *top.items(), strict=True)
        error = max(error, float((row[list(ids)] - torch.tensor(ours)).abs().max()))
    return error


class Reference:
    """A Hugging Face model on the device of a pipeline, asked with the pipeline's requests, one at a time."""

    def __init__(self, model: Any, pipeline: Pipeline):
        self.model, self.pipeline = model, pipeline
        self.encoder_decoder = pipeline.config.cross_attention
        self.vocab_size = pipeline.capabilities.vocab_size

    @classmethod
    def load(cls, folder: Path, pipeline: Pipeline, dtype: str | None = None) -> Reference:
        """Loads the folder's model; `dtype` None: the engine's computing type."""
        from vlm_app.bench.huggingface import quiet

        quiet()
        dtype = getattr(torch, dtype or pipeline.engine.build.dtype)
        model = model_class(folder).from_pretrained(folder, dtype=dtype)
        return cls(model.to(pipeline.device).eval(), pipeline)

    # --- what it is asked ---
    def tokens(self, request: Request) -> list[int]:
        """What its own generate gives, up to and with the end token."""
        model, inputs = self._inputs(request)
        prompt = len(request.decoder_prompt_token_ids)
        params, limit = request.params, self._limit(request)
        with torch.inference_mode():
            out = model.generate(
                **inputs, do_sample=False, num_beams=1, repetition_penalty=1.0, no_repeat_ngram_size=0,
                max_new_tokens=limit, min_new_tokens=max(params.min_new_tokens, params.min_length - prompt),
                min_length=0, num_return_sequences=1, eos_token_id=list(self._ends) or None, pad_token_id=self._pad,
                forced_bos_token_id=params.forced_bos_token_id, forced_eos_token_id=params.forced_eos_token_id,
            )  # fmt: skip
        # given embeddings, a decoder returns the new tokens alone
        found = out[0].tolist()[0 if "inputs_embeds" in inputs and not self.encoder_decoder else prompt :]
        return found[: next((i + 1 for i, token in enumerate(found) if token in self._ends), limit)]

    def log_probabilities(self, request: Request, token_ids: list[int]) -> Tensor:
        """Returns all tokens' log-probabilities at each place of `token_ids`, from one pass: [tokens, vocabulary]."""
        model, inputs = self._inputs(request, token_ids[:-1])
        with torch.inference_mode():
            logits = model(**inputs).logits[0, -len(token_ids) :]
        return logits.float().log_softmax(-1).cpu()

    # --- inputs ---
    @property
    def _ends(self) -> tuple[int, ...]:
        return self.pipeline.capabilities.eos_token_ids

    @property
    def _pad(self) -> int:
        pad = self.model.config.get_text_config().pad_token_id
        return self._ends[0] if pad is None and self._ends else pad or 0

    def _limit(self, request: Request) -> int:
        """New tokens at most."""
        prompt, params = len(request.decoder_prompt_token_ids), request.params
        most = self.pipeline.capabilities.max_seq_len
        return params.max_new_tokens or max(1, min(most, params.max_length or most) - prompt)

    def _inputs(self, request: Request, after: list[int] | None = None) -> tuple[Any, dict[str, Any]]:
        """The model, or for a text alone its language part, and what it is given; `after` the prompt go these."""
        prompt, after = list(request.decoder_prompt_token_ids), after or []
        inputs: dict[str, Any] = {}
        model, pixels = self.model, self._pixels(request)
        if pixels is not None:
            inputs["pixel_values"] = pixels
        elif hasattr(model, "qformer"):
            model = model.language_model
        if self.encoder_decoder:
            inputs["decoder_input_ids"] = self._tensor([*prompt, *after])
            if request.encoder_input_ids is not None:
                inputs |= self._chat_inputs(model, request, list(request.encoder_input_ids))
        else:
            inputs |= self._chat_inputs(model, request, [*prompt, *after])
        return model, inputs

    def _chat_inputs(self, model: Any, request: Request, ids: list[int]) -> dict[str, Tensor]:
        """Ids with placeholders for the images' rows; embeddings where a prompt table is among them."""
        given = 0 if request.prompt_table is None else len(request.prompt_table)
        if request.images:
            if given:
                raise InputError("the accuracy check takes images or a prompt table, not both in one request.")
            ids = [self._placeholder if i >= self.vocab_size else i for i in ids]
        mask = {"attention_mask": self._tensor([1] * len(ids))}
        if not given:
            return {"input_ids": self._tensor(ids), **mask}
        learned = model.get_input_embeddings()(self._tensor([min(i, self.vocab_size - 1) for i in ids]))
        rows = request.prompt_table.rows.to(learned)
        at = [(place, i - self.vocab_size) for place, i in enumerate(ids) if i >= self.vocab_size]
        with torch.no_grad():
            for place, row in at:
                learned[0, place] = rows[row]
        return {"inputs_embeds": learned.detach(), **mask}

    @property
    def _placeholder(self) -> int:
        config = self.model.config
        return config.image_token_id if hasattr(config, "image_token_id") else config.image_token_index

    def _pixels(self, request: Request) -> Tensor | None:
        """[images, C, H, W]"""
        images = request.images if request.encoder_image is None else (request.encoder_image,)
        if len({image.pixels.shape for image in images}) > 1:
            raise InputError("the accuracy check takes images of one size a request; give each its own.")
        found = [image.pixels for image in images]
        return torch.stack(found).to(self.model.device, self.model.dtype) if found else None

    def _tensor(self, ids: list[int]) -> Tensor:
        """[1, n]"""
        return torch.tensor([ids], device=self.model.device)


def model_class(folder: Path) -> type[torch.nn.Module]:
    """What loads the folder's model as a whole."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    known = {
        "llava": "LlavaForConditionalGeneration",
        "blip-2": "Blip2ForConditionalGeneration",
        "vision-encoder-decoder": "VisionEncoderDecoderModel",
    }
    rest = "AutoModelForSeq2SeqLM" if config.is_encoder_decoder else "AutoModelForCausalLM"
    return getattr(transformers, known.get(config.model_type, rest))
