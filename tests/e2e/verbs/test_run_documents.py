"""`vlm run` on documents: which pages of a PDF, and what is wrong with it."""

from __future__ import annotations

import json

import pytest
from PIL import Image

from tests.checkout import ROOT

pytest.importorskip("pypdfium2", reason="pypdfium2 is not installed: no PDF can be read")


from tests.kits.cli_kit import call
from tests.kits.models.prompted_kit import saved
from vlm.processing.media.image_processor import ImageProcessor

pytestmark = pytest.mark.usefixtures("cache_of_module")

PAGE = ROOT / "examples" / "page.png"
SHORT = ("--device", "cpu", "--max-new-tokens", "6")


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Three pages: an example, an empty one, and the example turned."""
    path, page = tmp_path_factory.mktemp("documents") / "report.pdf", Image.open(PAGE).convert("RGB")
    others = [Image.new("RGB", page.size, "white"), page.rotate(180)]
    page.save(path, save_all=True, append_images=others, resolution=100)
    return path


@pytest.fixture(scope="module")
def llava(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llava")
    saved("llava", folder)
    return folder


def rows(result):
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_each_page_is_a_request(report):
    read = rows(call("run", "--image", report, *SHORT, "--json"))
    assert [(row["image"], row["page"]) for row in read] == [(str(report), page) for page in (1, 2, 3)]
    assert len({tuple(row["token_ids"]) for row in read}) > 1
    chosen = rows(call("run", "--image", report, "--pages", "3,1", *SHORT, "--json"))
    assert [row["page"] for row in chosen] == [3, 1]
    assert [row["token_ids"] for row in chosen] == [read[2]["token_ids"], read[0]["token_ids"]]


def test_each_frame_of_a_tiff_is_a_page(tmp_path):
    path, page = tmp_path / "fax.tif", Image.open(PAGE).convert("RGB")
    page.save(path, save_all=True, append_images=[Image.new("RGB", page.size, "white")])
    read = rows(call("run", "--image", path, *SHORT, "--json"))
    assert [(row["image"], row["page"]) for row in read] == [(str(path), 1), (str(path), 2)]
    assert read[0]["token_ids"] == rows(call("run", "--image", PAGE, *SHORT, "--json"))[0]["token_ids"]


def test_a_page_from_stdin_reads_as_its_picture(report):
    page = call("run", "--image", "-", "--page", 1, *SHORT, "--json", stdin=report.read_bytes())
    [row], [image] = rows(page), rows(call("run", "--image", PAGE, *SHORT, "--json"))
    assert (row["image"], row["page"]) == ("-", 1) and row["token_ids"] == image["token_ids"] and "page" not in image


def test_pages_stand_in_one_prompt(report, llava):
    given = ("run", "--image", report, "--prompt", "w1", "--model", llava, *SHORT, "--json")
    [row] = rows(call(*given, "--pages", "1-2"))
    assert row["images"] == [str(report)] * 2 and row["pages"] == [1, 2]
    result = call(*given)
    assert result.exit_code == 2 and len(result.stderr.splitlines()) == 1
    assert f"{report} has several pages" in result.stderr and "say which with --pages 1" in result.stderr


def test_pages_are_drawn_at_the_size_that_the_model_keeps(report, llava, monkeypatch):
    """In single requests and in a conversation: at 200 dpi a page of the report is twice as large as its picture."""
    seen, read, full = [], ImageProcessor.read, 2 * Image.open(PAGE).width
    monkeypatch.setattr(ImageProcessor, "read", lambda self, image: seen.append(image.width) or read(self, image))
    rows(call("run", "--image", report, "--page", 1, *SHORT, "--json"))
    rows(call("run", "--image", report, "--page", 1, "--chat", "--model", llava, *SHORT, "--json", stdin=b"w1\n"))
    assert len(seen) == 2 and seen[1] < seen[0] < full


def test_what_is_wrong_is_one_sentence(report, tmp_path):
    (tmp_path / "cut.pdf").write_bytes(report.read_bytes()[:300])
    (tmp_path / "empty.pdf").write_bytes(b"")
    locked = b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n2 0 obj<</Type/Pages/Kids[]/Count 1>>endobj\n"
    locked += b"3 0 obj<</Filter/Standard/V 1/R 2/O(" + b"x" * 32 + b")/U(" + b"y" * 32 + b")/P -4>>endobj\n"
    locked += b"trailer<</Root 1 0 R/Encrypt 3 0 R/ID[(a)(a)]>>"
    (tmp_path / "locked.pdf").write_bytes(locked)
    for arguments, says in (
        (("--image", report, "--pages", 4), f"pages 4 were asked for, {report} has 3 pages; give some of 1 to 3."),
        (("--image", report, "--pages", "x"), "the page range 'x' is not understood"),
        (("--image", PAGE, "--pages", 2), f"{PAGE} has 1 page; give 1 alone."),
        (("--image", tmp_path / "none.pdf", "--pages", 1), "none.pdf does not exist"),
        (("--image", tmp_path / "cut.pdf"), "cut.pdf is no readable PDF"),
        (("--image", tmp_path / "empty.pdf"), "empty.pdf is empty"),
        (("--image", tmp_path / "locked.pdf"), "locked.pdf is encrypted; remove its password first"),
        (("--text", "a", "--pages", 1), "--pages names pages of the documents of --image"),
    ):
        result = call("run", *arguments, *SHORT)
        assert result.exit_code == 2 and len(result.stderr.splitlines()) == 1, result.stderr
        assert says in result.stderr
