"""What a job over documents could reach at most: its engine with pixel values that are ready."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from vlm.processing.media.documents.document import open_document
from vlm_app.bench.pages.documents import Corpus
from vlm_app.bench.systems.page_job import WARM_UP_TOKENS, PageJob
from vlm_app.bench.systems.session import Results
from vlm_app.bench.timing.clock import repeated

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

    from vlm.api.pipeline import Pipeline
    from vlm_app.ocr.readers.engines import EngineConfig

DISTINCT_PAGES = 16  # kept in memory; more pages take turns


class ReadyPage(Mapping[str, Any]):
    """Pixel values as an input, with a value of its own among them: a model that keeps what it has seen has not seen
    this. A worker thread looks it up."""

    def __init__(self, pixels: Tensor, number: int):
        self._pixels, self._number = pixels, number

    def __getitem__(self, key: str) -> Tensor:
        if key != "pixel_values":
            raise KeyError(key)
        pixels = self._pixels.clone()
        pixels.view(-1)[self._number % pixels.numel()] += 1
        return pixels

    def __iter__(self) -> Iterator[str]:
        return iter(("pixel_values",))

    def __len__(self) -> int:
        return 1


def engine_alone(engine: EngineConfig, corpus: Corpus, job: PageJob, *, repeats: int) -> Results:
    """Measures as many pages as the corpus has with one engine; each device is taken to be as fast."""
    with closing(engine.pipeline()) as pipeline:
        pixels = [_pixels(pipeline, page) for page in _some_pages(corpus)]
        counts: list[int] = []
        numbers = itertools.count()

        def read(pages: int, **sampling: Any) -> None:
            inputs = (_input(pipeline, pixels, next(numbers)) for _ in range(pages))
            outputs = pipeline.as_completed(inputs, on_error="raise", **job.config.sampling(0) | sampling)
            counts.append(sum(len(out.token_ids) for _, out in outputs))

        tokens = min(job.max_new_tokens or WARM_UP_TOKENS, WARM_UP_TOKENS)
        read(min(corpus.pages, engine.batch_size), max_new_tokens=tokens)
        counts.clear()
        seconds = repeated(lambda: read(corpus.pages), pipeline.device, repeats)
    return _results(corpus.pages, counts, seconds, engines=len(engine.devices))


def _results(pages: int, tokens: list[int], seconds: list[float], engines: int) -> Results:
    rates = [count / each for count, each in zip(tokens, seconds, strict=True)]
    return {
        "pages": pages,
        "tokens": tokens,
        "seconds": seconds,
        "engines": engines,
        "pages_per_s": engines * pages / median(seconds),
        "tokens_per_s": engines * median(rates),
    }


def _input(pipeline: Pipeline, pixels: list[Tensor], number: int) -> Mapping[str, Any]:
    ready = pixels[number % len(pixels)]
    # images of prompts are kept by content
    return ReadyPage(ready, number) if pipeline.capabilities.takes_prompt else {"pixel_values": ready}


def _pixels(pipeline: Pipeline, picture: Image) -> Tensor:
    assert pipeline.image_processor is not None  # what is measured reads images
    return pipeline.image_processor([picture])[0]


def _some_pages(corpus: Corpus) -> Iterator[Image]:
    """Draws the first page of files that lie evenly over the kinds."""
    files = sorted(path for path in corpus.folder.rglob("*") if path.is_file())
    for path in _evenly(files, DISTINCT_PAGES):
        with closing(open_document(path)) as document:
            yield document.render(0)


def _evenly(files: list[Path], count: int) -> list[Path]:
    count = min(count, len(files))
    return [files[i * len(files) // count] for i in range(count)]
