"""The families against Hugging Face's own class, FP32 on the CPU: `pytest` in the package's folder."""

from __future__ import annotations

import json

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM
from vlm_gpt_neox.families import INTRO

import vlm

WORDS = ["<|endoftext|>", "[UNK]", *"Below is an instruction that describes a task . Write response appropriately "
         "completes the request ### Instruction : Response End say yes no ship house".split()]  # fmt: skip
SHAPES = {
    "pythia": {},
    "sequential, without biases": {"use_parallel_residual": False, "attention_bias": False, "hidden_act": "relu"},
    "turned whole, stretched": {"rope_parameters": {
        "rope_type": "linear", "factor": 2.0, "rope_theta": 500.0, "partial_rotary_factor": 1.0}},
}  # fmt: skip


def reference(**options) -> GPTNeoXForCausalLM:
    """Returns a tiny model whose weights are so far apart that tokens differ."""
    torch.manual_seed(0)
    sizes = {"vocab_size": len(WORDS), "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "max_position_embeddings": 128, "bos_token_id": 0, "eos_token_id": 0}
    model = GPTNeoXForCausalLM(GPTNeoXConfig(**sizes | options)).eval()
    for parameter in model.parameters():
        parameter.data += torch.randn(parameter.shape) * 0.3
    return model


def saved(model, folder, **config):
    """Writes the folder that people have: configuration, weights, tokenizer."""
    model.save_pretrained(folder)
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | config))
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@torch.no_grad()
def theirs(model, ids: list[int], new: int, **options) -> list[int]:
    out = model.generate(torch.tensor([ids]), max_new_tokens=new, do_sample=False, pad_token_id=0, **options)[0]
    found = out[len(ids) :].tolist()
    return found[: found.index(0) + 1] if 0 in found else found


@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_tokens_and_log_probabilities(shape, tmp_path):
    model = reference(**SHAPES[shape])
    pipe = vlm.load(saved(model, tmp_path / "model"), device="cpu", cache_dir=tmp_path / "cache")
    assert pipe.family.name == "pythia"
    prompts = [[5, 9, 11], [3] * 20, [7], list(range(2, 25))]
    inputs = [{"decoder_prompt_token_ids": ids} for ids in prompts]
    found = pipe.generate(inputs, max_new_tokens=12)
    assert [out.token_ids for out in found] == [theirs(model, ids, 12) for ids in prompts]
    assert len({tuple(out.token_ids) for out in found}) > 2, "the prompts make no difference"
    for ids, out in zip(prompts, found, strict=True):
        with torch.no_grad():
            exact = model(torch.tensor([ids + out.token_ids])).logits[0, len(ids) - 1 : -1].log_softmax(-1)
        exact = exact.gather(1, torch.tensor(out.token_ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(out.logprobs), exact, atol=1e-4, rtol=0)
    beams = pipe.generate(inputs, max_new_tokens=8, num_beams=3)
    assert [out.token_ids for out in beams] == [theirs(model, ids, 8, num_beams=3) for ids in prompts]


def test_dolly_is_asked_as_it_was_trained(tmp_path):
    """And what it writes ends at its heading."""
    model = reference()
    pipeline = {"text-generation": {"impl": "instruct_pipeline.InstructionTextGenerationPipeline"}}
    folder = saved(model, tmp_path / "model", custom_pipelines=pipeline)
    pipe = vlm.load(folder, device="cpu", cache_dir=tmp_path / "cache")
    assert pipe.family.name == "dolly"
    asked = f"{INTRO}\n\n### Instruction:\nsay yes\n\n### Response:\n"
    ids = [WORDS.index(word) if word in WORDS else 1 for word in asked.split()]
    conversation = {"messages": [{"role": "user", "content": "say yes"}]}
    for given in ({"prompt": "say yes"}, conversation, {"raw_prompt": asked}):
        assert pipe.generate(given, max_new_tokens=10).token_ids == theirs(model, ids, 10)
    written = [WORDS.index(word) for word in ("yes", "###", "End", "no")]
    assert pipe.tokenizer.decode(written) == "yes ### End no" and pipe.processor.text_of(written) == "yes"
