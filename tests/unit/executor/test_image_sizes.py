"""Images that take different numbers of rows, end to end: in prompts and under an encoder-decoder."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image as Picture

from tests.kits.models import mosaic_kit, prompted_kit, tiny
from tests.kits.models.mosaic_kit import LARGEST, PATCH, pictures
from vlm.api.pipeline import Pipeline
from vlm.artifacts.native.engine_dir import EngineDir
from vlm.backends.selection import pick
from vlm.build.builder import build_engine
from vlm.build.store import resolve
from vlm.config import BuildConfig, RuntimeConfig
from vlm.errors import ConfigError, InputError, LengthError
from vlm.executor.encoding.encoders import Encoders
from vlm.executor.encoding.torch_encoders import TorchEncoders
from vlm.executor.graph_pool import MAX_GRAPH_SHAPES
from vlm.executor.inputs.packing import pass_sizes
from vlm.processing.media.pool import MediaConfig
from vlm.processing.media.reading import read_pixels
from vlm.requests.image import Image
from vlm.requests.pixels import ImagePixels
from vlm.requests.prompt_table import Contents
from vlm_app.server.tensors.inputs import read_batch
from vlm_app.server.tensors.specs import IDS_IN, specs_of
from vlm_app.triton.preprocessing import padded_pixels

SIZES = ((8, 8), (16, 8), (4, 12), (8, 16), (16, 16))
VOCAB = 60


@pytest.fixture(scope="module")
def catalogs():
    with pytest.MonkeyPatch.context() as patch:
        mosaic_kit.install(patch)
        yield


@pytest.fixture(scope="module")
def chat(catalogs, tmp_path_factory) -> EngineDir:
    folder = tmp_path_factory.mktemp("chat")
    prompted_kit.saved("llava", folder / "hf")
    settings = {"image_processor_type": "CLIPImageProcessor", "do_resize": False, "do_center_crop": False}
    (folder / "hf" / "preprocessor_config.json").write_text(json.dumps(settings))
    checkpoint = mosaic_kit.converted(folder / "hf", "mosaic-chat", ("model.vision_tower.", "vision_tower.",
        "model.multi_modal_projector.", "multi_modal_projector."))  # fmt: skip
    return build_engine(checkpoint, folder / "engine", BuildConfig(max_batch_size=4, max_seq_len=64))


@pytest.fixture(scope="module")
def page(catalogs, tmp_path_factory) -> EngineDir:
    folder = tmp_path_factory.mktemp("page")
    tiny.nougat(seed=3).save_pretrained(folder / "hf")
    checkpoint = mosaic_kit.converted(folder / "hf", "mosaic-page", ("encoder.",))
    return build_engine(checkpoint, folder / "engine", BuildConfig(max_batch_size=4, max_seq_len=40))


def cpu(engine: EngineDir, **options) -> Pipeline:
    return Pipeline(engine, RuntimeConfig(device="cpu", **options))


def tokens(pipe: Pipeline, inputs, **options) -> list[list[int]]:
    return [out.token_ids for out in pipe.generate(inputs, **{"max_new_tokens": 12, "ignore_eos": True} | options)]


def rows(pixels) -> int:
    return pixels.shape[1] // PATCH * (pixels.shape[2] // PATCH)


def test_images_of_several_sizes_in_prompts(chat):
    """Each prompt of a batch has the tokens that it has alone; the second time prefixes and features are shared."""
    small, tall, flat, wide, large = pictures(*SIZES)
    inputs = [
        {"prompt": "w1 <image> w2", "pixel_values": small},
        {"prompt": "<image> w3 <image> w4 w5", "pixel_values": [tall, small]},
        {"prompt": "w1 w2", "pixel_values": None},
        {"prompt": "<image> <image> w1 <image>", "pixel_values": [flat, wide, flat]},
        {"prompt": "<image> w9", "pixel_values": large[None]},
    ]
    alone = [tokens(cpu(chat), [each])[0] for each in inputs]
    assert len({tuple(found) for found in alone}) == len(inputs), "the images make no difference"
    for options in ({}, {"max_prefill_tokens": 5, "block_size": 4}, {"max_encoder_batch_size": 1, "burst": 1},
                    {"encoder_cache_size": 0, "prefix_sharing": False}):  # fmt: skip
        pipe = cpu(chat, **options)
        for _ in range(2):
            assert tokens(pipe, inputs) == alone
        assert pipe.llm.scheduler.blocks.balanced
    request = pipe.request(inputs[1])
    assert [image.rows for image in request.images] == [8, 4] and request.images[0].grid == (4, 2)
    assert [i - VOCAB for i in request.decoder_prompt_token_ids if i >= VOCAB] == list(range(12))
    both = pipe.encode({"pixel_values": [tall, small]}).last_hidden_state
    visual = pipe.llm.encoders.visual
    torch.testing.assert_close(both, torch.cat([visual(tall[None])[0], visual(small[None])[0]]))


def test_equal_pixels_of_another_shape_are_another_image(chat):
    """Neither their features nor the beginnings of their prompts are shared."""
    [wide] = pictures((8, 16))
    tall = wide.reshape(3, 16, 8)
    ids = [*range(VOCAB, VOCAB + rows(wide)), 7, 8]
    inputs = [{"decoder_prompt_token_ids": ids, "pixel_values": pixels} for pixels in (wide, tall, wide)]
    first, other, _ = want = [tokens(cpu(chat, prefix_sharing=False), [each])[0] for each in inputs]
    assert first != other
    pipe = cpu(chat, block_size=4)
    assert [tokens(pipe, [each])[0] for each in inputs] == want
    cache = pipe.llm.encoders.encoder_cache
    assert (cache.hits, cache.misses) == (1, 2)


def test_pictures_become_as_many_rows_as_their_size_says(chat):
    """In this process and in those that read images, which give each page its own pixels."""
    pipe, drawn = cpu(chat), np.random.default_rng(0)
    arrays = [drawn.integers(0, 256, (*size, 3), dtype=np.uint8) for size in ((8, 16), (12, 4))]
    request = pipe.request({"prompt": "<image> w1 <image>", "images": [Picture.fromarray(x) for x in arrays]})
    assert [image.rows for image in request.images] == [8, 3]
    read = read_pixels(arrays, pipe.processor.image_source, MediaConfig())
    source = pipe.processor.with_pixels({"prompt": "<image> w1 <image>"}, read)
    assert [image.key for image in pipe.request(source).images] == [image.key for image in request.images]
    with pytest.raises(InputError, match=r"shape \(3, 6, 8\); this model takes \(3, height, width\)"):
        pipe.request({"prompt": "<image>", "images": [Picture.new("RGB", (8, 6))]})


def test_pages_of_several_sizes_under_a_decoder(page):
    """The rows that a sequence attends to are those of its own image; beams too."""
    images = pictures(*SIZES, (8, 8), (16, 16), seed=1)
    inputs = [{"pixel_values": image} for image in images]
    for options in ({}, {"num_beams": 3}):
        pipe = cpu(page)
        alone = [tokens(pipe, [each], **options)[0] for each in inputs]
        assert len({tuple(found) for found in alone}) == len(inputs), "the images make no difference"
        assert tokens(pipe, inputs, **options) == alone
        assert tokens(cpu(page, max_encoder_batch_size=2, block_size=4), inputs, **options) == alone
    found = cpu(page).encode(inputs)
    assert [len(encoding.last_hidden_state) for encoding in found] == [rows(image) for image in images]


def test_limits_are_those_of_the_largest_image(page, tmp_path):
    """An engine for fewer rows reads the images that have no more, and refuses the others one by one."""
    small, _, _, _, large = pictures(*SIZES)
    assert page.build.max_encoder_input_len == rows(large)
    pipe = Pipeline(page.limited(max_seq_len=None, max_encoder_input_len=8), RuntimeConfig(device="cpu"))
    assert tokens(pipe, [{"pixel_values": small}]) == tokens(cpu(page), [{"pixel_values": small}])
    with pytest.raises(LengthError, match="has 16 rows"):
        tokens(pipe, [{"pixel_values": large}])
    with pytest.raises(InputError, match=r"shape \(3, 6, 8\); this model takes \(3, height, width\), both multiples"):
        tokens(pipe, [{"pixel_values": torch.zeros(3, 6, 8)}])


def test_only_torch_encodes_several_sizes(page, tmp_path):
    from vlm.artifacts.native.checkpoint import Checkpoint

    checkpoint = Checkpoint.open(page.path.parent / "checkpoint")
    with pytest.raises(ConfigError, match="images of several sizes are encoded by torch alone"):
        build_engine(checkpoint, tmp_path / "engine", BuildConfig(backend="onnxruntime"))


@pytest.mark.parametrize("source", ["hf", "checkpoint"])
def test_auto_takes_a_backend_that_encodes_them(page, source, tmp_path):
    """Though another one comes first for models whose images have one size."""
    assert pick("cpu").name == "onnxruntime"
    engine = resolve(page.path.parent / source, backend="auto", cache_dir=tmp_path)
    assert EngineDir.open(engine).manifest.backend == "torch"
    vision = cpu(page).processor.vision
    assert pick("cpu", None, vision) == ("torch", "onnxruntime takes images of one size alone")


def test_tensors_of_several_sizes_are_padded_and_named(chat):
    """What Triton's preprocessing makes of images, the server's reader takes apart again."""
    pipe, images = cpu(chat), pictures((8, 8), (4, 16))
    assert "image_sizes" in {spec.name for spec in specs_of(pipe.processor, IDS_IN)}
    request = pipe.request({"prompt": "<image> w1 <image>", "pixel_values": images})
    made = padded_pixels([request, pipe.request({"prompt": "w1"})], pipe.processor.vision)
    assert made["pixel_values"].shape == (2, 2, 3, 8, 16) and made["num_images"].tolist() == [[2], [0]]
    assert made["image_sizes"].tolist() == [[[8, 8], [4, 16]], [[0, 0], [0, 0]]]
    given = {name: array[:1] for name, array in made.items()}
    given["input_ids"] = np.array([request.decoder_prompt_token_ids], np.uint32)
    [read] = read_batch(pipe.processor, given)
    for pixels, image in zip(read.source["pixel_values"], images, strict=True):
        assert torch.equal(torch.from_numpy(pixels.pixels), image)
    with pytest.raises(InputError, match="image_sizes"):
        read_batch(pipe.processor, given | {"image_sizes": np.array([[[8, 8], [4, LARGEST + 1]]], np.uint32)})


@pytest.mark.parametrize("count", [-1, 3])
def test_tensors_say_how_many_of_their_images_and_rows_count(chat, count):
    """A number below 0 left out the last ones, without a word."""
    for name, number, shape in (
        ("pixel_values", "num_images", (1, 2, 3, 8, 8)),
        ("request_prompt_embedding", "request_prompt_lengths", (1, 2, 16)),
    ):
        rows = {"input_ids": np.ones((1, 2), np.uint32), name: np.zeros(shape, np.float32)}
        with pytest.raises(InputError, match=f"{number} is {count}; {name} has 2 of them"):
            read_batch(cpu(chat).processor, rows | {number: np.array([[count]], np.int32)})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_pixel_values_are_finite(chat, page, value):
    [image] = pictures((8, 8))
    image[1, 2, 3] = value
    for pipe, source in ((cpu(chat), {"prompt": "<image> w1"}), (cpu(page), {})):
        for pixels in (image, ImagePixels.of(image.numpy())):  # as Python has it, and as servers
            with pytest.raises(InputError, match=r"NaN or infinite; give numbers that are finite\.$"):
                pipe.request({**source, "pixel_values": pixels})


def test_images_in_tensors_are_counted_before_they_are_hashed(chat, page, monkeypatch):
    """A body of 64 MB has room for ten million of a pixel each."""
    monkeypatch.setattr(ImagePixels, "of", None)
    rows = {"input_ids": np.ones((1, 2), np.uint32), "pixel_values": np.zeros((1, 1000, 3, 1, 1), np.float16)}
    for processor, words in (
        (cpu(chat).processor, "1000 images and pages are at least"),
        (cpu(page).processor, "reads one image a request, got 1000"),
    ):
        with pytest.raises(InputError, match=words):
            read_batch(processor, rows)


def test_a_key_covers_pixels_shape_and_grid():
    pixels = torch.arange(48.0).view(3, 4, 4)
    image = Image(pixels, 2)
    same = Image(pixels.clone(), 2)
    others = [Image(pixels + 1, 2), Image(pixels.view(3, 2, 8), 2), Image(pixels, 2, (1, 2)), Image(pixels, 2, (2, 1))]
    assert image.key == same.key and len({image.key, *(other.key for other in others)}) == 5
    contents = Contents.of(None, [image, Image(pixels + 1, 3)])
    assert len(contents) == 5 and contents.begins == (0, 2) and len(set(contents.keys)) == 2
    assert contents.keys[:1] == Contents.of(None, [same]).keys


def encoders_with_graphs() -> tuple[Encoders, dict]:
    """Returns encoders of images on the CPU, and the keys of passes that would be CUDA graphs."""

    class Pool(dict):
        def replay(self, key, function, pixels):
            return self.setdefault(key, function)(pixels)

    class Doubled(torch.nn.Module):
        def forward(self, pixels):
            return pixels.flatten(2).transpose(1, 2) * 2

    graphs = Pool()
    runtime, options = RuntimeConfig(), {"device": torch.device("cpu"), "dtype": torch.float32, "graphs": graphs}
    networks = TorchEncoders(Doubled(), None, max_batch_size=runtime.max_encoder_batch_size, **options)
    return Encoders(networks, runtime), graphs


def test_graphs_are_of_few_shapes():
    """Of images of any size, the first shapes have CUDA graphs, and the others are encoded without."""
    encoders, graphs = encoders_with_graphs()
    pixels = pictures(*((2, 1 + i) for i in range(MAX_GRAPH_SHAPES + 5))) * 2
    for image, features in zip(pixels, encoders.encode_pixels([Image(image, 1) for image in pixels]), strict=True):
        assert torch.equal(features, image.flatten(1).t() * 2)
    assert set(graphs) == {("encode", 2, 3, 2, 1 + i) for i in range(MAX_GRAPH_SHAPES)}


def test_passes_leave_little_of_a_graph_empty():
    sizes = {1: [1], 2: [2], 3: [4], 5: [4, 1], 6: [8], 7: [8], 8: [8], 9: [8, 1], 11: [8, 4], 12: [16], 21: [16, 4, 1]}
    assert {count: pass_sizes(count, 32) for count in sizes} == sizes
    # memory is for no more than are asked for
    assert [pass_sizes(count, count) for count in (1, 3, 6, 7, 8)] == [[1], [2, 1], [4, 2], [4, 4], [8]]


def test_graphs_are_of_numbers_of_images_that_warming_up_meets():
    encoders, graphs = encoders_with_graphs()
    for count in range(1, 9):
        images = pictures(*[(2, 3)] * count)
        features = encoders.encode_pixels([Image(image, 1) for image in images])
        assert len(features) == count
        assert all(torch.equal(x, image.flatten(1).t() * 2) for x, image in zip(features, images, strict=True))
    assert set(graphs) == {("encode", count, 3, 2, 3) for count in (1, 2, 4, 8)}
