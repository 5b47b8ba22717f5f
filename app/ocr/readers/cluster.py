"""The same job on Ray Data: tasks make pages an engine's input, actors hold engines, this process keeps the ledger and
writes documents."""

from __future__ import annotations

import functools
import logging
import pickle
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from vlm.errors import EngineError, VlmError
from vlm.parallel.environment import be_no_rank
from vlm_app.core.processes.ray_cluster import first_line, join_cluster
from vlm_app.core.storage import EXTRA
from vlm_app.ocr.documents.pages import opened
from vlm_app.ocr.documents.render_pool import RenderPool
from vlm_app.ocr.events import Answer, Event, Opened, PageFailed, Unreadable, Work
from vlm_app.ocr.measures import Measures
from vlm_app.ocr.readers.page_feed import page_input
from vlm_app.ocr.readers.reader import page_event
from vlm_app.ocr.readers.shipped_images import ShippedImages

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

    from vlm.requests.pixels import ImagePixels
    from vlm_app.ocr.readers.engines import EngineConfig

BATCH = 4  # times what an engine reads at once: it runs dry but at the end of so many pages
NOTHING = b""
Row = dict[str, Any]  # document, page; an image or an event, pickled


def connect() -> bool:
    """Joins the cluster that $RAY_ADDRESS names, or starts one on this machine. Says whether it has GPUs."""
    has_gpus = join_cluster("ray.data", EXTRA)
    import ray.data

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False
    return has_gpus


class RayReader:
    """So many engines, as actors; None: one a GPU, or one on a cluster without."""

    def __init__(self, engine: EngineConfig, engines: int | None):
        import ray

        resources = ray.cluster_resources()
        self._engine, self._on_gpu = engine, engine.devices[0].startswith("cuda")
        self.engines = engines or (max(1, int(resources.get("GPU", 0))) if self._on_gpu else 1)
        # on the CPU engines take half of the cores: rendering needs some, too
        self._cores = resources.get("CPU", 1.0) / 2

    def read(self, works: Iterable[Work], sampling: Mapping[str, Any], limit: int | None = None) -> Iterator[Event]:
        """Takes no `limit`: tasks open documents side by side, and none knows how many pages the others have."""
        assert limit is None
        from ray.exceptions import RayError

        rows = [{"work": pickle.dumps(work)} for work in works]
        if not rows:
            return
        try:
            yield from _opened_first(pickle.loads(row["event"]) for row in self._data(rows, sampling).iter_rows())
        except RayError as error:
            raise EngineError(
                f"the Ray job has ended: {first_line(error)}; run the same command again to go on after the last page."
            ) from error

    def measures(self) -> Measures:
        """Returns nothing but the number of engines: what they do is Ray's to tell."""
        return Measures(device=None, engines=self.engines, queues=None)

    def close(self) -> None:
        """Leaves the cluster for the next job; one that was started here goes with this process."""

    def _data(self, rows: list[Row], sampling: Mapping[str, Any]) -> Any:
        import ray

        images = self._engine.page_images()
        shipped = None if images is None else ShippedImages.packed(images)
        pages = ray.data.from_items(rows, override_num_blocks=len(rows)).flat_map(
            functools.partial(_rendered, images=shipped),
            num_cpus=min(1.0, self._cores),
            concurrency=self._engine.workers or None,
        )
        share: dict[str, Any] = {"num_gpus": 1} if self._on_gpu else {"num_cpus": min(1.0, self._cores / self.engines)}
        return pages.map_batches(
            _Engine,
            fn_constructor_args=(self._engine, dict(sampling)),
            batch_size=BATCH * self._engine.batch_size,
            concurrency=self.engines,
            **share,
        )


def _opened_first(events: Iterable[Answer]) -> Iterator[Answer]:
    """Holds pages until their document is known: Ray gives back what is ready first."""
    documents: set[int] = set()
    pending: dict[int, list[Answer]] = defaultdict(list)
    for event in events:
        if isinstance(event, Opened):
            documents.add(event.document)
            yield event
            yield from pending.pop(event.document, ())
        elif isinstance(event, Unreadable) or event.document in documents:
            yield event
        else:
            pending[event.document].append(event)


# --- in tasks ---
def _rendered(row: Row, images: ShippedImages | None) -> Iterator[Row]:
    """Yields the news that a document is open, then its pages."""
    work: Work = pickle.loads(row["work"])
    answer = opened(work, _renderer(images).open(work.path, is_quick=work.is_quick))
    if isinstance(answer, Unreadable):
        yield _event_row(answer)
        return
    news, document = answer
    yield _event_row(news)
    for page in work.due(news.pages):
        try:
            image = document.read(page).result()
        except VlmError as error:
            yield _event_row(PageFailed(work.document, page, error.kind, str(error)))
        else:
            yield _page_row(work.document, page, image)


@functools.cache
def _renderer(images: ShippedImages | None) -> RenderPool:
    """Starts one a task's process: a document that crashes it does not end the job."""
    return RenderPool(1, images and images.unpacked())


def _event_row(event: Event) -> Row:
    return {"event": pickle.dumps(event), "document": -1, "page": -1, "image": NOTHING}  # every row has all columns


def _page_row(document: int, page: int, image: Image | ImagePixels) -> Row:
    return {"event": NOTHING, "document": document, "page": page, "image": pickle.dumps(image)}


# --- in actors ---
class _Engine:
    """Reads batches of pages; events pass through."""

    def __init__(self, engine: EngineConfig, sampling: dict[str, Any]):
        be_no_rank()  # of what has started Ray
        self._pipeline, self._options = engine.here().pipeline(), {**engine.adapter, **sampling}
        self._words = engine.words

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, list[bytes]]:
        events = [bytes(event) for event in batch["event"] if event]
        due = [i for i, event in enumerate(batch["event"]) if not event]
        inputs = (page_input(pickle.loads(batch["image"][i]), self._words) for i in due)
        for index, result in self._pipeline.as_completed(inputs, on_error="yield", **self._options):
            document, page = (int(batch[name][due[index]]) for name in ("document", "page"))
            events.append(pickle.dumps(page_event(document, page, result)))
        return {"event": events}
