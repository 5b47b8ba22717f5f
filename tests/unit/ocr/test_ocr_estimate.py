"""Estimates: which pages are drawn, and what follows from how they were read."""

from __future__ import annotations

import dataclasses
import heapq
import json
import random
import time
from collections import Counter
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.ocr.test_ocr_limit import FakeReader
from vlm.errors import DocumentError, InputError
from vlm_app.ocr.config import EstimateConfig, JobConfig
from vlm_app.ocr.documents.naming import Source, name_all
from vlm_app.ocr.estimates.estimate import predict
from vlm_app.ocr.estimates.estimate_report import EstimateReport
from vlm_app.ocr.estimates.noted_reader import SampledPage
from vlm_app.ocr.estimates.sample_run import Sample, SampleRun
from vlm_app.ocr.estimates.sampling import MOST_COUNTED, Census, draw_pages, page_range, take_census
from vlm_app.ocr.measures import Measures, Queues
from vlm_app.ocr.report import Summary

SLOTS = 8


# --- which pages ---
class FakeRenderer:
    """Documents of as many pages as their file has bytes; an empty one is damaged."""

    ahead = 3

    def open(self, path, *, is_quick=False):
        future = Future()
        if count := path.stat().st_size:
            future.set_result(SimpleNamespace(num_pages=count))
        else:
            future.set_exception(DocumentError("no pages.", "empty"))
        return future

    def close(self):
        pass


def files(folder: Path, *sizes: int):
    for i, size in enumerate(sizes):
        (folder / f"{i:04}.pdf").write_bytes(b"x" * size)
    return name_all(map(Source, sorted(folder.iterdir())))


def test_documents_are_counted(tmp_path):
    documents = files(tmp_path, 3, 0, 5, 1)
    census = take_census(documents, FakeRenderer(), None, seed=0)
    assert census.pages == {0: (0, 1, 2), 2: (0, 1, 2, 3, 4), 3: (0,)} and census.is_whole
    assert sorted(census.counts) == [0, 1, 3, 5] and [f.kind for f in census.failures] == ["empty"]
    census = take_census(documents, FakeRenderer(), "2-3", seed=0)
    assert census.pages == {0: (1, 2), 2: (1, 2)} and len(census.failures) == 2


def test_of_very_many_documents_some_are_counted(tmp_path):
    documents = files(tmp_path, *[2] * (MOST_COUNTED + 20))
    census = take_census(documents, FakeRenderer(), None, seed=0)
    assert len(census.pages) == MOST_COUNTED and not census.is_whole
    assert census.pages.keys() != take_census(documents, FakeRenderer(), None, seed=1).pages.keys()


def census_of(*counts: int, num_documents: int | None = None) -> Census:
    return Census(num_documents or len(counts), {i: tuple(range(count)) for i, count in enumerate(counts)})


def test_drawn_pages():
    census = census_of(9, 1, 400, 30)
    drawn = draw_pages(census, 50, seed=3)
    assert sum(map(len, drawn.values())) == 50 and drawn == draw_pages(census, 50, seed=3)
    assert all(len(set(pages)) == len(pages) and pages == sorted(pages) for pages in drawn.values())
    assert drawn != draw_pages(census, 50, seed=4)
    everything = draw_pages(census, 10_000, seed=3)
    assert everything == {i: list(pages) for i, pages in census.pages.items()}
    assert len(drawn[2]) == pytest.approx(50 * 400 / 440, abs=1) and len(drawn[3]) == pytest.approx(
        50 * 30 / 440, abs=1
    )


def test_every_page_is_as_likely_as_any_other():
    """Of a long document as of one page."""
    census, hits = census_of(1, 1, 40, 6), Counter()
    for seed in range(600):
        drawn = draw_pages(census, 12, seed)
        hits.update((document, page) for document, pages in drawn.items() for page in pages)
    assert sum(hits.values()) == 600 * 12
    expected = 600 * 12 / 48
    assert all(0.7 * expected < hits[place] < 1.3 * expected for place in [(0, 0), (1, 0), (2, 0), (2, 39), (3, 1)])


def test_a_sample_is_read_with_the_retries_of_a_job(tmp_path):
    documents = files(tmp_path, 3, 3)
    reader = FakeReader(bad=[(2, 1)], loops=[(2, 0), (1, 2)])
    told = []
    run = SampleRun(reader, JobConfig(retries=2), 2, lambda done, total: told.append((done, total)))
    sample = run.read(documents, {1: [0, 2], 0: [0, 1]})
    assert reader.read_pages == [(1, 0), (1, 2), (2, 0), (2, 1), (1, 2), (2, 0)], "the job numbers its documents"
    by_place = {(page.document, page.page): page for page in sample.pages}
    assert by_place[1, 2].tokens == [2, 2] and not by_place[1, 2].is_bad
    assert by_place[0, 1].tokens == [0] and by_place[0, 1].is_bad
    assert (sample.summary.pages, sample.summary.retries, told[-1]) == (3, 2, (4, 4))
    assert [page.until for page in sample.pages] == sorted(page.until for page in sample.pages)
    assert page_range([0, 4]) == "1,5"


def test_the_first_pages_of_a_large_sample_are_not_timed(tmp_path):
    """They fill the engines, whose kernels are compiled then; what they say of lengths and errors counts."""
    documents, slow = files(tmp_path, 3, 5), []

    class Compiling(FakeReader):
        def read(self, works, sampling, limit=None):
            slow.append(time.sleep(0.0 if slow else 0.3))
            yield from super().read(works, sampling, limit)

    reader = Compiling()
    drawn = {1: [0, 2, 3, 4], 0: [0, 1, 2]}
    sample = SampleRun(reader, JobConfig(), 2, lambda *_: None).read(documents, drawn)
    assert sample.num_untimed == 0 and sample.seconds >= 0.3, "there would be too few left"
    slow.clear()
    sample = SampleRun(Compiling(), JobConfig(), 2, lambda *_: None).read(documents, {**drawn, 1: [0, 1, 2, 3, 4]})
    assert sample.num_untimed == 2 and sample.first_seconds >= 0.3 > sample.seconds and len(slow) == 2
    assert [(page.document, page.page) for page in sample.pages][:3] == [(1, 0), (1, 1), (1, 2)]
    assert sample.timed == slice(2, 8) and sample.steady == slice(4, 6)


def test_a_later_sample_keeps_the_pages_that_cold_engines_read(tmp_path):
    documents, reader, told = files(tmp_path, 9, 5), FakeReader(bad=[(1, 0)]), []
    run = SampleRun(reader, JobConfig(), 2, lambda *done: told.append(done))
    brief = run.read(documents, {1: [0, 2, 3, 4], 0: [0, 1, 2, 3]})
    assert brief.num_untimed == 2 and brief.is_brief and brief.pages_for_long_enough > 1000
    later = run.read(documents, {1: [0, 1, 2, 3, 4], 0: [0, 1, 2, 3, 4, 5, 6]})
    places = [(page.document, page.page) for page in later.pages]
    assert len(places) == len(set(places)) == 12 and places[:2] == [(1, 0), (1, 2)] == places[: later.num_untimed]
    assert later.first_seconds == brief.first_seconds > 0 and later.pages[0].is_bad and told[-1] == (12, 12)
    assert [failure.page for failure in later.summary.failures] == [1], "the first page's, once"


# --- what follows ---
def simulated(pages, slots=SLOTS, start=6.0, open_share=0.0, **queues) -> Sample:
    """Reads pages (document, seconds in a slot, tokens) in so many slots, after a slow start."""
    free = [start] * slots
    done = []
    for number, (document, seconds, tokens) in enumerate(pages):
        begin = heapq.heappop(free)
        heapq.heappush(free, begin + seconds)
        done.append(SampledPage(document, number, begin + seconds, [tokens]))
    done.sort(key=lambda page: page.until)
    end, summary = done[-1].until, Summary()
    for second in range(1, int(end) + 1):
        device = {"encode": 0.1 * second, "decode": 0.9 * second}
        stages = {"draw": second * (1 - open_share), "open": second * open_share}
        measures = Measures(stages, device, engines=1, queues=Queues(4, slots, **queues))
        summary.series.sample(second, 0, 0, measures)
    summary.seconds = end
    return Sample(done, end, slots, summary)


def test_what_is_not_timed_does_not_prolong_the_job():
    census = census_of(*[10] * 40)
    pages = [(number % 40, 2.0, 500) for number in range(8 * SLOTS)]
    sample, begun = simulated(pages), [SampledPage(39, 9, 90.0 + n, [500]) for n in range(SLOTS)]
    cold = dataclasses.replace(sample, pages=begun + list(sample.pages), num_untimed=SLOTS)
    plain, warm = (predict(each, census, engines=1, gpu_price=None, seed=0) for each in (sample, cold))
    assert warm.seconds.estimate == pytest.approx(plain.seconds.estimate)
    assert warm.pages_per_second.estimate == pytest.approx(plain.pages_per_second.estimate)


def test_a_job_has_a_cold_engine_too():
    """Its first pages took four seconds more than others did, which began after six."""
    census, sample = census_of(*[50] * 20), even(64, **FULL)
    begun = [SampledPage(19, 49, 20.0, [100]) for _ in range(SLOTS)]
    cold = dataclasses.replace(
        sample, pages=begun + list(sample.pages), num_untimed=SLOTS, first_seconds=6.0 + 1.0 + 4.0
    )
    plain, later = (predict(each, census, engines=1, gpu_price=None, seed=0) for each in (sample, cold))
    assert later.seconds.estimate == pytest.approx(plain.seconds.estimate + 4.0)


def test_kernels_that_are_compiled_are_no_part_of_the_sample(tmp_path):
    documents = files(tmp_path, 3, 3)

    class Compiling(FakeReader):
        compiled = 0.0

        def measures(self):
            return Measures(engines=1, compile_seconds=self.compiled)

        def _answer(self, work, page, sampling):
            time.sleep(0.2 * (not self.compiled))
            self.compiled = 0.2
            return super()._answer(work, page, sampling)

    sample = SampleRun(Compiling(), JobConfig(), 2, lambda *_: None).read(documents, {0: [0, 1], 1: [2]})
    assert sample.seconds < 0.2 <= sample.pages[0].until


FULL = {"ready": 9, "running": 8, "preparing": 0}
DRY = {"ready": 0, "running": 2, "preparing": 9}


def scans(seed: int, documents: int = 120):
    """Documents of up to 30 pages, some of long pages, some of short ones: (document, seconds, tokens)."""
    draw = random.Random(seed)
    for document in range(documents):
        usual = draw.choice([40, 100, 300])
        for _ in range(draw.randint(1, 30)):
            tokens = max(5, int(draw.gauss(usual, usual / 4)))
            yield document, 0.2 + tokens / 100, tokens


@pytest.mark.parametrize("seed", range(5))
def test_a_prediction_beside_the_whole_job(seed):
    """A sample of an eighth: a start that takes half as long as the sample's pages does not count eight times."""
    pages = list(scans(seed))
    by_document: dict[int, list] = {}
    for page in pages:
        by_document.setdefault(page[0], []).append(page)
    census = census_of(*(len(by_document[document]) for document in sorted(by_document)))
    drawn = draw_pages(census, 240, seed)
    sample = simulated([by_document[d][number] for d, numbers in drawn.items() for number in numbers], start=20, **FULL)
    whole = simulated(pages, start=20)
    estimate = predict(sample, census, engines=1, gpu_price=3.6, seed=seed)
    assert estimate.seconds.estimate == pytest.approx(whole.seconds, rel=0.1)
    assert estimate.seconds.low <= whole.seconds <= estimate.seconds.high < 1.3 * estimate.seconds.low
    assert estimate.tokens.low <= sum(page[2] for page in pages) <= estimate.tokens.high
    assert estimate.pages.low == estimate.pages.high == len(pages)
    assert estimate.cost and estimate.cost.estimate == pytest.approx(estimate.seconds.estimate / 1000)
    assert estimate.binding and estimate.binding.stage == "engine"
    naive = sample.seconds / len(sample.pages) * len(pages)
    assert naive > 1.15 * whole.seconds


def test_a_prediction_over_all_pages_is_the_time_that_they_took():
    pages = list(scans(1, documents=12))
    sample = simulated(pages, **FULL)
    counts = Counter(page[0] for page in pages)
    estimate = predict(sample, census_of(*(counts[i] for i in range(12))), engines=1, gpu_price=None, seed=0)
    assert estimate.seconds.estimate == pytest.approx(sample.seconds)
    assert estimate.pages_per_second.estimate == pytest.approx(len(pages) / sample.seconds)
    tokens = pytest.approx(sum(page[2] for page in pages))
    assert estimate.cost is None and estimate.tokens.low == tokens == estimate.tokens.high, "nothing is left open"


def even(count: int, documents: int = 20, **how) -> Sample:
    return simulated([(i % documents, 1.0, 100) for i in range(count)], **how)


def test_pages_that_are_alike_leave_nothing_open():
    census = census_of(*[50] * 20)
    estimate = predict(even(64, **FULL), census, engines=1, gpu_price=None, seed=0)
    assert estimate.seconds.estimate == pytest.approx(6 + 1000 / 8) == estimate.seconds.low == estimate.seconds.high


def test_documents_that_were_not_opened_widen_the_interval():
    counts = [10, 90] * 10
    narrow = predict(even(64, **FULL), census_of(*counts), engines=1, gpu_price=None, seed=0)
    wide = predict(even(64, **FULL), census_of(*counts, num_documents=2000), engines=1, gpu_price=None, seed=0)
    assert wide.pages.estimate == 100 * narrow.pages.estimate and wide.pages.low < 100_000 < wide.pages.high
    assert wide.seconds.low < wide.seconds.estimate < wide.seconds.high
    most = predict(even(64, **FULL), census_of(*counts, num_documents=21), engines=1, gpu_price=None, seed=0)
    spread = [(x.pages.high - x.pages.low) / x.pages.estimate for x in (most, wide)]
    assert 0 < spread[0] < 0.3 * spread[1], "one of 21 was not opened"


def test_retries_take_time():
    census, once, twice = census_of(*[50] * 20), even(64, **FULL), even(64, **FULL)
    for page in twice.pages[::4]:
        page.tokens.append(page.tokens[0])
    seconds = [predict(s, census, engines=1, gpu_price=None, seed=0).seconds.estimate for s in (once, twice)]
    assert seconds[1] - seconds[0] == pytest.approx(1000 / 8 / 4)


def test_tokens_count_where_the_engine_binds_and_pages_where_workers_do():
    census = census_of(*[50] * 20)
    for queues, more in ((FULL, 0.1 * 0.25 + 0.9), (DRY, 0.25)):
        sample = even(64, **queues)
        before = predict(sample, census, engines=1, gpu_price=None, seed=0).seconds.estimate
        for page in sample.pages[::4]:
            page.tokens.append(4 * page.tokens[0])  # a long retry
        after = predict(sample, census, engines=1, gpu_price=None, seed=0)
        assert after.seconds.estimate - before == pytest.approx(1000 / 8 * more, rel=0.001)
        assert after.binding and after.binding.stage == ("engine" if queues is FULL else "draw")


def test_bad_pages():
    census, sample = census_of(*[50] * 20), even(64, **FULL)
    none = predict(sample, census, engines=1, gpu_price=None, seed=0).error_rate
    assert (none.estimate, none.low) == (0, 0) and none.high == pytest.approx(0.0457, abs=1e-3)
    for page in sample.pages[::8]:
        page.is_bad = True
    some = predict(sample, census, engines=1, gpu_price=None, seed=0).error_rate
    assert some.estimate == 1 / 8 and 0 < some.low < 1 / 8 < some.high < 0.5


def test_one_document_is_resampled_by_pages():
    draw = random.Random(0)
    pages = [(0, 1.0, draw.randint(50, 150)) for _ in range(64)]
    tokens = predict(simulated(pages, **FULL), census_of(5000), engines=1, gpu_price=None, seed=0).tokens
    assert tokens.low < tokens.estimate < tokens.high


def test_the_sample_opens_documents_for_fewer_pages_than_the_job():
    """20 for 64 pages, and 20 for 1000: half of what bounds the sample is a thirtieth of that in the job."""
    census = census_of(*[50] * 20)
    for queues, factor in ((DRY, 0.5 + 0.5 * 64 / 1000), (FULL, 1.0)):
        cheap, dear = (
            predict(even(64, open_share=share, **queues), census, engines=1, gpu_price=None, seed=0)
            for share in (0.0, 0.5)
        )
        assert (dear.seconds.estimate - 6) / (cheap.seconds.estimate - 6) == pytest.approx(factor)


@pytest.mark.parametrize(("documents", "pages_each"), [(2, 40), (40, 2), (80, 1)])
def test_how_sure_one_may_be_of_half_of_the_pages(documents, pages_each):
    """Intervals of many samples beside the truth, whatever the documents' length: about 9 of 10 hold it."""
    draw, hits, widths = random.Random(1), 0, []
    truth = {(d, p): draw.randint(10, 200) for d in range(documents) for p in range(pages_each)}
    census = census_of(*[pages_each] * documents)
    for seed in range(60):
        drawn = draw_pages(census, 40, seed)
        pages = [SampledPage(d, p, i + 1.0, [truth[d, p]]) for i, (d, p) in enumerate(_places(drawn))]
        tokens = predict(Sample(pages, 40.0, 8, Summary()), census, engines=1, gpu_price=None, seed=seed).tokens
        hits += tokens.low <= sum(truth.values()) <= tokens.high
        widths.append((tokens.high - tokens.low) / sum(truth.values()))
    assert hits >= 50 and sum(widths) / 60 < 0.3


def _places(drawn):
    return [(document, page) for document, pages in drawn.items() for page in pages]


def test_a_small_sample_says_so_and_seeds_repeat():
    census = census_of(*[50] * 20)
    reports = [
        EstimateReport(predict(sample, census, engines=2, gpu_price=2.0, seed=5), census, sample, 5, 2.0)
        for sample in (even(10), even(10), even(64, **FULL))
    ]
    assert [report.is_too_small for report in reports] == [True, True, False]
    assert reports[0].as_json() == reports[1].as_json()
    assert json.loads(json.dumps(reports[2].as_json()))["sample"]["is_steady"]
    lines = list(reports[2].lines())
    assert lines[0] == "pages: 1,000 in 20 documents"
    assert lines[1] == "time: 2.2 min (2.2 min to 2.2 min), 7.63 (7.63 to 7.63) pages/s"
    assert lines[2].startswith("cost: 0.15 (0.15 to 0.15) at 2 an hour") and lines[-1].endswith("90% intervals")


def test_one_page_of_several_tells_no_interval():
    census, sample = census_of(5, 5), even(1)
    estimate = predict(sample, census, engines=1, gpu_price=2.0, seed=0)
    assert (estimate.pages.low, estimate.pages.high) == (10, 10)
    assert estimate.error_rate.low == 0 and estimate.error_rate.high == pytest.approx(0.95)
    for value in (estimate.seconds, estimate.pages_per_second, estimate.tokens, estimate.cost):
        assert value.estimate > 0 and value.low is None and value.high is None
    report = EstimateReport(estimate, census, sample, 0, 2.0)
    assert json.loads(json.dumps(report.as_json()))["seconds"] == {
        "estimate": estimate.seconds.estimate, "low": None, "high": None,
    }  # fmt: skip
    lines = list(report.lines())
    assert [line for line in lines if " to " in line] == ["bad pages: 0.00% (0.00% to 95.00%)"]
    assert lines[-1].endswith("in brackets: 90% intervals; a larger --sample tells those of the other numbers")
    untimed = dataclasses.replace(report, sample=dataclasses.replace(sample, num_untimed=1))
    assert untimed.as_json()["cpu_ms_a_page"] == {}
    whole = predict(sample, census_of(1), engines=1, gpu_price=None, seed=0)
    assert whole.seconds.low == whole.seconds.high, "nothing is left open"


@pytest.mark.parametrize(("field", "value"), [("sample", 0), ("seed", -1)])
def test_numbers_that_no_sample_has(field, value):
    with pytest.raises(InputError, match=f"--{field} is {value}; it must be at least"):
        EstimateConfig(**{field: value})
