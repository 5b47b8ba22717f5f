"""docs/serving.md: its commands start the server, its programs run against it, its tables name what is there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.checkout import ROOT
from tests.kits.cli_kit import call
from tests.kits.servers.server_kit import command, free_port

PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(bash|python)\n(.*?)```", PAGE, re.DOTALL)
SERVES = [text for kind, text in BLOCKS if kind == "bash" and text.startswith("vlm serve")]
CURLS = [text for kind, text in BLOCKS if kind == "bash" and text.startswith("curl")]
PROGRAMS = [text for kind, text in BLOCKS if kind == "python" and "unload_model" not in text]
[CONTROL] = [text for kind, text in BLOCKS if kind == "python" and "unload_model" in text]
[EXPORT] = [text for kind, text in BLOCKS if kind == "bash" and text.startswith("vlm export-triton")]
[REPOSITORY] = [text for text in SERVES if "--model-repository" in text]

GRPC_PORT = free_port()


def started(line: str):
    """The page's command, on free ports in place of its own."""
    arguments = shlex.split(line.replace("--grpc-port 8001", f"--grpc-port {GRPC_PORT}"))[2:]
    if "--port" in arguments:
        place = arguments.index("--port")
        del arguments[place : place + 2]
    return command(*arguments, "--preprocess-workers", "0")


@pytest.fixture(scope="module")
def address():
    with started(SERVES[0]) as (_, found):
        yield found


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_run(address, program):
    program = program.replace("localhost:8000", address).replace("localhost:8001", f"localhost:{GRPC_PORT}")
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Das alte Schiff ist klein." in done.stdout or "GCV3U" in done.stdout


def test_a_repository_is_exported_and_served(tmp_path):
    pytest.importorskip("tritonclient.grpc", reason="the extra triton is not installed")
    export = shlex.split(EXPORT.replace("-o repository", f"-o {tmp_path}/repository"))[1:]
    assert call(*export, "--device", "cpu").exit_code == 0
    with started(REPOSITORY.replace("-repository repository", f"-repository {tmp_path}/repository")) as (_, address):
        program = CONTROL.replace("localhost:8000", address)
        done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
        assert "Das alte Schiff ist klein." in done.stdout and "'unloaded'" in done.stdout, done.stderr


@pytest.mark.parametrize("commands", CURLS)
def test_curl_answers(address, commands):
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    script = "set -e\n" + commands.replace("curl -s", "curl -sSf").replace("localhost:8000", address)
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Das alte Schiff ist klein." in done.stdout or '"status":"ok"' in done.stdout


def test_the_page_has_something_of_each():
    assert len(SERVES) == 5 and len(CURLS) == 3 and len(PROGRAMS) == 3


def test_limits_are_options_of_the_command():
    environment = {**os.environ, "COLUMNS": "200"}
    command = [sys.executable, "-m", "vlm_app.cli.main"]
    helps = [
        subprocess.run(
            [*command, verb, "--help"], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        for verb in ("serve", "export-triton")
    ]
    shown = "".join(done.stdout for done in helps)
    for option in set(re.findall(r"--[a-z][a-z-]+", PAGE)) - {"--model"}:
        assert option in shown, option


def test_metrics_and_tensors_are_those_of_the_server(address):
    from vlm_app.server.core.metrics import Metrics
    from vlm_app.server.replicas.forwarding import Forwarding
    from vlm_app.server.replicas.router import Router
    from vlm_app.server.replicas.status import Metrics as ReplicaMetrics
    from vlm_app.server.replicas.supervisor import Supervisor
    from vlm_app.server.tensors.specs import IDS_IN, IDS_OUT, TEXT_IN, TEXT_OUT

    supervisor, router = Supervisor([], print), Router([])
    replicas = ReplicaMetrics(supervisor, router, Forwarding(supervisor, router))
    metrics = Metrics()
    metrics.register(dict)
    metrics.watch_workers(SimpleNamespace(state=lambda: SimpleNamespace(busy=0), failures={}))
    families = [*metrics.registry.collect(), *replicas.own()]
    known = {name for family in families for name in (family.name, f"{family.name}_total")}
    assert set(re.findall(r"`(vlm_\w+)`", PAGE)) <= known
    for spec in (*IDS_IN, *TEXT_IN, *IDS_OUT, *TEXT_OUT):
        assert f"`{spec.name}`" in PAGE, spec.name
