"""What `vlm bench serve` sends, to whom and when."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from vlm.config import Config
from vlm.errors import InputError, listed
from vlm.options import check_limits, flag_of, option
from vlm.ranges import at_least, one_of, positive
from vlm_app.bench.lists import json_object, length_range, rates, sizes
from vlm_app.bench.serving.outcome import SERVICE_LEVELS

ABOVE_0 = positive("it must be a number above 0")
DEFAULT_PROMPTS = 200
DEFAULT_INPUT_LEN, DEFAULT_IMAGE_SIZE = (128, 128), (336, 336)
# options of prompts that are drawn -> what stands for them
DRAWN: dict[str, Any] = {"input_len": DEFAULT_INPUT_LEN, "image_sizes": (DEFAULT_IMAGE_SIZE,), "images": 0}


@dataclass(frozen=True)
class ServeBenchConfig(Config):
    """A load of requests. Everything that is drawn at random follows from `seed`."""

    urls: tuple[str, ...] = option(
        (), "A server to ask, as http://host:8000 or NAME=http://host:8000; again for more.", flags=("--url",)
    )
    model: str | None = option(
        None, "Its name at the servers; without --url, what `vlm serve` is started with.", flags=("--model", "-m"),
        default="the only one at the servers",
    )  # fmt: skip
    api_key: str | None = option(None, "Of the servers.", env="VLM_API_KEY", default="none is sent")
    endpoint: str = option("chat", "Of OpenAI's API: chat or completions.", allowed=one_of("chat", "completions"))
    request_rates: tuple[float, ...] = option(
        (math.inf,), 'Requests a second, or inf for all at once; several apart by ",": a run each.',
        flags=("--request-rate",), default="inf", read=partial(rates, option="--request-rate"),
    )  # fmt: skip
    burstiness: float = option(
        1.0, "Of the arrivals: 1 is a Poisson process, less is in bursts, more is even.", allowed=ABOVE_0
    )
    max_concurrency: int | None = option(
        None, "Requests on their way at once; others wait here.", default="no limit", allowed=at_least(1)
    )
    num_prompts: int | None = option(
        None, "Requests of each run.", default=f"{DEFAULT_PROMPTS}, or the lines of --dataset-path", allowed=at_least(1)
    )
    num_warmups: int = option(4, "Sent at once before the runs of a server; not counted.", allowed=at_least(0))
    input_len: tuple[int, int] | None = option(
        None, "Tokens of text of a prompt: 128, or drawn from 260-440.", default=f"{DEFAULT_INPUT_LEN[0]}",
        read=partial(length_range, option="--input-len"),
    )  # fmt: skip
    output_len: tuple[int, int] = option(
        (64, 64), "Tokens of an answer: 64, or drawn from 32-128.", default="64",
        read=partial(length_range, option="--output-len"),
    )  # fmt: skip
    images: int | None = option(None, "In each prompt.", default="0", allowed=at_least(0))
    image_sizes: tuple[tuple[int, int], ...] | None = option(
        None, 'Width and height in pixels, by turns: "336x336,640x480".', flags=("--image-size",), default="336x336",
        read=partial(sizes, option="--image-size"),
    )  # fmt: skip
    dataset_path: Path | None = option(
        None,
        'Instead: a .jsonl file of {"prompt": …} or {"messages": […]}, with "images" and "output_tokens" as you like.',
    )
    ignore_eos: bool = option(
        True, "Ask for answers of the full length.", flags=("--ignore-eos/--no-ignore-eos",), default="ignore-eos"
    )
    extra_body: dict[str, Any] | None = option(
        None,
        "More fields of every request, as JSON: '{\"top_p\": 0.9}'.",
        read=partial(json_object, option="--extra-body"),
    )
    goodput: tuple[str, ...] = option(
        (), "What a request must keep to count as good, in milliseconds: ttft:200 tpot:50. Of ttft, tpot, e2el.",
        metavar="NAME:MS...",
    )  # fmt: skip
    timeout: float = option(600.0, "Seconds of a request; then it has failed.", allowed=ABOVE_0)
    seed: int = option(0, "Of arrivals, prompts and images.", allowed=at_least(0))

    def __post_init__(self) -> None:
        check_limits(self, flags=True)
        if not self.urls and self.model is None:
            raise InputError("give --url of a server, or --model NAME: then a server of it is started.")
        for _, url in self.servers:
            _check_url(url)
        if self.dataset_path is not None and (both := [n for n in DRAWN if getattr(self, n) is not None]):
            flags = listed(flag_of(type(self), name) for name in both)
            raise InputError(
                f"{flags} is of prompts that are drawn, --dataset-path has its own; leave one of them out."
            )
        if self.image_sizes is not None and not self.images:
            raise InputError("--image-size is of images, and there are none; add --images 1.")
        if self.images and self.endpoint == "completions":
            raise InputError("--images go in chats; leave --endpoint completions out.")
        for text in self.goodput:
            service_level(text)

    @property
    def servers(self) -> list[tuple[str, str]]:
        """Returns what results call each server, and its address."""
        return [_named(url) for url in self.urls]

    def drawn(self, name: str) -> Any:
        """Returns an option of prompts that are drawn."""
        value = getattr(self, name)
        return DRAWN[name] if value is None else value

    @property
    def service_levels(self) -> dict[str, float]:
        """Returns the milliseconds that a good request keeps, by latency."""
        return dict(service_level(text) for text in self.goodput)

    def to_dict(self) -> dict[str, Any]:
        """Returns what a result says of it: no secrets, nothing that JSON lacks, the defaults that count."""
        values = {name: value for name, value in super().to_dict().items() if name != "api_key"}
        drawn = {} if self.dataset_path else {name: self.drawn(name) for name in DRAWN}
        return (
            values
            | drawn
            | {
                "urls": [without_user(url) for url in self.urls],
                "request_rates": [rate if math.isfinite(rate) else "inf" for rate in self.request_rates],
                "dataset_path": self.dataset_path and self.dataset_path.name,
            }
        )


def without_user(url: str) -> str:
    """Returns an address without the name and password that may stand in it."""
    return re.sub(r"//[^/@]*@", "//", url)


def _named(url: str) -> tuple[str, str]:
    """Returns (name, address) of NAME=URL, or of a URL that is its own name."""
    match = re.fullmatch(r"([^=/]+)=(.+)", url)
    return (match[1], match[2]) if match else (without_user(url), url)


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        whole = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1)
    except ValueError:  # a port that is no number
        whole = False
    if not whole or "?" in url or "#" in url:
        raise InputError(f"--url is {url!r}; give an address such as http://127.0.0.1:8000.")


def service_level(text: str) -> tuple[str, float]:
    """Reads ttft:200."""
    name, _, limit = text.partition(":")
    try:
        milliseconds = float(limit)
    except ValueError:
        milliseconds = math.nan
    if name not in SERVICE_LEVELS or not milliseconds > 0:
        raise InputError(
            f"--goodput holds {text!r}; give {listed(SERVICE_LEVELS)} with milliseconds, as in ttft:200 tpot:50."
        )
    return name, milliseconds
