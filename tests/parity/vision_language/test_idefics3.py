"""Idefics3, SmolVLM and Granite-Docling against Hugging Face, FP32 on the CPU: tiles of images, and what is said of
them."""

from __future__ import annotations

import json

import pytest
import torch

from tests.kits.models import tiny
from tests.kits.models.image_parity_kit import (
    CONTENTS,
    MARK,
    NEW,
    READ,
    VOCAB,
    MarkedCase,
    asked,
    check_log_probabilities,
    check_mixed_batches,
    check_ranks,
    checkpoint_of,
    cpu,
    image_part,
)
from tests.kits.publications import idefics3_kit
from tests.parity.cases import Case as ParityCase
from tests.parity.cases import flat, mostly_slow, parity
from vlm.api.pipeline import Pipeline
from vlm.build.builder import build_engine
from vlm.config import BuildConfig
from vlm.convert.folder import convert_folder
from vlm.errors import ConfigError, EngineError, InputError, LengthError
from vlm.layers.images.tiles import cut_tiles, join_tiles
from vlm.processing.media.image_processor import ImageProcessor

pytestmark = pytest.mark.slow  # every size, tiled
BEFORE = 7  # a tile's rows
# 25 patches to a side, some of which share a position, and a pixel of none
LEFT_OVER = {"image_size": 51, "patch_size": 2, "num_hidden_layers": 1}
MODELS = {
    "idefics3": {
        "idefics3": lambda: tiny.idefics3(),
        "smolvlm: own head, gelu": lambda: tiny.idefics3(
            seed=4, smol=True, tower={"hidden_act": "gelu"}, tie_word_embeddings=False),
        "idefics3: pixels left over, squares of five": lambda: tiny.idefics3(
            seed=2, tower=LEFT_OVER, text={"max_position_embeddings": 512}, scale_factor=5),
    },
}  # fmt: skip
ONE = mostly_slow({name: ParityCase("idefics3", make) for name, make in flat(MODELS).items()}, ("idefics3",))
# (down, across) of tiles: upright, wide, not cut, one column, two rows
GRIDS = ((3, 2), (1, 3), (0, 0), (2, 1), (0, 0))


class Case(MarkedCase):
    def __init__(self, model, folder):
        super().__init__(model, folder)
        generator, side = torch.Generator().manual_seed(1), self.vision.tile_size
        self.tiles = [torch.randn(a * b + 1, 3, side, side, generator=generator) for a, b in GRIDS]
        self.images = [join_tiles(tiles, *grid) for tiles, grid in zip(self.tiles, GRIDS, strict=True)]
        a, b, c = tiny.ids_below(56, (7, 4, 12))
        self.prompts = [
            ([MARK, *a], [0]),
            ([*a, *b], []),
            ([*a[:3], MARK, *b, MARK, *b[:1], MARK, *c], [1, 2, 0]),
            ([MARK, *c], [4]),
            ([MARK, MARK, *b], [3, 2]),
        ]

    def ours(self, prompt: list[int], images: list[int]) -> dict:
        ids, end, left = [], VOCAB, iter(images)
        for token in prompt:
            for _ in self.tiles[next(left)] if token == MARK else ():
                begin, end = end, end + self.vision.tile_rows
                ids += [BEFORE, *range(begin, end)]
            ids += [token] if token != MARK else []
        return {"decoder_prompt_token_ids": ids, "pixel_values": [self.images[i] for i in images] or None}

    def pixels(self, images: list[int]) -> dict:
        return {"pixel_values": torch.cat([self.tiles[i] for i in images])[None]} if images else {}


@pytest.fixture(scope="module", params=parity(MODELS))
def case(request, tmp_path_factory):
    case = Case(request.param.make(), tmp_path_factory.mktemp("vlm"))
    assert case.engine.family == request.param.family
    return case


def test_features_of_all_tiles(case):
    with torch.no_grad():
        want = [case.model.model.get_image_features(tiles[None]).pooler_output[0] for tiles in case.tiles]
    case.check_features(want, {"max_encoder_batch_size": 2}, {"max_encoder_batch_size": 64})


def test_mixed_batches(case):
    more = ({"prefix_sharing": False, "encoder_cache_size": 0}, {"num_speculative_tokens": 3})
    check_mixed_batches(case, *more, new=NEW)


def test_log_probabilities(case):
    check_log_probabilities(case, new=NEW)


def test_what_processors_see_of_the_rows(case):
    """A penalty counts each as the image's token, as Hugging Face's does."""
    options = {"repetition_penalty": 1.4, "no_repeat_ngram_size": 3}
    found = Pipeline(case.engine, cpu()).generate(case.inputs, max_new_tokens=NEW, loop_detection=False, **options)
    assert [out.token_ids for out in found] == [case.theirs(*given, **options) for given in case.prompts]


@pytest.mark.parametrize("split", [{"tp_size": 2}, {"pp_size": 2}], ids=str)
def test_ranks(case, split):
    """Tiles of several images are shared among ranks."""
    check_ranks(case, split, new=NEW)


@pytest.mark.parametrize("case", ONE, indirect=True)
def test_onnx_runtime_encodes_tiles(case):
    """One graph of tiles reads images of any grid."""
    folder = case.engine.path.parent / "onnx"
    pipe = Pipeline(build_engine(checkpoint_of(case.engine), folder, BuildConfig(backend="onnxruntime")), cpu())
    found = pipe.generate(case.inputs, max_new_tokens=NEW, loop_detection=False)
    assert [out.token_ids for out in found] == [case.theirs(*given) for given in case.prompts]


def test_sizes_that_are_no_tiles(case):
    pipe, side = Pipeline(case.engine, cpu()), case.vision.tile_size
    # half a tile, a grid of one, no row under a wide whole, beyond all processors
    for size in ((side, side // 2), (2 * side, side), (side, 2 * side), (case.vision.image_size[0] + side, side)):
        with pytest.raises(InputError, match=rf"takes \(3, {side}, {side}\), or of an image that is cut into tiles of"):
            pipe.generate(pixel_values=torch.zeros(1).expand(3, *size), decoder_prompt_token_ids=[VOCAB])


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_tiles_are_laid_out_and_cut_again(grid):
    tiles = torch.arange(grid[0] * grid[1] + 1).view(-1, 1, 1, 1).expand(-1, 3, 4, 4)
    found = cut_tiles(join_tiles(tiles, *grid), 4)
    assert torch.equal(torch.stack(found), tiles)


@pytest.mark.parametrize(
    ("changes", "says"),
    [({"scale_factor": 3}, r"tiles have 4 × 4 patches, of which squares of scale_factor 3 to a side leave some over"),
     ({"vision_config": {"image_size": 2, "patch_size": 4}}, "patch_size is 4, more than images of 2 × 2 have"),
     ({"vision_config": {"image_size": [16, 32], "patch_size": 4}}, "tiles have 4 × 8 patches")],
)  # fmt: skip
def test_tiles_that_no_squares_make(changes, says):
    from visual_engines.models.idefics3 import parse

    config = tiny.idefics3().config.to_dict()
    with pytest.raises(ConfigError, match=says):
        parse(config | changes)


# --- pictures and words, as the published processor has them ---
@pytest.fixture(scope="module")
def published(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published")
    model = idefics3_kit.save(folder / "hf")
    checkpoint = convert_folder(folder / "hf", folder / "checkpoint")
    return model, idefics3_kit.processor(), build_engine(checkpoint, folder / "engine", BuildConfig(max_batch_size=4))


@pytest.mark.parametrize("kind", CONTENTS)
def test_token_ids_and_pixels_are_those_of_the_processor(published, kind):
    _, processor, engine = published
    pipe, content = Pipeline(engine, cpu()), CONTENTS[kind](idefics3_kit.pictures())
    request, inputs = asked(pipe, processor, content)
    tiles = [tile for each in request.images for tile in cut_tiles(each.values, 512)]
    if request.images:
        torch.testing.assert_close(torch.stack(tiles), inputs["pixel_values"][0], atol=2e-6, rtol=0)
        assert inputs["pixel_attention_mask"].all(), "no pixel is left out"
    assert all(each.pixels.dtype == torch.uint8 for each in request.images), "a quarter of the bytes"


SETTINGS = {
    "not split": {"do_image_splitting": False},
    "not scaled": {"do_resize": False},
    "smaller": {"size": {"longest_edge": 700}},
    "SmolVLM2's": {
        "image_processor_type": "SmolVLMImageProcessorFast",
        "size": {"longest_edge": 1024},
        "video_sampling": {"fps": 1, "max_frames": 64, "video_size": {"longest_edge": 512}},
    },
    "bicubic": {"resample": 3, "image_mean": [0.4, 0.5, 0.6], "image_std": [0.3, 0.2, 0.1]},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_other_settings_of_the_processor(name, tmp_path):
    import transformers

    from visual_engines.families.idefics3 import IMAGES

    own = json.loads((idefics3_kit.PUBLISHED / "preprocessor_config.json").read_text()) | SETTINGS[name]
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(own))
    ours = ImageProcessor.from_dir(tmp_path, IMAGES)
    theirs = getattr(transformers, own["image_processor_type"].removesuffix("Fast")).from_pretrained(tmp_path)
    for picture in idefics3_kit.pictures():
        exact = theirs([picture], return_tensors="pt")["pixel_values"][0]
        found = torch.stack(cut_tiles(ours([picture])[0], 512))
        torch.testing.assert_close(found, exact, atol=2e-6, rtol=0)


def test_conversations_with_several_images(published):
    model, processor, engine = published
    pipe, pictures = Pipeline(engine, cpu()), idefics3_kit.pictures()
    chats = [[{"role": "user", "content": CONTENTS["several"](pictures)}],
             [{"role": "user", "content": [image_part(pictures[3])]},
              {"role": "assistant", "content": [{"type": "text", "text": "w3 "}]},
              {"role": "user", "content": [image_part(pictures[2]), READ]}]]  # fmt: skip
    options = {"max_new_tokens": 6, "do_sample": False}
    outs = pipe.generate([{"messages": each} for each in chats], loop_detection=False, **options)
    for chat, out in zip(chats, outs, strict=True):
        images = [part["image"] for turn in chat for part in turn["content"] if "image" in part]
        text = processor.apply_chat_template(chat, add_generation_prompt=True)
        inputs = processor(text=[text], images=images, return_tensors="pt")
        with torch.no_grad():
            ids = model.generate(**inputs, **options)
        found = ids[0, inputs["input_ids"].shape[1] :].tolist()
        assert out.token_ids == found[: len(out.token_ids)] and len(out.token_ids) in (len(found), 6)


def test_a_long_prompt_loses_its_words_alone(published):
    """What is said of the image stays, wherever it stands in the text."""
    pipe, [picture] = Pipeline(published[2], cpu()), idefics3_kit.pictures()[3:]
    vocab, words = pipe.config.vocab_size, "w1 \n" * 5000
    for prompt in (words, f"{words}<image>{words}"):
        request = pipe.request({"images": [picture], "prompt": prompt, "truncate": True}, max_new_tokens=100)
        ids = request.decoder_prompt_token_ids
        assert len(ids) == pipe.capabilities.max_seq_len - 100
        names = (idefics3_kit.AROUND, idefics3_kit.WHOLE, "<row_4_col_4>")
        assert [ids.count(idefics3_kit.token(name)) for name in names] == [18, 1, 1]
        assert sum(i >= vocab for i in ids) == 17 * 64


def test_more_tiles_than_positions(published):
    pipe, pictures = Pipeline(published[2], cpu()), idefics3_kit.pictures()
    with pytest.raises(LengthError, match=r"9,033 prompt tokens \(8704 of them rows of images or tables\)"):
        pipe.generate(images=[pictures[3]] * 8, prompt="read")
    count = 8192 // 64 + 1
    with pytest.raises(LengthError, match=rf"{count} images and pages are at least 8,256 tokens"):
        pipe.processor.request_builder.check_images(count)


def test_the_family_writes_what_smolvlm_writes():
    from transformers.models.smolvlm.processing_smolvlm import DEFAULT_CHAT_TEMPLATE
    from transformers.utils.chat_template_utils import render_jinja_template

    from visual_engines.families.idefics3 import TEMPLATE

    turns = [{"role": "user", "content": [{"type": "image"}, READ]}, {"role": "assistant", "content": "page"},
             {"role": "user", "content": [READ, {"type": "image"}]}]  # fmt: skip
    for messages in (turns, [{"role": "system", "content": "this"}, turns[0]], turns[:1]):
        rendered = [
            render_jinja_template([messages], chat_template=template, add_generation_prompt=True)[0]
            for template in (TEMPLATE, DEFAULT_CHAT_TEMPLATE)
        ]
        assert rendered[0] == rendered[1]


def test_videos_are_refused(published):
    video = [{"role": "user", "content": [{"type": "video", "video": "a.mp4"}]}]
    with pytest.raises(InputError, match=r"holds a part of type 'video'; allowed are text and image\."):
        Pipeline(published[2], cpu()).generate({"messages": video})


@pytest.mark.parametrize(
    "settings",
    [
        {"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 1}},
        {"do_resize": False, "max_image_size": {"longest_edge": 8}},
    ],
    ids=str,
)
def test_settings_that_cut_images_to_pieces(settings, tmp_path):
    from visual_engines.families.idefics3 import IMAGES

    named = settings | {"image_processor_type": "Idefics3ImageProcessor"}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(named))
    with pytest.raises(EngineError, match=r"into tiles of \d; a side has 64 at most; fetch it again\."):
        ImageProcessor.from_dir(tmp_path, IMAGES)


@pytest.mark.parametrize("name", ["size", "max_image_size"])
def test_settings_that_scale_beyond_all_bounds(name, tmp_path):
    from visual_engines.families.idefics3 import IMAGES

    settings = {"image_processor_type": "Idefics3ImageProcessor", name: {"longest_edge": 10**6}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    with pytest.raises(EngineError, match=rf"scales images to more than 4,096 pixels a side \({name}\)"):
        ImageProcessor.from_dir(tmp_path, IMAGES)
