"""LightOnOCR against Hugging Face, FP32 on the CPU: images of any size, packed into one pass and mixed in one batch."""

from __future__ import annotations

import pytest
import torch
from PIL import Image as Picture
from torch.nn.functional import pad

from tests.kits.models import tiny
from tests.kits.models.image_parity_kit import (
    MARK,
    NEW,
    MarkedCase,
    asked,
    check_log_probabilities,
    check_mixed_batches,
    check_shared_images,
    check_torch_alone_encodes,
    cpu,
)
from tests.kits.publications import lighton_kit
from tests.parity.cases import parity
from vlm.api.pipeline import Pipeline
from vlm.build.builder import build_engine
from vlm.config import BuildConfig
from vlm.convert.folder import convert_folder
from vlm.errors import InputError

MODELS = {
    "lighton-ocr": {
        "lighton-ocr": lambda: tiny.lighton_ocr(),
        "lighton-ocr: squares of three, own head, gelu": lambda: tiny.lighton_ocr(
            seed=1, tower={"hidden_act": "gelu", "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}},
            text={"tie_word_embeddings": False}, tie_word_embeddings=False, spatial_merge_size=3),
    },
}  # fmt: skip
# (height, width): some have patches left over at the right or at the bottom
SIZES = ((16, 24), (56, 12), (20, 12), (12, 12), (36, 56), (56, 56))


class Case(MarkedCase):
    def __init__(self, model, folder):
        super().__init__(model, folder)
        generator = torch.Generator().manual_seed(1)
        self.images = [torch.randn(3, *size, generator=generator) for size in SIZES]
        a, b, c = tiny.ids_below(58, (7, 4, 12))
        self.prompts = [
            ([MARK, *a], [0]),
            ([*a, *b], []),
            ([*a[:3], MARK, *b, MARK, MARK, *c], [1, 2, 0]),
            ([MARK, *c], [5]),
            ([MARK], [4]),
            ([MARK, *b], [3]),
        ]

    def rows(self, image: int) -> int:
        return self.vision.rows_of(*SIZES[image])

    def pixels(self, images: list[int]) -> dict:
        """As Hugging Face's image processor pads several."""
        if not images:
            return {}
        most = [max(SIZES[i][side] for i in images) for side in (0, 1)]
        pixels = [pad(self.images[i], (0, most[1] - SIZES[i][1], 0, most[0] - SIZES[i][0])) for i in images]
        return {"pixel_values": torch.stack(pixels), "image_sizes": torch.tensor([SIZES[i] for i in images])}


@pytest.fixture(scope="module", params=parity(MODELS))
def case(request, tmp_path_factory):
    case = Case(request.param.make(), tmp_path_factory.mktemp("vlm"))
    assert case.engine.family == request.param.family
    return case


def test_features_of_one_pass(case):
    with torch.no_grad():
        want = case.model.get_image_features(**case.pixels(list(range(len(SIZES))))).pooler_output
    case.check_features(want, {"max_encoder_batch_size": 2}, {"max_encoder_tokens": 60})


def test_mixed_batches(case):
    more = ({"prefix_sharing": False, "encoder_cache_size": 0, "max_encoder_tokens": 40},)
    check_mixed_batches(case, *more, new=NEW)


def test_log_probabilities(case):
    check_log_probabilities(case, new=NEW)


@pytest.mark.parametrize("split", [{"tp_size": 2}, {"pp_size": 2}], ids=str)
def test_ranks_share_images(case, split):
    """Of different sizes, and fewer of them than ranks."""
    check_shared_images(case, split)


def test_only_torch_encodes_any_size(case, tmp_path):
    check_torch_alone_encodes(case, tmp_path / "engine")


def test_sizes_out_of_range(case):
    pipe = Pipeline(case.engine, cpu())
    for size in ((60, 8), (4, 8), (18, 16)):
        with pytest.raises(
            InputError, match=r"this model takes \(3, height, width\), multiples of 4 from \d+ up to 56"
        ):
            pipe.generate(pixel_values=torch.zeros(3, *size), decoder_prompt_token_ids=[60])


# --- pictures and words, as the published processor has them ---
@pytest.fixture(scope="module")
def published(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published")
    model = lighton_kit.save(folder / "hf")
    checkpoint = convert_folder(folder / "hf", folder / "checkpoint")
    return model, lighton_kit.processor(), build_engine(checkpoint, folder / "engine", BuildConfig(max_batch_size=4))


CONTENTS = {
    "a page alone": lambda image: [{"type": "image", "image": image}],
    "a page and words": lambda image: [{"type": "image", "image": image}, {"type": "text", "text": "read"}],
    "words alone": lambda image: "page",
}


@pytest.mark.parametrize("kind", CONTENTS)
def test_token_ids_and_pixels_are_those_of_the_processor(published, kind):
    _, processor, engine = published
    pipe = Pipeline(engine, cpu())
    for picture in lighton_kit.pictures():
        request, inputs = asked(pipe, processor, CONTENTS[kind](picture))
        for image, pixels in zip(request.images, inputs.get("pixel_values", ()), strict=True):
            torch.testing.assert_close(image.values, pixels, atol=2e-6, rtol=0)


def test_a_page_needs_no_words(published):
    """An image is asked about as the model was trained: alone in the user's turn."""
    model, processor, engine = published
    pipe = Pipeline(engine, cpu())
    small = lighton_kit.pictures()[1:]
    messages = [[{"role": "user", "content": [{"type": "image", "image": picture}]}] for picture in small]
    outs = pipe.generate([{"images": [picture]} for picture in small], max_new_tokens=5, do_sample=False)
    for picture, turn, out in zip(small, messages, outs, strict=True):
        text = processor.apply_chat_template(turn, add_generation_prompt=True)
        inputs = processor(text=text, images=[picture], return_tensors="pt")
        with torch.no_grad():
            ids = model.generate(
                **inputs, max_new_tokens=5, do_sample=False, eos_token_id=lighton_kit.ENDS, pad_token_id=0
            )
        found = ids[0, inputs["input_ids"].shape[1] :].tolist()
        assert out.token_ids == found[: len(out.token_ids)] and len(out.token_ids) in (len(found), 5)


def test_the_family_writes_what_the_publication_writes(published):
    from transformers.utils.chat_template_utils import render_jinja_template

    from visual_engines.families.lighton_ocr import TEMPLATE

    parts = [{"type": "image"}, {"type": "text", "text": "read"}]
    turns = [{"role": "user", "content": parts}, {"role": "assistant", "content": "page"}]
    published_template = (lighton_kit.PUBLISHED / "chat_template.jinja").read_text()
    for messages in (turns, [{"role": "system", "content": "this"}, turns[0]], turns[:1]):
        rendered = [
            render_jinja_template([messages], chat_template=template, add_generation_prompt=True)[0]
            for template in (TEMPLATE, published_template)
        ]
        assert rendered[0] == rendered[1]


def test_pictures_that_are_too_small(published):
    pipe = Pipeline(published[2], cpu())
    with pytest.raises(InputError, match=r"shape \(3, 14, 14\); this model takes .* from 28 up to 1540 × 1540"):
        pipe.generate(images=[Picture.new("RGB", (9, 9))])
