"""What the processes that read images are forked from: when it is started, with what, and that nothing of it stays."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from visual_engines.images.nougat_images import NOUGAT_IMAGES
from vlm.build.store import resolve
from vlm_app.core.processes import early_start

WARMED_UP = """
pool = RenderPool(1, PageImages(ProcessorSource(None, (NOUGAT_IMAGES,), (96, 64))))
print(pool._pool.submit(lambda worker: worker.run(warmed_up)).result())
pool.close()
"""
IMPORTS = """
from tests.kits.worker_calls import warmed_up
from visual_engines.images.nougat_images import NOUGAT_IMAGES
from vlm.processing.media.image_processor import ProcessorSource
from vlm_app.ocr.documents.page_reading import PageImages
from vlm_app.ocr.documents.render_pool import RenderPool
"""


def shown(code: str, *arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True, check=True
    ).stdout


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    return resolve("mini-nougat", cache_dir=tmp_path_factory.mktemp("cache"))


def test_workers_load_the_image_processor_of_their_own_model_alone_before_they_are_ready():
    assert shown(IMPORTS + WARMED_UP) == "([], 1, 1)\n"  # by the one that it was forked from


def test_what_workers_are_forked_from_is_started_before_torch_is_imported():
    early = """
import sys
from multiprocessing import forkserver
from vlm_app.core.processes.early_start import start_early

for models in (["mini-t5"], ["no-such-model"], ["owner/no-such-model"], ["mini-nougat", "no-such-model"], [],
               ["mini-t5", "mini-nougat"]):
    start_early(models, "vlm_app.ocr.documents.preload")
    print(*models, forkserver._forkserver._forkserver_pid is not None, "torch" in sys.modules)
"""
    assert shown(early + IMPORTS + WARMED_UP).splitlines() == [
        "mini-t5 False False",
        "no-such-model False False",
        "owner/no-such-model False False",
        "mini-nougat no-such-model False False",  # whose processor each worker would load for itself
        "False False",
        "mini-t5 mini-nougat True False",
        "([], 2, 0)",  # of the family, shared; of the engine
    ]


def test_an_engine_tells_the_family_whose_image_processor_is_loaded(engine, monkeypatch):
    started = []
    monkeypatch.setattr(early_start, "start_fork_server", lambda preload, preparations: started.extend(preparations))
    early_start.start_early([str(engine)], "a.module")
    [warm_up] = started
    assert warm_up.source.folder == engine / "processor" and warm_up.source.specs == (NOUGAT_IMAGES,)
    assert warm_up.source.load().image_size is None


SERVE = """
import sys
from multiprocessing import forkserver
from vlm_app.cli import serve
from vlm_app.cli.main import main

check_packages = serve._check_packages
def checked(module):
    print(forkserver._forkserver._forkserver_pid, "torch" in sys.modules, flush=True)
    if loads:
        return check_packages(module)
    raise SystemExit

serve._check_packages = checked
for loads, *arguments in ((False, "mini-t5"), (False, "mini-nougat", "--preprocess-workers", "0"),
                          (False, "mini-nougat", "--replicas", "2"), (True, sys.argv[1])):
    try:
        main(["serve", *arguments, "--port", "0", "--device", "cpu"])
    except SystemExit as end:
        print(end.code, "torch" in sys.modules, flush=True)
"""


def test_a_server_starts_it_before_its_models_and_leaves_none_behind_when_one_does_not_load(engine, tmp_path):
    broken = shutil.copytree(engine, tmp_path / "broken")
    next(broken.rglob("*.safetensors")).write_bytes(b"")
    *others, started, failed = shown(SERVE, str(broken)).splitlines()
    assert others == ["None False", "None False"] * 3
    assert started.endswith(" False") and started != "None False" and failed == "2 True"
