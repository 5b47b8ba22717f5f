"""`vlm bench text`: its rows, floors, files and mistakes, on tiny models on the CPU."""

from __future__ import annotations

import csv
import itertools
import json
import math
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.checkout import ROOT
from tests.kits.models import tiny
from vlm.api.model import rank_processes
from vlm.api.pipeline import Pipeline
from vlm.build.builder import build_engine
from vlm.build.random_checkpoint import random_checkpoint
from vlm.config import BuildConfig, RuntimeConfig
from vlm.engine.llm_engine import LLMEngine
from vlm.errors import EngineError, InputError, LimitError
from vlm.parallel.environment import VARIABLES
from vlm.requests.sampling_params import SamplingParams
from vlm_app.bench import table
from vlm_app.bench.config import TextBenchConfig, Workload
from vlm_app.bench.csv_rows import csv_rows
from vlm_app.bench.systems import session, subject
from vlm_app.bench.systems.baselines import TextBaseline
from vlm_app.bench.systems.inputs import random_texts
from vlm_app.bench.systems.rival import CTranslate2
from vlm_app.bench.systems.subject import prepare
from vlm_app.bench.timing.floor import decode_floor
from vlm_app.cli.main import main
from vlm_app.core.processes.running import open_pipeline
from vlm_app.reference import random_model

pytestmark = pytest.mark.slow  # every family, beside Hugging Face
T5 = {"model_type": "t5", "is_encoder_decoder": True, "vocab_size": 60, "d_model": 32, "d_kv": 12, "d_ff": 48,
      "num_layers": 2, "num_heads": 4, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False,
      "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}  # fmt: skip
BART = {"model_type": "bart", "is_encoder_decoder": True, "vocab_size": 60, "d_model": 32, "encoder_layers": 1,
        "decoder_layers": 1, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "max_position_embeddings": 96, "decoder_start_token_id": 2, "pad_token_id": 1,
        "bos_token_id": 0, "eos_token_id": 2, "forced_eos_token_id": 2}  # fmt: skip
LISTS = ["--batch-size", "1;3", "--input-output-len", "6,8;4,4", "--num-beams", "1;2", "--repeats", "1"]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(session, "bandwidth", lambda device: 1e10)


@pytest.fixture(scope="module")
def arch(tmp_path_factory):
    path = tmp_path_factory.mktemp("arch") / "t5.json"
    path.write_text(json.dumps(T5))
    return str(path)


def bench(*arguments: object) -> int:
    with pytest.raises(SystemExit) as done:
        main(["bench", *map(str, arguments)])
    return done.value.code or 0


def test_every_combination_is_measured(arch, tmp_path, capsys):
    out = tmp_path / "text.json"
    options = [*LISTS, "--hf-new-tokens", "3", "--hf-batch-size", "2", "--device", "cpu", "--json", out]
    assert not bench("text", "--arch", arch, "--random-weights", *options), capsys.readouterr().err
    assert "Hugging Face: extrapolated from 3 tokens a text" in capsys.readouterr().out
    result = json.loads(out.read_text())
    asked = [(r["input_len"], r["output_len"], r["num_beams"], r["batch_size"]) for r in result["rows"]]
    assert asked == [(i, o, b, n) for i, o in ((6, 8), (4, 4)) for b in (1, 2) for n in (1, 3)]
    assert result["kind"] == "text" and result["config"]["dtype"] == "float32" and "commit" in result["environment"]
    for row in result["rows"]:
        ours, hf = row["vlm"], row["hf"]
        assert ours["tokens_per_s"] == pytest.approx(row["batch_size"] * row["output_len"] / ours["seconds"])
        assert not ours["extrapolated"] and hf["measured_tokens"] == 3 and hf["extrapolated"]
        assert hf["batch_size"] == min(row["batch_size"], 2)
        ([first], [whole]) = hf["runs"]["first_token"], hf["runs"]["whole"]
        assert hf["seconds"] == pytest.approx(whole + (whole - first) / 2 * (row["output_len"] - 3))
        assert hf["tokens_per_s"] == pytest.approx(hf["batch_size"] * row["output_len"] / hf["seconds"])
        assert row["floor"]["reached"] == pytest.approx(ours["tokens_per_s"] / row["floor"]["tokens_per_s"])
    assert not bench("table", out)
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if "tokens/s" in line]) == 8
    assert "6 in, 8 out, batch 3, 2 beams: tokens/s" in lines[5] and "(batch 2)" in lines[5]
    assert lines[5].startswith("|  |") and "(batch" not in lines[4]


def test_settings_are_rows_of_both_systems(arch, tmp_path, capsys, monkeypatch):
    told, generate = [], TextBaseline.generate
    monkeypatch.setattr(TextBaseline, "generate", lambda self, *given: told.append(given[3]) or generate(self, *given))
    settings = [{}, {"no_repeat_ngram_size": 2, "bad_words_ids": [[5]]}, {"temperature": 0.7, "top_k": 5}]
    words = ';{"no_repeat_ngram_size": 2, "bad_words_ids": [[5]]};temperature=0.7,top_k=5'
    options = ["--settings", words, "--input-output-len", "6,8", "--repeats", "1", "--device", "cpu"]
    out = tmp_path / "text.json"
    assert not bench("text", "--arch", arch, "--random-weights", *options, "--json", out), capsys.readouterr().err
    result = json.loads(out.read_text())
    assert [row.get("settings", {}) for row in result["rows"]] == settings == list(result["config"]["settings"])
    assert [given for given, _ in itertools.groupby(told)] == settings
    capsys.readouterr()
    assert not bench("table", out)
    *_, none, penalized, drawn = [line for line in capsys.readouterr().out.splitlines() if "tokens/s" in line]
    assert "greedy: tokens/s" in none and "greedy, no_repeat_ngram_size 2, bad_words_ids [[5]]: tokens/s" in penalized
    assert "drawn, temperature 0.7, top_k 5: tokens/s" in drawn


@pytest.mark.parametrize(
    "settings",
    [{"no_repeat_ngram_size": 2}, {"repetition_penalty": 1.4}, {"bad_words_ids": [[n] for n in range(3, 30)]}],
)
def test_both_systems_choose_by_the_same_settings(settings, tmp_path):
    (tmp_path / "arch.json").write_text(json.dumps(T5))
    config = TextBenchConfig(arch=str(tmp_path / "arch.json"), lengths=((6, 8),), settings=(settings,), device="cpu")
    with session.prepare_session(config, "text", limits=config.limits) as run:
        texts = random_texts(run, config.rows[0])
        expected = TextBaseline(run.folder, "float32", CPU).generate(texts, 8, 1, settings)[:, 1:].tolist()
        with open_pipeline(run.engine, RuntimeConfig(device="cpu")) as pipeline:
            inputs = [{"encoder_input_ids": ids} for ids in texts]
            found = pipeline.generate(inputs, max_new_tokens=8, min_new_tokens=8, **settings)
            plain = pipeline.generate(inputs, max_new_tokens=8, min_new_tokens=8)
    assert [out.token_ids for out in found] == expected != [out.token_ids for out in plain]


def test_csv_without_hugging_face(arch, capsys):
    assert not bench("text", "--arch", arch, "--random-weights", *LISTS, "--device", "cpu", "--no-hf", "--csv")
    header, *rows = csv.reader(capsys.readouterr().out.splitlines())
    assert header[:6] == ["subject", "dtype", "batch", "beams", "in", "out"] and len(rows) == 8
    first = dict(zip(header, rows[0], strict=True))
    assert (first["subject"], first["dtype"], first["in"], first["out"]) == (
        f"{arch}, random weights",
        "float32",
        "6",
        "8",
    )
    assert all(float(first[name]) > 0 for name in ("first_token_ms", "tokens_per_s", "floor_tokens_per_s"))
    absent = ("hf_tokens_per_s", "times_faster", "hf_batch", "hf_measured_tokens")
    assert all(row[header.index(name)] == "" for row in rows for name in absent)


def test_adapters_of_random_values_are_measured_beside_the_base(arch, tmp_path, monkeypatch):
    """Each text of a batch has the next adapter."""
    generate, generated = Pipeline.generate, []

    def recorded(pipeline: Pipeline, inputs: list[dict], **options: object):
        generated.append(([*pipeline.adapters], [each.get("lora") for each in inputs]))
        return generate(pipeline, inputs, **options)

    monkeypatch.setattr(Pipeline, "generate", recorded)
    arguments = ["--random-weights", "--backend", "torch,torch+lora-2x3", "--input-output-len", "6,4", "--repeats", "1"]
    out = tmp_path / "out.json"
    assert not bench(
        "text", "--arch", arch, *arguments, "--batch-size", "3", "--device", "cpu", "--no-hf", "--json", out
    )
    (row,) = json.loads(out.read_text())["rows"]
    assert row["beside"]["torch+lora-2x3"]["tokens_per_s"] > 0
    of_three = [each for each in generated if len(each[1]) == 3]
    assert ([], [None] * 3) in of_three and (["0", "1"], ["0", "1", "0"]) in of_three
    assert all(given == [None] * 3 or given == ["0", "1", "0"] for _, given in of_three)


def test_ctranslate2_takes_turns_with_ours(arch, tmp_path, capsys):
    out = tmp_path / "text.json"
    options = (
        "--batch-size",
        "1;3",
        "--input-output-len",
        "6,8",
        "--device",
        "cpu",
        "--no-hf",
        "--ctranslate2",
        "int8",
    )
    assert not bench("text", "--arch", arch, "--random-weights", *options, "--csv", "--json", out)
    header, *rows = csv.reader(capsys.readouterr().out.splitlines())
    result = json.loads(out.read_text())
    for row, line in zip(result["rows"], rows, strict=True):
        rival = row["ctranslate2"]
        assert row["hf"] is None and rival["compute_type"] == "int8" and rival["measured_tokens"] == 8
        assert rival["batch_size"] == row["batch_size"] and rival["tokens_per_s"] > 0
        assert float(dict(zip(header, line, strict=True))["ctranslate2_tokens_per_s"]) == pytest.approx(
            rival["tokens_per_s"], rel=1e-4
        )
    assert not bench("table", out)
    assert capsys.readouterr().out.count("tokens/s (CTranslate2 int8: ") == 2


def test_an_engine_that_ranks_split_is_measured(arch, tmp_path, capsys):
    out = tmp_path / "text.json"
    options = ("--batch-size", "2", "--input-output-len", "6,8", "--device", "cpu", "--no-hf", "--repeats", "1")
    results = []
    for sizes in ((), ("--pp-size", "2"), ("--tp-size", "2")):
        line = ("text", "--arch", arch, "--random-weights", *options, *sizes, "--json", out)
        assert not bench(*line), capsys.readouterr().err
        results.append(json.loads(out.read_text()))
    (whole,), (staged,), (part,) = (result["rows"] for result in results)
    assert results[1]["config"]["pp_size"] == 2
    assert [staged["floor"][name] for name in ("weight_bytes", "kv_bytes")] == [
        whole["floor"][name] for name in ("weight_bytes", "kv_bytes")
    ], "stages wait for each other"
    assert 0.5 * whole["floor"]["weight_bytes"] < part["floor"]["weight_bytes"] < 0.6 * whole["floor"]["weight_bytes"]
    assert 2 * part["floor"]["kv_bytes"] == whole["floor"]["kv_bytes"]
    assert [row["vlm"]["collectives"] is None for row in (whole, staged, part)] == [True, False, False]
    told = part["vlm"]["collectives"]
    assert told["calls"] == 2 * 3 + 1 and told["bytes"] == 4 * 2 * (6 * 32 + 32) and told["ms"] > 0
    capsys.readouterr()
    assert not bench("table", out)
    lines = capsys.readouterr().out.splitlines()
    assert "float32, 2 ranks" in lines[2]
    assert "|  | 6 in, 8 out, batch 2, greedy: collectives of a step, ms |" in lines[3]
    header, line = csv_rows(results[2])
    assert float(line[header.index("collectives_ms")]) == pytest.approx(told["ms"], rel=1e-4)
    assert bench("text", "--arch", arch, "--random-weights", *options, "--tp-size", 8) == 2
    assert "cannot be split among 8 ranks; run the model on fewer GPUs" in capsys.readouterr().err


def test_an_engine_says_how_many_ranks_run_it(tmp_path, capsys):
    sizes = BuildConfig(tp_size=2, encoder_tp_size=1)
    engine = build_engine(random_checkpoint(T5, tmp_path / "c"), tmp_path / "e", sizes)
    options = ("text", "--model", engine.path, "--input-output-len", "6,8", "--no-hf")
    assert not bench(*options, "--devices", "cpu,cpu", "--json", tmp_path / "text.json"), capsys.readouterr().err
    config = json.loads((tmp_path / "text.json").read_text())["config"]
    assert (config["tp_size"], config["encoder_tp_size"], config["devices"]) == (2, 1, "cpu,cpu")
    capsys.readouterr()
    assert not bench("table", tmp_path / "text.json")
    assert "float32, 2 ranks, the encoder's layers among 1" in capsys.readouterr().out
    for others, says in (
        (("--device", "cpu", "--tp-size", "3"), "is built for 2 ranks; for --tp-size 3 give what it was built from."),
        (("--tp-size", "2", "--encoder-tp-size", "2"), "is built for 2 ranks; for --encoder-tp-size 2 give what"),
        (("--devices", "cpu,cpu,cpu"), "--devices names 3 devices, the engine is built for 2 ranks; name 2"),
        (("--devices", "cpu,cpu", "--device", "cpu"), "--device and --devices are both given"),
    ):
        assert bench(*options, *others) == 2
        assert says in capsys.readouterr().err


def test_where_ctranslate2_cannot_take_part(arch, capsys, monkeypatch):
    options = ("text", "--arch", arch, "--random-weights", "--device", "cpu", "--no-hf", "--ctranslate2")
    assert bench(*options, "int3") == 2 and "allowed are float32, int8" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    assert bench(*options, "int8") == 2
    assert "pip install 'vlm-runtime[bench]'" in capsys.readouterr().err
    monkeypatch.setattr("vlm_app.bench.text.first_device", lambda runtime: torch.device("cuda:0"))
    assert bench(*options, "int8") == 2
    assert "is measured on the CPU, the device is cuda:0; add --device cpu." in capsys.readouterr().err


def test_a_model_that_ctranslate2_does_not_convert_is_said(arch, capsys, monkeypatch):
    def convert(*_, **__):
        raise AttributeError("it has no decoder")

    monkeypatch.setattr("ctranslate2.converters.TransformersConverter.convert", convert)
    options = ("--random-weights", "--device", "cpu", "--no-hf", "--ctranslate2", "int8")
    assert bench("text", "--arch", arch, *options) == 2
    assert "CTranslate2 does not convert the model (it has no decoder); leave" in capsys.readouterr().err


def test_floor_counts_cross_attention_once_a_text(tmp_path):
    engine = build_engine(random_checkpoint(T5, tmp_path / "c"), tmp_path / "e", BuildConfig())
    found = decode_floor(engine, batch_size=3, encoder_rows=6, new_tokens=8, bandwidth=1e9, num_beams=2)
    # two blocks of self q k v o, cross q o, three norms, a gated feed-forward; last norm, head, bias table
    weights = 2 * (4 * 32 * 48 + 2 * 32 * 48 + 3 * 32 + 3 * 32 * 48) + 32 + 60 * 32 + 32 * 4
    token = 2 * 2 * 48  # K and V of two layers
    assert found.weight_bytes == 4 * weights
    assert found.kv_bytes == 4 * 3 * (6 + 2 * 4) * token
    assert found.step_ms == pytest.approx((found.weight_bytes + found.kv_bytes) / 1e6)


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("config", [T5, T5 | {"tie_word_embeddings": True}, BART], ids=["t5", "t5-tied", "bart"])
def test_both_systems_get_the_same_weights(config, num_beams, tmp_path):
    """The baseline is no straw man: it finds the same tokens of the same texts."""
    (tmp_path / "arch.json").write_text(json.dumps(config | {"forced_eos_token_id": None}))
    asked = TextBenchConfig(arch=str(tmp_path / "arch.json"), lengths=((6, 8),), num_beams=(3,), device="cpu")
    work = Workload((6, 8), num_beams, 3, min_input_len=2)
    with session.prepare_session(asked, "text", limits=asked.limits) as run:
        texts = random_texts(run, work)
        assert len({len(text) for text in texts}) > 1  # those of Hugging Face are padded
        baseline = TextBaseline(run.folder, "float32", CPU)
        expected = baseline.generate(texts, 8, num_beams)
        if num_beams == 1 and config is not BART:
            assert CTranslate2(run.folder, "float32", threads=1).generate(texts, 8, 1) == expected[:, 1:].tolist()
        with open_pipeline(run.engine, RuntimeConfig(device="cpu")) as pipeline:
            inputs = [{"encoder_input_ids": ids} for ids in texts]
            found = pipeline.generate(inputs, max_new_tokens=8, min_new_tokens=8, num_beams=num_beams)
    assert [out.token_ids for out in found] == expected[:, 1:].tolist()
    # freshly drawn weights repeat themselves, so the values count too
    for text, tokens, out in zip(texts, expected, found, strict=True):
        with torch.no_grad():
            ids = {"input_ids": torch.tensor([text]), "decoder_input_ids": tokens[None, :-1]}
            logits = baseline.model(**ids).logits
        wanted = logits.log_softmax(-1)[0].gather(-1, tokens[1:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(out.logprobs), wanted, atol=1e-4, rtol=0)


def test_the_head_is_a_weight_of_its_own_unless_it_is_tied(tmp_path):
    for tied in (True, False):
        model = random_model.random_model(T5 | {"tie_word_embeddings": tied}, torch.float32, CPU)
        model.save_pretrained(tmp_path / str(tied))
        again = TextBaseline(tmp_path / str(tied), "float32", CPU).model
        assert torch.equal(again.lm_head.weight, again.shared.weight) == tied


def test_a_model_s_own_settings_are_left_out(tmp_path, capsys, monkeypatch):
    asked, add = [], LLMEngine.add
    monkeypatch.setattr(
        LLMEngine, "add", lambda engine, given: (asked.extend(each.params for each in given), add(engine, given))[1]
    )
    model = tiny.bart(forced_eos_token_id=2)
    settings = {"num_beams": 4, "no_repeat_ngram_size": 3, "length_penalty": 2.0, "min_length": 56, "max_length": 60}
    model.generation_config.update(**settings, early_stopping=True, repetition_penalty=1.5)
    model.save_pretrained(tmp_path / "hf")
    kept = TextBaseline(tmp_path / "hf", "float32", CPU).model.generation_config
    assert kept.eos_token_id == 2 and not (kept.no_repeat_ngram_size or kept.min_length or kept.forced_eos_token_id)
    options = ["--input-output-len", "6,8", "--repeats", "1", "--device", "cpu", "--json", tmp_path / "text.json"]
    assert not bench("text", "--model", tmp_path / "hf", *options), capsys.readouterr().err
    [row] = json.loads((tmp_path / "text.json").read_text())["rows"]
    assert row["vlm"]["measured_tokens"] == row["hf"]["measured_tokens"] == 8
    for params in asked:
        plain = SamplingParams(max_new_tokens=params.max_new_tokens, ignore_eos=True)
        assert replace(params, forced_eos_token_id=None) == plain
    assert {params.max_new_tokens for params in asked} == {1, 8}


def test_texts_avoid_special_ids(tmp_path):
    large = T5 | {"vocab_size": 2048}
    checkpoint = random_checkpoint(large, tmp_path / "c")
    build_engine(checkpoint, tmp_path / "e", BuildConfig())
    with session.prepare_session(TextBenchConfig(model=str(tmp_path / "e"), device="cpu"), "text") as run:
        texts = random_texts(run, Workload((500, 2), 1, 16))
        ids = torch.tensor(texts)
        assert ids.shape == (16, 500) and ids.min() == 10 and 1900 < ids.max() < 2048 - 128
        assert texts == random_texts(run, Workload((500, 2), 1, 16))
        ragged = random_texts(run, Workload((500, 2), 1, 64, min_input_len=300))
        assert 300 <= min(map(len, ragged)) < 330 and 470 < max(map(len, ragged)) <= 500
        assert ragged == random_texts(run, Workload((500, 2), 1, 64, min_input_len=300))


@pytest.fixture(params=[0, 1])
def rank(request, monkeypatch):
    """Lets this process be one of two that mpirun has started."""
    for name, value in zip(VARIABLES["mpirun"], (request.param, 2, request.param), strict=True):
        monkeypatch.setenv(name, str(value))
    return request.param


def built(folder: Path, **sizes: int) -> str:
    """Builds an engine of random weights, and returns where it is."""
    build_engine(random_checkpoint(T5, folder / "c"), folder / "e", BuildConfig(**sizes))
    return str(folder / "e")


def test_of_ranks_that_were_started_together_the_first_one_alone_measures_and_speaks(tmp_path, monkeypatch, rank):
    asked, said = TextBenchConfig(model=built(tmp_path, tp_size=2), device="cpu"), []
    monkeypatch.setattr(session, "bandwidth", lambda device: 3e9)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with session.prepare_session(asked, "text", lambda *words: said.append(words[0])) as run:
            speed = run.bandwidth()
    warned = [str(each.message) for each in told if "will not be measured" in str(each.message)]
    assert (speed, len(warned), bool(said)) == ((3e9, 1, True) if rank == 0 else (math.inf, 0, False))
    monkeypatch.setattr(session, "meet", lambda: None)
    with_others, measured = replace(run, folder=tmp_path, engines={}), []
    with_others.compare({"Hugging Face": lambda folder: measured.append(folder) or iter(())}, lambda pipeline: iter(()))
    assert measured == [tmp_path] * (rank == 0)


def test_ranks_meet_before_the_first_one_measures_others(tmp_path, monkeypatch, rank):
    """It may do so for longer than they look for each other."""
    asked, done = TextBenchConfig(model=built(tmp_path, tp_size=2), device="cpu", hf=False), []
    meeting = SimpleNamespace(wait_for_first=lambda: done.append("waits for the first one"))

    def begin(engine, runtime, meeting=None):
        done.append(("begins", meeting))
        raise EngineError("no more of it")

    monkeypatch.setattr(session, "meet", lambda: done.append("meets") or meeting)
    monkeypatch.setattr(rank_processes, "begin", begin)
    with session.prepare_session(asked, "text") as run:
        theirs = {"Hugging Face": lambda folder: iter(done.append("measures") or ())}
        with pytest.raises(EngineError, match="no more of it"):
            replace(run, folder=tmp_path).compare(theirs, lambda pipeline: iter(()))
    assert done == ["meets", *["measures"] * (rank == 0), "waits for the first one", ("begins", meeting)]


def test_several_systems_of_ranks_that_were_started_are_refused(monkeypatch):
    for name, value in zip(VARIABLES["srun"], (0, 2, 0), strict=True):
        monkeypatch.setenv(name, str(value))
    asked = TextBenchConfig(model="mini-t5", device="cpu", backends=("torch", "torch-int8"), tp_size=2)
    said = "names torch, torch-int8, and the 2 processes that srun has started end with the first system; name one, or"
    with pytest.raises(InputError, match=said), session.prepare_session(asked, "text"):
        pass


def test_texts_of_many_lengths(arch, tmp_path, capsys):
    out = tmp_path / "text.json"
    options = ["--batch-size", "4", "--input-output-len", "9,4", "--min-input-len", "3", "--repeats", "1"]
    run = ["text", "--arch", arch, "--random-weights", *options, "--device", "cpu"]
    assert not bench(*run, "--json", out), capsys.readouterr().err
    result = json.loads(out.read_text())
    [row] = result["rows"]
    assert (row["min_input_len"], row["input_len"]) == (3, 9) and row["hf"]["batch_size"] == 4
    capsys.readouterr()
    assert not bench("table", out)
    assert "3-9 in, 4 out, batch 4, greedy: tokens/s" in capsys.readouterr().out
    header, told = csv_rows(result)
    assert dict(zip(header, told, strict=True))["in"] == "3-9"


@pytest.mark.parametrize(("options", "is_told"), [((), True), (("--no-hf",), False)])
def test_an_engine_has_no_baseline_which_is_told(options, is_told, tmp_path, capsys):
    engine = build_engine(random_checkpoint(T5, tmp_path / "c"), tmp_path / "e", BuildConfig()).path
    sizes = ("--batch-size", 1, "--input-output-len", "6,4", "--repeats", 1, "--device", "cpu")
    assert not bench("text", "--model", engine, *sizes, *options)
    told = (
        f"vlm: warning: Hugging Face will not be measured: {engine} is no Hugging Face folder; to measure beside it,"
        " give --model the folder or Hub id that it was made of.\n"
    )
    assert (told in capsys.readouterr().err) == is_told


def test_an_engine_must_hold_the_rows(tmp_path):
    """Else a batch would be cut in parts and count as one."""
    build = BuildConfig(max_batch_size=4, max_seq_len=16, max_encoder_input_len=8)
    build_engine(random_checkpoint(T5, tmp_path / "c"), tmp_path / "e", build)
    small = {"model": str(tmp_path / "e"), "device": "cpu", "lengths": ((8, 15),)}
    for lists, says in (({"batch_sizes": (4,), "num_beams": (2,)}, "max_batch_size 4, asked is max_batch_size 8"),
                        ({"lengths": ((9, 15),)}, "asked is max_encoder_input_len 9"),
                        ({"lengths": ((8, 16),)}, "asked is max_seq_len 17")):  # fmt: skip
        config = TextBenchConfig(**small | lists)
        with pytest.raises(LimitError, match=says):
            prepare(config, "float32", tmp_path, "text", limits=config.limits)
    with pytest.raises(EngineError, match="dtype float32, asked is dtype bfloat16"):
        prepare(TextBenchConfig(**small, dtype="bfloat16"), "bfloat16", tmp_path, "text")


def test_lengths_are_checked_before_weights_are_drawn(monkeypatch, capsys):
    monkeypatch.setattr(subject, "save_random", None)  # may not be called
    for pair, says in (("2000,9", "max_encoder_input_len is 2000"), ("9,1024", "max_seq_len is 1025")):
        arguments = ["--random-weights", "--arch", "bart-large-cnn", "--input-output-len", pair]
        assert bench("text", "--device", "cpu", *arguments) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert says in line and "this model allows at most 1024" in line


PACKAGED = ["--model", "mini-t5"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([*PACKAGED, "--batch-size", "1,2"], "--batch-size holds '1,2'; give whole numbers, apart by ';'"),
        ([*PACKAGED, "--batch-size", ""], "--batch-size holds ''; give whole numbers"),
        ([*PACKAGED, "--input-output-len", "64"], 'give pairs such as "60,20;128,20"'),
        ([*PACKAGED, "--input-output-len", "1,2,3"], 'give pairs such as "60,20;128,20"'),
        ([*PACKAGED, "--input-output-len", "a,b"], "--input-output-len holds 'a,b'; give whole numbers, apart by ','"),
        ([*PACKAGED, "--input-output-len", "0,9"], "--input-output-len holds 0; its numbers must be at least 1"),
        ([*PACKAGED, "--num-beams", "1;0"], "--num-beams holds 0; its numbers must be at least 1"),
        ([*PACKAGED, "--batch-size", "4;-1"], "--batch-size holds -1; its numbers must be at least 1"),
        ([*PACKAGED, "--input-output-len", "9,1"], "asks for 1 token out; at least 2 tokens out"),
        (
            [*PACKAGED, "--input-output-len", "9,4;6,4", "--min-input-len", "7"],
            "is 7; it must not be above the tokens in of --input-output-len, 6",
        ),
        ([*PACKAGED, "--settings", "top_q=1"], "--settings names top_q; allowed are temperature, top_k"),
        ([*PACKAGED, "--settings", ";num_beams=4"], "--settings names num_beams; allowed are temperature, top_k"),
        ([*PACKAGED, "--settings", "top_k=few"], "--settings top_k is 'few'; give a whole number"),
        ([*PACKAGED, "--settings", "top_k=2.5"], "--settings top_k is '2.5'; give a whole number"),
        (
            [*PACKAGED, "--settings", ";temperature=1", "--num-beams", "1;4"],
            "--num-beams is 4 and temperature 1, which exclude each",
        ),
        ([*PACKAGED, "--settings", '{"num_beams": 4}'], "--settings names num_beams; allowed are temperature, top_k"),
        ([*PACKAGED, "--settings", "bad_words_ids=5"], 'give its row as a JSON object: {"bad_words_ids": …}'),
        ([*PACKAGED, "--settings", '{"bad_words_ids": 5}'], "bad_words_ids is 5"),
        ([*PACKAGED, "--settings", ";{top_k}"], "--settings is '{top_k}'; give a JSON object"),
        ([*PACKAGED, "--settings", "top_p=2"], "top_p is 2.0; it must lie in (0, 1]"),
        ([*PACKAGED, "--settings", "top_k=5", "--ctranslate2", "int8"], "--ctranslate2 is measured without --settings"),
        ([*PACKAGED, "--hf-new-tokens", "1"], "--hf-new-tokens is 1; it must be at least 2"),
        ([*PACKAGED, "--hf-batch-size", "0"], "--hf-batch-size is 0; it must be at least 1"),
        ([*PACKAGED, "--backend", "torch+lora-0x8"], "--backend holds torch+lora-0x8; allowed are"),
        ([*PACKAGED, "--backend", "onnxruntime+lora-2x8"], "--backend holds onnxruntime+lora-2x8; allowed are"),
        ([*PACKAGED, "--json", "/dev/null/x.json"], "--json /dev/null/x.json cannot be written"),
        (["--model", "mini-nougat"], "mini-nougat takes images; use vlm bench latency or throughput"),
        (["--random-weights", "--arch", "nougat-base"], "takes images; use vlm bench latency or throughput"),
        (["--random-weights", "--arch", "t6"], "architecture 't6' is unknown"),
        (["--arch", "t5-small"], "--random-weights and --arch go together"),
        ([], "give either --model NAME, or --random-weights --arch NAME"),
    ],
)
def test_mistakes_are_one_sentence(capsys, arguments, says):
    assert bench("text", "--device", "cpu", *arguments) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert says in line


def test_committed_results_have_a_line_a_row():
    files = sorted((ROOT / "benchmarks" / "results").glob("*-text.json"))
    for result in table.load(files):
        assert len(table.rows(result)) == len(result["rows"]) == len(csv_rows(result)) - 1
