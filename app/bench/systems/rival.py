"""CTranslate2, which people run encoder-decoders of texts with on the CPU: the same weights, by its own converter."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from vlm.errors import InputError


class CTranslate2:
    """An encoder-decoder of texts on the CPU. `compute_type`: of its products."""

    def __init__(self, folder: Path, compute_type: str, threads: int):
        """Raises InputError for a model that it does not convert."""
        module = _module()
        with tempfile.TemporaryDirectory(prefix="vlm-bench-") as scratch:
            converted = str(Path(scratch) / "converted")
            try:
                _converter(folder).convert(converted, quantization=compute_type)
            except Exception as reason:  # of many kinds: its converter knows other versions of transformers
                raise InputError(
                    f"CTranslate2 does not convert the model ({reason}); leave --ctranslate2 out."
                ) from None
            self.translator = module.Translator(
                converted, device="cpu", compute_type=compute_type, inter_threads=1, intra_threads=threads
            )
        self.description: dict[str, Any] = {"ctranslate2": module.__version__, "compute_type": compute_type}

    def generate(self, texts: list[list[int]], new_tokens: int, num_beams: int) -> list[list[int]]:
        """Maps [B][T] -> [B][new_tokens]"""
        results = self.translator.translate_batch(
            [[_token(each) for each in text] for text in texts],
            beam_size=num_beams,
            min_decoding_length=new_tokens,
            max_decoding_length=new_tokens,
        )
        tokens = [[int(token[1:-1]) for token in result.hypotheses[0]] for result in results]
        assert all(len(row) == new_tokens for row in tokens)
        return tokens


def check_rival(device: torch.device) -> None:
    """Raises InputError where CTranslate2 is not there, or others run on a GPU: before minutes are spent."""
    if device.type != "cpu":
        raise InputError(f"--ctranslate2 is measured on the CPU, the device is {device}; add --device cpu.")
    _module()


def _module() -> Any:
    try:
        import ctranslate2
    except ImportError:
        raise InputError(
            "--ctranslate2 needs the package ctranslate2: pip install 'vlm-runtime[bench]', or leave it out."
        ) from None
    return ctranslate2


def _token(token_id: int) -> str:
    return f"<{token_id}>"


def _converter(folder: Path) -> Any:
    from ctranslate2.converters import TransformersConverter

    class Converter(TransformersConverter):
        """Names tokens by their ids: a benchmark has no texts, and a folder of random weights no tokenizer."""

        def load_tokenizer(self, tokenizer_class: Any, model_name_or_path: str, **kwargs: Any) -> Any:
            return _Ids(folder)

    return Converter(str(folder))


class _Ids:
    """What the converter asks of a tokenizer."""

    def __init__(self, folder: Path):
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(folder)
        self.vocab_size: int = config.vocab_size
        self.pad_token, self.eos_token = _token(config.pad_token_id), _token(config.eos_token_id)
        self.bos_token = self.unk_token = self.pad_token

    def get_vocab(self) -> dict[str, int]:
        return {_token(each): each for each in range(self.vocab_size)}

    def convert_ids_to_tokens(self, token_id: int) -> str:
        return _token(token_id)
