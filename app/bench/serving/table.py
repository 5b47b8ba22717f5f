"""Results of servers -> tables: a column a run, for the terminal and in markdown; CSV, a line a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from vlm.errors import counted
from vlm_app.bench.figures import markdown_line, number, percent

STATISTICS = ("mean", "p50", "p95", "p99")
LATENCIES = {
    "ttft_ms": "first token (TTFT), ms",
    "tpot_ms": "a further token (TPOT), ms",
    "itl_ms": "between chunks (ITL), ms",
    "e2el_ms": "end to end (E2EL), ms",
}
CSV_HEADER = (
    *("subject", "target", "request_rate", "completed", "failed", "requests_per_s", "output_tokens_per_s"),
    *(f"{name}_{statistic}" for name in LATENCIES for statistic in STATISTICS),
    *("good_requests_per_s", "peak_concurrency", "client_lag_p99_ms"),
)


def title(result: dict[str, Any]) -> str:
    """Names what was sent: `mini-llava, chat: 60 requests a run, 260-440 tokens and 1 image of 336x336 in, 64 out`."""
    config = result["config"]
    begin = f"{result['subject']}, {config['endpoint']}: {config['num_prompts']} requests a run"
    if config["dataset_path"]:
        return f"{begin} of {config['dataset_path']}"
    images = config["images"]
    sizes = ", ".join(f"{width}x{height}" for width, height in config["image_sizes"])
    pictures = f" and {counted(images, 'image')} of {sizes}" if images else ""
    answers = f"{'' if config['ignore_eos'] else 'at most '}{_span(*config['output_len'])} out"
    return f"{begin}, {_span(*config['input_len'])} tokens{pictures} in, {answers}"


@dataclass(frozen=True)
class Table:
    """Runs side by side."""

    names: list[str]  # of the columns
    rows: list[list[str]]


def tables(result: dict[str, Any]) -> list[Table]:
    """Returns one table, with a column a rate; of several servers one a rate, with a column a server."""
    runs = result["rows"]
    if len(result["targets"]) == 1:
        return [Table(["measure", *(rate_in_words(run["request_rate"]) for run in runs)], _rows(result, runs))]
    by_rate = [[*group] for _, group in groupby(runs, key=lambda run: run["request_rate"])]
    return [
        Table([rate_in_words(group[0]["request_rate"]), *(run["target"] for run in group)], _rows(result, group))
        for group in by_rate
    ]


def _rows(result: dict[str, Any], runs: list[dict[str, Any]]) -> list[list[str]]:
    """Returns a measure's name and its figure of each run."""
    table = [
        ["completed / failed", *(f"{run['completed']} / {run['failed']}" for run in runs)],
        ["requests/s", *(number(run["requests_per_s"]) for run in runs)],
        ["output tokens/s", *(number(run["output_tokens_per_s"]) for run in runs)],
        ["tokens in / out, mean", *(f"{_mean(run['input_tokens'])} / {_mean(run['output_tokens'])}" for run in runs)],
        *(line for name, words in LATENCIES.items() for line in _spread(words, [run[name] for run in runs])),
        ["tokens a chunk, mean", *(number(run["tokens_per_chunk"]) for run in runs)],
        ["peak concurrency", *(str(run["peak_concurrency"]) for run in runs)],
        ["client late, ms: p99", *(number(run["client"]["lag_ms"]["p99"]) for run in runs)],
    ]
    if levels := result["config"]["goodput"]:
        goodput = (f"{number(run['goodput']['requests_per_s'])} ({percent(run['goodput']['share'])})" for run in runs)
        table.insert(3, [f"goodput, requests/s ({' '.join(levels)})", *goodput])
    return table


def notes(result: dict[str, Any]) -> Iterator[str]:
    """Yields what has to be known beside the figures."""
    for target in result["targets"]:
        yield from _about(target, result["config"])
    for run in result["rows"]:
        yield from (f"{run['target']}, {rate_in_words(run['request_rate'])}: {said}" for said in _of_run(run))


def _of_run(run: dict[str, Any]) -> Iterator[str]:
    client = run["client"]
    for kind, failure in run["failures"].items():
        yield f"{failure['count']} failed, {kind}: {failure['message']}"
    if client["bottleneck"]:
        late, share = number(client["lag_ms"]["p99"]), percent(client["cpu_share"])
        yield f"the client was the bottleneck ({late} ms late, {share} of a core), so these figures are its own, too."
    if run["completed"] and run["tokens_counted_by"] == "chunks":
        yield "the server counts no tokens; each chunk counts as one."


def markdown(result: dict[str, Any]) -> str:
    """Returns one result's tables and what it was measured on."""
    parts = [f"**{title(result)}**"]
    for table in tables(result):
        rule = ["---", *["---:"] * (len(table.names) - 1)]
        parts.append("\n".join(map(markdown_line, [table.names, rule, *table.rows])))
    return "\n\n".join([*parts, "\n".join([*(f"- {note}" for note in notes(result)), f"- {measured_on(result)}"])])


def measured_on(result: dict[str, Any]) -> str:
    """Says on what it ran: a server of ours on this machine, or the client alone."""
    env, options = result["environment"], " ".join(result["config"]["serve_options"])
    if result["config"]["urls"]:
        return f"Client: {env['cpus']} CPUs, load {env['load']}; vlm {env['vlm']}, commit {env['commit'] or 'unknown'}."
    server = f"vlm serve {result['config']['model']} {options}".rstrip()
    shared = f"{env['device']}, {env['cpus']} CPUs shared with the client, load {env['load']}"
    return f"`{server}`; {shared}; torch {env['torch']}, vlm {env['vlm']}, commit {env['commit'] or 'unknown'}."


def csv_rows(result: dict[str, Any]) -> list[list[Any]]:
    """Returns names, then values of each run."""
    return [[*CSV_HEADER], *([result["subject"], *_csv_row(run)] for run in result["rows"])]


def _csv_row(run: dict[str, Any]) -> list[Any]:
    names = ("target", "request_rate", "completed", "failed", "requests_per_s", "output_tokens_per_s")
    latencies = [(run[name] or {}).get(statistic) for name in LATENCIES for statistic in STATISTICS]
    good = (run["goodput"] or {}).get("requests_per_s")
    figures = [*(run[name] for name in names[4:]), *latencies, good, run["peak_concurrency"]]
    figures.append(run["client"]["lag_ms"]["p99"])
    return [*(run[name] for name in names[:4]), *("" if value is None else f"{value:.6g}" for value in figures)]


def _about(target: dict[str, Any], config: dict[str, Any]) -> Iterator[str]:
    if cold := target.get("cold_start"):
        ready, first = number(cold["ready_seconds"]), number(cold["first_token_seconds"])
        yield f"Cold start: {ready} s from the command to listening, {first} s to the first token of a first request."
    if config["ignore_eos"] and target["takes"]["full_length"] is None:
        yield f"{target['name']} takes neither ignore_eos nor min_tokens: answers end where its model ends them."


def rate_in_words(rate: float | str) -> str:
    """Returns `4/s`; "inf" is all at once."""
    return "all at once" if rate == "inf" else f"{rate:g}/s"


def _spread(words: str, runs: list[dict[str, float] | None]) -> Iterator[list[str]]:
    """Yields a line a statistic; the latency is named in the first."""
    for name in STATISTICS:
        label = f"{words}: {name}" if name == STATISTICS[0] else name
        yield [label, *(number(values[name]) if values else "–" for values in runs)]


def _mean(values: dict[str, float] | None) -> str:
    return number(values["mean"]) if values else "–"


def _span(low: int, high: int) -> str:
    return f"{low}" if low == high else f"{low}-{high}"
