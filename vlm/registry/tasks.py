"""What a model that reads an image may be told to do with it: its tasks, and where an output begins for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vlm.errors import InputError, listed

QUESTION = "{question}"


@dataclass(frozen=True)
class TaskPrompts:
    """Where outputs begin."""

    prompts: Mapping[str, str]  # task -> its prompt, in which {question} stands for a question
    default: str | None = None  # the task of inputs that name none

    def prompt(self, task: Any, question: Any) -> str | None:
        """Returns where the output begins; None where nothing is asked for, and no task is the usual one. InputError
        for a task that is unknown, and for a question too many or too few."""
        name = self.default if task is None else task
        if name is None and question is None:
            return None
        if not isinstance(name, str) or name not in self.prompts:
            known = f"this model knows {listed(sorted(self.prompts))}" if self.prompts else "this model has none"
            said = "a question is of a task" if name is None else f"the task is {name!r}"
            raise InputError(f"{said}; {known}.")
        prompt = self.prompts[name]
        if QUESTION not in prompt:
            if question is not None:
                raise InputError(f"task {name!r} takes no question; leave it out.")
            return prompt
        if not isinstance(question, str) or not question.strip():
            raise InputError(f"task {name!r} answers a question; give one beside it.")
        return prompt.replace(QUESTION, question)
