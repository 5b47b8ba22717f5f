"""What this package brings to the registry. A light module: no torch."""

from __future__ import annotations

from visual_engines.families import (
    blip2,
    donut,
    florence2,
    idefics3,
    lighton_ocr,
    llava,
    nougat,
    pix2struct,
    qwen_vl,
    t5gemma2,
    trocr,
    vila,
)
from visual_engines.unsupported import UNSUPPORTED as UNSUPPORTED
from vlm.registry.spec import ModelRef

MODELS = (
    ModelRef("blip2-vision", "visual_engines.models.blip2:SPEC"),
    ModelRef("donut-swin", "visual_engines.models.swin:SPEC"),
    ModelRef("florence2-vision", "visual_engines.models.florence2:SPEC"),
    ModelRef("idefics3-vision", "visual_engines.models.idefics3:SPEC"),
    ModelRef("lighton-ocr-vision", "visual_engines.models.lighton_ocr:SPEC"),
    ModelRef("llava-vision", "visual_engines.models.llava:SPEC"),
    ModelRef("pix2struct-vision", "visual_engines.models.pix2struct:SPEC"),
    ModelRef("qwen-vl-vision", "visual_engines.models.qwen_vl:SPEC"),
    ModelRef("t5gemma2-vision", "visual_engines.models.t5gemma2:SPEC"),
    ModelRef("vila-vision", "visual_engines.models.vila:SPEC"),
    ModelRef("vit", "visual_engines.models.vit_encoder:SPEC"),
)
FAMILIES = (
    donut.DONUT,  # before Nougat, whose networks are the same
    nougat.NOUGAT,
    trocr.TROCR,
    florence2.FLORENCE2,
    pix2struct.PIX2STRUCT,
    lighton_ocr.LIGHTON_OCR,
    idefics3.IDEFICS3,
    qwen_vl.QWEN_VL,
    llava.LLAVA,
    blip2.BLIP2_OPT,
    blip2.BLIP2_T5,
    t5gemma2.T5GEMMA2,
    vila.VILA,
)
CONVERTERS = (vila.CONVERTER, llava.CONVERTER)  # VILA's folders look like LLaVA's
