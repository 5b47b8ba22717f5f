"""What this package brings to the registry. A light module: no torch."""

from __future__ import annotations

from llm_engines.families import (
    bart,
    fairseq,
    gpt2,
    llama,
    m2m100,
    marian,
    nemo,
    opt,
    pegasus,
    qwen,
    t5,
    t5gemma,
)
from llm_engines.unsupported import UNSUPPORTED as UNSUPPORTED
from vlm.registry.spec import ModelRef

MODELS = (
    ModelRef("bart", "llm_engines.models.bart:SPEC"),
    ModelRef("bart-encoder", "llm_engines.models.bart:ENCODER_SPEC"),
    ModelRef("gpt2", "llm_engines.models.gpt2:SPEC"),
    ModelRef("llama", "llm_engines.models.llama:SPEC"),
    ModelRef("opt", "llm_engines.models.opt:SPEC"),
    ModelRef("pix2struct-text", "llm_engines.models.pix2struct_text:SPEC"),
    ModelRef("t5", "llm_engines.models.t5:SPEC"),
    ModelRef("t5-encoder", "llm_engines.models.t5:ENCODER_SPEC"),
    ModelRef("t5gemma", "llm_engines.models.t5gemma:SPEC"),
    ModelRef("t5gemma-encoder", "llm_engines.models.t5gemma:ENCODER_SPEC"),
    ModelRef("t5gemma2", "llm_engines.models.t5gemma2:SPEC"),
    ModelRef("t5gemma2-encoder", "llm_engines.models.t5gemma2:ENCODER_SPEC"),
)
FAMILIES = (
    t5.T5_ENCODER,
    t5.T5,
    bart.BART,
    m2m100.M2M100,
    marian.MARIAN,
    pegasus.PEGASUS,
    t5gemma.T5GEMMA,
    fairseq.FAIRSEQ,
    llama.LLAMA,
    qwen.QWEN,
    opt.OPT,
    gpt2.GPT2,
)
CONVERTERS = (fairseq.CONVERTER, nemo.CONVERTER)
