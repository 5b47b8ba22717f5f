"""Processes that mpirun, torchrun or srun starts for a model that one process runs."""

from __future__ import annotations

import os

import pytest

import vlm
from tests.checkout import ROOT
from tests.kits.cli_kit import call, one_sentence
from vlm.errors import EngineError
from vlm.parallel.environment import VARIABLES, be_no_rank, launched_rank, rank_among

EXAMPLES = ROOT / "examples"
EN_DE = ("--src-lang", "en", "--tgt-lang", "de")
TRANSLATE = ("translate", *EN_DE, "The house is small.")


def launch(monkeypatch: pytest.MonkeyPatch, starter: str, size: int = 2) -> None:
    for name, value in zip(VARIABLES[starter], (0, size, 0), strict=True):
        monkeypatch.setenv(name, str(value))


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("VLM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize(
    "line",
    [
        ("run", "--text", "a"),
        TRANSLATE,
        ("generate", "a", "--model", "mini-llava"),
        ("summarize", "a", "--model", "mini-t5"),
        ("eval", EXAMPLES / "translate.tsv", *EN_DE),
        ("ocr", EXAMPLES / "page.png", "-o", "text", "--workers", "0"),
        ("bench", "text", "--model", "mini-t5", "--json", "bench.json"),
        ("bench", "text", "--arch", "t5-small", "--random-weights"),
        ("bench", "ocr", "--arch", "nougat-base", "--random-weights"),
        ("serve", "mini-t5", "--port", "0", "--preprocess-workers", "0"),
        ("serve", "mini-t5", "--port", "0", "--replicas", "1"),
    ],
    ids=lambda line: " ".join(map(str, line[:2])),
)
def test_no_verb_does_its_work_twice(line, cache, monkeypatch, tmp_path):
    launch(monkeypatch, "mpirun")
    monkeypatch.chdir(tmp_path)
    result = call(*line, "--device", "cpu")
    said = one_sentence(result)
    assert "mpirun has started 2 processes" in said and "is built for 1 rank; start 1, or build it for 2" in said
    assert result.stdout == "" and not (cache / "engines").exists() and not (tmp_path / "text").exists()


@pytest.mark.parametrize("verb", ["convert", "build", "quantize"])
def test_files_of_all_ranks_are_written_once(verb, cache, monkeypatch, tmp_path):
    launch(monkeypatch, "mpirun")
    said = one_sentence(call(verb, "mini-t5", "-o", tmp_path / "out"))
    assert f"mpirun has started 2 processes, and vlm {verb} writes the files of all ranks by itself" in said
    assert "without mpirun" in said and not (tmp_path / "out").exists()


@pytest.mark.parametrize("starter", VARIABLES)
def test_python_does_not_either(starter, cache, monkeypatch):
    with pytest.raises(EngineError, match=f"{starter} has started 2 processes, mini-t5 is built for 1 rank"):
        launch(monkeypatch, starter)
        vlm.load("mini-t5", device="cpu")
    launch(monkeypatch, starter, size=1)
    assert rank_among(1, "mini-t5") is None


@pytest.mark.parametrize("starter", VARIABLES)
def test_processes_with_work_of_their_own(starter, monkeypatch):
    """Does what the sentence says: without one variable a process is by itself."""
    launch(monkeypatch, starter, size=3)
    with pytest.raises(EngineError, match=f"of its own, unset {VARIABLES[starter][1]}") as error:
        rank_among(2, "t5.engine")
    assert "t5.engine is built for 2 ranks; start 2, or build it for 3" in str(error.value)
    be_no_rank()
    assert launched_rank() is None and VARIABLES[starter][0] in os.environ


def test_one_task_of_slurm_and_an_allocation(monkeypatch):
    launch(monkeypatch, "srun", size=1)
    assert rank_among(1, "mini-t5") is None
    allocation = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    assert rank_among(1, "mini-t5", allocation) is None, "a shell within salloc or sbatch, no step"


def test_parts_of_an_ocr_job_are_their_process_s_own(cache, monkeypatch, tmp_path):
    launch(monkeypatch, "srun")
    options = ("--device", "cpu", "--max-new-tokens", "2", "--workers", "0")
    result = call("ocr", EXAMPLES / "page.png", "-o", tmp_path, "--shard", "0/1", *options)
    assert result.exit_code == 0 and (tmp_path / "page.md").exists(), result.stderr
