"""NeMo's T5s with random weights, the same maths in plain torch, and archives of them as NeMo's trainings save them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import torch
import torch.nn.functional as F
import yaml
from transformers.models.t5.modeling_t5 import T5Attention

from tests.kits.publications.nemo_kit import HASH

TARGET = "nemo.collections.nlp.models.language_modeling.megatron_t5_model.MegatronT5Model"
ROOT = "enc_dec_model"
SIDE = {
    "num_layers": 2, "hidden_size": 32, "ffn_hidden_size": 44, "num_attention_heads": 4, "kv_channels": 12,
    "position_embedding_type": "learned_absolute", "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20, "relative_position_bias_self_attention_only": True,
    "apply_query_key_layer_scaling": True, "layernorm_epsilon": "1e-5", "bias_activation_fusion": True, "bias": True,
    "normalization": "layernorm", "arch": "transformer", "activation": "geglu", "headscale": False,
    "transformer_block_type": "pre_ln", "openai_gelu": False, "onnx_safe": False, "fp32_residual_connection": False,
    "megatron_legacy": False, "normalize_attention_scores": True, "num_moe_experts": 1, "hidden_dropout": 0.1,
}  # fmt: skip
MODEL = {
    "target": TARGET, "precision": "bf16", "micro_batch_size": 4, "pipeline_model_parallel_split_rank": 0,
    "make_vocab_size_divisible_by": 16, "seq_length": 64, "max_position_embeddings": "${.seq_length}",
    "share_token_embeddings": True, "share_decoder_tokens_head_embeddings": True, "tokens_head_bias": True,
    "data": {"dataset_type": "t5", "seq_length": 64}, "optim": {"lr": 1.0e-4},
}  # fmt: skip
# as NeMo's script writes the configuration of one of Google's
CONVERTED = {
    "position_embedding_type": "relative", "normalization": "rmsnorm", "bias": False, "bias_activation_fusion": False,
    "activation": "geglu", "openai_gelu": True, "megatron_legacy": True, "normalize_attention_scores": False,
    "apply_query_key_layer_scaling": False, "layernorm_epsilon": 1e-6,
}  # fmt: skip
UNTIED = {"share_decoder_tokens_head_embeddings": False, "tokens_head_bias": False}
BY_INPUT = re.compile(r".*\.(self_attention\.dense|inter_attention\.dense|dense_4h_to_h)\.weight")
WHOLE = re.compile(r".*(norm|position_embeddings|position_embedding|attention\.dense|dense_4h_to_h)\.(weight|bias)")


def config_of(encoder: dict | None = None, decoder: dict | None = None, flat: bool = False, **options) -> dict:
    """A configuration; `flat`: as before NeMo 1.11, with one set of fields for both sides."""
    if flat:
        return MODEL | SIDE | {"encoder_arch": "transformer", "decoder_arch": "transformer"} | (encoder or {}) | options
    encoder = encoder or {}
    return MODEL | {"encoder": SIDE | encoder, "decoder": SIDE | (encoder if decoder is None else decoder)} | options


class NemoT5:
    """Tensors under NeMo's names, and its maths in plain torch: transformer.py, attention.py, mlp.py."""

    def __init__(self, config: dict, vocabulary: int = 64, seed: int = 0, state: dict | None = None):
        self.config, self.vocabulary = config, vocabulary
        self.side = {name: config.get(name, config) for name in ("encoder", "decoder")}
        self.generator = torch.Generator().manual_seed(seed)
        self.state: dict[str, torch.Tensor] = state or {}
        self.scales: dict[str, torch.Tensor] = {}  # (IA)³'s, by NeMo's names of them
        if state is None:
            for name in self.side:
                self._draw_side(name)
            self._draw_head()

    # --- tensors ---
    def _draw(self, *size: int) -> torch.Tensor:
        return torch.randn(*size, generator=self.generator) * (0.35 if len(size) > 1 else 0.1)

    def _affine(self, name: str, outputs: int, inputs: int, bias: bool) -> None:
        self.state[f"{name}.weight"] = self._draw(outputs, inputs)
        if bias:
            self.state[f"{name}.bias"] = self._draw(outputs)

    def _norm(self, name: str, side: dict) -> None:
        self.state[f"{name}.weight"] = self._draw(32) + (side["normalization"] != "layernorm1p")
        if side["normalization"] != "rmsnorm":
            self.state[f"{name}.bias"] = self._draw(32)

    def _draw_side(self, name: str) -> None:
        side, kind = self.side[name], self.side[name]["activation"]
        table, shared = f"{ROOT}.{name}_embedding", name == "decoder" and self.config["share_token_embeddings"]
        sizes = {"word_embeddings": self.vocabulary}
        if side["position_embedding_type"] == "relative":
            rows = side["relative_attention_num_buckets"]
            bias = f"{ROOT}.{name}_relative_position_embedding.relative_position_embedding.weight"
            self.state[bias] = self._draw(rows, side["num_attention_heads"])
        else:
            sizes["position_embeddings"] = 64
        for part, rows in sizes.items():
            own = self._draw(rows, 32)
            theirs = self.state.get(f"{ROOT}.encoder_embedding.{part}.weight") if shared else None
            self.state[f"{table}.{part}.weight"] = own if theirs is None else theirs
        inner, bias = side["num_attention_heads"] * side["kv_channels"], side["bias"]
        for i in range(side["num_layers"]):
            layer = f"{ROOT}.{ROOT}.{name}.model.layers.{i}"
            self._affine(f"{layer}.self_attention.query_key_value", 3 * inner, 32, bias)
            self._affine(f"{layer}.self_attention.dense", 32, inner, bias)
            norms = ["input_layernorm", "post_attention_layernorm"]
            if name == "decoder":
                self._affine(f"{layer}.inter_attention.query", inner, 32, bias)
                self._affine(f"{layer}.inter_attention.key_value", 2 * inner, 32, bias)
                self._affine(f"{layer}.inter_attention.dense", 32, inner, bias)
                norms.append("post_inter_attention_layernorm")
            self._affine(f"{layer}.mlp.dense_h_to_4h", 44 * (1 + kind.startswith("fast")), 32, bias)
            if kind in ("geglu", "swiglu", "reglu"):
                self._affine(f"{layer}.mlp.dense_h_to_4h_2", 44, 32, bias)
            self._affine(f"{layer}.mlp.dense_4h_to_h", 32, 44, bias)
            for norm in norms:
                self._norm(f"{layer}.{norm}", side)
        self._norm(f"{ROOT}.{ROOT}.{name}.model.final_layernorm", side)

    def _draw_head(self) -> None:
        if not self.config["share_decoder_tokens_head_embeddings"]:
            self.state[f"{ROOT}.tokens_head.weight"] = self._draw(self.vocabulary, 32)
        if self.config["tokens_head_bias"]:
            self.state[f"{ROOT}.tokens_head.bias"] = self._draw(self.vocabulary) * 5

    # --- maths ---
    def logits(self, text: list[int], output: list[int], rows: torch.Tensor | None = None) -> torch.Tensor:
        """text, output: token ids -> [tokens of the output, vocabulary]; `rows`: tuned ones before the text, which get
        positions as tokens do"""
        memory = self._stack("encoder", text, rows=rows)
        x = self._stack("decoder", output, memory)
        head = f"{ROOT}.tokens_head.weight"
        return F.linear(
            x, self.state.get(head, self.state[f"{ROOT}.encoder_embedding.word_embeddings.weight"]),
            self.state.get(f"{ROOT}.tokens_head.bias"),
        )  # fmt: skip

    def _stack(
        self, name: str, ids: list[int], memory: torch.Tensor | None = None, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        side, table = self.side[name], f"{ROOT}.{name}_embedding"
        x, bias = self.state[f"{table}.word_embeddings.weight"][ids], None
        x = x if rows is None else torch.cat([rows, x])
        if side["position_embedding_type"] == "relative":
            bias = self._relative(name, len(x))
        else:
            x = x + self.state[f"{table}.position_embeddings.weight"][: len(x)]
        stack = f"{ROOT}.{ROOT}.{name}.model"
        for i in range(side["num_layers"]):
            layer = f"{stack}.layers.{i}"
            normal = self._normed(side, f"{layer}.input_layernorm", x)
            x = x + self._self_attention(side, f"{layer}.self_attention", normal, i, bias, causal=memory is not None)
            normal = self._normed(side, f"{layer}.post_attention_layernorm", x)
            if memory is not None:
                x = x + self._cross_attention(side, f"{layer}.inter_attention", normal, memory, i)
                normal = self._normed(side, f"{layer}.post_inter_attention_layernorm", x)
            x = x + self._mlp(side, f"{layer}.mlp", normal)
        return self._normed(side, f"{stack}.final_layernorm", x)

    def _relative(self, name: str, length: int) -> torch.Tensor:
        table = self.state[f"{ROOT}.{name}_relative_position_embedding.relative_position_embedding.weight"]
        at = torch.arange(length)
        side = self.side[name]
        buckets = T5Attention._relative_position_bucket(
            at[None] - at[:, None], name == "encoder", side["relative_attention_num_buckets"],
            side["relative_attention_max_distance"],
        )  # fmt: skip
        return table[buckets].permute(2, 0, 1)

    def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.state[f"{name}.weight"], self.state.get(f"{name}.bias"))

    def _normed(self, side: dict, name: str, x: torch.Tensor) -> torch.Tensor:
        weight, eps = self.state[f"{name}.weight"], float(side["layernorm_epsilon"])
        if side["normalization"] == "rmsnorm":
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
        weight = weight + (side["normalization"] == "layernorm1p")
        return F.layer_norm(x, (32,), weight, self.state[f"{name}.bias"], eps)

    def _parts(self, side: dict, name: str, x: torch.Tensor, count: int) -> list[torch.Tensor]:
        heads, width = side["num_attention_heads"], side["kv_channels"]
        mixed = self._linear(name, x)
        if side["megatron_legacy"]:
            mixed = mixed.view(len(x), count, heads, width).transpose(1, 2)
        return list(mixed.reshape(len(x), heads, count * width).transpose(0, 1).chunk(count, -1))

    def _self_attention(self, side, name, x, layer, bias, causal):
        q, k, v = self._parts(side, f"{name}.query_key_value", x, 3)
        k, v = self._scaled(name, "key", k), self._scaled(name, "value", v)
        return self._linear(f"{name}.dense", self._attended(side, q, k, v, layer, bias, causal))

    def _cross_attention(self, side, name, x, memory, layer):
        [q] = self._parts({**side, "megatron_legacy": False}, f"{name}.query", x, 1)
        k, v = self._parts(side, f"{name}.key_value", memory, 2)
        k, v = self._scaled(name, "key", k), self._scaled(name, "value", v)
        return self._linear(f"{name}.dense", self._attended(side, q, k, v, layer, None, causal=False))

    def _attended(self, side, q, k, v, layer, bias, causal):
        coefficient = layer + 1 if side["apply_query_key_layer_scaling"] else 1
        factor = 1 / (side["kv_channels"] ** 0.5 * coefficient) if side["normalize_attention_scores"] else 1.0
        scores = q @ k.transpose(1, 2) * factor
        scores = (scores if bias is None else scores + bias) * coefficient
        if causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))
        return (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)

    def _mlp(self, side: dict, name: str, x: torch.Tensor) -> torch.Tensor:
        kind, by_tanh = side["activation"], side["bias_activation_fusion"] or side["openai_gelu"]
        up = gate = self._linear(f"{name}.dense_h_to_4h", x)
        if kind.startswith("fast"):
            gate, up = up.chunk(2, -1)
        elif kind.endswith("glu"):
            up = self._linear(f"{name}.dense_h_to_4h_2", x)
        kinds = {"swiglu": F.silu, "reglu": F.relu}
        gelu = lambda y: F.gelu(y, approximate="tanh" if by_tanh else "none")  # noqa: E731
        gate = kinds.get(kind.removeprefix("fast-"), gelu)(gate)
        inner = gate * up if kind.endswith("glu") else gate
        return self._linear(f"{name}.dense_4h_to_h", inner * self.scales.get(_scale_name(name, "mlp"), torch.ones(1)))

    def _scaled(self, name: str, kind: str, x: torch.Tensor) -> torch.Tensor:
        """x [heads, tokens, width]"""
        scales = self.scales.get(_scale_name(name, kind))
        return x if scales is None else x * scales.view(len(x), 1, -1)

    def draw_scales(self) -> None:
        """Draws what (IA)³ scales each layer by."""
        for name, side in self.side.items():
            inner = side["num_attention_heads"] * side["kv_channels"]
            parts = ["self_attention", *(["inter_attention"] if name == "decoder" else [])]
            sizes = {(part, kind): inner for part in parts for kind in ("key", "value")} | {
                ("mlp", "mlp"): side["ffn_hidden_size"]
            }
            for i in range(side["num_layers"]):
                for (part, kind), size in sizes.items():
                    path = f"{ROOT}.{ROOT}.{name}.model.layers.{i}.{part}"
                    self.scales[_scale_name(path, kind)] = 1 + torch.randn(size, generator=self.generator) * 0.5

    def unpacked_scales(self, folder: Path, tp: int = 1, pp: int = 1, **more) -> Path:
        """The content of an archive of (IA)³; of two stages the first has the encoder."""
        said = {"target": TARGET.replace("t5_model.MegatronT5Model", "t5_adapter_model.MegatronT5InfusedAdapterModel"),
                "virtual_prompt_style": "no-prompts", "language_model_path": "/models/t5.nemo", "new_tasks": ["boolq"],
                "tensor_model_parallel_size": tp, "pipeline_model_parallel_size": pp}  # fmt: skip
        folder.mkdir(parents=True)
        (folder / "model_config.yaml").write_text(yaml.safe_dump(said | more, sort_keys=False))
        for rank in range(tp):
            for stage in range(pp):
                name = f"tp_rank_{rank:02d}_pp_rank_{stage:03d}" if pp > 1 else f"mp_rank_{rank:02d}"
                place = folder / name if tp * pp > 1 else folder
                place.mkdir(exist_ok=True)
                own = {n: x for n, x in self.scales.items() if pp == 1 or n.startswith("decoder") == bool(stage)}
                torch.save(
                    {n: {"scalers": x.chunk(tp)[rank].clone()} for n, x in own.items()}, place / "model_weights.ckpt"
                )
        return folder

    def written(
        self, text: list[int], new: int, *, ids: int, start: int, end: int, rows: torch.Tensor | None = None
    ) -> list[int]:
        """Greedy tokens, none of them beyond the first `ids`: the others pad the embedding."""
        found = [start]
        while len(found) <= new and (len(found) == 1 or found[-1] != end):
            found.append(int(self.logits(text, found, rows)[-1, :ids].argmax()))
        return found[1:]

    # --- as NeMo saves it ---
    def ranks(self, tp: int, pp: int = 1, split: int = 1) -> dict[tuple[int, int], dict[str, torch.Tensor]]:
        """What each rank of a training keeps, by its numbers."""
        stages = [self.state] if pp == 1 else [self._stage(stage, pp, split) for stage in range(pp)]
        found = {(rank, stage): {} for rank in range(tp) for stage in range(pp)}
        for stage, state in enumerate(stages):
            for name, x in state.items():
                for rank, part in enumerate(self._cut(name, x, tp)):
                    found[rank, stage][name] = part.clone()
        return found

    def _stage(self, stage: int, pp: int, split: int) -> dict[str, torch.Tensor]:
        name, first, count = ("encoder", 0, split) if stage < split else ("decoder", split, pp - split)
        is_first, is_last, each = stage == first, stage == first + count - 1, self.side[name]["num_layers"] // count
        kept = {}
        for full, x in self.state.items():
            layer = re.fullmatch(rf"({ROOT}\.{ROOT}\.{name}\.model\.layers\.)(\d+)(\..+)", full)
            if layer and int(layer[2]) // each == stage - first:
                kept[f"{layer[1]}{int(layer[2]) % each}{layer[3]}"] = x
            inside = full.startswith(f"{ROOT}.{name}_relative")
            inside |= is_first and full.startswith(f"{ROOT}.{name}_embedding")
            inside |= is_last and full.startswith(f"{ROOT}.{ROOT}.{name}.model.final")
            inside |= stage == pp - 1 and full.startswith(f"{ROOT}.tokens_head")
            if inside and not layer:
                kept[full] = x
        if stage == pp - 1 and not is_first:
            kept[f"{ROOT}.word_embeddings.weight"] = self.state[f"{ROOT}.encoder_embedding.word_embeddings.weight"]
        return kept

    def _cut(self, name: str, x: torch.Tensor, tp: int) -> list[torch.Tensor]:
        side = self.side["decoder" if f".{ROOT}.decoder." in name else "encoder"]
        if BY_INPUT.fullmatch(name):
            return list(x.chunk(tp, 1))
        if WHOLE.fullmatch(name) and "h_to_4h" not in name:
            return [x] * tp
        parts = 2 if ".dense_h_to_4h." in name and side["activation"].startswith("fast") else 1
        if side["megatron_legacy"] and (".query_key_value." in name or ".key_value." in name):
            parts = 3 if ".query_key_value." in name else 2
        return [torch.cat(each) for each in zip(*(part.chunk(tp) for part in x.chunk(parts)), strict=True)]

    def unpacked(self, folder: Path, files: dict[str, Path], *, tp: int = 1, pp: int = 1, half: bool = False,
                 tokenizer: dict | None = None, **more) -> Path:  # fmt: skip
        """The content of an archive; `files`: the tokenizer's, by their names in the configuration."""
        folder.mkdir(parents=True)
        named = {name: f"nemo:{HASH}_{file.name}" for name, file in files.items()}
        sizes = {"tensor_model_parallel_size": tp, "pipeline_model_parallel_size": pp}
        said = self.config | sizes | {"tokenizer": named | (tokenizer or {})} | more
        (folder / "model_config.yaml").write_text(yaml.safe_dump(said, sort_keys=False))
        for file in files.values():
            shutil.copyfile(file, folder / f"{HASH}_{file.name}")
        for (rank, stage), state in self.ranks(tp, pp).items():
            name = f"tp_rank_{rank:02d}_pp_rank_{stage:03d}" if pp > 1 else f"mp_rank_{rank:02d}"
            place = folder / name if tp * pp > 1 else folder
            place.mkdir(exist_ok=True)
            state = {n.replace(ROOT, f"{ROOT}.module", 1): x for n, x in state.items()} if half else state
            torch.save(state, place / "model_weights.ckpt")
        return folder


def bert_file(folder: Path) -> dict[str, Path]:
    """A vocabulary of BERT's word pieces: 40 ids."""
    pieces = [
        "the",
        "house",
        "boat",
        "is",
        "small",
        "old",
        "in",
        "harbour",
        *"abcdefghij",
        *(f"##{c}" for c in "abcdefs"),
    ]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", ",", *pieces, *"klmnopqrst"][:40]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    return {"vocab_file": folder / "vocab.txt"}


def tuned_prompts(folder: Path, tables: dict[str, torch.Tensor], *, encoder: bool = False, flat: bool = False,
                  **more) -> Path:  # fmt: skip
    """The content of an archive of prompt learning; `encoder`: with what made the rows, `flat`: as in 2022."""
    folder.mkdir(parents=True)
    names = {f"prompt_table.{name}.prompt_embeddings.weight": rows for name, rows in tables.items()}
    names |= {f"prompt_table.{name}.indices": torch.arange(len(rows)) for name, rows in tables.items()}
    state = {f"prompt_table.{name}": x for name, x in names.items()} if flat else {"prompt_table": names}
    if encoder:
        state |= {"embeddings": {"weight": torch.zeros(3, 32)}, "mlp_head": {"0.weight": torch.zeros(4, 32)}}
    torch.save(state, folder / "model_weights.ckpt")
    templates = [
        {"taskname": name, "prompt_template": "<|VIRTUAL_PROMPT_0|> {text} {answer}", "truncate_field": "text",
         "total_virtual_tokens": len(rows), "virtual_token_splits": [len(rows)], "answer_field": "answer"}
        for name, rows in tables.items()
    ]  # fmt: skip
    said = {"target": TARGET.replace("T5Model", "T5PromptLearningModel"), "virtual_prompt_style": "p-tuning",
            "language_model_path": "/models/t5.nemo", "task_templates": templates, "existing_tasks": [],
            "new_tasks": list(tables), "tensor_model_parallel_size": 1, "data": {"add_eos": True}}  # fmt: skip
    (folder / "model_config.yaml").write_text(yaml.safe_dump(said | more, sort_keys=False))
    return folder


def _scale_name(path: str, kind: str) -> str:
    """Returns NeMo's name of a layer's scales: of the side, the module in it and the adapter."""
    side, _, inner = path.removeprefix(f"{ROOT}.{ROOT}.").partition(".")
    return f"{side}:{inner}:{kind}_infused_adapter"
