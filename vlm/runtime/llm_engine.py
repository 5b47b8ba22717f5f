"""The engine's loop: requests in, token updates out."""

from __future__ import annotations

import itertools

from vlm.config import ModelConfig
from vlm.errors import EngineError, InputError, LimitError
from vlm.limits import MAX_STOP_IDS
from vlm.ops.advance import LENGTH, STOP
from vlm.runtime.base_executor import Executor
from vlm.runtime.burst import Burst, RowResult
from vlm.runtime.prompt_table import contents
from vlm.runtime.request import FINISH_REASONS, Request, SamplingParams, Sequence, Update
from vlm.runtime.scheduler import Plan, Scheduler, Starved


class LLMEngine:
    """In-flight batching: sequences join and leave between bursts of decode steps.

    On an asynchronous device the next burst is launched before the last one's tokens are read, so the host's work is
    hidden behind the device's; a finished sequence then idles for at most one burst.
    """

    def __init__(
        self,
        config: ModelConfig,
        executor: Executor,
        scheduler: Scheduler,
        *,
        max_batch_size: int,
        max_seq_len: int,
        max_encoder_len: int,
        num_features: int | None,
        eos_token_ids: tuple[int, ...],
    ):
        self.config, self.executor, self.scheduler = config, executor, scheduler
        self.max_batch_size = max_batch_size
        self.max_seq_len, self.max_encoder_len, self.num_features = max_seq_len, max_encoder_len, num_features
        self.eos_token_ids = eos_token_ids
        self._ids = itertools.count()
        self._sequences: dict[int, Sequence] = {}
        self._aborted: set[int] = set()
        self._in_flight: Burst | None = None
        self._updates: list[Update] = []  # not yet reported
        self._at_work: list[Sequence] = []  # what the executor was given last

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def add(self, request: Request) -> int:
        """Queues a request; its id names it in `step`'s updates. LimitError when the engine cannot hold it."""
        sequence = self._sequence(request)
        self._sequences[sequence.id] = sequence
        self.scheduler.add(sequence)
        return sequence.id

    def abort(self, request_id: int) -> None:
        """Ends a request at the next step, with finish reason `abort`; an ended one is left alone."""
        if request_id in self._sequences:
            self._aborted.add(request_id)

    def step(self) -> list[Update]:
        """Launches the next burst, then reports the last one (on the CPU: this one). Empty while nothing is ready."""
        if self._aborted:
            self._updates += self._drop_aborted()
        plan = self._schedule()
        if plan.admitted:
            self._at_work = plan.admitted
            self._admit(plan.admitted)
        if plan.prefills:
            self._at_work = [sequence for sequence, _ in plan.prefills]
            self.executor.prefill(plan.prefills)
        self._at_work = plan.running
        launched = self.executor.launch(plan.running, plan.steps) if plan.running else None
        last, self._in_flight = self._in_flight, launched
        if last is not None:
            self._updates += self._apply(last)
        if not self.executor.asynchronous or not self._more_to_launch():
            self._updates += self._collect()
        return self._reported()

    def recover(self) -> list[Update]:
        """After a step that ran out of memory. What the executor was at work on ends, with finish reason `memory`; who
        ran besides waits again and is recomputed to the same tokens. Raises EngineError where the pool is not whole.
        """
        self.executor.relieve()
        self._updates += self._collect()
        self.scheduler.start_over()
        for sequence in [s for s in dict.fromkeys(self._at_work) if not s.finished]:
            self._forget(sequence, "memory")
            self._updates.append(Update(sequence, (), True))
        if not self.scheduler.idle:
            raise EngineError("the KV cache was not whole again after the device had run out of memory.")
        return self._reported()

    def _reported(self) -> list[Update]:
        updates, self._updates = self._updates, []
        return updates

    def _more_to_launch(self) -> bool:
        return bool(self.scheduler.waiting) or any(s.scheduled < s.max_length for s in self.scheduler.running)

    def _schedule(self) -> Plan:
        try:
            return self.scheduler.schedule(in_flight=self._in_flight is not None)
        except Starved:
            self._updates += self._collect()
            return self.scheduler.schedule(in_flight=False)

    def _collect(self) -> list[Update]:
        burst, self._in_flight = self._in_flight, None
        return self._apply(burst) if burst is not None else []

    def _admit(self, sequences: list[Sequence]) -> None:
        self.executor.admit(sequences, [self._stop_ids(s.request) for s in sequences])

    def _apply(self, burst: Burst) -> list[Update]:
        """Takes a burst's tokens over into its sequences and releases the ended ones."""
        # the others were released while the burst ran: they had ended one burst earlier
        rows = [(s, row) for s, row in zip(burst.sequences, burst.collect(), strict=True) if not s.finished]
        updates = [self._grow(sequence, row) for sequence, row in rows if sequence.width == 1]
        ended = [sequence for sequence, row in rows if sequence.width > 1 and row.code]
        return updates + (self._end_searches(ended) if ended else [])

    def _grow(self, sequence: Sequence, row: RowResult) -> Update:
        """Takes over a burst's tokens, up to where the text stops."""
        known = len(sequence.generated)
        new, code = row.length - len(sequence.tokens), row.code
        sequence.tokens += row.tokens[:new]
        sequence.logprobs += row.logprobs[:new]
        sequence.top_logprobs += row.top[:new]
        if (keep := _end_of(sequence, known)) is not None:
            new, code = keep - known, STOP
            del sequence.tokens[sequence.prompt_length + keep :], sequence.logprobs[keep:], sequence.top_logprobs[keep:]
        if code:
            self._end(sequence, self._reason(sequence, code))
        return Update(sequence, tuple(row.tokens[:new]), sequence.finished)

    def _end_searches(self, sequences: list[Sequence]) -> list[Update]:
        """Beam searches bring their tokens at their end, the best hypothesis' as the sequence's own."""
        for sequence, hypotheses in zip(sequences, self.executor.hypotheses(sequences), strict=True):
            sequence.hypotheses, best = hypotheses, hypotheses[0]
            sequence.tokens, sequence.logprobs = sequence.tokens + best.token_ids, list(best.logprobs)
            self._end(sequence, self.reason_of(sequence, best.token_ids))
        return [Update(s, tuple(s.hypotheses[0].token_ids), True) for s in sequences]

    def reason_of(self, sequence: Sequence, token_ids: list[int]) -> str:
        """Why a hypothesis of this search ended."""
        stopped = token_ids[-1] in self._stop_ids(sequence.request)
        return self._reason(sequence, STOP if stopped else LENGTH, token_ids[-1])

    def _reason(self, sequence: Sequence, code: int, last: int | None = None) -> str:
        reason = FINISH_REASONS[code]
        ended_by_eos = reason == "stop" and (sequence.tokens[-1] if last is None else last) in self.eos_token_ids
        return "eos" if ended_by_eos and not sequence.request.params.ignore_eos else reason

    def _end(self, sequence: Sequence, reason: str) -> None:
        sequence.finish_reason = reason
        self.scheduler.release(sequence)
        del self._sequences[sequence.id]

    def _forget(self, sequence: Sequence, reason: str) -> None:
        """Ends one that waits."""
        self.scheduler.waiting.remove(sequence)
        sequence.finish_reason = reason
        del self._sequences[sequence.id]

    def _drop_aborted(self) -> list[Update]:
        updates = self._collect()
        for request_id in self._aborted & self._sequences.keys():
            sequence = self._sequences[request_id]
            if not sequence.slots:
                self._forget(sequence, "abort")
            else:
                self._end(sequence, "abort")
            updates.append(Update(sequence, (), True))
        self._aborted.clear()
        return updates

    def _stop_ids(self, request: Request) -> list[int]:
        eos = () if request.params.ignore_eos else self.eos_token_ids
        return list(dict.fromkeys((*eos, *request.params.stop_token_ids)))[:MAX_STOP_IDS]

    def _sequence(self, request: Request) -> Sequence:
        """Raises InputError and LimitError for what the engine cannot hold."""
        features = self._num_features(request)
        table = self._contents(request)
        length = self._length(request, len(table))
        params = request.params
        if features > self.max_encoder_len:
            raise LimitError(
                f"the encoder's input has {features} rows (tokens), the engine was built for {self.max_encoder_len};"
                " shorten it, cut it with truncate, or build with a larger --max-encoder-input-len."
            )
        if params.num_beams > self.max_batch_size:
            raise LimitError(
                f"num_beams is {params.num_beams}, this engine decodes {self.max_batch_size} sequences at once; build"
                f" with --max-batch-size {params.num_beams} or more."
            )
        if self.scheduler.never_fits(length, features, params.num_beams):
            raise LimitError(
                f"a sequence of {length} tokens over {features} encoder rows does not fit the KV cache; lower"
                " max_new_tokens or give the cache more memory."
            )
        encoder = self.executor.encoder
        _check_ids(request.decoder_prompt_token_ids, self.config.vocab_size, 0 if encoder else len(table))
        if request.encoder_input_ids is not None:
            _check_ids(request.encoder_input_ids, encoder.config.vocab_size, len(table))
        _check_ids(_named_ids(params), self.config.vocab_size, 0)
        tokens = list(request.decoder_prompt_token_ids)
        stops = len(self._stop_ids(request))
        return Sequence(next(self._ids), request, length, features, tokens, num_stop_ids=stops, contents=table)

    def _num_features(self, request: Request) -> int:
        """Rows of encoder output that the decoder will see."""
        given = request.encoder_input_ids if request.encoder_output is None else request.encoder_output
        if not self.config.cross_attention:
            if given is not None or request.pixel_values is not None:
                raise InputError("this model has no encoder besides that of images: its prompt is all it takes.")
            return 0
        if given is None and request.pixel_values is None:
            raise InputError("a request to this model needs pixel_values, encoder_input_ids or encoder_output.")
        features = self.num_features if given is None else len(given)
        if features is None or (request.encoder_input_ids is not None and self.executor.encoder is None):
            raise InputError("this model's encoder does not take this kind of input.")
        return features

    def _contents(self, request: Request) -> list[bytes]:
        """What the rows of a request's prompt table are made of."""
        if request.images and (
            self.num_features is None or (self.config.cross_attention and not self.executor.encoder)
        ):
            raise InputError("this model does not take images in its prompt.")
        given = request.prompt_table
        width = (self.executor.encoder.config if self.executor.encoder else self.config).embedding_size
        if given is not None and (given.rows.ndim != 2 or given.rows.shape[1] != width):
            raise InputError(
                f"the prompt table has shape {list(given.rows.shape)}; this model takes rows of {width} values."
            )
        return contents(given, request.images, self.num_features or 0)

    def _length(self, request: Request, virtual: int) -> int:
        """Tokens that a sequence may have in all."""
        prompt, params = len(request.decoder_prompt_token_ids), request.params
        wanted = min(self.max_seq_len, max(params.max_length or self.max_seq_len, prompt + 1))
        if params.usual_new_tokens is not None:
            wanted = min(wanted, prompt + params.usual_new_tokens)
        if params.max_new_tokens is not None:
            wanted = prompt + params.max_new_tokens
        if wanted > self.max_seq_len or prompt >= self.max_seq_len:
            new = params.max_new_tokens or 1
            rows = f" ({virtual} of them rows of images or tables)" if virtual and not self.executor.encoder else ""
            raise LimitError(
                f"{prompt} prompt tokens{rows} and {new} new ones are {prompt + new - self.max_seq_len} more than the"
                f" {self.max_seq_len} that the engine was built for; ask for fewer or build with a larger"
                " --max-seq-len."
            )
        return wanted


def _check_ids(token_ids: tuple[int, ...], vocab_size: int, rows: int) -> None:
    if bad := [t for t in token_ids if not 0 <= t < vocab_size + rows]:
        table = f" and its prompt table of {rows} rows" if rows else ""
        raise LimitError(f"token id {bad[0]} is outside the vocabulary of {vocab_size}{table}.")


def _named_ids(params: SamplingParams) -> tuple[int, ...]:
    """Tokens that the settings name."""
    single = (params.forced_bos_token_id, params.forced_eos_token_id, params.top_p_reset_id)
    words = (token for word in params.bad_words_ids for token in word)
    return (*params.stop_token_ids, *words, *(token for token in single if token is not None))


def _end_of(sequence: Sequence, known: int) -> int | None:
    """Generated tokens up to the first stop word or string that ends after the `known` ones; None: there is none."""
    tokens, request = sequence.generated, sequence.request
    ends = [
        n
        for word in request.params.stop_words_ids
        for n in range(max(known + 1, len(word)), len(tokens) + 1)
        if tuple(tokens[n - len(word) : n]) == tuple(word)
    ]
    if request.stops is not None and (end := request.stops.end(tokens, known)) is not None:
        ends.append(end)
    return min(ends, default=None)
