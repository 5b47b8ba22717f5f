"""Small ONNX graphs after the contract of exported ones, to build plans of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HEADS, HEAD_DIM, MAX_SEQ_LEN, VOCAB = 2, 32, 64, 50
WIDTH = HEADS * HEAD_DIM
TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
node, port = helper.make_node, helper.make_tensor_value_info


def decoder(
    path: Path,
    dtype: str = "float32",
    *,
    attention: str = "trt",
    lengths: bool = True,
    causal: str | None = "lower_right",
) -> Path:
    """One layer of self-attention over a cache; `attention` is "trt" or "standard"."""
    kind, steps = TYPES[dtype], _project() + _write()
    steps += [_attend(attention, lengths, causal), *_last_logits()]
    inputs = [port("token_ids", TensorProto.INT64, ["batch", "span"])]
    inputs += [port(name, TensorProto.INT64, ["batch"]) for name in ("starts", "counts")]
    shape = ["batch", HEADS, MAX_SEQ_LEN, HEAD_DIM]
    inputs += [port(f"self_{part}_0", kind, shape) for part in "kv"]
    outputs = [port("logits", kind, ["batch", VOCAB])] + [port(f"self_{part}_0_out", kind, shape) for part in "kv"]
    weights = [_weight("embedding", (VOCAB, WIDTH), kind), _weight("qkv", (WIDTH, 3 * WIDTH), kind)]
    weights += [_weight("head", (WIDTH, VOCAB), kind), _ints("zero", [0]), _ints("one", [1])]
    weights += [_ints("split", [0, 0, 3, HEADS, HEAD_DIM]), _ints("joined", [0, 0, WIDTH])]
    return _save(path, steps, inputs, outputs, weights, [_function()] if attention == "trt" else [])


def visual(path: Path, dtype: str = "float32") -> Path:
    """[batch, 3, 8, 8] -> [batch, 4, WIDTH]"""
    kind = TYPES[dtype]
    steps = [
        node("Conv", ["pixel_values", "patches"], ["grid"], kernel_shape=[4, 4], strides=[4, 4]),
        node("Reshape", ["grid", "shape"], ["rows"]),
        node("Transpose", ["rows"], ["features"], perm=[0, 2, 1]),
    ]
    inputs = [port("pixel_values", kind, ["batch", 3, 8, 8])]
    outputs = [port("features", kind, ["batch", 4, WIDTH])]
    return _save(
        path, steps, inputs, outputs, [_weight("patches", (WIDTH, 3, 4, 4), kind), _ints("shape", [0, WIDTH, 4])]
    )


def cross(path: Path, dtype: str = "float32") -> Path:
    """hidden -> cross_k_0, cross_v_0"""
    kind, steps = TYPES[dtype], []
    for part in "kv":
        steps += [
            node("MatMul", ["hidden", f"w{part}"], [f"{part}1"]),
            node("Reshape", [f"{part}1", "split"], [f"{part}2"]),
        ]
        steps.append(node("Transpose", [f"{part}2"], [f"cross_{part}_0"], perm=[0, 2, 1, 3]))
    outputs = [port(f"cross_{part}_0", kind, ["batch", HEADS, "span", HEAD_DIM]) for part in "kv"]
    weights = [*(_weight(f"w{part}", (WIDTH, WIDTH), kind) for part in "kv"), _ints("split", [0, 0, HEADS, HEAD_DIM])]
    return _save(path, steps, [port("hidden", kind, ["batch", "span", WIDTH])], outputs, weights)


def _project() -> list[onnx.NodeProto]:
    return [
        node("Gather", ["embedding", "token_ids"], ["x"]),
        node("MatMul", ["x", "qkv"], ["projected"]),
        node("Reshape", ["projected", "split"], ["parts"]),
        node("Transpose", ["parts"], ["stacked"], perm=[2, 0, 3, 1, 4]),
        node("Split", ["stacked"], ["q1", "k1", "v1"], axis=0, num_outputs=3),
        *(node("Squeeze", [f"{part}1", "zero"], [part]) for part in "qkv"),
    ]


def _write() -> list[onnx.NodeProto]:
    return [
        node("TensorScatter", [f"self_{p}_0", p, "starts"], [f"self_{p}_0_out"], axis=-2, mode="linear") for p in "kv"
    ] + [node("Shape", ["token_ids"], ["span"], start=1, end=2), node("Add", ["starts", "span"], ["filled"])]


def _attend(attention: str, lengths: bool, causal: str | None) -> onnx.NodeProto:
    tensors = ["q", "self_k_0_out", "self_v_0_out"]
    filled = ["filled"] if lengths else []
    if attention == "standard":
        return node("Attention", [*tensors, "", "", "", *filled], ["y"], name="attention_0", is_causal=1, scale=1.0)
    kinds = {} if causal is None else {"causal_kind": causal, "is_causal": int(causal != "none")}
    inputs = [*tensors, "", "", *filled]
    return node("TRT_Attention", inputs, ["y"], name="attention_0", domain="trt", TRT_decomposable=1, **kinds)


def _last_logits() -> list[onnx.NodeProto]:
    return [
        node("Transpose", ["y"], ["tokens_first"], perm=[0, 2, 1, 3]),
        node("Reshape", ["tokens_first", "joined"], ["rows"]),
        node("Sub", ["counts", "one"], ["last"]),
        node("Unsqueeze", ["last", "one"], ["last_index"]),
        node("GatherND", ["rows", "last_index"], ["last_rows"], batch_dims=1),
        node("MatMul", ["last_rows", "head"], ["logits"]),
    ]


def _function() -> onnx.FunctionProto:
    """What trt::TRT_Attention means, for other runtimes."""
    meaning = node("Attention", ["q", "k", "v", "mask", "", "", "lengths"], ["y"], scale=1.0)
    causal = onnx.AttributeProto(name="is_causal", ref_attr_name="is_causal", type=onnx.AttributeProto.INT)
    meaning.attribute.append(causal)
    names, attributes = (
        ["q", "k", "v", "mask", "q_lengths", "lengths"],
        ["is_causal", "causal_kind", "TRT_decomposable"],
    )
    opsets = [helper.make_opsetid("", 24)]
    return helper.make_function("trt", "TRT_Attention", names, ["y"], [meaning], opsets, attributes=attributes)


def _weight(name: str, shape: tuple[int, ...], kind: int) -> onnx.TensorProto:
    values = np.random.default_rng(len(name)).normal(size=shape, scale=0.1)
    return helper.make_tensor(name, kind, shape, values.ravel().tolist())


def _ints(name: str, values: list[int]) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, dtype=np.int64), name)


def _save(path: Path, steps: list, inputs: list, outputs: list, weights: list, functions: list = ()) -> Path:
    graph = helper.make_graph(steps, path.stem, inputs, outputs, weights)
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid("trt", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=11), path)
    return path
