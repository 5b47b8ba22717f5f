"""Published text models in small against `from_pretrained`, FP32 on the CPU: what a first user brings works, or is
refused with a sentence."""

from __future__ import annotations

import dataclasses
import json
import shutil

import pytest
import torch

from tests.kits.models import tiny
from tests.kits.publications import published_kit as kit
from vlm.api.pipeline import Pipeline
from vlm.artifacts.native.engine_dir import EngineDir
from vlm.build.builder import build_engine
from vlm.config import BuildConfig, RuntimeConfig
from vlm.convert.folder import convert_folder
from vlm.errors import VlmError

pytestmark = pytest.mark.usefixtures("one_thread")
LENGTHS = (5, 1, 33)
NEW = 8
TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")


@pytest.fixture(scope="module")
def one_thread():
    """More threads than a tiny model needs wait for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def engine_of(folder) -> EngineDir:
    checkpoint = convert_folder(folder, folder / "checkpoint")
    limit = min(128, checkpoint.config("decoder")["max_positions"])
    return build_engine(checkpoint, folder / "engine", BuildConfig(max_batch_size=4, max_seq_len=limit))


def plain(engine: EngineDir) -> EngineDir:
    """The engine without the publication's generation settings."""
    kept = {name: value for name, value in engine.generation.items() if name in TOKENS}
    return dataclasses.replace(engine, manifest=dataclasses.replace(engine.manifest, generation=kept))


def pipeline(engine: EngineDir) -> Pipeline:
    return Pipeline(engine, RuntimeConfig(device="cpu", block_size=8, burst=4))


def inputs_of(model) -> list[list[int]]:
    return (tiny.texts if model.config.is_encoder_decoder else tiny.prompts)(model, LENGTHS)


def ours(pipe: Pipeline, model, texts: list[list[int]], **options) -> list:
    name = "encoder_input_ids" if model.config.is_encoder_decoder else "decoder_prompt_token_ids"
    return pipe.generate([{name: ids} for ids in texts], max_new_tokens=NEW, do_sample=False, **options)


@torch.no_grad()
def theirs(model, ids: list[int], **options) -> list[int]:
    """Hugging Face's new tokens for one input alone, up to and with the end token."""
    # Hugging Face leaves the padding token out of an input that holds it
    inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
    out = model.generate(**inputs, max_new_tokens=NEW, do_sample=False, **options)[0].tolist()
    new = out[1:] if model.config.is_encoder_decoder else out[len(ids) :]
    ends = model.generation_config.eos_token_id
    at = next((i for i, token in enumerate(new) if token in (ends if isinstance(ends, list) else [ends])), len(new))
    return new[: at + 1]


@torch.no_grad()
def log_probabilities(model, ids: list[int], tokens: list[int]) -> torch.Tensor:
    """[tokens, vocabulary]"""
    if model.config.is_encoder_decoder:
        start = model.generation_config.decoder_start_token_id
        start = model.generation_config.bos_token_id if start is None else start
        before = torch.tensor([[start, *tokens[:-1]]])
        return model(input_ids=torch.tensor([ids]), decoder_input_ids=before).logits[0].log_softmax(-1)
    return model(torch.tensor([ids + tokens[:-1]])).logits[0, len(ids) - 1 :].log_softmax(-1)


def assert_same_logits(model, folder) -> EngineDir:
    """Converts and builds the folder that `from_pretrained` made the model of; the log-probabilities of the 20
    likeliest tokens at each place must be the same."""
    engine, texts = engine_of(folder), inputs_of(model)
    for out, ids in zip(ours(pipeline(plain(engine)), model, texts, top_logprobs=20), texts, strict=True):
        exact = log_probabilities(model, ids, out.token_ids)
        for got, want in zip(out.top_logprobs, exact, strict=True):
            torch.testing.assert_close(torch.tensor(list(got.values())), want[list(got)], atol=1e-4, rtol=1e-5)
    return engine


@pytest.mark.parametrize("name", kit.supported(*kit.TEXT))
def test_published_text_model(name, tmp_path):
    model = kit.publish(name, tmp_path)
    pipe, texts = pipeline(assert_same_logits(model, tmp_path)), inputs_of(model)
    for options in ({"num_beams": 1}, {"num_beams": 3}):
        found = [out.token_ids for out in ours(pipe, model, texts, **options)]
        assert found == [theirs(model, ids, **options) for ids in texts], options
    assert len({tuple(tokens) for tokens in found}) > 1, "the texts make no difference"


@pytest.mark.parametrize("name", [name for name in kit.supported(*kit.TEXT) if kit.facts(name, "tensors.json")])
def test_names_are_those_of_the_publication(name, tmp_path):
    kit.publish(name, tmp_path)
    [index] = tmp_path.glob("*.index.json")
    published = kit.facts(name, "tensors.json")
    assert index.name == published["index"]
    assert {n for n in json.loads(index.read_text())["weight_map"] if ".1." not in n} == set(published["names"])


@pytest.mark.parametrize(("name", "reason"), kit.refused().items())
def test_refused_with_one_sentence(name, reason, tmp_path):
    shutil.copy(kit.FOLDER / name / "config.json", tmp_path)
    with pytest.raises(VlmError) as caught:
        convert_folder(tmp_path, tmp_path / "checkpoint")
    said = str(caught.value)
    assert reason in said and said.endswith(".") and "\n" not in said


def test_every_publication_has_a_case():
    cases = [*kit.supported(*kit.TEXT, *kit.VISUAL), *kit.LEFT_OUT, *kit.refused()]
    assert sorted(cases) == kit.publications()
    assert set(kit.LAYOUTS) <= set(kit.supported(*kit.TEXT, *kit.VISUAL))
