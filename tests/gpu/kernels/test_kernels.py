"""The kernels on a real device against their plain-torch references."""

from __future__ import annotations

import pytest
import torch

from tests.kits.kernels.kernel_names import NAMES
from vlm.ops.activation import ACTIVATIONS, Activation
from vlm.ops.products.linear import linear

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible"),
]


@pytest.mark.parametrize("name", NAMES)
def test_kernel_equals_its_reference(name):
    from tests.kits.kernels.kernel_cases import CASES

    assert sorted(CASES) == sorted(NAMES)
    torch.manual_seed(0)
    CASES[name](torch.device("cuda"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 8, 96])
def test_half_precision_attention_at_nougat_size(rows, dtype):
    from vlm.ops.attention import paged_attention as op
    from vlm.ops.layouts.paged_kv import ARRIVALS, PagedKV

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


@torch.inference_mode()
@pytest.mark.parametrize("dtype, tolerance", [(torch.float16, 1e-3), (torch.bfloat16, 4e-3)])
@pytest.mark.parametrize("rows", [1, 2, 8, 32, 200])
def test_a_head_of_gpt2s_vocabulary(rows, dtype, tolerance):
    """Its padding, which is NaN here, shows neither in the logits nor in what is chosen by them."""
    from tests.kits.kernels.step_end_cases import slots_that_decode
    from vlm.ops.layouts.padded_rows import padded, with_padding
    from vlm.ops.products.linear import linear
    from vlm.ops.sampling import sample, topk_logprobs
    from vlm.ops.sampling.append_likeliest import append_likeliest

    torch.manual_seed(0)
    x, table, bias = (torch.randn(*size, device="cuda") for size in ((rows, 1024), (50257, 1024), (50257,)))
    x, weight, bias = x.to(dtype), padded((table / 32).to(dtype)), padded(bias.to(dtype))
    for values in (weight, bias):
        with_padding(values)[50257:] = torch.nan
    for added in (None, bias):
        want = torch.nn.functional.linear(x.double(), weight.double(), None if added is None else added.double())
        logits = linear(x, weight, added)
        assert logits.shape == want.shape and (logits - want).norm() < tolerance * want.norm()
        state = slots_that_decode(rows, logits.device)
        append_likeliest(state, torch.arange(rows, dtype=torch.int32, device="cuda"), logits)
        token, logprob = state.tokens[:rows, 1].long(), state.logprobs[:rows, 1]
        assert torch.equal(logits.gather(1, token[:, None])[:, 0], logits.amax(1))
        torch.testing.assert_close(logprob, sample.log_probability(logits, token), atol=1e-3, rtol=1e-3)
        values, ids, _ = topk_logprobs.topk_logprobs(logits, 5)
        assert torch.equal(values, topk_logprobs.reference(logits, 5)[0]) and ids.max() < 50257


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 1e-3), (torch.bfloat16, 8e-3)])
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("biased", [True, False])
def test_products_of_many_rows_end_with_their_activation(name, biased, dtype, tolerance):
    torch.manual_seed(0)
    x, weight = (torch.randn(size, device="cuda", dtype=dtype) for size in ((700, 256), (512, 256)))
    bias = torch.randn(512, device="cuda", dtype=dtype) if biased else None
    with torch.inference_mode():
        found = linear(x, weight * 0.1, bias, activation=Activation(name))
        whole = None if bias is None else bias.double()
        want = ACTIVATIONS[name](torch.nn.functional.linear(x.double(), (weight * 0.1).double(), whole))
    assert found.dtype == dtype and float((found.double() - want).norm() / want.norm()) < tolerance
