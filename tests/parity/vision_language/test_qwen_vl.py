"""Qwen2-VL and Qwen2.5-VL against Hugging Face, FP32 on the CPU: images of any size, positions of three axes."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image as Picture
from transformers import AutoConfig, Qwen2VLImageProcessor

from tests.kits.models import tiny
from tests.kits.models.image_parity_kit import (
    CONTENTS,
    END,
    MARK,
    NEW,
    READ,
    VOCAB,
    MarkedCase,
    asked,
    check_log_probabilities,
    check_mixed_batches,
    check_ranks,
    check_torch_alone_encodes,
    checkpoint_of,
    cpu,
    image_part,
)
from tests.kits.publications import qwen_kit
from tests.parity.cases import parity
from visual_engines.models import pixtral, qwen_vl
from vlm.api.pipeline import Pipeline
from vlm.build.builder import build_engine
from vlm.config import BuildConfig
from vlm.convert.folder import convert_folder
from vlm.errors import ConfigError, EngineError, ImageError, InputError
from vlm.processing.media.image_processor import ImageProcessor
from vlm_app.reference.huggingface import in_patches

YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 64,
        "mrope_section": [2, 1, 1]}  # fmt: skip
WINDOW = {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}
MODELS = {
    "qwen-vl": {
        "qwen2-vl": lambda: tiny.qwen_vl(second=False),
        "qwen2-vl: squares of three, own head, gelu": lambda: tiny.qwen_vl(
            second=False, seed=1, tower={"hidden_act": "gelu", "spatial_merge_size": 3, "patch_size": 2},
            tie_word_embeddings=False),
        "qwen2.5-vl": lambda: tiny.qwen_vl(),
        "qwen2.5-vl: own head, stretched, windows of one square": lambda: tiny.qwen_vl(
            seed=4, tower={"window_size": 8, "fullatt_block_indexes": [2]}, text={"rope_parameters": YARN, **WINDOW},
            tie_word_embeddings=False),
    },
}  # fmt: skip
# (down, across) in squares: upright, wide, one alone, and such as leave windows cut off
GRIDS = ((2, 3), (7, 1), (3, 2), (1, 1), (4, 5), (3, 3))


class Case(MarkedCase):
    def __init__(self, model, folder):
        super().__init__(model, folder)
        self.side, self.merge = self.vision.patch_size, self.vision.merge_size
        generator, square = torch.Generator().manual_seed(1), self.side * self.merge
        self.images = [torch.randn(3, down * square, across * square, generator=generator) for down, across in GRIDS]
        a, b, c = tiny.ids_below(56, (7, 4, 12))
        self.prompts = [
            ([MARK, *a], [0]),
            ([*a, *b], []),
            ([*a[:3], MARK, *b, MARK, *b[:1], MARK, *c], [1, 2, 0]),
            ([MARK, *c], [5]),
            ([MARK, *b[:1]], [4]),
            ([MARK, *b], [3]),
        ]

    def rows(self, image: int) -> int:
        return GRIDS[image][0] * GRIDS[image][1]

    @torch.no_grad()
    def computed_anew(self, prompt: list[int], images: list[int]) -> list[int]:
        """Returns greedy tokens without a cache, each placed as Hugging Face's model places a whole prompt."""
        ids, new = self.marked(prompt, images), []
        for _ in range(NEW):
            rows = torch.cat([ids, torch.tensor([new], dtype=torch.long)], 1)
            types = torch.nn.functional.pad((ids == MARK).int(), (0, len(new)))
            given = {"mm_token_type_ids": types, **self.pixels(images)}
            places = self.model.model.get_rope_index(rows, types, given["image_grid_thw"])[0]
            new.append(int(self.model(rows, position_ids=places, use_cache=False, **given).logits[0, -1].argmax()))
            if new[-1] == END:
                break
        return new

    def theirs_in_full(self, prompt: list[int], images: list[int], **options):
        self.model.model.rope_deltas = None
        types = {"mm_token_type_ids": (self.marked(prompt, images) == MARK).int()} if images else {}
        return super().theirs_in_full(prompt, images, **types, **options)

    def pixels(self, images: list[int]) -> dict:
        """As Hugging Face's image processor cuts several: square by square, each image twice."""
        if not images:
            return {}
        found = []
        for i in images:
            (down, across), side, merge = GRIDS[i], self.side, self.merge
            x = self.images[i].view(3, down, merge, side, across, merge, side).permute(1, 4, 2, 5, 0, 3, 6)
            found.append(x[..., None, :, :].expand(-1, -1, -1, -1, -1, 2, -1, -1).reshape(-1, 6 * side**2))
        grids = [[1, GRIDS[i][0] * self.merge, GRIDS[i][1] * self.merge] for i in images]
        return {"pixel_values": torch.cat(found), "image_grid_thw": torch.tensor(grids)}


@pytest.fixture(scope="module", params=parity(MODELS))
def case(request, tmp_path_factory):
    case = Case(request.param.make(), tmp_path_factory.mktemp("vlm"))
    assert case.engine.family == request.param.family
    return case


def test_features_of_one_pass(case):
    with torch.no_grad():
        want = case.model.get_image_features(**case.pixels(list(range(len(GRIDS))))).pooler_output
    case.check_features(want, {"max_encoder_batch_size": 2}, {"max_encoder_tokens": 60})


def test_mixed_batches(case):
    more = ({"prefix_sharing": False, "encoder_cache_size": 0, "max_encoder_tokens": 40}, {"num_speculative_tokens": 3})
    check_mixed_batches(case, *more, new=NEW)


def test_log_probabilities(case):
    check_log_probabilities(case, new=NEW)


def test_sequences_that_are_recomputed(case):
    build = BuildConfig(max_batch_size=8, max_seq_len=64)
    engine = build_engine(checkpoint_of(case.engine), case.engine.path.parent / "short", build)
    pipe = Pipeline(engine, cpu(block_size=4, max_kv_blocks=20, burst=4))
    options = {"max_new_tokens": NEW, "loop_detection": False}
    ids, done = [pipe.llm.add([pipe.request(each, **options)])[0] for each in case.inputs], {}
    while pipe.llm.has_work:
        done |= {u.request_id: u.completion for u in pipe.llm.step() if u.finished}
    assert [done[i].token_ids for i in ids] == [case.theirs(*given) for given in case.prompts]
    assert sum(completion.preemptions for completion in done.values())


def test_prompts_that_end_in_an_image(case):
    """Their outputs go on after the largest position; Hugging Face's `generate` would count on from the last row's."""
    for prompt, images in (([MARK], [4]), ([5, 9, MARK], [1])):
        found = Pipeline(case.engine, cpu()).generate(
            case.ours(prompt, images), max_new_tokens=NEW, loop_detection=False
        )
        assert found.token_ids == case.computed_anew(prompt, images)


@pytest.mark.parametrize("split", [{"tp_size": 2}, {"pp_size": 2}], ids=str)
def test_ranks(case, split):
    """Images of different sizes are shared, and each rank places the rows itself."""
    check_ranks(case, split, new=NEW)


def test_only_torch_encodes_any_size(case, tmp_path):
    check_torch_alone_encodes(case, tmp_path / "engine")


def test_sizes_out_of_range(case):
    pipe, square = Pipeline(case.engine, cpu()), case.side * case.merge
    large, says = 3600 // square * square, r"takes \(3, height, width\), multiples of \d+, of up to 12,845,056 pixels"
    for size in ((square, square - case.side), (square + 1, square), (large, large)):
        with pytest.raises(InputError, match=says):
            pipe.generate(pixel_values=torch.zeros(1).expand(3, *size), decoder_prompt_token_ids=[VOCAB])


def test_rows_of_images_that_are_apart(case):
    pipe = Pipeline(case.engine, cpu())
    for ids in ([60, 61, 62, 5, 63, 64, 65], [60, 61, 62], [61, 62, 63, 64, 65]):
        with pytest.raises(InputError, match="all rows of an image must stand in the prompt, one after the other"):
            pipe.generate(pixel_values=case.images[0], decoder_prompt_token_ids=ids)


# --- pictures and words, as the published processor has them ---
@pytest.fixture(scope="module")
def published(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published")
    model = qwen_kit.save(folder / "hf")
    checkpoint = convert_folder(folder / "hf", folder / "checkpoint")
    return model, qwen_kit.processor(), build_engine(checkpoint, folder / "engine", BuildConfig(max_batch_size=4))


@pytest.mark.parametrize("kind", CONTENTS)
def test_token_ids_and_pixels_are_those_of_the_processor(published, kind):
    _, processor, engine = published
    pipe, content = Pipeline(engine, cpu()), CONTENTS[kind](qwen_kit.pictures())
    request, inputs = asked(pipe, processor, content)
    cut = [in_patches(each.values[None], side=14, merge=2, frames=2) for each in request.images]
    for name in ("pixel_values", "image_grid_thw") if request.images else ():
        torch.testing.assert_close(torch.cat([each[name] for each in cut]), inputs[name], atol=2e-6, rtol=0)


def test_conversations_with_several_images(published):
    model, processor, engine = published
    pipe, pictures = Pipeline(engine, cpu()), qwen_kit.pictures()
    chats = [[{"role": "user", "content": CONTENTS["several"](pictures)}],
             [{"role": "user", "content": [image_part(pictures[1])]}, {"role": "assistant", "content": "w3 "},
              {"role": "user", "content": [image_part(pictures[2]), READ]}]]  # fmt: skip
    outs = pipe.generate(
        [{"messages": each} for each in chats], max_new_tokens=6, do_sample=False, loop_detection=False
    )
    for chat, out in zip(chats, outs, strict=True):
        images = [part["image"] for turn in chat for part in turn["content"] if "image" in part]
        text = processor.apply_chat_template(chat, add_generation_prompt=True)
        inputs = processor(text=[text], images=images, return_tensors="pt")
        with torch.no_grad():
            ids = model.generate(
                **inputs, max_new_tokens=6, do_sample=False, eos_token_id=qwen_kit.ENDS, repetition_penalty=1.05
            )
        found = ids[0, inputs["input_ids"].shape[1] :].tolist()
        assert out.token_ids == found[: len(out.token_ids)] and len(out.token_ids) in (len(found), 6)


def test_the_family_writes_what_the_publication_writes():
    from transformers.utils.chat_template_utils import render_jinja_template

    from visual_engines.families.qwen_vl import TEMPLATE

    turns = [{"role": "user", "content": [{"type": "image"}, READ]}, {"role": "assistant", "content": "page"}]
    for messages in (turns, [{"role": "system", "content": "this"}, turns[0]], turns[:1]):
        rendered = [
            render_jinja_template([messages], chat_template=template, add_generation_prompt=True)[0]
            for template in (TEMPLATE, qwen_kit.template())
        ]
        assert rendered[0] == rendered[1]


def test_slivers_and_videos_are_refused(published):
    pipe = Pipeline(published[2], cpu())
    with pytest.raises(ImageError, match=r"3 × 700 pixels; this model reads those that are at most 200 times as long"):
        pipe.generate(images=[Picture.new("RGB", (3, 700))])
    video = [{"role": "user", "content": [{"type": "video", "video": "a.mp4"}]}]
    with pytest.raises(InputError, match=r"holds a part of type 'video'; allowed are text and image\."):
        pipe.generate({"messages": video})


def _images_of(settings: dict, folder):
    from visual_engines.images.qwen_images import QWEN_IMAGES

    settings = {"image_processor_type": "Qwen2VLImageProcessor", **settings}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return ImageProcessor.from_dir(folder, (QWEN_IMAGES,))


@pytest.mark.parametrize("sizes", [{}, {"patch_size": 16, "merge_size": 3, "temporal_patch_size": 1}], ids=str)
def test_images_that_are_not_scaled(sizes, tmp_path):
    """Equal to the class's where it can divide a picture; else one sentence says what it takes."""
    images = _images_of({"do_resize": False, **sizes}, tmp_path)
    theirs = Qwen2VLImageProcessor.from_pretrained(tmp_path)
    square = theirs.patch_size * theirs.merge_size
    noise = np.random.default_rng(0).integers(0, 256, (2 * square, 3 * square, 3), np.uint8)
    found, expected = images([Picture.fromarray(noise)]), theirs([Picture.fromarray(noise)], return_tensors="pt")
    patches = in_patches(found, side=theirs.patch_size, merge=theirs.merge_size, frames=theirs.temporal_patch_size)
    assert torch.equal(patches["pixel_values"], expected["pixel_values"])
    with pytest.raises(ImageError, match=rf"is 100 × 90 pixels; .*do_resize: false\) .* multiples of {square}: scale"):
        images([Picture.new("RGB", (100, 90))])


def test_a_size_that_is_no_number(tmp_path):
    with pytest.raises(EngineError, match=r"preprocessor_config\.json does not fit Qwen2VLImageProcessor: "):
        _images_of({"patch_size": "14"}, tmp_path)


@pytest.mark.parametrize(
    "sizes",
    [{"temporal_patch_size": 0}, {"temporal_patch_size": -1}, {"temporal_patch_size": 2.5}, {"merge_size": 0},
     {"patch_size": -14, "merge_size": -2}], ids=str)  # fmt: skip
def test_sizes_that_nothing_can_be_cut_by(sizes, tmp_path):
    """Its own patches are not asked for, but settings that it fails with are damaged all the same."""
    name, size = next(iter(sizes.items()))
    with pytest.raises(EngineError, match=rf"does not fit Qwen2VLImageProcessor: {name} is {size}, it must be a whole"):
        _images_of(sizes, tmp_path)


LARGE = {
    "min_pixels": {"min_pixels": 10**12},
    "max_pixels": {"max_pixels": 10**9},
    "size": {"size": {"shortest_edge": 3136, "longest_edge": 10**9}},
    "patch_size": {"patch_size": 10**5},
}


@pytest.mark.parametrize("name", LARGE)
def test_settings_that_scale_beyond_all_bounds(name, tmp_path):
    with pytest.raises(EngineError, match=rf"scales images to more than 4,096 pixels a side \({name}\)"):
        _images_of(LARGE[name], tmp_path)


@pytest.mark.parametrize(
    "said", [{"rope_theta": 50.0}, {"rope_scaling": {"type": "default", "rope_theta": 50.0}, "rope_theta": 9.0},
             {"rope_parameters": {"rope_theta": 50.0}}, {}], ids=str)  # fmt: skip
@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl", "pixtral"])
def test_a_towers_rotary_base_is_found_where_its_class_finds_it(kind, said):
    if kind == "pixtral":
        ours, theirs = pixtral.parse(dict(said)), AutoConfig.for_model(kind, **said)
    else:
        ours = qwen_vl.parse({"model_type": kind, "vision_config": dict(said)})
        theirs = AutoConfig.for_model(kind, vision_config=dict(said)).vision_config
    assert ours.theta == theirs.rope_parameters["rope_theta"]


def test_a_towers_stretched_positions_are_refused_by_name():
    for key in ("type", "rope_type"):
        said = {"rope_scaling": {key: "linear", "factor": 2.0}}
        for parse in (pixtral.parse, lambda hf: qwen_vl.parse({"model_type": "qwen2_vl", "vision_config": hf})):
            with pytest.raises(ConfigError, match="rope_type is 'linear', supported are 'axial' and 'default'"):
                parse(said)
