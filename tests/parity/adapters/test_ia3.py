"""IA3 against PEFT, FP32 on the CPU: beside the base and a LoRA, each row of a batch has the tokens of its own."""

from __future__ import annotations

import pytest
import torch
from peft import IA3Config, LoraConfig, get_peft_model

from tests.kits.models import tiny
from tests.kits.models.adapted import BASE, FEW, QUESTION, Adapted, AdaptedText, AdaptedVision, answer
from tests.kits.models.engines import rebuilt
from tests.kits.ranks import with_followers
from vlm.api.pipeline import Pipeline
from vlm.artifacts.native.checkpoint import Checkpoint
from vlm.build.builder import build_engine
from vlm.build.from_model import convert_model
from vlm.config import BuildConfig, RuntimeConfig

pytestmark = pytest.mark.slow

# of each model: the modules, all being adapted, whose inputs are scaled; parts of fused products are among them
TEXT = {
    "t5": (lambda: tiny.t5(seed=1, tied=False), r".*\.(wo|SelfAttention\.q|EncDecAttention\.k)"),
    "mt5": (lambda: tiny.t5(seed=7, kind="mt5", feed_forward_proj="gated-gelu"), r".*\.(wi_0|o)"),
    "bart": (lambda: tiny.bart(seed=5, logits_bias=True), r".*\.(fc1|v_proj)"),
    "mbart": (lambda: tiny.bart(seed=5, multilingual=True), r".*\.(fc2|out_proj)"),
    "opt": (lambda: tiny.opt(seed=2), r".*\.(fc1|q_proj)"),
    "llama": (lambda: tiny.llama(seed=3, num_key_value_heads=2), r".*\.(gate_proj|k_proj)"),
    "mistral": (lambda: tiny.llama(seed=3, kind="mistral"), r".*\.(up_proj|o_proj)"),
    "gpt2": (lambda: tiny.gpt2(seed=1), r".*\.(c_attn|c_fc)"),
    "gpt_bigcode": (lambda: tiny.gpt2(seed=4, multi_query=True), r".*\.c_proj"),
    "gpt_bigcode of many heads": (lambda: tiny.gpt2(multi_query=False), r".*\.c_attn"),
}
NO_DEFAULT = {"mbart": {"target_modules": ["k_proj", "v_proj", "fc2"], "feedforward_modules": ["fc2"]}}
VISION = {
    "llava": (lambda: tiny.llava(seed=3), "k_proj|v_proj|down_proj", "down_proj"),
    "blip2-t5": (lambda: tiny.blip2("t5", seed=7, spread=0.4), "k|v|wo", "wo"),
}
LANGUAGE = r".*language_model\..*\.({})"  # the visual network stays as it is


def ia3(**options) -> IA3Config:
    return IA3Config(**options, init_ia3_weights=False)


def lora(**options) -> LoraConfig:
    return LoraConfig(**options, r=3, init_lora_weights=False)


def adapted_text(family: str, folder, limits=None) -> AdaptedText:
    make, feedforward = TEXT[family]
    turned = {"fan_in_fan_out": family == "gpt2"}
    kinds = {
        "usual": ia3(**NO_DEFAULT.get(family, {}), **turned),  # what PEFT changes of such a model by itself
        "every": ia3(target_modules="all-linear", feedforward_modules=feedforward, **turned),
        "lora": lora(target_modules="all-linear", **turned),
    }
    return AdaptedText(make, kinds, folder, limits)


@pytest.fixture(scope="module", params=TEXT)
def adapted(request, tmp_path_factory):
    return adapted_text(request.param, tmp_path_factory.mktemp("ia3"))


def test_every_row_has_the_tokens_and_log_probabilities_of_its_adapter(adapted):
    adapted.check(12)


def test_beams_are_of_their_adapters(adapted):
    adapted.check_beams(8)


@pytest.mark.parametrize("family", FEW)
def test_preemption_keeps_the_adapter(family, tmp_path):
    limits, few_blocks = FEW[family]
    adapted_text(family, tmp_path, limits).check_preempted(16, **few_blocks)


@pytest.mark.parametrize("family", ["t5", "llama"])
def test_ranks_have_their_parts_of_adapters(family, tmp_path):
    adapted_text(family, tmp_path).check_split(12, tp_size=2, pp_size=2)


@pytest.mark.parametrize("family", VISION)
def test_rows_about_images_have_their_adapters(family, tmp_path):
    make, targets, feedforward = VISION[family]
    targets = LANGUAGE.format(targets)
    kinds = {
        "ia3": ia3(target_modules=targets, feedforward_modules=LANGUAGE.format(feedforward)),
        "lora": lora(target_modules=targets),
    }
    adapted = AdaptedVision(make, kinds, tmp_path)
    want = [adapted.tokens(*case, 10) for case in adapted.cases]
    assert len(set(map(tuple, want))) > 4, "the adapters make no difference"
    pipe = adapted.pipeline(block_size=4)
    for _ in range(2):
        assert [out.token_ids for out in pipe.generate(adapted.inputs, max_new_tokens=10)] == want


@pytest.mark.parametrize("make", [tiny.nougat, tiny.trocr])
def test_pages_are_read_with_their_adapters(make, tmp_path):
    """By the decoder, to whose cross-attention TrOCR's encoder gives rows of another width."""
    decoder = r"decoder\..*\.({})"
    ends = [decoder.format(each) for each in ("k_proj|v_proj|fc2", "fc2", "q_proj|out_proj|fc1")]
    kinds = {"ia3": ia3(target_modules=ends[0], feedforward_modules=ends[1]), "lora": lora(target_modules=ends[2])}
    adapted = Adapted(make, kinds, tmp_path)
    pixels, pipe = tiny.images(adapted.model, 2), adapted.pipeline(block_size=4)
    cases = [(name, row) for row in range(2) for name in adapted.names]
    inputs = [{"pixel_values": pixels[row], "lora": name} for name, row in cases]
    found = [out.token_ids for out in pipe.generate(inputs, max_new_tokens=12)]
    generating = lambda name: getattr(adapted.models[name], "get_base_model", lambda: adapted.model)()  # noqa: E731
    want = {name: tiny.hf_tokens(generating(name), pixels, 12) for name in adapted.names}
    assert found == [want[name][row] for name, row in cases] and len(set(map(tuple, found))) > 3


@pytest.mark.parametrize("family", ["bart", "gpt2", "llama", "llava"])
def test_merged_weights_and_biases_are_those_of_both(family, tmp_path):
    """Of visual networks, too."""
    model = (TEXT | VISION)[family][0]()
    model.save_pretrained(tmp_path / "hf")
    torch.manual_seed(1)
    feedforward = TEXT[family][1] if family in TEXT else r".*\.(fc1|v_proj|linear_1)"
    config = ia3(target_modules="all-linear", feedforward_modules=feedforward, fan_in_fan_out=family == "gpt2")
    peft = get_peft_model(model, config).eval()
    peft.save_pretrained(tmp_path / "adapter")
    merged = convert_model(tmp_path / "hf", tmp_path / "merged", merge_lora=tmp_path / "adapter")
    engine = build_engine(Checkpoint.open(merged), tmp_path / "engine", BuildConfig())
    pipe = Pipeline(engine, RuntimeConfig(device="cpu"))
    if family == "llava":
        vision = pipe.llm.encoders.visual.config
        pixels = torch.randn(1, 3, *vision.image_size, generator=torch.Generator().manual_seed(1))
        ids = [*range(60, 60 + vision.num_features), *QUESTION]
        found = pipe.generate({"decoder_prompt_token_ids": ids, "pixel_values": pixels}, max_new_tokens=8)
        assert found.token_ids == answer(peft, pixels, vision.num_features, 8, has_encoder=False)
        return
    is_encoder_decoder = model.config.is_encoder_decoder
    [text] = (tiny.texts if is_encoder_decoder else tiny.prompts)(model, (9,))
    find = tiny.hf_text if is_encoder_decoder else tiny.hf_continued
    assert pipe.generate({"input_ids": text}, max_new_tokens=8).token_ids == find(model, text, 8)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("family", ["t5", "llama"])
def test_more_adapters_than_the_device_has_room_for_take_turns(family, ranks, tmp_path):
    adapted = adapted_text(family, tmp_path)

    def run(pipe: Pipeline) -> list[list[int]]:
        found = [out.token_ids for out in pipe.generate(adapted.inputs, max_new_tokens=12)]
        if family == "t5":
            pipe.encode(adapted.inputs)  # of as many adapters at once as there is room for
            found += [out.token_ids for out in pipe.generate(adapted.inputs, max_new_tokens=12, num_beams=2)]
        assert pipe.llm.scheduler.idle
        return found

    runtime = RuntimeConfig(device="cpu", lora=adapted.lora, max_loras=1 + (family == "llama"), block_size=4, burst=3)
    if ranks == 1:
        found = run(Pipeline(adapted.engine, runtime))
    else:
        found = with_followers(rebuilt(adapted.engine, max_batch_size=8, tp_size=2), runtime, run)
    want = [adapted.tokens(*case, 12) for case in adapted.cases]
    if family == "t5":
        want += [adapted.tokens(*case, 12, num_beams=2) for case in adapted.cases]
    assert found == want


@pytest.mark.parametrize("ranks", [1, 2])
def test_kinds_follow_each_other_in_one_slot(ranks, tmp_path):
    """Nothing is left of what lay there."""
    adapted = adapted_text("t5", tmp_path)
    folders, [text, _] = dict(each.split("=", 1) for each in adapted.lora), adapted.texts
    order = ("every", "lora", "usual", "lora")

    def run(pipe: Pipeline) -> list[list[int]]:
        found = []
        for name in order:
            pipe.load_lora(name, folders[name])
            for each in (name, None):
                found.append(pipe.generate({adapted.key: text}, max_new_tokens=12, lora=each).token_ids)
            pipe.unload_lora(name)
        return found

    runtime = RuntimeConfig(device="cpu", block_size=4, burst=2, max_loras=1)
    if ranks == 1:
        found = run(Pipeline(adapted.engine, runtime))
    else:
        found = with_followers(rebuilt(adapted.engine, max_batch_size=8, tp_size=2), runtime, run)
    assert found == [adapted.tokens(each, text, 12) for name in order for each in (name, BASE)]
