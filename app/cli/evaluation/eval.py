"""`vlm eval`: a verb for texts with references, which needs no name, and one for pages with checks."""

from __future__ import annotations

from typing import Any, ClassVar

import typer
from typer.core import TyperGroup

from vlm_app.cli.evaluation.eval_pages import pages
from vlm_app.cli.evaluation.eval_texts import texts
from vlm_app.cli.options.groups import GroupedCommand


class EvalGroup(TyperGroup):
    """`vlm eval pairs.tsv` is `vlm eval texts pairs.tsv`."""

    default: ClassVar[str] = "texts"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        named = not args or args[0] in (*self.commands, *ctx.help_option_names)
        return super().parse_args(ctx, args if named else [self.default, *args])


app = typer.Typer(cls=EvalGroup, rich_markup_mode=None, no_args_is_help=True)
for verb in (texts, pages):
    app.command(verb.__name__, cls=GroupedCommand)(verb)


@app.callback()
def _options() -> None:
    """Score a model: on texts with references, or on pages with checks.

    `vlm eval DATA` is `vlm eval texts DATA`.

    \b
    Examples:
      vlm eval examples/translate.tsv --src-lang en --tgt-lang de --compare-hf
      vlm eval pages --checks checks.jsonl --model facebook/nougat-base
    """
