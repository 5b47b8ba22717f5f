"""Requests become sequences, or one sentence says why the engine cannot hold them."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from vlm.config import EngineLimits, ModelConfig, VisionConfig
from vlm.engine.endings import Endings
from vlm.errors import InputError, LengthError, LimitError, built_for, counted
from vlm.requests.positions import Positions
from vlm.requests.prompt_table import NO_CONTENTS, Contents
from vlm.requests.request import Request
from vlm.requests.sampling_params import SamplingParams
from vlm.requests.sequence import Ids, Sequence

MAX_NGRAM_TOKENS = 2**22  # of an input, which take a third of a second and 100 MB to write down


class _Common(NamedTuple):
    """What follows from the settings and the prompt of a request, which many of a call have in common."""

    length: int  # tokens that its sequence may have in all
    num_stop_ids: int
    max_drafts: int


@dataclass(frozen=True)
class Admission:
    """What an engine was built to hold."""

    config: ModelConfig  # of the decoder
    encoder: ModelConfig | None  # of a text encoder
    limits: EngineLimits
    vision: VisionConfig | None  # of a visual encoder
    endings: Endings
    num_speculative_tokens: int  # proposed for a sequence in a step, at most
    gives_context_logits: bool

    def sequences(self, requests: list[Request], ids: Iterator[int]) -> list[Sequence]:
        """Returns the sequences of requests, each with the next of the `ids`. Raises InputError and LimitError for what
        the engine cannot hold."""
        sources, known = self._sources(requests), dict[tuple[int, int, int], _Common]()
        return [
            self._sequence(next(ids), request, source=source, known=known)
            for request, source in zip(requests, sources, strict=True)
        ]

    def _sources(self, requests: list[Request]) -> Items[Ids | None]:
        """Returns the encoder's ids of each request. They are looked at all at once: None where there are none, or one
        of all is no token of the vocabulary, so that each has to be looked at."""
        texts = [request.encoder_input_ids for request in requests]
        ids = None if self.encoder is None else _tokens(texts, self.encoder.vocab_size)
        return [None] * len(texts) if ids is None else ids

    def _sequence(
        self, number: int, request: Request, *, source: Ids | None, known: dict[tuple[int, int, int], _Common]
    ) -> Sequence:
        """Returns the sequence of a request. `source`: see `_sources`; `known`: of the requests before, by what they
        have in common."""
        features, contents = self._num_features(request), self._contents(request)
        prompt_ids = request.decoder_prompt_token_ids
        key = id(request.params), id(prompt_ids), contents.num_rows  # objects that the requests of a call share
        if (common := known.get(key)) is None:
            common = known[key] = self._common(request, contents.num_rows)
        if features > self.limits.max_encoder_input_len:
            raise _too_long(features, self.limits.max_encoder_input_len)
        if size := request.params.encoder_no_repeat_ngram_size:
            _check_ngrams(size, len(request.encoder_input_ids or prompt_ids))
        if source is None and request.encoder_input_ids is not None and self.encoder is not None:
            _check_ids(request.encoder_input_ids, self.encoder.vocab_size, len(contents))
            source = np.array(request.encoder_input_ids, np.int32)
        sequence = Sequence(
            number, request, common.length, features, list(prompt_ids), num_stop_ids=common.num_stop_ids,
            contents=contents, source=source, max_drafts=common.max_drafts,
        )  # fmt: skip
        first_row = self.config.vocab_size + len(request.prompt_table or ())
        if request.images and self.encoder is None and self.vision is not None:
            sequence.image_token_id = self.vision.image_token_id
            sequence.first_image_row = first_row
        if self.config.position_axes > 1:
            sequence.positions = Positions.from_prompt(sequence.tokens, request.images, first_row)
        return sequence

    def _common(self, request: Request, virtual: int) -> _Common:
        """Returns what a request's settings and prompt, of which `virtual` rows are no tokens, come to. Raises as
        `sequences`."""
        params, most, vocab_size = request.params, self.limits.max_batch_size, self.config.vocab_size
        if params.return_context_logits and not self.gives_context_logits:
            raise InputError(
                "a compiled engine gives generation logits alone; build it with backend torch.", settings=("backend",)
            )
        if params.prompt_logprobs is not None and not self.gives_context_logits:
            raise InputError(
                "a compiled engine has no log-probabilities of prompts; leave prompt_logprobs out, or build it with"
                " backend torch.",
                settings=("prompt_logprobs", "backend"),
            )
        length = self._length(request, virtual)
        if params.num_beams > most:
            raise LimitError(
                f"num_beams is {params.num_beams}, this engine decodes {counted(most, 'sequence')} at once; ask for"
                " fewer",
                built_for("max_batch_size", params.num_beams),
                settings=("num_beams", "max_batch_size"),
            )
        _check_ids(request.decoder_prompt_token_ids, vocab_size, 0 if self.encoder else virtual)
        for setting, named in params.known_tokens.items():
            _check_ids(named, vocab_size, 0, setting)
        return _Common(length, len(self.endings.stop_ids(request)), self._max_drafts(params))

    def _max_drafts(self, params: SamplingParams) -> int:
        """Returns how many tokens are proposed for a sequence in a step, at most; for a search's beams none."""
        most, asked_for = self.num_speculative_tokens, params.prompt_lookup_num_tokens
        if asked_for is not None and asked_for > most:
            raise LimitError(
                f"prompt_lookup_num_tokens is {asked_for}, this engine proposes {counted(most, 'token')} a step at"
                " most; leave it out",
                f"or give num_speculative_tokens {asked_for}",
                settings=("prompt_lookup_num_tokens", "num_speculative_tokens"),
            )
        return 0 if params.num_beams > 1 else most if asked_for is None else asked_for

    def _num_features(self, request: Request) -> int:
        """Returns how many rows of encoder output the decoder will see."""
        image, ids, output = request.encoder_image, request.encoder_input_ids, request.encoder_output
        if not self.config.cross_attention:
            if not (image is None and ids is None and output is None):
                raise InputError("this model has no encoder besides that of images: its prompt is all it takes.")
            return 0
        if (image is not None and self.vision is None) or (ids is not None and self.encoder is None):
            raise InputError("this model's encoder does not take this kind of input.")
        if image is not None:
            return image.rows
        if (rows := output if ids is None else ids) is None:
            raise InputError(
                "a request to this model needs a text (text, encoder_input_ids), an image (images, pixel_values) or"
                " encoder_output."
            )
        if output is not None and (output.ndim != 2 or not len(output) or output.shape[1] != self.config.encoder_size):
            raise InputError(
                f"encoder_output has shape {list(output.shape)}; this model takes rows of {self.config.encoder_size}"
                " values."
            )
        return len(rows)

    def _contents(self, request: Request) -> Contents:
        """Returns what the rows of a request's prompt table are made of."""
        if request.prompt_table is None and not request.images:
            return NO_CONTENTS
        if request.images and (self.vision is None or (self.config.cross_attention and not self.encoder)):
            raise InputError("this model does not take images in its prompt.")
        table = request.prompt_table
        if table is not None:
            width = (self.encoder or self.config).embedding_size
            if table.rows.ndim != 2 or table.rows.shape[1] != width:
                raise InputError(
                    f"the prompt table has shape {list(table.rows.shape)}; this model takes rows of {width} values."
                )
        return Contents.of(table, request.images)

    def _length(self, request: Request, virtual: int) -> int:
        """Returns how many tokens a sequence may have in all."""
        prompt, params, most = len(request.decoder_prompt_token_ids), request.params, self.limits.max_seq_len
        length = min(most, max(params.max_length or most, prompt + 1))
        if params.default_max_new_tokens is not None:
            length = min(length, prompt + params.default_max_new_tokens)
        if params.max_new_tokens is not None:
            length = prompt + params.max_new_tokens
        if length > most or prompt >= most:
            new = params.max_new_tokens or 1
            rows = f" ({virtual} of them rows of images or tables)" if virtual and not self.encoder else ""
            images = ", or fewer or smaller images" if request.images else ""
            step = "ask for fewer" if prompt < most else f"give a shorter prompt{images}"
            is_asked = params.max_new_tokens is not None and prompt < most
            raise LengthError(
                f"{counted(prompt, 'prompt token')}{rows} and {new} new ones are {prompt + new - most} more than the"
                f" {most} that the engine was built for; {step}",
                self._longer(prompt + new, most - prompt),
                settings=("max_new_tokens", "max_seq_len") if is_asked else ("max_seq_len", "max_new_tokens"),
            )
        return length

    def _longer(self, length: int, room: int) -> str:
        """Returns what helps: fewer tokens where there is room for some, a longer engine where positions allow it."""
        fewer = f"with max_new_tokens {room}" if room > 0 else ""
        longer = built_for("max_seq_len", length, self.config.position_limit)
        return ", ".join(filter(None, (fewer, longer)))


def check_encoder_input(request: Request, encoder: ModelConfig, most: int) -> None:
    """Raises LimitError for ids that the encoder cannot take, or more than `most` of them."""
    ids = request.encoder_input_ids or ()
    if len(ids) > most:
        raise _too_long(len(ids), most)
    _check_ids(ids, encoder.vocab_size, len(Contents.of(request.prompt_table, request.images)))


def _tokens(texts: list[tuple[int, ...] | None], vocab_size: int) -> list[Ids] | None:
    """Returns texts as arrays, parts of one; None where not all are texts, and of tokens of the vocabulary."""
    known = [text for text in texts if text is not None]
    ends = [*itertools.accumulate(map(len, known), initial=0)]
    try:
        packed = struct.pack(f"{ends[-1]}i", *itertools.chain.from_iterable(known))
    except struct.error:  # what has more bits, or is no integer
        return None
    ids = np.frombuffer(packed, np.int32)
    if len(known) < len(texts) or ids.min(initial=0) < 0 or ids.max(initial=0) >= vocab_size:
        return None
    return [ids[begin:end] for begin, end in itertools.pairwise(ends)]


def _check_ngrams(size: int, num_ids: int) -> None:
    """Raises LimitError for n-grams of an input that hold too many tokens, each of which is a rule's."""
    if (tokens := (num_ids - size + 1) * size) > MAX_NGRAM_TOKENS:
        raise LimitError(
            f"encoder_no_repeat_ngram_size is {size}: the input's {num_ids} tokens make n-grams of {tokens:,} tokens in"
            f" all, at most {MAX_NGRAM_TOKENS:,} are taken; give a smaller size",
            settings=("encoder_no_repeat_ngram_size",),
        )


def _too_long(count: int, most: int) -> LengthError:
    """Returns the error of an encoder's input of so many rows."""
    return LengthError(
        f"the encoder's input has {count} rows (tokens), the engine was built for {most}; shorten it",
        built_for("max_encoder_input_len", count),
        settings=("max_encoder_input_len",),
    )


def _check_ids(token_ids: tuple[int, ...], vocab_size: int, rows: int, setting: str | None = None) -> None:
    try:
        are_known = not token_ids or (min(token_ids) >= 0 and max(token_ids) < vocab_size + rows)
    except TypeError:
        raise InputError("the token ids are no numbers; give those of one input: [5, 6].") from None
    if not are_known:
        bad = next(t for t in token_ids if not 0 <= t < vocab_size + rows)
        table = f" and its prompt table of {counted(rows, 'row')}" if rows else ""
        of = f" of {setting}" if setting else ""
        settings = (setting,) if setting else ()
        raise LimitError(f"token id {bad}{of} is outside the vocabulary of {vocab_size}{table}", settings=settings)
