"""CUDA C++ compiled as the program runs, by the compiler that torch brings (NVRTC, through cuda-bindings): for kernels
that direct copies to shared memory themselves, which Triton has no words for."""

from __future__ import annotations

import ctypes
import functools
import importlib
import re
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any

import torch
from torch import Tensor

from vlm.ops.kernels.cubins import cached

LINE = 128  # bytes of a row of a box, as CU_TENSOR_MAP_SWIZZLE_128B has them
before_launch: list[Callable[[], None]] = []


class CompileError(RuntimeError):
    """A kernel's source that the compiler refused."""


@functools.cache
def is_there() -> bool:
    """Tells whether CUDA C++ can be compiled and launched: a torch that was built for CUDA in another way may lack
    it."""
    if torch.version.cuda is None:
        return False
    try:
        _checked(_nvrtc().nvrtcVersion())
    except Exception:  # the package or the library is missing: each version says it in its own way
        return False
    return True


@functools.cache
def copies_boxes(device: torch.device) -> bool:
    """Tells whether kernels that copy boxes of memory by themselves run there: from compute capability 9.0 on."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0) and is_there()


@functools.cache
def compiled(source: str, constants: tuple[tuple[str, int | str], ...], architecture: str) -> bytes:
    """Returns the machine code of a file of this folder for an architecture ("sm_90"), its constants defined, from the
    cache where an earlier process compiled it. Raises CompileError."""
    text = _text(source)
    headers = {name: _text(name) for name in re.findall(r'^#include "(.+)"$', text, re.MULTILINE)}
    options = [f"--gpu-architecture={architecture}", *(f"-D{name}={value}" for name, value in constants)]
    _, *version = _nvrtc().nvrtcVersion()
    key = "\n".join((*map(str, version), *options, text, *headers.values()))
    return cached(key, lambda: _compile(source, text, headers, options))


def _text(source: str) -> str:
    return (resources.files("vlm.ops.kernels") / source).read_text()


def _compile(source: str, text: str, headers: Mapping[str, str], options: list[str]) -> bytes:
    """Returns the machine code of the text of a file, which includes these. Raises CompileError."""
    nvrtc = _nvrtc()
    texts, names = ([part.encode() for part in parts] for parts in (headers.values(), headers))
    program = _checked(nvrtc.nvrtcCreateProgram(text.encode(), source.encode(), len(headers), texts, names))
    (result,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    if int(result):
        log = b" " * _checked(nvrtc.nvrtcGetProgramLogSize(program))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise CompileError(f"{source} {' '.join(options)}: {log.decode(errors='replace').strip()}")
    code = b" " * _checked(nvrtc.nvrtcGetCUBINSize(program))
    _checked(nvrtc.nvrtcGetCUBIN(program, code))
    _checked(nvrtc.nvrtcDestroyProgram(program))
    return code


class CudaKernel:
    """A function of a CUDA C++ file on the current device, with so many bytes of shared memory."""

    def __init__(self, source: str, name: str, constants: Mapping[str, int | str], shared: int):
        driver = _driver()
        major, minor = torch.cuda.get_device_capability()
        # "a": with what this architecture alone has, such as the products of groups of warps (gemm.cu)
        code = compiled(source, tuple(sorted(constants.items())), f"sm_{major}{minor}a")
        module = _checked(driver.cuModuleLoadData(code))
        self._function = _checked(driver.cuModuleGetFunction(module, name.encode()))
        most_shared = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _checked(driver.cuFuncSetAttribute(self._function, most_shared, shared))
        # kernels that divide a processor's memory in different ways do not run on it together
        division = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
        _checked(driver.cuFuncSetAttribute(self._function, division, 100))
        self._shared = shared

    def launch(self, grid: tuple[int, int, int], threads: int, *arguments: Any, cluster: int = 1) -> None:
        """Launches programs on the current stream before the kernel ahead has ended (dependent_launch.py), so many of
        which along the grid's first side are a cluster; tensors go as addresses (None: 0), numbers as 32 bits,
        structures as they are. Calls `before_launch` first."""
        for call in before_launch:
            call()
        driver = _driver()
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.sharedMemBytes, config.hStream = self._shared, torch.cuda.current_stream().cuda_stream
        early = driver.CUlaunchAttribute()
        early.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        early.value.programmaticStreamSerializationAllowed = 1
        together = driver.CUlaunchAttribute()
        together.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        together.value.clusterDim.x, together.value.clusterDim.y, together.value.clusterDim.z = cluster, 1, 1
        config.attrs = [early, together] if cluster > 1 else [early]
        config.numAttrs = len(config.attrs)
        values, types = zip(*map(_parameter, arguments), strict=True)
        _checked(driver.cuLaunchKernelEx(config, self._function, (values, types), 0))


def tensor_map(weight: Tensor, rows: int, lines: int) -> Any:
    """Returns the description of a matrix by which boxes of so many rows and lines are copied: [rows, lines · LINE]
    bytes come as [lines, rows, LINE], each 16 bytes laid where those of the rows beside them are in other banks. (CUDA
    driver API, "Tensor Map Object Management".)"""
    d = _driver()
    num_rows, row_bytes = len(weight), weight.stride(0) * weight.element_size()
    sizes, strides = (LINE // 4, num_rows, row_bytes // LINE), (row_bytes, LINE)
    return _checked(
        d.cuTensorMapEncodeTiled(
            d.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_INT32, len(sizes), weight.data_ptr(),
            [d.cuuint64_t(size) for size in sizes], [d.cuuint64_t(stride) for stride in strides],
            [d.cuuint32_t(size) for size in (LINE // 4, rows, lines)], [d.cuuint32_t(1)] * 3,
            d.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE, d.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            d.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            d.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    )  # fmt: skip


def _driver() -> Any:
    return importlib.import_module("cuda.bindings.driver")


def _nvrtc() -> Any:
    return importlib.import_module("cuda.bindings.nvrtc")


def _parameter(argument: Any) -> tuple[Any, Any]:
    """Returns the value and the type of a kernel's parameter; None: the value knows where it lies."""
    if argument is None or isinstance(argument, Tensor):
        return 0 if argument is None else argument.data_ptr(), ctypes.c_void_p
    if isinstance(argument, float):
        return argument, ctypes.c_float
    return argument, ctypes.c_int if isinstance(argument, int) else None


def _checked(answer: tuple[Any, ...]) -> Any:
    """Returns what a call answers beside its result; raises RuntimeError where that is an error."""
    result, *values = answer
    if int(result):
        raise RuntimeError(f"CUDA answered {result.name}")
    return values[0] if values else None
