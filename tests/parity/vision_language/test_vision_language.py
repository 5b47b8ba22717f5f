"""LLaVA and BLIP-2 against Hugging Face, FP32 on the CPU: prompts with no, one and three images in one batch."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from transformers import Blip2ForConditionalGeneration

from tests.kits.models import tiny
from tests.kits.models.engines import engine_dir
from tests.parity.cases import parity
from vlm.api.pipeline import Pipeline
from vlm.build.builder import build_engine
from vlm.config import BuildConfig, RuntimeConfig
from vlm.convert.folder import convert_folder
from vlm.errors import InputError, LimitError

PLACEHOLDER = 59
MODELS = {
    "llava": {
        "llava": lambda: tiny.llava(seed=3),
        "llava: SigLIP, all rows, last layer": lambda: tiny.llava(
            seed=7, tower={"siglip": True}, vision_feature_select_strategy="full", vision_feature_layer=-1),
        "llava: SigLIP, half a patch left over": lambda: tiny.llava(seed=3, tower={"siglip": True, "image_size": 18}),
        "llava: two layers joined, relu": lambda: tiny.llava(
            seed=5, vision_feature_layer=[-3, 2], projector_hidden_act="relu", multimodal_projector_bias=False),
    },
    "blip2-opt": {
        "blip2-opt": lambda: tiny.blip2("opt", seed=1),
        "blip2-opt: every layer looks, other image sizes": lambda: tiny.blip2(
            "opt", seed=2, queries={"cross_attention_frequency": 1}, tower={"image_size": 28, "qkv_bias": False}),
    },
    "blip2-t5": {
        "blip2-t5": lambda: tiny.blip2("t5", seed=7, spread=0.4),
    },
    "florence2": {
        "florence2": lambda: tiny.florence2(),
        "florence2: norms elsewhere, no biases, words scaled": lambda: tiny.florence2(
            seed=5, spread=0.5, text={"scale_embedding": True},
            tower={"qkv_bias": False, "window_size": 4, "patch_prenorm": [True, False], "mlp_ratio": 2.0}),
    },
}  # fmt: skip


def cpu(**options) -> RuntimeConfig:
    return RuntimeConfig(device="cpu", **options)


class Case:
    """A model, prompts as Hugging Face takes them (placeholders), their images, and as we do (rows of a table)."""

    def __init__(self, model, folder):
        # a small pool, from which sequences are preempted, must hold one of full length
        encoder = model.config.is_encoder_decoder or hasattr(getattr(model, "language_model", None), "encoder")
        limits = {"max_seq_len": 40, "max_encoder_input_len": 90} if encoder else {"max_seq_len": 128}
        self.model, self.engine = model, engine_dir(model, folder, max_batch_size=8, **limits)
        pipe = Pipeline(self.engine, cpu())
        visual = pipe.llm.encoders.visual.config
        self.features, self.size = visual.num_features, visual.image_size
        self.key = "encoder_input_ids" if pipe.llm.encoders.encoder else "decoder_prompt_token_ids"
        generator = torch.Generator().manual_seed(1)
        self.images = torch.randn(4, 3, *self.size, generator=generator)
        a, b, c = tiny.texts(_Ids(), (7, 4, 12))
        mark = [PLACEHOLDER]
        self.prompts = [
            (mark + a, [0]),
            ([*a, *b], []),
            ([*a[:3], *mark, *b, *mark, *mark, *c], [1, 2, 0]),
            (mark + c, [3]),
            (mark + b, [0]),
        ]

    def ours(self, prompt, images):
        rows, ids = iter(range(60, 60 + len(images) * self.features)), []
        for token in prompt:
            ids += [next(rows) for _ in range(self.features)] if token == PLACEHOLDER else [token]
        return {self.key: ids, "pixel_values": self.images[images] if images else None}

    @property
    def inputs(self):
        return [self.ours(*given) for given in self.prompts]

    @torch.no_grad()
    def theirs(self, prompt, images, new, **options):
        ids = torch.tensor([[x for t in prompt for x in [t] * (self.features if t == PLACEHOLDER else 1)]])
        options = {"do_sample": False, "num_beams": 1, "eos_token_id": 2, "pad_token_id": 0} | options
        model = self.model if images else self.model.language_model if hasattr(self.model, "qformer") else self.model
        options |= {"pixel_values": self.images[images]} if images else {}
        out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, **options)
        beams = out.tolist()
        start = 1 if self.key == "encoder_input_ids" else ids.shape[1]
        found = [row[start:] for row in beams]
        return [row[: row.index(2) + 1] if 2 in row else row for row in found]


class _Ids:
    """What `tiny.texts` asks of a model: ids without the end and the placeholder."""

    class config:
        vocab_size, eos_token_id = 58, 5


@pytest.fixture(scope="module", params=parity(MODELS))
def case(request, tmp_path_factory):
    case = Case(request.param.make(), tmp_path_factory.mktemp("vlm"))
    assert case.engine.family == request.param.family
    return case


def test_features(case):
    pipe = Pipeline(case.engine, cpu())
    with torch.no_grad():
        want = case.model.get_image_features(case.images).pooler_output
    want = want if torch.is_tensor(want) else torch.stack(list(want))
    torch.testing.assert_close(pipe.llm.encoders.networks.encode(case.images), want, atol=1e-5, rtol=1e-5)


def test_mixed_batches(case):
    want = [case.theirs(*given, 14)[0] for given in case.prompts]
    assert len({tuple(tokens) for tokens in want}) == len(want), "the images make no difference"
    for options in ({}, {"burst": 1, "block_size": 4, "max_batch_size": 2}, {"max_prefill_tokens": 6},
                    {"prefix_sharing": False, "encoder_cache_size": 0, "max_encoder_batch_size": 2}):  # fmt: skip
        pipe = Pipeline(case.engine, cpu(**options))
        for _ in range(2):  # the second time what can be shared is
            found = pipe.generate(case.inputs, max_new_tokens=14)
            assert [out.token_ids for out in found] == want
        assert pipe.llm.scheduler.blocks.balanced
        cache = pipe.llm.encoders.encoder_cache
        # six images in each batch, of which four are different
        assert cache.hits + cache.misses == 12
        assert cache.misses == 4 if options.get("encoder_cache_size") != 0 else cache.misses >= 8


def test_beam_search(case):
    options = {"num_beams": 4, "num_return_sequences": 2, "length_penalty": 0.5}
    pipe = Pipeline(case.engine, cpu(block_size=4))
    found = pipe.generate(case.inputs, max_new_tokens=10, **options)
    for given, out in zip(case.prompts, found, strict=True):
        assert [hypothesis.token_ids for hypothesis in (out, *out.alternatives)] == case.theirs(*given, 10, **options)
    assert pipe.llm.scheduler.blocks.balanced


def test_preemption(case):
    want = [case.theirs(*given, 30, min_new_tokens=30)[0] for given in case.prompts]
    blocks = 64 if case.key == "encoder_input_ids" else 34
    pipe = Pipeline(case.engine, cpu(block_size=4, burst=4, max_kv_blocks=blocks, cross_kv_cache_fraction=0.7))
    preempted, schedule = [], pipe.llm.scheduler.schedule
    pipe.llm.scheduler.schedule = lambda **k: (plan := schedule(**k), preempted.extend(plan.preempted))[0]
    found = pipe.generate(case.inputs, max_new_tokens=30, min_new_tokens=30)
    assert preempted
    assert [out.token_ids for out in found] == want
    assert pipe.llm.scheduler.blocks.balanced


def test_what_does_not_fit_is_said(case):
    pipe = Pipeline(case.engine, cpu())
    with pytest.raises(LimitError, match=f"its prompt table of {case.features} rows"):
        pipe.generate(**{case.key: [60 + case.features], "pixel_values": case.images[0]})
    with pytest.raises(InputError, match="pixel_values has shape"):
        pipe.generate(**{case.key: [60], "pixel_values": case.images[:, :, :5]})
    if case.key == "decoder_prompt_token_ids":
        few = [*range(60, 60 + case.features)] * (128 // case.features + 1)
        says = r"rows of images or tables\) and 1 new ones are \d+ more than the 128 .*, or fewer or smaller images"
        with pytest.raises(LimitError, match=says):
            pipe.generate(decoder_prompt_token_ids=few, pixel_values=case.images[0])


PENALTIES = ({"repetition_penalty": 1.8}, {"no_repeat_ngram_size": 1}, {"repetition_penalty": 1.3, "num_beams": 2})


@pytest.mark.parametrize("made", [lambda: tiny.llava(seed=3), lambda: tiny.blip2("opt", seed=1)], ids=["llava", "opt"])
def test_penalties_see_an_images_rows_as_its_token(made, tmp_path):
    model = made()
    # the image's token becomes the likeliest, where nothing speaks against it
    model.get_output_embeddings().weight.data[PLACEHOLDER] *= 4
    case = Case(model, tmp_path)
    pipe = Pipeline(case.engine, cpu())
    given = [case.prompts[0], case.prompts[2]]
    plain = [case.theirs(*each, 8)[0] for each in given]
    assert any(PLACEHOLDER in tokens for tokens in plain), "nothing is penalized"
    for options in PENALTIES:
        want = [case.theirs(*each, 8, **options)[0] for each in given]
        assert want != plain
        found = pipe.generate([case.ours(*each) for each in given], max_new_tokens=8, **options)
        assert [out.token_ids for out in found] == want, options


TIED = {
    "t5gemma2": tiny.t5gemma2,
    "florence2": tiny.florence2,
    "lighton-ocr": lambda: tiny.lighton_ocr(text={"tie_word_embeddings": True}, tie_word_embeddings=True),
    "idefics3": lambda: tiny.idefics3(tie_word_embeddings=True),
    "qwen2-vl": lambda: tiny.qwen_vl(second=False),
    "qwen2.5-vl": tiny.qwen_vl,
    "llava": lambda: tiny.llava(text={"tie_word_embeddings": True}, tie_word_embeddings=True),
}  # fmt: skip


@pytest.mark.parametrize("make", TIED.values(), ids=TIED)
def test_the_base_model_saved_alone_is_the_whole_one(make, tmp_path):
    """As who loads a model by AutoModel saves it: a head that is tied is none of the base's."""
    model: Any = make()
    model.save_pretrained(tmp_path)
    whole = convert_folder(tmp_path, tmp_path / "whole")
    model.base_model.save_pretrained(tmp_path)
    base = convert_folder(tmp_path, tmp_path / "base")
    assert base.roles == whole.roles
    for role in whole.roles:
        assert base.weight_file(role).read_bytes() == whole.weight_file(role).read_bytes()


@pytest.mark.parametrize("language", ["opt", "t5"])
def test_blip2_generates_as_its_language_model_is_configured(language, tmp_path):
    """A generation_config.json is the whole model's, whose `generate` is its language model's."""
    case = Case(tiny.blip2(language, seed=7, spread=0.4), tmp_path)
    settings = {"suppress_tokens": list(range(3, 50)), "decoder_start_token_id": 7, "eos_token_id": 9}
    (tmp_path / "hf" / "generation_config.json").write_text(json.dumps(settings))
    case.model = Blip2ForConditionalGeneration.from_pretrained(tmp_path / "hf")
    checkpoint = convert_folder(tmp_path / "hf", tmp_path / "checkpoint")
    pipe = Pipeline(build_engine(checkpoint, tmp_path / "second", BuildConfig(max_seq_len=64)), cpu())
    for given in case.prompts[:1] + case.prompts[2:]:
        assert [pipe.generate(case.ours(*given), max_new_tokens=8).token_ids] == case.theirs(*given, 8)
