"""Passes over images of any size as graphs: of the sizes that come again, whatever else is in the pictures."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.kits.models.engines import engine_dir
from tests.kits.models.families import MODELS
from tests.unit.executor.test_replayed_passes import Replayed
from vlm.api.pipeline import Pipeline
from vlm.config import RuntimeConfig
from vlm.executor.graph_pool import MAX_GRAPH_SHAPES, GraphShapes
from vlm.executor.inputs.upload import upload_images
from vlm.requests.image import Image
from vlm.requests.pixels import Normalization

NORMALIZATION = Normalization((120.0, 110.0, 100.0), (60.0, 61.0, 62.0))
SIDES = (2, 3), (4, 2), (2, 3), (3, 5)  # squares of merged patches, down and across


def images_of(config, sides, generator, *, levels: bool) -> list[Image]:
    """Images of other pixels each time: levels, or values."""
    square = config.patch_size * config.merge_size
    shapes = [(config.num_channels, down * square, across * square) for down, across in sides]
    draw = lambda shape: torch.randint(256, shape, generator=generator, dtype=torch.uint8)  # noqa: E731
    kind = {"normalization": NORMALIZATION} if levels else {}
    pixels = [draw(shape) if levels else draw(shape) / 128.0 - 1 for shape in shapes]
    return [Image(x, config.rows_of(*x.shape[1:]), config.grid_of(*x.shape[1:]), **kind) for x in pixels]


@pytest.mark.parametrize("name", ["lighton-ocr", "qwen2.5-vl", "qwen2-vl", "pix2struct"])
def test_features_of_graphs_are_those_of_eager_passes(name, tmp_path):
    pipe = Pipeline(engine_dir(MODELS[name](), tmp_path, max_batch_size=2), RuntimeConfig(device="cpu"))
    encoder, pool, generator = pipe.llm.encoders.patch_encoder, Replayed(), torch.Generator().manual_seed(0)
    assert encoder is not None
    encoder.most = 2  # so that there are passes of several shapes
    for count, levels in itertools.product(range(1, 5), (True, False)):
        images = images_of(encoder.config, SIDES, generator, levels=levels)
        encoder.graphs = None
        want = pipe.llm.encoders.encode_pixels(images)
        encoder.graphs = pool
        found = pipe.llm.encoders.encode_pixels(images)
        assert [len(each) for each in found] == [image.rows for image in images]
        for ours, theirs in zip(found, want, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
        assert len(pool.passes) == (0 if count == 1 and levels else 2)  # of the sizes that were met before


def test_without_memory_for_a_graph_passes_run_as_they_are(tmp_path):
    """And it is not tried again."""
    pipe = Pipeline(engine_dir(MODELS["lighton-ocr"](), tmp_path, max_batch_size=2), RuntimeConfig(device="cpu"))
    encoder, generator = pipe.llm.encoders.patch_encoder, torch.Generator().manual_seed(2)
    encoder.graphs = pool = Full()
    for _ in range(4):
        images = images_of(encoder.config, SIDES[:1], generator, levels=True)
        [found] = encoder.encode(images)
        assert torch.equal(found, encoder._pass_over(images)(upload_images(images, encoder.device, encoder.dtype)))
    assert pool.tried == 1 and not pool.passes


class Full(Replayed):
    """Has no memory for a graph."""

    tried = 0

    def capture(self, key, function, *inputs):
        self.tried += 1
        raise torch.OutOfMemoryError("CUDA out of memory.")


def test_images_of_more_patches_than_a_pass_has_are_no_graphs(tmp_path):
    pipe = Pipeline(engine_dir(MODELS["lighton-ocr"](), tmp_path, max_batch_size=2), RuntimeConfig(device="cpu"))
    encoder, pool, generator = pipe.llm.encoders.patch_encoder, Replayed(), torch.Generator().manual_seed(0)
    encoder.graphs, encoder.most_patches = pool, 4 * encoder.config.merge_size**2
    for _ in range(3):
        encoder.encode(images_of(encoder.config, [(2, 3)], generator, levels=True))
    assert not pool.passes


def test_shapes_are_graphs_when_they_come_again():
    shapes = GraphShapes(after=1)
    assert [shapes.chooses(shape) for shape in ("a", "b", "a", "a", "c", "b")] == [
        False,
        False,
        True,
        True,
        False,
        True,
    ]
    for number in range(1000):  # none of which comes again
        assert not shapes.chooses(number)
    first = GraphShapes()
    assert [first.chooses(number % 20) for number in range(40)] == [n % 20 < MAX_GRAPH_SHAPES for n in range(40)]
