"""Published models in small: their configurations but for the sizes, random weights in the layout they have on the Hub.

`tests/published/<owner>__<name>/` holds a publication's configuration files and, where they are known, names of its
tensors (`tensors.json`); INDEX.md there says where each comes from. `publish` makes a model folder of one.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor

from tests.checkout import ROOT
from tests.kits.models.tiny import pull_apart, small_embeddings

FOLDER = ROOT / "tests" / "published"
VOCAB = 96
Config = dict[str, Any]

# what is neither run nor refused, and why
LEFT_OUT = {
    "TheBloke__Llama-2-13B-chat-GPTQ": "its weights are quantized: test_quantized_folders.py has its case",
    "bigcode__santacoder": "its class is not transformers' own: test_gpt_variants.py has its case",
    "meta-llama__Llama-3.1-8B__nxp": "a vendor's configuration of two keys",
    "meta-llama__Meta-Llama-3-8B-Instruct": "a part of a configuration, without model_type",
    "meta-llama__Meta-Llama-3.1-8B-Instruct": "a part of a configuration, without model_type",
    "opendatalab__MinerU2.5": "a part of a configuration, which test_published_vision.py completes",
    "quant__awq_zephyr": "a part of a configuration, without model_type",
}
# of a supported model_type, and still refused -> what the sentence says
REFUSED = {
    "distilbert__distilgpt2__oldest": "names no model_type",
    "quant__bitsandbytes_nf4_molmo": "is Molmo",
    "quant__fbgemm_fp8_llama3.1_405b": "is quantized (fbgemm_fp8)",
    "quant__fp8_block_qwen3_8b": "is quantized (fp8)",
    "vikp__texify": "is texify",
}


@dataclass(frozen=True)
class Small:
    """How a model_type's configuration is made small. Values may be functions of the published configuration."""

    sizes: dict[str, Any]  # always set
    present: dict[str, Any] = field(default_factory=dict)  # set where the publication gives a number
    parts: dict[str, str] = field(default_factory=dict)  # nested configurations -> the model_type where they name none
    model: str = ""  # the class in transformers
    spread: float = 0.3  # of its weights
    finish: Callable[[torch.nn.Module], torch.nn.Module] = lambda model: model  # changes them after that

    def reduce(self, config: Config) -> Config:
        sizes = self.sizes | {key: size for key, size in self.present.items() if config.get(key) is not None}
        smaller = {key: size(config) if callable(size) else size for key, size in sizes.items()}
        parts = {part: reduced(config[part], kind) for part, kind in self.parts.items() if config.get(part)}
        return config | smaller | parts


def _groups(config: Config) -> int:
    """Heads of keys and values for 4 heads of queries, in the published ratio or near it."""
    return max(1, 4 * config["num_key_value_heads"] // config["num_attention_heads"])


def _first_two(config: Config) -> list[str]:
    return config["layer_types"][:2]


def _head_dim(config: Config) -> int:
    return 8 if config["head_dim"] * config["num_attention_heads"] == config["hidden_size"] else 12


def _sides(layers: int) -> dict[str, int]:
    sizes = {"layers": layers, "ffn_dim": 48, "attention_heads": 4}
    return {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in sizes.items()}


_T5 = {"vocab_size": VOCAB, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
_T5_PRESENT = {"num_decoder_layers": 2, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}
_BART = {"vocab_size": VOCAB, "d_model": 32, **_sides(2)}
_BART_PRESENT = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4}
_LLAMA = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
          "num_attention_heads": 4}  # fmt: skip
_LLAMA_PRESENT = {"num_key_value_heads": _groups, "head_dim": _head_dim}
_QWEN_PRESENT = _LLAMA_PRESENT | {"layer_types": lambda config: config["layer_types"][:2]}
_GPT2 = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4}
_GPT2_PRESENT = {
    "n_positions": 1024,
    "n_inner": lambda config: 128 if config["n_inner"] == 4 * config["n_embd"] else 48,
}
_OPT = {"vocab_size": VOCAB, "hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
_OPT_PRESENT = {
    "word_embed_proj_dim": lambda config: 32 if config["word_embed_proj_dim"] == config["hidden_size"] else 20
}
SMALL = {
    "t5": Small(_T5, _T5_PRESENT, model="T5ForConditionalGeneration"),
    "mt5": Small(_T5, _T5_PRESENT, model="MT5ForConditionalGeneration"),
    "bart": Small(_BART, _BART_PRESENT, model="BartForConditionalGeneration"),
    "mbart": Small(_BART, _BART_PRESENT, model="MBartForConditionalGeneration", spread=0.4),
    "m2m_100": Small(
        _BART, _BART_PRESENT, model="M2M100ForConditionalGeneration", spread=0.55, finish=small_embeddings
    ),
    "marian": Small(_BART, _BART_PRESENT | {"decoder_vocab_size": VOCAB}, model="MarianMTModel", spread=0.4),
    "pegasus": Small(
        _BART, _BART_PRESENT, model="PegasusForConditionalGeneration", spread=0.55, finish=small_embeddings
    ),
    "t5gemma": Small(
        {"vocab_size": VOCAB},
        parts={"encoder": "t5_gemma_module", "decoder": "t5_gemma_module"},
        model="T5GemmaForConditionalGeneration",
    ),
    "llama": Small(_LLAMA, _LLAMA_PRESENT, model="LlamaForCausalLM"),
    "mistral": Small(_LLAMA, _LLAMA_PRESENT, model="MistralForCausalLM"),
    "qwen2": Small(_LLAMA, _QWEN_PRESENT, model="Qwen2ForCausalLM"),
    "qwen3": Small(_LLAMA, _QWEN_PRESENT, model="Qwen3ForCausalLM"),
    "gpt2": Small(_GPT2, _GPT2_PRESENT, model="GPT2LMHeadModel"),
    "gpt_bigcode": Small(_GPT2, _GPT2_PRESENT, model="GPTBigCodeForCausalLM"),
    "opt": Small(_OPT, _OPT_PRESENT, model="OPTForCausalLM"),
}
TEXT = tuple(SMALL)
SMALL["t5_gemma_module"] = Small(
    _LLAMA | {"head_dim": 12, "sliding_window": 4}, {"num_key_value_heads": _groups, "layer_types": _first_two}
)
_VIT = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 3,
        "image_size": lambda config: 2 * config.get("patch_size", 14)}  # fmt: skip
# grids of the last stage that are no smaller than the published windows
_SWIN = {"embed_dim": 4, "depths": [1, 1, 2, 1], "num_heads": [1, 2, 2, 4], "hidden_size": 32,
         "image_size": lambda config: [size // 2 for size in config["image_size"]]}  # fmt: skip
_TROCR = {"vocab_size": VOCAB, "d_model": 32, "decoder_layers": 2, "decoder_ffn_dim": 48,
          "decoder_attention_heads": 4, "cross_attention_hidden_size": _VIT["hidden_size"]}  # fmt: skip
_QUERIES = {"hidden_size": 20, "intermediate_size": 36, "num_hidden_layers": 3, "num_attention_heads": 4,
            "encoder_hidden_size": 24}  # fmt: skip
_LIGHTON = Small({}, parts={"vision_config": "pixtral", "text_config": "qwen3"},
                 model="LightOnOcrForConditionalGeneration")  # fmt: skip
_QWEN_VL = _LLAMA | {"hidden_size": 64}  # heads of 16: frequencies of each axis
_QWEN_VL_PRESENT = _LLAMA_PRESENT | {
    "layer_types": lambda config: config["layer_types"][:2],
    "rope_scaling": lambda config: config["rope_scaling"] | {"mrope_section": [2, 3, 3]},
    "vision_config": lambda config: config["vision_config"] | _qwen_tower(config["vision_config"]),
}


def _qwen_tower(config: Config) -> Config:
    """Sizes of a small tower, under the names of the first's or the second's."""
    first = {"embed_dim": 24, "hidden_size": 64}
    second = {"hidden_size": 24, "intermediate_size": 40, "out_hidden_size": 64, "fullatt_block_indexes": [1]}
    return {"depth": 3, "num_heads": 3} | (first if "embed_dim" in config else second)


_PIX2STRUCT = {"hidden_size": 32, "d_kv": 8, "d_ff": 48}
SMALL |= {
    "clip_vision_model": Small(_VIT),
    "siglip_vision_model": Small(_VIT),
    "blip_2_vision_model": Small(_VIT),
    "blip_2_qformer": Small(_QUERIES),
    "vit": Small(_VIT),
    "trocr": Small(_TROCR),
    "donut-swin": Small(_SWIN),
    "pixtral": Small(_VIT | {"image_size": lambda config: 4 * config["patch_size"]}, {"head_dim": 8}),
    "llava": Small({}, parts={"vision_config": "clip_vision_model", "text_config": "llama"},
                   model="LlavaForConditionalGeneration"),
    **dict.fromkeys(("lighton_ocr", "mistral3"), _LIGHTON),
    **dict.fromkeys(("idefics3_vision", "smolvlm_vision"),
                    Small(_VIT | {"image_size": lambda config: 8 * config["patch_size"]})),
    "idefics3": Small({}, parts={"vision_config": "idefics3_vision", "text_config": "llama"},
                      model="Idefics3ForConditionalGeneration"),
    "smolvlm": Small({}, parts={"vision_config": "smolvlm_vision", "text_config": "llama"},
                     model="SmolVLMForConditionalGeneration"),
    "qwen2_vl": Small(_QWEN_VL, _QWEN_VL_PRESENT, parts={"text_config": "qwen2_vl_text"},
                      model="Qwen2VLForConditionalGeneration"),
    "qwen2_vl_text": Small(_QWEN_VL, _QWEN_VL_PRESENT),
    "qwen2_5_vl": Small(_QWEN_VL, _QWEN_VL_PRESENT, parts={"text_config": "qwen2_5_vl_text"},
                        model="Qwen2_5_VLForConditionalGeneration"),
    "qwen2_5_vl_text": Small(_QWEN_VL, _QWEN_VL_PRESENT),
    "pix2struct": Small({}, parts={"vision_config": "pix2struct_vision_model", "text_config": "pix2struct_text_model"},
                        model="Pix2StructForConditionalGeneration", spread=0.2),
    "pix2struct_text_model": Small(_PIX2STRUCT | {"vocab_size": VOCAB, "num_layers": 2, "num_heads": 4}),
    "pix2struct_vision_model": Small(
        _PIX2STRUCT | {"num_hidden_layers": 2, "num_attention_heads": 4, "patch_embed_hidden_size": 48, "seq_len": 64}
    ),
    "blip-2": Small({"num_query_tokens": 5}, model="Blip2ForConditionalGeneration", parts={
        "vision_config": "blip_2_vision_model", "qformer_config": "blip_2_qformer", "text_config": "opt"}),
    "t5gemma2": Small({"vocab_size": VOCAB}, parts={"encoder": "t5gemma2_encoder", "decoder": "t5gemma2_decoder"},
                      model="T5Gemma2ForConditionalGeneration"),
    # its class makes the embedding's scale in the type that a part names, whatever it is loaded in
    "t5gemma2_encoder": Small({"vocab_size": VOCAB, "mm_tokens_per_image": 1, "dtype": "float32"}, parts={
        "text_config": "t5gemma2_text", "vision_config": "siglip_vision_model"}),
    **dict.fromkeys(("t5gemma2_text", "t5gemma2_decoder"), Small(
        _LLAMA | {"head_dim": 12, "sliding_window": 4, "dtype": "float32"},
        {"num_key_value_heads": _groups, "layer_types": lambda config: config["layer_types"][4:6]})),
    "vision-encoder-decoder": Small({}, parts={"encoder": "donut-swin", "decoder": "mbart"},
                                    model="VisionEncoderDecoderModel"),
}  # fmt: skip
# the cases of these stand in test_published_vision.py
VISUAL = (
    "blip-2", "florence2", "idefics3", "lighton_ocr", "llava", "llava_llama", "mistral3", "qwen2_5_vl", "qwen2_vl",
    "pix2struct", "smolvlm", "t5gemma2", "vision-encoder-decoder",
)  # fmt: skip


def reduced(config: Config, model_type: str = "") -> Config:
    """A published configuration with small sizes, all else as it is."""
    return SMALL[config.get("model_type", model_type)].reduce(config)


def small_ids(*configs: Config) -> tuple[Config, ...]:
    """Token ids beyond the small vocabulary, the same one everywhere, become its last ids."""
    large = sorted({i for config in configs for i in _ids(config) if i >= VOCAB}, reverse=True)
    new = {old: VOCAB - 1 - place for place, old in enumerate(large)}
    return tuple(_with_ids(config, new) for config in configs)


def _is_id(key: str) -> bool:
    return key.endswith(("token_id", "token_ids", "words_ids", "token_index", "suppress_tokens"))


def _ids(value: Any, within: bool = False) -> Iterator[int]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _ids(inner, within=_is_id(key))
    elif isinstance(value, list):
        for inner in value:
            yield from _ids(inner, within)
    elif within and isinstance(value, int):
        yield value


def _with_ids(value: Any, new: dict[int, int], within: bool = False) -> Any:
    if isinstance(value, dict):
        return {key: _with_ids(inner, new, within=_is_id(key)) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_ids(inner, new, within) for inner in value]
    return new.get(value, value) if within and isinstance(value, int) else value


@dataclass(frozen=True)
class Layout:
    """How a publication keeps its tensors."""

    file: str = "model.safetensors"
    prefix: str = ""  # what its names lack: it was saved as the base model
    renamed: dict[str, str] = field(default_factory=dict)  # beginnings of today's names -> of its names
    tied: bool = False  # copies of tied tensors are there
    extra: Callable[[Any], dict[str, Tensor]] = lambda config: {}  # buffers of its time
    shards: int = 1  # of which the second repeats a tensor of the first
    dtype: torch.dtype | None = None

    def names(self, model: torch.nn.Module) -> dict[str, Tensor]:
        """The model's tensors, as the publication names them."""
        state = {self._name(name): tensor.to(self.dtype or tensor.dtype) for name, tensor in model.state_dict().items()}
        if not self.tied:
            for name in model.all_tied_weights_keys:
                state.pop(self._name(name), None)
        return {name: tensor.contiguous() for name, tensor in (state | self.extra(model.config)).items()}

    def _name(self, name: str) -> str:
        name = name.removeprefix(self.prefix)
        old = next((old for old in self.renamed if name.startswith(old)), "")
        return self.renamed.get(old, "") + name.removeprefix(old)

    def write(self, model: torch.nn.Module, folder: Path) -> None:
        state = self.names(model)
        if self.shards == 1:
            return self._save(state, folder / self.file)
        names, stem, suffix = list(state), *self.file.split(".")
        files = [f"{stem}-{i + 1:05}-of-{self.shards:05}.{suffix}" for i in range(self.shards)]
        places = {name: files[i * self.shards // len(names)] for i, name in enumerate(names)}
        for file in files:
            part = {name: state[name] for name in names if places[name] == file}
            self._save(part | {names[0]: state[names[0]]}, folder / file)
        index = {"metadata": {"total_size": sum(t.nbytes for t in state.values())}, "weight_map": places}
        (folder / f"{self.file}.index.json").write_text(json.dumps(index))

    def _save(self, state: dict[str, Tensor], path: Path) -> None:
        if self.file.endswith(".bin"):
            return torch.save(state, path)
        # tensors that share memory are copied
        save_file({name: tensor.clone() for name, tensor in state.items()}, path, metadata={"format": "pt"})


def _masks(config: Any) -> dict[str, Tensor]:
    """GPT-2's causal masks, as its first releases kept them."""
    mask = torch.ones(config.n_positions, config.n_positions).tril()[None, None]
    layers = range(config.n_layer)
    return {f"h.{i}.attn.bias": mask for i in layers} | {f"h.{i}.attn.masked_bias": torch.tensor(-1e4) for i in layers}


def _frequencies(config: Any) -> dict[str, Tensor]:
    """LLaMA's rotary frequencies, as transformers kept them before 4.32."""
    inverse = 1.0 / 10000 ** (torch.arange(0, config.head_dim, 2) / config.head_dim)
    return {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": inverse for i in range(config.num_hidden_layers)}


def _cross_bias(config: Any) -> dict[str, Tensor]:
    """A bias that T5's cross-attention had once."""
    bias = torch.randn(config.relative_attention_num_buckets, config.num_heads)
    return {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": bias}


def _sines(config: Any) -> dict[str, Tensor]:
    """M2M100's positions, as transformers kept them once; nothing reads them."""
    table = torch.randn(config.max_position_embeddings + 2, config.d_model)
    return {f"model.{side}.embed_positions.weights": table for side in ("encoder", "decoder")}


_OLD_T5 = Layout("pytorch_model.bin", tied=True, extra=_cross_bias)
_OLD_GPT2 = Layout(prefix="transformer.", extra=_masks)
_OLD_BART = Layout("pytorch_model.bin", tied=True)
_OLD_M2M = Layout("pytorch_model.bin", tied=True, extra=_sines, shards=2)
_BART_MODEL = Layout(prefix="model.", tied=True)
_OLD_LLAMA = Layout("pytorch_model.bin", extra=_frequencies, shards=2, dtype=torch.float16)
_OLD_OPT = Layout("pytorch_model.bin", prefix="model.", dtype=torch.float16)
_OLD_LLAVA = Layout(shards=3, dtype=torch.float16, renamed={
    "model.language_model.": "language_model.model.",
    "lm_head.": "language_model.lm_head.",
    "model.vision_tower.": "vision_tower.vision_model.",
    "model.multi_modal_projector.": "multi_modal_projector.",
})  # fmt: skip
_OLD_QWEN_VL = Layout(
    shards=2, dtype=torch.bfloat16, renamed={"model.language_model.": "model.", "model.visual.": "visual."}
)
# publications of older layouts; all others: today's safetensors
LAYOUTS = {
    "Helsinki-NLP__opus-mt-en-zh": _OLD_BART,
    "Helsinki-NLP__opus-mt-zh-en": Layout("pytorch_model.bin", tied=True, dtype=torch.float16),
    "distilbert__distilgpt2": _OLD_GPT2,
    "facebook__bart-base": _BART_MODEL,
    "facebook__bart-large": _BART_MODEL,
    "facebook__bart-large-cnn": _OLD_BART,
    "facebook__bart-large-xsum": _OLD_BART,
    "facebook__m2m100_418M": _OLD_M2M,
    "facebook__mbart-large-50-many-to-many-mmt": _OLD_BART,
    "facebook__mbart-large-cc25": _OLD_BART,
    "facebook__opt-1.3b": _OLD_OPT,
    "facebook__opt-350m": _OLD_OPT,
    "facebook__opt-6.7b": _OLD_OPT,
    "gogamza__kobart-base-v1": _BART_MODEL,
    "google-t5__t5-large": _OLD_T5,
    "google-t5__t5-small": _OLD_T5,
    "google__byt5-small": _OLD_T5,
    "google__pegasus-large": _OLD_BART,
    "google__t5gemma-2-270m-270m": Layout(
        dtype=torch.bfloat16,
        renamed={
            "model.encoder.text_model.": "model.encoder.",
            "model.encoder.vision_tower.": "model.encoder.vision_tower.vision_model.",
        },
    ),
    "google__t5gemma-2b-2b-prefixlm-it": Layout(shards=2, dtype=torch.bfloat16),
    "lmsys__vicuna-7b-v1.3": _OLD_LLAMA,
    "lmsys__vicuna-7b-v1.5": _OLD_LLAMA,
    "meta-llama__Llama-2-7b-hf": _OLD_LLAMA,
    "meta-llama__Llama-2-7b__squeezellm": _OLD_LLAMA,
    "llava-hf__llava-1.5-7b-hf": _OLD_LLAVA,
    "mistralai__Mistral-7B-v0.1": Layout(shards=2, dtype=torch.bfloat16),
    "openai-community__gpt2": _OLD_GPT2,
    "openai-community__gpt2-xl": _OLD_GPT2,
    "Qwen__Qwen2-VL-2B-Instruct": _OLD_QWEN_VL,
    "Qwen__Qwen2.5-VL-3B-Instruct": _OLD_QWEN_VL,
    "Qwen__Qwen2.5-VL-7B-Instruct": _OLD_QWEN_VL,
    "Salesforce__blip2-flan-t5-xl": Layout(shards=2),
}


@functools.cache
def facts(name: str, file: str = "config.json") -> Config | None:
    """A publication's file; None where it has none."""
    path = FOLDER / name / file
    return json.loads(path.read_text()) if path.exists() else None


def publications() -> list[str]:
    """Names of all folders."""
    return sorted(path.parent.name for path in FOLDER.glob("*/config.json"))


def supported(*model_types: str) -> list[str]:
    """Names of the folders of these model types that are run."""
    names = [name for name in publications() if name not in LEFT_OUT and name not in REFUSED]
    return [name for name in names if facts(name).get("model_type") in model_types]


def refused() -> dict[str, str]:
    """Names of the folders that are refused -> what the sentence says."""
    types = {name: facts(name).get("model_type") for name in publications() if name not in LEFT_OUT}
    unknown = {name: kind for name, kind in types.items() if kind not in TEXT + VISUAL}
    return {name: f"model_type {kind!r}" for name, kind in unknown.items()} | REFUSED


def publish(
    name: str,
    folder: Path,
    layout: Layout | None = None,
    *,
    rename: Mapping[str, str] | None = None,
    untie: bool = False,
    **changes: Any,
) -> torch.nn.Module:
    """Writes the publication in small and returns what `from_pretrained` makes of it, in float32. `changes` are keys
    of its config.json, `rename` other names for them; `untie` gives the head weights of its own."""
    config, generation = small_ids(reduced(facts(name) | changes), facts(name, "generation_config.json") or {})
    write_config({(rename or {}).get(key, key): value for key, value in config.items()}, folder)
    if generation:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    kind = getattr(transformers, SMALL[config["model_type"]].model)
    torch.manual_seed(0)
    made = kind(kind.config_class.from_pretrained(folder)).float()
    layout = layout or LAYOUTS.get(name, Layout())
    if untie:
        made.get_output_embeddings().weight = torch.nn.Parameter(
            torch.randn(VOCAB, made.get_output_embeddings().in_features)
        )
        layout = dataclasses.replace(layout, tied=True)
    small = SMALL[config["model_type"]]
    layout.write(small.finish(pull_apart(made, 0, small.spread)), folder)
    # parts of parts keep the type that their own configurations name
    return kind.from_pretrained(folder, dtype=torch.float32).float().eval()


def write_config(config: Config, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
