"""NVIDIA's Triton Inference Server itself, out of PyPI's wheel of PyTriton, with exported repositories."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

WHEEL = "nvidia-pytriton==0.7.0"  # holds Triton 2.51 with its Python backend
NUMPY = "numpy>=1.26,<2"  # that backend dies on BYTES tensors of NumPy 2
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
DEADLINE = 600  # seconds; loading takes some ten on a machine that has nothing else to do


@dataclass(frozen=True)
class Triton:
    """A server's files, and the environment that its Python models run in."""

    root: Path  # of the unpacked wheel
    python: Path  # a virtual environment

    @classmethod
    def fetched(cls, folder: Path) -> Triton:
        """Unpacks it below a folder. Skips the test where PyPI or a wheel for this machine cannot be had."""
        root, python = folder / "wheel", folder / "environment"
        _pip("download", "--no-deps", "--dest", folder, WHEEL)
        with zipfile.ZipFile(next(folder.glob("nvidia_pytriton-*.whl"))) as wheel:
            wheel.extractall(root)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", python], check=True)
        packages = python / "lib" / f"python{PYTHON}" / "site-packages"
        _pip("install", "--no-deps", "--target", packages, NUMPY)
        others = [path for path in sys.path if path.endswith("-packages")]
        lines = [f"import site; site.addsitedir({path!r})" for path in others]  # our packages, behind its NumPy
        (packages / "others.pth").write_text("\n".join(lines) + "\n")
        made = cls(root, python)
        made._put_stub()
        return made

    @property
    def _server(self) -> Path:
        return self.root / "pytriton" / "tritonserver"

    def _put_stub(self) -> None:
        """The process that runs Python models, in its place for this version of Python."""
        stub = self._server / "python_backend_stubs" / PYTHON / "triton_python_backend_stub"
        if not stub.is_file():
            pytest.skip(f"{WHEEL} has no Python backend for Python {PYTHON}")
        target = Path(shutil.copy(stub, self._server / "backends" / "python"))
        for file in (target, self._server / "bin" / "tritonserver"):
            file.chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        """Returns the variables of an activated environment."""
        libraries = f"{self.root / 'nvidia_pytriton.libs'}:{sysconfig.get_config_var('LIBDIR')}"
        path = f"{self.python / 'bin'}:{os.environ['PATH']}"
        return {**os.environ, "VIRTUAL_ENV": str(self.python), "PATH": path, "LD_LIBRARY_PATH": libraries}

    @contextlib.contextmanager
    def serving(self, repository: Path, log: Path) -> Iterator[tuple[str, str]]:
        """Loads all models of a repository: the addresses for HTTP and gRPC. It must end with SIGTERM."""
        http, grpc = _free_ports(2)
        line = [
            self._server / "bin" / "tritonserver", "--model-repository", repository, "--allow-metrics", "false",
            "--backend-directory", self._server / "backends", "--http-port", str(http), "--grpc-port", str(grpc),
            "--http-address", "127.0.0.1", "--grpc-address", "127.0.0.1", "--exit-timeout-secs", str(DEADLINE),
        ]  # fmt: skip
        with log.open("wb") as output:
            process = subprocess.Popen(line, env=self.environment, stdout=output, stderr=output)
        try:
            _wait(process, f"http://127.0.0.1:{http}/v2/health/ready", log)
            yield f"127.0.0.1:{http}", f"127.0.0.1:{grpc}"
            process.terminate()
            assert process.wait() == 0, _end(log)
        finally:
            process.kill()


def _pip(*arguments: object) -> None:
    line = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *map(str, arguments)]
    result = subprocess.run(line, capture_output=True, text=True)
    if result.returncode:
        pytest.skip(f"{arguments[-1]} cannot be had here: {result.stderr.strip().splitlines()[-1]}")


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _wait(process: subprocess.Popen, url: str, log: Path) -> None:
    end = time.monotonic() + DEADLINE
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(urllib.error.URLError, OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.5)
    raise AssertionError(f"Triton did not start:\n{_end(log)}")


def _end(log: Path) -> str:
    return log.read_text(errors="replace")[-8000:]
