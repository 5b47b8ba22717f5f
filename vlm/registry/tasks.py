"""What a model that reads an image may be told to do with it: its tasks, and where an output begins for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vlm.errors import InputError, listed
from vlm.requests.answer_form import AnswerForm

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


@dataclass(frozen=True)
class PromptTasks(TaskPrompts):
    """Tasks that a model is told of in its prompt, which is of one image: in words, for which people write a mark,
    `<OD>`, and behind it what the task is about."""

    answer: Callable[[str, AnswerForm], str] = lambda text, form: text  # what it wrote -> what users read

    def name(self, task: Any) -> Any:
        """Returns a task's name as the model's publisher writes it: `od` and `<OD>` are OD."""
        return task.strip("<> ").upper() if isinstance(task, str) else task

    def read(self, prompt: str) -> tuple[str | None, str]:
        """Returns the task that a prompt marks, None where it marks none, and the rest of it."""
        task = next((task for task in self.prompts if f"<{task}>" in prompt), None)
        return task, prompt if task is None else prompt.replace(f"<{task}>", "").strip()
