"""T5Gemma 2's images and texts against Hugging Face's class and processor, FP32 on the CPU."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import Gemma3ImageProcessor, Gemma3Processor, PreTrainedTokenizerFast

from tests.kits.models import tiny
from tests.kits.models.engines import engine_dir, pipeline
from tests.kits.models.image_parity_kit import cpu
from vlm.api.pipeline import Pipeline
from vlm.convert.folder import convert_folder
from vlm.errors import ConfigError, InputError, VlmError
from vlm.processing.media.image_processor import ImageProcessor
from vlm.registry.catalogs import family, model_spec

SPECIAL = ("<pad>", "<eos>", "<bos>", "<start_of_image>", "<end_of_image>", "<image_soft_token>")
NAMES = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>"}
OF_IMAGES = {"boi_token": SPECIAL[3], "eoi_token": SPECIAL[4], "image_token": SPECIAL[5]}
VOCAB, ROWS, NEW = len(SPECIAL) + 256, 16, 12
PROMPTS = [
    ("<image>what is this", [0]),
    ("one <image> and\n\n<image>, which is larger", [1, 2]),
    ("no picture at all", []),
    ("<image>", [2]),
]


def processor() -> Gemma3Processor:
    """Returns transformers', whose words are bytes."""
    words = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    fast = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, []))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    fast.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    fast.add_special_tokens(list(SPECIAL))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=fast, **NAMES, extra_special_tokens=OF_IMAGES)
    return Gemma3Processor(Gemma3ImageProcessor(size={"height": 32, "width": 32}), tokenizer, image_seq_length=ROWS)


class Case:
    """A model, its processor and an engine."""

    def __init__(self, folder):
        self.model = tiny.t5gemma2(
            seed=3, text={"vocab_size": VOCAB}, vocab_size=VOCAB, image_token_index=5,
            encoder={"boi_token_index": 3, "eoi_token_index": 4},
        )  # fmt: skip
        self.processor = processor()
        save = self.model.save_pretrained

        def save_all(path):
            save(path)
            self.processor.save_pretrained(path)

        self.model.save_pretrained = save_all
        self.engine = engine_dir(self.model, folder, max_batch_size=4)
        random = np.random.default_rng(2)
        sizes = ((70, 40), (9, 90), (64, 48))
        self.pages = [Image.fromarray(random.integers(0, 256, (*size, 3), np.uint8)) for size in sizes]
        self.inputs = [{"prompt": text, "images": [self.pages[i] for i in which]} for text, which in PROMPTS]

    def read(self, text, which):
        pages = [self.pages[i] for i in which] or None
        return self.processor(text=text.replace("<image>", SPECIAL[3]), images=pages, return_tensors="pt")

    @torch.no_grad()
    def theirs(self, text, which, **options):
        options = {"num_beams": 1, "max_new_tokens": NEW, "do_sample": False} | options
        inputs = {k: v for k, v in self.read(text, which).items() if k != "token_type_ids"}
        return tiny.up_to_end(self.model.generate(**inputs, **options)[0, 1:].tolist(), 1)


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return Case(tmp_path_factory.mktemp("t5gemma2"))


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
def test_pictures_and_words_in_one_batch(case, options):
    want = [case.theirs(*prompt, **options) for prompt in PROMPTS]
    assert len({tuple(tokens) for tokens in want}) == len(want), "the pictures make no difference"
    for more in ({}, {"burst": 1, "block_size": 4, "max_batch_size": 3, "max_encoder_tokens": 60}):
        pipe = Pipeline(case.engine, cpu(**more))
        found = pipe.generate(case.inputs, max_new_tokens=NEW, **options)
        assert [out.token_ids for out in found] == want


def test_ids_and_pixels_are_the_processors(case):
    pipe = Pipeline(case.engine, cpu())
    for given, prompt in zip(case.inputs, PROMPTS, strict=True):
        theirs, request = case.read(*prompt), pipe.request(given)
        ids = [5 if i >= VOCAB else i for i in request.encoder_input_ids]
        assert ids == theirs["input_ids"][0].tolist()
        pixels = [image.values for image in request.images]
        if pixels:
            torch.testing.assert_close(torch.stack(pixels), theirs["pixel_values"], atol=2e-6, rtol=0)


def test_the_processors_own_word_places_an_image(case):
    pipe = Pipeline(case.engine, cpu())
    said = [{"prompt": f"{mark} in this image", "images": case.pages[:1]} for mark in (SPECIAL[3], "<image>")]
    first, second = (pipe.request(given).encoder_input_ids for given in said)
    assert first == second
    with pytest.raises(InputError, match="2 <image> placeholders and 1 image was given"):
        pipe.request({"prompt": SPECIAL[3] * 2, "images": case.pages[:1]})


def test_the_token_after_an_image_has_its_own_row_in_outputs_too(tmp_path):
    """Where the output begins with it, or has written it."""
    model = tiny.t5gemma2()
    [text] = tiny.texts(model, (9,))
    pipe = pipeline(model, tmp_path)
    for prefix in ([2, 57, 9], [2, *range(40, 59), 57]):
        found = pipe.generate(encoder_input_ids=text, decoder_prompt_token_ids=prefix, max_new_tokens=9)
        assert found.token_ids == tiny.hf_text(model, text, 9, prefix=prefix)


def t5gemma2_config(role):
    return model_spec("t5gemma2" if role == "decoder" else "t5gemma2-encoder").parse


def as_gemma3(side):
    """The same rotary positions in the words of Gemma 3's configurations."""
    full = side.pop("rope_parameters")["full_attention"]
    side.pop("layer_types")
    more = {"rope_theta": full.pop("rope_theta"), "rope_local_base_freq": 500.0, "rope_scaling": full}
    return side | more | {"sliding_window_pattern": 2}


def test_words_of_older_configurations(tmp_path):
    scaled = {"rope_type": "linear", "factor": 4.0, "rope_theta": 3000.0}
    local = {"rope_type": "default", "rope_theta": 500.0}
    model = tiny.t5gemma2(text={"rope_parameters": {"full_attention": scaled, "sliding_attention": local}})
    model.save_pretrained(tmp_path / "hf")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    roles = ("encoder", "decoder")
    new = {role: t5gemma2_config(role)(config) for role in roles}
    config["encoder"]["text_config"] = as_gemma3(config["encoder"]["text_config"])
    config["decoder"] = as_gemma3(config["decoder"])
    assert {role: t5gemma2_config(role)(config) for role in roles} == new
    assert new["decoder"].rotary.factor == 4.0 and new["encoder"].local_rotary.theta == 500.0
    texts = tiny.texts(model, (30, 9))
    found = pipeline(model, tmp_path).generate([{"encoder_input_ids": text} for text in texts], max_new_tokens=12)
    assert [out.token_ids for out in found] == tiny.hf_texts(model, texts, 12)


REFUSED = {
    "hidden_size of the encoder is 32, that of the decoder 64": {"decoder": {"hidden_size": 64}},
    "layer_types is": {"decoder": {"layer_types": ["chunked_attention"] * 2}},
    "mm_tokens_per_image is 9, which no squares": {"encoder": {"mm_tokens_per_image": 9}},
}


@pytest.mark.parametrize(("says", "changes"), REFUSED.items())
def test_what_cannot_be_run_is_refused_by_name(says, changes, tmp_path):
    tiny.t5gemma2().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for part, values in changes.items():
        config[part] |= values
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=says):
        convert_folder(tmp_path, tmp_path / "checkpoint")


def test_images_that_are_to_be_cut_are_refused(tmp_path):
    Gemma3ImageProcessor(do_pan_and_scan=True).save_pretrained(tmp_path)
    with pytest.raises(VlmError, match="do_pan_and_scan"):
        ImageProcessor.from_dir(tmp_path, family("t5gemma2").image_processors)
