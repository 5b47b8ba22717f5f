"""Tuned prompts by tasks: a folder of .npy files with their names, one .npy file, whose tasks have numbers alone, or
the folder that PEFT saves of one, which is the task's name.

tasks.json  0.npy  1.npy  …
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlm.artifacts.archives import check_no_archive
from vlm.artifacts.files import atomic_dir, open_regular, read_json
from vlm.artifacts.hugging_face import peft_folder
from vlm.errors import CheckpointError, InputError, VlmError, listed

if TYPE_CHECKING:
    import numpy as np

TASKS, FORMAT_VERSION = "tasks.json", 1
WHAT = "folder of tuned prompts"
NOT_FINITE = "NaN or infinity among its rows; give finite floats, as they were tuned"


@dataclass(frozen=True, eq=False)
class TunedPrompt:
    """Rows that go before a text, and what goes after it, as both were tuned."""

    rows: np.ndarray  # [n, hidden] float32
    name: str = ""
    template: str = ""  # how its texts were made
    suffix: str = ""
    ends: bool = False  # the end token comes last


@dataclass(frozen=True)
class PromptTables:
    """The tuned prompts of a file or folder."""

    path: Path
    prompts: tuple[TunedPrompt, ...]

    @classmethod
    def open(cls, path: str | Path, label: str | None = None) -> PromptTables:
        """Reads tuned prompts; InputError for what holds none. `label`: what errors begin with."""
        path = Path(path)
        label = label or str(path)
        if is_tables(path):
            return cls(path, tuple(_named(path)))
        if (path / peft_folder.FILE).is_file():
            return cls(path, (TunedPrompt(_of_peft(path, label), path.absolute().name),))
        if not path.is_file():
            what = f"is a folder without {TASKS}" if path.is_dir() else "does not exist"
            raise InputError(
                f"{label} {what}; give a .npy file, or a folder that vlm convert wrote, or PEFT, of tuned prompts."
            )
        array = _read(path, label)
        if array.ndim not in (2, 3):
            raise _misshaped(array, label, "[tasks, rows, hidden] or [rows, hidden]")
        return cls(path, tuple(TunedPrompt(_unpadded(rows)) for rows in (array if array.ndim == 3 else array[None])))

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def names(self) -> list[str]:
        """Returns the names of the tasks, in the order of their numbers; none of a .npy file."""
        return [prompt.name for prompt in self.prompts if prompt.name]

    def find(self, task: str | int) -> TunedPrompt | None:
        """Returns the tuned prompt of a task's name or number, from 0 on; None where there is none."""
        if task in self.names:
            return self.prompts[self.names.index(str(task))]
        number = int(task) if str(task).isdecimal() and len(str(task)) < 10 else -1
        return self.prompts[number] if 0 <= number < len(self) else None

    def check_width(self, width: int) -> None:
        """Raises InputError for tuned prompts of a model whose embeddings have another width."""
        if other := next((prompt.rows.shape[1] for prompt in self.prompts if prompt.rows.shape[1] != width), None):
            raise InputError(
                f"the tuned prompts in {self.path} are rows of {other} values, this model takes rows of {width}; give"
                " those that were tuned with it."
            )

    @property
    def known(self) -> str:
        """Returns which tasks there are, in words."""
        numbers = f"0 to {len(self) - 1}" if len(self) > 1 else "0 alone"
        return f"{listed(self.names, 40)} ({numbers})" if self.names else numbers


def write_tables(out: Path, base: str, prompts: Iterable[TunedPrompt]) -> PromptTables:
    """Writes a folder that `PromptTables.open` reads, whole or not at all; `base`: the model that they are for."""
    import numpy as np

    prompts = tuple(prompts)
    with atomic_dir(out, is_tables, WHAT, CheckpointError) as draft:
        for number, prompt in enumerate(prompts):
            np.save(draft / f"{number}.npy", prompt.rows)
        keys = ("name", "template", "suffix", "ends")
        tasks = [{key: getattr(prompt, key) for key in keys} for prompt in prompts]
        content = {"format_version": FORMAT_VERSION, "base": base, "tasks": tasks}
        (draft / TASKS).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return PromptTables(out, prompts)


def is_tables(path: Path) -> bool:
    """Says whether a folder is one that `write_tables` writes."""
    return os.path.isfile(path / TASKS)  # of os.path, which raises for no name, however long


def _named(folder: Path) -> Iterable[TunedPrompt]:
    tasks = read_json(folder / TASKS, InputError, WHAT).get("tasks")
    if not isinstance(tasks, list) or not tasks or not all(isinstance(task, dict) for task in tasks):
        raise InputError(f"{folder / TASKS} is damaged: it lists no tasks; convert the tuned prompts again.")
    for number, task in enumerate(tasks):
        file = folder / f"{number}.npy"
        array = _read(file, str(file))
        if array.ndim != 2:
            raise _misshaped(array, str(file), "[rows, hidden]")
        texts = {key: str(task.get(key, "")) for key in ("name", "template", "suffix")}
        yield TunedPrompt(array, ends=bool(task.get("ends")), **texts)


def _unpadded(rows: Any) -> Any:
    """Returns rows [n, hidden] up to the last one that is not zeros, with which TensorRT-LLM's nemo_prompt_convert.py
    makes all tasks of a file as long as the longest; all of them where none is."""
    tuned = rows.any(axis=1).nonzero()[0]
    return rows[: tuned[-1] + 1] if tuned.size else rows


def _of_peft(folder: Path, label: str) -> Any:
    rows = peft_folder.tuned_rows(folder, label).numpy()
    _check_finite(rows, label)
    return rows


def _read(file: Path, label: str) -> Any:
    """Reads finite floats as float32. Raises InputError for a file of anything else."""
    import numpy as np

    try:
        # not np.load, which takes archives and pickles for arrays as well
        with open_regular(file) as data:
            array = np.lib.format.read_array(data, allow_pickle=False)
    except FileNotFoundError:
        raise InputError(f"{label} is missing; convert the tuned prompts again.") from None
    except PermissionError:
        raise InputError(f"{label} cannot be read: permission denied.") from None
    except Exception:  # a header may end in any of them
        check_no_archive(file, label, InputError)
        raise InputError(f"{label} is no .npy file of numbers; write it with numpy.save.") from None
    if not np.issubdtype(array.dtype, np.floating) or not array.size:
        raise _misshaped(array, label, "[tasks, rows, hidden] or [rows, hidden]")
    with np.errstate(over="ignore"):  # what float32 cannot hold is named below
        rows = array.astype(np.float32)
    _check_finite(rows, label)
    return rows


def _check_finite(rows: Any, label: str) -> None:
    import numpy as np

    if not np.isfinite(rows).all():
        raise InputError(f"{label} holds {NOT_FINITE}.")


def _misshaped(array: Any, label: str, shape: str) -> VlmError:
    return InputError(f"{label} is {array.dtype} of shape {list(array.shape)}; give floats {shape}.")
