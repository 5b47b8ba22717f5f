"""Results -> CSV, a line for every row and backend; a header for each kind."""

from __future__ import annotations

from typing import Any

from vlm_app.bench.serving import table as serving
from vlm_app.bench.table import by_backend, tokens_in

CSV_HEADER = (
    *("subject", "dtype", "batch", "beams", "in", "out", "first_token_ms", "step_ms", "tokens_per_s"),
    *("hf_tokens_per_s", "times_faster", "floor_tokens_per_s", "of_floor", "hf_batch", "hf_measured_tokens"),
    *("ctranslate2_tokens_per_s", "backend"),
)
PROMPT_CSV_HEADER = (
    *("subject", "dtype", "batch", "images", "image_rows", "in", "out"),
    *("encode_ms", "first_token_ms", "ms_per_token", "tokens_per_s"),
    *("hf_encode_ms", "hf_first_token_ms", "hf_ms_per_token", "hf_tokens_per_s", "times_faster"),
    *("floor_ms_per_token", "floor_tokens_per_s", "of_floor", "hf_measured_tokens", "backend"),
)
LATENCY_CSV_HEADER = (
    *("subject", "dtype", "batch", "new_tokens", "encode_ms", "first_token_ms", "ms_per_token"),
    *("hf_encode_ms", "hf_first_token_ms", "hf_ms_per_token", "hf_new_tokens", "times_faster"),
    *("floor_ms_per_token", "of_floor", "backend"),
)
THROUGHPUT_CSV_HEADER = (
    *("subject", "dtype", "batch", "pages", "new_tokens", "pages_per_s", "tokens_per_s"),
    *("hf_pages_per_s", "hf_tokens_per_s", "hf_batch", "hf_new_tokens", "times_faster"),
    *("floor_pages_per_s", "floor_tokens_per_s", "of_floor", "backend"),
)
OCR_CSV_HEADER = (
    *("subject", "dtype", "devices", "batch", "workers", "processes", "pages", "tokens_a_page"),
    *("pages_per_s", "tokens_per_s", "cpu_ms_per_page", "gpu_busy", "peak_rss_bytes", "startup_seconds"),
    *("engine_pages_per_s", "engine_tokens_per_s", "of_engine", "backend"),
)


def csv_rows(result: dict[str, Any]) -> list[list[Any]]:
    """Returns names, then values; nothing stands for what was not measured."""
    if result["kind"] == "serve":
        return serving.csv_rows(result)
    header, line = KINDS[result["kind"]]
    parts = [part for row in result.get("rows", [result]) for part in by_backend(result, row)]
    lines = [line(result, part) for part in parts]
    if result["kind"] == "ocr":  # a job's rows are not of single steps
        return [[*header], *lines]
    # before the backend, which is the last of all kinds' names
    collectives = [(part["vlm"].get("collectives") or {}).get("ms") for part in parts]
    told = [[*values[:-1], _exact(ms), values[-1]] for values, ms in zip(lines, collectives, strict=True)]
    return [[*header[:-1], "collectives_ms", header[-1]], *told]


def _latency_csv_row(result: dict[str, Any], part: dict[str, Any]) -> list[Any]:
    ours, hf, floor = part["vlm"], part["hf"] or {}, part["floor"]["ms_per_token"]
    fields = ("encode_ms", "first_token_ms", "ms_per_token")
    settings = [result["subject"], result["config"]["dtype"], ours["batch_size"], ours["new_tokens"]]
    speed = [_exact(ours[name]) for name in fields] + [_exact(hf.get(name)) for name in fields]
    faster = _exact(hf and hf["ms_per_token"] / ours["ms_per_token"])
    floors = [_exact(value if part["floored"] else None) for value in (floor, floor / ours["ms_per_token"])]
    return [*settings, *speed, hf.get("new_tokens"), faster, *floors, part["backend"]]


def _throughput_csv_row(result: dict[str, Any], part: dict[str, Any]) -> list[Any]:
    ours, hf, floor = part["vlm"], part["hf"] or {}, part["floor"]
    fields = ("pages_per_s", "tokens_per_s")
    settings = [ours[name] for name in ("batch_size", "pages", "new_tokens")]
    speed = [_exact(ours[name]) for name in fields] + [_exact(hf.get(name)) for name in fields]
    faster = _exact(hf and ours["pages_per_s"] / hf["pages_per_s"])
    floors = [*(floor[name] for name in fields), ours["pages_per_s"] / floor["pages_per_s"]]
    floors = [_exact(value if part["floored"] else None) for value in floors]
    theirs = [hf.get("batch_size"), hf.get("new_tokens")]
    return [result["subject"], result["config"]["dtype"], *settings, *speed, *theirs, faster, *floors, part["backend"]]


def _prompt_csv_row(result: dict[str, Any], row: dict[str, Any]) -> list[Any]:
    ours, hf, floor = row["vlm"], row["hf"] or {}, row["floor"]
    fields = ("encode_ms", "first_token_ms", "ms_per_token", "tokens_per_s")
    settings = [row[name] for name in ("batch_size", "images", "image_rows", "input_len", "output_len")]
    speed = [_exact(values.get(name)) for values in (ours, hf) for name in fields]
    faster = _exact(hf and ours["tokens_per_s"] / hf["tokens_per_s"])
    floors = [floor["step_ms"], floor["tokens_per_s"], ours["tokens_per_s"] / floor["tokens_per_s"]]
    floors = [_exact(value if row["floored"] else None) for value in floors]
    how = [hf.get("measured_tokens"), row["backend"]]
    return [result["subject"], result["config"]["dtype"], *settings, *speed, faster, *floors, *how]


def _exact(value: Any) -> str:
    return f"{value:.6g}" if value else ""


def _csv_row(result: dict[str, Any], row: dict[str, Any]) -> list[Any]:
    ours, hf, floor = row["vlm"], row["hf"] or {}, row["floor"]
    theirs = hf.get("tokens_per_s")
    settings = [row["batch_size"], row["num_beams"], tokens_in(row), row["output_len"]]
    speed = [f"{ours['first_token_ms']:.3f}", f"{ours['step_ms']:.4f}", f"{ours['tokens_per_s']:.1f}"]
    beside = [theirs and f"{theirs:.1f}", theirs and f"{ours['tokens_per_s'] / theirs:.2f}"]
    floors = [f"{floor['tokens_per_s']:.1f}", f"{ours['tokens_per_s'] / floor['tokens_per_s']:.3f}"]
    floors = floors if row["floored"] else [None, None]
    rival = _exact((row.get("ctranslate2") or {}).get("tokens_per_s"))
    how = [hf.get("batch_size"), hf.get("measured_tokens"), rival, row["backend"]]
    return [result["subject"], result["config"]["dtype"], *settings, *speed, *beside, *floors, *how]


def _ocr_csv_row(result: dict[str, Any], row: dict[str, Any]) -> list[Any]:
    config, ours, floor = result["config"], row["vlm"], row["floor"]
    settings = [result["subject"], *(config[name] for name in ("dtype", "devices", "batch_size"))]
    counts = [row["workers"], ours["processes"], result["documents"]["pages"], config["tokens"]]
    speed = ["" if (value := ours[name]) is None else f"{value:.6g}" for name in OCR_CSV_HEADER[8:14]]
    bounds = [_exact(floor[name]) for name in ("pages_per_s", "tokens_per_s", "reached")]
    return [*settings, *counts, *speed, *bounds, row["backend"]]


KINDS = {
    "latency": (LATENCY_CSV_HEADER, _latency_csv_row),
    "throughput": (THROUGHPUT_CSV_HEADER, _throughput_csv_row),
    "text": (CSV_HEADER, _csv_row),
    "prompt": (PROMPT_CSV_HEADER, _prompt_csv_row),
    "ocr": (OCR_CSV_HEADER, _ocr_csv_row),
}
