"""The pages' links lead somewhere, the files they name are there, and their figures are the committed results."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from dataclasses import astuple
from pathlib import Path

import pytest
import typer

from tests.checkout import ROOT
from vlm_app.bench.table import HEADER, load, markdown, rows
from vlm_app.cli.verbs import command_line

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^()\s]+)\)")
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
FOLDERS = "vlm|visual_engines|llm_engines|app|tests|training|docs|docker|examples|benchmarks|\\.ci"
FILE = re.compile(rf"`((?:{FOLDERS})/[\w./-]+)`")
SHELL = re.compile(r"^```bash\n(.*?)^```$", re.DOTALL | re.MULTILINE)
RATES = re.compile(r"\[([\d,]+(?:(?:,| and) [\d,]+)*)\]\(((?:\.\./)?benchmarks/results/[^()\s]+\.json)\)")
RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
SERVED = sorted((ROOT / "benchmarks" / "results" / "serving").glob("*.json"))


def text_of(page: Path) -> str:
    """Returns a page without its fenced code."""
    return FENCE.sub("", page.read_text("utf-8"))


def anchors(text: str) -> set[str]:
    """Returns the names that GitHub gives to a page's headings: the second of two alike ends in -1."""
    names, found = Counter[str](), set()
    for heading in HEADING.findall(text):
        plain = LINK.sub("", heading).replace("[", "").lower()
        name = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        found.add(f"{name}-{names[name]}" if names[name] else name)
        names[name] += 1
    return found


def broken_links(page: Path) -> list[str]:
    """Returns a page's relative links that lead to no file or to no heading of one."""
    broken = []
    for link in LINK.findall(text_of(page)):
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        if re.match(r"[a-z]+:", link):
            continue
        if not target.exists() or (anchor and anchor not in anchors(text_of(target))):
            broken.append(link)
    return broken


def between(page: Path, mark: str) -> str:
    """Returns what stands between `<!-- mark -->` and `<!-- /mark -->`."""
    [found] = re.findall(rf"<!-- {mark} -->\n(.*?)\n<!-- /{mark} -->", page.read_text("utf-8"), re.DOTALL)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    assert not broken_links(page)


def commands(text: str) -> list[list[str]]:
    """Returns the words after `vlm` of each line of a text's shell blocks that calls it."""
    lines = [line for block in SHELL.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    words = [shlex.split(line, comments=True) for line in lines if "vlm " in line]
    return [line[line.index("vlm") + 1 :] for line in words if "vlm" in line]


def unknown_words(words: list[str]) -> list[str]:
    """Returns the verb, or the options, of a command that the command line does not have; those behind `--` are of the
    `vlm serve` that `vlm bench serve` starts."""
    if "--" in words:
        own, others = words[: words.index("--")], words[words.index("--") + 1 :]
        return unknown_words(own) + unknown_words(["serve", *others])
    command = typer.main.get_command(command_line())
    while hasattr(command, "commands") and words:
        if (verb := words[0]) not in command.commands and hasattr(command, "default"):
            command = command.commands[command.default]
            break
        if verb not in command.commands:
            return [verb] if not verb.startswith("-") else []
        command, words = command.commands[verb], words[1:]
    known = {"--help"}.union(*(param.opts + param.secondary_opts for param in command.params))
    end = next((at for at, word in enumerate(words) if word in ("|", "&&", ">", "<")), len(words))
    return [word for word in words[:end] if word.startswith("--") and word.partition("=")[0] not in known]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_those_of_the_command_line(page):
    assert not [
        (" ".join(words), unknown) for words in commands(page.read_text("utf-8")) if (unknown := unknown_words(words))
    ]


def test_a_command_that_is_none_is_found():
    text = "```bash\nvlm chat --model x\ncat a | vlm run --picture b \\\n  --model c\nvlm bench text --json d\n"
    text += "vlm bench serve --model a -- --device cpu --picture b\n```\n"
    assert [unknown_words(words) for words in commands(text)] == [["chat"], ["--picture"], [], ["--picture"]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_are_there(page):
    assert not [name for name in FILE.findall(text_of(page)) if not (ROOT / name).exists()]


def test_broken_links_are_found(tmp_path):
    (tmp_path / "other.md").write_text("# A page\n## Of `two` words\n## Of two words\n")
    links = ["other.md", "other.md#of-two-words-1", "https://example.org", "#here", "gone.md", "other.md#gone", "#gone"]
    page = tmp_path / "page.md"
    page.write_text("# Here\n" + " ".join(f"[x]({link})" for link in links) + "\n```\n[x](code.md)\n```\n")
    assert broken_links(page) == ["gone.md", "other.md#gone", "#gone"]


def test_every_page_is_linked_from_the_readme():
    linked = {link.partition("#")[0] for link in LINK.findall(text_of(ROOT / "README.md"))}
    assert {str(page.relative_to(ROOT)) for page in PAGES[1:]} <= linked


def test_the_table_of_benchmarks_is_the_committed_results():
    page = ROOT / "docs" / "benchmarks.md"
    assert RESULTS and between(page, "bench") == markdown(load(RESULTS))
    assert {f"../benchmarks/results/{file.name}" for file in RESULTS} <= set(LINK.findall(text_of(page)))


def test_the_tables_of_servers_are_the_committed_results():
    page = ROOT / "docs" / "benchmarks.md"
    assert SERVED and between(page, "bench-serve") == markdown(load(SERVED))
    assert {f"../benchmarks/results/serving/{file.name}" for file in SERVED} <= set(LINK.findall(text_of(page)))


def profile(system: dict, floor: dict) -> tuple[str, ...]:
    """Returns a step's kernels, their microseconds, its own and its floor's."""
    kernels, step = system["kernels"], system.get("step_ms") or system["ms_per_token"]
    figures = (kernels["count"], kernels["microseconds"], step * 1e3, system.get("floor", floor)["step_ms"] * 1e3)
    return tuple(f"{each:,.0f}" for each in figures)


def profiles(result: dict) -> set[tuple[str, ...]]:
    """Returns the profile of each system of a result."""
    rows = result.get("rows") or [result]
    return {profile(each, row["floor"]) for row in rows for each in (row["vlm"], *row["beside"].values())}


def test_the_profiles_are_the_committed_results():
    lines = between(ROOT / "docs" / "performance.md", "profiles").splitlines()[2:]
    links = [name for line in lines for name in re.findall(r"results/(\S+?\.json)", line)]
    known = set().union(*(profiles(json.loads((RESULTS[0].parent / name).read_text("utf-8"))) for name in links))
    assert {tuple(line.strip("| ").split(" | ")[1:]) for line in lines} == known


def numbers(content: object) -> set[str]:
    """Returns all numbers of a result, as pages have them: some of its milliseconds as microseconds."""
    if isinstance(content, dict | list):
        return set().union(*map(numbers, content.values() if isinstance(content, dict) else content))
    return {f"{content:,.0f}", f"{content * 1e3:,.0f}"} if isinstance(content, int | float) else set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_rates_that_link_to_a_result_stand_in_it(page):
    """A result that is measured again takes the place of one of which texts may tell, too."""
    for rates, link in RATES.findall(text_of(page)):
        if known := [rate for rate in re.findall(r"\d[\d,]*\d", rates) if "," in rate]:
            assert set(known) <= numbers(json.loads((page.parent / link).read_text("utf-8"))), link


def test_the_readmes_ten_rows_are_of_that_table():
    head, _, *shown = between(ROOT / "README.md", "bench-rows").splitlines()
    table = {astuple(row) for result in load(RESULTS) for row in rows(result)}
    cells = [tuple(line.strip("| ").split(" | ")) for line in (head, *shown)]
    assert cells[0] == HEADER and len(shown) == 10 and set(cells[1:]) <= table
