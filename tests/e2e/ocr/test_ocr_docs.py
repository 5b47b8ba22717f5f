"""The commands of docs/ocr.md: bash takes them as they stand, and what it hands to `vlm` is run here, in order."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.checkout import ROOT
from tests.kits.ocr_jobs import EXAMPLES, book, left
from vlm_app.cli.main import main

pytestmark = pytest.mark.slow

DOCS = ROOT / "docs" / "ocr.md"
FENCE = re.compile(r"(?:<!-- (?P<mark>[^>]*?) -->\n)?```(?P<kind>\w*)\n(?P<text>.*?)```", re.DOTALL)
QUICK = ["--device", "cpu", "--max-new-tokens", "4", "--batch-size", "4", "--workers", "0"]

SHIMS = {
    # notes what it is asked, and with which cluster
    "vlm": "{python} -c \"import json, os, sys; print(json.dumps([os.environ.get('RAY_ADDRESS'), *sys.argv[1:]]))\""
    ' "$@" >> {calls}',
    "srun": 'exec "$@"',
    "sbatch": """
range=$(sed -n 's/^#SBATCH --array=0-//p' "$1")
for task in $(seq 0 "${range:-0}"); do
  SLURM_ARRAY_TASK_ID=$task SLURM_ARRAY_TASK_COUNT=$((${range:-0} + 1)) SLURM_CPUS_PER_TASK=2 bash -eu "$1"
done
""",
}


@pytest.fixture
def folder(tmp_path, monkeypatch, tmp_path_factory):
    """A place as the page describes it."""
    scans = tmp_path / "scans"
    (scans / "letters").mkdir(parents=True)
    book(scans / "report.pdf", 3)
    book(scans / "letters" / "a.pdf", 2, seed=1)
    shutil.copy(EXAMPLES / "page.png", scans / "page.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VLM_CACHE", str(tmp_path_factory.getbasetemp() / "docs-cache"))
    return tmp_path


def fences(kind, slow=False):
    for match in FENCE.finditer(DOCS.read_text(encoding="utf-8")):
        if match["kind"] == kind and (match["mark"] == "slow") <= slow:
            yield match["mark"] or "", match["text"]


def calls_of(folder, blocks, **environment) -> list[list[str]]:
    """What bash hands to `vlm`, in order: the cluster's address, then the arguments."""
    calls, shims = folder / "calls.jsonl", folder / "shims"
    shims.mkdir()
    for name, body in SHIMS.items():
        body = body.replace("{python}", sys.executable).replace("{calls}", str(calls))
        (shims / name).write_text(f"#!/bin/bash\n{body}\n")
        (shims / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{shims}:{os.environ['PATH']}", **environment}
    script = "\n".join(blocks)
    subprocess.run(["bash", "-euc", script], cwd=folder, env=environment, check=True)
    return [json.loads(line) for line in calls.read_text().splitlines()]


def run(arguments) -> int:
    with pytest.raises(SystemExit) as done:
        main([*arguments, *QUICK])
    return done.value.code


@contextlib.contextmanager
def buckets(folder, monkeypatch):
    """s3://scans/2026 holds what scans/ holds; s3://texts is empty."""
    s3fs, moto = pytest.importorskip("s3fs"), pytest.importorskip("moto.server")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    for name, value in {"ENDPOINT_URL": url, "ACCESS_KEY_ID": "x", "SECRET_ACCESS_KEY": "x"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    s3fs.S3FileSystem.clear_instance_cache()
    store = s3fs.S3FileSystem()
    store.mkdir("scans")
    store.mkdir("texts")
    store.put(f"{folder}/scans", "scans/2026", recursive=True)
    yield store
    server.stop()
    s3fs.S3FileSystem.clear_instance_cache()


def test_every_command_runs(folder, monkeypatch, capsys):
    blocks = list(fences("bash"))
    for mark, text in blocks:
        if mark.startswith("file: "):
            (folder / mark.removeprefix("file: ")).write_text(text)
    given = calls_of(folder, [text for mark, text in blocks if not mark], DEVICES="cpu")
    marks = ("vlm ocr", "vlm estimate", "sbatch", "export")
    assert len(given) == 10 and all(any(mark in text for mark in marks) for _, text in blocks)
    with buckets(folder, monkeypatch) as store:
        for _, *arguments in given:
            assert run(arguments) == 0, capsys.readouterr().err
        assert {name for name in store.find("texts/2026") if "/.vlm-ocr/" not in name} == {
            f"texts/2026/{name}" for name in ("report.md", "page.md", "letters/a.md")
        }
    texts = left(folder / "text")
    assert set(texts) == {"report.md", "page.md", "letters/a.md"}
    for name in ("strict", "many", "slurm"):
        assert left(folder / name) == texts
    assert {name: text for name, text in left(folder / "array").items() if ".vlm-ocr" not in name} == texts
    assert len(left(folder / "records")) == 3
    [(_, python)] = fences("python")
    done = subprocess.run([sys.executable, "-c", python], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("done 6 ")


def test_every_option_is_told():
    text = DOCS.read_text(encoding="utf-8")
    shown = "format pages limit recompute workers retries max-page-error-rate gpu-price report shard"
    for option in shown.split():
        assert f"`--{option}" in text


def test_the_commands_for_ray_run(folder, capsys, monkeypatch):
    ray = pytest.importorskip("ray", reason="the extra ocr-cluster is not installed")
    blocks = [text for mark, text in fences("bash", slow=True) if mark == "slow"]
    context = ray.init(num_cpus=4, log_to_driver=False, include_dashboard=False)
    try:
        given = calls_of(folder, blocks, MODEL="mini-nougat", HEAD=context.address_info["address"])
        assert [call[0] for call in given] == [None, context.address_info["address"]]
        for address, *arguments in given:
            if address:
                monkeypatch.setenv("RAY_ADDRESS", address)
            assert run(arguments) == 0, capsys.readouterr().err
    finally:
        ray.shutdown()
    assert left(folder / "ray") == left(folder / "cluster") and set(left(folder / "ray")) == {
        "report.md", "page.md", "letters/a.md",
    }  # fmt: skip
