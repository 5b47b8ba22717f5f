"""`vlm bench`: what is measured, on a tiny model on the CPU; the floor's bytes; the table of results."""

from __future__ import annotations

import csv
import json

import pytest
import torch

from tests.checkout import ROOT
from tests.kits.models import tiny
from vlm.build.builder import build_engine
from vlm.build.random_checkpoint import random_checkpoint
from vlm.config import BuildConfig, RuntimeConfig
from vlm.errors import InputError, LimitError
from vlm_app.bench import measure, table
from vlm_app.bench.config import BenchConfig
from vlm_app.bench.csv_rows import csv_rows
from vlm_app.bench.figures import number, percent
from vlm_app.bench.systems import session
from vlm_app.bench.timing import floor
from vlm_app.cli.main import main
from vlm_app.core.processes.running import open_pipeline


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(session, "bandwidth", lambda device: 1e10)


@pytest.fixture(scope="module")
def arch(tmp_path_factory):
    path = tmp_path_factory.mktemp("arch") / "config.json"
    path.write_text(json.dumps(tiny.nougat_config().to_dict()))
    return str(path)


def bench(kind, arch, **options):
    values = {"device": "cpu", "new_tokens": 12, "hf_new_tokens": 6, "repeats": 1}
    return getattr(measure, kind)(BenchConfig(arch=arch, **(values | options)))


def test_latency(arch):
    result = bench("latency", arch)
    for system, tokens in (("vlm", 12), ("hf", 6)):
        part = result[system]
        assert part["new_tokens"] == tokens and part["batch_size"] == 1
        assert part["encode_ms"] > 0 and part["first_token_ms"] == pytest.approx(
            part["seconds"]["first_token"][0] * 1e3
        )
        (first,), (whole,) = part["seconds"]["first_token"], part["seconds"]["whole"]
        assert part["ms_per_token"] == pytest.approx((whole - first) * 1e3 / (tokens - 1))
    assert result["floor"]["reached"] == result["floor"]["ms_per_token"] / result["vlm"]["ms_per_token"]
    assert result["config"]["dtype"] == "float32" and result["environment"]["torch"] == torch.__version__
    json.dumps(result)


def test_throughput(arch):
    result = bench("throughput", arch, batch_size=3, pages=5)
    ours, hf = result["vlm"], result["hf"]
    assert ours["pages"] == 5 and ours["pages_per_s"] == pytest.approx(5 / ours["seconds"][0])
    assert ours["tokens_per_s"] == pytest.approx(12 * ours["pages_per_s"]) and ours["timings"]["tokens"] == 60
    assert hf["batch_size"] == 3 and hf["extrapolated"]
    seconds = (hf["first_token_ms"] + 11 * hf["ms_per_token"]) / 1e3
    assert hf["pages_per_s"] == pytest.approx(3 / seconds)
    assert result["floor"]["pages_per_s"] > ours["pages_per_s"]


def test_without_hugging_face_and_limits(arch):
    result = bench("throughput", arch, batch_size=2, pages=2, hf=False)
    assert result["hf"] is None
    assert [row.hf for row in table.rows(result)] == ["–", "–"]
    with pytest.raises(LimitError, match="at most 95 tokens a page"):
        bench("latency", arch, new_tokens=96, hf=False)


def test_both_systems_get_the_same_weights(arch, tmp_path):
    """The baseline is no straw man: greedy tokens of one image are the same."""
    from vlm.artifacts.native.engine_dir import EngineDir
    from vlm_app.bench.systems.baselines import Baseline
    from vlm_app.bench.systems.subject import prepare

    subject = prepare(BenchConfig(arch=arch), "float32", tmp_path, "image")
    image = measure.random_images(EngineDir.open(subject.engine), 0)[0]
    expected = Baseline(subject.folder, "float32", torch.device("cpu")).generate(image[None], 8)[0, 1:].tolist()
    with open_pipeline(EngineDir.open(subject.engine), RuntimeConfig(device="cpu")) as pipeline:
        assert pipeline.generate(pixel_values=image, **measure._fixed(8)).token_ids == expected


@pytest.mark.parametrize(("make", "rows"), [(tiny.trocr, 17), (tiny.pix2struct, 32)])
def test_the_floor_has_the_rows_of_the_images_that_are_drawn(make, rows, tmp_path):
    """Of images of any size those of the usual one; that Hugging Face had a smaller batch is told."""
    (tmp_path / "config.json").write_text(json.dumps(make().config.to_dict()))
    result = bench("throughput", str(tmp_path / "config.json"), batch_size=3, pages=3, hf_batch_size=2)
    assert result["floor"]["kv_bytes"] == 4 * 3 * (rows + 12 // 2) * 2 * 2 * 32  # keys and values of two layers
    assert all(row.hf.endswith(" (batch 2)") for row in table.rows(result))


@pytest.mark.parametrize(("kind", "extra", "floor_field"), [
    ("latency", ("--hf-new-tokens", "4"), "floor_ms_per_token"),
    ("throughput", ("--no-hf", "--batch-size", "2"), "floor_pages_per_s"),
])  # fmt: skip
def test_csv(kind, extra, floor_field, arch, tmp_path, capsys):
    out = tmp_path / "result.json"
    options = ["--new-tokens", "8", "--repeats", "1", "--device", "cpu", "--csv", "--json", str(out), *extra]
    with pytest.raises(SystemExit) as done:
        main(["bench", kind, "--arch", arch, "--random-weights", *options])
    header, *lines = csv.reader(capsys.readouterr().out.splitlines())
    result, [row] = json.loads(out.read_text()), [dict(zip(header, line, strict=True)) for line in lines]
    assert not done.value.code and row["dtype"] == "float32" and row["new_tokens"] == "8" and row["backend"] == "torch"
    for field in ("encode_ms", "ms_per_token") if kind == "latency" else ("pages_per_s", "tokens_per_s"):
        assert float(row[field]) == pytest.approx(result["vlm"][field], rel=1e-4)
        hf = result["hf"] and result["hf"][field]
        assert row[f"hf_{field}"] == (f"{hf:.6g}" if hf else "") and bool(row["times_faster"]) == bool(hf)
    assert float(row["of_floor"]) == pytest.approx(result["floor"]["reached"], rel=1e-4) and float(row[floor_field]) > 0


def test_csv_of_committed_results():
    """A line for each backend, as wide as the header; each kind has a header of its own."""
    headers = {}
    for result in table.load((ROOT / "benchmarks" / "results").glob("*.json")):
        header, *lines = csv_rows(result)
        rows = result.get("rows", [result])
        assert len(lines) == len(rows) * len(result["config"].get("backends") or ["torch"])
        assert {len(line) for line in lines} == {len(header)} and headers.setdefault(result["kind"], header) == header
    assert len({tuple(header) for header in headers.values()}) == len(headers) >= 4


@pytest.mark.parametrize("tied", [True, False])
def test_floor_counts_what_a_step_reads(tmp_path, tied):
    config = tiny.nougat_config(tied=tied, layers=2, vocab=60, ffn=48).to_dict()
    engine = build_engine(random_checkpoint(config, tmp_path / "c"), tmp_path / "e", BuildConfig())
    width = 32
    linear = 4 * (width * width + width) + 2 * (width * width + width)  # self: q k v out; cross: q out
    block = linear + 2 * width * 48 + 48 + width + 3 * 2 * width  # feed-forward, three norms
    assert floor.decoder_bytes(engine) == 4 * (2 * block + 2 * 2 * width + 60 * width)
    found = floor.decode_floor(engine, batch_size=3, encoder_rows=48, new_tokens=20, bandwidth=1e9)
    assert found.kv_bytes == 3 * (48 + 10) * 2 * 2 * width * 4
    assert found.step_ms == pytest.approx((found.weight_bytes + found.kv_bytes) / 1e6)


def test_bandwidth_is_measured(monkeypatch):
    monkeypatch.setattr(floor, "FLOATS", {"cpu": 2**16, "cuda": 2**16})
    assert floor.bandwidth(torch.device("cpu"), repeats=2) > 1e6


def test_command_line(arch, tmp_path, capsys):
    out = tmp_path / "results" / "latency.json"
    options = ["--new-tokens", "8", "--hf-new-tokens", "4", "--repeats", "1", "--device", "cpu", "--json", str(out)]
    with pytest.raises(SystemExit) as done:
        main(["bench", "latency", "--arch", arch, "--random-weights", *options])
    shown = capsys.readouterr().out
    assert not done.value.code and "a further token, ms" in shown and "memory 10 GB/s measured" in shown
    assert json.loads(out.read_text())["kind"] == "latency"
    with pytest.raises(SystemExit):
        main(["bench", "table", str(out)])
    printed = capsys.readouterr().out
    assert printed.splitlines()[0].startswith("| workload | measure | Hugging Face | vlm |")
    assert printed.count("\n| ") == 4 and "commit" in printed.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["latency"], "give either --model NAME, or --random-weights --arch NAME"),
        (["latency", "--arch", "nougat-base"], "--random-weights and --arch go together"),
        (["latency", "--arch", "nougat-base", "--model", "mini-nougat"], "--model has weights of its own; leave"),
        (["latency", "--model", "x", "--arch", "y", "--random-weights"], "leave --arch and --random-weights out, or"),
        (["latency", "--model", "mini-nougat", "--new-tokens", "1"], "--new-tokens is 1; it must be at least 2"),
        (["throughput", "--model", "mini-nougat", "--pages", "0"], "--pages is 0; it must be at least 1"),
        (["throughput", "--random-weights", "--arch", "nougat-vast"], "architecture 'nougat-vast' is unknown"),
        (["latency", "--random-weights", "--arch", "t5-small"], "takes text; use vlm bench text"),
        (["throughput", "--model", "mini-t5"], "mini-t5 takes text; use vlm bench text"),
        (["table", "README.md"], "README.md is no result of `vlm bench"),
    ],
)
def test_mistakes_are_one_sentence(capsys, monkeypatch, arguments, says):
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as done:
        main(["bench", *arguments])
    err = capsys.readouterr().err
    assert done.value.code == 2 and says in err and len(err.splitlines()) == 1


def test_numbers_read_well():
    numbers = [number(value) for value in (1234.5, 58.04, 4.0, 0.4501, 0.0032)]
    assert numbers == ["1,234", "58.0", "4.00", "0.450", "0.003"]
    assert (percent(0.244), percent(0.0321)) == ("24%", "3.2%")


def test_result_files_are_checked(tmp_path):
    (tmp_path / "bad.json").write_text('{"kind": "latency"}')
    with pytest.raises(InputError, match=r"bad\.json is no result"):
        table.load([tmp_path / "bad.json"])
