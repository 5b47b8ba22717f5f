"""Values of a file that are as long as the file: the sentence on them is not."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kits.publications.published_kit import FOLDER
from tests.unit.builder.test_mutated_folders import places
from visual_engines.images.image_processors import CLIP
from vlm.artifacts.hugging_face.generation_config import generation_defaults, standing_alone
from vlm.artifacts.native.checkpoint import Checkpoint
from vlm.artifacts.native.manifest import Manifest
from vlm.convert.adapters.peft import read_peft
from vlm.convert.roles import role_configs
from vlm.convert.values import invalid_values
from vlm.errors import ConfigError, EngineError, VlmError, cut, first_line, listed, shown
from vlm.processing.media.image_processor import ImageProcessor
from vlm.processing.text.tokenization import Tokenizer
from vlm.registry.catalogs import match_family

TEXT = "x" * 10**5
LONG = (TEXT, [TEXT], [1] * 10**5, {TEXT: 1}, {"a": TEXT}, 10**4000)
MOST = 1500  # characters of a sentence, which may name several reasons
PUBLISHED = """
    google-t5__t5-small facebook__bart-large-cnn facebook__opt-125m openai-community__gpt2
    Qwen__Qwen2.5-VL-3B-Instruct microsoft__Florence-2-base facebook__nougat-small Salesforce__blip2-flan-t5-xl
    ibm-granite__granite-docling-258M google__pix2struct-base meta-llama__Llama-3.2-1B zai-org__GLM-OCR
    quant__awq_zephyr google__t5gemma-2-270m-270m TheBloke__Llama-2-13B-chat-GPTQ
    quant__compressed-tensors_pack-quantized_Kimi-K2.5 lightonai__LightOnOCR-2-1B__Moobbot
""".split()


def changed(document: dict[str, Any]) -> Iterator[tuple[dict[str, Any], tuple]]:
    """Yields a document with one long value in it, at each of its places, and where that is."""
    values = itertools.cycle(LONG)
    for place, value in [(place, next(values)) for place in places(document) for _ in range(2)]:
        mutant = part = copy.deepcopy(document)
        for key in place[:-1]:
            part = part[key]
        part[place[-1]] = value
        yield mutant, place


@contextlib.contextmanager
def short_sentence(what: Any) -> Iterator[None]:
    try:
        yield
    except VlmError as error:
        assert len(str(error)) < MOST, (what, str(error)[:200])


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_configuration(name):
    for config, place in changed(json.loads((FOLDER / name / "config.json").read_text())):
        with short_sentence(place), invalid_values(Path(name)):
            spec = match_family(config)
            role_configs(spec, config)
            spec.generation_settings(config, standing_alone(generation_defaults(config)))


@pytest.mark.parametrize(("name", "key"), [
    ("Qwen__Qwen2.5-VL-3B-Instruct", "image_token_id"), ("Salesforce__blip2-flan-t5-xl", "image_token_index"),
    ("google__t5gemma-2-270m-270m", "image_token_index"), ("ibm-granite__granite-docling-258M", "image_token_id"),
    ("lightonai__LightOnOCR-2-1B__Moobbot", "image_token_id"), ("llava-hf__llava-1.5-7b-hf", "image_token_index"),
])  # fmt: skip
def test_a_token_of_images_that_no_vocabulary_has(name, key):
    """Of some models it was told of the first image, by an internal error."""
    config = json.loads((FOLDER / name / "config.json").read_text())
    with pytest.raises(ConfigError, match=rf"{key} is '?1099511627776'?[,;] it must be a token's id"):
        role_configs(match_family(config), config | {key: 2**40})


def test_a_stride_that_leaves_no_cell():
    """Nothing could be read with it, which torch said of the first image."""
    config = json.loads((FOLDER / "microsoft__Florence-2-base" / "config.json").read_text())
    config["vision_config"]["patch_stride"][0] = 2**64
    with pytest.raises(ConfigError, match=r"patch_stride \(18446744073709551616, 2, 2, 2\), .*: no images have those"):
        role_configs(match_family(config), config)


def test_a_tokenizer_that_reads_nothing(tmp_path):
    model = {"type": "WordLevel", "vocab": {"b": 0}, "unk_token": TEXT}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    tokenizer = Tokenizer.from_dir(tmp_path)
    assert tokenizer is not None
    with pytest.raises(EngineError, match=r"reads no text: WordLevel error: Missing .*; fetch it again"):
        tokenizer.ends  # noqa: B018


@pytest.mark.parametrize("value", LONG, ids=lambda value: type(value).__name__)
def test_files_that_name_what_they_are(value, tmp_path):
    files = {"manifest.json": "format_version", "config.json": "format_version", "adapter_config.json": "peft_type"}
    readers = (Manifest.read, Checkpoint.open, read_peft)
    for (file, key), read in zip(files.items(), readers, strict=True):
        (tmp_path / file).write_text(json.dumps({key: value, "family": "t5", "roles": {}}))
        with pytest.raises(VlmError) as caught:
            read(tmp_path)
        assert len(str(caught.value)) < MOST + len(str(tmp_path))


@pytest.mark.parametrize("value", LONG, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("key", ["image_mean", "resample", "size", "image_processor_type"])
def test_settings_of_images(key, value, tmp_path):
    for whole in (value, [value, 0.5, 0.5]):
        (tmp_path / "preprocessor_config.json").write_text(json.dumps({key: whole}))
        with short_sentence(key):
            ImageProcessor.from_dir(tmp_path, [CLIP])


def test_what_is_shown_of_a_value():
    assert shown("a" * 98) == repr("a" * 98) and cut("a" * 100) == "a" * 100
    assert shown("a" * 99) == f"'{'a' * 99}…" and cut("a" * 101) == f"{'a' * 100}…"
    assert len(listed([TEXT] * 9)) < 8 * 510 and listed([TEXT] * 9).endswith("… and 1 more")
    assert len(first_line(ValueError(TEXT))) == 301
