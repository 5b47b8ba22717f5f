"""Images and text in, text out: what people call. Everything below speaks tensors and token ids."""

from __future__ import annotations

import importlib
import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vlm import registry
from vlm.compile.engine_dir import EngineDir
from vlm.config import ModelConfig, RuntimeConfig
from vlm.errors import InputError, LimitError, VlmError, listed
from vlm.generation import sampling_params, warn_of_what_is_not_applied
from vlm.ops.advance import loop_period
from vlm.processing.images import ImageProcessor, load_image
from vlm.processing.tokenization import TextStream, Tokenizer
from vlm.runtime.llm_engine import LLMEngine
from vlm.runtime.loader import load_engine, resolve_device
from vlm.runtime.request import Request, SamplingParams, Sequence

INPUT_KEYS = (
    "images",
    "text",
    "src_lang",
    "tgt_lang",
    "truncate",
    "prompt",
    "pixel_values",
    "encoder_output",
    "encoder_input_ids",
    "decoder_prompt_token_ids",
)


@dataclass(frozen=True)
class Output:
    """What one input gave."""

    text: str  # post-processed (Nougat: markdown)
    raw_text: str  # as decoded
    token_ids: list[int]  # generated, the end token included
    finish_reason: str  # eos | length | stop | loop | abort
    logprobs: list[float]  # of each generated token, under the model at temperature 1
    seed: int  # gives the same tokens again
    score: float | None = None  # of a beam search: what its outcomes are ranked by
    alternatives: tuple[Output, ...] = ()  # the other ones of num_return_sequences, best first

    @property
    def cumulative_logprob(self) -> float:
        """Of the whole output."""
        return sum(self.logprobs)


def load(
    model: str | Path,
    *,
    device: str = "auto",
    dtype: str | None = None,
    max_batch_size: int | None = None,
    max_seq_len: int | None = None,
    max_encoder_input_len: int | None = None,
    cache_dir: str | Path | None = None,
    runtime: RuntimeConfig | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Pipeline:
    """Loads a packaged name, a Hub id, a Hugging Face folder, a checkpoint or an engine directory.

    What is missing is converted and built once into the cache. `dtype` None: float32 on the CPU, bfloat16 on CUDA (an
    engine keeps its own). Raises a VlmError with one sentence.
    """
    from vlm.resolve import resolve

    runtime = replace(runtime or RuntimeConfig(device=device), max_batch_size=max_batch_size)
    default = "bfloat16" if resolve_device(runtime.device).type == "cuda" else "float32"
    path = resolve(
        model,
        dtype=dtype,
        default_dtype=default,
        max_batch_size=max_batch_size,
        max_seq_len=max_seq_len,
        max_encoder_input_len=max_encoder_input_len,
        cache_dir=cache_dir,
        progress=progress,
    )
    return Pipeline(EngineDir.open(path), runtime)


class Pipeline:
    """A loaded model. Not for use by several threads at once."""

    def __init__(self, engine: EngineDir, runtime: RuntimeConfig | None = None):
        self.engine = engine
        self.family = registry.family(engine.family)
        self.llm: LLMEngine = load_engine(engine, runtime or RuntimeConfig())
        self.config: ModelConfig = self.llm.config
        self.device = self.llm.executor.device
        self.tokenizer = Tokenizer.from_dir(engine.processor_dir) if engine.processor_dir else None
        self.image_processor = self._image_processor()
        self._postprocess = _imported(self.family.postprocess) if self.family.postprocess else str
        self._workers = ThreadPoolExecutor(min(8, os.cpu_count() or 1), thread_name_prefix="preprocess")
        self._reset_timings()
        warn_of_what_is_not_applied(engine.path.name, engine.generation)

    # --- calls ---
    def generate(self, inputs: Any = None, **options: Any) -> Output | list[Output]:
        """One input gives an Output, a list of inputs a list of Outputs in order.

        An input is an image (path, bytes, PIL image, array), for a model of texts a string, or a mapping with `images`,
        `text` (with `src_lang`, `tgt_lang`, `truncate`), `prompt` (where the output begins), `pixel_values` [C, H, W],
        `encoder_input_ids`, `encoder_output` [rows, hidden], `decoder_prompt_token_ids`; the same names work as options
        for a single input. The other options are those of SamplingParams.
        """
        if isinstance(inputs, list | tuple):
            given, sampling = self._split(options)
            if given:
                raise InputError(f"{listed(given)} go inside each input when a list of inputs is given.")
            results = dict(self.as_completed(inputs, **sampling))
            return [results[i] for i in range(len(inputs))]
        single, sampling = self._single(inputs, options)
        return dict(self.as_completed([single], **sampling))[0]

    def stream(self, inputs: Any = None, **options: Any) -> Iterator[str]:
        """Text pieces of one input as they are decoded, before post-processing; `last_output` holds the rest."""
        single, sampling = self._single(inputs, options)
        if self.tokenizer is None:
            raise InputError("this engine has no tokenizer, so there is no text to stream; use generate().token_ids.")
        self._reset_timings()
        request_id = self.llm.add(self._request(single, self._params(sampling)))
        text = TextStream(self.tokenizer)
        try:
            while self.llm.has_work:
                for update in self.llm.step():
                    if piece := text.push(update.new_token_ids, last=update.finished):
                        yield piece
                    if update.finished:
                        self.last_output = self._output(update.sequence)
        finally:
            self._abandon({request_id})

    def as_completed(
        self, inputs: Iterable[Any], *, window: int | None = None, on_error: str = "raise", **sampling: Any
    ) -> Iterator[tuple[int, Output | VlmError]]:
        """(index, Output) as inputs finish. Inputs are pulled as room arises: at most `window` are held at once.

        With on_error="yield" an input's own error takes its Output's place; else it is raised.
        """
        params = self._params(sampling)
        self._reset_timings()
        feed = _Prefetch(self._workers, enumerate(inputs), lambda x: self._request(x, params), self._window(window))
        waiting: dict[int, int] = {}  # request id -> index of its input
        try:
            while waiting or feed.more:
                for index, request in feed.ready(block=not waiting):
                    try:
                        waiting[self.llm.add(request.result())] = index
                    except VlmError as error:
                        if on_error == "raise":
                            raise
                        feed.done()
                        yield index, error
                for update in self.llm.step() if waiting else ():
                    if update.finished:
                        feed.done()
                        yield waiting.pop(update.sequence.id), self._output(update.sequence)
        finally:
            feed.close()
            self._abandon(set(waiting))

    @property
    def timings(self) -> dict[str, float]:
        """Seconds of the last call: preprocess (summed over threads), encode, prefill, decode, total; and tokens."""
        device = self.llm.executor.timer.totals()
        found = {name: device.get(name, 0.0) for name in ("encode", "prefill", "decode")}
        total = (self._ended or time.perf_counter()) - self._started
        return {"preprocess": self._preprocess_seconds, **found, "total": total, "tokens": self._tokens}

    def close(self) -> None:
        self._workers.shutdown(wait=False, cancel_futures=True)

    # --- requests ---
    def _single(self, inputs: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        given, sampling = self._split(options)
        if inputs is not None and given:
            raise InputError(f"an input was given twice: by position and as {listed(given)}.")
        if inputs is None and not given:
            raise InputError("no input: give an image or a text, or images=, text=, pixel_values= or encoder_output=.")
        return (given if inputs is None else inputs), sampling

    @staticmethod
    def _split(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        given = {k: v for k, v in options.items() if k in INPUT_KEYS and v is not None}
        return given, {k: v for k, v in options.items() if k not in INPUT_KEYS}

    def _params(self, sampling: dict[str, Any]) -> SamplingParams:
        if unknown := [k for k in sampling if k not in SamplingParams.__dataclass_fields__]:
            known = (*INPUT_KEYS, *SamplingParams.__dataclass_fields__)
            raise InputError(f"{listed(unknown)} is no option; options are {listed(known, 60)}.")
        longest, loops = self.llm.max_seq_len - 1, self.family.loop_detection
        return sampling_params(sampling, self.engine.generation, longest=longest, loop_detection=loops)

    def _request(self, source: Any, params: SamplingParams) -> Request:
        start = time.perf_counter()
        fields = self._fields(source)
        given, pixels, ids = fields.get("encoder_output"), fields.get("pixel_values"), fields.get("encoder_input_ids")
        if fields.get("images") is not None:
            pixels = self._pixels(fields["images"])
        elif pixels is not None:
            pixels = self._checked_pixels(pixels)
        if fields.get("text") is not None:
            ids = self._source_ids(fields)
        ids = None if ids is None else tuple(ids)
        if (target := fields.get("tgt_lang")) is not None:
            params = self._towards(target, params)
        request = Request(self._decoder_prompt(fields), pixels, ids, given, params)
        self._preprocess_seconds += time.perf_counter() - start
        return request

    def _fields(self, source: Any) -> dict[str, Any]:
        """A bare input is a text for a model of texts, else an image."""
        if not isinstance(source, Mapping):
            is_text = self.family.inputs == ("text",)
            if is_text and not isinstance(source, str):
                raise InputError(f"{self.family.name} takes text; got {type(source).__name__}.")
            return {"text": source} if is_text else {"images": [source]}
        if unknown := [k for k in source if k not in INPUT_KEYS]:
            raise InputError(f"{listed(unknown)} is unknown in an input; allowed are {listed(INPUT_KEYS, 40)}.")
        fields = {k: v for k, v in source.items() if v is not None}
        if {"text", "encoder_input_ids"} & fields.keys() and "text" not in self.family.inputs:
            raise InputError(f"{self.family.name} has no text encoder; `prompt` is where its output begins.")
        if {"images", "pixel_values"} & fields.keys() and "image" not in self.family.inputs:
            raise InputError(f"{self.family.name} takes text, not images; give text=.")
        return fields

    def _source_ids(self, fields: dict[str, Any]) -> list[int]:
        """The encoder's tokens of a text."""
        text, limit = fields["text"], self.llm.max_encoder_len
        if not isinstance(text, str) or not text.strip():
            raise InputError(
                "the text is empty; give at least one word." if isinstance(text, str) else "text must be a string."
            )
        if self.tokenizer is None:
            raise InputError("this engine has no tokenizer; give encoder_input_ids instead of text.")
        cut = limit if fields.get("truncate") else None
        ids = self.tokenizer.encode_source(text, language=fields.get("src_lang"), limit=cut)
        if len(ids) > limit:
            raise LimitError(
                f"the text has {len(ids)} tokens, the engine was built for {limit}; shorten it, cut its end with"
                f" --truncate (truncate=True), or build with --max-encoder-input-len {len(ids)}."
            )
        return ids

    def _pixels(self, images: Any) -> torch.Tensor:
        images = images if isinstance(images, list | tuple) else [images]
        if len(images) != 1:
            raise InputError(
                f"{self.family.name} reads one image a request, got {len(images)}; pass a list of inputs:"
                ' generate(["a.png", "b.png"]).'
            )
        return self.image_processor([load_image(images[0])])[0]

    def _checked_pixels(self, pixels: torch.Tensor) -> torch.Tensor:
        config = self.llm.executor.visual.config
        wanted = (config.num_channels, *config.image_size)
        if tuple(pixels.shape) != wanted:
            raise InputError(f"pixel_values has shape {tuple(pixels.shape)}; this model takes {wanted}.")
        return pixels

    def _towards(self, language: str, params: SamplingParams) -> SamplingParams:
        """mBART-50 begins its output with the code of the target's language; mBART starts from it."""
        languages = self.tokenizer.languages if self.tokenizer else None
        if languages is None:
            raise InputError("this model takes no language codes; name the languages in the text, as it was trained.")
        token = languages.id(language)
        return replace(params, forced_bos_token_id=token) if languages.place == "prefix" else params

    def _decoder_prompt(self, fields: dict[str, Any]) -> tuple[int, ...]:
        ids, prompt = fields.get("decoder_prompt_token_ids"), fields.get("prompt")
        if ids is not None:
            return tuple(ids)
        start = self.engine.generation.get("decoder_start_token_id")
        start = (self.config.decoder_start_token_id if start is None else start,)
        languages = self.tokenizer.languages if self.tokenizer else None
        if (target := fields.get("tgt_lang")) is not None and languages is not None and languages.place == "suffix":
            start = (languages.id(target),)
        if not prompt:
            return start
        if self.tokenizer is None:
            raise InputError("this engine has no tokenizer; give decoder_prompt_token_ids instead of a prompt.")
        return (*start, *self.tokenizer.encode(prompt))

    # --- results ---
    def _output(self, sequence: Sequence) -> Output:
        self._tokens += len(sequence.generated)
        self._ended = time.perf_counter()
        if not sequence.hypotheses:
            return self._decoded(sequence, sequence.generated, sequence.logprobs, sequence.finish_reason)
        best, *others = [
            self._decoded(sequence, h.token_ids, h.logprobs, self.llm.reason_of(sequence, h.token_ids), h.score)
            for h in sequence.hypotheses[: sequence.request.params.num_return_sequences]
        ]
        return replace(best, alternatives=tuple(others))

    def _decoded(
        self, sequence: Sequence, tokens: list[int], logprobs: list[float], reason: str, score: float | None = None
    ) -> Output:
        shown = tokens
        if reason == "loop" and (period := loop_period(sequence.tokens)):
            shown = _without_loop(tokens, period)
        raw = self.tokenizer.decode(shown) if self.tokenizer else ""
        return Output(self._postprocess(raw), raw, tokens, reason, logprobs, sequence.seed, score)

    def _abandon(self, request_ids: set[int]) -> None:
        """Aborts what is left when a caller stops early, so that the next call finds the engine empty."""
        for request_id in request_ids:
            self.llm.abort(request_id)
        while self.llm.has_work:
            self.llm.step()

    def _window(self, window: int | None) -> int:
        # as much again as runs, so that a freed slot never waits for preprocessing
        return window or 2 * self.llm.executor.state.spare

    def _reset_timings(self) -> None:
        self.llm.executor.timer.reset()
        self._preprocess_seconds, self._tokens = 0.0, 0
        self._started, self._ended = time.perf_counter(), None

    def _image_processor(self) -> ImageProcessor | None:
        if self.llm.executor.visual is None:
            return None
        if self.engine.processor_dir and (self.engine.processor_dir / "preprocessor_config.json").is_file():
            return ImageProcessor.from_dir(self.engine.processor_dir)
        return ImageProcessor.default(self.llm.executor.visual.config.image_size)


class _Prefetch:
    """Prepares inputs in worker threads, at most `window` of them under way or unanswered."""

    def __init__(self, pool: ThreadPoolExecutor, source: Iterator, prepare: Callable, window: int):
        self._pool, self._source, self._prepare, self._room = pool, source, prepare, window
        self._futures: deque[tuple[int, Future]] = deque()
        self._exhausted = False
        self._fill()

    @property
    def more(self) -> bool:
        return bool(self._futures) or not self._exhausted

    def ready(self, block: bool) -> list[tuple[int, Future]]:
        """Prepared inputs in order; waits for one when `block`."""
        self._fill()
        found = []
        while self._futures and (self._futures[0][1].done() or (block and not found)):
            index, future = self._futures.popleft()
            future.exception()  # waits
            found.append((index, future))
        return found

    def done(self) -> None:
        """One input has been answered: there is room for another."""
        self._room += 1

    def close(self) -> None:
        for _, future in self._futures:
            future.cancel()

    def _fill(self) -> None:
        for index, value in itertools.islice(self._source, self._room):
            self._futures.append((index, self._pool.submit(self._prepare, value)))
            self._room -= 1
        self._exhausted = self._room > 0


def _without_loop(tokens: list[int], period: int) -> list[int]:
    """The history up to the end of the loop's first turn."""
    end = len(tokens)
    while end > 2 * period and tokens[end - 1] == tokens[end - 1 - period]:
        end -= 1
    return tokens[:end]


def _imported(target: str) -> Callable[[str], str]:
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)
