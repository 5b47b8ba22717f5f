"""Prompts through a model, in their order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vlm_app.cli.profiling import tokens_of
from vlm_app.text.job import TextJob

if TYPE_CHECKING:
    from vlm_app.text.sources import Item

    from vlm.pipeline import Output


class PromptJob(TextJob):
    """Writes each output on a line; that of a lone prompt as it is."""

    def __init__(self, *arguments: Any, alone: bool, **options: Any):
        super().__init__(*arguments, **options)
        self.alone = alone

    def _write(self, item: Item, result: Output | str | None) -> None:
        if result is None or isinstance(result, str):
            super()._write(item, result)
            return
        if self.as_json:
            super()._write(item, result)
            self.report.tokens += tokens_of([result]) - len(result.token_ids)
            return
        self.report.tokens += tokens_of([result])
        outputs = [result.text, *(other.text for other in result.alternatives)]
        whole = self.alone and len(outputs) == 1
        for text in outputs:
            print(text if whole else " ".join(text.splitlines()), file=self.out, flush=True)
