"""Plans on a GPU: Hugging Face's tokens in FP32, in ragged batches. Skipped where no TensorRT runs on this GPU."""

from __future__ import annotations

import pytest
import torch

from tests.kits.models import tiny
from tests.kits.models.engines import engine_dir
from vlm.api.pipeline import Pipeline
from vlm.backends.tensorrt.builder import PlanBuilder
from vlm.config import BuildConfig, RuntimeConfig
from vlm.errors import EngineError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible"),
]
LENGTHS = (14, 3, 60, 1, 33, 9)


@pytest.fixture(autouse=True)
def builder():
    try:
        return PlanBuilder.from_config(BuildConfig(backend="tensorrt"))
    except EngineError as reason:
        pytest.skip(str(reason))


def plans(model, folder, **limits) -> Pipeline:
    engine = engine_dir(model, folder, backend="tensorrt", max_batch_size=4, **limits)
    return Pipeline(engine, RuntimeConfig(device="cuda"))


def test_a_decoder_alone(tmp_path):
    model = tiny.llama()
    prompts = tiny.prompts(model, LENGTHS)
    found = plans(model, tmp_path).generate([{"decoder_prompt_token_ids": p} for p in prompts], max_new_tokens=20)
    assert [out.token_ids for out in found] == tiny.hf_continuations(model, prompts, 20)


@pytest.mark.parametrize("make", [tiny.t5, tiny.bart])
def test_texts(make, tmp_path):
    model = make(seed=5)
    texts = tiny.texts(model, LENGTHS)
    found = plans(model, tmp_path).generate([{"encoder_input_ids": text} for text in texts], max_new_tokens=20)
    assert [out.token_ids for out in found] == tiny.hf_texts(model, texts, 20)


def test_images(tmp_path):
    model = tiny.nougat(seed=2)
    images = tiny.images(model, 5)
    found = plans(model, tmp_path).generate([{"pixel_values": image} for image in images], max_new_tokens=40)
    assert [out.token_ids for out in found] == tiny.hf_tokens(model, images, 40)
