"""What a batch-invariant engine computes, on the CPU in float32: full passes give the tokens of any others. That bits
are the same is a GPU's to show (tests/gpu/models/test_batch_invariance.py)."""

from __future__ import annotations

import pytest
import torch

from tests.kits.models import tiny
from tests.kits.models.engines import engine_dir
from vlm.api.pipeline import Pipeline
from vlm.config import RuntimeConfig
from vlm.engine.engine_loop import EngineLoop

MODELS = {
    "nougat": lambda: tiny.nougat(seed=8, vocab=1900),
    "t5": lambda: tiny.t5(seed=1, vocab_size=1900),
    "llava": lambda: tiny.llava(seed=3, text={"vocab_size": 1900}),
    "opt": lambda: tiny.opt(seed=2, vocab_size=1900),
}
OPTIONS = ({}, {"num_beams": 3}, {}, {"temperature": 0.9, "seed": 5}, {})


def inputs_of(pipe: Pipeline) -> list[dict]:
    """Inputs of different lengths, the longest prompts of several chunks."""
    generator = torch.Generator().manual_seed(0)
    words = lambda n: torch.randint(3, 1800, (n,), generator=generator).tolist()  # noqa: E731
    vision, vocab = pipe.processor.vision, pipe.config.vocab_size
    inputs: list[dict] = [{pipe.capabilities.id_field: words(n)} for n in (40, 3, 90, 1, 77, 12, 33, 9)]
    if vision is None:
        return inputs
    pixels = torch.randn(len(inputs), vision.num_channels, *vision.image_size, generator=generator)
    if pipe.config.cross_attention:
        return [{"pixel_values": each} for each in pixels]
    rows = [*range(vocab, vocab + vision.num_features)]
    return [
        {"decoder_prompt_token_ids": [*words(number), *rows, *each["decoder_prompt_token_ids"]], "pixel_values": image}
        for number, (each, image) in enumerate(zip(inputs, pixels, strict=True))
    ]


def logits_of(pipe: Pipeline, inputs: list[dict], steps_apart: int) -> list[torch.Tensor | list]:
    """Returns what each request gave: its logits, or a search's tokens and log-probabilities; the next is added after
    so many steps."""
    loop, ids, found = EngineLoop(pipe.llm), [], {}

    def step() -> None:
        found.update({u.request_id: pipe.outputs.output(u.completion) for u in loop.step() if u.completion})

    for number, given in enumerate(inputs):
        more = OPTIONS[number % len(OPTIONS)]
        wanted = {} if "num_beams" in more else {"return_generation_logits": True}
        limits = {"max_new_tokens": 6 + 5 * (number % 5), "ignore_eos": True, "loop_detection": False}
        ids += loop.add([pipe.request(given, **limits, **more, **wanted)])
        for _ in range(steps_apart):
            step()
    while loop.has_work:
        step()
    outputs = [found[i] for i in ids]
    return [
        [o.token_ids, o.logprobs] if o.generation_logits is None else o.generation_logits for o in outputs
    ]  # fmt: skip


@pytest.mark.parametrize("model", MODELS)
def test_full_passes_give_the_same_tokens(model, tmp_path, monkeypatch):
    engine = engine_dir(MODELS[model](), tmp_path, max_batch_size=11)
    usual = Pipeline(engine, RuntimeConfig(device="cpu"))
    inputs = inputs_of(usual)
    want = [tokens(each) for each in logits_of(usual, inputs, 0)]
    on_gpu = RuntimeConfig.on
    monkeypatch.setattr(RuntimeConfig, "on", lambda config, _: on_gpu(config, "cuda"))
    full = Pipeline(engine, RuntimeConfig(device="cpu", batch_invariant=True, max_prefill_tokens=50))
    rows, runner = set(), full.llm.executor.runner
    for name in ("decode", "append_first"):
        run = getattr(runner, name)
        monkeypatch.setattr(runner, name, lambda all_, *more, run=run: rows.add(len(all_.all)) or run(all_, *more))
    for steps_apart in (0, 2):
        assert [tokens(each) for each in logits_of(full, inputs, steps_apart)] == want
    assert rows == {11} and full.llm.scheduler.blocks.balanced


def tokens(result) -> list[int]:
    return result[0] if isinstance(result, list) else result.argmax(-1).tolist()
