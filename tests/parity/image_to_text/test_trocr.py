"""TrOCR against Hugging Face, FP32 on the CPU: tokens, logits, pixels and texts of its published forms."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import DeiTImageProcessor, TrOCRProcessor, ViTImageProcessor

from tests.kits.models import tiny
from tests.kits.models.engines import pipeline
from tests.parity.cases import parity
from vlm.config import RuntimeConfig
from vlm.convert.folder import convert_folder
from vlm.errors import ConfigError
from vlm.processing.media.image_processor import ImageProcessor
from vlm.registry.catalogs import family

NEW = 14
SHAPES = {
    "base": {"encoder": {"qkv_bias": False}},
    "small": {"encoder": {"deit": True}, "activation_function": "relu", "scale_embedding": True},
    "large printed": {"encoder": {"qkv_bias": False}, **tiny.TROCR_COMPUTED},
    "one width": {"encoder": {"hidden_size": 32, "num_attention_heads": 4}, "cross_attention_hidden_size": None},
}


@pytest.mark.parametrize("case", parity({"trocr": SHAPES}))
def test_logits_and_tokens(case, tmp_path):
    """A batch that is larger than the engine's, whose outputs end at different steps."""
    model = tiny.trocr(seed=5, **case.make)
    lines = tiny.images(model, 5)
    pipe = pipeline(model, tmp_path, max_batch_size=4)
    assert pipe.family.name == case.family
    inputs = [{"pixel_values": line} for line in lines]
    found = pipe.generate(inputs, max_new_tokens=NEW, top_logprobs=20)
    assert [out.token_ids for out in found] == tiny.hf_tokens(model, lines, NEW)
    assert len({tuple(out.token_ids) for out in found}) > 1, "the images make no difference"
    for line, out in zip(lines, found, strict=True):
        ids = torch.tensor([[2, *out.token_ids[:-1]]])
        with torch.no_grad():
            exact = model(pixel_values=line[None], decoder_input_ids=ids).logits[0].log_softmax(-1)
        for got, want in zip(out.top_logprobs, exact, strict=True):
            torch.testing.assert_close(torch.tensor(list(got.values())), want[list(got)], atol=1e-4, rtol=0)
    for options in ({"num_beams": 4}, {"num_beams": 3, "early_stopping": True, "length_penalty": 2.0}):
        found = pipe.generate(inputs, max_new_tokens=NEW, **options)
        assert [out.token_ids for out in found] == [hf_beams(model, line, **options) for line in lines]


@torch.no_grad()
def hf_beams(model, line: torch.Tensor, **options) -> list[int]:
    """The best output of one image, start token removed, up to and with the end token."""
    ids = model.generate(pixel_values=line[None], max_new_tokens=NEW, **options)[0, 1:].tolist()
    return ids[: ids.index(2) + 1] if 2 in ids else ids


def test_any_mix_of_lines_gives_the_tokens_of_one(tmp_path):
    model = tiny.trocr(seed=1)
    lines = tiny.images(model, 9, seed=5)
    pipe = pipeline(model, tmp_path, RuntimeConfig(device="cpu", burst=4, max_encoder_batch_size=2), max_batch_size=4)
    limits = [20, 3, 14, 1, 20, 12, 9, 18, 7]
    inputs = [{"pixel_values": line} for line in lines]
    alone = [pipe.generate(one, max_new_tokens=limit) for one, limit in zip(inputs, limits, strict=True)]
    longest = tiny.hf_tokens(model, lines, max(limits))
    assert [out.token_ids for out in alone] == [ids[:limit] for ids, limit in zip(longest, limits, strict=True)]
    assert [out.token_ids for out in pipe.generate(inputs, max_new_tokens=max(limits))] == longest


PROCESSORS = {
    "base": (ViTImageProcessor, {"image_processor_type": "ViTImageProcessor", "size": 384, "resample": 2}),
    "base, saved again": (ViTImageProcessor, {"image_processor_type": "ViTImageProcessorFast", "resample": 2,
                                              "size": {"height": 384, "width": 384}, "crop_size": None}),
    "small": (DeiTImageProcessor, {"feature_extractor_type": "DeiTFeatureExtractor", "size": 384, "resample": 3,
                                   "do_center_crop": False, "crop_size": 384}),
    "DeiT's own": (DeiTImageProcessor, {"feature_extractor_type": "DeiTFeatureExtractor", "size": 438,
                                        "crop_size": 384}),
}  # fmt: skip
SIZES = ((40, 700), (384, 384), (31, 33), (900, 20))


@pytest.mark.parametrize(("theirs", "settings"), PROCESSORS.values(), ids=PROCESSORS)
def test_pixels(theirs, settings, tmp_path):
    settings = {"do_normalize": True, "do_resize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3} | settings
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    ours = ImageProcessor.from_dir(tmp_path, family("trocr").image_processors)
    theirs = theirs.from_pretrained(tmp_path)
    random = np.random.default_rng(0)
    for size in SIZES:
        line = Image.fromarray(random.integers(0, 256, (*size, 3), np.uint8))
        assert torch.equal(ours([line]), theirs([line], return_tensors="pt")["pixel_values"]), size


def test_a_folder_without_settings_of_images_takes_the_models_size(tmp_path):
    for encoder in ({}, {"deit": True}):
        model = tiny.trocr(encoder=encoder)
        out = pipeline(model, tmp_path / str(len(encoder))).generate(Image.new("RGB", (200, 30)), max_new_tokens=2)
        assert len(out.token_ids) == 2


def write_xlm_roberta(folder):
    """A SentencePiece model with its class's name, as trocr-small has it."""
    pieces = pytest.importorskip("sentencepiece", reason="sentencepiece writes the file of this test")
    corpus = folder / "corpus.txt"
    corpus.write_text("\n".join(["the house is small", "a line of printed text", "the old ship is small"] * 200))
    pieces.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(folder / "sentencepiece.bpe"), vocab_size=60, hard_vocab_limit=False,
        minloglevel=2,
    )  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "XLMRobertaTokenizer"}))


def write_roberta(folder):
    """RoBERTa's special tokens, then all bytes, without merges of them."""
    from tokenizers.pre_tokenizers import ByteLevel

    tokens = ["<s>", "<pad>", "</s>", "<unk>", *sorted(ByteLevel.alphabet()), "<mask>"]
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "RobertaTokenizer"}))


PUBLISHED = {
    "base": ({"vocab_size": 261}, write_roberta, "ViTImageProcessor"),
    "small": ({"vocab_size": 40, "encoder": {"deit": True}}, write_xlm_roberta, "DeiTImageProcessor"),
}


@pytest.mark.parametrize(("make", "write_tokenizer", "kind"), PUBLISHED.values(), ids=PUBLISHED)
def test_texts_of_a_published_folder(make, write_tokenizer, kind, tmp_path):
    """Lines in one batch, the tokenizer in the files that publications have."""
    model, folder = tiny.trocr(seed=5, **make), tmp_path / "hf"
    model.save_pretrained(folder)
    write_tokenizer(folder)
    settings = {"image_processor_type": kind, "size": 32, "crop_size": 32, "do_center_crop": False, "resample": 2}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    pipe = pipeline(model, tmp_path)
    random = np.random.default_rng(3)
    lines = [Image.fromarray(random.integers(0, 256, (size, 90, 3), np.uint8)) for size in (20, 40, 32)]
    processor = TrOCRProcessor.from_pretrained(folder)
    ids = model.generate(processor(lines, return_tensors="pt").pixel_values, max_new_tokens=NEW)
    texts = processor.batch_decode(ids, skip_special_tokens=True)
    assert [out.text for out in pipe.generate(lines, max_new_tokens=NEW)] == texts
    assert len(set(texts)) > 1


@pytest.mark.parametrize(
    ("part", "change", "says"),
    [
        ("encoder", {"model_type": "beit"}, r"encoder-decoder of beit and trocr.*--model microsoft/trocr-base-printed"),
        ("encoder", {"hidden_act": "tanh"}, "hidden_act"),
        ("decoder", {"activation_function": "tanh"}, "activation_function"),
        ("decoder", {"cross_attention_hidden_size": -3}, "cross_attention_hidden_size is -3"),
    ],
)
def test_what_it_cannot_honour_is_refused_by_name(part, change, says, tmp_path):
    model = tiny.trocr()
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config[part] |= change
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=says):
        convert_folder(tmp_path, tmp_path / "checkpoint")
