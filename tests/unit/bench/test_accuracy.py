"""app/reference/accuracy: what is compared, what it finds, what cannot be compared."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.kits.models import tiny
from tests.kits.models.engines import pipeline
from vlm.errors import InputError
from vlm_app.reference import accuracy
from vlm_app.reference.huggingface import folder_of

MODELS = {
    "llama": lambda: tiny.llama(seed=3),
    "opt": lambda: tiny.opt(seed=2, do_layer_norm_before=False, word_embed_proj_dim=20),
    "gpt2": lambda: tiny.gpt2(seed=1),
    "starcoder": lambda: tiny.gpt2(multi_query=True),
    "t5": lambda: tiny.t5(),
    "bart": lambda: tiny.bart(),
    "bart: forced end, limits of its own": lambda: tiny.bart(forced_eos_token_id=2),
    "nougat": lambda: tiny.nougat(),
    "llava": lambda: tiny.llava(seed=3),
    "blip2-opt": lambda: tiny.blip2("opt", seed=1),
    "blip2-t5": lambda: tiny.blip2("t5", seed=7, spread=0.4),
}


def inputs_of(model, pipe):
    """Three inputs of each kind that the model takes, as ids and pixels."""
    vocab, encoder = 60, pipe.llm.encoders.encoder
    texts = tiny.prompts(model, (5, 12, 3)) if hasattr(model.config, "vocab_size") else [[7, 8, 9], [20, 30], [5] * 9]
    key = "encoder_input_ids" if encoder else "decoder_prompt_token_ids"
    if pipe.family.name == "nougat":
        return [{"images": None, "pixel_values": image} for image in tiny.images(model, 3)]
    found = [{key: ids} for ids in texts]
    width = (encoder.config if encoder else pipe.config).embedding_size
    table = torch.randn(4, width, generator=torch.Generator().manual_seed(1))
    found.append({key: [*range(vocab, vocab + 4), *texts[0]], "prompt_table": table})
    if pipe.llm.encoders.visual is not None:
        visual = pipe.llm.encoders.visual.config
        pixels = torch.randn(2, 3, *visual.image_size, generator=torch.Generator().manual_seed(2))
        rows = range(vocab, vocab + 2 * visual.num_features)
        found.append({key: [*rows, *texts[1]], "pixel_values": pixels})
    return found


@pytest.mark.parametrize("sampling", [{}, {"min_new_tokens": 6}, {"num_beams": 3, "length_penalty": 2.0}], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_float32_agrees(name, sampling, tmp_path):
    model = MODELS[name]()
    pipe = pipeline(model, tmp_path)
    inputs, sampling = inputs_of(model, pipe), {"max_new_tokens": 14, **sampling}
    outputs = pipe.generate(inputs, **accuracy.comparable(sampling))
    found = accuracy.compare(tmp_path / "hf", pipe, inputs, outputs, sampling)
    assert found.agreement == 100.0 and found.error < 1e-3 and found.requests == len(inputs)
    assert found.tokens == sum(len(out.token_ids) for out in outputs) > 20
    assert "token agreement with Hugging Face 100.00%, maximum log-probability error" in str(found)


def test_what_differs_is_found(tmp_path):
    model = tiny.llama(seed=3)
    pipe = pipeline(model, tmp_path)
    inputs = [{"decoder_prompt_token_ids": ids} for ids in tiny.prompts(model, (5, 9))]
    options = {"max_new_tokens": 10, "ignore_eos": False}
    outputs = pipe.generate(inputs, **accuracy.comparable(options))
    compare = lambda changed: accuracy.compare(tmp_path / "hf", pipe, inputs, changed, options)  # noqa: E731
    total = sum(len(out.token_ids) for out in outputs)
    first = outputs[0]
    other = dataclasses.replace(first, token_ids=[*first.token_ids[:-1], 7 if first.token_ids[-1] != 7 else 8])
    assert compare([other, outputs[1]]).agreement == pytest.approx(100 * (total - 1) / total)
    own = dataclasses.replace(first, logprobs=[first.logprobs[0] + 0.25, *first.logprobs[1:]])
    assert compare([own, outputs[1]]).error == pytest.approx(0.25, abs=1e-3)
    top = [dict(place) for place in first.top_logprobs]
    top[2][list(top[2])[19]] -= 0.5
    assert compare([dataclasses.replace(first, top_logprobs=top), outputs[1]]).error == pytest.approx(0.5, abs=1e-3)
    short = dataclasses.replace(first, token_ids=first.token_ids[:3], logprobs=first.logprobs[:3],
                                top_logprobs=first.top_logprobs[:3])  # fmt: skip
    assert compare([short, outputs[1]]).agreement < 100


def test_limits_of_the_engine_hold_for_both(tmp_path):
    """No number of new tokens: as many as there is room for."""
    model = tiny.gpt2(seed=1)
    model.get_output_embeddings().weight.data[2] = 0
    pipe = pipeline(model, tmp_path, max_seq_len=30)
    inputs = [{"decoder_prompt_token_ids": ids} for ids in tiny.prompts(model, (5, 9))]
    outputs = pipe.generate(inputs, **accuracy.comparable({}))
    found = accuracy.compare(tmp_path / "hf", pipe, inputs, outputs, {})
    assert found.agreement == 100.0 and found.tokens == 25 + 21


@pytest.mark.parametrize(("options", "says"), [
    ({"temperature": 1.0}, "leave temperature out"),
    ({"num_beams": 2, "num_return_sequences": 2}, "leave num_return_sequences out"),
    ({"repetition_penalty": 1.2, "no_repeat_ngram_size": 3}, "leave repetition_penalty, no_repeat_ngram_size out"),
    ({"presence_penalty": 1.0, "stop": ("a",)}, "leave presence_penalty, stop out"),
])  # fmt: skip
def test_what_cannot_be_compared(options, says):
    with pytest.raises(InputError, match=says):
        accuracy.comparable(options)
    assert accuracy.comparable({"max_new_tokens": 3, "num_beams": 1})["top_logprobs"] == 20


def test_an_images_rows_and_a_table_together(tmp_path):
    model = tiny.llava(seed=3)
    pipe = pipeline(model, tmp_path)
    visual = pipe.llm.encoders.visual.config
    given = {"decoder_prompt_token_ids": [*range(60, 61 + visual.num_features), 7], "prompt_table": torch.zeros(1, 32),
             "pixel_values": torch.zeros(1, 3, *visual.image_size)}  # fmt: skip
    outputs = pipe.generate([given], **accuracy.comparable({"max_new_tokens": 3}))
    with pytest.raises(InputError, match="images or a prompt table, not both"):
        accuracy.compare(tmp_path / "hf", pipe, [given], outputs, {"max_new_tokens": 3})


def test_folders_of_another_network_than_their_class(tmp_path):
    """Transformers draws what it does not find at random: agreement with that says nothing."""
    pipe = pipeline(tiny.gpt2(), tmp_path)
    file = tmp_path / "hf" / "model.safetensors"
    save_file({n: x for n, x in load_file(file).items() if "attn.c_attn" not in n}, file, {"format": "pt"})
    outputs = pipe.generate([{"input_ids": [5, 6]}], **accuracy.comparable({"max_new_tokens": 3}))
    with pytest.raises(InputError, match=r"hf has no transformer.h.0.attn.c_attn.bias, .* nothing to compare to"):
        accuracy.compare(tmp_path / "hf", pipe, [{"input_ids": [5, 6]}], outputs, {"max_new_tokens": 3})


def test_folders(tmp_path):
    pipe = pipeline(tiny.gpt2(), tmp_path)
    assert folder_of(tmp_path / "hf") == tmp_path / "hf"
    assert folder_of("mini-t5").name == "mini-t5"
    for path, what in ((pipe.engine.path, "an engine"), (tmp_path / "checkpoint", "a checkpoint")):
        with pytest.raises(InputError, match=f"is {what}, .* by --against FOLDER, or"):
            folder_of(path)
    own_form = {"model_type": "llava_llama", "mm_x": 1}
    for kind, config in (("nemo_gpt", {"model_type": "nemo_gpt"}), ("llava", own_form), ("vila", own_form)):
        folder = tmp_path / kind
        (folder / "llm" if kind == "vila" else folder).mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(InputError, match=f"has no class for {kind} models"):
            folder_of(folder)
