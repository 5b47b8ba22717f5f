"""A request's logits on a GPU are the same to the bit, whatever it is batched with: in 16 bits, where they differ as
soon as a kernel sums in another order."""

from __future__ import annotations

import pytest
import torch

from tests.kits.models import tiny
from tests.kits.models.engines import engine_dir
from tests.parity.generation.test_batch_invariance import inputs_of, logits_of
from vlm.api.pipeline import Pipeline
from vlm.config import RuntimeConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible"),
]
BATCH = 24
WIDE = {"vocab_size": 1900, "hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 3}
MODELS = {
    "nougat": lambda: tiny.nougat(
        seed=8, embed_dim=64, depths=(2, 2, 2), heads=(2, 4, 8), layers=4, decoder_heads=4, ffn=1024, vocab=1900,
        image_size=(128, 96), window=4, spread=0.04,
    ),
    "t5": lambda: tiny.t5(seed=1, spread=0.05, vocab_size=1900, d_model=256, d_kv=64, d_ff=640),
    "llava": lambda: tiny.llava(seed=3, spread=0.04, text=WIDE, tower={"image_size": 32, "hidden_size": 192}),
    "llama": lambda: tiny.llama(seed=3, spread=0.04, num_key_value_heads=2, **WIDE),
}  # fmt: skip


def same(one: list, other: list) -> bool:
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("model", MODELS)
def test_logits_are_the_same_alone_and_among_others(model, tmp_path):
    engine = engine_dir(MODELS[model](), tmp_path, dtype="bfloat16", max_batch_size=BATCH)
    options = {"device": "cuda", "max_prefill_tokens": 64, "burst": 4}
    pipe = Pipeline(engine, RuntimeConfig(**options, batch_invariant=True))
    inputs = inputs_of(pipe)
    alone = [logits_of(pipe, [*inputs[:i], each], 40)[-1] for i, each in enumerate(inputs)]
    for steps_apart in (0, 1, 3):
        assert same(logits_of(pipe, inputs, steps_apart), alone), steps_apart
    other = Pipeline(engine, RuntimeConfig(**options | {"burst": 16}, batch_invariant=True))
    assert same(logits_of(other, inputs, 0), alone), "another engine"
    usual = Pipeline(engine, RuntimeConfig(**options))
    print(model, "batched as usual:", "the same" if same(logits_of(usual, inputs, 0), alone) else "differs")
    assert pipe.llm.scheduler.blocks.balanced
