"""The demo without a server: which tab a model goes to, the examples, the command's mistakes."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from vlm.build.locate import packaged_models
from vlm.errors import InputError
from vlm.registry import catalogs
from vlm_app.cli.main import main
from vlm_app.demo import examples
from vlm_app.demo.config import DemoConfig
from vlm_app.demo.models import ASK, PACKAGED, READ, WRITE, models_of, tab_of


def test_every_family_has_a_tab():
    found = {name: tab_of(family) for name, family in catalogs.families().items()}
    assert {found[name] for name in ("llava", "vila", "blip2-opt", "blip2-t5", "llama", "opt", "gpt2")} == {ASK}
    assert (found["nougat"], found["t5"], found["bart"], found["fairseq"]) == (READ, WRITE, WRITE, WRITE)


def test_a_tab_has_its_models_in_the_order_given():
    families = catalogs.families()
    named = {"b": "llava", "page": "nougat", "a": "opt"}
    models = {name: SimpleNamespace(pipeline=SimpleNamespace(capabilities=families[f])) for name, f in named.items()}
    assert list(models_of(ASK, models)) == ["b", "a"] and list(models_of(READ, models)) == ["page"]
    assert not models_of(WRITE, models)


def test_the_packaged_models_are_packaged():
    assert set(PACKAGED) <= set(packaged_models())


def test_examples_are_there():
    files = [file for question in examples.questions() for file in question["files"]] + examples.pages()
    assert len(files) > 6 and all(Path(file).is_file() for file in files)
    assert all(question["text"] for question in examples.questions()) and all(examples.notices())


def test_a_port_in_use_or_out_of_range_is_one_sentence(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(SystemExit) as stopped:
            main(["demo", "--port", str(taken.getsockname()[1])])
    assert stopped.value.code == 2
    assert capsys.readouterr().err.endswith(
        "cannot be listened at: Address already in use; give another --host or --port.\n"
    )
    with pytest.raises(InputError, match="port is 70000"):
        DemoConfig(port=70000)
    with pytest.raises(InputError, match="the host is empty"):
        DemoConfig(host="")
    for verb in ("demo", "serve"):
        with pytest.raises(SystemExit):
            main([verb, "--port", "70000"])
        told = "vlm: --port is 70000; it must lie in [0, 65535], 0 is any that is free.\n"
        assert capsys.readouterr().err == told


def test_a_free_port_is_found():
    assert DemoConfig(port=0).on_free_port().port > 0


def test_without_gradio_the_command_says_what_to_install(monkeypatch, capsys):
    for name in [name for name in sys.modules if name.startswith("vlm_app.demo.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(SystemExit) as stopped:
        main(["demo", "--port", "0"])
    assert stopped.value.code == 2
    assert capsys.readouterr().err == "vlm: vlm demo needs the package gradio: pip install 'vlm-runtime[demo]'.\n"
