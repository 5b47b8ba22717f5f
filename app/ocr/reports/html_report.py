"""The page of a job's report: one file that needs nothing else, made of what the JSON holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlm.errors import counted

WIDTH, HEIGHT = 720, 200  # of the plot, in its own units
ROWS = 200  # of failures; the JSON has more
TEMPLATE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>OCR job: {{ report.pages.read | counted("page") }}</title>
<style>
  :root { color-scheme: light dark }
  body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
  table { border-collapse: collapse; margin: .5rem 0 1.5rem }
  td, th { padding: .15rem 1rem .15rem 0; text-align: left; vertical-align: top }
  td { overflow-wrap: break-word; max-width: 30rem }
  td.number, th.number { text-align: right; font-variant-numeric: tabular-nums }
  svg { width: 100%; height: auto; overflow: visible }
  svg text { font-size: 11px; fill: currentColor }
</style>
<h1>{{ report.pages.read | counted("page") }}, {{ "%.2f" | format(report.pages_per_second) }} a second</h1>
<p>{{ "{:,}".format(report.documents.written) }} of {{ report.documents.found | counted("document") }} written,
{{ report.tokens | counted("token") }} in {{ report.seconds | lasting }}
{%- if report.cost_per_million_pages is not none %}; a million pages cost
{{ "{:,.2f}".format(report.cost_per_million_pages) }} at {{ report.gpu_price }} an hour a device{% endif %}.
Ended by: {{ report.ended_by }}.</p>
{% if report.binds %}<p><strong>What bounds it:</strong> {{ report.binds.reason }}.</p>{% endif %}
{% if plot %}
<h2>Over time</h2>
<svg viewBox="-45 -12 {{ plot.width + 90 }} {{ plot.height + 34 }}" role="img" aria-label="Pages a second over time">
  {% if plot.share %}<polygon points="{{ plot.share }}" fill="#4a90d9" fill-opacity=".2"/>{% endif %}
  <polyline points="{{ plot.throughput }}" fill="none" stroke="#d9534f" stroke-width="1.5"/>
  <path d="M0 0V{{ plot.height }}H{{ plot.width }}" fill="none" stroke="currentColor"/>
  <text x="-6" y="4" text-anchor="end">{{ "%.1f" | format(plot.most) }}</text>
  <text x="-6" y="{{ plot.height }}" text-anchor="end">0</text>
  {% if plot.share %}<text x="{{ plot.width + 6 }}" y="4">100%</text>{% endif %}
  <text x="{{ plot.width }}" y="{{ plot.height + 16 }}" text-anchor="end">{{ plot.seconds | lasting }}</text>
</svg>
<p>The line: pages a second.{% if plot.share %} The area: the devices' share of the time at work.{% endif %}</p>
{% endif %}
<h2>Stages</h2>
<table>
  <tr><th>stage</th><th class="number">CPU seconds</th><th class="number">CPU ms a page</th></tr>
  {% for name, stage in report.stages.items() %}
  <tr><td>{{ name }}</td><td class="number">{{ "%.1f" | format(stage.cpu_seconds) }}</td>
    <td class="number">{{ "%.2f" | format(stage.cpu_ms_a_page) if stage.cpu_ms_a_page is not none }}</td></tr>
  {% endfor %}
</table>
{% if report.device %}
<table>
  <tr><th>devices, {{ "{:.0%}".format(report.device.share) }} at work</th>
    <th class="number">seconds</th></tr>
  {% for name, seconds in report.device.seconds.items() %}
  <tr><td>{{ name }}</td><td class="number">{{ "%.1f" | format(seconds) }}</td></tr>
  {% endfor %}
</table>
{% endif %}
{% if report.queues %}
<table>
  <tr><th>pages, on average</th><th class="number"></th></tr>
  {% for name in ("preparing", "ready", "running") %}
  <tr><td>{{ name }}</td><td class="number">{{ "%.1f" | format(report.queues[name]) }}</td></tr>
  {% endfor %}
</table>
{% endif %}
{% if report.failures.kinds %}
<h2>Failures</h2>
<p>{% for kind, count in report.failures.kinds.items() %}{{ count }} {{ kind }}{{ ", " if not loop.last }}{% endfor %}.
{% if hidden %}The first {{ failures | length }} of {{ failures | length + hidden }}:{% endif %}</p>
<table>
  <tr><th>document</th><th>page</th><th>kind</th><th>reason</th></tr>
  {% for row in failures %}
  <tr><td>{{ row.document }}</td><td>{{ row.page if row.page is not none }}</td><td>{{ row.kind }}</td>
    <td>{{ row.reason }}</td></tr>
  {% endfor %}
</table>
{% endif %}
<h2>Configuration</h2>
<table>
  {% for name, value in report.configuration.items() %}
  <tr><th>{{ name }}</th><td>{{ value if value is not none }}</td></tr>
  {% endfor %}
</table>
</html>
"""


@dataclass(frozen=True)
class Plot:
    """Throughput and the devices' share over time, as points of SVG."""

    throughput: str
    share: str  # empty where it is not known
    most: float  # pages a second, at the top
    seconds: float  # at the right end
    width: int = WIDTH
    height: int = HEIGHT

    @classmethod
    def from_moments(cls, moments: Sequence[Mapping[str, Any]]) -> Plot | None:
        """Draws each interval as a step; None without any."""
        if not moments:
            return None
        seconds, most = moments[-1]["until"], max(moment["pages_per_second"] for moment in moments) or 1.0
        throughput = _steps(moments, [moment["pages_per_second"] / most for moment in moments])
        shares = [moment["device_share"] for moment in moments]
        area = "" if None in shares else f"0,{HEIGHT} {_steps(moments, shares)} {WIDTH},{HEIGHT}"
        return cls(throughput, area, most, seconds)


def html_report(report: Mapping[str, Any]) -> str:
    """Returns the page. Whatever stands in the report is text, never markup."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"lasting": lasting, "counted": counted}
    failures = report["failures"]["first"]
    hidden = len(failures[ROWS:]) + report["failures"]["left_out"]
    plot = Plot.from_moments(report["over_time"])
    template = environment.from_string(TEMPLATE)
    return template.render(report=report, plot=plot, failures=failures[:ROWS], hidden=hidden)


def lasting(seconds: float) -> str:
    """Returns a duration in its usual unit."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _steps(moments: Sequence[Mapping[str, Any]], values: Sequence[float]) -> str:
    """Returns points of a line that holds each value (0 to 1) for its interval."""
    scale, points = WIDTH / moments[-1]["until"], []
    for moment, value in zip(moments, values, strict=True):
        y = HEIGHT * (1 - value)
        points += [((moment["until"] - moment["seconds"]) * scale, y), (moment["until"] * scale, y)]
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
