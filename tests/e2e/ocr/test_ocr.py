"""`vlm ocr` and `vlm run` with the packaged model, as users call them."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pypdfium2
import pytest
from PIL import Image

from tests.checkout import ROOT
from tests.kits.cli_kit import ended
from tests.kits.models.lora_kit import random_ia3
from tests.kits.ocr_jobs import book, commits, outputs
from tests.unit.artifacts.hub_server import Hub, serve
from tests.unit.processing.test_documents import ENCRYPTED
from vlm.build.locate import packaged_models
from vlm.errors import InputError
from vlm_app.ocr.job import Job

EXAMPLES = ROOT / "examples"
# a test runner that was started in the background ignores Ctrl-C, and its children with it
START = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from vlm_app.cli.main import main; main()"
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def cli(capsys, monkeypatch, cache):
    """Runs a command line in this process -> (exit code, stdout, stderr)."""
    monkeypatch.setenv("VLM_CACHE", str(cache))
    return functools.partial(ended, capsys)


def test_documents_become_markdown(cli, tmp_path):
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    page = Image.open(EXAMPLES / "page.png").convert("RGB")
    page.save(source / "a.png")
    page.save(source / "a.pdf", save_all=True, append_images=[page, page], resolution=96)
    (source / "broken.pdf").write_bytes((EXAMPLES / "page.png").read_bytes()[:500])
    (source / "text.jpg").write_text("no image")
    truncated = (EXAMPLES / "page.png").read_bytes()
    (source / "truncated.png").write_bytes(truncated[: len(truncated) // 2])
    options = ("--batch-size", 3, "--device", "cpu", "--max-new-tokens", 40, "--report", tmp_path / "job.json")
    code, stdout, err = cli("ocr", source, "-o", out, *options)
    assert code == 1 and stdout == ""
    assert outputs(out) == {"a.png.md", "a.pdf.md"}
    report = json.loads((tmp_path / "job.json").read_text())
    assert report["pages"]["read"] == 4 and report["failures"]["kinds"] == {"damaged": 3}
    assert report["binds"]["reason"] in err and report["configuration"]["batch_size"] == 3
    assert {"decode", "post-process", "write"} <= report["stages"].keys() and 0 < report["device"]["share"] <= 1
    assert "truncated.png" in (tmp_path / "job.html").read_text()
    text = (out / "a.png.md").read_text()
    assert text.startswith(" ".join((EXAMPLES / "page.txt").read_text().split(" ")[:4]))
    assert (out / "a.pdf.md").read_text().count("Harbour notes") == 3
    for name in ("broken.pdf", "text.jpg", "truncated.png"):
        assert f"{name}" in err
    assert "Traceback" not in err and "2 documents, 4 pages" in err


def test_an_estimate_reads_a_sample_and_writes_nothing(cli, tmp_path, monkeypatch):
    source = tmp_path / "in"
    source.mkdir()
    book(source / "a.pdf", 9)
    book(source / "b.pdf", 3, seed=1)
    (source / "broken.pdf").write_bytes(b"%PDF-1.4 nothing")
    monkeypatch.chdir(tmp_path)
    options = ("--batch-size", 2, "--device", "cpu", "--max-new-tokens", 8, "--workers", 1, "--gpu-price", 2.5)
    code, stdout, err = cli("estimate", source, *options, "--sample", 8, "--json")
    estimate = json.loads(stdout)
    assert code == 0 and list(tmp_path.iterdir()) == [source], err
    assert estimate["pages"]["estimate"] == 12 and estimate["sample"]["pages"] == 8 and estimate["sample"]["is_steady"]
    assert estimate["documents"]["found"] == 3 and len(estimate["documents"]["unreadable"]) == 1
    for name in ("seconds", "tokens", "cost", "cost_per_million_pages", "pages_per_second"):
        assert 0 < estimate[name]["low"] <= estimate[name]["estimate"] <= estimate[name]["high"]
    assert estimate["binds"]["stage"] and estimate["cpu_ms_a_page"]["decode"] > 0
    code, stdout, err = cli("estimate", EXAMPLES / "page.png", *options, "--max-new-tokens", 1000)
    assert code == 2 and not stdout and "no page of the sample could be read" in err and "with --max-new-tokens" in err
    code, stdout, err = cli("estimate", source / "broken.pdf", *options)
    assert (code, stdout) == (2, "") and "the document cannot be opened" in err and "Traceback" not in err


def test_a_folder_of_bad_documents_is_finished_and_each_is_reported(cli, tmp_path):
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    (source / "good.png").write_bytes((EXAMPLES / "page.png").read_bytes())
    (source / "corrupt.pdf").write_bytes((EXAMPLES / "pages.pdf").read_bytes()[:300])
    (source / "encrypted.pdf").write_bytes(ENCRYPTED)
    (source / "empty.pdf").touch()
    (source / "empty.png").touch()
    pypdfium2.PdfDocument.new().save(source / "no-pages.pdf")
    Image.new("1", (20_000, 10_001)).save(source / "huge.png")
    code, _, err = cli("ocr", source, "-o", out, "--device", "cpu", "--max-new-tokens", 8, "--gpu-price", 2)
    assert code == 1 and outputs(out) == {"good.md"} and "Traceback" not in err
    for name, reason in {
        "corrupt.pdf": "no readable PDF", "encrypted.pdf": "encrypted", "empty.pdf": "empty", "empty.png": "empty",
        "no-pages.pdf": "without pages", "huge.png": "the limit is 175,000,000",
    }.items():  # fmt: skip
        assert re.search(rf"not read: .*{name}.*({reason})", err), name
    assert "1 encrypted" in err and "1 too large" in err and "pages/s" in err and "a million pages, at 2 an hour" in err


def test_a_report_that_cannot_be_written_hides_nothing(cli, tmp_path, monkeypatch):
    folder = tmp_path / "reports"
    folder.mkdir()

    def stop(job):
        folder.rmdir()
        folder.touch()
        raise InputError("the disk is full.")

    monkeypatch.setattr(Job, "_prepare", stop)
    code, _, err = cli("ocr", EXAMPLES / "page.png", "-o", tmp_path, "--device", "cpu", "--report", folder / "job.json")
    assert code == 2 and "job.json cannot be written" in err and "vlm: the disk is full.\n" in err


def test_another_length_is_noticed(cli, tmp_path):
    options = ["ocr", EXAMPLES / "page.png", "-o", tmp_path, "--device", "cpu", "--max-new-tokens"]
    assert cli(*options, 8)[0] == 0
    code, _, err = cli(*options, 9)
    assert code == 2 and "was begun with --max-new-tokens 8, now asked is --max-new-tokens 9; ask for" in err
    assert cli(*options, 9, "--recompute")[0] == 0
    code, _, err = cli(*options, 1000, "--recompute")
    assert code == 1 and "ask for fewer, with --max-new-tokens 319" in err, "of the page that could not be read"


def test_pages_are_read_with_an_adapter(cli, tmp_path):
    """As a model is that it has been merged into; a job goes on with the one that it was begun with."""
    layers = [f"decoder.model.decoder.layers.{i}.self_attn.v_proj" for i in range(4)]
    adapter = random_ia3(tmp_path / "own", *layers, seed=0, width=256)
    other = random_ia3(tmp_path / "other", *layers, seed=1, width=256)
    assert cli("convert", "mini-nougat", "-o", tmp_path / "merged", "--merge-lora", adapter)[0] == 0
    page, options = EXAMPLES / "page.png", ["--device", "cpu", "--max-new-tokens", 20]
    texts = []
    for name, more in {
        "plain": (), "adapted": ("--lora-dir", adapter), "merged": ("--model", tmp_path / "merged"),
    }.items():  # fmt: skip
        code, _, err = cli("ocr", page, "-o", tmp_path / name, *options, *more)
        assert code == 0, err
        texts.append((tmp_path / name / "page.md").read_text())
    assert texts[0] != texts[1] == texts[2]
    again = ("ocr", page, "-o", tmp_path / "adapted", *options)
    for more in ((), ("--lora", f"a={other}")):
        code, _, err = cli(*again, *more)
        assert code == 2 and "was begun with adapter" in err
    code, _, err = cli(*again, "--lora", f"a={adapter}", "--lora", f"b={other}")
    assert code == 2 and "--lora names a, b; all pages are read with one adapter: give one of them" in err
    code, _, err = cli("ocr", page, "-o", tmp_path / "new", "--lora", "a=nowhere")
    assert code == 2 and "is no folder of a PEFT adapter" in err and not (tmp_path / "new").exists()


def test_pages_and_formats(cli, tmp_path):
    out, options = tmp_path / "out", ["--pages", "2-3", "--device", "cpu", "--max-new-tokens", 16]
    assert cli("ocr", EXAMPLES / "pages.pdf", "-o", out, "--format", "jsonl", *options)[0] == 0
    records = [json.loads(line) for line in (out / "pages.jsonl").read_text().splitlines()]
    facts = [record["metadata"] for record in records]
    assert [fact["page"] for fact in facts] == [2, 3]
    assert all(fact["tokens"] == 16 and fact["finish_reason"] == "length" for fact in facts)
    assert cli("ocr", EXAMPLES / "pages.pdf", "-o", out, "--format", "mmd", *options)[0] == 0
    joined = "\n\n".join(fact["raw_text"].strip() for fact in facts)
    assert (out / "pages.mmd").read_text() == joined + "\n"
    code, _, err = cli("ocr", EXAMPLES / "pages.pdf", "-o", out, "--format", "mmd", *options)
    assert code == 0 and "1 document skipped: the output is there" in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["pages.pdf", "--pages", "4"], "pages 4 were asked for, the document has 3 pages"),
        (["pages.pdf", "--pages", "one"], "--pages is 'one'; write 1-4,7"),
        (["page.txt"], "page.txt is no PDF and no image that can be read; give PDF, PNG, JPEG"),
        (["nothing.pdf"], "nothing.pdf does not exist"),
        (["page.png", "--format", "docx"], "--format is 'docx'; allowed are md, mmd, jsonl"),
        (["page.png", "--max-new-tokens", "0"], "--max-new-tokens is 0"),
        (["page.png", "--model", "no-such-model"], "model 'no-such-model' does not exist; give a packaged name"),
        (["page.png", "--batch-size", "0"], "--batch-size is 0"),
        (["page.png", "--shard", "4/4"], "--shard is '4/4'; write 0/4, 1/4, 2/4 or 3/4"),
        (["page.png", "--retries", "-1"], "--retries is -1"),
        (["page.png", "--workers", "-1"], "--workers is -1"),
        (["page.png", "--gpu-price", "-1"], "--gpu-price is -1; it must be a finite number, 0 or more"),
        (["page.png", "--gpu-price", "nan"], "--gpu-price is nan; it must be a finite number, 0 or more"),
        (["page.png", "--engines", "2"], "--engines is for --ray"),
        (["page.png", "--devices", "cpu,abacus"], "--devices names 'abacus'"),
        (["page.png", "--device", "abacus"], "device is 'abacus'; allowed are auto, cpu, cuda"),
    ],
)
def test_mistakes_are_one_sentence(cli, tmp_path, arguments, says):
    name, *options = arguments
    code, out, err = cli("ocr", EXAMPLES / name, "-o", tmp_path / "out", *options)
    assert (code, out) == (2, "") and says in err
    assert err.startswith("vlm: ") and len(err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_stdout_is_no_folder(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = cli("ocr", EXAMPLES / "page.png", "-o", "-")
    assert (code, out) == (2, "") and "--out is -, " in err and "give a folder, or use vlm run --image" in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("verb", [("ocr", "-", "-o", "out"), ("estimate", "-")])
def test_stdin_is_no_document(cli, tmp_path, monkeypatch, verb):
    monkeypatch.chdir(tmp_path)
    code, out, err = cli(*verb)
    said = "vlm: - is stdin, which is read by vlm run --image - alone; give images, PDFs or folders of them.\n"
    assert (code, out, err) == (2, "", said) and not list(tmp_path.iterdir())


def test_a_price_that_is_none_is_refused_by_estimates(cli):
    code, out, err = cli("estimate", EXAMPLES / "page.png", "--gpu-price", "inf")
    assert (code, out) == (2, "") and err.startswith("vlm: --gpu-price is inf; it must be a finite number, 0 or more.")


def test_a_model_of_texts_is_refused_before_a_page_is_read(cli, tmp_path):
    """The same folder is free for another model then."""
    source = tmp_path / "page.png"
    shutil.copy(EXAMPLES / "page.png", source)
    for asked in (("ocr", source, "-o", tmp_path / "out"), ("estimate", source)):
        code, out, err = cli(*asked, "--model", "mini-t5")
        assert (code, out) == (2, "") and "mini-t5 takes text, not images; vlm models lists what takes images." in err
    assert list(tmp_path.iterdir()) == [source]


def test_engine_too_small(cli, tmp_path):
    engine = tmp_path / "engine"
    assert cli("build", "mini-nougat", "-o", engine, "--max-seq-len", 16, "--max-batch-size", 1)[0] == 0
    image = ["run", "--image", EXAMPLES / "page.png", "--model", engine, "--device", "cpu"]
    code, out, err = cli(*image, "--max-new-tokens", 15)
    assert code == 0 and out.startswith("# ")
    code, out, err = cli(*image, "--max-new-tokens", 16)
    assert (code, out) == (2, "") and "more than the 16 that the engine was built for" in err
    code, out, err = cli(*image, "--max-batch-size", 2)
    assert (code, out) == (2, "") and "--max-batch-size 1, asked is --max-batch-size 2; rebuild it: vlm build" in err
    code, out, err = cli(*image, "--dtype", "bfloat16")
    assert (code, out) == (2, "") and "--dtype bfloat16" in err


@pytest.mark.parametrize(
    ("number", "code", "says", "ended_by"),
    [(signal.SIGINT, 130, "interrupted", "interrupt"), (signal.SIGTERM, 143, "ended by SIGTERM", "SIGTERM")],
)
def test_a_signal_keeps_finished_pages(cache, tmp_path, number, code, says, ended_by):
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    page = Image.open(EXAMPLES / "page.png").convert("RGB")
    page.save(source / "a.png")
    page.save(source / "b.pdf", save_all=True, append_images=[page] * 199)
    options = ["-o", out, "--batch-size", "2", "--device", "cpu", "--max-new-tokens", "24"]
    options += ["--report", tmp_path / "job.json"]
    process = subprocess.Popen(
        [sys.executable, "-c", START, "ocr", source, *options],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "VLM_CACHE": str(cache)},
    )  # fmt: skip
    try:
        while len(commits(out)) < 5:  # a.png, and some of b.pdf
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        err = process.communicate()[1]
    finally:
        process.kill()
    assert process.returncode == code, err
    assert "Traceback" not in err and f"{says}: 1 document finished; finished pages" in err
    assert json.loads((tmp_path / "job.json").read_text())["ended_by"] == ended_by
    assert outputs(out) == {"a.md", "b.partial.md"}
    partial = (out / "b.partial.md").read_text()
    assert 1 <= partial.count("# Harbour notes") < 200 and "<!-- interrupted: pages" in partial


def test_run_streams_and_counts(cli):
    page = EXAMPLES / "page.png"
    code, raw, err = cli("run", "--image", page, "--raw", "--max-new-tokens", 24, "--device", "cpu")
    assert code == 0 and "24 tokens (length)" in err and "tokens/s" in err
    code, out, _ = cli("run", "--image", page, "--image", page, "--json", "--max-new-tokens", 24, "--device", "cpu")
    records = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [record["raw_text"] for record in records] == [raw.strip("\n")] * 2
    assert cli("run", "--image", EXAMPLES / "nothing.png", "--device", "cpu")[::2] == (
        2,
        f"vlm: {EXAMPLES / 'nothing.png'} does not exist; give the path of an image file.\n",
    )


def test_a_hub_id_is_fetched_converted_and_run(tmp_path):
    """The real client, against a server on the loopback interface that $HF_ENDPOINT names."""
    files = {path.name: path.read_bytes() for path in packaged_models()["mini-nougat"].iterdir()}
    command = [
        sys.executable,
        "-m",
        "vlm_app.cli.main",
        "run",
        "--image",
        EXAMPLES / "page.png",
        "--model",
        "org/pages",
    ]
    with serve(Hub("org/pages", files)) as hub:
        env = {
            **os.environ,
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / "hf"),
            "VLM_CACHE": str(tmp_path / "vlm"),
        }
        env.pop("HF_HUB_OFFLINE", None)
        options = ["--max-new-tokens", "16", "--device", "cpu"]
        done = subprocess.run([*command, *options], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("# Harbour") and "Downloading org/pages" in done.stderr
    assert "README.md" not in hub.fetched() and "model.safetensors" in hub.fetched()
