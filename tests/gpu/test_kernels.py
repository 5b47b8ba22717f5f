"""The kernels on a real device against their plain-torch references."""

from __future__ import annotations

import pytest
import torch

from tests.kernel_names import NAMES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible"),
]


@pytest.mark.parametrize("name", NAMES)
def test_kernel_equals_its_reference(name):
    from tests.kernel_cases import CASES

    assert sorted(CASES) == sorted(NAMES)
    torch.manual_seed(0)
    CASES[name](torch.device("cuda"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 8, 96])
def test_half_precision_attention_at_nougat_size(rows, dtype):
    from vlm.ops import paged_attention as op
    from vlm.ops.paged_kv import ARRIVALS, PagedKV

    torch.manual_seed(0)
    keys, values = torch.randn(2, 40 * rows + 1, 16, 16, 64, device="cuda", dtype=dtype).unbind(0)
    tables = (torch.randperm(40 * rows, device="cuda", dtype=torch.int32) + 1).view(rows, 40)
    slots = torch.randperm(rows, device="cuda", dtype=torch.int32)
    lengths = torch.randint(1, 641, (rows,), device="cuda", dtype=torch.int32)
    q = torch.randn(rows, 16, 64, device="cuda", dtype=dtype)
    arrivals = torch.zeros(ARRIVALS, device="cuda", dtype=torch.int32)
    found = op.paged_attention(q, PagedKV(keys, values, arrivals=arrivals), tables, slots, lengths, 0.125)
    exact = op.reference(q.double().float(), PagedKV(keys.float(), values.float()), tables, slots, lengths, 0.125)
    relative = (found.float() - exact).norm() / exact.norm()
    # rounding of the result alone: 2^-9 of bfloat16, 2^-12 of float16, root mean square below
    assert relative < (3e-3 if dtype == torch.bfloat16 else 4e-4)
