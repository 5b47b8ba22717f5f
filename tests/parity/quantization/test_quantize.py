"""Every algorithm of vlm quantize for every family: what is calibrated comes closer to the dense layers than rounding
does, and the checkpoint's engine stays near the dense model."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from tests.kits.models import tiny
from tests.kits.models.families import image_size
from tests.kits.publications.fairseq_kit import Published
from tests.parity.vision_language.test_vila import Vila
from vlm.api.pipeline import Pipeline
from vlm.build.builder import build_engine
from vlm.config import BuildConfig, RuntimeConfig
from vlm.convert.folder import convert_folder
from vlm.quantize.algorithms.base import output_error
from vlm.quantize.calibration import Calibration, forced, recording
from vlm.quantize.config import QuantizeConfig
from vlm.quantize.create import create_algorithm
from vlm.quantize.model import quantize_checkpoint
from vlm.quantize.plan import plan_of
from vlm.quantize.statistics import Needs

MODELS = {
    "nougat": lambda: tiny.nougat(seed=8),
    "trocr": lambda: tiny.trocr(seed=5),
    "pix2struct": lambda: tiny.pix2struct(seed=1, spread=0.12),
    "t5": lambda: tiny.t5(seed=1, spread=0.3, feed_forward_proj="gated-gelu"),
    "t5gemma2": lambda: tiny.t5gemma2(),
    "mbart": lambda: tiny.bart(seed=3, multilingual=True),
    "opt": lambda: tiny.opt(seed=2),
    "llama": lambda: tiny.llama(seed=3, num_key_value_heads=2),
    "starcoder": lambda: tiny.gpt2(seed=1, multi_query=True),
    "llava": lambda: tiny.llava(seed=3),
    "florence2": lambda: tiny.florence2(),
    "lighton-ocr": lambda: tiny.lighton_ocr(seed=1),
    "idefics3": lambda: tiny.idefics3(seed=1, spread=0.2),
    "qwen-vl": lambda: tiny.qwen_vl(seed=1, spread=0.2),
    "blip2-opt": lambda: tiny.blip2("opt", seed=1),
    "blip2-t5": lambda: tiny.blip2("t5", seed=7, spread=0.3),
}
FOLDERS = {
    "vila": lambda folder: Vila(True, "mlp_downsample", size=20, seed=1).write(folder),
    "fairseq": lambda folder: Published(seed=5).write(folder),
}
CONFIGS = {
    "awq": QuantizeConfig("awq", group_size=4, ignore=()),
    "gptq": QuantizeConfig("gptq", group_size=4, asymmetric=True, act_order=True),
    "smoothquant": QuantizeConfig("smoothquant"),
    "static fp8": QuantizeConfig("fp8", static_activations=True, per_tensor_weights=True, ignore=("head",)),
}
BOUNDS = {"awq": 0.3, "gptq": 0.15, "smoothquant": 0.05, "static fp8": 0.3}  # of the logits' deviation, on average
PLAIN = {"awq": "int4", "gptq": "int4", "smoothquant": "w8a8"}


def inputs(pipe: Pipeline) -> list[dict]:
    """Four inputs of the model's kind, an image in each where it reads images."""
    generator, vision = torch.Generator().manual_seed(0), pipe.processor.vision
    found, end = [], min(58, pipe.capabilities.vocab_size)
    for length in (9, 4, 7, 12):
        ids = torch.randint(3, end, (length,), generator=generator).tolist()
        if vision is None:
            found.append({pipe.capabilities.id_field: ids})
            continue
        size = image_size(vision)
        pixels = torch.randn(vision.num_channels, *size, generator=generator)
        rows = range(pipe.config.vocab_size, pipe.config.vocab_size + vision.rows_of(*size))
        prompt = {pipe.capabilities.id_field: [*rows, *ids]} if pipe.capabilities.takes_prompt else {}
        found.append({"pixel_values": pixels, **prompt})
    return found


QUICK = ("nougat", "t5", "llava")
SUBJECTS = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in [*MODELS, *FOLDERS]]


@pytest.fixture(scope="module", params=SUBJECTS)
def model(request, tmp_path_factory):
    """A checkpoint, its engine that can be recorded, and the requests of its outputs."""
    folder = tmp_path_factory.mktemp("dense")
    source = FOLDERS[request.param](folder / "source") if request.param in FOLDERS else folder / "source"
    if request.param in MODELS:
        MODELS[request.param]().save_pretrained(source)
    checkpoint = convert_folder(source, folder / "checkpoint")
    engine = build_engine(checkpoint, folder / "engine", BuildConfig(max_batch_size=4))
    pipe = Pipeline(engine, recording(RuntimeConfig(device="cpu")))
    options = {"max_new_tokens": 8, "ignore_eos": True}
    outputs = pipe.generate(inputs(pipe), **options)
    requests = [
        forced(pipe.request(source, **options), out.token_ids)
        for source, out in zip(inputs(pipe), outputs, strict=True)
    ]
    return checkpoint, pipe, requests


def logits(pipe: Pipeline, requests: list) -> torch.Tensor:
    """[all prompts' tokens, vocab]"""
    return torch.cat([completion.context_logits for completion in pipe.complete(requests)])


@pytest.mark.parametrize("name", CONFIGS)
def test_a_calibrated_checkpoint_stays_near_the_dense_model(model, name, tmp_path):
    checkpoint, dense, requests = model
    quantized = quantize_checkpoint(checkpoint, tmp_path / "q", CONFIGS[name], calibration=Calibration(dense, requests))
    assert quantized.quantization == CONFIGS[name].quantization
    pipe = Pipeline(build_engine(quantized, tmp_path / "e", BuildConfig(max_batch_size=4)), RuntimeConfig(device="cpu"))
    exact, found = logits(dense, requests), logits(pipe, requests)
    assert torch.isfinite(found).all()
    assert 0 < (found - exact).abs().mean() < BOUNDS[name] * exact.std()


@pytest.mark.parametrize("name", PLAIN)
def test_what_is_calibrated_is_nearer_than_rounding(model, name):
    checkpoint, dense, requests = model
    config = CONFIGS[name]
    same = {"group_size": config.group_size, "asymmetric": config.asymmetric, "ignore": config.ignore}
    plain = QuantizeConfig(PLAIN[name], **same)
    layers = list(zip(plan_of(checkpoint, config).layers, plan_of(checkpoint, plain).layers, strict=True))
    recorded = Calibration(dense, requests).statistics([ours for ours, _ in layers], Needs(rows=512, hessian=True))
    errors, others = [], []
    for (ours, theirs), (layer, found) in zip(layers, recorded, strict=True):
        assert layer == ours
        weight = checkpoint.weights(layer.role)[f"{layer.path}.weight"].float()
        for each, options, into in ((ours, config, errors), (theirs, plain, others)):
            parameters = create_algorithm(options, each.kept.method).parameters(weight, found)
            into.append(output_error(each.kept.method, parameters, weight, found.rows))
    if name != "gptq":  # whose groups and order are others
        assert all(one <= other for one, other in zip(errors, others, strict=True))
    assert sum(errors) < sum(others)


# the layers whose scales stay with them, their numbers as *
CROSS, GELU, GROUPS, HEAD = (
    f"decoder.{name}" for name in ("blocks.*.cross_attention.kv", "blocks.*.ffn.down", "blocks.*.attention.out", "head")
)
QFORMER = {
    *(f"visual.layers.*.{name}" for name in ("attention.q", "attention.kv", "cross_attention.q", "cross_attention.kv")),
    *("visual.layers.*.up", "visual.layers.*.down", "visual.projection", "visual.tower.blocks.*.mlp.fc2"),
}
POST_NORM_DECODER = {f"decoder.blocks.*.{name}" for name in ("self_attention.qkv", "cross_attention.q", "ffn.up")}
POST_NORM = {"encoder.blocks.*.attention.qkv", "encoder.blocks.*.ffn.up", *POST_NORM_DECODER}
SEPARATE = {
    "nougat": {CROSS, GELU, "visual.stages.*.blocks.*.mlp.fc2"},
    "trocr": {CROSS, GELU, "visual.blocks.*.mlp.fc2", *POST_NORM_DECODER},
    "pix2struct": {CROSS, HEAD, "visual.patch_embed"},
    "t5": {CROSS},
    "t5gemma2": {
        GROUPS,
        "encoder.blocks.*.attention.out",
        "decoder.blocks.*.attention.qkv",
        "visual.tower.blocks.*.mlp.fc2",
    },
    "mbart": {CROSS, GELU, "encoder.blocks.*.ffn.down"},
    "opt": set(),
    "llama": {GROUPS, HEAD},
    "starcoder": {GROUPS, GELU},
    "llava": {GROUPS, HEAD, "visual.up", "visual.down", "visual.tower.blocks.*.mlp.fc2"},
    "florence2": {
        CROSS,
        GELU,
        "encoder.blocks.*.ffn.down",
        *POST_NORM,
        "visual.projection",
        "visual.stages.*.blocks.*.channel.attention.proj",
        *(f"visual.stages.*.blocks.*.{half}.mlp.fc2" for half in ("spatial", "channel")),
    },
    "lighton-ocr": {GROUPS, "visual.tower.patch_embed", "visual.merge", "visual.down"},
    "idefics3": {GROUPS, "visual.connector", "visual.tower.blocks.*.mlp.fc2"},
    "qwen-vl": {GROUPS, "visual.patch_embed", "visual.up", "visual.down"},
    "blip2-opt": QFORMER,
    "blip2-t5": {CROSS, *QFORMER},
    "vila": {HEAD, "visual.linears.*", "visual.tower.blocks.*.mlp.fc2"},
    "fairseq": {CROSS, HEAD, *POST_NORM},
}


def test_folded_scales_change_nothing_but_where_they_stand(model, request, tmp_path):
    checkpoint, dense, requests = model
    found, folded = {}, checkpoint
    for scales in ("separate", None):
        config, folder = replace(CONFIGS["awq"], scales=scales), tmp_path / f"scales {scales}"
        folded = quantize_checkpoint(checkpoint, folder, config, calibration=Calibration(dense, requests))
        engine = build_engine(folded, tmp_path / f"engine {scales}", BuildConfig(max_batch_size=4))
        found[scales] = logits(Pipeline(engine, RuntimeConfig(device="cpu")), requests)
    torch.testing.assert_close(found[None], found["separate"], atol=1e-4, rtol=1e-4)
    names = folded.quantization_options.get("pre_quant_scale", [])
    name = request.node.callspec.params["model"]
    assert {re.sub(r"\.\d+\b", ".*", each) for each in names} == SEPARATE[name]
