"""Options made of the fields of dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import typer
from typer.testing import CliRunner

from vlm.errors import InputError
from vlm.options import flag_of, option
from vlm_app.cli.errors import command
from vlm_app.cli.options.groups import Group, GroupedCommand, takes


def read_pairs(text: str) -> tuple[tuple[str, float], ...]:
    try:
        return tuple((name, float(value)) for name, value in (part.split("=") for part in text.split(",")))
    except ValueError:
        raise InputError(f"pairs is {text!r}; write a=1,b=2.") from None


@dataclass(frozen=True)
class Config:
    inner: int = 3  # no option
    width: int = option(4, "How wide.")
    share: float | None = option(None, "How much.", default="what there is")
    names: tuple[str, ...] = option((), "What it is called.")
    numbers: tuple[int, ...] = option((), "Which.")
    loud: bool = option(False, "Be heard.", flags=("--very-loud",))
    pairs: tuple[tuple[str, float], ...] = option((), "Names and numbers.", read=read_pairs)
    key: str | None = option(None, "What opens it.", env="VLM_TEST_KEY")


def program():
    """A verb that prints what it gets."""
    app = typer.Typer(rich_markup_mode=None)

    @app.command(cls=GroupedCommand)
    @command
    @takes(config=Group.from_fields("Shape", lambda given: given, Config))
    def show(*, first: str = "a", config: dict, last: int = 1) -> None:
        """Shows."""
        print(first, config, last)

    return app


def call(*arguments):
    return CliRunner().invoke(program(), [*map(str, arguments)])


def test_a_variable_stands_for_an_option_and_is_not_empty(monkeypatch):
    """A server whose secret was not found would let everybody in."""
    monkeypatch.setenv("VLM_TEST_KEY", "k")
    assert call().stdout == "a {'key': 'k'} 1\n"
    monkeypatch.setenv("VLM_TEST_KEY", "")
    assert call("--key", "own").stdout == "a {'key': 'own'} 1\n"
    refused = call()
    assert refused.exit_code == 2 and "VLM_TEST_KEY is empty; give it a value, or unset it." in refused.output


def test_a_field_with_an_option_is_one():
    assert call().stdout == "a {} 1\n"
    given = ("--names", "x", "--names", "y", "--numbers", 2, "--very-loud", "--pairs", "a=1,b=2", "--share", 0.5)
    want = {"share": 0.5, "names": ("x", "y"), "numbers": (2,), "loud": True, "pairs": (("a", 1.0), ("b", 2.0))}
    assert call("--width", 7, *given, "--last", 2).stdout == f"a { ({'width': 7} | want) } 2\n"
    assert call("--inner", 1).exit_code == 2
    assert (flag_of(Config, "loud"), flag_of(Config, "width")) == ("--very-loud", "--width")


def test_what_cannot_be_read_is_one_sentence():
    result = call("--pairs", "a")
    assert (result.exit_code, result.stderr) == (2, "vlm: pairs is 'a'; write a=1,b=2.\n")
    assert call("--width", "wide").exit_code == 2


def test_help_lists_them_under_their_title_with_their_defaults():
    text = " ".join(call("--help").stdout.split())
    options, shape = text.split("Shape:")
    assert "--first" in options and "--last" in options and "--width" not in options
    for part in (
        "How wide. [default: 4]",
        "How much. [default: what there is]",
        "What it is called. Repeat it",
        "Be heard.",
    ):
        assert part in shape


def test_a_type_that_nothing_reads_is_found_at_once():
    group = Group.from_fields("Shape", dict, Config)
    with pytest.raises(TypeError, match="needs a function that reads it"):
        replace(group, types={**group.types, "width": dict}).parameters()
