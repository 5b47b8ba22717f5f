"""The report of a job: what JSON and the page hold, and where they may lie."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from vlm.errors import InputError
from vlm_app.ocr.measures import Measures, Queues
from vlm_app.ocr.report import Failure, Summary
from vlm_app.ocr.reports.html_report import ROWS, html_report, lasting
from vlm_app.ocr.reports.job_report import LISTED, job_report, report_path, write_report

CONFIGURATION = {"model": "nougat 12", "pages": None, "runtime": {"device": "cpu"}}


def summary(seconds: int = 3, failures: int = 2, **fields) -> Summary:
    """Of a job that read ten pages a second on one device."""
    job = Summary(
        total=4, documents=2, failed=1, pages=10 * seconds, tokens=90 * seconds, seconds=seconds, retries=3, **fields
    )
    job.failures = [Failure(Path(f"in/<b>{i}&.pdf"), i + 1, "no <i>page</i>.", "damaged") for i in range(failures)]
    job.finish_reasons["eos"] = 10 * seconds
    queues = Queues(workers=4, slots=8, preparing=1, ready=6, running=8)
    for second in range(1, seconds + 1):
        costs, device = {"draw": 0.4 * second, "write": 0.1 * second}, {"encode": 0.2 * second, "decode": 0.7 * second}
        job.series.sample(second, 10 * second, 90 * second, Measures(costs, device, 3, 1, queues))
    return job


def test_the_json_of_a_job(tmp_path):
    report = job_report(summary(), CONFIGURATION, gpu_price=3.6)
    assert json.loads(json.dumps(report)) == report
    assert report["documents"] == {
        "found": 4, "written": 2, "skipped": 0, "refused": 0, "failed": 1, "unfinished": 1
    }  # fmt: skip
    assert report["pages"]["read"] == 30 and report["pages"]["read_again"] == 3 and report["ended_by"] == "end"
    assert report["cost_per_million_pages"] == pytest.approx(3.6 / 3600 / 10 * 1e6)
    assert report["stages"]["draw"]["cpu_seconds"] == pytest.approx(1.2)
    assert report["stages"]["draw"]["cpu_ms_a_page"] == pytest.approx(40)
    assert report["device"]["share"] == pytest.approx(0.9) and report["queues"]["ready"] == 6
    assert report["binds"] == {"stage": "engine", "reason": "device 90% busy, 6 pages wait for the engine"}
    assert [moment["until"] for moment in report["over_time"]] == [1, 2, 3]
    assert report["over_time"][1]["pages_per_second"] == 10 and report["over_time"][1]["tokens_per_second"] == 90
    assert report["failures"]["kinds"] == {"damaged": 2}
    assert job_report(summary(), CONFIGURATION, gpu_price=None)["cost_per_million_pages"] is None


def test_what_ended_it():
    ended = [Summary(interrupted=True), Summary(is_limited=True), Summary(stopped=InputError("the disk is full."))]
    assert [job_report(each, {}, None)["ended_by"] for each in ended] == ["interrupt", "limit", "the disk is full."]


def test_failures_are_bounded():
    report = job_report(summary(failures=LISTED + 7), CONFIGURATION, None)
    assert report["failures"]["kinds"] == {"damaged": LISTED + 7}
    assert (len(report["failures"]["first"]), report["failures"]["left_out"]) == (LISTED, 7)
    page = html_report(report)
    assert page.count("no &lt;i&gt;") == ROWS and f"The first {ROWS} of {LISTED + 7}" in page


def test_the_page_holds_names_as_text_and_needs_no_other_file():
    page = html_report(job_report(summary(), CONFIGURATION, gpu_price=3.6))
    assert "in/&lt;b&gt;0&amp;.pdf" in page and "<b>" not in page and "<i>" not in page
    assert "<script" not in page and not re.search(r"(src|href)=|url\(|@import", page)
    assert "30 pages, 10.00 a second" in page and "device 90% busy" in page and "100.00 at 3.6" in page
    assert re.search(r"tokens in [\d.]+ s; a million pages cost", page)
    lines = re.findall(r'points="([^"]*)"', page)
    assert len(lines) == 2, "the devices' share and the throughput"
    assert lines[1].split()[0] == "0.0,0.0" and lines[1].split()[-1] == "720.0,0.0"


def test_the_page_of_a_job_that_knows_little():
    unknown = Summary(engines=2)
    unknown.series.sample(1.0, 0, 0, Measures(device=None, engines=2, queues=None))
    for job in (Summary(), unknown):
        page = html_report(job_report(job, {}, gpu_price=2.0))
        assert "0 pages" in page and "100%<" not in page and "a million" not in page


def test_reports_are_written_whole_and_over_what_was_there(tmp_path):
    path = report_path(str(tmp_path / "job.json"))
    for seconds in (1, 2):
        write_report(path, job_report(summary(seconds), CONFIGURATION, None))
        assert json.loads(path.read_text())["seconds"] == seconds
    assert {file.name for file in tmp_path.iterdir()} == {"job.json", "job.html"}


@pytest.mark.parametrize(("name", "says"), [
    ("job.txt", r"give a name that ends in \.json"),
    ("no/job.json", "lies in a folder that is not there"),
    ("folder.json", "is a folder"),
])  # fmt: skip
def test_places_that_a_report_cannot_have(tmp_path, name, says):
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(InputError, match=says):
        report_path(str(tmp_path / name))


def test_a_report_into_a_folder_that_is_not_written_is_told_ahead(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: (path, mode) != (tmp_path, os.W_OK))  # root may write anywhere
    with pytest.raises(InputError, match="lies in a folder that cannot be written"):
        report_path(str(tmp_path / "job.json"))


def test_durations():
    assert [lasting(s) for s in (0.25, 119, 600, 36000)] == ["0.2 s", "119.0 s", "10.0 min", "10.0 h"]
