"""Times `vlm run` from the command to the first letter of its answer about a picture: how long who starts it waits.

    python benchmarks/first_answer.py qwen2.5-vl-3b --processor FOLDER
    python benchmarks/first_answer.py qwen2.5-vl-3b --processor FOLDER --image-size 1920x1080 --runs 5 --layers 2

The engine has random weights and the processor of a published folder: preprocessor_config.json, chat_template.json,
tokenizer_config.json and tokenizer.json. Where there is no tokenizer.json one is made of as many tokens, with the
special tokens of the settings. Kernels are compiled, and kept, in the first run of a machine. `--layers` is for trying
it out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from vlm.build.builder import build_engine
from vlm.build.random_checkpoint import random_checkpoint
from vlm.config import BuildConfig
from vlm_app.core.architecture import hf_config

FILES = ("preprocessor_config.json", "chat_template.json", "chat_template.jinja", "tokenizer_config.json")
QUESTION, TOKENS = "What is in this picture?", 64
LAYERS = ("num_hidden_layers", "depth")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arch")
    parser.add_argument("--processor", type=Path, required=True)
    parser.add_argument("--image-size", default="640x360")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--layers", type=int)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        engine, picture = Path(folder, "engine"), Path(folder, "picture.png")
        build(arguments.arch, arguments.processor, engine, dtype=arguments.dtype, layers=arguments.layers)
        width, height = map(int, arguments.image_size.split("x"))
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)).save(picture)
        for _ in range(arguments.runs):
            print(f"first letter after {first_letter(engine, picture):.2f} s", flush=True)


def build(arch: str, processor: Path, out: Path, *, dtype: str, layers: int | None) -> None:
    """Builds an engine of random weights with the processor's files."""
    hf = json.loads(json.dumps(hf_config(arch)), object_hook=lambda each: _with_layers(each, layers))
    with tempfile.TemporaryDirectory() as scratch:
        files = [processor / name for name in FILES if (processor / name).is_file()]
        tokenizer = processor / "tokenizer.json"
        if not tokenizer.is_file():
            settings = json.loads((processor / "tokenizer_config.json").read_text("utf-8"))
            tokenizer = Path(scratch, "tokenizer.json")
            made_tokenizer(settings["added_tokens_decoder"]).save(str(tokenizer))
        checkpoint = random_checkpoint(
            hf, Path(scratch, "checkpoint"), dtype=dtype, processor_files=[tokenizer, *files]
        )
        build_engine(checkpoint, out, BuildConfig(dtype=dtype))


def _with_layers(config: dict[str, Any], count: int | None) -> dict[str, Any]:
    return config if count is None else config | {name: count for name in LAYERS if name in config}


def made_tokenizer(added: dict[str, dict[str, Any]]) -> Tokenizer:
    """Returns a byte-level BPE tokenizer with these tokens at their numbers, and one of each number below them: bytes,
    pairs of bytes and what these and a third one make."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = list(itertools.product(letters, letters))
    triples = [(first + second, third) for (first, second), third in itertools.product(pairs, letters[:8])]
    merges = [*pairs, *triples][: min(map(int, added)) - len(letters)]
    words = [*letters, *(first + second for first, second in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue] - a property
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue] - a property
    tokenizer.add_special_tokens([AddedToken(added[i]["content"], special=True) for i in sorted(added, key=int)])
    assert all(tokenizer.token_to_id(token["content"]) == int(i) for i, token in added.items()), "numbers have gaps"
    return tokenizer


def first_letter(engine: Path, picture: Path) -> float:
    """Returns the seconds from the command to the first byte of its answer. Raises CalledProcessError where it
    fails."""
    line = [sys.executable, "-m", "vlm_app.cli.main", "run", "--model", engine, "--image", picture, "--raw"]
    line += ["--prompt", QUESTION, "--max-new-tokens", str(TOKENS)]
    began = time.perf_counter()
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        took = time.perf_counter() - began
        _, said = process.communicate()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, line, stderr=said)
    return took


if __name__ == "__main__":
    main()
