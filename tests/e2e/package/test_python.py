"""The Python calls of the README, on the packaged model."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import vlm
from tests.checkout import ROOT
from vlm.config import RuntimeConfig
from vlm.errors import ConfigError, InputError, LimitError, OutOfMemoryError, VlmError

EXAMPLES = ROOT / "examples"
PAGE, TEXT = EXAMPLES / "page.png", (EXAMPLES / "page.txt").read_text().strip()


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def model(cache):
    return vlm.load("mini-nougat", device="cpu", cache_dir=cache)


def test_importing_vlm_does_not_import_torch():
    script = "import sys, vlm; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_one_input_gives_one_output(model):
    out = model.generate(images=[PAGE], max_new_tokens=300)
    assert out.text == TEXT and out.finish_reason == "eos"
    assert out.token_ids[-1] == 2 and len(out.logprobs) == len(out.token_ids)
    assert all(value <= 0 for value in out.logprobs)
    assert model.generate(PAGE).token_ids == out.token_ids


def test_a_list_gives_a_list_in_order(model):
    names = ["table", "page", "math", "page"]
    found = model.generate([str(EXAMPLES / f"{name}.png") for name in names])
    assert [out.text for out in found] == [(EXAMPLES / f"{name}.txt").read_text().strip() for name in names]
    assert model.generate([]) == []


def test_streamed_pieces_join_to_the_text(model):
    pieces = list(model.stream(PAGE))
    assert "".join(pieces) == model.last_output.raw_text == TEXT and len(pieces) > 3


def test_a_stream_left_early_leaves_the_engine_empty(model):
    stream = model.stream(PAGE)
    next(stream)
    stream.close()
    assert not model.llm.has_work and model.llm.scheduler.blocks.balanced
    assert model.generate(PAGE).text == TEXT


@pytest.mark.parametrize("call", ["generate", "stream", "complete"])
def test_a_call_that_has_ended_holds_no_images(model, monkeypatch, call):
    pixels, add = [], model.llm.add

    def watched(requests):
        pixels.extend(weakref.ref(request.encoder_image.pixels) for request in requests)
        return add(requests)

    monkeypatch.setattr(model.llm, "add", watched)
    image, settings = PAGE, {"max_new_tokens": 3}
    if call == "generate":
        model.generate([image, image], **settings)
    elif call == "stream":
        list(model.stream(image, **settings))
    else:
        model.complete([model.request(image, **settings)])
    gc.collect()
    assert pixels and not any(each() is not None for each in pixels)


def test_a_prompt_is_the_start_of_the_output(model):
    start = TEXT[:40]
    out = model.generate(PAGE and {"images": [PAGE], "prompt": start})
    assert start + out.raw_text == TEXT
    ids = [0, *model.tokenizer.encode(start)]
    same = model.generate(images=PAGE, decoder_prompt_token_ids=ids)
    assert same.token_ids == out.token_ids


def test_stop_ids_and_length(model):
    newline = model.tokenizer.encode("\n")[0]
    out = model.generate(PAGE, stop_token_ids=[newline])
    assert out.finish_reason == "stop" and out.raw_text.strip() == TEXT.split("\n")[0]
    out = model.generate(PAGE, max_new_tokens=5)
    assert out.finish_reason == "length" and out.raw_text == TEXT[:5]


def test_a_looping_page_is_ended_and_shown_once(model):
    line = "the same again and again, "
    prompt = [0, *model.tokenizer.encode("start. " + line * 8)]
    blank = np.full((600, 600, 3), 255, np.uint8)
    loops = model.generate(images=blank, decoder_prompt_token_ids=prompt, loop_detection=True)
    assert loops.finish_reason in ("loop", "eos")
    free = model.generate(images=blank, decoder_prompt_token_ids=prompt, loop_detection=False)
    assert len(loops.token_ids) <= len(free.token_ids)


def test_as_completed_pulls_no_more_than_it_holds(cache):
    model = vlm.load("mini-nougat", cache_dir=cache, runtime=RuntimeConfig(device="cpu", max_batch_size=2))
    pulled, done = [], 0

    def pages():
        for i in range(9):
            pulled.append(i)
            yield PAGE if i != 4 else EXAMPLES / "missing.png"

    for index, result in model.as_completed(pages(), window=3, on_error="yield", max_new_tokens=12):
        done += 1
        assert len(pulled) <= done + 3
        assert isinstance(result, VlmError) == (index == 4)
    assert done == 9


def test_timings(model):
    out = model.generate(PAGE)
    times = model.timings
    assert times["tokens"] == len(out.token_ids)
    assert 0 < times["decode"] < times["total"] and times["encode"] > 0 and times["preprocess"] > 0


def test_timings_count_what_every_thread_prepares(model, monkeypatch):
    clocks, before = threading.local(), model.timings["preprocess"]

    def seconds() -> float:
        time.sleep(1e-6)  # other threads have their turn
        clocks.seconds = getattr(clocks, "seconds", 0.0) + 1
        return clocks.seconds

    def prepare(_) -> None:
        for _ in range(500):
            with model._timings.preparing():
                pass

    monkeypatch.setattr("vlm.api.call_timings.time", SimpleNamespace(perf_counter=seconds))
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(prepare, range(4)))
    monkeypatch.undo()
    assert model.timings["preprocess"] - before == pytest.approx(4 * 500)


@pytest.mark.parametrize(
    ("call", "kind", "reason"),
    [
        (lambda m: m.generate(), InputError, "no input"),
        (
            lambda m: m.generate(PAGE, images=[PAGE]),
            InputError,
            "^images was given in the input and beside it; give it",
        ),
        (lambda m: m.generate([PAGE], images=[PAGE]), InputError, "^images was given in the input and beside it"),
        (lambda m: m.encode({"images": PAGE}, images=PAGE), InputError, "^images was given in the input and beside it"),
        (lambda m: m.generate(PAGE, on_error="yield"), InputError, r"on_error is of as_completed\(\), which goes on"),
        (lambda m: m.generate([PAGE], on_error="yield"), InputError, "on_error is of as_completed"),
        (
            lambda m: m.generate({}),
            InputError,
            r"needs a text \(text, encoder_input_ids\), an image \(images, pixel_va",
        ),
        (
            lambda m: m.generate("data:image/png;base64," + "iVBO" * 999),
            InputError,
            "^data:image.{90}… is no path; give",
        ),
        (lambda m: m.generate("a" * 5000), InputError, "^a{500}… cannot be read"),
        (lambda m: pickle.dumps(m), InputError, r"a loaded model stays in its process; load it in each, with vlm.load"),
        (lambda m: m.generate(images=[PAGE, PAGE]), InputError, "one image a request"),
        (lambda m: m.generate([PAGE], question="x"), InputError, "question"),
        (lambda m: m.generate(PAGE, tempratur=1), InputError, "tempratur is no option"),
        (lambda m: m.generate(PAGE, tempratur=1), InputError, r"is no option \(is it temperature\?\); options are"),
        (lambda m: m.generate({"imagess": PAGE}), InputError, r"is unknown in an input \(is it images\?\); allowed"),
        (lambda m: m.generate(PAGE, temperature=-1), InputError, "temperature is -1"),
        (lambda m: m.generate(PAGE, top_p=0.0), InputError, "top_p is 0.0"),
        (lambda m: m.generate(PAGE, max_new_tokens=0), InputError, "max_new_tokens is 0"),
        (lambda m: m.generate(PAGE, max_new_tokens=9999), LimitError, "9680 more than the 320"),
        (lambda m: m.generate(images=PAGE, encoder_input_ids=[1]), InputError, "no text encoder"),
        (lambda m: m.generate(pixel_values=torch.zeros(3, 9, 9)), InputError, "takes"),
        (lambda m: m.generate(PAGE, decoder_prompt_token_ids=[7000]), LimitError, "outside the vocabulary"),
        (lambda m: m.generate(images=PAGE, decoder_prompt_token_ids=[7000]), LimitError, "outside the vocabulary"),
        (lambda m: m.generate({"image": PAGE}), InputError, "image is unknown"),
        (lambda m: m.generate([PAGE, EXAMPLES / "none.png"]), VlmError, "does not exist"),
        (lambda m: m.generate(encoder_output="x"), InputError, "encoder_output is no array but str; give floats"),
        (lambda m: m.generate(encoder_output=np.zeros(3)), InputError, r"is torch.float64 of shape \[3\]; give floats"),
        (
            lambda m: m.generate(encoder_output=np.zeros((3, 7))),
            InputError,
            r"shape \[3, 7\]; this model takes rows of",
        ),
        (lambda m: m.generate(encoder_output=np.full((3, 7), np.nan)), InputError, "encoder_output holds NaN or"),
        (lambda m: list(m.as_completed([PAGE], window=-1)), InputError, "window is -1; it must be at least 1"),
        (lambda m: list(m.as_completed([PAGE], window="2")), InputError, "window is '2'; it must be a whole number"),
        (lambda m: list(m.as_completed({"images": PAGE})), InputError, "takes several inputs, got dict; give a list"),
        (lambda m: list(m.as_completed(str(PAGE))), InputError, "takes several inputs, got str; give a"),
        (lambda m: list(m.as_completed(None)), InputError, "takes several inputs, got NoneType; give"),
        (
            lambda m: m.generate(PAGE, sampling_params=vlm.SamplingParams()),
            InputError,
            "sampling_params is no option: give each setting by its name, as max_new_tokens=20",
        ),
        (lambda m: m.complete(["a"]), InputError, r"got str; make the request of an input first: request\(INPUT"),
        (lambda m: m.generate(PAGE, do_sample="false"), InputError, "do_sample is 'false'; it must be true or false"),
        (lambda m: list(m.as_completed([PAGE], on_error="skip")), InputError, "'skip'; allowed are raise and yield"),
    ],
)
def test_mistakes_are_one_sentence_and_cost_nothing(model, call, kind, reason):
    with pytest.raises(kind, match=reason) as error:
        call(model)
    assert "\n" not in str(error.value)
    assert not model.llm.has_work and model.llm.scheduler.blocks.balanced


def test_an_encoders_output_may_be_an_array(model):
    rows = model.encode(PAGE).last_hidden_state
    found = [model.generate(encoder_output=kind(rows), max_new_tokens=5) for kind in (torch.as_tensor, np.asarray)]
    assert [out.token_ids for out in found] == [model.generate(PAGE, max_new_tokens=5).token_ids] * 2


def test_runtime_options_are_checked(cache):
    with pytest.raises(ConfigError, match="burst is 0"):
        RuntimeConfig(burst=0)
    with pytest.raises(ConfigError, match="cross_kv_cache_fraction"):
        RuntimeConfig(cross_kv_cache_fraction=1.0)
    with pytest.raises(InputError, match="device"):
        vlm.load("mini-nougat", device="tpu", cache_dir=cache)
    with pytest.raises(OutOfMemoryError, match=r"needs .* lower max_seq_len"):
        vlm.load("mini-nougat", cache_dir=cache, runtime=RuntimeConfig(device="cpu", max_kv_blocks=20))


def test_out_of_memory_while_encoding_leaves_the_engine_usable(model, monkeypatch):
    def full(pixels):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(model.llm.encoders.visual, "forward", full)
        with pytest.raises(OutOfMemoryError, match="max_encoder_batch_size"):
            model.generate([PAGE, PAGE])
    assert not model.llm.has_work and model.llm.scheduler.blocks.balanced
    assert model.generate(PAGE).text == TEXT


def test_out_of_memory_in_encode_is_one_sentence(model, monkeypatch):
    def full(pixels):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(model.llm.encoders.visual, "forward", full)
    with pytest.raises(OutOfMemoryError) as error:
        model.encode(PAGE)
    assert "\n" not in str(error.value)


def test_out_of_memory_at_load_says_what_lowers_it(cache, monkeypatch):
    from vlm.executor import kv_cache

    def full(*args, **options):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(kv_cache, "allocate", full)
    with pytest.raises(OutOfMemoryError, match=r"needs .* MiB .* lower max_batch_size") as error:
        vlm.load("mini-nougat", device="cpu", cache_dir=cache)
    assert "\n" not in str(error.value)


def test_encodings_are_compared_as_objects(model):
    encoding = model.encode(PAGE)
    assert encoding in [encoding] and encoding != model.encode(PAGE)


def test_outputs_with_logits_may_be_compared(model):
    ask = lambda seed: model.generate(PAGE, max_new_tokens=2, seed=seed, return_generation_logits=True)  # noqa: E731
    assert ask(1) == ask(1) and ask(1) != ask(2)
