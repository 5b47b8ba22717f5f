"""Families that come in folders of their own, on ONNX Runtime, against the maths that their own tests put together."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("onnxruntime", reason="needs the onnx extra")

from tests.kits.publications.fairseq_kit import Published
from tests.kits.publications.nemo_t5_kit import NemoT5, bert_file
from tests.parity.decoders import test_gpt_variants as gpt
from tests.parity.text import test_fairseq as fairseq
from tests.parity.text import test_nemo_t5 as nemo_t5
from tests.parity.vision_language import test_vila as vila
from vlm.api.pipeline import Pipeline
from vlm.build.builder import build_engine
from vlm.config import BuildConfig, RuntimeConfig
from vlm.convert.folder import convert_folder

pytestmark = pytest.mark.slow


def compiled(folder, tmp_path) -> Pipeline:
    checkpoint = convert_folder(folder, tmp_path / "checkpoint")
    engine = build_engine(checkpoint, tmp_path / "engine", BuildConfig(backend="onnxruntime", max_batch_size=3))
    return Pipeline(engine, RuntimeConfig(device="cpu", max_prefill_tokens=40))


@pytest.mark.parametrize("make", vila.SHAPES.values(), ids=vila.SHAPES)
def test_vila(make, tmp_path):
    model = make()
    images = torch.randn(3, 3, model.size, model.size, generator=torch.Generator().manual_seed(2))
    pipe = compiled(model.write(tmp_path / "vila"), tmp_path)
    inputs = [vila.ours(model, prompt, images[which]) for prompt, which in vila.PROMPTS]
    found = [out.token_ids for out in pipe.generate(inputs, max_new_tokens=12)]
    assert found == [model.continued(prompt, images[which], 12) for prompt, which in vila.PROMPTS]


@pytest.mark.parametrize("options", gpt.SHAPES.values(), ids=gpt.SHAPES)
def test_gpt_next(options, tmp_path):
    """A part of each head is turned by its position, or all of it, or none."""
    model = gpt.GPTNext(seed=7, **options)
    found = compiled(model.write(tmp_path / "nemo"), tmp_path).generate(gpt.inputs(), max_new_tokens=15)
    assert [out.token_ids for out in found] == [model.continued(p, 15) for p in gpt.PROMPTS]


@pytest.mark.parametrize("name", list(nemo_t5.VARIANTS)[:5:2])
def test_nemo_t5(name, tmp_path):
    model = NemoT5(nemo_t5.VARIANTS[name], seed=7)
    folder = model.unpacked(tmp_path / "content", bert_file(tmp_path), tokenizer=nemo_t5.PIECES)
    pipe = compiled(folder, tmp_path)
    found = pipe.generate([{"text": text} for text in nemo_t5.TEXTS], max_new_tokens=12)
    ids = [pipe.tokenizer.encode(text) for text in nemo_t5.TEXTS]
    assert [out.token_ids for out in found] == [model.written(text, 12, ids=45, start=2, end=3) for text in ids]


@pytest.mark.parametrize("name", list(fairseq.SHAPES)[:5:2])
def test_fairseq(name, tmp_path):
    options, written = fairseq.SHAPES[name]
    model = Published(seed=5, **options)
    found = compiled(model.write(tmp_path / "fairseq", **written), tmp_path).generate(fairseq.TEXTS, max_new_tokens=12)
    for text, out in zip(fairseq.TEXTS, found, strict=True):
        ids = [4 + int(word[1:]) if word != "unheard" else 3 for word in text.split()] + [2]
        tokens, logprobs = model.greedy(ids, 12)
        assert out.token_ids == tokens
        torch.testing.assert_close(out.logprobs, logprobs, atol=1e-4, rtol=1e-5)
