"""What became of one request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass
class Outcome:
    """When a request was sent and its chunks came, in seconds of one clock; what its server counted, or why it
    failed."""

    sent: float
    chunks: list[float] = field(default_factory=list)  # that may hold several tokens
    last: float = 0.0  # the last event of the answer itself, which may tell its end alone
    prompt_tokens: int | None = None  # None: the server does not say
    completion_tokens: int | None = None
    is_whole: bool = False  # has the answer told its end?
    failure: str | None = None  # its kind
    message: str = ""
    status: int | None = None

    @property
    def tokens(self) -> int:
        """Returns the tokens of the answer; where the server does not count them each chunk is one."""
        return len(self.chunks) if self.completion_tokens is None else self.completion_tokens

    @property
    def ttft(self) -> float:
        """Returns the time to the first token."""
        return self.chunks[0] - self.sent

    @property
    def e2el(self) -> float:
        """Returns the time to the end of the answer, from end to end."""
        return self.last - self.sent

    @property
    def tpot(self) -> float | None:
        """Returns the time of a further token; None where there is one alone."""
        return (self.e2el - self.ttft) / (self.tokens - 1) if self.tokens > 1 else None

    @property
    def gaps(self) -> list[float]:
        """Returns the times between chunks."""
        return [later - earlier for earlier, later in pairwise(self.chunks)]

    def fail(self, kind: str, message: str = "") -> None:
        """Notes why the request failed; the first reason counts."""
        if self.failure is None:
            self.failure, self.message = kind, " ".join(message.split())[:300]


# what a request has one of, but `itl`, in seconds
LATENCIES: dict[str, Callable[[Outcome], list[float]]] = {
    "ttft": lambda outcome: [outcome.ttft],
    "tpot": lambda outcome: [] if outcome.tpot is None else [outcome.tpot],
    "itl": lambda outcome: outcome.gaps,
    "e2el": lambda outcome: [outcome.e2el],
}
SERVICE_LEVELS = ("ttft", "tpot", "e2el")
