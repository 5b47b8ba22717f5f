"""Results -> tables: markdown for docs/benchmarks.md, the same rows for the terminal."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vlm.artifacts.files import load_json
from vlm.errors import InputError
from vlm_app.bench.figures import markdown_line, number, percent
from vlm_app.bench.serving import table as serving

HEADER = ("workload", "measure", "Hugging Face", "vlm", "times faster", "floor", "of the floor")
# field, what it is called, whether more is better
MEASURES = {
    "latency": (
        ("encode_ms", "encoder, ms", False),
        ("first_token_ms", "first token, ms", False),
        ("ms_per_token", "a further token, ms", False),
    ),
    "throughput": (("pages_per_s", "pages/s", True), ("tokens_per_s", "tokens/s", True)),
}
# of a job over documents: field, what it is called, and what one of it is in the field
JOB_MEASURES = (
    ("cpu_ms_per_page", "CPU ms a page", 1),
    ("gpu_busy", "GPU busy, %", 0.01),
    ("peak_rss_bytes", "memory at most, GB", 1e9),
    ("startup_seconds", "start-up, s", 1),
)


@dataclass(frozen=True)
class Row:
    """One line of a table, as text."""

    workload: str
    measure: str
    hf: str = "–"
    vlm: str = "–"
    faster: str = "–"
    floor: str = "–"
    floor_share: str = "–"

    @property
    def cells(self) -> list[str]:
        """Returns what stands beside the workload."""
        return [self.measure, self.hf, self.vlm, self.faster, self.floor, self.floor_share]


def load(paths: Iterable[str | Path]) -> list[dict[str, Any]]:
    """Returns result files in the order of their names; InputError for what is none."""
    results = []
    for path in sorted(map(Path, paths)):
        try:
            result = load_json(path)
            markdown([result])
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}; give files that --json wrote.") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise InputError(f"{path} is no result of `vlm bench ... --json`; give a file that it wrote.") from None
        results.append(result)
    return results


def rows(result: dict[str, Any]) -> list[Row]:
    """Returns a result's measures."""
    parts = [one for row in result.get("rows", [result]) for one in by_backend(result, row)]
    if result["kind"] == "text":
        return [line for part in parts for line in _text_rows(result, part)]
    if result["kind"] == "prompt":
        return [line for part in parts for line in _prompt_rows(result, part)]
    if result["kind"] == "ocr":
        return [line for part in parts for line in _job_rows(result, part)]
    return [
        _line_of(part, part, name, field, has_floor=field in part["floor"], more_is_better=more_is_better)
        for field, name, more_is_better in MEASURES[result["kind"]]
        for part in parts
    ] + [line for part in parts for line in _collectives(part, part)]


def by_backend(result: dict[str, Any], part: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns a result, or a row of one, as if each of its backends had been measured alone. Those of earlier versions
    have one floor, of weights in the computing type, which says nothing of quantized ones (`floored`)."""
    first, *_ = result["config"].get("backends") or ["torch"]
    systems = {first: part["vlm"], **part.get("beside", {})}
    return [
        part
        | {"vlm": ours, "backend": name, "labelled": [*systems] != ["torch"]}
        | {"floor": ours.get("floor", part["floor"]), "floored": "floor" in ours or "-" not in name}
        for name, ours in systems.items()
    ]


def markdown(results: Iterable[dict[str, Any]]) -> str:
    """Returns the tables of docs/benchmarks.md and what they were measured on; nothing where nothing was measured."""
    results = list(results)
    offline = [result for result in results if result["kind"] != "serve"]
    served = [serving.markdown(result) for result in results if result["kind"] == "serve"]
    return "\n\n".join([*[_table(offline)] * bool(offline), *served])


def _table(results: list[dict[str, Any]]) -> str:
    """Returns the table of what was measured without a server, where systems stand beside each other."""
    lines = [markdown_line(HEADER), markdown_line(["---", "---", *["---:"] * 5])]
    for result in results:
        last_workload = ""
        for row in rows(result):
            # a workload is named once
            lines.append(markdown_line(["" if row.workload == last_workload else row.workload, *row.cells]))
            last_workload = row.workload
    return "\n".join([*lines, "", *dict.fromkeys(_measured_on(result) for result in results)])


def workload(result: dict[str, Any]) -> str:
    """Names what was measured: `nougat-base, random weights, bfloat16, batch 1, 1,000 tokens`."""
    config = result["config"]
    subject = f"{result['subject']}, {config['dtype']}"
    if threads := config.get("threads"):
        subject += f", CPU, {threads} thread{'s' if threads > 1 else ''}"
    if (ranks := config.get("tp_size", 1) * config.get("pp_size", 1)) > 1:
        subject += f", {ranks} ranks"
        if own := config.get("encoder_tp_size"):
            subject += f", the encoder's layers among {own}"
    if result["kind"] == "ocr":
        return f"{subject}, {_job(result)}"
    if "rows" in result:
        return subject
    return f"{subject}, batch {config['batch_size']}, {config['new_tokens']:,} tokens a page"


def _text_rows(result: dict[str, Any], row: dict[str, Any]) -> list[Row]:
    one = "drawn" if row.get("settings", {}).get("temperature") else "greedy"
    beams = one if row["num_beams"] == 1 else f"{row['num_beams']} beams"
    of = f"{tokens_in(row)} in, {row['output_len']} out, batch {row['batch_size']}, {beams}{_settings(row)}: "
    return [_text_row(result, row, of), *_collectives(result, row, of)]


def _settings(row: dict[str, Any]) -> str:
    """Names the settings of a row: `, top_k 50, temperature 0.7`."""
    return "".join(f", {name} {_setting(value)}" for name, value in row.get("settings", {}).items())


def _setting(value: Any) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:g}" if is_number else json.dumps(value)


def tokens_in(row: dict[str, Any]) -> str:
    """Returns how many tokens inputs have: 350, or 260-440."""
    least = f"{row['min_input_len']}-" if "min_input_len" in row else ""
    return f"{least}{row['input_len']}"


def _text_row(result: dict[str, Any], row: dict[str, Any], of: str) -> Row:
    line = _line_of(result, row, f"{of}tokens/s", "tokens_per_s", has_floor=True, more_is_better=True)
    if rival := row.get("ctranslate2"):
        rate = rival["tokens_per_s"]
        beside = (
            f"CTranslate2 {rival['compute_type']}: {number(rate)}, {number(row['vlm']['tokens_per_s'] / rate)} times"
        )
        line = replace(line, measure=f"{line.measure} ({beside})")
    return line


def _prompt_rows(result: dict[str, Any], row: dict[str, Any]) -> list[Row]:
    """Returns of one prompt at a time what a user waits for, of many tokens a second."""
    sizes = f"{row['input_len']} in, {row['output_len']} out, batch {row['batch_size']}"
    of = f"{_images(result, row['images'])}{sizes}{_settings(row)}: "
    if row["batch_size"] > 1:
        rates = [("tokens/s", "tokens_per_s")]
        if "requests_per_s" in row["vlm"]:
            rates.insert(0, ("requests/s", "requests_per_s"))
        lines = [_line_of(result, row, of + name, field, has_floor=True, more_is_better=True) for name, field in rates]
    else:
        lines = [
            _line_of(result, row, f"{of}first token, ms", "first_token_ms", has_floor=False, more_is_better=False),
            _line_of(result, row, f"{of}a further token, ms", "ms_per_token", has_floor=True, more_is_better=False),
        ]
    return [*lines, *_collectives(result, row, of)]


def _images(result: dict[str, Any], count: int) -> str:
    """Names a prompt's images: pictures where they were processed within the time, else pixel values were ready."""
    size = result["config"].get("image_size")
    what, of = ("image", "") if size is None else ("picture", f" of {size[0]}x{size[1]}")
    return f"{count} {what}{'s' * (count > 1)}{of} + " if count else ""


def _collectives(result: dict[str, Any], row: dict[str, Any], of: str = "") -> list[Row]:
    """Returns what ranks take to tell each other what a decode step has them tell; nothing where one process runs."""
    told = row["vlm"].get("collectives")
    return [Row(workload(result), f"{of}collectives of a step, ms", vlm=number(told["ms"]))] if told else []


def _job(result: dict[str, Any]) -> str:
    """Names what a job reads: `192 pages (text, scan) to markdown, 1,000 tokens a page, batch 64`."""
    config, pages = result["config"], result["documents"]["pages"]
    most = "" if config["arch"] else "at most "
    tokens = f", {most}{config['tokens']:,} tokens a page" if config["tokens"] else ""
    devices = config["devices"].count(",") + 1
    return (
        f"{pages} pages ({', '.join(config['kinds'])}) to markdown{tokens}, batch {config['batch_size']}"
        + f", {devices} devices" * (devices > 1)
    )


def _job_rows(result: dict[str, Any], row: dict[str, Any]) -> list[Row]:
    """Returns rates, which the engine alone bounds, and what they cost."""
    workers = row["workers"]
    of = "" if workers is None else f", {workers} worker{'s' * (workers != 1)}"
    rates = [
        _line_of(result, row, f"{name}{of}", field, has_floor=True, more_is_better=True)
        for field, name, _ in MEASURES["throughput"]
    ]
    costs = [(name, row["vlm"][field], unit) for field, name, unit in JOB_MEASURES]
    lines = [(f"{name}{of}", value / unit) for name, value, unit in costs if value is not None]
    return rates + [Row(workload(result), measure, vlm=number(value)) for measure, value in lines]


def _line_of(
    result: dict[str, Any], part: dict[str, Any], measure: str, field: str, *, has_floor: bool, more_is_better: bool
) -> Row:
    """Returns one figure of a backend beside Hugging Face's and the floor."""
    ours, hf = part["vlm"][field], (part["hf"] or {}).get(field)
    ratio = lambda mine, other: mine / other if more_is_better else other / mine  # noqa: E731
    measure += f" on {part['backend']}" if part["labelled"] else ""
    row = Row(workload(result), measure, vlm=number(ours))
    if hf is not None:
        batch = part["vlm"].get("batch_size")
        size = part["hf"].get("batch_size", batch)
        beside = "" if size == batch else f" (batch {size})"
        row = replace(row, hf=number(hf) + beside, faster=number(ratio(ours, hf)))
    if has_floor and part["floored"]:
        floor = _floor_of(part["floor"], field)
        row = replace(row, floor=number(floor), floor_share=percent(ratio(ours, floor)))
    return row


def _floor_of(floor: dict[str, Any], field: str) -> float:
    return floor["step_ms" if field == "ms_per_token" else field]


def _measured_on(result: dict[str, Any]) -> str:
    env = result["environment"]
    on = result["config"].get("backends") or ()
    onnx = f"onnxruntime {env['onnxruntime']}, " if any("onnx" in name for name in on) else ""
    versions = f"torch {env['torch']}, {onnx}transformers {env['transformers']}, vlm {env['vlm']}"
    load = f", load {env['load']}" if "load" in env and env["cuda"] is None else ""
    return f"{env['device']}{load}; {versions}, commit {env['commit'] or 'unknown'}."
