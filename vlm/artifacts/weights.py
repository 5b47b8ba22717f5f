"""Tensor files (safetensors): read by mmap when asked for, written and hashed in one pass, few tensors in memory.

The format: 8 bytes of header length, a JSON header, the tensors' bytes (https://github.com/huggingface/safetensors).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event, Lock
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vlm.artifacts.files import open_regular
from vlm.artifacts.hashes import ContentHash
from vlm.artifacts.read_ahead import THREADS, read_ahead, settle_threads
from vlm.errors import CheckpointError, VlmError

CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
T = TypeVar("T")
WIDEST = max(dtype.itemsize for dtype in CODES)
Layout = dict[str, tuple[torch.dtype, tuple[int, ...]]]


class TensorFiles(Mapping[str, Tensor]):
    """The tensors of safetensors files under one set of names; a look-up maps the file, it copies nothing on the CPU.

    Of a name in two files the last one counts, as Hugging Face has it. Raises `error` for a file that is missing,
    truncated or not of the format.
    """

    def __init__(self, paths: Iterable[Path], device: Any = "cpu", error: type[VlmError] = CheckpointError):
        self._files: dict[str, Any] = {}
        for path in paths:
            file = _open(path, device, error)
            self._files |= dict.fromkeys(file.keys(), file)

    def __getitem__(self, name: str) -> Tensor:
        return self._files[name].get_tensor(name)

    def __contains__(self, name: object) -> bool:
        return name in self._files  # Mapping's own would read the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def read(self) -> dict[str, Tensor]:
        """Returns all tensors: threads read the file and copy them to a device; on the CPU they are mapped."""
        with ThreadPoolExecutor(THREADS, thread_name_prefix="weights") as pool:
            return dict(zip(self, pool.map(self.__getitem__, self), strict=True))


def _open(path: Path, device: Any, error: type[VlmError]) -> Any:
    try:
        open_regular(path).close()  # the library would wait for a pipe
        return safe_open(path, framework="pt", device=str(device))
    except FileNotFoundError:
        raise error(f"{path} is missing; fetch or convert it again.") from None
    except (SafetensorError, OSError) as reason:
        if isinstance(reason, OSError) and reason.strerror:
            raise error(f"{path} cannot be read: {reason.strerror}.") from None
        if _is_lfs_pointer(path):
            raise error(f"{path} is a Git LFS pointer, not the weights: run `git lfs pull` in its folder.") from None
        raise error(f"{path} is damaged or truncated ({reason}); fetch or convert it again.") from None


def _is_lfs_pointer(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(24) == b"version https://git-lfs."


class PrefixView(Mapping[str, Tensor]):
    """A part of a mapping's names, their prefix removed where they have it; reads as lazily as the mapping does."""

    def __init__(self, tensors: Mapping[str, Tensor], names: Iterable[str], prefix: str, shared_prefix: str = ""):
        """`shared_prefix`: what names lose that lack the prefix"""
        self._tensors = tensors
        self.names = {name.removeprefix(prefix if name.startswith(prefix) else shared_prefix): name for name in names}

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[self.names[name]]

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


class MergedView(Mapping[str, Tensor]):
    """Several mappings as one, each one's names with a prefix before them; reads as lazily as they do."""

    def __init__(self, parts: Mapping[str, Mapping[str, Tensor]]):
        self._places = {f"{prefix}{name}": (part, name) for prefix, part in parts.items() for name in part}

    def __getitem__(self, name: str) -> Tensor:
        part, inner = self._places[name]
        return part[inner]

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


@dataclass(frozen=True)
class TensorSource:
    """Tensors about to be written: what they will be, and how to get each when its turn comes: in any thread."""

    layout: Layout
    read: Callable[[str], Tensor]

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> TensorSource:
        return cls({name: (t.dtype, tuple(t.shape)) for name, t in tensors.items()}, tensors.__getitem__)

    @property
    def nbytes(self) -> int:
        return sum(_nbytes(dtype, shape) for dtype, shape in self.layout.values())

    @property
    def dtype(self) -> torch.dtype:
        """The narrowest type that holds every floating tensor and is computed in."""
        kept = [dtype for dtype, _ in self.layout.values() if dtype.is_floating_point]
        floating = [dtype if dtype.itemsize > 1 else torch.bfloat16 for dtype in kept]  # torch promotes none of 8 bits
        result = floating[0] if floating else torch.float32
        for dtype in floating:
            result = torch.promote_types(result, dtype)
        return result


def write_tensors(path: Path, source: TensorSource, on_bytes: Callable[[int], None] = lambda n: None) -> None:
    """Writes a safetensors file; the same tensors always give the same bytes."""
    with path.open("wb") as file:
        for chunk in _chunks(source, on_bytes):
            file.write(chunk)


def write_hashed(path: Path, source: TensorSource, on_bytes: Callable[[int], None] = lambda n: None) -> dict[str, Any]:
    """Writes one as `write_tensors` does. Returns what manifests keep of it, as vlm.artifacts.hashes.file_entry."""
    with path.open("wb") as file, ContentHash() as content:
        for chunk in _chunks(source, on_bytes):
            hashed = content.update(chunk)
            file.write(chunk)
            wait(hashed)
        return content.entry()


def write_files(
    folder: Path,
    sources: Mapping[str, TensorSource],
    on_bytes: Callable[[int], None],
    *,
    workers: int,
    write: Callable[[Path, TensorSource, Callable[[int], None]], T],
) -> dict[str, T]:
    """Writes a file for each path below a folder, `workers` of them at the same time -> path to what `write` returns:
    `write_tensors` or `write_hashed`."""
    lock, stopped = Lock(), Event()

    def advance(count: int) -> None:
        if stopped.is_set():  # an interrupt does not wait for files as large as a model
            raise CancelledError
        with lock:
            on_bytes(count)

    settle_threads()
    with ThreadPoolExecutor(workers, thread_name_prefix="write") as pool:
        written = {name: pool.submit(write, folder / name, source, advance) for name, source in sources.items()}
        try:
            return {name: future.result() for name, future in written.items()}
        except BaseException:
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _place(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[int, str]:
    """Returns a tensor's place among others, so that each starts at a multiple of its element size: by name, but those
    whose bytes are no multiple of the widest element's come last, the widest first."""
    return (0 if _nbytes(dtype, shape) % WIDEST == 0 else WIDEST - dtype.itemsize + 1), name


def _chunks(source: TensorSource, on_bytes: Callable[[int], None]) -> Iterator[Any]:
    names = sorted(source.layout, key=lambda name: _place(name, *source.layout[name]))
    header, offset = {}, 0
    for name in names:
        dtype, shape = source.layout[name]
        end = offset + _nbytes(dtype, shape)
        header[name] = {"dtype": CODES[dtype], "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for data in read_ahead(partial(_data, source), ((name, _nbytes(*source.layout[name])) for name in names)):
        yield data
        on_bytes(len(data))


@torch.no_grad()
def _data(source: TensorSource, name: str) -> Any:
    """Returns the bytes of one tensor: a numpy array."""
    tensor = source.read(name)
    assert (tensor.dtype, tuple(tensor.shape)) == source.layout[name], name
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def _nbytes(dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    return dtype.itemsize * math.prod(shape)
