"""What engines that ranks split are asked for, and compared with one process."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from tests.kits.models.engines import engine_dir
from tests.kits.models.families import inputs_of
from vlm.api.pipeline import Pipeline
from vlm.artifacts.native.engine_dir import EngineDir
from vlm.config import RuntimeConfig
from vlm.errors import InputError

CPU = RuntimeConfig(device="cpu")
SHORT = {"max_batch_size": 8, "max_seq_len": 48, "max_encoder_input_len": 16}
FEW_BLOCKS = RuntimeConfig(device="cpu", block_size=4, max_kv_blocks=48, burst=3)  # for a fourth of a full batch
WAYS = {
    "greedy": {},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "sampling": {"temperature": 0.8, "top_k": 20, "seed": 3, "repetition_penalty": 1.3},
}


def outputs(pipe: Pipeline, **options) -> list[tuple]:
    """Returns of each input its tokens, those of other hypotheses, and logits, which a search gives none of."""
    kind = {"max_new_tokens": 8, "ignore_eos": True, "return_generation_logits": "num_beams" not in options}
    found = pipe.generate(inputs_of(pipe), **kind, **options)
    return [(out.token_ids, [each.token_ids for each in out.alternatives], out.generation_logits) for out in found]


def all_ways(pipe: Pipeline) -> list[tuple]:
    """Returns the outputs of every way of choosing tokens, one after the other."""
    return [out for way in WAYS.values() for out in outputs(pipe, **way)]


def of_one_process(
    models: Mapping[str, Callable[[], Any]], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[EngineDir, list[tuple]]]:
    """Returns what gives a family's engine of one process and its outputs, made once."""

    @functools.cache
    def made(name: str) -> tuple[EngineDir, list[tuple]]:
        engine = engine_dir(models[name](), tmp_path_factory.mktemp("whole"), max_batch_size=8)
        return engine, all_ways(Pipeline(engine, CPU))

    return made


def check_equal(found: list[tuple], expected: list[tuple]) -> None:
    for (*tokens, logits), (*their_tokens, their_logits) in zip(found, expected, strict=True):
        assert tokens == their_tokens
        if logits is not None:
            torch.testing.assert_close(logits, their_logits, atol=1e-4, rtol=1e-4)


def texts(count: int) -> list[dict]:
    generator = torch.Generator().manual_seed(1)
    return [
        {"encoder_input_ids": torch.randint(3, 58, (3 + n % 7,), generator=generator).tolist()} for n in range(count)
    ]


def come_and_go(pipe: Pipeline) -> list[list[int]]:
    """Returns the tokens of requests that wait for each other where the cache is small, beams among them, one
    aborted."""
    width = lambda n: {"num_beams": 2} if n % 3 == 0 else {}  # noqa: E731
    requests = [
        pipe.request(text, max_new_tokens=12 + n, ignore_eos=True, **width(n)) for n, text in enumerate(texts(10))
    ]
    ids, completions = pipe.loop.add(requests), {}
    for _ in range(2):
        pipe.loop.step()
    pipe.loop.abort(ids[4:5])
    while pipe.loop.has_work:
        completions |= {u.request_id: u.completion for u in pipe.loop.step() if u.completion is not None}
    return [list(completions[each].token_ids) for each in ids if each != ids[4]]


def encoded(pipe: Pipeline) -> list[torch.Tensor]:
    """Returns all hidden states of a text; there are no attention weights where ranks have but those of their heads."""
    if pipe.engine.build.num_ranks > 1:
        with pytest.raises(InputError, match="attention weights are given by a model that runs on one GPU"):
            pipe.encode([{"encoder_input_ids": [3, 4, 5]}], attentions=True)
    [found] = pipe.encode([{"encoder_input_ids": [3, 4, 5, 6]}], hidden_states=True)
    return [found.last_hidden_state, *found.hidden_states]


def image_features(pipe: Pipeline) -> list[torch.Tensor]:
    """Returns the features of five images at once, and of one."""
    vision = pipe.processor.vision
    generator = torch.Generator().manual_seed(0)
    pixels = [torch.randn(vision.num_channels, *vision.image_size, generator=generator) for _ in range(5)]
    many = pipe.encode([{"pixel_values": each} for each in pixels])
    one = pipe.encode({"pixel_values": pixels[3]})
    return [each.last_hidden_state for each in (*many, one)]
