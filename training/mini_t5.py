"""Trains mini-t5 from scratch, scores it and writes its Hugging Face folder and card.

python training/mini_t5.py                        # all of it: about 9 minutes on one H200 with 16 cores
python training/mini_t5.py --evaluate-only        # scores what is in --out and rewrites the card
python training/mini_t5.py --examples examples    # writes the example files
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from training.optimizer import adamw
from training.t5 import evaluate, tokens
from training.t5.examples import write_examples
from training.t5.export import export, published, write_card, write_results
from training.t5.loader import Loader
from training.t5.model import SCALE, Trainer, build, fold_scale


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("vlm/assets/mini-t5"), help="the model's folder")
    parser.add_argument("--state", type=Path, default=Path("mini_t5_state"), help="the log's folder")
    parser.add_argument("--seconds", type=float, default=450, help="length of the schedule, compilation not counted")
    parser.add_argument("--learning-rate", type=float, default=1.5e-3)
    parser.add_argument("--workers", type=int, default=14, help="processes that generate text")
    parser.add_argument("--lines", type=int, default=1000, help="held-out lines of a group in the final evaluation")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--evaluate-only", action="store_true")
    parser.add_argument("--examples", type=Path, help="only write the example files into this folder")
    return parser.parse_args()


class Run:
    """One training run: its model, optimizer, clock and log."""

    def __init__(self, args: argparse.Namespace):
        self.args, self.device = args, torch.device(args.device)
        args.state.mkdir(parents=True, exist_ok=True)
        self.tokenizer = tokens.build()
        self.tokenizer.save(str(args.state / "tokenizer.json"))
        self.loader = Loader(args.state / "tokenizer.json", args.workers, self.device, seed=int(time.time()))
        torch.manual_seed(0)
        torch.backends.cuda.matmul.allow_tf32 = True
        self.model = build(vocab_size=self.tokenizer.get_vocab_size()).to(self.device)
        fold_scale(self.model, 1 / SCALE)
        self.trainer = Trainer(self.model, compiled=self.device.type == "cuda")
        self.optimizer = adamw(self.trainer, args.learning_rate)
        self.step, self.rows, self.elapsed = 0, 0, 0.0

    def train(self) -> None:
        begin = time.time()
        for source, target in self.loader.one_of_each():  # compiles; not counted
            self._loss(source, target)[0].backward()
        self.optimizer.zero_grad(set_to_none=True)
        say(self.args, f"compiled in {time.time() - begin:.0f} s")
        begin = time.time()
        while self.elapsed < self.args.seconds:
            loss, right = self._take_step(*self.loader.next())
            self.elapsed = time.time() - begin
            if self.step % 200 == 0:
                say(self.args, f"step {self.step} seconds {self.elapsed:.0f} rows/s {self.rows / self.elapsed:.0f} "
                               f"fresh {self.loader.fresh / self.step:.2f} loss {loss.item():.4f} "
                               f"right {right.item():.4f}")  # fmt: skip
        self.loader.stop()
        export(published(self.model), self.tokenizer, self.args.out)

    def _loss(self, source: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            return self.trainer(source, target)

    def _take_step(self, source: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        progress = min(1.0, self.elapsed / self.args.seconds)
        rate = self.args.learning_rate * min(1.0, (self.step + 1) / 400) * 0.5 * (1 + math.cos(math.pi * progress))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss, right = self._loss(source, target)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.trainer.parameters(), 1.0)
        self.optimizer.step()
        self.step, self.rows = self.step + 1, self.rows + len(source)
        return loss.detach(), right.detach()

    def facts(self) -> dict:
        name = torch.cuda.get_device_name() if self.device.type == "cuda" else "CPU"
        return {
            "minutes": round(self.elapsed / 60, 1), "device": name, "steps": self.step, "examples": self.rows,
            "fresh": round(min(1.0, self.loader.fresh / max(self.step, 1)), 3),
        }  # fmt: skip


def say(args: argparse.Namespace, line: str) -> None:
    print(line, flush=True)
    args.state.mkdir(parents=True, exist_ok=True)
    with (args.state / "log.txt").open("a", encoding="utf-8") as log:
        print(line, file=log)


def assess(args: argparse.Namespace, run: dict) -> None:
    """Scores the folder's weights as they are stored and writes eval.json and the card."""
    from tokenizers import Tokenizer
    from transformers import T5ForConditionalGeneration

    device = torch.device(args.device)
    torch.backends.cuda.matmul.allow_tf32 = False
    model = T5ForConditionalGeneration.from_pretrained(args.out, dtype=torch.float32).to(device).eval()
    tokenizer, results = Tokenizer.from_file(str(args.out / "tokenizer.json")), {}
    for name, examples in evaluate.held_out_examples(args.lines, 12345).items():
        texts = evaluate.answer(model, tokenizer, [e.source for e in examples], device)
        results[name] = evaluate.score(examples, texts)
        say(args, f"{name}: {json.dumps(results[name])}")
        wrong = [(e, text) for e, text in zip(examples, texts, strict=True) if text != e.target]
        for example, text in wrong[:: max(1, len(wrong) // 60)]:
            say(args, f"  {example.source!r}\n    wanted {example.target!r}\n    got    {text!r}")
    write_results(args.out, results, run)
    write_card(args.out, results, run, sum(p.numel() for p in model.parameters()), tokenizer.get_vocab_size())


def main() -> None:
    args = arguments()
    if args.examples:
        write_examples(args.examples)
    elif args.evaluate_only:
        assess(args, json.loads((args.out / "eval.json").read_text())["run"])
    else:
        run = Run(args)
        run.train()
        assess(args, run.facts())


if __name__ == "__main__":
    main()
