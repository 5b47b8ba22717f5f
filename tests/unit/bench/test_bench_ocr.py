"""`vlm bench ocr`: the job of `vlm ocr` over generated documents, on the CPU; what it says of itself."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import subprocess
import sys
import time
from contextlib import closing

import pytest
import torch

from tests.kits.models import tiny
from vlm.errors import EngineError, InputError
from vlm_app.bench import table
from vlm_app.bench.csv_rows import OCR_CSV_HEADER
from vlm_app.bench.ocr_config import DEFAULT_TOKENS, OcrBenchConfig
from vlm_app.bench.pages.documents import write_documents
from vlm_app.bench.systems import processes
from vlm_app.bench.systems.engine_alone import ReadyPage
from vlm_app.bench.systems.page_engine import page_engine, write_tokenizer
from vlm_app.bench.systems.page_job import PageJob
from vlm_app.bench.timing import gpu_meter
from vlm_app.cli.main import main
from vlm_app.ocr.job import Job
from vlm_app.ocr.readers.devices import load_reader

SMALL = ("--device", "cpu", "--repeats", "1", "--batch-size", "2", "--documents", "2", "--pages-per-document", "2")


def bench(*arguments: object) -> int:
    with pytest.raises(SystemExit) as done:
        main(["bench", "ocr", *map(str, arguments)])
    return done.value.code or 0


@pytest.fixture(scope="module")
def arch(tmp_path_factory):
    path = tmp_path_factory.mktemp("arch") / "config.json"
    path.write_text(json.dumps(tiny.nougat_config().to_dict()))
    return str(path)


def test_random_weights_in_json_csv_and_table(arch, tmp_path, capsys):
    """Every page has exactly so many tokens, whatever they are."""
    out = tmp_path / "ocr.json"
    options = [*SMALL, "--kinds", "text,png", "--tokens", 5, "--workers", "0;1", "--csv", "--json", out]
    assert not bench("--arch", arch, "--random-weights", *options), capsys.readouterr().err
    header, *lines = csv.reader(capsys.readouterr().out.splitlines())
    result = json.loads(out.read_text())
    assert result["kind"] == "ocr" and result["documents"]["pages"] == 4
    assert set(result["documents"]["bytes_per_page"]) == {"text", "png"}
    assert result["environment"]["torch"] == torch.__version__ and result["config"]["tokens"] == 5
    assert result["engine_alone"]["tokens"] == [4 * 5]
    assert [row["workers"] for row in result["rows"]] == [0, 1] and tuple(header) == OCR_CSV_HEADER
    for row, line in zip(result["rows"], lines, strict=True):
        _check_row(row, result["engine_alone"])
        values = dict(zip(header, line, strict=True))
        assert float(values["pages_per_s"]) == pytest.approx(row["vlm"]["pages_per_s"], rel=1e-4)
        assert (values["workers"], values["pages"], values["gpu_busy"]) == (str(row["workers"]), "4", "")
    assert result["rows"][1]["vlm"]["processes"] > result["rows"][0]["vlm"]["processes"]
    _check_table(out, capsys)


def _check_row(row, alone):
    ours, [run] = row["vlm"], row["vlm"]["runs"]
    assert (run["pages"], run["tokens"], run["bad_pages"]) == (4, 20, 0)
    assert ours["pages_per_s"] == run["pages_per_s"] == pytest.approx(4 / run["seconds"])
    assert ours["tokens_per_s"] == pytest.approx(20 / run["seconds"])
    assert row["floor"]["reached"] == pytest.approx(ours["pages_per_s"] / alone["pages_per_s"])
    assert 0 < ours["load_seconds"] < ours["startup_seconds"]
    assert ours["cpu_ms_per_page"] > 0 and ours["peak_rss_bytes"] > 2**27 and ours["gpu_busy"] is None


def _check_table(out, capsys):
    with pytest.raises(SystemExit):
        main(["bench", "table", str(out)])
    printed = capsys.readouterr().out
    assert "4 pages (text, png) to markdown, 5 tokens a page, batch 2 | pages/s, 0 workers |" in printed
    assert "CPU ms a page, 1 worker |" in printed and "start-up, s, 1 worker |" in printed and "GPU busy" not in printed


def test_a_model_reads_its_own_length_and_images_need_no_pypdfium2(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pypdfium2", None)
    options = [*SMALL, "--kinds", "jpeg", "--documents", 1, "--tokens", 6, "--workers", 0]
    assert not bench("--model", "mini-nougat", *options), capsys.readouterr().err
    shown = capsys.readouterr().out
    assert "mini-nougat" in shown and "at most 6" in shown and "of the floor" in shown
    assert "the floor is the engine alone, pixel values ready" in shown


@pytest.mark.parametrize("name", ["lighton-ocr", "idefics3"])
def test_random_weights_of_models_that_are_asked_in_words(name, tmp_path, capsys):
    """Images of any size, or in tiles that the prompt tells of."""
    tower = {"image_size": 140, "patch_size": 14}  # as its image processor has it without settings
    model = tiny.lighton_ocr(tower=tower) if name == "lighton-ocr" else tiny.idefics3()
    (tmp_path / "config.json").write_text(json.dumps(model.config.to_dict()))
    out = tmp_path / "ocr.json"
    options = [*SMALL, "--kinds", "png", "--tokens", 5, "--workers", 0, "--json", out]
    assert not bench("--arch", tmp_path / "config.json", "--random-weights", *options), capsys.readouterr().err
    result = json.loads(out.read_text())
    [row] = result["rows"]
    _check_row(row, result["engine_alone"])
    assert result["engine_alone"]["tokens"] == [4 * 5]


@pytest.mark.slow
def test_two_devices(arch, tmp_path, capsys):
    out = tmp_path / "ocr.json"
    options = [*SMALL, "--kinds", "png", "--tokens", 4, "--devices", "cpu,cpu", "--json", out]
    assert not bench("--arch", arch, "--random-weights", *options), capsys.readouterr().err
    result = json.loads(out.read_text())
    assert result["engine_alone"]["engines"] == 2 and result["config"]["devices"] == "cpu,cpu"
    assert ", 2 devices" in table.workload(result) and result["rows"][0]["vlm"]["processes"] >= 5


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give either --model NAME, or --random-weights --arch NAME"),
        (["--arch", "nougat-base"], "--random-weights and --arch go together"),
        (["--model", "mini-nougat", "--kinds", "text,fax"], "--kinds holds fax; allowed are text, scan, table, photo"),
        (["--model", "mini-nougat", "--kinds", ","], "--kinds holds none; allowed are"),
        (["--model", "mini-nougat", "--documents", "0"], "--documents is 0; it must be at least 1"),
        (["--model", "mini-nougat", "--pages-per-document", "0"], "--pages-per-document is 0; it must be at least 1"),
        (["--model", "mini-nougat", "--workers", "1,2"], "--workers holds '1,2'; give whole numbers, apart by ';'"),
        (["--model", "mini-nougat", "--workers", "1;-1"], "--workers holds -1; its numbers must be at least 0"),
        (["--model", "mini-nougat", "--tokens", "0"], "--tokens is 0; it must be at least 1"),
        (["--model", "mini-t5"], "mini-t5 takes text, no pages; use vlm bench text"),
        (["--random-weights", "--arch", "t5-small"], "takes text, no pages; use vlm bench text"),
        (["--random-weights", "--arch", "gpt2-medium"], "takes prompts, no pages; use vlm bench prompt"),
        (["--random-weights", "--arch", "nougat-base", "--tokens", "4096"], "generates at most 4095 a page"),
    ],
)
def test_mistakes_are_one_sentence(capsys, arguments, says):
    assert bench("--device", "cpu", *arguments) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert says in line


def test_pdfs_need_pypdfium2(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pypdfium2", None)
    assert bench("--model", "mini-nougat", "--kinds", "png,scan") == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "--kinds holds scan, PDFs, which need the package pypdfium2: pip install pypdfium2" in line


def test_tokens_of_random_weights_have_a_default():
    assert OcrBenchConfig(arch="nougat-base").max_new_tokens == DEFAULT_TOKENS
    assert OcrBenchConfig(model="mini-nougat").max_new_tokens is None


def test_every_token_of_the_tokenizer_is_a_word(tmp_path):
    from vlm.processing.text.tokenization import Tokenizer

    write_tokenizer(tmp_path / "tokenizer.json", 5000)
    tokenizer = Tokenizer.from_dir(tmp_path)
    words = tokenizer.decode(list(range(5000))).split()
    assert len(words) == len(set(words)) == 4996 and all(map(str.isalpha, words))
    unknown = tokenizer.id_of("<unk>")
    assert tokenizer.encode("<|im_start|>user\n<image>Read this page.<|im_end|>") == [unknown] * 5


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"pages": 1}, EngineError, "1 of 2 pages were not read"),
        ({"stopped": InputError("the disk is full.")}, InputError, "the disk is full"),
        ({"interrupted": True}, KeyboardInterrupt, ""),
    ],
)
def test_a_job_that_ends_early_is_no_measurement(arch, tmp_path, monkeypatch, changes, error, says):
    engine = page_engine(OcrBenchConfig(arch=arch, device="cpu", tokens=3), tmp_path / "model")
    corpus = write_documents(tmp_path / "made", kinds=("png",), documents=1, pages=2, seed="1")
    job, run = PageJob(engine, 3, tmp_path, fixed_length=True), Job.run
    monkeypatch.setattr(Job, "run", lambda self: dataclasses.replace(run(self), **changes))
    with (
        closing(load_reader(dataclasses.replace(engine, workers=0))) as reader,
        pytest.raises(error, match=says or None),
    ):
        job.read(reader, corpus)


def test_the_engine_alone_sees_no_page_twice():
    pixels = torch.zeros(3, 4, 4)
    pages = [ReadyPage(pixels, number)["pixel_values"] for number in range(3)]
    assert len({page.numpy().tobytes() for page in pages}) == 3 and not pixels.any()
    assert all(page.shape == pixels.shape and page.count_nonzero() == 1 for page in pages)


# --- meters ---
BURN = "import time\nwhile time.process_time() < {}: pass\nprint(flush=True)\ntime.sleep(60)"


@pytest.mark.skipif(not processes.PROC.joinpath("self", "stat").exists(), reason="needs /proc")
def test_processes_that_live_and_that_have_ended_count():
    with processes.ProcessMeter() as meter:
        subprocess.run([sys.executable, "-c", BURN.format(0.3).rpartition("\n")[0]], check=True, stdout=subprocess.PIPE)
        alive, left_out = (
            subprocess.Popen([sys.executable, "-c", BURN.format(0.3)], stdout=subprocess.PIPE) for _ in "ab"
        )
        alive.stdout.readline(), left_out.stdout.readline()
        with_both, without = processes.sample(), processes.sample(without=[left_out.pid])
    for process in (alive, left_out):
        process.kill()
        process.communicate()
    assert meter.cpu_seconds >= 0.85 and with_both.cpu_seconds - without.cpu_seconds >= 0.25
    assert (with_both.processes, with_both.rss_bytes) > (without.processes, without.rss_bytes)
    assert meter.processes >= 3 and meter.peak_rss_bytes >= with_both.rss_bytes - without.rss_bytes > 0


def test_elsewhere_than_linux_this_process_is_known(monkeypatch, tmp_path):
    monkeypatch.setattr(processes, "PROC", tmp_path)
    with processes.ProcessMeter() as meter:
        until = os.times().user + 0.1
        while os.times().user < until:
            pass
    assert meter.cpu_seconds >= 0.09 and meter.peak_rss_bytes is None and meter.processes is None


def test_the_gpu_is_sampled_until_it_is_closed(monkeypatch):
    monkeypatch.setattr(gpu_meter, "_uuid", lambda device: f"GPU-{device.index}")
    script = "import sys, time; print('\\n'.join(['80', '[N/A]', '100', sys.argv[1]]), flush=True); time.sleep(60)"
    devices = [torch.device("cuda", 0), torch.device("cuda", 1)]
    meter, begin = gpu_meter.GpuMeter(devices, (sys.executable, "-c", script)), time.perf_counter()
    while len(meter._samples) < 2:
        time.sleep(0.01)
    assert meter.busy(begin, time.perf_counter()) == pytest.approx(0.9) and meter.busy(0, begin) is None
    assert len(meter.pids) == 1
    meter.close()
    assert not os.path.exists(f"/proc/{meter.pids[0]}")


def test_without_nvidia_smi_nothing_is_known_of_the_gpu(monkeypatch):
    monkeypatch.setattr(gpu_meter, "_uuid", lambda device: "GPU-0")
    meter = gpu_meter.GpuMeter([torch.device("cuda", 0)], ("no-such-program",))
    assert meter.busy(0, time.perf_counter()) is None and meter.pids == ()
    meter.close()
    assert gpu_meter.GpuMeter([torch.device("cpu")]).pids == ()
