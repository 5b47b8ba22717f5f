"""DoRA against PEFT, FP32 on the CPU: beside a LoRA, an IA3 and the base, each row of a batch has its own tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from peft import IA3Config, LoraConfig

from tests.kits.models import tiny
from tests.kits.models.adapted import AdaptedText, AdaptedVision
from vlm.api.pipeline import Pipeline
from vlm.artifacts.native.checkpoint import Checkpoint
from vlm.build.builder import build_engine
from vlm.build.from_model import convert_model
from vlm.config import BuildConfig, RuntimeConfig

# of each model: some modules, parts of fused products among them; another adapter changes every linear layer
TEXT = {
    "t5": (lambda: tiny.t5(seed=1, tied=False, feed_forward_proj="gated-gelu"), ["q", "v", "wi_0"]),
    "bart": (lambda: tiny.bart(seed=5, logits_bias=True), ["q_proj", "v_proj", "fc1"]),
    "llama": (lambda: tiny.llama(seed=3, num_key_value_heads=2), ["q_proj", "k_proj", "up_proj"]),
    "gpt2": (lambda: tiny.gpt2(seed=1), ["c_attn", "c_proj"]),
}
LANGUAGE = r".*language_model\..*\.({})"  # the visual network stays as it is
KEYS = "q|k|v|o|wi_[01]|wo|[a-z]+_proj|fc[12]"


def dora(**options) -> LoraConfig:
    return LoraConfig(**options, use_dora=True, init_lora_weights=False)


def kinds_of(some, every, **options) -> dict:
    """Two DoRAs of different ranks and, last, others beside them."""
    return {
        "some": dora(r=2, lora_alpha=5, target_modules=some, **options),
        "every": dora(r=3, target_modules=every, use_rslora=True, **options),
        "lora": LoraConfig(r=4, target_modules=every, init_lora_weights=False, **options),
        "ia3": IA3Config(target_modules=some, feedforward_modules=[], init_ia3_weights=False, **options),
    }


def adapted_text(family: str, folder) -> AdaptedText:
    make, some = TEXT[family]
    return AdaptedText(make, kinds_of(some, "all-linear", fan_in_fan_out=family == "gpt2"), folder)


@pytest.fixture(scope="module", params=TEXT)
def adapted(request, tmp_path_factory):
    return adapted_text(request.param, tmp_path_factory.mktemp("dora"))


def test_every_row_has_the_tokens_and_log_probabilities_of_its_adapter(adapted):
    adapted.check(12, fewest=7)


def test_beams_and_turns_are_of_their_adapters(adapted):
    """On a device that has room for one of them."""
    adapted.check_beams(8, max_loras=1)


@pytest.mark.parametrize("family", ["bart", "llama"])
def test_ranks_find_the_lengths_of_rows_that_they_share(family, tmp_path):
    adapted_text(family, tmp_path).check_split(12, tp_size=2, pp_size=2)


def test_rows_about_images_have_their_adapters(tmp_path):
    kinds = kinds_of(LANGUAGE.format("q_proj|v_proj|up_proj"), LANGUAGE.format(KEYS))
    adapted = AdaptedVision(lambda: tiny.llava(seed=3), kinds, tmp_path)
    want = [adapted.tokens(*case, 10) for case in adapted.cases]
    assert len(set(map(tuple, want))) > 6, "the adapters make no difference"
    assert [out.token_ids for out in adapted.pipeline().generate(adapted.inputs, max_new_tokens=10)] == want
    assert merged(adapted, tmp_path, 10) == want[2::5]  # those of "every"


def merged(adapted: AdaptedText | AdaptedVision, folder: Path, new: int) -> list[list[int]]:
    """The tokens of the model that "every" is merged into."""
    source = Path(adapted.lora[0].partition("=")[2]).parents[1]
    out = convert_model(source / "checkpoint", folder / "merged", merge_lora=source / "adapters" / "every")
    pipe = Pipeline(build_engine(Checkpoint.open(out), folder / "both", BuildConfig()), RuntimeConfig(device="cpu"))
    inputs = [{**each, "lora": None} for each in adapted.inputs if each["lora"] == "every"]
    return [out.token_ids for out in pipe.generate(inputs, max_new_tokens=new)]


def test_merged_weights_have_the_lengths_of_rows(adapted, tmp_path):
    assert merged(adapted, tmp_path, 8) == [adapted.tokens("every", text, 8) for text in adapted.texts]
