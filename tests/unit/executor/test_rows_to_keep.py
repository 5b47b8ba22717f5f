"""Of a prompt the last block computes its last row alone behind the attention: nobody reads the others."""

from __future__ import annotations

import pytest
from torch import nn

from tests.kits.models import tiny
from tests.kits.models.engines import pipeline
from vlm.config import RuntimeConfig

PROMPTS = (5, 9, 3)
MODELS = {
    "llama": tiny.llama,
    "gpt2": tiny.gpt2,
    "opt": tiny.opt,
    "opt with norms behind": lambda: tiny.opt(do_layer_norm_before=False, word_embed_proj_dim=16),
}


def _rows_of(network: nn.Module, names: list[str]) -> dict[str, list[int]]:
    """Returns where the rows that these modules are given will be counted, call by call."""
    counts: dict[str, list[int]] = {name: [] for name in names}
    for name in names:
        network.get_submodule(name).register_forward_hook(lambda _, x, __, name=name: counts[name].append(len(x[0])))
    return counts


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("most", "passes", "ends"),
    [(8192, [sum(PROMPTS)], [len(PROMPTS)]), (6, [6, 6, 5], [1, 1, 2])],
    ids=["in one pass", "in parts, one of which ends none"],
)
def test_last_block_computes_last_rows_alone(model, most, passes, ends, tmp_path):
    """Its feed-forward layer has a row of each prompt that ends, and the tokens are those of Hugging Face."""
    hf = MODELS[model]()
    runtime = RuntimeConfig(device="cpu", max_prefill_tokens=most)
    pipe = pipeline(hf, tmp_path, runtime, max_batch_size=4)
    decoder, last = pipe.llm.executor.runner.decoder, hf.config.num_hidden_layers - 1
    counts = _rows_of(decoder, ["blocks.0.ffn", f"blocks.{last}.attention.qkv", f"blocks.{last}.ffn"])
    prompts = tiny.prompts(hf, PROMPTS)
    outputs = pipe.generate([{"decoder_prompt_token_ids": ids} for ids in prompts], max_new_tokens=1)
    before, attention, behind = counts.values()
    assert before == attention == passes and behind == ends
    assert [list(output.token_ids) for output in outputs] == tiny.hf_continuations(hf, prompts, 1)
