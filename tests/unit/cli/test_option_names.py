"""No sentence names an option or a verb that is not there: of code, README and docs."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
import typer.main

from tests.checkout import ROOT
from vlm_app.cli.options.groups import LOADING
from vlm_app.cli.verbs import command_line

FOLDERS = ("vlm", "llm_engines", "visual_engines", "app")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9]*(?:-[a-z0-9]+)*(?!\w)")
COMMAND = re.compile(r"\bvlm ([a-z]+(?:-[a-z]+)?)\b((?:\\\n|[^\n`;|&])*)")  # up to where another sentence or command is
# of other programs: git, pip, Slurm, docker, nvidia-smi, mpirun, torchrun; of style sheets
FOREIGN = set(
    "--short --porcelain --untracked-files --upgrade --requeue --job-name --gpus-per-node --cpus-per-task --time"
    " --array --head --address --neutral-500 --text-sm --spacing-xl --spacing-xxl"
    " --query-gpu --id --loop-ms --allow-run-as-root --nproc-per-node --no-python --nodes --ntasks-per-node"
    " --gpus-per-task --gpu-architecture"
    " --list --budget --after --gpus --build --engines".split()  # … and of benchmarks/gpu_session.py
)
LOADING_VERBS = {
    "run", "generate", "translate", "summarize", "eval", "eval pages", "encode", "ocr", "estimate", "serve", "demo",
    "export-triton",
}  # fmt: skip
WITH_ADAPTERS = {"run", "generate", "translate", "summarize", "eval", "encode", "serve"}
OF_PAGES = {"ocr", "estimate", "eval pages"}
# what the core names beside the options of all verbs that load a model -> who can run into it
OF_SOME = {
    "--truncate": {"run", "generate", "translate", "summarize", "eval", "encode"},
    "--input-ids": {"run", "generate", "translate", "summarize"},
    "--prompt-table": {"run", "generate", "translate", "summarize", "serve"},
    "--model": LOADING_VERBS - {"serve", "demo", "export-triton"},
    "--target": {"build"},
    "--tokenizer": {"convert"},
    "--scales": {"quantize"},
    "--devices": LOADING_VERBS - {"eval pages", "demo", "export-triton"},
    "--calibrate": {"quantize"},
    "--export": {"quantize"},
    "--lora": WITH_ADAPTERS | OF_PAGES,
    "--lora-dir": WITH_ADAPTERS | OF_PAGES,
    "--max-loras": WITH_ADAPTERS,
    "--max-cpu-loras": WITH_ADAPTERS,
    "--max-lora-rank": WITH_ADAPTERS,
    "--merge-lora": {"convert"},
    "--format": {"quantize"},
    "--ignore": {"quantize", "build"},
    "--group-size": {"quantize", "build"},
}


DEFAULT = re.compile(r"\[default: (.*?)\]")
MACHINES = {"--preprocess-workers <int>"}  # whose defaults are the machine's
# what sentences name of other verbs: "What --model of `vlm run` takes", "a folder for --prompt-table"
OF_OTHERS = set("--model --model-repository --prompt-table --lora-dir --input-ids --checks".split())


def verbs(group=None):
    """Names and commands of a group; one that has a default stands for that, too."""
    for name, command in (group or typer.main.get_command(command_line())).commands.items():
        yield name, command
        if hasattr(command, "default"):
            yield name, command.commands[command.default]


def commands(group=None, before="") -> dict[str, set[str]]:
    """Options by verb."""
    found = {}
    for name, command in verbs(group):
        if hasattr(command, "commands"):
            found |= commands(command, f"{before}{name} ")
        found[before + name] = {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help", "--debug"}
    return found


def shown(group=None, before="") -> dict[str, dict[str, str | None]]:
    """What the help of each verb says: its options, and their defaults in words."""
    found = {}
    for name, command in verbs(group):
        if hasattr(command, "commands"):
            found |= shown(command, f"{before}{name} ")
            continue
        with command.make_context(name, [], resilient_parsing=True) as context:
            records = [record for p in command.get_params(context) if (record := p.get_help_record(context))]
        defaults = {names: DEFAULT.search(" ".join(text.split())) for names, text in records}
        found[before + name] = {names: match and match[1] for names, match in defaults.items()}
    return found


VERBS = commands()
ANY = set().union(*VERBS.values()) | {"--version"}


def strings(file: Path) -> list[tuple[int, str]]:
    """The texts of a module, those of a sentence together, without what is put in."""
    tree = ast.parse(file.read_text("utf-8"))
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)} - {
        id(node) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
            found.append((node.lineno, "".join(map(str, parts))))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            found.append((node.lineno, node.value))
    return found


def wrong_in(text: str) -> list[str]:
    """Options that no verb has, verbs that are not there, and options that a named verb does not have."""
    errors = [flag for flag in FLAG.findall(text) if flag not in ANY | FOREIGN]
    for verb, rest in COMMAND.findall(text):
        words = rest.split()
        name = f"{verb} {words[0]}" if words and f"{verb} {words[0]}" in VERBS else verb
        if name in VERBS and verb != "bench":
            errors += [f"vlm {name} {flag}" for flag in FLAG.findall(rest) if flag not in VERBS[name] | FOREIGN]
    return errors


@pytest.mark.parametrize("folder", FOLDERS)
def test_sentences_of_the_code_name_options_that_are_there(folder):
    wrong = [
        f"{file.relative_to(ROOT)}:{line}: {error}"
        for file in sorted((ROOT / folder).rglob("*.py"))
        for line, text in strings(file)
        for error in wrong_in(text)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_name_options_that_are_there(page):
    assert not wrong_in(page.read_text("utf-8"))


def test_the_core_names_options_of_every_verb_that_loads_a_model():
    """Its errors come out of any of them."""
    shared = {f"--{name.replace('_', '-')}" for name in LOADING.options}
    for verb in LOADING_VERBS:
        assert shared <= VERBS[verb], verb
    for flag, verbs in OF_SOME.items():
        assert all(flag in VERBS[verb] for verb in verbs), flag
    sentences = [text for file in sorted((ROOT / "vlm").rglob("*.py")) for _, text in strings(file)]
    errors = [text for text in sentences if text.rstrip().endswith(".") or "; " in text]
    named = {flag for text in errors if "vlm build" not in text for flag in FLAG.findall(text)}
    of_sampling = VERBS["run"] & VERBS["generate"] & VERBS["translate"] & VERBS["summarize"] & VERBS["eval"]
    assert named <= shared | OF_SOME.keys() | of_sampling | FOREIGN


def test_a_verbs_own_file_names_its_own_options():
    wrong, files = [], {file.stem: file for file in (ROOT / "app" / "cli").rglob("*.py")}
    for name, options in VERBS.items():
        for line, text in () if name.startswith("bench") else strings(files[re.sub("[- ]", "_", name)]):
            others = {flag for verb, rest in COMMAND.findall(text) if verb != name for flag in FLAG.findall(rest)}
            wrong += [f"{name}:{line}: {flag}" for flag in set(FLAG.findall(text)) - others - options - OF_OTHERS]
    assert not wrong, "\n".join(wrong)


def test_options_keep_their_names_and_defaults():
    """Whoever wrote a script has them; options may be added. `cli_options.json` is of the day before they were made of
    the configurations' fields."""
    now, kept = shown(), json.loads((Path(__file__).parent / "cli_options.json").read_text("utf-8"))
    for verb, options in kept.items():
        assert options.keys() <= now[verb].keys(), (verb, options.keys() - now[verb].keys())
        changed = {n: (o, now[verb][n]) for n, o in options.items() if now[verb][n] != o and n not in MACHINES}
        assert not changed, (verb, changed)


def test_verbs_take_groups_of_options():
    """Of a dataclass each: a verb that lists its options by hand lists some that another verb has, too."""
    for file in sorted((ROOT / "app" / "cli").rglob("*.py")):
        for node in ast.parse(file.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef) and any(ast.unparse(d) == "command" for d in node.decorator_list):
                assert len(node.args.args + node.args.kwonlyargs) <= 12, f"{file.name}: {node.name}"
