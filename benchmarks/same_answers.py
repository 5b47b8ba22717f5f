"""Compares engines of one model, built for several ways to split it: the logits of the first token, and tokens.

    python benchmarks/same_answers.py --json same.json engines/llava-1.5-13b engines/llava-1.5-13b-tp4

The first engine is what the others are compared with: for each of the same prompts (of several lengths, an image in
each where the model reads images) how far its first logits are apart, as a part of their norm, and how many tokens are
equal before the first that is not. In 16 bits logits that are nearly equal may change places, and all tokens behind
that one are others then.
"""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

import vlm
from vlm.api.pipeline import Pipeline
from vlm.config import RuntimeConfig

LENGTHS = (9, 40, 17, 100, 3, 64, 28, 5)
TOKENS = 32


def main(arguments: list[str] | None = None) -> None:
    """Prints a line for each engine after the first one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("engines", nargs="+", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path, help="a file for the results")
    parser.add_argument(
        "--cache", type=float, default=0.2, help="the caches' share of free memory: less where several of these run"
    )
    options = parser.parse_args(arguments)
    expected, results = None, {}
    for engine in options.engines:
        found = answers(engine, options.device, options.cache)
        if expected is None:
            expected = found
            continue
        results[engine.name] = compared(found, expected)
        print(f"{engine.name}: {json.dumps(results[engine.name])}", flush=True)
        if options.json is not None:  # with each: what follows may fail
            result = {"kind": "same answers", "engine": options.engines[0].name, "others": results}
            options.json.write_text(json.dumps(result, indent=2) + "\n")


def answers(engine: Path, device: str, cache: float) -> list[tuple[torch.Tensor, list[int]]]:
    """Returns of each prompt the logits [vocab] of the first token, and the tokens."""
    runtime = RuntimeConfig(device=device, kv_cache_free_gpu_memory_fraction=cache)
    with closing(vlm.load(str(engine), runtime=runtime)) as pipeline:
        outputs = pipeline.generate(
            prompts(pipeline), max_new_tokens=TOKENS, ignore_eos=True, return_generation_logits=True
        )
        return [(output.generation_logits[0].float().cpu(), list(output.token_ids)) for output in outputs]


def prompts(pipeline: Pipeline) -> list[dict[str, Any]]:
    """Returns the inputs, which follow from the model alone."""
    generator, inputs, vision = torch.Generator().manual_seed(0), [], pipeline.processor.vision
    for length in LENGTHS:
        given: dict[str, Any] = {}
        ids = torch.randint(3, pipeline.config.vocab_size, (length,), generator=generator).tolist()
        if vision is not None:
            size = vision.image_size
            given["pixel_values"] = torch.randn(vision.num_channels, *size, generator=generator)
            ids = [*range(pipeline.config.vocab_size, pipeline.config.vocab_size + vision.rows_of(*size)), *ids]
        if vision is None or pipeline.capabilities.takes_prompt:
            given[pipeline.capabilities.id_field] = ids
        inputs.append(given)
    return inputs


def compared(
    found: list[tuple[torch.Tensor, list[int]]], expected: list[tuple[torch.Tensor, list[int]]]
) -> dict[str, Any]:
    """Returns how far logits are apart at most, and of each prompt how many of its first tokens are equal."""
    apart = [
        float((ours - theirs).norm() / theirs.norm()) for (ours, _), (theirs, _) in zip(found, expected, strict=True)
    ]
    equal = [
        next((i for i, pair in enumerate(zip(ours, theirs, strict=True)) if len(set(pair)) > 1), TOKENS)
        for (_, ours), (_, theirs) in zip(found, expected, strict=True)
    ]
    return {"logits_apart": max(apart), "equal_tokens": equal, "of": TOKENS}


if __name__ == "__main__":
    main()
