"""Trains mini-nougat from scratch, scores it and writes its Hugging Face folder and card.

python training/mini_nougat.py                        # all of it: about 10 minutes on one H200 with 16 cores
python training/mini_nougat.py --resume               # goes on where an interrupted run stopped
python training/mini_nougat.py --init FOLDER          # begins with these weights, without the first lessons
python training/mini_nougat.py --evaluate-only        # scores what is in --out and rewrites the card
python training/mini_nougat.py --examples examples    # draws the example pages
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import VisionEncoderDecoderModel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from training.nougat import evaluate, foreign
from training.nougat.export import export, half_precision, read_run, write_card, write_results
from training.nougat.loader import Loader
from training.nougat.model import Trainer, build
from training.nougat.typesetting import fonts
from training.nougat.typesetting.pages import Renderer
from training.optimizer import adamw


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("vlm/assets/mini-nougat"), help="the model's folder")
    parser.add_argument("--state", type=Path, default=Path("mini_nougat_state"), help="log and training state")
    parser.add_argument("--fonts", type=Path, default=fonts.DEFAULT_FOLDER, help="folder to search for fonts")
    parser.add_argument("--seconds", type=float, default=505, help="length of the schedule, compilation not counted")
    parser.add_argument("--batch-size", type=int, default=256, help="pages a batch; two steps are taken on each")
    parser.add_argument("--learning-rate", type=float, default=1.5e-3)
    parser.add_argument("--final-rate", type=float, default=0.01, help="the last learning rate over the first")
    parser.add_argument("--init", type=Path, help="a model folder whose weights training begins with")
    parser.add_argument("--workers", type=int, default=14, help="rendering processes")
    parser.add_argument("--pages", type=int, default=512, help="held-out pages of the evaluation; 0: none")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--evaluate-only", action="store_true")
    parser.add_argument("--examples", type=Path, help="only draw the example pages into this folder")
    return parser.parse_args()


def trained(folder: Path) -> VisionEncoderDecoderModel:
    """The model with a folder's weights, in FP32."""
    model = build()
    missing, unexpected = model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    # the position indices are computed and the output layer is the embedding
    left = [name for name in missing if not name.endswith(("relative_position_index", "lm_head.weight"))]
    if left or unexpected:
        sys.exit(f"{folder} is no mini-nougat: {(left + unexpected)[0]} does not belong.")
    return model


def ramp(progress: float, start: float, end: float, high: float, low: float) -> float:
    """`high` until `start`, `low` from `end`, straight in between."""
    return high + (low - high) * min(1.0, max(0.0, (progress - start) / (end - start)))


class Run:
    """One training run: its model, optimizer, clock and log."""

    def __init__(self, args: argparse.Namespace):
        self.args, self.device, self.before = args, torch.device(args.device), read_run(args.init)
        args.state.mkdir(parents=True, exist_ok=True)
        self.loader = Loader(args.fonts, args.batch_size, args.workers, self.device, seed=int(time.time()))
        self.step, self.elapsed, self.batches = 0, 0.0, 0
        torch.manual_seed(0)
        torch.backends.cuda.matmul.allow_tf32 = True
        self.model = (trained(args.init) if args.init else build()).to(self.device)
        self.loader.progress.value = self.lesson
        self.trainer = Trainer(self.model, compiled=self.device.type == "cuda").to(self.device)
        self.optimizer = adamw(self.trainer, args.learning_rate)
        if args.resume:
            self._load()

    @property
    def progress(self) -> float:
        return min(1.0, self.elapsed / self.args.seconds)

    @property
    def lesson(self) -> float:
        """The progress that the curriculum and the helper losses go by: a trained model is past the first lessons."""
        return 0.4 + 0.6 * self.progress if self.args.init else self.progress

    def train(self) -> None:
        self.loader.start()
        self._take_batch()  # compiles; not counted
        begin, before, next_save = time.time(), self.elapsed, self.progress + 0.1
        while self.progress < 1.0:
            losses = self._take_batch()
            self.elapsed = before + time.time() - begin
            self.loader.progress.value = self.lesson
            if self.batches % 100 == 0 or self.batches < 3:
                self._log(losses, begin)
            if self.progress >= next_save:
                next_save += 0.1
                self.save()
        self.save()

    def _take_batch(self):
        batch = self.loader.next()
        # many small steps learn faster than few large ones
        for part in range(2):
            size = len(batch["tokens"]) // 2
            half = {name: value[part * size : (part + 1) * size] for name, value in batch.items()}
            losses = self._take_step(half)
        self.batches += 1
        return losses

    def _take_step(self, batch: dict[str, torch.Tensor]):
        p, last = self.lesson, self.args.final_rate
        rate = self.args.learning_rate * min(1.0, (self.step + 1) / 200)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * (last + (1 - last) * 0.5 * (1 + math.cos(math.pi * self.progress)))
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            losses = self.trainer(batch["image"], batch["tokens"].long(), batch["cells"].long(), batch["dense"])
        # the helpers lead at first and fade once reading has set in
        helpers = (
            ramp(p, 0.15, 0.5, 1.0, 0.02) * losses.attention
            + ramp(p, 0.12, 0.45, 0.5, 0.02) * losses.dense
            + ramp(p, 0.08, 0.3, 0.1, 0.0) * losses.place
        )
        self.optimizer.zero_grad(set_to_none=True)
        (losses.text + helpers).backward()
        torch.nn.utils.clip_grad_norm_(self.trainer.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        return losses

    # --- state ---
    def save(self) -> None:
        state = {
            "trainer": self.trainer.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step,
            "elapsed": self.elapsed, "batches": self.batches, "fresh": self.loader.fresh,
        }  # fmt: skip
        partial = self.args.state / "state.pt.partial"
        torch.save(state, partial)
        partial.replace(self.args.state / "state.pt")
        export(self.model, self.args.out)

    def _load(self) -> None:
        state = torch.load(self.args.state / "state.pt", map_location=self.device, weights_only=True)
        self.trainer.load_state_dict(state["trainer"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.elapsed, self.batches = state["step"], state["elapsed"], state["batches"]
        self.loader.fresh, self.loader.progress.value = state["fresh"], self.lesson

    def _log(self, losses, begin: float) -> None:
        values = {name: round(float(value.detach()), 4) for name, value in losses._asdict().items()}
        rate = self.step * self.args.batch_size / 2 / max(self.elapsed, 1e-9)
        say(self.args, f"step {self.step} seconds {self.elapsed:.0f} of {self.args.seconds:.0f} pages/s {rate:.0f} "
                       f"fresh {self.loader.fresh / self.batches:.2f} {json.dumps(values)}")  # fmt: skip

    def facts(self) -> dict:
        name = torch.cuda.get_device_name() if self.device.type == "cuda" else "CPU"
        before = self.before
        return {
            "minutes": round(before["minutes"] + self.elapsed / 60, 1), "device": name,
            "steps": before["steps"] + self.step, "pages": before["pages"] + self.batches * self.args.batch_size,
            "runs": before["runs"] + 1, "batch_size": self.args.batch_size // 2,
            "fresh": round(min(1.0, self.loader.fresh / max(self.batches, 1)), 3),
        }  # fmt: skip


def say(args: argparse.Namespace, line: str) -> None:
    print(line, flush=True)
    args.state.mkdir(parents=True, exist_ok=True)
    with (args.state / "log.txt").open("a") as log:
        print(line, file=log)


def assess(args: argparse.Namespace, model, run: dict) -> None:
    """Scores the published weights and writes eval.json and the card."""
    renderer, device = Renderer(fonts.installed(args.fonts)), torch.device(args.device)
    model = half_precision(model).to(device).eval()
    count = args.pages
    sets = {
        "held-out words": evaluate.held_out_pages(renderer, count, 12345),
        "held-out font": evaluate.held_out_pages(renderer, count // 4, 777, family=fonts.HELD_OUT),
        "drawn larger": evaluate.held_out_pages(renderer, count // 4, 778, scale=2),
    }
    results = {}
    for name, pages in sets.items():
        texts = evaluate.read(model, pages, device)
        results[name] = evaluate.score(pages, texts)
        say(args, f"{name}: {json.dumps(results[name])}")
        wrong = [(p, t) for p, t in zip(pages, texts, strict=True) if p.text != t][:4]
        for page, text in wrong:
            say(args, f"  wanted {page.text!r}\n  read   {text!r}")
    sheets = foreign.as_the_model_sees(foreign.pillow_alone(renderer.faces))
    say(args, f"drawn by Pillow: {json.dumps(foreign.score(sheets, evaluate.read(model, sheets, device)))}")
    papers = write_results(args.out, results, run)
    write_card(args.out, papers, sum(p.numel() for p in model.parameters()))


def main() -> None:
    args = arguments()
    if args.examples:
        from training.nougat.examples import draw_examples

        draw_examples(Renderer(fonts.installed(args.fonts)), args.examples)
    elif args.evaluate_only:
        run = json.loads((args.out / "eval.json").read_text())["run"]
        assess(args, trained(args.out), run)
    else:
        run = Run(args)
        run.train()
        write_results(args.out, {}, run.facts())
        if args.pages:
            assess(args, run.model, run.facts())


if __name__ == "__main__":
    main()
