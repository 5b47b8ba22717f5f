"""`vlm bench`: what is measured, on a tiny model on the CPU; the floor's bytes; the README's table."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch

from app.bench import floor, measure, table
from app.bench.config import BenchConfig
from app.cli.main import main
from tests import tiny
from vlm.compile.builder import build_engine, random_checkpoint
from vlm.config import BuildConfig
from vlm.errors import InputError, LimitError

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(measure, "bandwidth", lambda device: 1e10)


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
        assert 0 < part["encode_ms"] < part["first_token_ms"] and part["ms_per_token"] > 0
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
    from app.bench.huggingface import Baseline
    from app.bench.subject import prepare
    from vlm.compile.engine_dir import EngineDir

    subject = prepare(BenchConfig(arch=arch), "float32", tmp_path, "image")
    image = measure.random_images(EngineDir.open(subject.engine), 0)[0]
    expected = Baseline(subject.folder, "float32", torch.device("cpu")).generate(image[None], 8)[0, 1:].tolist()
    with measure.opened(subject.engine, torch.device("cpu")) as pipeline:
        assert pipeline.generate(pixel_values=image, **measure._fixed(8)).token_ids == expected


@pytest.mark.parametrize("tied", [True, False])
def test_floor_counts_what_a_step_reads(tmp_path, tied):
    config = tiny.nougat_config(tied=tied, layers=2, vocab=60, ffn=48).to_dict()
    engine = build_engine(random_checkpoint(config, tmp_path / "c"), tmp_path / "e", BuildConfig())
    width = 32
    linear = 4 * (width * width + width) + 2 * (width * width + width)  # self: q k v out; cross: q out
    block = linear + 2 * width * 48 + 48 + width + 3 * 2 * width  # feed-forward, three norms
    assert floor.decoder_bytes(engine) == 4 * (2 * block + 2 * 2 * width + 60 * width)
    found = floor.decode_floor(engine, batch_size=3, new_tokens=20, bandwidth=1e9)
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
        (["latency", "--model", "x", "--arch", "y", "--random-weights"], "give either"),
        (["latency", "--model", "mini-nougat", "--new-tokens", "1"], "--new-tokens is 1; it must be at least 2"),
        (["throughput", "--model", "mini-nougat", "--pages", "0"], "--pages is 0; it must be at least 1"),
        (["throughput", "--random-weights", "--arch", "nougat-vast"], "architecture 'nougat-vast' is unknown"),
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
    numbers = [table._number(value) for value in (1234.5, 58.04, 4.0, 0.4501, 0.0032)]
    assert numbers == ["1,234", "58.0", "4.00", "0.450", "0.003"]
    assert (table._percent(0.244), table._percent(0.0321)) == ("24%", "3.2%")


def test_result_files_are_checked(tmp_path):
    (tmp_path / "bad.json").write_text('{"kind": "latency"}')
    with pytest.raises(InputError, match=r"bad\.json is no result"):
        table.load([tmp_path / "bad.json"])


def test_readme_shows_the_committed_results():
    readme = ROOT / "README.md"
    shown = table.in_readme(readme.read_text(encoding="utf-8")) if readme.is_file() else None
    if shown is None:
        pytest.skip("the README has no bench table yet (its markers are missing)")
    assert shown == table.markdown(table.load((ROOT / "benchmarks" / "results").glob("*.json")))


@pytest.fixture(scope="module")
def text_arch(tmp_path_factory):
    path = tmp_path_factory.mktemp("arch") / "t5.json"
    config = {"model_type": "t5", "is_encoder_decoder": True, "vocab_size": 60, "d_model": 32, "d_kv": 12, "d_ff": 48,
              "num_layers": 2, "num_heads": 4, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False,
              "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}  # fmt: skip
    path.write_text(json.dumps(config))
    return str(path)


TEXT = ["--batch-size", "1;3", "--input-output-len", "6,8;4,4", "--num-beams", "1;2", "--repeats", "1",
        "--device", "cpu", "--random-weights"]  # fmt: skip


@pytest.fixture
def quick_text(monkeypatch):
    from app.bench import text

    monkeypatch.setattr(text, "bandwidth", lambda device: 1e10)


def test_text_measures_every_combination(text_arch, tmp_path, capsys, quick_text):
    out = tmp_path / "text.json"
    with pytest.raises(SystemExit) as done:
        main(["bench", "text", "--arch", text_arch, *TEXT, "--hf-new-tokens", "3", "--json", str(out)])
    assert not done.value.code, capsys.readouterr().err
    result = json.loads(out.read_text())
    asked = [(r["input_len"], r["output_len"], r["num_beams"], r["batch_size"]) for r in result["rows"]]
    assert asked == [(i, o, b, n) for i, o in ((6, 8), (4, 4)) for b in (1, 2) for n in (1, 3)]
    for row in result["rows"]:
        ours, hf = row["vlm"], row["hf"]
        assert ours["tokens_per_s"] == pytest.approx(row["batch_size"] * row["output_len"] / ours["seconds"])
        assert not ours["extrapolated"] and hf["measured_tokens"] == 3 and hf["extrapolated"]
        [whole] = hf["runs"]["whole"]
        assert hf["seconds"] == pytest.approx(whole + hf["step_ms"] / 1e3 * (row["output_len"] - 3))
    # decoder: two blocks of self q k v o, cross q o, three norms, a gated feed-forward; last norm, head, bias table
    weights = 2 * (4 * 32 * 48 + 2 * 32 * 48 + 3 * 32 + 3 * 32 * 48) + 32 + 60 * 32 + 32 * 4
    kv = 3 * (6 + 2 * 4) * 2 * 2 * 48
    assert result["rows"][3]["floor"]["step_ms"] == pytest.approx(4 * (weights + kv) / 1e10 * 1e3)
    lines = table.markdown([result]).splitlines()
    assert "6 in, 8 out, batch 3, 2 beams: tokens/s" in lines[5] and lines[5].startswith("|  |")


def test_text_as_csv_without_hugging_face(text_arch, capsys, quick_text):
    with pytest.raises(SystemExit) as done:
        main(["bench", "text", "--arch", text_arch, *TEXT, "--no-hf", "--csv"])
    header, *rows = csv.reader(capsys.readouterr().out.splitlines())
    assert not done.value.code and header[:6] == ["subject", "dtype", "batch", "beams", "in", "out"] and len(rows) == 8
    assert all(row[header.index("hf_tokens_per_s")] == "" for row in rows)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--model", "mini-t5", "--batch-size", "1,2"], "--batch-size holds '1,2'; give whole numbers, apart by ';'"),
        (["--model", "mini-t5", "--input-output-len", "64"], 'give pairs such as "60,20;128,20"'),
        (["--model", "mini-t5", "--num-beams", "0"], "must be at least 1"),
        (["--model", "mini-t5", "--input-output-len", "9,1"], "at least 2 tokens out"),
        (["--model", "mini-nougat"], "mini-nougat takes image; use vlm bench latency or throughput"),
        (["--random-weights", "--arch", "bart-large-cnn", "--input-output-len", "2000,9"], "at most 1024"),
        (["--arch", "t5-small"], "--random-weights and --arch go together"),
    ],
)
def test_mistakes_of_text_are_one_sentence(capsys, arguments, says, monkeypatch):
    from app.bench import subject

    monkeypatch.setattr(subject, "_random_model", lambda *_: tiny.bart(max_position_embeddings=1024))
    with pytest.raises(SystemExit) as done:
        main(["bench", "text", "--device", "cpu", *arguments])
    err = capsys.readouterr().err
    assert done.value.code == 2 and says in err.splitlines()[-1]
