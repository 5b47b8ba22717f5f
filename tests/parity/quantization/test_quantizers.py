"""Every program that quantizes and is installed makes its folders anew, and they compute what its weights give."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from tests.kits.quantized_folders import built, expected_of, prompt_logits
from tests.kits.quantizers import MAKERS

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
PROGRAMS = {"ct": "llmcompressor", "gptq": "gptqmodel", "awq": "awq", "bnb": "bitsandbytes", "modelopt": "modelopt"}
# weights that are rounded again, rows that are rounded by 127 and not 127.5, scales of the cache that are left out
ROUNDED = (
    "bnb-nf4",
    "bnb-nf4-double",
    "bnb-fp4",
    "gptq-8",
    "ct-w8a16-groups",
    "ct-int8-dynamic",
    "ct-bart",
    "ct-kv-cache",
)


@pytest.mark.parametrize("name", MAKERS)
def test_a_program_s_folder(name, tmp_path):
    if importlib.util.find_spec(program := PROGRAMS[name.partition("-")[0]]) is None:
        pytest.skip(f"{program} is not installed")
    MAKERS[name](tmp_path / name)
    _, pipe = built(tmp_path / name, tmp_path)
    ours, theirs = prompt_logits(pipe, expected_of(tmp_path / name))
    tolerance = 0.15 * float(theirs.abs().max()) if name in ROUNDED else 5e-4
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=1e-4)
