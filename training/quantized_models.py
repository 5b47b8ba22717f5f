"""Scores the packaged models under each quantization, on data that training never shows, and prints a table.

python training/quantized_models.py                                   # all of them, on the CPU: hours
python training/quantized_models.py --models mini-t5 --methods int8,awq --share 0.1
python training/quantized_models.py --table benchmarks/quantized-minis.json      # prints what was measured

Pages, lines and pictures are drawn by the programs that draw training's; calibration has others of the same kind.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from training.nougat.evaluate import edit_distance
from vlm.api.outputs import Output
from vlm.api.pipeline import Pipeline
from vlm.artifacts.native.checkpoint import Checkpoint
from vlm.artifacts.native.engine_dir import EngineDir
from vlm.build.builder import build_engine
from vlm.build.from_model import checkpoint_of
from vlm.build.locate import locate
from vlm.config import BuildConfig, RuntimeConfig
from vlm.quantize.calibration import Calibration, forced, recording
from vlm.quantize.config import QuantizeConfig
from vlm.quantize.model import quantize_checkpoint

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "quantized-minis.json"
GROUP = {"group_size": 64}  # divides the inputs of all four
METHODS: dict[str, QuantizeConfig | None] = {
    "dense": None,
    "int8": QuantizeConfig("int8"),
    "fp8": QuantizeConfig("fp8"),
    "fp8, static": QuantizeConfig("fp8", static_activations=True),
    "w8a8": QuantizeConfig("w8a8"),
    "smoothquant": QuantizeConfig("smoothquant"),
    "smoothquant, static": QuantizeConfig("smoothquant", static_activations=True),
    "int4": QuantizeConfig("int4", **GROUP),
    "int4, asymmetric": QuantizeConfig("int4", asymmetric=True, **GROUP),
    "awq": QuantizeConfig("awq", **GROUP),
    "gptq": QuantizeConfig("gptq", **GROUP),
    "gptq, act-order": QuantizeConfig("gptq", act_order=True, **GROUP),
    "KV cache int8": None,
    "KV cache fp8": None,
}
GREEDY = {"temperature": 0.0, "num_beams": 1}


@dataclass(frozen=True)
class Task:
    """What a model is scored on. `score`: the outputs' texts and the truths -> percent."""

    metric: str
    score: Callable[[list[Output], list[str]], float]
    inputs: list[Any]
    truths: list[str]
    calibration: list[Any]
    max_new_tokens: int


def pages(share: float) -> Task:
    from training.nougat.evaluate import held_out_pages
    from training.nougat.typesetting import fonts
    from training.nougat.typesetting.pages import KINDS, Renderer

    renderer, rng = Renderer(fonts.installed(fonts.DEFAULT_FOLDER)), random.Random(1)
    held_out = held_out_pages(renderer, int(256 * share), 12345)
    others = [renderer.sample(rng, KINDS[i % len(KINDS)], max_chars=250).image for i in range(32)]
    picture = lambda image: {"images": [Image.fromarray(image).convert("RGB")]}  # noqa: E731
    inputs = [picture(page.image) for page in held_out]
    return Task("character errors", _character_errors, inputs, [page.text for page in held_out],
                [picture(image) for image in others], 300)  # fmt: skip


def lines(share: float) -> Task:
    from training.t5.evaluate import held_out_examples

    flat = lambda examples: [each for group in examples.values() for each in group]  # noqa: E731
    held_out = flat(held_out_examples(int(200 * share), 12345))
    known = {example.source for example in held_out}
    others = [example.source for example in flat(held_out_examples(12, 777)) if example.source not in known]
    return Task("exact answers", _exact, [{"text": each.source} for each in held_out],
                [each.target for each in held_out], [{"text": source} for source in others], 128)  # fmt: skip


def scenes(share: float) -> Task:
    from training.scenes.loader import HELD_OUT, example

    def asked(seeds: range) -> list[tuple[dict[str, Any], str]]:
        drawn = ((Image.fromarray(pixels), questions) for pixels, questions in (example(seed, 4) for seed in seeds))
        return [({"images": [image], "prompt": question}, answer)
                for image, questions in drawn for _, question, answer in questions]  # fmt: skip

    held_out = asked(range(HELD_OUT, HELD_OUT + int(1000 * share)))
    inputs, answers = zip(*held_out, strict=True)
    return Task("exact answers", _exact, list(inputs), list(answers), [each for each, _ in asked(range(32))], 16)


TASKS = {"mini-nougat": pages, "mini-t5": lines, "mini-llava": scenes, "mini-blip2": scenes}


def _character_errors(outputs: list[Output], truths: list[str]) -> float:
    wrong = sum(edit_distance(truth, out.raw_text) for out, truth in zip(outputs, truths, strict=True))
    return 100 * wrong / sum(map(len, truths))


def _exact(outputs: list[Output], truths: list[str]) -> float:
    return 100 * sum(out.text == truth for out, truth in zip(outputs, truths, strict=True)) / len(truths)


class Subject:
    """A packaged model, what it is scored on, and the requests that its calibration runs."""

    def __init__(self, name: str, share: float, folder: Path, device: str):
        self.name, self.task, self.folder, self.device = name, TASKS[name](share), folder, device
        self.checkpoint = checkpoint_of(locate(name), folder / "checkpoint")
        self.engine = self._engine(self.checkpoint, "dense")
        pipe = Pipeline(self.engine, recording(RuntimeConfig(device=device)))
        options = {**GREEDY, "max_new_tokens": self.task.max_new_tokens}
        inputs = self.task.calibration
        outputs = pipe.generate(inputs, **options)
        pairs = zip(inputs, outputs, strict=True)
        self.calibration = Calibration(pipe, [forced(pipe.request(x, **options), out.token_ids) for x, out in pairs])

    def measured(self, method: str) -> dict[str, Any]:
        """Returns one method's score, with the size of the weights."""
        config, start = METHODS[method], time.perf_counter()
        checkpoint = self.checkpoint
        if config is not None:
            out = self.folder / method
            checkpoint = quantize_checkpoint(self.checkpoint, out, config, calibration=self.calibration)
        engine = self.engine if config is None else self._engine(checkpoint, f"{method} engine")
        cache = method.removeprefix("KV cache ") if method.startswith("KV cache") else None
        score = self._score(Pipeline(engine, RuntimeConfig(device=self.device, kv_cache_dtype=cache)))
        size = sum(checkpoint.weight_file(role).stat().st_size for role in checkpoint.roles)
        return {"score": score, "bytes": size, "seconds": round(time.perf_counter() - start, 1)}

    def _score(self, pipe: Pipeline) -> float:
        outputs = pipe.generate(self.task.inputs, **GREEDY, max_new_tokens=self.task.max_new_tokens)
        return self.task.score(outputs, self.task.truths)

    def _engine(self, checkpoint: Checkpoint, name: str) -> EngineDir:
        return build_engine(checkpoint, self.folder / name, BuildConfig(max_batch_size=64))


def table(results: dict[str, Any]) -> str:
    """Returns the scores in markdown, a row a method."""
    models = list(results)
    rows = [["", *(f"{name}, {results[name]['metric']}" for name in models)], ["---", *("---:" for _ in models)]]
    rows.append(["on", *(f"{results[name]['count']:,}" for name in models)])
    for method in METHODS:
        cells = [results[name]["methods"].get(method) for name in models]
        if any(cells):
            rows.append([method, *(f"{cell['score']:.2f}%" if cell else "–" for cell in cells)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = lambda text: [part.strip() for part in text.split(";" if ";" in text else ",")]  # noqa: E731
    parser.add_argument("--models", type=names, default=list(TASKS))
    parser.add_argument("--methods", type=names, default=list(METHODS), help="several apart by ;")
    parser.add_argument("--share", type=float, default=1.0, help="of the held-out data")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=RESULTS, help="results that are there are added to")
    parser.add_argument("--table", type=Path, help="print the table of this file, and measure nothing")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    if args.table:
        print(table(json.loads(args.table.read_text())))
        return
    results: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    for name in args.models:
        with tempfile.TemporaryDirectory() as scratch:
            subject = Subject(name, args.share, Path(scratch), args.device)
            own = results.setdefault(name, {"metric": subject.task.metric, "count": len(subject.task.truths)})
            for method in args.methods:
                own.setdefault("methods", {})[method] = figures = subject.measured(method)
                print(name, method, figures, flush=True)
                args.out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print(table(results))


if __name__ == "__main__":
    main()
