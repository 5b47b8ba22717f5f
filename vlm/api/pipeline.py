"""Images and text in, text out: what people call. Everything below speaks tensors and token ids."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from vlm.api.adapters import LoadedAdapters
from vlm.api.capabilities import Capabilities
from vlm.api.encoding import EncoderCalls
from vlm.api.images_ahead import ImagesAhead
from vlm.api.job import Job
from vlm.api.loader import load_engine
from vlm.api.outputs import Encoding, Output, OutputReader, text_stream
from vlm.api.pages_in_steps import PagesInSteps, lone_image
from vlm.api.pooled import THREADS
from vlm.api.prefetch import Prefetch
from vlm.api.texts_ahead import TextsAhead
from vlm.artifacts.engine_dir import EngineDir
from vlm.artifacts.prompt_tables import PromptTables
from vlm.backends.devices import of_rank
from vlm.backends.threads import take_one_thread
from vlm.config import ModelConfig, RuntimeConfig
from vlm.engine.engine_loop import EngineLoop
from vlm.engine.leading import Engine, LeadingEngine
from vlm.engine.llm_engine import EngineUsage
from vlm.errors import InputError, OutOfMemoryError, VlmError, listed
from vlm.executor.memory import memory_errors
from vlm.ops.kernels.compile_time import compile_seconds
from vlm.parallel.collectives import ALONE, Ranks
from vlm.parallel.environment import rank_among
from vlm.processing.input_fields import INPUT_KEYS
from vlm.processing.processor import Processor, ProcessorFiles
from vlm.requests.generation import check_options, sampling_params, warn_of_what_is_not_applied
from vlm.requests.request import Request
from vlm.requests.sampling_params import SamplingParams
from vlm.requests.token_update import Completion
from vlm.stage_clock import StageClock

if TYPE_CHECKING:
    from vlm.api.rank_processes import RankProcesses
    from vlm.executor.collective_time import CollectiveTime

TEXTS_TOGETHER = 32  # that a thread prepares at once: one takes microseconds, an image milliseconds


class Pipeline:
    """A loaded model. Not for use by several threads at once."""

    def __init__(self, engine: EngineDir, runtime: RuntimeConfig | None = None, ranks: Ranks | None = None):
        """`ranks`: those that run an engine whose networks are split, of which this is the first (vlm.api.following);
        None: processes that it starts, or that mpirun, torchrun or srun has started (vlm.api.rank_processes)."""
        self.engine, runtime = engine, runtime or RuntimeConfig()
        tables = None if runtime.prompt_table is None else PromptTables.open(runtime.prompt_table)
        self._others: RankProcesses | None = None
        if ranks is None and engine.build.num_ranks > 1:
            from vlm.api import rank_processes

            self._others = rank_processes.begin(engine, runtime)
            ranks, runtime = self._others.ranks, self._others.runtime
        elif ranks is None:
            rank_among(1, engine.path)
            runtime = of_rank(runtime, 0, 1)
        with ThreadPoolExecutor(1, "processor") as beside:
            reading = beside.submit(ProcessorFiles.read, engine)
            self.llm: Engine = self._loaded(runtime, ranks or ALONE)
            files = reading.result()
        self.loop = EngineLoop(self.llm)
        self.adapters = LoadedAdapters(engine, self.llm, list(runtime.lora_folders))
        self.processor = Processor.from_engine(engine, self.adapters, tables, files)
        self.capabilities = Capabilities.from_loaded(self.processor, self.llm)
        self.family, self._builder = self.processor.family, self.processor.request_builder
        self.tokenizer, self.image_processor = self.processor.tokenizer, self.processor.image_processor
        self.config: ModelConfig = self.llm.config
        self.device = self.llm.encoders.device
        self.clock = StageClock()  # of what this process does to inputs and outputs
        self.outputs = OutputReader(self.tokenizer, self.family, self.clock)
        self._encoder = EncoderCalls(self.llm, self.processor, self.capabilities)
        self._is_closed = False
        self._workers = ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1), "preprocess", take_one_thread)
        self.feed: Prefetch | None = None  # of a call under way: inputs that the engine has not taken
        self._reset_timings()
        warn_of_what_is_not_applied(engine.path.name, engine.generation)

    def _loaded(self, runtime: RuntimeConfig, ranks: Ranks) -> Engine:
        try:
            engine = load_engine(self.engine, runtime, ranks)
        except BaseException:
            if self._others is not None:
                self._others.kill()
            raise
        return engine if ranks.size == 1 else LeadingEngine(engine, ranks)

    # --- calls ---
    @overload
    def generate(self, inputs: list[Any] | tuple[Any, ...], **options: Any) -> list[Output]: ...
    @overload
    def generate(self, inputs: Any = None, **options: Any) -> Output: ...
    def generate(self, inputs: Any = None, **options: Any) -> Output | list[Output]:
        """Returns an Output for one input, a list of Outputs in order for a list of inputs.

        An input is an image (path, bytes, PIL image, array), for a model of texts a string, or a mapping with `images`,
        `text` (with `src_lang`, `tgt_lang`, `suffix`, `truncate`), `prompt` (where the output begins), `input_ids` (of
        the text, or of a decoder's prompt), `pixel_values` [C, H, W], `encoder_input_ids`, `encoder_output` [rows,
        hidden], `decoder_prompt_token_ids`, `task` and `question` (of a model that has tasks, or that reads a question
        on its image); the same names work as options for a single input. `lora`, the name or number of an adapter (-1:
        none), may stand in each input and is an option for those where it does not. The other options are those of
        SamplingParams.

        A model that is asked in words takes `prompt` (put into its template), `raw_prompt` (as it is) or `messages` (a
        conversation), with several `images` (or `pixel_values` [n, C, H, W], or a list of [C, H, W], whose sizes may
        differ where the model allows it), which stand where the text says <image>, or first; `prompt_table`
        [rows, hidden] is what ids from the vocabulary's size on address, and the images' rows come after it; with a
        text, its rows go before the text. `task`, the name or number of one that the model's tuned prompts are for
        (-1: none), stands for its rows.
        """
        if isinstance(inputs, list | tuple):
            fields, sampling = self._split(options)
            if fields:
                raise InputError(f"{listed(fields)} go inside each input when a list of inputs is given.")
            results = dict(self.as_completed(inputs, on_error="raise", **sampling))
            return [results[i] for i in range(len(inputs))]
        single, sampling = self._single(inputs, options)
        return dict(self.as_completed([single], on_error="raise", **sampling))[0]

    def stream(self, inputs: Any = None, **options: Any) -> Iterator[str]:
        """Yields text pieces of one input as they are decoded, before post-processing; `last_output` holds the rest."""
        single, sampling = self._single(inputs, options)
        if self.tokenizer is None:
            raise InputError("this engine has no tokenizer, so there is no text to stream; use generate().token_ids.")
        if self.processor.page_steps is not None and lone_image(single) is not None:
            raise InputError("a page is read part by part, which is not streamed; use generate(), or give a prompt.")
        self._begin()
        lora = sampling.pop("lora", None)
        params = self._params({"num_return_sequences": 1, **sampling})
        if params.num_return_sequences > 1:
            raise InputError("a stream is of one output; use generate() for several.")
        with self._preparing():
            request = self._builder.build(single, params, lora)
        [request_id] = self.loop.add([request])
        text, ended = text_stream(self.tokenizer, params), False
        try:
            while not ended:
                for update in self.loop.step_for([request_id]):
                    ended = update.finished
                    if update.completion is not None and update.completion.out_of_memory:
                        raise OutOfMemoryError(self.loop.memory_sentence)
                    if piece := text.push(update.token_ids, last=update.finished):
                        yield piece
                    if update.completion is not None:
                        self._count(update.completion)
                        self.last_output = self.outputs.output(update.completion)
        finally:
            self.loop.clear([request_id])

    @overload
    def encode(
        self, inputs: list[Any] | tuple[Any, ...], *, hidden_states: bool = False, attentions: bool = False,
        **options: Any,
    ) -> list[Encoding]: ...  # fmt: skip
    @overload
    def encode(
        self, inputs: Any, *, hidden_states: bool = False, attentions: bool = False, **options: Any
    ) -> Encoding: ...
    @memory_errors()
    def encode(
        self, inputs: Any, *, hidden_states: bool = False, attentions: bool = False, **options: Any
    ) -> Encoding | list[Encoding]:
        """Runs the encoder alone: one input gives an Encoding, a list of inputs a list of Encodings in order.

        Inputs are those of `generate`, texts or images; `options` (src_lang, truncate) hold for all of them. A model
        that takes images in its prompts gives the images' features, one after the other, where there is no text.
        """
        self._check_open()
        many = isinstance(inputs, list | tuple)
        fields = [{**self._builder.read(one).given(), **options} for one in (inputs if many else [inputs])]
        encodings = self._encoder.encodings(fields, hidden_states=hidden_states, attentions=attentions)
        return encodings if many else encodings[0]

    @overload
    def as_completed(
        self, inputs: Iterable[Any], *, window: int | None = None, on_error: Literal["raise"] = "raise", **sampling: Any
    ) -> Generator[tuple[int, Output], None, None]: ...
    @overload
    def as_completed(
        self, inputs: Iterable[Any], *, window: int | None = None, on_error: str = "raise", **sampling: Any
    ) -> Generator[tuple[int, Output | VlmError], None, None]: ...
    def as_completed(
        self,
        inputs: Iterable[Any],
        *,
        window: int | None = None,
        on_error: str = "raise",
        lora: str | int | None = None,
        **sampling: Any,
    ) -> Generator[tuple[int, Output | VlmError], None, None]:
        """Yields (index, Output) as inputs finish. Inputs are pulled as room arises: at most `window` are held at once.
        One may be a Future of an input; it joins when it is there. An image alone is a page to a model that reads pages
        in steps: its parts follow it into the engine, and what is yielded is the whole page's.

        With on_error="yield" an input's own error takes its Output's place; else it is raised.
        """
        params, steps = self._params(sampling), self.processor.page_steps
        pages, own_thread = None if steps is None else PagesInSteps(steps), threading.get_ident()
        self._begin()

        def request(number: int, source: Any) -> Request:
            if pages is None:
                return self._builder.build(source, params, lora)
            own, settings = pages.begin(number, source, params.num_return_sequences)
            return self._builder.build(own, self._params({**settings, **sampling}) if settings else params, lora)

        def prepared(number: int, source: Any) -> Request:
            # what this thread makes itself is one alone: it is hashed while the device is at work on it
            built, is_own = request(number, source), threading.get_ident() == own_thread
            return built if is_own else _hashed(built)

        feed = self.feed = Prefetch(
            self._workers,
            enumerate(inputs),
            prepared,
            self._window(window),
            most=1 if self.family.takes_images else TEXTS_TOGETHER,
            within=self._preparing,
        )
        job = Job(
            self.loop, feed, self.outputs, pool=self._workers, on_completion=self._count,
            images_ahead=ImagesAhead.of(self.loop, self.capabilities.max_batch_size),
            texts_ahead=TextsAhead.of(self.loop),
        )  # fmt: skip
        try:
            for index, result in job.results():
                results = [(index, result)]
                if pages is not None:
                    more, results = pages.take(index, result)
                    feed.put_first(more)
                for number, whole in results:
                    if isinstance(whole, VlmError) and on_error == "raise":
                        raise whole
                    yield number, whole
        finally:
            self.feed = None
            job.close()

    def complete(self, requests: Iterable[Request]) -> list[Completion]:
        """Returns what requests come to, in tokens, when all have ended."""
        self._check_open()
        return self.loop.run(requests)

    @property
    def timings(self) -> dict[str, float]:
        """Seconds of the last call: preprocess (summed over threads), encode (in part beside decode), prefill, decode,
        total; and tokens."""
        device = self.llm.encoders.timer.totals()
        seconds = {name: device.get(name, 0.0) for name in ("encode", "prefill", "decode")}
        total = (self._ended or time.perf_counter()) - self._started
        return {"preprocess": self._preprocess_seconds, **seconds, "total": total, "tokens": self._tokens}

    @property
    def compile_seconds(self) -> float:
        """Returns what this process has spent on compiling kernels: once on a machine, which keeps them."""
        return compile_seconds()

    @property
    def device_seconds(self) -> dict[str, float]:
        """Returns seconds that the device was at work in the last call, of what it is through with: encode, prefill,
        decode. Waits for nothing."""
        return self.llm.encoders.timer.finished()

    def collective_time(self, rows: int) -> CollectiveTime | None:
        """Measures what ranks tell each other in a decode step of so many sequences, by itself; None: there is one rank
        alone. Not while requests are under way."""
        return self.llm.collective_time(rows) if isinstance(self.llm, LeadingEngine) else None

    def load_lora(self, name: str, folder: str | Path) -> None:
        """Loads an adapter, which requests may name from now on. Raises InputError for a name that one has or none can
        have, LimitError where there is no room for it (`max_loras`, `max_lora_rank`), ConfigError and CheckpointError
        for one that does not fit."""
        self.adapters.load(name, self.adapters.read(folder))

    def unload_lora(self, name: str) -> None:
        """Unloads an adapter; requests that have it end with it. Raises InputError for one that is not loaded."""
        self.adapters.unload(name)

    def usage(self) -> EngineUsage | None:
        """Says how full its engine is; None of an encoder alone. Any thread may ask."""
        return self.llm.usage()

    def free_cached_memory(self) -> None:
        """Gives back the device memory of what is kept for later."""
        self.llm.free_cached_memory()

    def close(self) -> None:
        """Ends what works for it, other ranks too; it takes no more inputs."""
        self._is_closed = True
        self._workers.shutdown(wait=False, cancel_futures=True)
        if isinstance(self.llm, LeadingEngine):
            self.llm.dismiss()
        if self._others is not None:
            self._others.close()

    # --- requests ---
    def request(self, source: Any, *, lora: str | int | None = None, **sampling: Any) -> Request:
        """Returns what an input becomes: token ids or pixels, where the output begins, the settings with the model's
        own."""
        return _hashed(self._builder.build(source, self._params(sampling), lora))

    def _single(self, inputs: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        fields, sampling = self._split(options)
        if inputs is not None and fields:
            raise InputError(f"an input was given twice: by position and as {listed(fields)}.")
        if inputs is None and not fields:
            raise InputError("no input: give an image or a text, or images=, text=, pixel_values= or encoder_output=.")
        return (fields if inputs is None else inputs), sampling

    @staticmethod
    def _split(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        keys = set(INPUT_KEYS) - {"lora"}  # which is an option of inputs that are given in any way
        fields = {k: v for k, v in options.items() if k in keys and v is not None}
        return fields, {k: v for k, v in options.items() if k not in keys}

    def _params(self, sampling: dict[str, Any]) -> SamplingParams:
        check_options(sampling, INPUT_KEYS)
        return sampling_params(sampling, self.engine.generation, loop_detection=self.family.loop_detection)

    @contextmanager
    def _preparing(self) -> Iterator[None]:
        """Counts what a thread prepares within its block."""
        start = time.perf_counter()
        with self.clock("prepare"):
            yield
        self._preprocess_seconds += time.perf_counter() - start

    # --- results ---
    def _count(self, completion: Completion) -> None:
        self._tokens += len(completion.token_ids)
        self._ended = time.perf_counter()

    def _window(self, window: int | None) -> int:
        # as much again as runs, so that a freed slot never waits for preprocessing
        return window or 2 * self.capabilities.max_batch_size

    def _begin(self) -> None:
        """Begins a call. Raises InputError where it is closed."""
        self._check_open()
        self._reset_timings()

    def _check_open(self) -> None:
        if self._is_closed:
            raise InputError("this pipeline is closed; load the model again, with vlm.load().")

    def _reset_timings(self) -> None:
        self.llm.encoders.timer.reset()
        self._preprocess_seconds, self._tokens = 0.0, 0
        self._started, self._ended = time.perf_counter(), None


def _hashed(request: Request) -> Request:
    """Returns a request whose images have their keys."""
    for image in request.images:
        image.compute_key()
    return request
