"""Published models of images in small against `from_pretrained`, FP32 on the CPU: tokens, logits and pixels."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, GenerationConfig

from tests.kits.models.families import image_size
from tests.kits.publications import published_kit as kit
from tests.parity.test_published import TOKENS, engine_of, one_thread, pipeline, plain  # noqa: F401 - a fixture
from vlm.convert.folder import convert_folder
from vlm.errors import VlmError
from vlm.processing.media.image_processor import ImageProcessor
from vlm.registry.catalogs import match_family
from vlm_app.reference.huggingface import flattened, image_inputs, in_patches, in_tiles

pytestmark = pytest.mark.usefixtures("one_thread")
NEW = 8
PROMPTS = ([0, 5, 9, 33, 7], [0, 40, 41])  # 0: the image
# in LLaVA's, VILA's and Florence-2's own forms, with cases of their own: test_llava_form.py, test_vila.py,
# test_florence2.py
OWN_FORMS = (
    "liuhaotian__llava-v1.5-7b", "Efficient-Large-Model__VILA1.5-3b", "microsoft__Florence-2-base",
    "microsoft__Florence-2-large",
)  # fmt: skip
MODELS = [name for name in kit.supported(*kit.VISUAL) if name not in OWN_FORMS]
# the layouts of other releases
NEWER = {"llava-hf__llava-1.5-7b-hf": kit.Layout(), "Qwen__Qwen2.5-VL-7B-Instruct": kit.Layout()}
LLAVA, BLIP2 = "llava-hf__llava-1.5-7b-hf", "Salesforce__blip2-flan-t5-xl"
SIGLIP = {"model_type": "siglip_vision_model", "patch_size": 14, "vision_use_head": False}
MISTRAL = {"_name_or_path": "mistralai/Mistral-7B-v0.1", "architectures": ["MistralForCausalLM"],
           "model_type": "mistral", "max_position_embeddings": 32768, "num_key_value_heads": 8,
           "num_attention_heads": 32, "rms_norm_eps": 1e-05, "sliding_window": 4096, "torch_dtype": "float16",
           "vocab_size": 32064}  # fmt: skip
OPT = {"_name_or_path": "facebook/opt-2.7b", "activation_dropout": 0.0, "architectures": ["OPTForCausalLM"],
       "eos_token_id": 50118, "hidden_size": 2560, "model_type": "opt", "prefix": "</s>", "torch_dtype": "float16",
       "word_embed_proj_dim": 2560}  # fmt: skip
# what its part of a configuration lacks
MINERU = {"model_type": "qwen2_vl", "video_token_id": 151656, "vision_end_token_id": 151653,
          "vision_config": {"embed_dim": 1280, "hidden_size": 896, "spatial_merge_size": 2}}  # fmt: skip
SMOLVLM2 = {"model_type": "smolvlm", "tie_word_embeddings": False, "use_reentrant_checkpointing": False,
            "vision_config": {"hidden_size": 1152, "image_size": 384, "intermediate_size": 4304, "patch_size": 14,
                              "max_image_size": {"longest_edge": 384}, "model_type": "smolvlm_vision",
                              "num_attention_heads": 16, "num_hidden_layers": 27, "use_base_siglip": False},
            "text_config": {"architectures": ["VLlama3ForCausalLM"], "head_dim": 64, "hidden_size": 2048,
                            "is_llama_config": True, "max_position_embeddings": 8192, "model_type": "llama",
                            "num_attention_heads": 32, "num_key_value_heads": 32, "pixel_shuffle_factor": 3,
                            "qk_layer_norms": False, "rope_theta": 130000, "use_resampler": False,
                            "vocab_size": 49280}}  # fmt: skip
# what other publications of these families say: llava-hf's bakLlava, LLaVA over SigLIP, Salesforce's blip2-opt-2.7b
VARIANTS = {
    "bakLlava": (LLAVA, {"text_config": MISTRAL, "image_seq_length": 576, "author": "someone"}),
    "SigLIP": (LLAVA, {"vision_config": SIGLIP, "vision_feature_layer": -1, "vision_feature_select_strategy": "full",
                       "multimodal_projector_bias": False, "projector_hidden_act": "gelu_pytorch_tanh"}),
    "SmolVLM2": ("ibm-granite__granite-docling-258M", SMOLVLM2),
    "MinerU2.5": ("opendatalab__MinerU2.5", MINERU),
    "two layers": (LLAVA, {"vision_feature_layer": [-2, 1], "image_token_id": 32000, "tie_word_embeddings": True}),
    "blip2-opt": (BLIP2, {"text_config": OPT, "image_token_index": 50265, "image_text_hidden_size": 256,
                          "vision_config": {"dropout": 0.0, "initializer_factor": 1.0, "num_channels": 3,
                                            "model_type": "blip_2_vision_model", "projection_dim": 512},
                          "qformer_config": {"classifier_dropout": None, "model_type": "blip_2_qformer",
                                             "use_qformer_text_input": True}}),
}  # fmt: skip
# keys without which the installed transformers does not run an older publication
NEEDED = {
    "Salesforce__blip2-flan-t5-xl": {"image_token_index": 32100},
    "lightonai__LightOnOCR__fixture_talmago": {"image_token_id": 151655},
}


class Case:
    """One publication in small, its engine, two images and prompts as Hugging Face takes them."""

    def __init__(self, name: str, folder, layout=None, **changes):
        self.model = kit.publish(name, folder, layout, **NEEDED.get(name, {}) | changes)
        if (needed := NEEDED.get(name)) and not changes:
            config = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k not in needed}))
        self.engine = engine_of(folder)
        self.pipe = pipeline(self.engine)
        self.visual = self.pipe.llm.encoders.visual.config
        self.size = image_size(self.visual)
        self.images = torch.randn(2, 3, *self.size, generator=torch.Generator().manual_seed(1))
        self.asked = self.pipe.family.chat_format is not None
        self.encoder = self.pipe.llm.encoders.encoder is not None

    def theirs(self, i: int) -> dict:
        if not self.asked:
            return image_inputs(self.model, self.images[i : i + 1])
        config, rows = self.model.config, self.visual.rows_of(*self.size)
        token = getattr(config, "image_token_index", None) or config.image_token_id
        ids = torch.tensor([[t for token_ in PROMPTS[i] for t in ([token] * rows if token_ == 0 else [token_])]])
        pixels = image_inputs(self.model, self.images[i : i + 1], ids)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **pixels}

    def ours(self, i: int) -> dict:
        if not self.asked:
            return {"pixel_values": self.images[i]}
        rows = range(kit.VOCAB, kit.VOCAB + self.visual.rows_of(*self.size))
        ids = [t for token in PROMPTS[i] for t in (rows if token == 0 else [token])]
        name = "encoder_input_ids" if self.encoder else "decoder_prompt_token_ids"
        return {name: ids, "pixel_values": self.images[i]}

    @torch.no_grad()
    def tokens(self, i: int, **options) -> list[int]:
        given = self.theirs(i)
        out = self.model.generate(**given, max_new_tokens=NEW, do_sample=False, **options)[0].tolist()
        new = out[1:] if self.encoder or not self.asked else out[given["input_ids"].shape[1] :]
        ends = self.pipe.llm.eos_token_ids
        at = next((at for at, token in enumerate(new) if token in ends), len(new))
        return new[: at + 1]

    @torch.no_grad()
    def log_probabilities(self, i: int) -> list[torch.Tensor]:
        """Returns each greedy step's logits [vocabulary], without the publication's own settings."""
        theirs = self.model.generation_config
        ids = {name: getattr(theirs, name) for name in TOKENS}
        out = self.model.generate(**self.theirs(i), generation_config=GenerationConfig(**ids), max_new_tokens=NEW,
                                  do_sample=False, output_logits=True, return_dict_in_generate=True)  # fmt: skip
        return [step[0].log_softmax(-1) for step in out.logits]


@pytest.mark.parametrize(("name", "changes"), [*((name, {}) for name in MODELS), *VARIANTS.values()],
                         ids=[*MODELS, *VARIANTS])  # fmt: skip
def test_published_model(name, changes, tmp_path):
    case = Case(name, tmp_path, **changes)
    options = {"loop_detection": False, "max_new_tokens": NEW, "do_sample": False}
    found = pipeline(plain(case.engine)).generate([case.ours(i) for i in range(2)], top_logprobs=20, **options)
    for i, out in enumerate(found):
        for got, want in zip(out.top_logprobs, case.log_probabilities(i), strict=True):
            torch.testing.assert_close(torch.tensor(list(got.values())), want[list(got)], atol=1e-4, rtol=0)
    for beams in (1, 2):
        outs = case.pipe.generate([case.ours(i) for i in range(2)], num_beams=beams, **options)
        found = [out.token_ids for out in outs]
        assert found == [case.tokens(i, num_beams=beams) for i in range(2)]
        assert found[0] != found[1], "the images make no difference"


@pytest.mark.parametrize(("name", "layout"), NEWER.items())
def test_names_of_other_releases(name, layout, tmp_path):
    case = Case(name, tmp_path, layout)
    outs = case.pipe.generate([case.ours(i) for i in range(2)], max_new_tokens=NEW)
    assert [out.token_ids for out in outs] == [case.tokens(i) for i in range(2)]


@pytest.mark.parametrize("name", [name for name in MODELS if kit.facts(name, "preprocessor_config.json")])
def test_pixels(name, tmp_path):
    for file in ("config.json", "preprocessor_config.json", "processor_config.json"):
        if kit.facts(name, file):
            shutil.copy(kit.FOLDER / name / file, tmp_path)
    family = match_family(json.loads((tmp_path / "config.json").read_text()))
    ours = ImageProcessor.from_dir(tmp_path, family.image_processors)
    theirs = AutoImageProcessor.from_pretrained(tmp_path)
    random = np.random.default_rng(0)
    for size in ((300, 400), (500, 120), (64, 64)):
        image = Image.fromarray(random.integers(0, 256, (*size, 3), np.uint8))
        found = ours([image])
        if hasattr(theirs, "max_patches"):
            expected = theirs([image], return_tensors="pt", is_vqa=False)["flattened_patches"]
            found = flattened(found, theirs.patch_size["height"])["flattened_patches"]
            assert not expected[:, found.shape[1] :].any(), size
            expected = expected[:, : found.shape[1]]
        else:
            expected = theirs([image], return_tensors="pt")["pixel_values"]
        if hasattr(theirs, "merge_size"):
            sizes = {"side": theirs.patch_size, "merge": theirs.merge_size, "frames": theirs.temporal_patch_size}
            found = in_patches(found, **sizes)["pixel_values"]
        if hasattr(theirs, "max_image_size"):
            found = in_tiles(found, theirs.max_image_size["longest_edge"])
        assert torch.equal(found, expected), size


KIN = {
    "llava_next": ({"model_type": "llava_next"}, r"is LLaVA-1\.6 .*--model llava-hf/llava-1\.5-7b-hf"),
    "vipllava": ({"model_type": "vipllava"}, "is ViP-LLaVA"),
    "instructblip": ({"model_type": "instructblip"}, r"is InstructBLIP .*BLIP-2 \(--model Salesforce/blip2"),
    "interleave": ({"model_type": "llava", "text_config": {"model_type": "gemma"}}, "model_type is 'gemma'"),
    "pixtral": ({"model_type": "llava", "vision_config": {"model_type": "pixtral"}, "text_config": MISTRAL},
                "model_type is 'pixtral'"),
    "vit and gpt2": ({"model_type": "vision-encoder-decoder", "encoder": {"model_type": "vit"},
                      "decoder": {"model_type": "gpt2"}}, "is an encoder-decoder of vit and gpt2"),
    "clip": ({"model_type": "clip"}, "is a visual tower alone"),
}  # fmt: skip


@pytest.mark.parametrize(("config", "says"), KIN.values(), ids=KIN)
def test_kin_is_refused_by_name(config, says, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(VlmError, match=says):
        convert_folder(tmp_path, tmp_path / "checkpoint")


PROCESSORS = [name for name in kit.REFUSED if kit.facts(name, "preprocessor_config.json")]


@pytest.mark.parametrize("name", PROCESSORS)
def test_refused_by_its_processor(name, tmp_path):
    """Without the name of what it was made from."""
    config = {key: value for key, value in kit.facts(name).items() if key != "_name_or_path"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    shutil.copy(kit.FOLDER / name / "preprocessor_config.json", tmp_path)
    with pytest.raises(VlmError) as caught:
        convert_folder(tmp_path, tmp_path / "checkpoint")
    assert f"{kit.REFUSED[name]}" in str(caught.value) and "--model facebook/nougat-base" in str(caught.value)
