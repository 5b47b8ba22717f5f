"""Trains mini-llava or mini-blip2 from scratch on rendered scenes, scores it, and writes its folder and card.

python training/mini_vlm.py mini-llava                   # about 9 minutes on one H200 with 16 cores
python training/mini_vlm.py mini-blip2 --resume vlm/assets/mini-blip2 --reasons 6 --which 0.75   # a lesson
python training/mini_vlm.py mini-llava --evaluate-only   # scores what is in --out and rewrites the card
python training/mini_vlm.py mini-llava --examples examples
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from training.scenes.blip2 import take_tower
from training.scenes.captured import Captured
from training.scenes.card import write_card, write_examples, write_results
from training.scenes.evaluate import evaluate, show
from training.scenes.loader import batches, held_out
from training.scenes.models import MODELS
from training.scenes.questions import WHOLE, Lesson
from training.scenes.subject import Batch, Subject

DISTANCE_RATE = 50  # times the learning rate


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--out", type=Path, help="the model's folder [default: vlm/assets/MODEL]")
    parser.add_argument("--seconds", type=float, default=480, help="length of the schedule")
    parser.add_argument("--batch-size", type=int, default=384, help="scenes")
    parser.add_argument("--questions", type=int, default=5, help="of a scene")
    parser.add_argument("--most-objects", type=int, default=WHOLE.most_objects, help="in a scene; few in first lessons")
    parser.add_argument("--positions", type=int, default=WHOLE.positions, help="comparisons to 9 others")
    parser.add_argument("--reasons", type=int, default=WHOLE.reasons, help="places of two, and explained comparisons")
    parser.add_argument("--which", type=float, default=WHOLE.which, help="share of comparisons that ask for a name")
    parser.add_argument("--learning-rate", type=float, default=1.2e-3)
    parser.add_argument("--workers", type=int, default=14, help="processes that draw")
    parser.add_argument("--scenes", type=int, default=1000, help="held-out ones in the final evaluation")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--resume", type=Path, help="begin with this folder's weights")
    parser.add_argument("--language-only", action="store_true", help="mini-blip2: how it sees stays as it is")
    parser.add_argument("--language-anew", action="store_true", help="mini-blip2: --resume takes all but its T5")
    parser.add_argument("--tower", type=Path, help="mini-blip2: begin with the tower of this mini-llava")
    parser.add_argument("--evaluate-only", action="store_true")
    parser.add_argument("--examples", type=Path, help="only write the example pictures into this folder")
    return parser.parse_args()


def parameter_groups(model: torch.nn.Module) -> list[dict]:
    """Matrices decay, vectors do not. T5's biases by distance, which have to become large numbers, learn faster:
    without them its encoder cannot tell which object was named first."""
    groups: dict[str, list] = {"matrices": [], "vectors": [], "distances": []}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        kind = "vectors" if parameter.ndim < 2 else "distances" if "relative_attention_bias" in name else "matrices"
        groups[kind].append(parameter)
    settings = {"matrices": (0.02, 1), "vectors": (0.0, 1), "distances": (0.0, DISTANCE_RATE)}
    device = next(model.parameters()).device
    return [
        {"params": groups[kind], "weight_decay": decay, "times": times, "lr": torch.zeros((), device=device)}
        for kind, (decay, times) in settings.items()
    ]


class Run:
    """One training run: its model, optimizer, clock and log."""

    def __init__(self, args: argparse.Namespace):
        self.args, self.device = args, torch.device(args.device)
        torch.manual_seed(args.seed)
        torch.backends.cuda.matmul.allow_tf32 = True
        self.subject: Subject = MODELS[args.model]()
        if args.tower:
            take_tower(self.subject.model, args.tower)
        if args.resume:
            language = self.subject.model.language_model if args.language_anew else None
            self.subject.load(args.resume)
            if language is not None:
                self.subject.model.language_model = language
        self.model = self.subject.model.to(self.device).train()
        if args.language_only:
            self.model.requires_grad_(False)
            self.model.language_model.requires_grad_(True)
        self.optimizer = torch.optim.AdamW(
            parameter_groups(self.model), betas=(0.9, 0.98), fused=True, capturable=self.device.type == "cuda"
        )
        captured = self.subject.captured and self.device.type == "cuda"
        self.learn = Captured(self._learn) if captured else self._learn
        self.lesson = Lesson(args.most_objects, args.positions, args.reasons, args.which)
        self.held_out = held_out(100, lesson=self.lesson)
        self.step, self.scenes = 0, 0

    def train(self) -> None:
        args = self.args
        stream = batches(args.batch_size, args.questions, args.workers, args.seed, self.lesson)
        next(stream)  # the processes have started
        begin = told = time.time()
        while (elapsed := time.time() - begin) < args.seconds:
            batch = self.subject.batch(next(stream))
            for group in self.optimizer.param_groups:
                group["lr"].fill_(args.learning_rate * group["times"] * self._pace(elapsed / args.seconds))
            loss = self.learn(batch)
            self.step, self.scenes = self.step + 1, self.scenes + args.batch_size
            if time.time() - told > 20:
                told = time.time()
                self._tell(loss.item(), elapsed)

    def _learn(self, batch: Batch) -> torch.Tensor:
        """One step; returns its loss."""
        self.optimizer.zero_grad(set_to_none=True)
        given = {name: x.to(self.device, non_blocking=True) for name, x in batch.items()}
        with torch.autocast(self.device.type, torch.bfloat16):
            loss = self.subject.loss(**given)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()

    def _pace(self, done: float) -> float:
        """Warm-up over a fiftieth, then down a cosine to a hundredth."""
        return min(1.0, done * 50 + 0.002) * (0.505 + 0.495 * math.cos(math.pi * min(1.0, done)))

    def _tell(self, loss: float, elapsed: float) -> None:
        if not math.isfinite(loss):
            raise SystemExit(f"the loss is {loss} after {self.step} steps: take a lower --learning-rate")
        self.model.eval()
        with torch.autocast(self.device.type, torch.bfloat16):
            results = evaluate(self.subject, self.held_out, self.device)
        self.model.train()
        rate = self.scenes / elapsed
        print(f"{elapsed:5.0f} s, step {self.step}, {rate:,.0f} scenes/s, loss {loss:.4f}, {show(results)}", flush=True)


def published(args: argparse.Namespace, device: torch.device) -> Subject:
    """What the folder holds, computing in float32."""
    subject = MODELS[args.model]()
    subject.load(args.out)
    subject.model = subject.model.to(device).eval()
    return subject


def main() -> None:
    args = arguments()
    args.out = args.out or Path("vlm/assets") / args.model
    if args.examples:
        write_examples(args.examples)
        return
    facts = {}
    if not args.evaluate_only:
        run = Run(args)
        run.train()
        run.subject.export(args.out)
        facts = {"steps": run.step, "scenes": run.scenes, "seconds": args.seconds, "questions": args.questions}
    device = torch.device(args.device)
    results = evaluate(published(args, device), held_out(args.scenes), device)
    print(show(results))
    write_results(args.out, results, facts)
    write_card(args.out, args.model)


if __name__ == "__main__":
    main()
