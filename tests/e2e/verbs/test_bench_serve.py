"""`vlm bench serve` against real servers of packaged models."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.kits.servers.server_kit import EXAMPLES, load, serving
from vlm_app.cli.main import main

pytestmark = pytest.mark.slow

VERB = ["bench", "serve"]
FEW = ["--num-prompts", "4", "--num-warmups", "1", "--output-len", "4-8", "--input-len", "20-40"]


@pytest.fixture(scope="module")
def served():
    with serving(load("mini-llava", "mini-t5"), api_key="secret") as found:
        yield found


def bench(tmp_path, *arguments: str) -> dict:
    out = tmp_path / "result.json"
    with pytest.raises(SystemExit) as done:
        main([*VERB, *FEW, "--json", str(out), *arguments])
    assert not done.value.code
    return json.loads(out.read_text())


def test_texts_and_images_at_several_rates(served, tmp_path, capsys):
    images = ["--images", "1", "--image-size", "64x48,32x32", "--request-rate", "20,inf"]
    result = bench(tmp_path, "--url", served.url, "--api-key", "secret", "--model", "mini-llava", *images)
    for row in result["rows"]:
        assert (row["completed"], row["failed"], row["tokens_counted_by"]) == (4, 0, "usage")
        assert 4 <= row["output_tokens"]["min"] <= row["output_tokens"]["max"] <= 8
        latencies = row["ttft_ms"], row["e2el_ms"]
        assert 0 < latencies[0]["p50"] <= latencies[1]["p50"] <= latencies[1]["p99"] <= row["seconds"] * 1e3
    assert result["targets"][0]["takes"] == {"full_length": "ignore_eos", "usage": True}
    shown = capsys.readouterr().out
    assert "mini-llava, chat: 4 requests a run, 20-40 tokens and 1 image of 64x48, 32x32 in, 4-8 out" in shown
    assert "4 / 0" in shown and "first token (TTFT)" in shown and "secret" not in json.dumps(result) + shown


def test_lengths_are_the_servers_tokens(served, tmp_path):
    text = ["--endpoint", "completions", "--input-len", "100-120", "--num-prompts", "20"]
    [row] = bench(tmp_path, "--url", served.url, "--api-key", "secret", "--model", "mini-t5", *text)["rows"]
    assert row["completed"] == 20 and 85 < row["input_tokens"]["mean"] < 135


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--api-key", "wrong", "--model", "mini-t5"], "refuses the API key"),
        (["--model", "mini-t5"], "refuses the API key"),
        (["--api-key", "secret"], "does not serve one model alone; give --model, one of: mini-llava, mini-t5"),
        (["--api-key", "secret", "--model", "x"], "has no model 'x'; give --model, one of: mini-llava, mini-t5"),
        (["--api-key", "secret", "--model", "mini-t5", "--images", "1"], "before the load: HTTP 400, "),
        (["--api-key", "secret", "--model", "mini-llava", "--input-len", "2000"], "maximum context length is exceeded"),
    ],
)
def test_what_the_server_refuses_is_one_sentence(served, capsys, monkeypatch, arguments, says):
    monkeypatch.delenv("VLM_API_KEY", raising=False)
    with pytest.raises(SystemExit) as done:
        main([*VERB, *FEW, "--url", served.url, *arguments])
    [last, *others] = reversed(capsys.readouterr().err.splitlines())
    assert done.value.code == 2 and says in last and not any("vlm: " in other for other in others)


def processes_of(text: str) -> list[str]:
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in found.splitlines() if text in line]


def test_a_server_of_its_own_is_started_and_ended(tmp_path):
    out, line = tmp_path / "result.json", [sys.executable, "-m", "vlm_app.cli.main", *VERB, *FEW, "--model"]
    name = f"own{os.getpid()}=mini-t5"
    options = [
        "--endpoint",
        "completions",
        "--json",
        str(out),
        "--csv",
        "--",
        "--device",
        "cpu",
        "--max-batch-size",
        "2",
    ]
    done = subprocess.run([*line, name, *options], cwd=EXAMPLES.parent, capture_output=True, text=True, check=True)
    result = json.loads(out.read_text())
    cold = result["targets"][0]["cold_start"]
    assert 0 < cold["ready_seconds"] < cold["first_token_seconds"] and result["rows"][0]["completed"] == 4
    assert result["config"]["serve_options"] == ["--device", "cpu", "--max-batch-size", "2"]
    assert result["environment"]["device"].startswith("CPU") and done.stdout.startswith("subject,target,request_rate,")
    assert not processes_of(name)


def test_a_server_of_its_own_ends_with_the_benchmark(tmp_path):
    name = f"own{os.getpid()}=mini-t5"
    line = [sys.executable, "-m", "vlm_app.cli.main", *VERB, "--model", name, "--endpoint", "completions"]
    process = subprocess.Popen(
        [*line, "--request-rate", "0.01", "--", "--device", "cpu"], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert any("0.01/s" in said for said in process.stderr), "the load has begun"
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert not processes_of(name)


def test_why_a_server_does_not_start_is_said(capfd):
    with pytest.raises(SystemExit) as done:
        main([*VERB, "--model", "no-such-model", "--", "--device", "cpu"])
    assert (
        done.value.code == 2
        and "vlm serve did not start: model 'no-such-model' does not exist" in capfd.readouterr().err
    )
