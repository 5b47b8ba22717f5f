"""Images and text in, text out: what people call. Everything below speaks tensors and token ids."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, Literal, overload

from vlm.api.ahead.images_ahead import ImagesAhead
from vlm.api.ahead.prefetch import Prefetch
from vlm.api.ahead.texts_ahead import TextsAhead
from vlm.api.call_options import check_request, inputs_of, single_input
from vlm.api.call_timings import CallTimings
from vlm.api.encoding import EncoderCalls
from vlm.api.job import Job
from vlm.api.model.loaded_model import LoadedModel
from vlm.api.outputs import Encoding, Output, OutputReader, text_stream
from vlm.api.pages_in_steps import PagesInSteps, lone_image
from vlm.api.preparation import preparation, texts_together, with_keys
from vlm.artifacts.native.engine_dir import EngineDir
from vlm.config import RuntimeConfig
from vlm.errors import InputError, VlmError, shown
from vlm.executor.memory import memory_errors
from vlm.parallel.collectives import Ranks
from vlm.processing.inputs.fields import INPUT_KEYS
from vlm.requests.generation import check_options, sampling_params, warn_of_what_is_not_applied
from vlm.requests.request import Request
from vlm.requests.sampling_params import SamplingParams
from vlm.requests.token_update import Completion
from vlm.stage_clock import StageClock

Prepare = Callable[[int, Any], Request]  # what makes the request of an input, which has its number
TEXTS_TOGETHER = 32  # that a thread prepares at once: one takes microseconds, an image milliseconds


class Pipeline(LoadedModel):
    """A loaded model, and what it is asked. Not for use by several threads at once."""

    def __init__(self, engine: EngineDir, runtime: RuntimeConfig | None = None, ranks: Ranks | None = None):
        """`ranks`: see LoadedModel."""
        super().__init__(engine, runtime, ranks)
        self.clock = StageClock()  # of what this process does to inputs and outputs
        self.outputs = OutputReader(self.tokenizer, self.family, self.clock)
        self.feed: Prefetch | None = None  # of a call under way: inputs that the engine has not taken
        self._jobs: set[Job] = set()  # of calls under way
        self._builder = self.processor.request_builder
        self._encoder = EncoderCalls(self.llm, self.processor, self.capabilities)
        self._timings = CallTimings(self.llm.encoders.timer, self.clock)
        warn_of_what_is_not_applied(engine.path.name, engine.generation)

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
        on its image); the same names work as options, in place of a single input or beside it, and for all of a list:
        `generate(texts, src_lang="de_DE")`. `lora`, the name or number of an adapter (-1: none), may stand in each
        input and is an option for those where it does not. The other options are those of SamplingParams.

        A model that is asked in words takes `prompt` (put into its template), `raw_prompt` (as it is) or `messages` (a
        conversation), with several `images` (or `pixel_values` [n, C, H, W], or a list of [C, H, W], whose sizes may
        differ where the model allows it), which stand where the text says <image>, or first; `prompt_table`
        [rows, hidden] is what ids from the vocabulary's size on address, and the images' rows come after it; with a
        text, its rows go before the text. `task`, the name or number of one that the model's tuned prompts are for
        (-1: none), stands for its rows.
        """
        if isinstance(inputs, list | tuple):
            several, sampling = inputs_of(inputs, options, self._builder)
            results = dict(self.as_completed(several, on_error="raise", **sampling))
            return [results[i] for i in range(len(inputs))]
        single, sampling = single_input(inputs, options, self._builder)
        return dict(self.as_completed([single], on_error="raise", **sampling))[0]

    def stream(self, inputs: Any = None, **options: Any) -> Iterator[str]:
        """Yields text pieces of one input as they are decoded, before post-processing; `last_output` holds the rest."""
        single, sampling = single_input(inputs, options, self._builder)
        if self.tokenizer is None:
            raise InputError("this engine has no tokenizer, so there is no text to stream; use generate().token_ids.")
        if self.processor.page_steps is not None and lone_image(single) is not None:
            raise InputError("a page is read part by part, which is not streamed; use generate(), or give a prompt.")
        self._begin()
        lora = sampling.pop("lora", None)
        params = self._params({"num_return_sequences": 1, **sampling})
        if params.num_return_sequences > 1:
            raise InputError("a stream is of one output; use generate() for several.")
        with self._timings.preparing():
            request = self._builder.build(single, params, lora)
        [request_id] = self.loop.add([request])
        text, ended = text_stream(self.tokenizer, params), False
        try:
            while not ended:
                for update in self.loop.step_for([request_id]):
                    ended = update.finished
                    if update.completion is not None and update.completion.out_of_memory:
                        raise self.loop.memory_error()
                    if piece := text.push(update.token_ids, last=update.finished):
                        yield piece
                    if update.completion is not None:
                        self._timings.count(update.completion)
                        self.last_output = self.outputs.output(update.completion)
        finally:
            self.loop.clear([request_id])
            self._end()

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
        completed = (self._builder.completed(one, options) for one in (inputs if many else [inputs]))
        fields = [self._builder.read(one).by_name() for one in completed]
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
        _check_feeding(inputs, window, on_error)
        params, steps = self._params(sampling), self.processor.page_steps
        pages = None if steps is None else PagesInSteps(steps)
        self._begin()
        prepare = preparation(
            self._builder,
            params,
            lora=lora,
            pages=pages,
            page_params=lambda settings: self._params({**settings, **sampling}),
        )
        together = None if self.family.takes_images else texts_together(self._builder, params, lora)
        feed = self.feed = self._prefetch(inputs, prepare, window, together)
        self._jobs.add(job := self._job(feed))
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
            self._jobs.discard(job)
            job.close()
            self._end()

    def stop(self) -> None:
        """Ends the calls of `as_completed` that are under way with the engine's step, however long their outputs would
        take; one that waits for an input ends once that has come. Any thread may call it."""
        for job in tuple(self._jobs):  # in one go: calls begin and end meanwhile
            job.stop()

    def complete(self, requests: Iterable[Request]) -> list[Completion]:
        """Returns what requests come to, in tokens, when all have ended. Raises InputError for what are none."""
        self._check_open()
        requests = [*requests] if isinstance(requests, Iterable) else [requests]
        for request in requests:
            check_request(request, "request(INPUT, max_new_tokens=20)")
        try:
            return self.loop.run(requests)
        finally:
            self._end()

    @property
    def timings(self) -> dict[str, float]:
        """Seconds of the last call: preprocess (summed over threads), encode (in part beside decode), prefill, decode,
        total; and tokens."""
        return self._timings.seconds()

    @property
    def device_seconds(self) -> dict[str, float]:
        """Returns seconds that the device was at work in the last call, of what it is through with: encode, prefill,
        decode. Waits for nothing."""
        return self.llm.encoders.timer.finished()

    # --- requests ---
    def request(self, source: Any, *, lora: str | int | None = None, **sampling: Any) -> Request:
        """Returns what an input becomes: token ids or pixels, where the output begins, the settings with the model's
        own."""
        return with_keys(self._builder.build(source, self._params(sampling), lora))

    def _params(self, sampling: dict[str, Any]) -> SamplingParams:
        check_options(sampling, INPUT_KEYS)
        return sampling_params(sampling, self.engine.generation, loop_detection=self.family.loop_detection)

    def _prefetch(
        self,
        inputs: Iterable[Any],
        prepare: Prepare,
        window: int | None,
        together: Callable[[list[Any]], Prepare] | None,
    ) -> Prefetch:
        return Prefetch(
            self._workers,
            enumerate(inputs),
            prepare,
            # as much again as runs, so that a freed slot never waits for preprocessing
            window or 2 * self.capabilities.max_batch_size,
            most=1 if self.family.takes_images else TEXTS_TOGETHER,
            within=self._timings.preparing,
            together=together,
        )

    def _job(self, feed: Prefetch) -> Job:
        return Job(
            self.loop,
            feed,
            self.outputs,
            pool=self._workers,
            on_completion=self._timings.count,
            images_ahead=ImagesAhead.of(self.loop, self.capabilities.max_batch_size),
            texts_ahead=TextsAhead.of(self.loop),
        )

    def _begin(self) -> None:
        """Begins a call. Raises InputError where it is closed."""
        self._check_open()
        self._timings.begin()

    def _end(self) -> None:
        """Ends a call: its images are let go of. Its texts are small and stay until the next call, beside whose first
        step they are freed: of a full batch that takes as long as to admit one."""
        if self.family.takes_images:
            self.loop.rest()


def _check_feeding(inputs: Any, window: int | None, on_error: str) -> None:
    """Raises InputError for what is no list of inputs but one, whose letters or fields would be taken for several, and
    for ways to take inputs, and to tell their errors, that there are not."""
    if isinstance(inputs, str | bytes | Mapping) or not isinstance(inputs, Iterable):
        kind = type(inputs).__name__
        raise InputError(f"as_completed() takes several inputs, got {kind}; give a list of them or an iterator.")
    if not isinstance(window, int | None):
        raise InputError(f"window is {shown(window)}; it must be a whole number.")
    if window is not None and window < 1:
        raise InputError(f"window is {window}; it must be at least 1.")
    if on_error not in ("raise", "yield"):
        raise InputError(f"on_error is {shown(on_error)}; allowed are raise and yield.")
