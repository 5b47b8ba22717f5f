"""How pages become an engine's input on machines that have none of its files."""

from __future__ import annotations

import json
import pickle
import shutil

import numpy as np
import pytest
from PIL import Image

from visual_engines.images.nougat_images import NOUGAT_IMAGES
from vlm.errors import EngineError
from vlm.processing.media.image_processor import ProcessorSource
from vlm_app.ocr.documents.page_reading import PageImages
from vlm_app.ocr.readers.shipped_images import ShippedImages


def test_settings_travel_by_their_content(tmp_path, monkeypatch):
    monkeypatch.setenv("VLM_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "engine"
    folder.mkdir()
    settings = {
        "image_processor_type": "NougatImageProcessor",
        "size": {"height": 40, "width": 24},
        "do_thumbnail": False,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    images = PageImages(ProcessorSource(folder, (NOUGAT_IMAGES,), (32, 24), fixed_size=False), exact_pixels=True)
    picture = Image.new("RGB", (100, 80), (9, 99, 199))
    own = images.source.load().read(picture)
    assert own.pixels.shape == (3, 40, 24)  # as the settings have it
    content = pickle.dumps(ShippedImages.packed(images))
    shutil.rmtree(folder)
    shipped = pickle.loads(content)
    there = shipped.unpacked()
    assert there.exact_pixels and hash(shipped) == hash(pickle.loads(content))
    assert np.array_equal(there.source.load().read(picture).pixels, own.pixels)
    assert shipped.unpacked() == pickle.loads(content).unpacked() == there  # processes of one machine share the files
    assert [path.parent for path in tmp_path.rglob("preprocessor_config.json")] == [there.source.folder]


def test_a_machine_without_room_is_told_of(tmp_path, monkeypatch):
    (tmp_path / "preprocessor_config.json").write_text("{}")
    images = PageImages(ProcessorSource(tmp_path, (NOUGAT_IMAGES,), (32, 24)))
    monkeypatch.setenv("VLM_CACHE", str(tmp_path / "preprocessor_config.json"))
    with pytest.raises(EngineError, match="set VLM_CACHE to a writable folder"):
        ShippedImages.packed(images).unpacked()


def test_models_without_settings_have_none_to_send():
    images = PageImages(ProcessorSource(None, (NOUGAT_IMAGES,), (32, 24)))
    assert ShippedImages.packed(images).unpacked() == images
