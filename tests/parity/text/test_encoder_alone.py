"""An encoder without its decoder, against Hugging Face's T5EncoderModel, FP32 on the CPU: states, attentions."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import MT5EncoderModel, T5EncoderModel

import vlm
from tests.kits.models import tiny
from tests.kits.models.engines import engine_dir
from tests.parity.cases import parity
from vlm.api.pipeline import Pipeline
from vlm.artifacts.native.engine_dir import EngineDir
from vlm.build.builder import build_engine
from vlm.build.store import resolve
from vlm.config import BuildConfig, RuntimeConfig
from vlm.convert.folder import convert_folder
from vlm.errors import ConfigError, EngineError, InputError, LimitError
from vlm.registry.catalogs import match_family

LENGTHS = (14, 3, 21, 1, 7)
CPU = RuntimeConfig(device="cpu")


def t5_v1_1():
    return tiny.t5(seed=3, feed_forward_proj="gated-gelu", tied=False, num_layers=3, num_decoder_layers=2)


KINDS = {"t5": (lambda: tiny.t5(seed=1), T5EncoderModel), "t5 v1.1": (t5_v1_1, T5EncoderModel),
         "mt5": (lambda: tiny.t5(kind="mt5", tied=False), MT5EncoderModel)}  # fmt: skip


@pytest.fixture(scope="module", params=parity({"t5-encoder": KINDS}))
def subject(request, tmp_path_factory):
    """(Hugging Face's encoder, the folder that it is saved in, and that of the whole model)"""
    make, kind = request.param.make
    folder = tmp_path_factory.mktemp("encoder")
    make().save_pretrained(folder / "whole")
    encoder = kind.from_pretrained(folder / "whole").eval()
    encoder.save_pretrained(folder / "alone")
    assert match_family(encoder.config.to_dict()).name == request.param.family
    return encoder, folder / "alone", folder / "whole"


@torch.no_grad()
def hf(encoder, ids: list[list[int]]):
    """A batch as Hugging Face has it: padded, with a mask."""
    longest = max(map(len, ids))
    mask = torch.tensor([[1] * len(x) + [0] * (longest - len(x)) for x in ids])
    padded = torch.tensor([x + [0] * (longest - len(x)) for x in ids])
    encoder.set_attn_implementation("eager")
    return encoder(padded, attention_mask=mask, output_attentions=True, output_hidden_states=True)


def check(encodings, encoder, ids) -> None:
    want = hf(encoder, ids)
    for i, (found, own) in enumerate(zip(encodings, ids, strict=True)):
        n = len(own)
        torch.testing.assert_close(found.last_hidden_state, want.last_hidden_state[i, :n], atol=1e-4, rtol=1e-4)
        for ours, theirs in zip(found.attentions, want.attentions, strict=True):
            torch.testing.assert_close(ours, theirs[i, :, :n, :n], atol=1e-5, rtol=1e-4)
        for ours, theirs in zip(found.hidden_states, want.hidden_states, strict=True):
            torch.testing.assert_close(ours, theirs[i, :n], atol=1e-4, rtol=1e-4)


def parameters(pipeline: Pipeline) -> int:
    """Counts the parameters of all modules that it holds."""
    parts = [pipeline.llm.encoders.visual, pipeline.llm.encoders.encoder]
    return sum(p.numel() for part in parts if isinstance(part, torch.nn.Module) for p in part.parameters())


def test_a_saved_encoder_is_converted_built_and_run(subject, tmp_path):
    encoder, folder, _ = subject
    checkpoint = convert_folder(folder, tmp_path / "checkpoint")
    engine = build_engine(checkpoint, tmp_path / "engine", BuildConfig())
    assert engine.roles == {"encoder": "t5-encoder"} and not engine.generates and engine.family == "t5-encoder"
    pipeline = Pipeline(engine, CPU)
    ids = tiny.texts(encoder, LENGTHS)
    check(pipeline.encode([{"encoder_input_ids": x} for x in ids], attentions=True, hidden_states=True), encoder, ids)
    assert parameters(pipeline) == sum(p.numel() for p in encoder.parameters())


def test_the_encoder_of_a_whole_model_is_loaded_alone(subject, tmp_path):
    encoder, _, folder = subject
    loaded = vlm.load(folder, device="cpu", encoder_only=True, cache_dir=tmp_path)
    ids = tiny.texts(encoder, LENGTHS)
    check(loaded.encode([{"encoder_input_ids": x} for x in ids], attentions=True, hidden_states=True), encoder, ids)
    assert parameters(loaded) == sum(p.numel() for p in encoder.parameters())
    assert not hasattr(loaded.llm, "executor")


def test_it_writes_no_text_and_takes_no_more_than_it_was_built_for(subject, tmp_path):
    _, folder, _ = subject
    pipeline = vlm.load(folder, device="cpu", max_encoder_input_len=16, cache_dir=tmp_path)
    with pytest.raises(InputError, match="t5-encoder is loaded as an encoder alone, which writes no text"):
        pipeline.generate({"encoder_input_ids": [5, 6, 1]}, max_new_tokens=3)
    with pytest.raises(LimitError, match=r"17 rows \(tokens\), the engine was built for 16"):
        pipeline.encode({"encoder_input_ids": [5] * 17})
    for name in ("input_ids", "encoder_input_ids"):
        with pytest.raises(InputError, match="outside the vocabulary"):
            pipeline.encode({name: [5000]})
    with pytest.raises(ConfigError, match="an encoder alone: max_encoder_input_len is the limit"):
        resolve(folder, max_seq_len=20, cache_dir=tmp_path)


def test_a_decoder_alone_has_no_encoder_to_load(tmp_path):
    engine = engine_dir(tiny.llama(), tmp_path)
    with pytest.raises(InputError, match="llama is a decoder alone"):
        EngineDir.open(engine.path).without_decoder()


@pytest.mark.slow
def test_onnx_runtime_runs_an_encoder_alone(tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    tiny.t5(seed=1).save_pretrained(tmp_path / "whole")
    encoder = T5EncoderModel.from_pretrained(tmp_path / "whole").eval()
    encoder.save_pretrained(tmp_path / "alone")
    assert json.loads((tmp_path / "alone" / "config.json").read_text())["architectures"] == ["T5EncoderModel"]
    pipeline = vlm.load(tmp_path / "alone", device="cpu", backend="onnxruntime", cache_dir=tmp_path / "cache")
    ids = tiny.texts(encoder, LENGTHS)
    want = hf(encoder, ids).last_hidden_state
    for i, found in enumerate(pipeline.encode([{"encoder_input_ids": x} for x in ids])):
        torch.testing.assert_close(found.last_hidden_state, want[i, : len(ids[i])], atol=1e-4, rtol=1e-4)


def test_what_needs_a_decoder_says_so(tmp_path):
    from vlm_app.server.repository.triton_options import ExportConfig
    from vlm_app.triton.export import export

    tiny.t5(seed=1).save_pretrained(tmp_path / "whole")
    T5EncoderModel.from_pretrained(tmp_path / "whole").save_pretrained(tmp_path / "alone")
    engine = EngineDir.open(resolve(tmp_path / "alone", cache_dir=tmp_path / "cache"))
    with pytest.raises(EngineError, match="is an encoder alone: max_encoder_input_len is its limit"):
        resolve(engine.path, max_seq_len=65)
    with pytest.raises(InputError, match=r"t5-encoder is an encoder alone, .* vlm serve --model-repository"):
        export(engine, tmp_path / "repository", ExportConfig("t5", 8))
