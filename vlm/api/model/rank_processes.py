"""The processes that run one engine together: started by mpirun, torchrun or srun, or by the first of them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch

from vlm import __version__
from vlm.api.model.following import follow_first_rank
from vlm.artifacts.native.engine_dir import EngineDir
from vlm.artifacts.native.manifest import MANIFEST
from vlm.backends.devices import of_rank, resolve_device
from vlm.config import RuntimeConfig
from vlm.errors import EngineError, VlmError
from vlm.interrupts import blocked_interrupts
from vlm.parallel.agreement import check_agreement
from vlm.parallel.collectives import Ranks
from vlm.parallel.environment import Meeting, rank_among
from vlm.parallel.process_group import connect, file_store
from vlm.registry.networks import mapping_of

SECONDS_TO_END = 30
SECONDS_TO_NOTICE = 1.0  # that the first rank has gone, whose connections may end before its pipes do
READY = b"1"  # what a process that was started writes once it can be connected


@dataclass
class RankProcesses:
    """The ranks of an engine as its first one sees them, and the processes of those that it has started itself."""

    ranks: Ranks
    runtime: RuntimeConfig  # of this rank
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def kill(self) -> None:
        """Ends them at once."""
        _end(self.processes)

    def close(self) -> None:
        """Waits for the others, which have been told to end; those that do not are killed."""
        for process in self.processes:
            try:
                process.wait(SECONDS_TO_END)
            except subprocess.TimeoutExpired:
                process.kill()
        _end(self.processes)


def begin(engine: EngineDir, runtime: RuntimeConfig, meeting: Meeting | None = None) -> RankProcesses:
    """Connects the ranks of an engine whose networks are split. Of those that mpirun, torchrun or srun has started all
    but the first never return: they follow it, and exit. `meeting`: where they have met already. Raises EngineError and
    InputError."""
    size = engine.build.num_ranks
    if (own := rank_among(size, engine.path)) is None:
        return _with_own_processes(engine, runtime, size)
    runtime = of_rank(runtime, own.local_rank, own.size)
    store = own.store() if meeting is None else meeting.store
    ranks = _connected(store, engine, own.rank, runtime, local=False)
    if own.rank:
        follow_first_rank(engine, runtime, ranks)
        raise SystemExit(0)
    return RankProcesses(ranks, runtime)


def _with_own_processes(engine: EngineDir, runtime: RuntimeConfig, size: int) -> RankProcesses:
    devices = [of_rank(runtime, rank, size) for rank in range(size)]
    with tempfile.TemporaryDirectory(prefix="vlm-ranks-") as folder:
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(1, size):
                processes.append(_start((engine, devices[rank], rank, size), folder))
            _take_device(devices[0])  # while the others take theirs
            _wait_until_ready(processes)
            ranks = _connected(_store(folder, size), engine, 0, devices[0], local=True)
        except BaseException:
            _end(processes)
            raise
    for process in processes:
        threading.Thread(target=_abort_after, args=(process, ranks), daemon=True).start()
    return RankProcesses(ranks, devices[0], processes)


def _wait_until_ready(processes: list[subprocess.Popen[bytes]]) -> None:
    """Waits for ranks 1 and up to have taken their devices. Raises EngineError for one that has ended."""
    for rank, process in enumerate(processes, 1):
        assert process.stdout is not None
        if process.stdout.read(1) != READY:
            size = len(processes) + 1
            raise EngineError(f"rank {rank} of {size} ended while it was started; what it said stands above.")


def _abort_after(process: subprocess.Popen[bytes], ranks: Ranks) -> None:
    """Waits for a rank to end; where it was not told to, ends what waits for it: a GPU would do so for ever."""
    if process.wait() != 0:
        ranks.abort()


def _connected(store: Any, engine: EngineDir, rank: int, runtime: RuntimeConfig, *, local: bool) -> Ranks:
    ranks = connect(store, mapping_of(engine, rank), device=_take_device(runtime), local=local)
    manifest = hashlib.sha256((engine.path / MANIFEST).read_bytes()).hexdigest()[:12]  # it has the hashes of all files
    check_agreement(ranks.hosts, {"vlm": __version__, "torch": str(torch.__version__), "the engine": manifest})
    return ranks


def _take_device(runtime: RuntimeConfig) -> torch.device:
    """Returns this process's device, which it can use from here on."""
    device = resolve_device(runtime.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def _store(folder: str, size: int) -> Any:
    return file_store(str(Path(folder) / "ranks"), size)


def _start(arguments: Any, folder: str) -> subprocess.Popen[bytes]:
    """Starts one rank, which ends when its standard input does, and lets no `folder` behind then."""
    command = [sys.executable, "-m", "vlm.api.model.rank_processes", folder]
    with blocked_interrupts(multiprocessing=False):
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended already, which is found when it is not ready
        pickle.dump(arguments, process.stdin)
        process.stdin.flush()
    return process


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()  # those that have ended stay so
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # of what it has not read
                pipe.close()


def _main() -> NoReturn:
    """Is one rank, as the first one has started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the first one's
    folder = sys.argv[1]
    try:
        engine, runtime, rank, size = pickle.load(sys.stdin.buffer)
    except EOFError:  # the first one has gone
        shutil.rmtree(folder, ignore_errors=True)
        raise SystemExit(1) from None
    # a store's file that cannot be made is tried for minutes, and no thread runs meanwhile: its folder is there then
    folder_in_use = threading.Lock()
    watch = threading.Thread(target=_end_with_input, args=(folder, folder_in_use), daemon=True)
    watch.start()
    try:
        _take_device(runtime)  # what ends here is found at once, later only by those that wait for it
        with contextlib.suppress(BrokenPipeError):  # likewise, which the thread finds
            sys.stdout.buffer.write(READY)
            sys.stdout.flush()
        with folder_in_use:
            store = _store(folder, size)  # kept to the end, when its file has gone: it would be looked for otherwise
        ranks = _connected(store, engine, rank, runtime, local=True)
        follow_first_rank(engine, runtime, ranks)
    except VlmError as error:
        watch.join(SECONDS_TO_NOTICE)  # the first one may have gone: then this one ends there, without a word
        print(f"vlm: rank {rank} of {size}: {error}", file=sys.stderr, flush=True)
        os._exit(1)  # Python's own end would wait for minutes where the store's file has gone, and let no thread run
    raise SystemExit(0)


def _end_with_input(folder: str, folder_in_use: threading.Lock) -> None:
    while os.read(sys.stdin.fileno(), 1):  # without Python's buffer, whose lock would outlive the other threads
        pass
    with folder_in_use:
        shutil.rmtree(folder, ignore_errors=True)  # which the first one removes, unless it was killed amid the start
        os.kill(os.getpid(), signal.SIGKILL)  # the first one has gone, and what waits for it does not return


if __name__ == "__main__":
    _main()
