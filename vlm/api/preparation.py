"""The inputs of one call -> requests, in whatever threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from vlm.api.pages_in_steps import PagesInSteps
from vlm.processing.inputs.request_builder import RequestBuilder
from vlm.requests.request import Request
from vlm.requests.sampling_params import SamplingParams


def preparation(
    builder: RequestBuilder,
    params: SamplingParams,
    *,
    lora: str | int | None,
    pages: PagesInSteps | None,
    page_params: Callable[[Mapping[str, Any]], SamplingParams],
) -> Callable[[int, Any], Request]:
    """Returns what makes the request of an input, which has its number. `pages`: of a model that reads them in steps,
    of which each has settings of its own, with which `page_params` returns the call's."""
    build, own_thread = builder.build, threading.get_ident()
    if not builder.takes_images:  # nothing is a page or hashed, and a text has microseconds
        return lambda number, source: build(source, params, lora)

    def prepared(number: int, source: Any) -> Request:
        own, settings = (source, {}) if pages is None else pages.begin(number, source, params.num_return_sequences)
        request = build(own, page_params(settings) if settings else params, lora)
        # what this thread makes itself is one alone: it is hashed while the device is at work on it
        return request if threading.get_ident() == own_thread else with_keys(request)

    return prepared


def texts_together(
    builder: RequestBuilder, params: SamplingParams, lora: str | int | None
) -> Callable[[list[Any]], Callable[[int, Any], Request]]:
    """Returns what does as `preparation` of a model that takes no images, for several inputs: it reads their texts at
    once."""

    def prepared(sources: list[Any]) -> Callable[[int, Any], Request]:
        build = builder.together(sources).build
        return lambda number, source: build(source, params, lora)

    return prepared


def with_keys(request: Request) -> Request:
    """Returns a request whose images have their keys."""
    for image in request.images:
        image.compute_key()
    return request
