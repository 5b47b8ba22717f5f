"""Adapters on a GPU: the CPU's tokens in FP32, in graphs and in eager steps, whoever is beside whom."""

from __future__ import annotations

import pytest
import torch

from tests.kits.models import tiny
from tests.kits.models.engines import engine_dir
from tests.kits.models.lora_kit import random_adapter, random_ia3
from vlm.api.pipeline import Pipeline
from vlm.config import RuntimeConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible"),
]
MODELS = {
    "llama": (lambda: tiny.llama(seed=3), [f"model.layers.{i}.self_attn.{n}_proj" for i in range(2) for n in "qvo"]),
    "t5": (lambda: tiny.t5(seed=1, tied=False),
           [f"{side}.block.{i}.layer.0.SelfAttention.{n}" for side in ("encoder", "decoder") for i in range(2)
            for n in "qo"]),
}  # fmt: skip


@pytest.mark.parametrize("max_loras", [None, 2], ids=["all on the device", "in turns"])
@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
@pytest.mark.parametrize("name", MODELS)
def test_rows_have_the_cpus_tokens_of_their_adapters(name, graphs, max_loras, tmp_path):
    make, modules = MODELS[name]
    model = make()
    engine = engine_dir(model, tmp_path, max_batch_size=8)
    folders = [random_adapter(tmp_path / n, *modules, seed=seed) for seed, n in enumerate("ab")]
    folders.append(random_ia3(tmp_path / "c", *modules, seed=2))
    lora = tuple(f"{folder.name}={folder}" for folder in folders)
    texts = (tiny.texts if name == "t5" else tiny.prompts)(model, (17, 9, 33))
    inputs = [{"input_ids": text, "lora": adapter} for text in texts for adapter in (-1, "a", "b", "c")]
    on_cpu = Pipeline(engine, RuntimeConfig(device="cpu", lora=lora))
    options = {"lora": lora, "max_loras": max_loras, "cuda_graphs": graphs, "burst": 4}
    on_gpu = Pipeline(engine, RuntimeConfig(device="cuda", **options))
    for options in ({}, {"num_beams": 2}):
        for batch in (inputs, inputs[::4], inputs):  # of the base alone between mixed ones
            found, want = (
                [out.token_ids for out in pipe.generate(batch, max_new_tokens=12, **options)]
                for pipe in (on_gpu, on_cpu)
            )
            assert found == want
