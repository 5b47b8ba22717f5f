"""Pages that loop, in the real runtime: a tiny random model whose greedy texts often repeat themselves."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import astuple

import numpy as np
import pytest
from PIL import Image

from tests.kits.models import engines, tiny
from vlm.api.pipeline import Pipeline
from vlm.config import RuntimeConfig
from vlm_app.ocr.config import JobConfig
from vlm_app.ocr.documents.naming import name_all
from vlm_app.ocr.documents.sources import find_documents
from vlm_app.ocr.events import Work
from vlm_app.ocr.job import Job
from vlm_app.ocr.ledger.ledger import Ledger
from vlm_app.ocr.outputs import Outputs
from vlm_app.ocr.readers.reader import PipelineReader


@pytest.fixture
def scans(tmp_path):
    folder, noise = tmp_path / "in", np.random.default_rng(1)
    folder.mkdir()
    for i in range(8):
        Image.fromarray((noise.random((64, 48)) * 255).astype("uint8")).save(folder / f"{i}.png")
    return folder


def test_retries_do_not_depend_on_the_batch_and_repeat_exactly(tmp_path, scans):
    engine = engines.engine_dir(tiny.nougat(seed=1, positions=200), tmp_path, max_batch_size=4)

    def pages(batch_size, retries):
        name = f"{batch_size}-{retries}"
        reader = PipelineReader(Pipeline(engine, RuntimeConfig(device="cpu", max_batch_size=batch_size)))
        documents = name_all(find_documents([scans]).sources)
        with closing(Ledger(tmp_path / f"{name}.sqlite")) as ledger:
            outputs = Outputs(tmp_path / name, "md", ledger)
            summary = Job(reader, documents, JobConfig(retries=retries), ledger, outputs).run()
            assert summary.pages == len(documents) == summary.documents
            return [astuple(ledger.pages(document)[0]) for document in range(1, 9)], summary

    alone, _ = pages(1, 2)
    together, retried = pages(4, 2)
    once, summary = pages(4, 0)
    assert alone == together
    looped = [i for i, row in enumerate(once) if row[1] == "looped"]
    assert looped and len(looped) < 8 and len(summary.failures) == len(looped)
    assert summary.retries == 0 and retried.retries >= len(looped)
    for measures in (summary.series.whole().measures, retried.series.whole().measures):
        assert measures.stages.keys() == {"open", "draw", "prepare", "decode", "post-process", "write"}
        assert measures.device is not None and measures.device.keys() == {"encode", "decode"}
    assert retried.series.whole().measures.retries == retried.retries
    # only these were read again, and some did better
    assert [i for i, row in enumerate(together) if row[-1] > 1] == looped
    assert any(together[i][1] == "done" for i in looped)


def test_a_reader_that_is_closed_does_not_wait_for_its_pages(tmp_path, scans):
    engine = engines.engine_dir(tiny.nougat(seed=1, positions=200), tmp_path, max_batch_size=4)
    reader = PipelineReader(Pipeline(engine, RuntimeConfig(device="cpu")))
    steps, has_begun, may_go_on = [], threading.Event(), threading.Event()
    step = reader.pipeline.loop.step_for

    def slow_step(ids, **options):
        steps.append(len(steps))
        has_begun.set()
        may_go_on.wait()
        return step(ids, **options)

    reader.pipeline.loop.step_for = slow_step
    works = [Work(number, path) for number, path in enumerate(sorted(scans.iterdir()))]
    events = reader.read(works, {"max_new_tokens": 150})
    next(events)
    assert has_begun.wait(60)
    threading.Timer(0.2, may_go_on.set).start()
    reader.close()
    assert len(steps) == 1 and not reader.pipeline.loop.has_work
