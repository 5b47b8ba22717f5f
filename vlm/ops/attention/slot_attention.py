"""Attention over linear caches, a slot a sequence, and the writing of them: what graphs of other runtimes are made of.

The torch form of both is but the definition, which exported graphs are compared with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

DOMAIN, ATTENTION = "trt", "TRT_Attention"
ATTRIBUTES = {"is_causal": "INT", "causal_kind": "STRING", "TRT_decomposable": "INT"}


@torch.library.custom_op(
    "vlm::slot_attention",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor lengths, bool causal) -> Tensor",
)
def slot_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, lengths: Tensor, causal: bool) -> Tensor:
    """Computes softmax(q kᵀ + mask) v over the first `lengths` keys of each sequence.

    q [B, H, S, D], scaled already; k, v [B, H_kv, T, D], H a multiple of H_kv; mask: what is added, [B or 1, H, S, T];
    lengths [B] int64; `causal`: the last query sees them all, each one before it one less -> [B, H, S, D]
    """
    groups, queries, keys = q.shape[1] // k.shape[1], q.shape[2], torch.arange(k.shape[2], device=q.device)
    k, v = (x.repeat_interleave(groups, 1).float() for x in (k, v))
    scores = q.float() @ k.mT
    if mask is not None:
        scores = scores + mask.float()
    reach = lengths[:, None].expand(-1, queries)
    if causal:
        reach = reach - torch.arange(queries - 1, -1, -1, device=q.device)
    unseen = keys >= reach[:, None, :, None]
    return (scores.masked_fill(unseen, float("-inf")).softmax(-1) @ v).to(q.dtype)


@slot_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, lengths: Tensor, causal: bool) -> Tensor:
    return torch.empty_like(q)


@torch.library.custom_op(
    "vlm::slot_write", mutates_args=(), schema="(Tensor cache, Tensor rows, Tensor starts) -> Tensor"
)
def slot_write(cache: Tensor, rows: Tensor, starts: Tensor) -> Tensor:
    """Returns the cache [B, H, T, D] with rows [B, H, S, D] from starts[b] on; starts [B] int64, starts + S <= T"""
    at = starts[:, None] + torch.arange(rows.shape[2], device=rows.device)
    return cache.scatter(2, at[:, None, :, None].expand_as(rows), rows)


@slot_write.register_fake
def _(cache: Tensor, rows: Tensor, starts: Tensor) -> Tensor:
    return torch.empty_like(cache)


def lowerings() -> dict[Any, Callable[..., Any]]:
    """Returns the ONNX nodes of both. Attention is TensorRT's own operator: its parser drops the lengths of the
    standard one and aligns its causal mask to the first key; `attention_function` says to other runtimes what it is."""
    from onnxscript.values import Opset

    _register()
    standard, trt = Opset("", 24), Opset(DOMAIN, 1)

    def attention(q, k, v, mask, lengths, causal: bool):
        kind = "lower_right" if causal else "none"
        return trt.TRT_Attention(
            q, k, v, mask, None, lengths, causal_kind=kind, is_causal=int(causal), TRT_decomposable=1
        )

    def write(cache, rows, starts):
        return standard.TensorScatter(cache, rows, starts, axis=-2, mode="linear")

    ops = torch.ops.vlm
    return {ops.slot_attention.default: attention, ops.slot_write.default: write}


def attention_function() -> Any:
    """Returns the body of TRT_Attention in standard operators, a FunctionProto."""
    from onnx import AttributeProto, helper

    inputs = ["q", "k", "v", "mask", "query_lengths", "lengths"]
    node = helper.make_node("Attention", ["q", "k", "v", "mask", "", "", "lengths"], ["y"], scale=1.0)
    causal = AttributeProto(name="is_causal", ref_attr_name="is_causal", type=AttributeProto.INT)
    node.attribute.append(causal)
    return helper.make_function(
        DOMAIN, ATTENTION, inputs, ["y"], [node], [helper.make_opsetid("", 24)], attributes=list(ATTRIBUTES)
    )


def _register() -> None:
    """Makes the operator known to the exporter."""
    from onnx import defs

    if defs.has(ATTENTION, DOMAIN):
        return
    schema = defs.OpSchema
    parameter, maybe = schema.FormalParameter, schema.FormalParameterOption.Optional
    floats = ["tensor(float)", "tensor(float16)", "tensor(bfloat16)"]
    inputs = [parameter(name, "T") for name in ("q", "k", "v")]
    inputs += [parameter("mask", "T", param_option=maybe)]
    inputs += [parameter(name, "I", param_option=maybe) for name in ("query_lengths", "lengths")]
    defs.register_schema(
        schema(
            ATTENTION,
            DOMAIN,
            1,
            inputs=inputs,
            outputs=[parameter("y", "T")],
            type_constraints=[("T", floats, ""), ("I", ["tensor(int64)"], "")],
            attributes=[schema.Attribute(n, getattr(schema.AttrType, kind)) for n, kind in ATTRIBUTES.items()],
        )
    )
