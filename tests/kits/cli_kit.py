"""Command lines that run in the test's own process."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from vlm_app.cli.main import main
from vlm_app.cli.verbs import command_line_of


def call(*arguments: object, stdin: str | bytes | None = None) -> Any:
    """Runs `vlm`, whose other verbs are not made, as the command does not either: they cost as much as many tests."""
    words = [str(argument) for argument in arguments]
    return CliRunner().invoke(command_line_of(words), words, input=stdin)


def ended(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[Any, str, str]:
    """Runs `vlm` until it exits -> (exit code, stdout, stderr)."""
    with pytest.raises(SystemExit) as done:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return done.value.code, captured.out, captured.err


def one_sentence(result: Any, code: int = 2) -> str:
    """Returns the one sentence that a mistake is told in: no traceback, no error of ours."""
    lines = [line for line in result.stderr.splitlines() if line.startswith("vlm: ")]
    assert result.exit_code == code and len(lines) == 1 and lines[0].endswith("."), result.stderr
    assert "internal error" not in lines[0]
    return lines[0]
