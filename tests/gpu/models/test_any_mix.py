"""Every family on a GPU, within graphs: in whatever company an input comes, it has the tokens that the CPU gives it
alone, in FP32."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from tests.kits.models.engines import engine_dir
from tests.kits.models.families import MODELS, image_size
from vlm.api.pipeline import Pipeline
from vlm.config import RuntimeConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible"),
]
NUM_INPUTS, MOST_NEW = 11, 12
CONFIGS = (
    {"burst": 4},
    {"burst": 1, "max_batch_size": 5, "block_size": 8, "max_prefill_tokens": 24},
    {"burst": 16, "max_encoder_batch_size": 4, "encoder_cache_size": 3},
)
SETTINGS = ({}, {}, {}, {"temperature": 1.0, "seed": 3}, {"num_beams": 2}, {"repetition_penalty": 1.5})


@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_those_of_each_alone(name, tmp_path):
    engine, draw = engine_dir(MODELS[name](), tmp_path, max_batch_size=9), random.Random(5)
    on_cpu = Pipeline(engine, RuntimeConfig(device="cpu"))
    inputs = _inputs(on_cpu)
    settings = [{"max_new_tokens": draw.randint(1, MOST_NEW), **draw.choice(SETTINGS)} for _ in inputs]
    want = [on_cpu.generate(each, **own).token_ids for each, own in zip(inputs, settings, strict=True)]
    for config in CONFIGS:
        pipe = Pipeline(engine, RuntimeConfig(device="cuda", **config))
        for count in (1, 4, 5, NUM_INPUTS, NUM_INPUTS, 3):
            chosen = draw.sample(range(NUM_INPUTS), count)
            assert _tokens(pipe, inputs, settings, chosen) == [want[i] for i in chosen], (config, count)


def _inputs(pipe: Pipeline) -> list[dict[str, Any]]:
    """Draws inputs of different lengths, some of one image or one beginning, with an image where the model reads
    images."""
    generator, id_field, inputs = torch.Generator().manual_seed(2), pipe.capabilities.id_field, []
    vision, takes_prompt = pipe.processor.vision, pipe.capabilities.takes_prompt
    start = torch.randint(3, 58, (9,), generator=generator).tolist()
    pixels: list[torch.Tensor] = []
    for number in range(NUM_INPUTS):
        length = int(torch.randint(2, 14, (1,), generator=generator))
        tokens = torch.randint(3, 58, (length,), generator=generator).tolist()
        tokens = start + tokens if number % 3 == 0 else tokens
        own: dict[str, Any] = {id_field: tokens} if takes_prompt or vision is None else {}
        if vision is not None:
            size = image_size(vision)
            again = pixels and number % 4 == 3
            pixels.append(pixels[0] if again else torch.randn(vision.num_channels, *size, generator=generator))
            own["pixel_values"] = pixels[-1]
            if takes_prompt:
                vocab_size = pipe.config.vocab_size
                own[id_field] = [*range(vocab_size, vocab_size + vision.rows_of(*size)), *tokens]
        inputs.append(own)
    return inputs


def _tokens(pipe: Pipeline, inputs: list[dict], settings: list[dict], chosen: list[int]) -> list[list[int]]:
    """Returns the tokens of inputs that are under way together, each with its own settings."""
    requests = [pipe.request(inputs[i], **settings[i]) for i in chosen]
    return [completion.token_ids for completion in pipe.complete(requests)]
