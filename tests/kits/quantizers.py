"""Tiny models quantized by the programs that people use, for tests that need one of them installed.

    python -m tests.kits.quantizers OUT [NAME ...]

writes a folder a NAME below OUT, each with `expected.safetensors`: inputs, and logits of the program's own model in
float32. Programs: llmcompressor, gptqmodel, autoawq, bitsandbytes, nvidia-modelopt; none is a dependency.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.kits.models import tiny

SHAPE = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_key_value_heads": 2,
         "tie_word_embeddings": True}  # fmt: skip


def calibration(count: int = 16, length: int = 24):
    from datasets import Dataset

    ids = torch.randint(3, 60, (count, length), generator=torch.Generator().manual_seed(1)).tolist()
    return Dataset.from_dict({"input_ids": ids, "attention_mask": [[1] * length] * count})


def inputs_of(model) -> dict[str, torch.Tensor]:
    ids = torch.randint(3, 58, (1, 9), generator=torch.Generator().manual_seed(2))
    if model.config.is_encoder_decoder:
        return {"input_ids": ids, "decoder_input_ids": torch.cat([torch.full((1, 1), 2), ids[:, :5]], 1)}
    return {"input_ids": ids}


@torch.no_grad()
def expect(model, out: Path) -> None:
    """Writes what a model computes beside it."""
    inputs = inputs_of(model)
    logits = model.eval()(**inputs).logits[0].float()
    save_file(
        {**{n: v.contiguous() for n, v in inputs.items()}, "logits": logits.contiguous()}, out / "expected.safetensors"
    )


def saved(model, out: Path) -> Path:
    """Saves a model as it is beside `out`, with a tokenizer of numbered words."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    plain = out.with_name(out.name + "-plain")
    model.save_pretrained(plain)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(60)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w1", eos_token="w2").save_pretrained(plain)
    return plain


def reloaded(out: Path, kind: str = "AutoModelForCausalLM", **options):
    import transformers

    return getattr(transformers, kind).from_pretrained(out, dtype=torch.float32, **options)


# --- llm-compressor


def weights(bits: int, kind: str = "int", **options) -> dict:
    return {"num_bits": bits, "type": kind, "symmetric": True, "dynamic": False, "strategy": "channel"} | options


def compress(
    model, out: Path, args: dict, inputs: dict | None = None, *, modifier: str = "QuantizationModifier", **more
):
    from llmcompressor import oneshot
    from llmcompressor.modifiers import quantization

    groups = {"group_0": {"targets": ["Linear"], "weights": args, "input_activations": inputs}}
    recipe = getattr(quantization, modifier)(config_groups=groups, ignore=["re:.*lm_head", "re:.*visual.*"], **more)
    needs = modifier != "QuantizationModifier" or (inputs and not inputs["dynamic"]) or more
    data = {"dataset": calibration(), "num_calibration_samples": 16, "max_seq_length": 24} if needs else {}
    kind = "AutoModelForSeq2SeqLM" if model.config.is_encoder_decoder else "AutoModelForCausalLM"
    plain = saved(model, out)
    oneshot(model=reloaded(plain, kind), tokenizer=str(plain), recipe=recipe, output_dir=str(out), **data)
    try:
        loaded = reloaded(out, kind)
    except (RuntimeError, AttributeError):  # transformers 5.23 loads no zero points, and no layers that it initializes
        loaded = decompressed(out, plain, kind)
    expect(loaded, out)


def decompressed(out: Path, plain: Path, kind: str):
    """Returns the model with the weights that compressed-tensors unpacks."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme

    settings = json.loads((out / "config.json").read_text())["quantization_config"]
    scheme = QuantizationScheme(**settings["config_groups"]["group_0"])
    compressor, state = BaseCompressor.get_value_from_registry(settings["format"]), load_file(out / "model.safetensors")
    for name in [name.removesuffix(".weight_scale") for name in state if name.endswith(".weight_scale")]:
        parts = {key: state.pop(key) for key in list(state) if key.startswith(f"{name}.") and "weight" in key}
        whole = compressor.decompress({key.removeprefix(f"{name}."): value for key, value in parts.items()}, scheme)
        state[f"{name}.weight"] = whole["weight"]
    model = reloaded(plain, kind)
    model.load_state_dict(state, strict=False)
    return model


TOKEN = {"symmetric": True, "dynamic": True, "strategy": "token"}
STATIC = {"symmetric": True, "dynamic": False, "strategy": "tensor"}
FP8, INT8 = {"num_bits": 8, "type": "float"}, {"num_bits": 8, "type": "int"}
GROUPS = {"strategy": "group", "group_size": 16}


def llama():
    return tiny.llama(seed=3, **SHAPE)


# --- GPTQModel


def gptq(model, out: Path, **options) -> None:
    from gptqmodel import GPTQModel, QuantizeConfig

    plain = saved(model, out)
    rows = [{"input_ids": ids, "attention_mask": [1] * len(ids)} for ids in calibration(64, 64)["input_ids"]]
    quantizer = GPTQModel.load(str(plain), QuantizeConfig(**options), device="cpu")
    quantizer.quantize(rows, batch_size=1)
    quantizer.save(str(out))
    loaded = GPTQModel.load(str(out), device="cpu", backend="torch", dtype=torch.float16)
    for name, module in loaded.model.named_modules():
        if hasattr(module, "dequantize_weight"):
            scales = module.scales.float()[module.g_idx.long()]  # [in, out]; its own products are float16
            module.scales.fill_(1)
            model.get_submodule(name).weight.data = (module.dequantize_weight().float() * scales).T.contiguous()
    model.load_state_dict(load_file(out / "model.safetensors"), strict=False)  # what it saved in another type
    expect(model, out)


# --- AutoAWQ: its model classes need an older transformers, its packing does not


def awq(model, out: Path, group_size: int) -> None:
    from awq.modules.linear.gemm import WQLinear_GEMM
    from awq.utils.packing_utils import dequantize_gemm

    saved(model, out)
    layers = {n: m for n, m in model.model.layers.named_modules() if isinstance(m, torch.nn.Linear)}
    state = {n: v for n, v in model.state_dict().items() if n != "lm_head.weight"}
    for name, layer in layers.items():
        grouped = layer.weight.data.unflatten(1, (-1, group_size))
        low, high = grouped.amin(2), grouped.amax(2)
        scales = ((high - low) / 15).half().float()
        zeros = (-low / scales).round().clamp(0, 15)
        rounded = ((grouped / scales[..., None]).round() + zeros[..., None]).clamp(0, 15) - zeros[..., None]
        layer.weight.data = (rounded * scales[..., None]).flatten(1)
        packed = WQLinear_GEMM.from_linear(layer, 4, group_size, scales=scales.t(), zeros=zeros.t())
        del state[f"model.layers.{name}.weight"]
        state |= {f"model.layers.{name}.{key}": value for key, value in packed.state_dict().items()}
        weight = dequantize_gemm(packed.qweight, packed.qzeros, packed.scales.float(), 4, group_size)
        layer.weight.data = weight.t().contiguous()
    settings = {"quant_method": "awq", "zero_point": True, "group_size": group_size, "bits": 4, "version": "gemm"}
    write(out, model, state, settings)


def write(out: Path, model, state: dict[str, torch.Tensor], settings: dict) -> None:
    """Writes a folder of packed tensors, and what the model computes."""
    out.mkdir(parents=True, exist_ok=True)
    save_file({name: value.contiguous() for name, value in state.items()}, out / "model.safetensors")
    config = {**model.config.to_dict(), "architectures": [type(model).__name__], "quantization_config": settings}
    (out / "config.json").write_text(json.dumps(config, indent=1))
    expect(model, out)


# --- bitsandbytes


def bitsandbytes(model, out: Path, **options) -> None:
    from transformers import BitsAndBytesConfig

    loaded = reloaded(saved(model, out), quantization_config=BitsAndBytesConfig(**options), device_map="cpu")
    loaded.save_pretrained(out)
    expect(dequantized(model, load_file(out / "model.safetensors")), out)


def dequantized(model, state: dict[str, torch.Tensor]):
    """Returns the model with the weights that bitsandbytes unpacks: its products round what they meet, or both."""
    from bitsandbytes.functional import QuantState, dequantize_4bit, int8_vectorwise_dequant

    marks = (".weight.absmax", ".SCB")
    for name in [name.removesuffix(mark) for mark in marks for name in state if name.endswith(mark)]:
        parts = {key.removeprefix(f"{name}."): value for key, value in state.items() if key.startswith(f"{name}.")}
        packed = parts.pop("weight")
        if "SCB" in parts:
            weight = int8_vectorwise_dequant(packed, parts["SCB"])
        else:
            weight = dequantize_4bit(packed, QuantState.from_dict(parts, torch.device("cpu")))
        old = model.get_submodule(name).weight
        is_turned = type(model.get_submodule(name)).__name__ == "Conv1D"  # GPT-2's; bitsandbytes keeps [out, in]
        old.data = weight.float().T.contiguous() if is_turned else weight.float()
    return model


# --- ModelOpt


def _in_blocks(value, size: int):
    """Returns ModelOpt's settings with blocks of another size."""
    if isinstance(value, dict):
        return {key: size if key == -1 and each == 128 else _in_blocks(each, size) for key, each in value.items()}
    return [_in_blocks(each, size) for each in value] if isinstance(value, list) else value


def modelopt(model, out: Path, config: str, block_size: int | None = None) -> None:
    import copy

    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint

    settings = copy.deepcopy(getattr(mtq, config))
    if block_size is not None:
        settings["quant_cfg"] = _in_blocks(settings["quant_cfg"], block_size)
    ids = torch.tensor(calibration()["input_ids"])
    model.config.architectures = [type(model).__name__]
    quantized = mtq.quantize(model, settings, lambda m: m(ids))
    out.mkdir(parents=True, exist_ok=True)
    expect(quantized, out)
    export_hf_checkpoint(quantized, dtype=torch.float32, export_dir=str(out))
    if block_size is not None:  # the export rounds fused layers again
        expect(exported_int4(model, out, block_size), out)


def exported_int4(model, out: Path, block_size: int):
    """Returns a model as it is, with the weights of ModelOpt's export, unpacked output by output."""
    state = load_file(out / "model.safetensors")
    plain = type(model)(model.config)
    for name in [name.removesuffix(".weight_scale") for name in state if name.endswith(".weight_scale")]:
        packed, scale = state.pop(f"{name}.weight").int(), state.pop(f"{name}.weight_scale")
        weight = torch.empty(len(scale), packed.shape[1])
        for output in range(len(scale)):
            levels = (packed[output // 2] >> 4 * (output % 2)) & 15
            weight[output] = torch.where(levels > 7, levels - 16, levels) * scale[output].repeat_interleave(block_size)
        state[f"{name}.weight"] = weight * state.pop(f"{name}.pre_quant_scale", torch.ones(()))
    plain.load_state_dict(state, strict=False)  # its head is the embedding
    return plain


MAKERS: dict[str, Callable[[Path], None]] = {
    "ct-fp8-dynamic": lambda out: compress(llama(), out, weights(8, "float"), FP8 | TOKEN),
    "ct-fp8-static": lambda out: compress(llama(), out, weights(8, "float", strategy="tensor"), FP8 | STATIC),
    "ct-int8-dynamic": lambda out: compress(llama(), out, weights(8), INT8 | TOKEN),
    "ct-int8-static": lambda out: compress(llama(), out, weights(8), INT8 | STATIC),
    "ct-w4a16": lambda out: compress(llama(), out, weights(4, **GROUPS)),
    "ct-w4a16-asymmetric": lambda out: compress(llama(), out, weights(4, **GROUPS, symmetric=False)),
    "ct-w4a16-channel": lambda out: compress(llama(), out, weights(4)),
    "ct-w4a16-gptq": lambda out: compress(llama(), out, weights(4, **GROUPS), modifier="GPTQModifier"),
    "ct-w8a16": lambda out: compress(llama(), out, weights(8)),
    "ct-w8a16-groups": lambda out: compress(llama(), out, weights(8, **GROUPS)),
    "ct-kv-cache": lambda out: compress(
        llama(), out, weights(8, "float", strategy="tensor"), FP8 | STATIC,
        kv_cache_scheme=FP8 | STATIC),
    "ct-opt": lambda out: compress(tiny.opt(seed=2), out, weights(4, **GROUPS, symmetric=False)),
    "ct-t5": lambda out: compress(tiny.t5(seed=1, tied=False), out, weights(4, **GROUPS)),
    "ct-bart": lambda out: compress(tiny.bart(seed=5), out, weights(8), INT8 | TOKEN),
    "ct-starcoder": lambda out: compress(tiny.gpt2(seed=1, multi_query=True), out, weights(4, **GROUPS)),
    "awq": lambda out: awq(llama(), out, 16),
    "gptq": lambda out: gptq(llama(), out, bits=4, group_size=32, desc_act=False),
    "gptq-desc-act": lambda out: gptq(llama(), out, bits=4, group_size=32, desc_act=True),
    "gptq-asymmetric": lambda out: gptq(llama(), out, bits=4, group_size=32, sym=False, format="gptq_v2"),
    "gptq-8": lambda out: gptq(llama(), out, bits=8, group_size=32),
    "gptq-8-channel": lambda out: gptq(llama(), out, bits=8, group_size=-1),
    "bnb-int8": lambda out: bitsandbytes(llama(), out, load_in_8bit=True),
    "bnb-gpt2": lambda out: bitsandbytes(tiny.gpt2(seed=1, n_layer=1), out, load_in_8bit=True),
    "bnb-nf4": lambda out: bitsandbytes(llama(), out, load_in_4bit=True, bnb_4bit_quant_type="nf4"),
    "bnb-nf4-double": lambda out: bitsandbytes(
        llama(), out, load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True),
    "bnb-fp4": lambda out: bitsandbytes(llama(), out, load_in_4bit=True),
    "modelopt-fp8": lambda out: modelopt(llama(), out, "FP8_DEFAULT_CFG"),
    "modelopt-int8-sq": lambda out: modelopt(llama(), out, "INT8_SMOOTHQUANT_CFG"),
    "modelopt-int4-awq": lambda out: modelopt(llama(), out, "INT4_AWQ_CFG", block_size=32),
}  # fmt: skip


def main(out: Path, names: list[str]) -> None:
    for name in names or list(MAKERS):
        try:
            MAKERS[name](out / name)
            print(f"{name}: made", flush=True)
        except Exception as error:  # one program's failure leaves the others
            print(f"{name}: {type(error).__name__}: {str(error)[:300]}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
