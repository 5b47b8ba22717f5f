"""The same job on Ray, on this machine."""

from __future__ import annotations

import os

import pytest

ray = pytest.importorskip("ray", reason="the extra ocr-cluster is not installed")
pytest.importorskip("ray.data", reason="the extra ocr-cluster is not installed")

from tests.kits.ocr_jobs import SHORT, book, commits, left  # noqa: E402
from vlm_app.cli.main import main  # noqa: E402


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["VLM_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    ray.init(num_cpus=4, log_to_driver=False, include_dashboard=False)
    yield
    ray.shutdown()
    del os.environ["VLM_CACHE"]


def ocr(*arguments) -> int:
    with pytest.raises(SystemExit) as done:
        main(["ocr", *map(str, arguments)])
    return done.value.code


@pytest.mark.slow
def test_ray_gives_the_same_and_goes_on(cluster, tmp_path, capsys):
    source, alone, together = tmp_path / "in", tmp_path / "alone", tmp_path / "together"
    source.mkdir()
    for i, count in enumerate([9, 1, 6]):
        book(source / f"{i}.pdf", count, seed=i)
    (source / "broken.pdf").write_bytes(b"%PDF-1.4 nothing")
    assert ocr(source, "-o", alone, *SHORT) == 1
    # a part first: the rest is read by the next run alone
    assert ocr(source / "0.pdf", "-o", together, *SHORT, "--pages", "2-4", "--ray") == 0
    assert ocr(source, "-o", together, *SHORT, "--ray", "--engines", 2) == 1
    err = capsys.readouterr().err
    assert "3 pages had been read before" in err and "not read" in err and "Traceback" not in err
    assert left(together) == left(alone) and set(left(alone)) == {"0.md", "1.md", "2.md"}
    assert set(commits(together).values()) == {1} and len(commits(together)) == 16
