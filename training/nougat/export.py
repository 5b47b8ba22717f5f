"""The trained model as a Hugging Face folder with tokenizer, image processor and card."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from training.nougat.model import HEIGHT, MAX_POSITIONS, MEAN, STD, WIDTH, build
from training.nougat.typesetting.fonts import FAMILIES, HELD_OUT
from training.nougat.typesetting.pages import KINDS
from training.nougat.typesetting.text import BOS, CHARACTERS, EOS, PAD, UNK

SPECIAL = {"<s>": BOS, "<pad>": PAD, "</s>": EOS, "<unk>": UNK}


def export(model, folder: Path) -> None:
    """Weights in float16, configuration, tokenizer, image processor."""
    half = copy.deepcopy(model).half().cpu()
    half.save_pretrained(folder)
    _drop_derived(folder / "model.safetensors")
    _tokenizer().save(str(folder / "tokenizer.json"))
    _write(folder / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>",
        "unk_token": "<unk>", "clean_up_tokenization_spaces": False, "model_max_length": MAX_POSITIONS,
    })  # fmt: skip
    _write(
        folder / "special_tokens_map.json",
        {f"{n}_token": t for n, t in zip(("bos", "pad", "eos", "unk"), SPECIAL, strict=True)},
    )
    _write(folder / "preprocessor_config.json", {
        "image_processor_type": "NougatImageProcessor", "processor_class": "NougatProcessor", "do_crop_margin": False,
        "do_resize": True, "size": {"height": HEIGHT, "width": WIDTH}, "resample": 2, "do_thumbnail": True,
        "do_align_long_axis": False, "do_pad": True, "do_rescale": True, "rescale_factor": 1 / 255,
        "do_normalize": True, "image_mean": list(MEAN), "image_std": list(STD),
    })  # fmt: skip


def _drop_derived(path: Path) -> None:
    """Position indices follow from the window size; Hugging Face and vlm compute them."""
    tensors = {k: v for k, v in load_file(path).items() if not k.endswith("relative_position_index")}
    save_file(tensors, path, metadata={"format": "pt"})


def _tokenizer() -> Tokenizer:
    """A token a character; decoding joins them and changes nothing."""
    vocabulary = SPECIAL | {character: i + 4 for i, character in enumerate(CHARACTERS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(_any_character(), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", BOS), ("</s>", EOS)])
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def _any_character():
    from tokenizers import Regex

    return Regex(r"[\s\S]")


def _write(path: Path, value) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


CARD = """---
license: apache-2.0
pipeline_tag: image-to-text
library_name: transformers
tags: [nougat, ocr, document]
---

# mini-nougat

A {parameters:.1f}M-parameter Nougat: the classes and configuration fields of facebook/nougat-base (Swin encoder,
mBART decoder), only smaller, trained from scratch on rendered pages. It is packaged so that vlm can be tried and
tested without a download, on weights that mean something.

**It can** read a small printed page, {width}×{height} pixels after resizing, of about 300 characters: paragraphs,
headings (`# `), lists (`- `), `**bold**`, inline and displayed formulas (`\\(..\\)`, `\\[..\\]`), tables of two or
three columns (`|`). A larger line that opens the page is a title, `# `, whether bold or not; further down, headings
less than one and a half times as large as the text are `## `. Text has to be at least a fortieth of the page's longer
side in size (28 pixels on a page of 816×1056). **It cannot** read real scans, photographs, handwriting, dense A4 pages,
several columns, or anything beyond printable ASCII and a few Greek letters in formulas. Look-alikes (I and l in some
sans-serif faces) are guessed.

## Figures

Character error rate, greedy decoding of the published float16 weights, on pages whose words never occur in training
(`eval.json`):

{table}

Held-out words: {main[pages]} pages, {main[exact_pages]:.0%} of them without a single error. Held-out font: the same in
{held_out_font}, which training never shows. Drawn larger: pages drawn at twice the size and scaled down on reading.
{foreign}{checks}
## Training

`python training/mini_nougat.py`, {runs} of {minutes:.1f} minutes in all on one {device}, about {steps:,} steps and
{pages:,} pages (freshly rendered: {fresh:.0%} of the batches), {batch_size} pages a step, AdamW, cosine schedule,
bfloat16; a later run begins with an earlier one's weights (`--init`). Text: frequent and rare English words,
pseudo-words, random letters, numbers, dates, prices; half of the pages are without capitals and stops; a tenth of the
words is held out. Light noise, blur, contrast changes, random place, size, margins and spacing, drawn at one to four
times the model's resolution, with and without hinted widths, kerning and ligatures. Besides the text, three helper
losses (characters in each encoder cell, place of a cell, cell to look at next), whose heads are not part of the model.

Fonts, all free; none is included:

{fonts}
"""


FOREIGN = """
Pages that training's renderer did not draw, in held-out words, mostly in lower case and without a full stop, read by
vlm on a CPU (`python training/nougat/foreign.py`):

{table}

Pillow's own font and {held_out_font} are in no training page.
"""


def _foreign(rates: dict) -> str:
    """The card's paragraph on pages of other programs; empty where none were read."""
    if not rates:
        return ""
    lines = ["| drawn by | pages | character errors | pages without an error |", "| --- | ---: | ---: | ---: |"]
    for kind, of in rates.items():
        lines.append(f"| {kind} | {of['pages']} | {100 * of['cer']:.2f}% | {of['exact_pages']:.0%} |")
    return FOREIGN.format(table="\n".join(lines), held_out_font=HELD_OUT)


CHECKS = """
Checks of the kinds of olmOCR-bench, on {count} pages in held-out words as they are drawn, and degraded: askew by up to
1.5 degrees, with noise, as a JPEG of quality 15 to 50. A phrase a block and a cell a row are checked; no difference is
allowed, but for one character in the phrases of `order`. A heading that ends a page is missing wherever there is one:
Nougat's post-processing takes it for invented. Read on a CPU:

{table}

```bash
python training/nougat/page_checks.py pages
vlm eval pages --checks pages/clean.jsonl --checks pages/degraded.jsonl --json scores.json
```
"""


def _checks(scores: dict) -> str:
    """The card's paragraph on checks; empty where none were made."""
    if not scores:
        return ""
    states = list(scores["rates"])
    lines = ["| checks passed | " + " | ".join(states) + " |", "| --- |" + " ---: |" * len(states)]
    for kind in sorted(scores["rates"][states[0]], key=lambda kind: (kind == "all", kind)):
        counts = [scores["rates"][state][kind] for state in states]
        cells = [f"{100 * passed / judged:.1f}% of {judged}" for passed, judged in counts]
        lines.append(f"| {'**all**' if kind == 'all' else kind} | " + " | ".join(cells) + " |")
    return CHECKS.format(count=scores["pages"] // len(states), table="\n".join(lines))


def write_card(folder: Path, papers: dict, parameters: int) -> None:
    """README.md of the model folder from what `eval.json` holds."""
    results, run = papers["results"], papers["run"]
    columns = list(results)
    lines = ["| page kind | " + " | ".join(columns) + " |", "| --- |" + " ---: |" * len(columns)]
    for kind in (*KINDS, "all"):
        cells = [f"{100 * results[c]['cer'][kind]:.2f}%" for c in columns]
        lines.append(f"| {'**all**' if kind == 'all' else kind} | " + " | ".join(cells) + " |")
    fonts = [f"- {name} ({licence}; Debian package {package})" for name, (_, licence, package) in FAMILIES.items()]
    text = CARD.format(
        parameters=parameters / 1e6, width=WIDTH, height=HEIGHT, table="\n".join(lines),
        main=results["held-out words"], held_out_font=HELD_OUT, fonts="\n".join(fonts),
        foreign=_foreign(papers["foreign"]), checks=_checks(papers["checks"]),
        **run | {"runs": "one run" if run["runs"] == 1 else f"{run['runs']} runs"},
    )  # fmt: skip
    (folder / "README.md").write_text(text, encoding="utf-8")


def write_results(folder: Path, results: dict, run: dict) -> dict:
    """Writes eval.json for new weights and returns it: pages of other programs and checks have not been read with
    them."""
    papers = {"results": results, "foreign": {}, "checks": {}, "run": run}
    _write(folder / "eval.json", papers)
    return papers


def add_to_card(folder: Path, **figures: dict) -> None:
    """Writes figures, `foreign` or `checks`, into eval.json and the card of a model folder."""
    papers = json.loads((folder / "eval.json").read_text(encoding="utf-8")) | figures
    _write(folder / "eval.json", papers)
    write_card(folder, papers, sum(parameter.numel() for parameter in build().parameters()))


def read_run(folder: Path | None) -> dict:
    """What a model folder says of its training; nothing of none."""
    path = folder / "eval.json" if folder else None
    run = json.loads(path.read_text(encoding="utf-8"))["run"] if path and path.exists() else {}
    return {"minutes": 0, "steps": 0, "pages": 0, "runs": 1 if run else 0} | run


def half_precision(model) -> torch.nn.Module:
    """The model with the weights as they are published."""
    published = copy.deepcopy(model)
    for parameter in published.parameters():
        parameter.data = parameter.data.half().float()
    return published
