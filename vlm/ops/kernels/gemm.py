"""The product of several rows with a weight, and the activation behind it, on GPUs of compute capability 9.0: gemm.cu.

The library's products begin when the kernel ahead of them has ended, and Triton's request nothing before their rows are
there; of narrow weights both leave processors idle. Within `norms_ahead.NormsAhead` a product that a norm adds to a
residual stream waits for the norm, and this for the product behind it (product_norms.py).
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from vlm.ops.activation import Activation
from vlm.ops.kernels import nvrtc
from vlm.ops.kernels.device import num_processors
from vlm.ops.kernels.gemm_shapes import BFLOAT16, E4M3, FLOAT16, INT8, VECTOR, Shape, shape_of, suits
from vlm.ops.kernels.gemv import ACTIVATIONS, TYPES
from vlm.ops.kernels.norms_ahead import NormsAhead, Product, is_aligned
from vlm.ops.kernels.nvrtc import LINE
from vlm.ops.kernels.product_norms import Link, ahead_arguments, behind_arguments, between, may_be_followed

KINDS = {torch.int8: INT8, torch.float8_e4m3fn: E4M3, torch.float16: FLOAT16, torch.bfloat16: BFLOAT16}


@functools.cache
def is_there(device: torch.device) -> bool:
    """Tells whether the kernel runs on a device: its products are those of compute capability 9.0 alone."""
    return nvrtc.copies_boxes(device) and torch.cuda.get_device_capability(device) == (9, 0)


def fits(x: Tensor, weight: Tensor, activation: Activation | None = None, *scales: Tensor) -> bool:
    """Tells whether `linear` takes these rows and weight."""
    if not is_there(x.device):
        return False
    gated = activation is not None and activation.gated
    whole = x.shape[1] * x.element_size() % LINE == 0 and len(weight) % (2 * VECTOR if gated else VECTOR) == 0
    if not whole or x.dtype != weight.dtype or x.dtype not in KINDS or not all(map(is_aligned, (x, weight, *scales))):
        return False
    processors = num_processors(x.device)
    return suits(KINDS[x.dtype], len(x), x.shape[1], outputs=len(weight), processors=processors)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
    activation: Activation | None = None,
    *,
    scales: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Returns the activation of x weightᵀ + bias [R, N], for what `fits` says yes to: x [R, K] and weight [N, K] of one
    type, of 8 bits with scales [R, 1] and [N, 1]."""
    width = len(weight) if activation is None else activation.width(len(weight))
    y = torch.empty((len(x), width), dtype=dtype, device=x.device)
    product = Product(x, weight, bias, activation, scales, y, launch)
    ahead = NormsAhead.current()
    norm = None if ahead is None else ahead.taken_norm(x)
    if norm is not None and (link := between(norm, product)):
        launch(link.ahead, ahead=link)
        launch(product, behind=link)
        return y
    if norm is not None:
        norm.launch()
    if ahead is not None and ahead.one_reader and may_be_followed(product):
        ahead.put(product)
    else:
        launch(product)
    return y


def launch(product: Product, *, behind: Link | None = None, ahead: Link | None = None) -> None:
    """Computes a product, with its part of a link's norm where it is the one `behind` or `ahead` of that."""
    x, weight = product.x if behind is None else behind.rows, product.weight
    y = product.row if ahead is None else ahead.rows
    bias, act = product.bias, product.activation
    shape = shape_of(
        KINDS[x.dtype], len(x), x.shape[1], outputs=len(weight), gated=act is not None and act.gated,
        processors=num_processors(x.device), normed=behind is not None,
    )  # fmt: skip
    kernel = _kernel(
        shape, TYPES[y.dtype], 0 if act is None else ACTIVATIONS[act.name], None if bias is None else TYPES[bias.dtype],
        None if ahead is None else TYPES[ahead.norm.x.dtype], x.device,
    )  # fmt: skip
    x_scale, weight_scale = product.scales or (None, None)
    kernel.launch(
        (shape.splits, shape.tiles, -(-len(x) // shape.rows)), shape.threads,
        nvrtc.tensor_map(weight, shape.box_rows, 1), nvrtc.tensor_map(x, shape.rows, 1),
        weight_scale, x_scale, bias, y, len(x), *behind_arguments(behind), *ahead_arguments(ahead),
        cluster=shape.splits,
    )  # fmt: skip


@functools.cache
def _kernel(
    shape: Shape, y: int, act: int, bias: int | None, stream: int | None, device: torch.device
) -> nvrtc.CudaKernel:
    return nvrtc.CudaKernel("gemm.cu", "gemm", constants(shape, y, act, bias, stream), shape.shared)


def constants(shape: Shape, y: int, act: int, bias: int | None, stream: int | None = None) -> dict[str, int]:
    """Returns what a kernel is compiled with: the type of results, an activation, the type of a bias, if there is one,
    and that of the residual stream, if a norm follows."""
    return {
        "KIND": shape.kind, "Y_TYPE": y, "ACT": act, "GATED": int(shape.gated), "BIAS": int(bias is not None),
        "BIAS_TYPE": bias or 0, "INPUTS": shape.inputs, "OUTPUTS": shape.outputs, "GROUPS": shape.groups,
        "ROWS": shape.rows, "SPLITS": shape.splits, "STAGES": shape.stages, "NORM": int(shape.normed),
        "FOLLOWED": int(stream is not None), "STREAM": stream or 0,
    }  # fmt: skip
