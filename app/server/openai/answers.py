"""Outputs of a pipeline -> what OpenAI's clients read, whole and in chunks."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from vlm import __version__
from vlm.api.async_pipeline import TextDelta
from vlm.api.outputs import Output
from vlm.processing.text.tokenization import Tokenizer
from vlm.requests.token_update import ScoredPrompt

FINISH = {"eos": "stop", "stop": "stop", "length": "length", "loop": "length"}
LEAST = -9999.0  # what is impossible has this log-probability


@dataclass
class Usage:
    """Tokens that a request has cost so far."""

    prompt: int = 0
    completion: int = 0

    def add(self, delta: TextDelta) -> None:
        if delta.update is not None:
            self.completion += len(delta.update.token_ids)
            # the samples of one input share what it was read as
            if (completion := delta.update.completion) is not None and not delta.index:
                self.prompt += completion.prompt_tokens
        elif delta.output is not None:
            self.completion += len(delta.output.token_ids)

    def as_json(self) -> dict[str, int]:
        """Returns them as OpenAI names them."""
        total = self.prompt + self.completion
        return {"prompt_tokens": self.prompt, "completion_tokens": self.completion, "total_tokens": total}


@dataclass
class Answer:
    """What the choices of one answer have in common."""

    model: str
    kind: str  # chat.completion | text_completion
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))
    usage: Usage = field(default_factory=Usage)

    @property
    def is_chat(self) -> bool:
        return self.kind == "chat.completion"

    def whole(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._head(self.kind), "choices": choices, "usage": self.usage.as_json()}

    def chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.is_chat else self.kind
        return {**self._head(kind), "choices": choices}

    def choice(self, index: int, output: Output, logprobs: dict[str, Any] | None, echo: str = "") -> dict[str, Any]:
        """Returns a whole output, after the prompt where that is echoed."""
        message = {"role": "assistant", "content": output.text, "refusal": None}
        content = {"message": message} if self.is_chat else {"text": echo + output.text}
        return {"index": index, **content, "logprobs": logprobs, **self._end(output)}

    def opening(self, index: int, echo: str = "", logprobs: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """Returns the first chunk: a conversation's says who speaks; that of a text is the prompt where it is
        echoed, with what is said of its tokens."""
        if not self.is_chat:
            return [self.part(index, echo, logprobs, None)] if echo or logprobs else []
        delta = {"role": "assistant", "content": "", "refusal": None}
        return [{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}]

    def part(self, index: int, text: str, logprobs: dict[str, Any] | None, output: Output | None) -> dict[str, Any]:
        """Returns a delta of an output; `output` with its last."""
        content = {"delta": {"content": text} if text else {}} if self.is_chat else {"text": text}
        end = {"finish_reason": None} if output is None else self._end(output)
        return {"index": index, **content, "logprobs": logprobs, **end}

    def _head(self, kind: str) -> dict[str, Any]:
        prefix = "chatcmpl" if self.is_chat else "cmpl"
        head = {"id": f"{prefix}-{self.id}", "object": kind, "created": self.created, "model": self.model}
        return {**head, "system_fingerprint": f"vlm-{__version__}"}

    @staticmethod
    def _end(output: Output) -> dict[str, Any]:
        """Returns how it ended; `stop_reason` and `seed` are ours: why it ended, and what gives the same tokens
        again."""
        reason = output.finish_reason
        return {"finish_reason": FINISH[reason], "stop_reason": reason, "seed": output.seed}


class DeltaLogprobs(NamedTuple):
    """What a delta brings of log-probabilities: with an output's first one those of the prompt before it."""

    prompt: dict[str, Any] | None = None
    output: dict[str, Any] | None = None


def named_scores(tokenizer: Tokenizer | None, prompt: ScoredPrompt) -> list[dict[str, Any] | None]:
    """Returns what is said of a prompt's tokens as vLLM has it: by ids, with ranks where they are known."""
    return [None if own is None else _ranked(tokenizer, token, own) for token, own in zip(*prompt, strict=True)]


def _ranked(tokenizer: Tokenizer | None, token: int, own: dict[int, float]) -> dict[str, Any]:
    best = sorted(own.items(), key=lambda place: -place[1])
    known = len(own) if best[-1][0] != token else len(own) - 1  # it may stand behind many that are not among these
    return {
        str(i): {
            "logprob": least(value),
            "rank": rank if rank <= known else None,
            "decoded_token": tokenizer.piece(i) if tokenizer else None,
        }
        for rank, (i, value) in enumerate(best, 1)
    }


def least(logprob: float | None) -> float | None:
    """Returns a log-probability that JSON has; of a prompt's first token there is none."""
    return None if logprob is None else max(logprob, LEAST)


def _by_text(places: list[dict[str, Any]]) -> dict[str, float]:
    """Returns log-probabilities by their tokens' texts: of several tokens of one text the likeliest's."""
    best: dict[str, float] = {}
    for each in places:
        best[each["token"]] = max(each["logprob"], best.get(each["token"], LEAST))
    return best


def joined(*parts: dict[str, Any] | None) -> dict[str, Any] | None:
    """Returns columns of log-probabilities one after the other, those of parts that have any."""
    given = [part for part in parts if part is not None]
    if len(given) < 2:
        return given[0] if given else None
    return {name: [each for part in given for each in part[name]] for name in given[0]}


class LogProbs:
    """Log-probabilities of one output's tokens, delta by delta."""

    def __init__(self, tokenizer: Tokenizer | None, is_chat: bool, as_ids: bool = False, *, keeps_end: bool = False):
        """`as_ids`: tokens are named `token_id:5`, as vLLM has it; `keeps_end`: the token that ends an output has a
        place, too: clients that score prompts leave out as many places as they asked for tokens."""
        self._keeps_end = keeps_end
        self._tokenizer, self._is_chat, self._as_ids = tokenizer, is_chat, as_ids
        self._last: int | None = None
        self._offset = 0

    def added_by(self, delta: TextDelta) -> dict[str, Any]:
        """Returns what a delta adds; the token that ends an output is no part of it, but for `keeps_end`."""
        if delta.update is not None:
            tokens, logprobs, top = delta.update.token_ids, delta.update.logprobs, delta.update.top_logprobs
        else:
            assert delta.output is not None  # one of a search's outcomes, which come whole
            tokens, logprobs, top = delta.output.token_ids, delta.output.logprobs, ()
        if delta.output is not None and delta.output.finish_reason == "eos" and not self._keeps_end:
            tokens = tokens[:-1]
        rows = [self._row(token, logprobs[i], top[i] if i < len(top) else {}) for i, token in enumerate(tokens)]
        return {"content": rows, "refusal": None} if self._is_chat else self._columns(rows)

    def of_prompt(self, prompt: ScoredPrompt, text: str) -> dict[str, Any]:
        """Returns what is said of a prompt that stands as `text` before its output: tokens with their places in it.
        What the text does not show takes no room in it."""
        rows, offsets = [], []
        for token, places in zip(*prompt, strict=True):
            offsets.append(self._offset)
            piece = self._piece(token)
            self._offset += len(piece) if text.startswith(piece, self._offset) else 0
            rows.append(self._row(token, None if places is None else places[token], places or {}))
        self._offset = len(text)
        return self._named_columns(rows, offsets)

    def _row(self, token: int, logprob: float | None, top: dict[int, float]) -> dict[str, Any]:
        others = [self._named(other, value) for other, value in top.items()]
        row = {**self._named(token, logprob), "top_logprobs": others}
        self._last = token
        return row

    def _piece(self, token: int) -> str:
        return self._tokenizer.piece(token, self._last) if self._tokenizer else str(token)

    def _named(self, token: int, logprob: float | None) -> dict[str, Any]:
        text = self._piece(token)
        whole = "\ufffd" not in text
        name = f"token_id:{token}" if self._as_ids else text
        return {"token": name, "logprob": least(logprob), "bytes": list(text.encode()) if whole else None}

    def _columns(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Returns rows as completions have them."""
        offsets = []
        for row in rows:
            offsets.append(self._offset)
            self._offset += len(row["token"])
        return self._named_columns(rows, offsets)

    @staticmethod
    def _named_columns(rows: list[dict[str, Any]], offsets: list[int]) -> dict[str, Any]:
        top = [None if row["logprob"] is None else _by_text(row["top_logprobs"]) for row in rows]
        columns = {"tokens": [row["token"] for row in rows], "token_logprobs": [row["logprob"] for row in rows]}
        return {**columns, "top_logprobs": top, "text_offset": offsets}
