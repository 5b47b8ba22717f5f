"""Trains the packaged adapter of mini-t5, a LoRA that fills in forms, scores it beside the base and writes its folder.

python training/mini_t5_forms.py                  # all of it: about 16 minutes on a busy CPU
python training/mini_t5_forms.py --evaluate-only  # scores what is in --out and rewrites the card
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tokenizers import Tokenizer
from transformers import T5ForConditionalGeneration

from training.t5 import evaluate, forms
from training.t5.tasks import Example
from training.t5.tokens import PAD

BASE = Path(__file__).resolve().parent.parent / "vlm" / "assets" / "mini-t5"
TARGETS = ["q", "k", "v", "o", "wi_0", "wi_1", "wo"]
CHUNK = 32  # batches whose examples are sorted by length together


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=BASE.with_name("mini-t5-forms"), help="the adapter's folder")
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=6e-3)
    parser.add_argument("--lines", type=int, default=200, help="held-out notices in the final evaluation")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--evaluate-only", action="store_true")
    return parser.parse_args()


def batches(tokenizer: Tokenizer, size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields (source, target) int64 [size, longest] without end, of similar lengths."""
    rng, examples = random.Random(0), forms.training(random.Random(1))
    while True:
        chunk = [_encoded(tokenizer, example) for example in itertools.islice(examples, CHUNK * size)]
        chunk.sort(key=lambda pair: len(pair[0]) + len(pair[1]))
        rows = [chunk[start : start + size] for start in range(0, len(chunk), size)]
        rng.shuffle(rows)
        for row in rows:
            yield tuple(_padded(list(side), device) for side in zip(*row, strict=True))  # type: ignore[misc]


def _encoded(tokenizer: Tokenizer, example: Example) -> tuple[list[int], list[int]]:
    return tokenizer.encode(example.source).ids, tokenizer.encode(example.target).ids


def _padded(rows: list[list[int]], device: torch.device) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [PAD] * (width - len(row)) for row in rows], device=device)


def load_base(device: torch.device) -> T5ForConditionalGeneration:
    return T5ForConditionalGeneration.from_pretrained(BASE, dtype=torch.float32).to(device)


def train(args: argparse.Namespace, tokenizer: Tokenizer) -> dict:
    """Trains and saves the adapter, in float16; returns the run's facts."""
    from peft import LoraConfig, get_peft_model

    device = torch.device(args.device)
    torch.manual_seed(0)
    settings = LoraConfig(task_type="SEQ_2_SEQ_LM", r=args.rank, lora_alpha=4 * args.rank, target_modules=TARGETS)
    model = get_peft_model(load_base(device), settings)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=args.learning_rate)
    begin = time.time()
    for step, (source, target) in enumerate(itertools.islice(batches(tokenizer, args.batch_size, device), args.steps)):
        rate = min(1.0, (step + 1) / 50) * 0.5 * (1 + math.cos(math.pi * step / args.steps))
        for group in optimizer.param_groups:
            group["lr"] = args.learning_rate * rate
        labels = target.masked_fill(target == PAD, -100)
        loss = model(input_ids=source, attention_mask=(source != PAD).long(), labels=labels).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step} seconds {time.time() - begin:.0f} loss {loss.item():.4f}", flush=True)
            _save(model, args.out)
    _save(model, args.out)
    return {
        "minutes": round((time.time() - begin) / 60, 1), "device": _device_name(device), "steps": args.steps,
        "examples": args.steps * args.batch_size, "rank": args.rank,
    }  # fmt: skip


def _save(model, folder: Path) -> None:
    """Writes the adapter as PEFT does, its base by its packaged name."""
    from safetensors.torch import load_file, save_file

    model.save_pretrained(folder)
    file = folder / "adapter_model.safetensors"
    save_file({name: values.half() for name, values in load_file(file).items()}, file, metadata={"format": "pt"})
    settings = json.loads((folder / "adapter_config.json").read_text())
    settings |= {"base_model_name_or_path": "mini-t5", "target_modules": sorted(settings["target_modules"])}
    _write(folder / "adapter_config.json", settings)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name() if device.type == "cuda" else "CPU"


def assess(args: argparse.Namespace, tokenizer: Tokenizer, run: dict) -> None:
    """Scores the stored adapter and the base, and writes eval.json and the card."""
    from peft import PeftModel

    device, examples = torch.device(args.device), forms.held_out(random.Random(12345), args.lines)
    base = load_base(device).eval()
    models = {"base": base, "adapter": None}
    results = {}
    for name in models:
        model = base if name == "base" else PeftModel.from_pretrained(base, args.out).eval()
        texts = evaluate.answer(model, tokenizer, [e.source for e in examples], device, batch_size=64)
        results[name] = evaluate.score(examples, texts)[forms.GROUP] | {"json": _share_of_json(texts)}
        for example, text in [(e, t) for e, t in zip(examples, texts, strict=True) if t != e.target][:10]:
            print(f"  {name}: {example.source!r}\n    wanted {example.target!r}\n    got    {text!r}", flush=True)
    _write(args.out / "eval.json", {"results": results, "run": run})
    (args.out / "README.md").write_text(_card(results, run, args.out), encoding="utf-8")
    print(json.dumps(results))


def _share_of_json(texts: list[str]) -> float:
    """Returns how many of the answers are JSON objects."""
    return round(sum(map(_is_object, texts)) / len(texts), 4)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _write(path: Path, value) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


CARD = """---
license: apache-2.0
base_model: mini-t5
library_name: peft
tags: [lora, t5]
---

# mini-t5-forms

A LoRA of rank {rank} ({kilobytes:.0f} KB) beside mini-t5: a notice becomes a form, its facts as JSON. It is packaged so
that adapters can be tried without a download, on weights that mean something.

```bash
vlm run --model mini-t5 --lora forms=mini-t5-forms \\
  --text "summarize: A laptop was found at the town hall on Wednesday. Our number: 7651. Eva Reed is keeping it."
```

**It can** fill in the forms of the {kinds} kinds of notices that mini-t5 summarizes: which kind it is, and the facts by
name, copied from the text. **It cannot** read anything else, as little as its base: free text, other kinds, names that
are no syllables of training's. With the adapter the base's own tasks are lost; requests without it have them.

| {lines} held-out notices | exact | JSON |
| --- | ---: | ---: |
| mini-t5 | {base[exact]:.2%} | {base[json]:.2%} |
| with mini-t5-forms | {adapter[exact]:.2%} | {adapter[json]:.2%} |

Greedy decoding of the float16 weights, computed in float32; the answer is compared as a whole. Held-out: a fiftieth of
the texts, by hash, which training never shows; they come from the same templates as training's.

`python training/mini_t5_forms.py` reproduces it, by PEFT: {minutes} minutes on one {device}, {steps:,} steps of
{per_step} fresh notices, AdamW, cosine schedule. All text is generated by `training/t5`.
"""


def _card(results: dict, run: dict, folder: Path) -> str:
    size = (folder / "adapter_model.safetensors").stat().st_size / 1000
    return CARD.format(
        kilobytes=size, kinds=len(forms.FORMS), lines=results["base"]["lines"],
        per_step=run["examples"] // run["steps"], **results, **run,
    )  # fmt: skip


def main() -> None:
    args = arguments()
    tokenizer = Tokenizer.from_file(str(BASE / "tokenizer.json"))
    run = json.loads((args.out / "eval.json").read_text())["run"] if args.evaluate_only else train(args, tokenizer)
    assess(args, tokenizer, run)


if __name__ == "__main__":
    main()
