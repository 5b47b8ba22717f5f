"""What vlm quantize reads of a user's files, and which of it is held out."""

from __future__ import annotations

import json

import pytest
from PIL import Image

from vlm.errors import InputError
from vlm.quantize.config import QuantizeConfig
from vlm_app.quantize.samples import Sample, Samples


def by_place(samples: Samples) -> dict[str, Sample]:
    return {sample.place.rpartition(" ")[2]: sample for sample in samples.drawn}


def test_lines_of_json_are_read_in_any_of_the_usual_words(tmp_path):
    lines = [
        {"question": "How many?", "image": "a.png", "answer": "4"},
        {"prompt": "Compare.", "images": ["a.png", "a.png"]},
        {"text": "A text.", "summary": "Short."},
        {"source": "Another.", "translation": "Ein anderer."},
        {"messages": [{"role": "user", "content": "Hello."}]},
        {"answer": "to nothing"},
        {"text": "a", "prompt": "b"},
        {"prompt": "Compare.", "images": ["a.png", "gone.png"]},
    ]
    file = tmp_path / "in.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)) + "\n\n7\n")
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    samples = Samples.read(file, 100, seed=0)
    found = by_place(samples)
    beside = str(tmp_path / "a.png")
    assert (found["1"].text, found["1"].images, found["1"].reference) == ("How many?", (beside,), "4")
    assert (found["2"].images, found["2"].reference) == ((beside, beside), None)
    assert (found["3"].text, found["3"].reference) == ("A text.", "Short.")
    assert (found["4"].text, found["4"].reference) == ("Another.", "Ein anderer.")
    assert found["5"].messages.messages[0].text == "Hello." and found.keys() == set("12345")
    assert len(samples.errors) == 4 and all(str(file) in error for error in samples.errors)
    assert f"{file} line 8: gone.png does not exist; give the path of an image file" in samples.errors


def test_a_name_that_no_file_can_have_costs_its_line(tmp_path):
    lines = [{"prompt": "What?", "images": ["x" * 5000]}, {"prompt": "What?", "images": ["a\0b"]}, {"prompt": "Why?"}]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, lines)))
    samples = Samples.read(tmp_path / "in.jsonl", 9, seed=0)
    assert [each.text for each in samples.drawn] == ["Why?"]
    assert sorted(error.rpartition("cannot be read: ")[2] for error in samples.errors) == [
        "File name too long", "it can be no path (embedded null byte)",
    ]  # fmt: skip


def test_lines_of_text_have_references_behind_a_tab_in_tsv_alone(tmp_path):
    for name in ("in.tsv", "in.txt"):
        (tmp_path / name).write_text("one\teins\n\ntwo\n")
    pairs = by_place(Samples.read(tmp_path / "in.tsv", 9, seed=0))
    assert {(each.text, each.reference) for each in pairs.values()} == {("one", "eins"), ("two", None)}
    texts = by_place(Samples.read(tmp_path / "in.txt", 9, seed=0))
    assert {each.text for each in texts.values()} == {"one\teins", "two"}


def test_pages_have_the_texts_beside_them(tmp_path):
    for name in ("a", "b"):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{name}.png")
    (tmp_path / "a.mmd").write_text("# A page")
    (tmp_path / "c.pdf").write_bytes(b"no pdf")
    samples = Samples.read(tmp_path, 9, seed=0)
    assert {sample.reference for sample in samples.drawn} == {"# A page", None}
    assert all(len(sample.images) == 1 for sample in samples.drawn) and "c.pdf" in samples.errors[0]


def test_no_more_is_read_than_is_needed_and_the_seed_says_what(tmp_path):
    file = tmp_path / "in.txt"
    file.write_text("".join(f"{i}\n" for i in range(50)))
    drawn = [[each.text for each in Samples.read(file, 10, seed).drawn] for seed in (0, 0, 1)]
    assert len(drawn[0]) == 10 and drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(
    ("available", "calibrated", "compared"),
    [(160, 128, 32), (200, 128, 32), (130, 104, 26), (40, 32, 8), (10, 8, 2), (9, 9, 9), (1, 1, 1)],
)
def test_what_the_report_is_of_was_not_calibrated_with_where_there_is_enough(available, calibrated, compared):
    samples = Samples([Sample(str(i)) for i in range(available)], [])
    calibrating, comparing = samples.split(128, 32)
    assert (len(calibrating), len(comparing)) == (calibrated, compared)
    assert available < 10 or not {each.place for each in calibrating} & {each.place for each in comparing}


def test_options_that_do_not_go_with_a_format_are_refused():
    for wrong in ({"group_size": 32}, {"asymmetric": True}, {"act_order": True}, {"alpha": 0.5}, {"scales": "folded"}):
        with pytest.raises(InputError, match="not fp8; leave it out"):
            QuantizeConfig("fp8", **wrong)
    assert QuantizeConfig("gptq", act_order=True, asymmetric=True).quantization == "int4-asymmetric"
    assert QuantizeConfig("smoothquant", ignore=()).quantization_options == {"ignore": [], "pre_quant_scale": True}
