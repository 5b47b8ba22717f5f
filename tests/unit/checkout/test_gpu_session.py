"""benchmarks/gpu_session.py: what it would run on a GPU is understood and fits the models; its time, its failures."""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile

import pytest

from tests.checkout import ROOT
from tests.unit.checkout.test_docs import unknown_words
from vlm.build.locate import packaged_models
from vlm.config import BuildConfig
from vlm.registry.catalogs import match_family
from vlm_app.bench.config import BenchConfig
from vlm_app.bench.ocr_config import OcrBenchConfig
from vlm_app.bench.pages.kinds import IMAGE_KINDS
from vlm_app.bench.serving import job
from vlm_app.bench.systems import page_engine, subject
from vlm_app.bench.systems.image_sizes import with_pixel_size
from vlm_app.cli.evaluation import bench
from vlm_app.cli.main import main
from vlm_app.core.architecture import hf_config

TAKES = {"text": "text", "prompt": "prompt", "latency": "image", "throughput": "image"}
# stands for vlm: writes a result, fails, fails with Hugging Face, or never ends, as its second argument says
VLM = """
import sys, tempfile, time
kind, out = sys.argv[2], sys.argv[sys.argv.index("--json") + 1]
open(out, "w").close()
print(f"vlm: this is {kind}")
if kind == "endless":
    tempfile.mkdtemp(prefix="engine-")
    time.sleep(600)
if kind == "failing" or (kind == "memory" and "--no-hf" not in sys.argv):
    sys.exit(2)
open(out, "w").write('{"kind": "text"}')
"""

# the same, which makes engines, too: all but one
MAKES = (
    """
import sys, pathlib
if sys.argv[1] == "build":
    folder = pathlib.Path(sys.argv[sys.argv.index("-o") + 1])
    if folder.name == "broken":
        sys.exit("vlm: there is no room.")
    folder.mkdir()
    (folder / "manifest.json").write_text(" ".join(sys.argv))
    sys.exit(0)
if "--model" in sys.argv and sys.argv[sys.argv.index("--model") + 1] == "whole":
    assert "--tp-size 2" in open("whole/manifest.json").read()
"""
    + VLM
)


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("gpu_session", ROOT / "benchmarks" / "gpu_session.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_every_command_is_one_that_its_model_takes(script, tmp_path, monkeypatch):
    """Options, limits and sizes are looked at as `vlm bench` does before minutes are spent; no weight is made."""
    found = []
    monkeypatch.setattr(bench, "_measure", lambda kind, config, out, as_csv: found.append((kind, config)))
    monkeypatch.setattr(job, "serve", lambda config, options, _: found.append(("serve", (config, options))))
    monkeypatch.setattr(bench, "_write", lambda *_, **__: None)
    for each in (script.Measurement(*command) for command in script.COMMANDS):
        words = " ".join(each.words(tmp_path / "x.json"))
        if each.engine:  # what is made before is asked for here as if it were made for it, but for its limits
            made, _, limits = script.ENGINES[each.engine].partition(f" {script.LIMITS}")
            words = words.replace(f"--model {each.engine}", made + limits)
        with pytest.raises(SystemExit) as done:
            main(words.split())
        assert not done.value.code and each.seconds <= 540
    assert len({name for name, *_ in script.COMMANDS}) == len(found) == len(script.COMMANDS)
    for kind, config in found:
        if kind == "serve":
            asked, options = config
            assert asked.model in packaged_models() and not unknown_words(["serve", *options])
            continue
        spec, hf = match_family(hf_config(config.arch)), hf_config(config.arch)
        configs = subject.role_configs(spec, hf)
        if kind == "ocr":
            assert isinstance(config, OcrBenchConfig) and set(config.kinds) <= set(IMAGE_KINDS)  # no pypdfium2 there
            page_engine._check_length(config, BuildConfig(), configs)
            continue
        config = with_pixel_size(config) if kind == "prompt" else config
        pages = {"max_batch_size": config.batch_size} if isinstance(config, BenchConfig) else None
        limits = config.limits if pages is None else (lambda _, pages=pages: pages)
        build = subject._checked_build(config, spec, configs, config.dtype, takes=TAKES[kind], limits=limits)
        assert pages is None or config.new_tokens < subject.resolve_limits(build, configs).max_seq_len


def test_engines_that_are_made_before_are_those_that_measurements_need(script):
    needed = [each.engine for each in (script.Measurement(*command) for command in script.COMMANDS) if each.engine]
    assert sorted(needed) == sorted(script.ENGINES)
    by_gpus = {1: 3, 2: 3, 4: 9}
    measurements = [script.Measurement(*command) for command in script.COMMANDS]
    assert {gpus: sum(each.gpus == gpus and bool(each.engine) for each in measurements) for gpus in by_gpus} == by_gpus


def test_the_page_of_benchmarks_has_the_commands(script):
    page = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    for name, _, command in script.COMMANDS:
        [line] = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
        assert line.endswith(f"| `vlm bench {script._shown(command)}` |")


@pytest.fixture
def session(script, tmp_path, monkeypatch):
    """Runs the script with measurements (name, seconds, command) -> its code, and the statuses by name."""
    (tmp_path / "vlm.py").write_text(VLM)
    monkeypatch.setattr(script, "VLM", (sys.executable, str(tmp_path / "vlm.py")))

    def run(commands, *arguments, budget=100):
        monkeypatch.setattr(script, "COMMANDS", tuple(commands))
        code = script.main(["--out", str(tmp_path / "out"), "--budget", str(budget), *arguments])
        summary = json.loads((tmp_path / "out" / "summary.json").read_text())
        return code, {each["name"]: each["status"] for each in summary}

    run.out = tmp_path / "out"
    return run


def test_one_that_fails_stops_none_of_the_others(session, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    code, found = session(
        [("a", 50, "failing"), ("b", 50, "memory"), ("c", 1000, "fine"), ("d", 1, "endless"), ("e", 50, "fine")]
    )
    assert code == 1
    assert found == {
        "a": "failed", "b": "ran without Hugging Face", "c": "no time left", "d": "timed out", "e": "ran"
    }  # fmt: skip
    assert not any((tmp_path / "scratch").iterdir())  # engines are large
    assert sorted(file.name for file in session.out.glob("*.json*")) == ["b.json", "e.json", "summary.json"]
    assert all(json.loads((session.out / name).read_text()) for name in ("b.json", "e.json"))
    shown = capsys.readouterr().out
    assert "a: failed, " in shown and ": vlm: this is failing" in shown and "$ vlm bench memory --no-hf" in shown


def test_each_gpu_has_its_share_of_the_cores(script, session, monkeypatch):
    pinned = []
    monkeypatch.setattr(script.os, "sched_setaffinity", lambda pid, cores: pinned.append(cores))
    monkeypatch.setattr(script.os, "sched_getaffinity", lambda pid: set(range(1, 10)))
    commands = [("a", 50, "fine"), ("b", 50, "fine"), ("c", 50, "fine --tp-size 2")]
    assert session(commands, "--gpus", "4")[0] == 0
    pinned.remove({1, 2, 3, 4})
    assert len(pinned) == 2 and all(cores in ({1, 2}, {3, 4}, {5, 6}, {7, 8}) for cores in pinned)
    assert script._cores([11], 12) == set(range(1, 10))  # there are fewer cores


def test_several_gpus_take_turns(script, session, monkeypatch):
    """Those that need two come first and see both; each of the others sees one."""
    seen = []
    run = script._run
    monkeypatch.setattr(script, "_run", lambda each, **k: seen.append((each.name, k["visible"])) or run(each, **k))
    commands = [("a", 50, "fine"), ("b", 50, "fine --tp-size 2"), ("c", 50, "fine --devices cuda:0,cuda:1"),
                ("d", 50, "fine"), ("e", 50, "fine --tp-size 2 --pp-size 2")]  # fmt: skip
    statuses = dict.fromkeys("abcd", "ran") | {"e": "too few GPUs"}
    assert session(commands, "--gpus", "2") == (0, statuses)
    assert seen[:2] == [("b", "0,1"), ("c", "0,1")] and [name for name, _ in sorted(seen[2:])] == ["a", "d"]
    assert {visible for _, visible in seen[2:]} <= {"0", "1"}
    assert session(commands) == (
        0,
        {"a": "ran", "b": "too few GPUs", "c": "too few GPUs", "d": "ran", "e": "too few GPUs"},
    )
    assert seen[4:] == [("a", "0"), ("d", "0")]


def test_engines_are_made_before_and_deleted_when_nothing_needs_them(script, session, tmp_path, monkeypatch, capsys):
    """Two measurements share one, another one cannot be made; in a folder that is named they stay."""
    (tmp_path / "vlm.py").write_text(MAKES)
    monkeypatch.setattr(script, "ENGINES", {"whole": "--tp-size 2", "broken": "--pp-size 2"})
    commands = [("a", 50, "fine --model whole"), ("b", 50, "fine --model broken"), ("c", 50, "fine --model whole"),
                ("d", 50, "fine --model elsewhere")]  # fmt: skip
    folders, release = [], script.Engines.release
    monkeypatch.setattr(
        script.Engines, "release", lambda self, each: (release(self, each), folders.append([*self.folder.iterdir()]))
    )
    expected = (1, {"a": "ran", "b": "failed", "c": "ran", "d": "ran"})
    assert session(commands, "--gpus", "2") == expected and folders[-1] == []
    shown = capsys.readouterr().out
    assert "vlm: there is no room" in shown and "b: failed, 0 s: its engine could not be made" in shown
    engines = tmp_path / "engines"
    asked = ("--gpus", "2", "--engines", str(engines))
    monkeypatch.setattr(script, "COMMANDS", tuple(commands))
    assert script.main(["--build", *asked]) == 1 and [folder.name for folder in engines.iterdir()] == ["whole"]
    made = (engines / "whole" / "manifest.json").stat().st_mtime_ns
    assert session(commands, *asked) == expected
    assert (engines / "whole" / "manifest.json").stat().st_mtime_ns == made


def test_some_of_them(session, script, capsys):
    commands = [(name, 1, "fine") for name in ("first", "second", "third")]
    assert session(commands, "fi", "third") == (0, {"first": "ran", "third": "ran"})
    assert session(commands, "--after", "second") == (0, {"third": "ran"})
    with pytest.raises(SystemExit, match="no measurement is called 'fourth'; there are first, second, third"):
        session(commands, "fourth")
    capsys.readouterr()
    assert script.main(["--list"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "first (1 s): vlm bench fine"
