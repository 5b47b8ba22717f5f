"""Tiny random Hugging Face models, and their weights pulled apart so that every part matters."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    Blip2Config,
    Blip2ForConditionalGeneration,
    CLIPImageProcessor,
    CLIPVisionConfig,
    DeiTConfig,
    DonutSwinConfig,
    Florence2Config,
    Florence2ForConditionalGeneration,
    Gemma3ImageProcessor,
    GPT2Config,
    GPT2LMHeadModel,
    GPTBigCodeConfig,
    GPTBigCodeForCausalLM,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    LightOnOcrConfig,
    LightOnOcrForConditionalGeneration,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    MBartConfig,
    MBartForConditionalGeneration,
    MistralConfig,
    MistralForCausalLM,
    MT5Config,
    MT5ForConditionalGeneration,
    OPTConfig,
    OPTForCausalLM,
    PegasusConfig,
    PegasusForConditionalGeneration,
    Pix2StructConfig,
    Pix2StructForConditionalGeneration,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3Config,
    Qwen3ForCausalLM,
    SiglipVisionConfig,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
    T5Gemma2Config,
    T5Gemma2ForConditionalGeneration,
    T5GemmaConfig,
    T5GemmaForConditionalGeneration,
    TrOCRConfig,
    UMT5Config,
    UMT5ForConditionalGeneration,
    VisionEncoderDecoderConfig,
    VisionEncoderDecoderModel,
    ViTConfig,
)

from vlm.convert.config_reader import token_id

END_SCALE = 1.4


def nougat_config(
    *,
    image_size=(64, 48),
    window=4,
    depths=(2, 2),
    heads=(2, 4),
    embed_dim=16,
    patch=4,
    layers=2,
    decoder_heads=4,
    ffn=48,
    vocab=60,
    positions=96,
    tied=True,
    scale_embedding=True,
    activation="gelu",
) -> VisionEncoderDecoderConfig:
    width = embed_dim * 2 ** (len(depths) - 1)
    encoder = DonutSwinConfig(
        image_size=list(image_size), patch_size=patch, num_channels=3, embed_dim=embed_dim, depths=list(depths),
        num_heads=list(heads), window_size=window,
    )  # fmt: skip
    decoder = MBartConfig(
        vocab_size=vocab, d_model=width, decoder_layers=layers, encoder_layers=layers, decoder_ffn_dim=ffn,
        encoder_ffn_dim=ffn, decoder_attention_heads=decoder_heads, encoder_attention_heads=decoder_heads,
        max_position_embeddings=positions, activation_function=activation, scale_embedding=scale_embedding,
        is_decoder=True, add_cross_attention=True, is_encoder_decoder=False, tie_word_embeddings=tied,
        decoder_start_token_id=0, forced_eos_token_id=None,
    )  # fmt: skip
    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config.decoder_start_token_id, config.pad_token_id, config.eos_token_id, config.bos_token_id = 0, 1, 2, 0
    config.tie_word_embeddings = False
    return config


def nougat(seed: int = 0, spread: float = 0.35, **options) -> VisionEncoderDecoderModel:
    """Random, in float32 and evaluation mode. Its generations vary with the image and reach the end token at times."""
    torch.manual_seed(seed)
    model = VisionEncoderDecoderModel(nougat_config(**options)).eval()
    generator = torch.Generator().manual_seed(seed + 1)
    for parameter in model.parameters():
        # initial weights are so small that every token would look alike
        scale = spread if parameter.ndim >= 2 else spread / 2
        parameter.data += torch.randn(parameter.shape, generator=generator) * scale
    # a longer row is the likeliest token more often
    model.decoder.get_output_embeddings().weight.data[2] *= END_SCALE
    generation = model.generation_config
    generation.decoder_start_token_id, generation.pad_token_id = 0, 1
    generation.bos_token_id, generation.eos_token_id, generation.forced_eos_token_id = 0, 2, None
    return model


TROCR_COMPUTED = {"activation_function": "relu", "layernorm_embedding": False, "scale_embedding": True,
                  "tie_word_embeddings": False, "use_learned_position_embeddings": False}  # fmt: skip


def trocr(seed: int = 0, spread: float = 0.3, encoder: dict | None = None, **decoder) -> VisionEncoderDecoderModel:
    """Random, over a ViT (or `deit`) whose rows are of another width than the decoder's."""
    tower = _tower(image_size=32, patch_size=8) | (encoder or {})
    kind = DeiTConfig if tower.pop("deit", False) else ViTConfig
    shape = {"vocab_size": 60, "d_model": 32, "decoder_layers": 2, "decoder_ffn_dim": 48, "decoder_attention_heads": 4,
             "max_position_embeddings": 96, "cross_attention_hidden_size": tower["hidden_size"], "is_decoder": True,
             "add_cross_attention": True}  # fmt: skip
    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(kind(**tower), TrOCRConfig(**shape | decoder))
    config.tie_word_embeddings = False
    torch.manual_seed(seed)
    model = pull_apart(VisionEncoderDecoderModel(config), seed, spread, end=2)
    own = model.generation_config
    own.decoder_start_token_id, own.pad_token_id, own.bos_token_id, own.eos_token_id = 2, 1, 0, 2
    return model


def pix2struct(seed: int = 0, spread: float = 0.2, tower: dict | None = None, text: dict | None = None, **options):
    """Random Pix2StructForConditionalGeneration over images of up to 64 patches of 4 × 4 pixels."""
    vision = {"hidden_size": 32, "patch_embed_hidden_size": 48, "d_ff": 40, "d_kv": 12, "num_hidden_layers": 2,
              "num_attention_heads": 3, "seq_len": 64}  # fmt: skip
    words = {"vocab_size": 60, "hidden_size": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    config = Pix2StructConfig(vision_config=vision | (tower or {}), text_config=words | (text or {}), **options)
    torch.manual_seed(seed)
    model = pull_apart(Pix2StructForConditionalGeneration(config), seed, spread, end=1)
    model.generation_config.decoder_start_token_id = 0
    return model


def images(model: VisionEncoderDecoderModel, count: int, seed: int = 0) -> torch.Tensor:
    """[count, 3, H, W]"""
    size = model.config.encoder.image_size
    size = size if isinstance(size, list) else [size, size]
    return torch.randn(count, 3, *size, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def hf_tokens(model, pixel_values, max_new_tokens: int, **options) -> list[list[int]]:
    """Greedy tokens of each image, start token removed, up to and with the end token. Images of one size need no
    padding, so that those of a batch are those of one."""
    options = {"max_new_tokens": max_new_tokens, "do_sample": False, "num_beams": 1, **options}
    return [up_to_end(row[1:], 2) for row in model.generate(pixel_values=pixel_values, **options).tolist()]


def up_to_end(tokens: list[int], end: int) -> list[int]:
    """Up to and with the first end token."""
    return tokens[: tokens.index(end) + 1] if end in tokens else tokens


def padded(texts: list[list[int]], pad: int, left: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the ids of several texts, and where they are no padding; both [texts, longest]."""
    longest = max(map(len, texts))
    gaps = [longest - len(text) for text in texts]
    rows = [([*[pad] * n, *text], [0] * n + [1] * len(text)) for n, text in zip(gaps, texts, strict=True)]
    if not left:
        rows = [([*text, *[pad] * n], [1] * len(text) + [0] * n) for n, text in zip(gaps, texts, strict=True)]
    ids, mask = zip(*rows, strict=True)
    return torch.tensor(ids), torch.tensor(mask)


def pull_apart(model, seed: int, spread: float, end: int | None = None):
    """Initial weights are so small that every token would look alike; a longer row is the likeliest more often."""
    generator = torch.Generator().manual_seed(seed + 1)
    for parameter in filter(lambda each: each.requires_grad, model.parameters()):  # but for sines
        scale = spread if parameter.ndim >= 2 else spread / 2
        parameter.data += torch.randn(parameter.shape, generator=generator) * scale
    if end is not None:
        model.get_output_embeddings().weight.data[end] *= END_SCALE
    return model.eval()


T5_KINDS = {
    "t5": (T5Config, T5ForConditionalGeneration),
    "mt5": (MT5Config, MT5ForConditionalGeneration),
    "umt5": (UMT5Config, UMT5ForConditionalGeneration),
}


def t5(seed: int = 2, spread: float = 0.5, tied: bool = True, kind: str = "t5", **options):
    """Random T5ForConditionalGeneration (or MT5…, UMT5…), the head a weight of its own where it is not `tied`."""
    shape = {"vocab_size": 60, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    kinds = T5_KINDS[kind]
    torch.manual_seed(seed)
    config = kinds[0](**shape | options, tie_word_embeddings=tied, decoder_start_token_id=0, initializer_factor=0.5)
    model = kinds[1](config)
    if not tied:
        model.lm_head.weight = torch.nn.Parameter(torch.randn(config.vocab_size, config.d_model))
    model.generation_config.decoder_start_token_id = 0
    return pull_apart(model, seed, spread, end=1)


def bart(seed: int = 0, spread: float = 0.25, multilingual: bool = False, logits_bias: bool = False, **options):
    """Random BartForConditionalGeneration (or MBart…)."""
    kinds = (MBartConfig, MBartForConditionalGeneration) if multilingual else (BartConfig, BartForConditionalGeneration)
    special = {"forced_eos_token_id": None, "decoder_start_token_id": 2}
    return _bart_shaped(kinds, seed, spread, logits_bias=logits_bias, **special | options)


def m2m100(seed: int = 5, spread: float = 0.4, **options):
    """Random M2M100ForConditionalGeneration."""
    return small_embeddings(_bart_shaped((M2M100Config, M2M100ForConditionalGeneration), seed, spread, **options))


def small_embeddings(model):
    """Makes the embeddings of an M2M100 as small as those that are not scaled: else every token is followed by itself.
    Those of its padding are zeros, as published: Hugging Face gives one that is generated a position of its own."""
    tables = {id(head.weight): head.weight for head in (model.get_input_embeddings(), model.get_output_embeddings())}
    for table in tables.values():
        table.data[model.config.pad_token_id] = 0
        if model.config.scale_embedding:
            table.data /= model.config.d_model**0.5
    return model


def marian(seed: int = 0, spread: float = 0.4, logits_bias: bool = False, **options):
    """Random MarianMTModel, which starts from its padding."""
    special = {"pad_token_id": 1, "decoder_start_token_id": 1, "eos_token_id": 2, "forced_eos_token_id": None,
               "activation_function": "swish", "scale_embedding": True}  # fmt: skip
    kinds = (MarianConfig, MarianMTModel)
    return _bart_shaped(kinds, seed, spread, logits_bias=logits_bias, **special | options)


def pegasus(seed: int = 0, spread: float = 0.4, logits_bias: bool = False, **options):
    """Random PegasusForConditionalGeneration, which starts from its padding."""
    special = {"forced_eos_token_id": None, "activation_function": "relu", "scale_embedding": True}
    kinds = (PegasusConfig, PegasusForConditionalGeneration)
    return small_embeddings(_bart_shaped(kinds, seed, spread, logits_bias=logits_bias, **special | options))


def _bart_shaped(kinds, seed: int, spread: float, logits_bias: bool = False, **options):
    shape = {"vocab_size": 60, "d_model": 32, "max_position_embeddings": 96}
    for side in ("encoder", "decoder"):
        shape |= {f"{side}_layers": 2, f"{side}_ffn_dim": 48, f"{side}_attention_heads": 4}
    torch.manual_seed(seed)
    model = kinds[1](kinds[0](**shape | options))
    if logits_bias:
        model.final_logits_bias = torch.randn_like(model.final_logits_bias)
    return pull_apart(model, seed, spread, end=model.config.eos_token_id)


def t5gemma(seed: int = 1, spread: float = 0.3, encoder: dict | None = None, decoder: dict | None = None, **options):
    """Random T5GemmaForConditionalGeneration, whose windows and caps tell."""
    shape = {"vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 12,
             "num_attention_heads": 4, "num_key_value_heads": 2, "query_pre_attn_scalar": 5, "sliding_window": 4,
             "attn_logit_softcapping": 3.0, "final_logit_softcapping": 4.0, "max_position_embeddings": 96}  # fmt: skip
    torch.manual_seed(seed)
    sides = {"encoder": shape | (encoder or {}), "decoder": shape | (decoder or {})}
    model = T5GemmaForConditionalGeneration(T5GemmaConfig(**sides, **{"vocab_size": 60, **options}))
    model.generation_config.decoder_start_token_id = 2
    pull_apart(model, seed, spread, end=1)
    model.get_output_embeddings().weight.data /= 4  # else every token is followed by itself
    return model


def t5gemma2(seed: int = 1, spread: float = 0.25, text: dict | None = None, encoder: dict | None = None, **options):
    """Random T5Gemma2ForConditionalGeneration, whose windows, of one more token to the right than to the left, tell;
    saved with the settings that say its images' size. Id 57 follows an image; `text`: of both sides."""
    shape = {"vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 12,
             "num_attention_heads": 4, "num_key_value_heads": 2, "query_pre_attn_scalar": 5, "sliding_window": 6,
             "max_position_embeddings": 128, "layer_types": ["sliding_attention", "full_attention"],
             "final_logit_softcapping": 4.0} | (text or {})  # fmt: skip
    tower = {"model_type": "siglip_vision_model", "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
             "num_attention_heads": 3, "image_size": 32, "patch_size": 4}  # fmt: skip
    encoder = {"text_config": dict(shape), "vision_config": tower, "mm_tokens_per_image": 16, "boi_token_index": 56,
               "eoi_token_index": 57} | (encoder or {})  # fmt: skip
    torch.manual_seed(seed)
    config = T5Gemma2Config(
        encoder=encoder, decoder=dict(shape), **{"image_token_index": 59, "vocab_size": 60, **options}
    )
    model = T5Gemma2ForConditionalGeneration(config)
    model.generation_config.decoder_start_token_id = 2
    pull_apart(model, seed, spread, end=1)
    # else every token is followed by itself
    model.get_output_embeddings().weight.data /= 4
    save = model.save_pretrained

    def save_with_processor(folder, **told):
        save(folder, **told)
        Gemma3ImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)

    model.save_pretrained = save_with_processor
    return model


def texts(model, lengths, seed: int = 0) -> list[list[int]]:
    """Token sequences of these lengths, special tokens left out but for the end."""
    generator = torch.Generator().manual_seed(seed)
    end = token_id(vars(model.config), "eos_token_id", 0)
    draw = lambda n: torch.randint(3, model.config.vocab_size, (n - 1,), generator=generator).tolist()  # noqa: E731
    return [[*draw(n), end] for n in lengths]


@torch.no_grad()
def hf_text(model, ids: list[int], max_new_tokens: int, **options) -> list[int]:
    """Tokens for one text alone, start token removed, up to and with the end token."""
    [found] = hf_texts(model, [ids], max_new_tokens, **options)
    return found


def hf_texts(model, texts: list[list[int]], max_new_tokens: int, **options) -> list[list[int]]:
    """Tokens of each text as `hf_text` has them, in as many passes as the longest output: padding is masked."""
    # its cache has as many layers as the encoder
    deeper = getattr(model.config, "num_decoder_layers", 0) > getattr(model.config, "num_hidden_layers", 0)
    options = {"do_sample": False, "num_beams": 1, "use_cache": not deeper, **options}
    prefix = options.pop("prefix", None)
    if prefix is not None:
        options["decoder_input_ids"] = torch.tensor([prefix] * len(texts))
    ids, mask = padded(texts, model.config.pad_token_id)
    out = model.generate(ids, attention_mask=mask, max_new_tokens=max_new_tokens, **options).tolist()
    start, end = len(prefix) if prefix is not None else 1, model.config.eos_token_id
    return [up_to_end(row[start:], end) for row in out]


LLAMA_KINDS = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}


def llama(seed: int = 0, spread: float = 0.3, kind: str = "llama", **options):
    """Random LlamaForCausalLM (or Mistral…, Qwen2…, Qwen3…)."""
    shape = {"vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 128}  # fmt: skip
    config, model = LLAMA_KINDS[kind]
    if kind.startswith("qwen"):
        shape |= {"bos_token_id": 1, "eos_token_id": 2}
    torch.manual_seed(seed)
    return pull_apart(model(config(**shape | options)), seed, spread, end=2)


def opt(seed: int = 0, spread: float = 0.25, **options):
    """Random OPTForCausalLM."""
    shape = {"vocab_size": 60, "hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 48, "num_hidden_layers": 2,
             "num_attention_heads": 4, "max_position_embeddings": 128}  # fmt: skip
    torch.manual_seed(seed)
    return pull_apart(OPTForCausalLM(OPTConfig(**shape | options)), seed, spread, end=2)


def gpt2(seed: int = 0, spread: float = 0.25, **options):
    """Random GPT2LMHeadModel, or with `multi_query` a GPTBigCodeForCausalLM."""
    shape = {"vocab_size": 60, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "bos_token_id": 0,
             "eos_token_id": 2}  # fmt: skip
    code = "multi_query" in options
    kinds = (GPTBigCodeConfig, GPTBigCodeForCausalLM) if code else (GPT2Config, GPT2LMHeadModel)
    torch.manual_seed(seed)
    return pull_apart(kinds[1](kinds[0](**shape | options)), seed, spread, end=2)


def prompts(model, lengths, seed: int = 0) -> list[list[int]]:
    """Token sequences of these lengths, special tokens left out."""
    return ids_below(model.config.vocab_size, lengths, seed)


def ids_below(end: int, lengths, seed: int = 0) -> list[list[int]]:
    """Token sequences of these lengths, the first three ids left out, and those from `end` on."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, end, (n,), generator=generator).tolist() for n in lengths]


def save_with_words(model, folder) -> None:
    """Saves a decoder with a tokenizer of the words w0, w1, … after four special tokens."""
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    words = [*special, *(f"w{i}" for i in range(model.config.vocab_size - len(special)))]
    fast = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "<unk>"))
    fast.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=fast).save_pretrained(folder)


@torch.no_grad()
def hf_continued(model, ids: list[int], max_new_tokens: int, **options) -> list[int]:
    """New tokens for one prompt alone, up to and with the end token."""
    [found] = hf_continuations(model, [ids], max_new_tokens, **options)
    return found


def hf_continuations(model, prompts: list[list[int]], max_new_tokens: int, **options) -> list[list[int]]:
    """New tokens of each prompt as `hf_continued` has them, in as many passes as the longest output."""
    options = {"do_sample": False, "num_beams": 1, "pad_token_id": 0, **options}
    ids, mask = padded(prompts, 0, left=True)
    out = model.generate(ids, attention_mask=mask, max_new_tokens=max_new_tokens, **options).tolist()
    return [up_to_end(row[ids.shape[1] :], model.config.eos_token_id) for row in out]


def _tower(**options) -> dict:
    return {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 3,
            "image_size": 16, "patch_size": 4} | options  # fmt: skip


def llava(seed: int = 0, spread: float = 0.25, tower: dict | None = None, text: dict | None = None, **options):
    """Random LlavaForConditionalGeneration; id 59 is the image's placeholder."""
    shape = {"vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}  # fmt: skip
    tower = _tower(**(tower or {}))
    kind = SiglipVisionConfig if tower.pop("siglip", False) else CLIPVisionConfig
    config = LlavaConfig(vision_config=kind(**tower), text_config=LlamaConfig(**shape | (text or {})),
                         image_token_index=59, **options)  # fmt: skip
    torch.manual_seed(seed)
    return pull_apart(LlavaForConditionalGeneration(config), seed, spread, end=2)


def blip2(language: str = "opt", seed: int = 0, spread: float = 0.25, tower: dict | None = None,
          queries: dict | None = None, **options):  # fmt: skip
    """Random Blip2ForConditionalGeneration over OPT or T5; id 59 is the image's placeholder."""
    text = {
        "opt": lambda: OPTConfig(vocab_size=60, hidden_size=32, word_embed_proj_dim=32, ffn_dim=48, num_hidden_layers=2,
                                 num_attention_heads=4, max_position_embeddings=256),
        "t5": lambda: T5Config(vocab_size=60, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, eos_token_id=2,
                               feed_forward_proj="gated-gelu", decoder_start_token_id=0, initializer_factor=0.5),
    }[language]()  # fmt: skip
    shape = {"hidden_size": 20, "intermediate_size": 36, "num_hidden_layers": 3, "num_attention_heads": 4,
             "encoder_hidden_size": 24} | (queries or {})  # fmt: skip
    config = Blip2Config(
        vision_config=_tower(**(tower or {})), qformer_config=shape, text_config=text.to_dict(), num_query_tokens=5,
        image_token_index=59, **options,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = Blip2ForConditionalGeneration(config)
    model.generation_config.decoder_start_token_id = 0
    return pull_apart(model, seed, spread, end=2)


def lighton_ocr(seed: int = 0, spread: float = 0.3, tower: dict | None = None, text: dict | None = None, **options):
    """Random LightOnOcrForConditionalGeneration over images of up to 56 pixels; id 59 is the image's placeholder."""
    shape = _tower(num_hidden_layers=2, image_size=56) | {"model_type": "pixtral", "hidden_act": "silu"}
    words = {"model_type": "qwen3", "vocab_size": 60, "hidden_size": 32, "intermediate_size": 48,
             "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12,
             "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
             "tie_word_embeddings": True}  # fmt: skip
    config = LightOnOcrConfig(
        vision_config=shape | (tower or {}), text_config=words | (text or {}), **{"image_token_id": 59} | options
    )
    torch.manual_seed(seed)
    return pull_apart(LightOnOcrForConditionalGeneration(config), seed, spread, end=2)


def idefics3(
    seed: int = 0, spread: float = 0.3, *, smol: bool = False, tower: dict | None = None, text: dict | None = None,
    **options,
):  # fmt: skip
    """Random Idefics3ForConditionalGeneration, or SmolVLM's, over tiles of 16 pixels, four rows each; id 59 is the
    image's placeholder."""
    kinds = (SmolVLMConfig, SmolVLMForConditionalGeneration), (Idefics3Config, Idefics3ForConditionalGeneration)
    kind, model = kinds[not smol]
    shape = _tower(num_hidden_layers=2)
    words = {"model_type": "llama", "vocab_size": 60, "hidden_size": 32, "intermediate_size": 48,
             "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
             "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}  # fmt: skip
    config = kind(vision_config=shape | (tower or {}), text_config=words | (text or {}),
                  **{"image_token_id": 59, "scale_factor": 2, "tie_word_embeddings": True} | options)  # fmt: skip
    torch.manual_seed(seed)
    return pull_apart(model(config), seed, spread, end=2)


def qwen_vl(
    seed: int = 0, spread: float = 0.3, *, second: bool = True, tower: dict | None = None, text: dict | None = None,
    **options,
):  # fmt: skip
    """Random Qwen2VLForConditionalGeneration, or the `second`'s; id 59 is the image's placeholder."""
    first = (Qwen2VLConfig, Qwen2VLForConditionalGeneration)
    kind, model = (Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration) if second else first
    shape = {"depth": 4, "num_heads": 3, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2}
    if second:
        shape |= {"hidden_size": 24, "intermediate_size": 40, "out_hidden_size": 32, "window_size": 16,
                  "fullatt_block_indexes": [1, 3]}  # fmt: skip
    else:
        shape |= {"embed_dim": 24, "mlp_ratio": 2, "hidden_size": 32}
    words = {"vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "rms_norm_eps": 1e-6,
             "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
             "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [1, 1, 2]}}  # fmt: skip
    names = {"image_token_id": 59, "video_token_id": 58, "vision_start_token_id": 57, "vision_end_token_id": 56}
    parts = {"vision_config": shape | (tower or {}), "text_config": words | (text or {})}
    config = kind(**parts | names | {"tie_word_embeddings": True} | options)
    torch.manual_seed(seed)
    return pull_apart(model(config), seed, spread, end=2)


DAVIT = {"depths": [1, 2], "embed_dim": [16, 24], "num_heads": [2, 3], "num_groups": [4, 2], "patch_size": [7, 3],
         "patch_stride": [4, 2], "patch_padding": [3, 1], "patch_prenorm": [False, True], "window_size": 3,
         "projection_dim": 32, "max_position_embeddings": 7}  # fmt: skip
FLORENCE_SIZE = {"height": 40, "width": 32}


def florence2(seed: int = 0, spread: float = 0.3, tower: dict | None = None, text: dict | None = None, **options):
    """Random Florence2ForConditionalGeneration, saved with the settings that say its images' size; id 59 is the image's
    placeholder."""
    words = {"model_type": "bart", "vocab_size": 60, "d_model": 32, "max_position_embeddings": 128,
             "forced_eos_token_id": None} | (text or {})  # fmt: skip
    for side in ("encoder", "decoder"):
        words = {f"{side}_layers": 2, f"{side}_ffn_dim": 48, f"{side}_attention_heads": 4} | words
    config = Florence2Config(vision_config=DAVIT | (tower or {}), text_config=words, **{"image_token_id": 59} | options)
    torch.manual_seed(seed)
    model = pull_apart(Florence2ForConditionalGeneration(config), seed, spread, end=2)
    # else a token is followed by itself
    model.get_output_embeddings().weight.data /= 4
    own, save = model.generation_config, model.save_pretrained
    own.decoder_start_token_id, own.pad_token_id, own.bos_token_id, own.eos_token_id = 2, 1, 0, 2

    def save_with_processor(folder, **told):
        save(folder, **told)
        CLIPImageProcessor(size=FLORENCE_SIZE, do_center_crop=False).save_pretrained(folder)

    model.save_pretrained = save_with_processor
    return model
