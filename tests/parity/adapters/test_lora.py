"""LoRA against PEFT, FP32 on the CPU: each row of a batch has the tokens of its own adapter, or of the base."""

from __future__ import annotations

import pytest
import torch
from peft import IA3Config, LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

from tests.kits.models import families, tiny
from tests.kits.models.adapted import BASE, FEW, QUESTION, AdaptedText, AdaptedVision, answer
from tests.kits.models.engines import rebuilt
from tests.kits.ranks import with_followers
from vlm.api.pipeline import Pipeline
from vlm.artifacts.native.checkpoint import Checkpoint
from vlm.build.builder import build_engine
from vlm.build.from_model import convert_model
from vlm.config import BuildConfig, RuntimeConfig
from vlm.errors import CheckpointError, InputError, LimitError

pytestmark = pytest.mark.slow  # every family, several times
ATTENTION, FFN = ["q_proj", "v_proj"], ["fc1", "fc2", "out_proj"]
# of each model: what two of its adapters change; the third one changes every linear layer
TEXT = {
    "t5": (lambda: tiny.t5(seed=1, tied=False, feed_forward_proj="gated-gelu"), ["q", "v"], ["wi_0", "wo", "k"]),
    "bart": (lambda: tiny.bart(seed=5), ATTENTION, FFN),
    "m2m100": (lambda: tiny.m2m100(seed=5), ATTENTION, FFN),
    "marian": (lambda: tiny.marian(), ATTENTION, FFN),
    "pegasus": (lambda: tiny.pegasus(seed=5), ATTENTION, FFN),
    "t5gemma": (lambda: tiny.t5gemma(), ATTENTION, ["up_proj", "down_proj", "k_proj", "o_proj"]),
    "opt": (lambda: tiny.opt(seed=2), ATTENTION, FFN),
    "llama": (lambda: tiny.llama(seed=3, num_key_value_heads=2), ATTENTION, ["up_proj", "down_proj", "k_proj"]),
    "qwen3": (lambda: tiny.llama(seed=5, kind="qwen3", head_dim=12, num_key_value_heads=2), ATTENTION, ["k_proj"]),
    "gpt2": (lambda: tiny.gpt2(seed=1), ["c_attn"], ["c_fc", "c_proj"]),
    "gpt_bigcode of many heads": (lambda: tiny.gpt2(multi_query=False), ["c_attn"], ["c_fc", "c_proj"]),
}
LANGUAGE = r".*(?:language_model|text_model|model\.decoder)\..*\.({})"  # the visual network stays as it is
EVERY = LANGUAGE.format("q|k|v|o|wi_[01]|wo|[a-z]+_proj|fc[12]")
VISION = {
    "llava": (lambda: tiny.llava(seed=3), "q_proj|v_proj", "up_proj|down_proj"),
    "florence2": (lambda: tiny.florence2(), "q_proj|k_proj", "fc1|fc2"),
    "t5gemma2": (lambda: tiny.t5gemma2(eos_token_id=2), "q_proj|k_proj", "up_proj|down_proj"),
    "lighton-ocr": (lambda: tiny.lighton_ocr(seed=1), "q_proj|v_proj", "up_proj|down_proj"),
    "idefics3": (lambda: tiny.idefics3(seed=1), "q_proj|v_proj", "up_proj|down_proj"),
    "qwen-vl": (lambda: tiny.qwen_vl(seed=1), "q_proj|v_proj", "up_proj|down_proj"),
    "blip2-opt": (lambda: tiny.blip2("opt", seed=1), "q_proj|k_proj", "fc1|fc2"),
    "blip2-t5": (lambda: tiny.blip2("t5", seed=7, spread=0.4), "q|v", "wi_0|wo"),
}
CPU = RuntimeConfig(device="cpu")


def kinds_of(first, second, *, turned: bool) -> dict[str, LoraConfig]:
    """Three adapters of different ranks; `turned`: the model's weights are [in, out]."""
    every = "all-linear" if isinstance(first, list) else EVERY
    first, second = (x if isinstance(x, list) else LANGUAGE.format(x) for x in (first, second))
    kinds = {
        "narrow": {"r": 1, "target_modules": first, "lora_alpha": 4},
        "wide": {"r": 6, "target_modules": every, "use_rslora": True, "lora_alpha": 3},
        # of another rank in the second layer, and stronger in the first
        "uneven": {"r": 2, "target_modules": second, "rank_pattern": {r".*\.1\..*": 4},
                   "alpha_pattern": {r".*\.0\..*": 24}},
    }  # fmt: skip
    options = {"init_lora_weights": False, "fan_in_fan_out": turned}
    return {name: LoraConfig(**kind, **options) for name, kind in kinds.items()}


def adapted_text(family: str, folder, limits=None) -> AdaptedText:
    make, first, second = TEXT[family]
    return AdaptedText(make, kinds_of(first, second, turned=family == "gpt2"), folder, limits)


@pytest.fixture(scope="module", params=TEXT)
def adapted(request, tmp_path_factory):
    return adapted_text(request.param, tmp_path_factory.mktemp("lora"))


def test_every_row_has_the_tokens_and_log_probabilities_of_its_adapter(adapted):
    adapted.check(12)


def test_beams_are_of_their_adapters(adapted):
    adapted.check_beams(8)


@pytest.mark.parametrize("family", FEW)
def test_preemption_keeps_the_adapter(family, tmp_path):
    limits, few_blocks = FEW[family]
    adapted_text(family, tmp_path, limits).check_preempted(16, **few_blocks)


@pytest.mark.parametrize("kind", [LoraConfig(r=3, init_lora_weights=False), IA3Config(feedforward_modules=[])])
def test_a_head_is_saved_beside_what_is_added_to_it(kind, tmp_path):
    """As PEFT does it by itself. What is no copy of the model's own is what merging begins with, as PEFT loads it."""
    kind.target_modules = {"v_proj", "lm_head"}
    adapted = AdaptedText(TEXT["llama"][0], {"a": kind}, tmp_path)
    folder = tmp_path / "adapters" / "a"
    weights = load_file(folder / "adapter_model.safetensors")
    weights |= {name: x + torch.rand_like(x) for name, x in weights.items() if "base_layer" not in name}
    save_file(weights, folder / "adapter_model.safetensors")
    adapted.models["a"] = PeftModel.from_pretrained(TEXT["llama"][0](), folder).eval()
    want = [adapted.tokens(*case, 8) for case in adapted.cases]
    read = lambda pipe: [out.token_ids for out in pipe.generate(adapted.inputs, max_new_tokens=8)]  # noqa: E731
    assert read(adapted.pipeline()) == want
    split = rebuilt(adapted.engine, max_batch_size=8, tp_size=2)
    assert with_followers(split, RuntimeConfig(device="cpu", lora=adapted.lora), read) == want

    weights["base_model.model.lm_head.base_layer.weight"] *= torch.linspace(0.5, 1.5, 32)
    save_file(weights, folder / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match=r"adds to weights of its own \(decoder.head.weight\), which are others"):
        adapted.pipeline()
    merged = convert_model(tmp_path / "hf", tmp_path / "merged", merge_lora=folder)
    pipe = Pipeline(build_engine(Checkpoint.open(merged), tmp_path / "both", BuildConfig()), CPU)
    adapted.models["a"] = PeftModel.from_pretrained(TEXT["llama"][0](), folder).eval()
    found = [pipe.generate({adapted.key: text}, max_new_tokens=8).token_ids for text in adapted.texts]
    assert found == [adapted.tokens("a", text, 8) for text in adapted.texts]


@pytest.mark.parametrize("family", ["t5", "llama"])
def test_ranks_have_their_parts_of_adapters(family, tmp_path):
    adapted_text(family, tmp_path).check_split(12, tp_size=2, pp_size=2)


@pytest.mark.parametrize("max_loras", [None, 1])
def test_encodings_are_of_their_adapters(max_loras, tmp_path):
    adapted = adapted_text("t5", tmp_path)
    found = adapted.pipeline(max_loras=max_loras).encode(adapted.inputs, hidden_states=True)
    for (name, text), encoding in zip(adapted.cases, found, strict=True):
        with torch.no_grad():
            want = adapted.models[name].encoder(torch.tensor([text])).last_hidden_state[0]
        torch.testing.assert_close(encoding.last_hidden_state, want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", VISION)
def test_rows_about_images_have_their_adapters(family, tmp_path):
    make, first, second = VISION[family]
    adapted = AdaptedVision(make, kinds_of(first, second, turned=False), tmp_path)
    want = [adapted.tokens(*case, 10) for case in adapted.cases]
    assert len(set(map(tuple, want))) > 5, "the adapters make no difference"
    pipe = adapted.pipeline(block_size=4)
    for _ in range(2):
        assert [out.token_ids for out in pipe.generate(adapted.inputs, max_new_tokens=10)] == want
    cache = pipe.llm.encoders.encoder_cache  # an adapter leaves the visual network as it is: all share its features
    assert cache.misses == len(adapted.images)


@pytest.mark.parametrize("family", ["gpt2", "llava", "blip2-t5", "florence2", "lighton-ocr"])
def test_merged_weights_are_those_of_both(family, tmp_path):
    """Of visual networks, too; what is merged is split among ranks and built as any other model."""
    model = (TEXT | VISION)[family][0]()
    model.save_pretrained(tmp_path / "hf")
    config = LoraConfig(r=3, target_modules="all-linear", init_lora_weights=False, fan_in_fan_out=family == "gpt2")
    peft = get_peft_model(model, config).eval()
    peft.save_pretrained(tmp_path / "adapter")
    plain = convert_model(tmp_path / "hf", tmp_path / "plain")
    for source in (tmp_path / "hf", plain):
        merged = convert_model(source, tmp_path / "merged", merge_lora=tmp_path / "adapter")
        pipe = Pipeline(build_engine(Checkpoint.open(merged), tmp_path / "engine", BuildConfig()), CPU)
        if family == "gpt2":
            [prompt] = tiny.prompts(model, (9,))
            assert pipe.generate({"input_ids": prompt}, max_new_tokens=8).token_ids == tiny.hf_continued(
                model, prompt, 8
            )
            continue
        vision, has_encoder = pipe.llm.encoders.visual.config, pipe.llm.encoders.encoder is not None
        size = families.image_size(vision)
        pixels = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(1))
        ids = [*range(60, 60 + vision.rows_of(*size)), *QUESTION]
        key = "encoder_input_ids" if has_encoder else "decoder_prompt_token_ids"
        found = pipe.generate({key: ids, "pixel_values": pixels}, max_new_tokens=8).token_ids
        assert found == answer(model, pixels, vision.rows_of(*size), 8, has_encoder=has_encoder)


@pytest.mark.parametrize("family", ["t5", "llama"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_adapters_come_and_go_while_others_run(family, ranks, tmp_path):
    """In as few slots as there are adapters at once: the blocks and the matrices of one are never another one's."""
    adapted = adapted_text(family, tmp_path)
    folders = dict(each.split("=", 1) for each in adapted.lora)
    [text, _] = adapted.texts

    def run(pipe: Pipeline) -> list[list[int]]:
        source, found = {adapted.key: text}, []
        tokens = lambda name: pipe.generate(source, max_new_tokens=12, lora=name).token_ids  # noqa: E731
        pipe.load_lora("narrow", folders["narrow"])
        found.append(tokens("narrow"))
        running = pipe.llm.add([pipe.request(source, max_new_tokens=12, lora="narrow")])[0]
        updates = pipe.llm.step()
        pipe.unload_lora("narrow")
        with pytest.raises(InputError, match="there is no adapter 'narrow'"):
            pipe.request(source, lora="narrow")
        with pytest.raises(LimitError, match="there is room for 1 adapter at once; unload one"):
            pipe.load_lora("wide", folders["wide"])  # the other one is still in use
        while pipe.llm.has_work:
            updates += pipe.llm.step()
        found += [u.completion.token_ids for u in updates if u.request_id == running and u.completion]
        pipe.load_lora("wide", folders["wide"])  # more layers than there was room for in their banks
        found += [tokens("wide"), tokens(None)]
        with pytest.raises(InputError, match="there is an adapter 'wide' already"):
            pipe.load_lora("wide", folders["wide"])
        return found

    runtime = RuntimeConfig(device="cpu", block_size=4, burst=2, max_loras=1)
    if ranks == 1:
        found = run(Pipeline(adapted.engine, runtime))
    else:
        found = with_followers(rebuilt(adapted.engine, max_batch_size=8, tp_size=2), runtime, run)
    assert found == [adapted.tokens(name, text, 12) for name in ("narrow", "narrow", "wide", BASE)]


def test_an_encoders_adapters_come_and_go(tmp_path):
    adapted = adapted_text("t5", tmp_path)
    folders = dict(each.split("=", 1) for each in adapted.lora)
    pipe = Pipeline(adapted.engine.without_decoder(), RuntimeConfig(device="cpu", max_loras=1, max_cpu_loras=2))
    [text, _] = adapted.texts
    pipe.load_lora("narrow", folders["narrow"])
    pipe.load_lora("wide", folders["wide"])
    with pytest.raises(LimitError, match="there is room for 2 adapters at once; unload one"):
        pipe.load_lora("uneven", folders["uneven"])
    found = {"narrow": pipe.encode({adapted.key: text, "lora": "narrow"})}
    for number in (-1, 0):
        with pytest.raises(InputError, match=f"{number} is no adapter's name; name what is loaded: narrow, wide"):
            pipe.unload_lora(number)
    pipe.unload_lora("narrow")
    pipe.load_lora("uneven", folders["uneven"])
    with pytest.raises(InputError, match="there is no adapter 'narrow'"):
        pipe.encode({adapted.key: text, "lora": "narrow"})
    found |= {name: pipe.encode({adapted.key: text, "lora": name}) for name in ("uneven", "wide", BASE)}
    for name, encoding in found.items():
        with torch.no_grad():
            want = adapted.models[name].encoder(torch.tensor([text])).last_hidden_state[0]
        torch.testing.assert_close(encoding.last_hidden_state, want, atol=1e-4, rtol=1e-4)
