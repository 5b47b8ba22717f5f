"""`vlm bench serve` without a server: arrivals, streams, statistics, prompts, tables, mistakes."""

from __future__ import annotations

import base64
import csv
import io
import itertools
import json
import math

import numpy as np
import pytest
from PIL import Image

from vlm.errors import InputError
from vlm_app.bench import table
from vlm_app.bench.csv_rows import csv_rows
from vlm_app.bench.serving import table as serving
from vlm_app.bench.serving.arrivals import arrival_times
from vlm_app.bench.serving.config import ServeBenchConfig
from vlm_app.bench.serving.dataset import read_dataset
from vlm_app.bench.serving.events import MAX_EVENT_BYTES, EventDecoder
from vlm_app.bench.serving.load import Run
from vlm_app.bench.serving.outcome import Outcome
from vlm_app.bench.serving.prompts import draw_prompt
from vlm_app.bench.serving.statistics import summary
from vlm_app.cli.main import main

URL = ["--url", "http://127.0.0.1:9"]


# --- arrivals ---
def test_arrivals_follow_from_the_seed_and_have_the_rate():
    times = arrival_times(400, 4.0, burstiness=1.0, seed=3)
    assert times == arrival_times(400, 4.0, burstiness=1.0, seed=3) != arrival_times(400, 4.0, burstiness=1.0, seed=4)
    assert times == sorted(times) and times[0] > 0 and times[-1] == pytest.approx(100)
    assert np.allclose(arrival_times(400, 8.0, burstiness=1.0, seed=3), np.array(times) / 2), "one pattern at all rates"
    assert arrival_times(3, math.inf, burstiness=1.0, seed=0) == [0, 0, 0]


@pytest.mark.parametrize(("burstiness", "deviation"), [(0.25, 2.0), (1.0, 1.0), (16.0, 0.25)])
def test_gaps_are_gamma_distributed(burstiness, deviation):
    """Of shape k the deviation is 1 / sqrt(k) of the mean; 1 is a Poisson process."""
    gaps = np.diff(arrival_times(20_000, 1.0, burstiness=burstiness, seed=0))
    assert gaps.mean() == pytest.approx(1, rel=0.02) and gaps.std() == pytest.approx(deviation, rel=0.05)


# --- server-sent events ---
STREAM = (
    b": a comment\n\nevent: x\nid: 7\ndata: one\n\ndata:two\r\n\r\ndata: thr\xc3\xa4\ndata: ee\n\n"
    b"data:\n\nretry: 3\n\ndata: [DONE]\r\r"
)
EVENTS = ["one", "two", "thrä\nee", "[DONE]"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, len(STREAM)])
def test_events_are_the_same_wherever_bytes_are_split(size):
    decoder = EventDecoder()
    parts = (STREAM[at : at + size] for at in range(0, len(STREAM), size))
    assert [*itertools.chain.from_iterable(map(decoder.feed, parts)), *decoder.close()] == EVENTS


def test_every_split_in_two_gives_the_same_events():
    for at in range(len(STREAM)):
        decoder = EventDecoder()
        assert decoder.feed(STREAM[:at]) + decoder.feed(STREAM[at:]) + decoder.close() == EVENTS


def test_an_event_without_the_empty_line_is_read_at_the_end():
    decoder = EventDecoder()
    assert decoder.feed(b"data: a\n\ndata: [DONE]") == ["a"] and decoder.close() == ["[DONE]"]


@pytest.mark.parametrize("part", [b"data: " + b"x" * 70_000, b"data: " + b"x" * 70_000 + b"\n"])
def test_an_endless_event_is_refused(part):
    decoder = EventDecoder()
    with pytest.raises(ValueError, match="larger than"):
        for _ in range(MAX_EVENT_BYTES // len(part) + 2):
            decoder.feed(part)


# --- statistics ---
def answered(first: float, step: float, chunks: int, *, tokens: int | None = None) -> Outcome:
    times = [10 + first + step * n for n in range(chunks)]
    return Outcome(10, times, times[-1], prompt_tokens=7, completion_tokens=tokens, is_whole=True)


def failed(kind: str) -> Outcome:
    outcome = Outcome(10)
    outcome.fail(kind, "a\nreason")
    outcome.fail("another", "later")
    return outcome


def run_of(*outcomes: Outcome, lag: float = 0.0, cpu_share: float = 0.1) -> Run:
    count = len(outcomes)
    return Run([*outcomes], 2.0, 3, lags=[lag] * count, queued=[0.0] * count, cpu_share=cpu_share)


def test_latencies_are_of_completed_requests():
    found = summary(
        run_of(answered(0.1, 0.01, 11, tokens=11), answered(0.3, 0.03, 11, tokens=11), failed("HTTP 429")), {}
    )
    assert (found["completed"], found["failed"]) == (2, 1) and found["requests_per_s"] == 1
    assert found["failures"] == {"HTTP 429": {"count": 1, "message": "a reason"}}
    assert found["output_tokens_per_s"] == 11 and found["tokens_counted_by"] == "usage"
    for name, (low, high) in {"ttft": (100, 300), "tpot": (10, 30), "itl": (10, 30), "e2el": (200, 600)}.items():
        values = found[f"{name}_ms"]
        assert values["mean"] == pytest.approx((low + high) / 2) and values["max"] == pytest.approx(high), name
    assert found["ttft_ms"]["p50"] == pytest.approx(200) and found["ttft_ms"]["p95"] == pytest.approx(290)
    assert found["ttft_ms"]["p99"] == pytest.approx(298)


def test_chunks_of_several_tokens_are_counted_by_the_server():
    found = summary(run_of(answered(0.1, 0.16, 5, tokens=65)), {})
    assert found["tpot_ms"]["mean"] == pytest.approx(10) and found["itl_ms"]["mean"] == pytest.approx(160)
    assert found["tokens_per_chunk"] == 13


def test_without_usage_chunks_are_tokens():
    found = summary(run_of(answered(0.1, 0.01, 5)), {})
    assert found["tokens_counted_by"] == "chunks" and found["output_tokens"]["mean"] == 5
    assert found["tpot_ms"]["mean"] == pytest.approx(10)


def test_one_token_has_no_time_per_further_token():
    found = summary(run_of(answered(0.1, 0, 1, tokens=1)), {"tpot": 1, "ttft": 200})
    assert found["tpot_ms"] is None and found["itl_ms"] is None and found["goodput"]["share"] == 1


def test_a_run_in_which_all_failed_has_no_latencies():
    found = summary(run_of(failed("timeout"), failed("timeout")), {"ttft": 1})
    assert found["ttft_ms"] is None and found["failures"]["timeout"]["count"] == 2 and found["goodput"]["share"] == 0


@pytest.mark.parametrize(
    ("levels", "good"), [({"ttft": 100.5}, 1), ({"ttft": 300.5}, 2), ({"ttft": 301, "tpot": 11}, 1), ({"e2el": 1}, 0)]
)
def test_goodput_keeps_every_level(levels, good):
    run = run_of(answered(0.1, 0.01, 11, tokens=11), answered(0.3, 0.03, 11, tokens=11), failed("cut off"))
    assert summary(run, levels)["goodput"] == {"requests_per_s": good / 2, "share": good / 3}


@pytest.mark.parametrize(
    ("lag", "cpu_share", "bottleneck"), [(0.005, 0.1, False), (0.015, 0.1, True), (0.0, 0.95, True)]
)
def test_a_client_that_is_late_or_busy_says_so(lag, cpu_share, bottleneck):
    run = run_of(answered(0.1, 0.01, 3), lag=lag, cpu_share=cpu_share)
    assert summary(run, {})["client"]["bottleneck"] is bottleneck


def test_a_late_client_is_none_beside_slow_answers():
    assert not summary(run_of(answered(1.0, 0.01, 3), lag=0.05), {})["client"]["bottleneck"]


# --- prompts ---
def config_of(**fields) -> ServeBenchConfig:
    return ServeBenchConfig(**{"urls": ("http://x",), **fields})


def test_prompts_follow_from_the_seed_and_lie_in_the_ranges():
    config = config_of(input_len=(20, 30), output_len=(5, 9), images=2, image_sizes=((40, 30), (16, 16)))
    prompts = [draw_prompt(config, 0.5, [0, 1, number]) for number in range(40)]
    assert prompts[3] == draw_prompt(config, 0.5, [0, 1, 3]) and prompts[3].text != prompts[4].text
    assert {prompt.output_len for prompt in prompts} == {5, 6, 7, 8, 9}
    assert {len(prompt.text.split()) for prompt in prompts} == {10, 11, 12, 13, 14, 15}
    assert len({image for prompt in prompts for image in prompt.images}) == 80, "each has images of its own"
    pictures = [Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) for url in prompts[0].images]
    assert [picture.size for picture in pictures] == [(40, 30), (16, 16)] and pictures[0].format == "JPEG"


def test_bodies_hold_text_and_images():
    prompt = draw_prompt(config_of(images=1), 1.0, [0, 0, 0])
    [message] = prompt.content("chat")["messages"]
    assert [part["type"] for part in message["content"]] == ["image_url", "text"]
    text = draw_prompt(config_of(), 1.0, [0, 0, 0])
    assert text.content("chat") == {"messages": [{"role": "user", "content": text.text}]}
    assert text.content("completions") == {"prompt": text.text}


def test_datasets_are_read(tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    lines = [
        {"prompt": "What?", "images": ["a.png", "https://x/y.png"], "output_tokens": 3},
        {"messages": [{"role": "user", "content": "Hi"}]},
    ]
    (tmp_path / "p.jsonl").write_text("\n\n".join(map(json.dumps, lines)))
    first, second = read_dataset(tmp_path / "p.jsonl", config_of(output_len=(8, 9)))
    assert first.output_len == 3 and first.images[0].startswith("data:image/png;base64,iVBOR")
    assert first.images[1] == "https://x/y.png" and second.output_len == 9
    assert second.content("chat") == {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "is empty"),
        ("nonsense", "line 1 of .* is 'nonsense'; give a JSON object"),
        ('{"text": "a"}', "holds 'text'; its fields are prompt"),
        ('{"prompt": ""}', "needs either a text as prompt or a list of messages"),
        ('{"prompt": "a", "messages": [{}]}', "needs either"),
        ('{"messages": "a"}', "needs either"),
        ('{"prompt": "a", "images": ["gone.png"]}', "gone.png cannot be read: No such file"),
        ('{"prompt": "a", "images": "a.png"}', "images as a list"),
        ('{"prompt": "a", "output_tokens": 0}', "output_tokens 0; it must be"),
        ('{"prompt": "a", "output_tokens": true}', "output_tokens True; it must be"),
    ],
)
def test_bad_lines_are_named(tmp_path, line, says):
    (tmp_path / "p.jsonl").write_text(line)
    with pytest.raises(InputError, match=says):
        read_dataset(tmp_path / "p.jsonl", config_of())


def test_images_of_a_dataset_are_no_completions(tmp_path):
    (tmp_path / "p.jsonl").write_text('{"messages": [{"role": "user", "content": "Hi"}]}')
    with pytest.raises(InputError, match="leave --endpoint completions out"):
        read_dataset(tmp_path / "p.jsonl", config_of(endpoint="completions"))


# --- tables ---
def result_of(*runs: Run, **fields) -> dict:
    config = config_of(goodput=("ttft:200",), **fields)
    rows = [{"target": f"http://h{n}", "request_rate": 4.0} | summary(run, {"ttft": 200}) for n, run in enumerate(runs)]
    takes = {"full_length": None, "usage": True}
    targets = [{"name": row["target"], "model": "m", "takes": takes} for row in rows]
    environment = {"commit": None, "cpus": 2, "load": 0.1, "vlm": "1", "torch": "2", "device": "CPU"}
    settings = config.to_dict() | {"num_prompts": 3, "serve_options": []}
    return {
        "kind": "serve", "subject": "m", "config": settings, "environment": environment, "targets": targets,
        "rows": rows,
    }  # fmt: skip


def test_tables_and_csv_have_every_run(tmp_path):
    result = result_of(run_of(answered(0.1, 0.01, 3)), run_of(failed("HTTP 500"), lag=0.1), images=1)
    (tmp_path / "r.json").write_text(json.dumps(result))
    text = table.markdown(table.load([tmp_path / "r.json"]))
    assert "| 4/s | http://h0 | http://h1 |" in text and "| first token (TTFT), ms: mean | 100.0 | – |" in text
    assert "**m, chat: 3 requests a run, 128 tokens and 1 image of 336x336 in, 64 out**" in text
    assert "- http://h1, 4/s: 1 failed, HTTP 500: a reason" in text and "counts no tokens" in text
    assert "takes neither ignore_eos nor min_tokens" in text and "goodput, requests/s (ttft:200)" in text
    header, *lines = csv_rows(result)
    assert {len(line) for line in lines} == {len(header)} and len(lines) == 2


def test_a_bottleneck_is_told():
    late = result_of(run_of(answered(0.1, 0.01, 3), lag=0.1))
    assert any("the client was the bottleneck" in note for note in serving.notes(late))
    assert not any("bottleneck" in note for note in serving.notes(result_of(run_of(answered(0.1, 0.01, 3)))))


def test_results_hold_no_secrets():
    config = config_of(urls=("http://me:word@host:1/v1",), api_key="secret", request_rates=(1.0, math.inf))
    text = json.dumps(config.to_dict(), allow_nan=False)
    assert "secret" not in text and "word" not in text and json.loads(text)["request_rates"] == [1.0, "inf"]


# --- mistakes ---
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give --url of a server, or --model NAME"),
        ([*URL, "--request-rate", "0"], "--request-rate holds 0; a rate must be above 0"),
        ([*URL, "--request-rate", "1,-2"], "--request-rate holds -2; a rate must be above 0"),
        ([*URL, "--request-rate", "nan"], "--request-rate holds nan"),
        ([*URL, "--request-rate", "fast"], "give requests a second such as 4"),
        ([*URL, "--input-len", "440-260"], "must not be above the second: 260-440"),
        ([*URL, "--output-len", "0"], "--output-len is '0'; it must be at least 1"),
        ([*URL, "--output-len", "x"], "give tokens such as 128"),
        ([*URL, "--image-size", "336"], "give width and height such as 336x336"),
        ([*URL, "--image-size", "336x336"], "there are none; add --images 1"),
        ([*URL, "--images", "1", "--endpoint", "completions"], "--images go in chats"),
        ([*URL, "--endpoint", "talk"], "--endpoint is 'talk'; allowed are chat, completions"),
        ([*URL, "--goodput", "ttft:200", "speed:3"], "--goodput holds 'speed:3'"),
        ([*URL, "--goodput", "itl:3"], "--goodput holds 'itl:3'"),
        ([*URL, "--goodput", "ttft:-1"], "--goodput holds 'ttft:-1'"),
        ([*URL, "--burstiness", "0"], "--burstiness is 0.0; it must be a number above 0"),
        ([*URL, "--max-concurrency", "0"], "--max-concurrency is 0; it must be at least 1"),
        ([*URL, "--extra-body", "[]"], "give a JSON object"),
        ([*URL, "--dataset-path", "gone.jsonl"], "gone.jsonl cannot be read"),
        ([*URL, "--dataset-path", "x", "--images", "1"], "--dataset-path has its own"),
        ([*URL, "--", "--device", "cpu"], "--device is for a server that is started here"),
        (["--model", "x", "--", "--api-key=k"], "--api-key stands behind --; give it before"),
        (
            [*URL, "--num-prompts", "2000000000"],
            "more files than this process may open; give a lower --max-concurrency",
        ),
        (["--url", "127.0.0.1:80"], "give an address such as http://127.0.0.1:8000"),
        (["--url", "http://a:b"], "give an address such as"),
        (URL, "http://127.0.0.1:9 gives no answer: connection refused"),
        ([*URL, "--model", "x"], "http://127.0.0.1:9 gives no answer: connection refused"),
    ],
)
def test_mistakes_are_one_sentence(capsys, monkeypatch, arguments, says):
    monkeypatch.delenv("VLM_API_KEY", raising=False)
    with pytest.raises(SystemExit) as done:
        main(["bench", "serve", *arguments])
    [last, *_] = reversed(capsys.readouterr().err.splitlines())
    assert done.value.code == 2 and last.startswith("vlm: ") and says in last


def test_csv_of_a_result_is_csv(capsys):
    from vlm_app.cli.evaluation.bench_output import print_csv

    print_csv(result_of(run_of(answered(0.1, 0.01, 3))))
    header, line = csv.reader(capsys.readouterr().out.splitlines())
    assert dict(zip(header, line, strict=True))["ttft_ms_p50"].startswith("100")
