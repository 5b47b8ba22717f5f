"""Compiles what the cases of `kernel_cases` launch, for a GPU that need not be there.

`python -O -m tests.kits.kernels.compiled_kernels add_lora rotate` prints each case's name and how many kernels it has.
Nothing runs, so what would look at results is off: `-O` leaves assertions out.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.nn.functional as F
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

CAPABILITY = (9, 0)
DTYPE = torch.bfloat16
# cases whose scores are made in the default type
FLOAT32_STATE = ("append_likeliest", "append_sampled", "beam_search", "penalize", "w8a8")
OPTIONS = ("num_warps", "num_stages", "launch_pdl")
POINTERS = {
    torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float8_e4m3fn: "*fp8e4nv",
    torch.bool: "*i1", torch.uint8: "*u8", torch.int8: "*i8", torch.int16: "*i16", torch.int32: "*i32",
    torch.int64: "*i64",
}  # fmt: skip
ALIGNED = [["tt.divisibility", 16]]  # what Triton knows of an address or a number that 16 divides
Signature = tuple[dict[str, str], dict[tuple[int], Any], dict[tuple[int], Any]]


def signature(kernel: Any, values: dict[str, Any]) -> Signature:
    """Returns the types of a launch's arguments, those that are constants, and what is known of the others."""
    types: dict[str, str] = {}
    constants: dict[tuple[int], Any] = {}
    known: dict[tuple[int], Any] = {}
    for i, parameter in enumerate(kernel.params):
        name, value = parameter.name, values.get(parameter.name, parameter.default)
        is_general = parameter.do_not_specialize
        if parameter.is_constexpr or value is None or (type(value) is int and value == 1 and not is_general):
            types[name], constants[i,] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            types[name], known[i,] = POINTERS[value.dtype], ALIGNED
        elif isinstance(value, bool):
            types[name] = "i1"
        elif isinstance(value, int):
            types[name] = "i32" if abs(value) < 2**31 else "i64"
            known |= {(i,): ALIGNED} if value % 16 == 0 and not is_general else {}
        else:
            types[name] = "fp32"
    return types, constants, known


def compile_launches(seen: set[str]) -> None:
    """Lets every launch compile its kernel instead, once for each signature, which is then among those `seen`."""
    target = GPUTarget("cuda", 10 * CAPABILITY[0] + CAPABILITY[1], 32)

    def run(self: Any, *arguments: Any, grid: Any, warmup: Any, **constants: Any) -> None:
        options = {name: constants.pop(name) for name in OPTIONS if name in constants}
        found = signature(self, dict(zip(self.arg_names, arguments, strict=False)) | constants)
        if (key := repr((self, found, options))) in seen:
            return
        seen.add(key)
        triton.compile(ASTSource(self, *found), target=target, options=options)

    JITFunction.run = run


def leave_results_alone() -> None:
    """Lets references compute in any type, and nobody compare."""
    torch.testing.assert_close = lambda *_, **__: None
    attend = F.scaled_dot_product_attention

    def attend_in_one_type(q: torch.Tensor, *others: Any, attn_mask: Any = None, **options: Any) -> torch.Tensor:
        like = lambda x: x.to(q.dtype) if torch.is_tensor(x) and x.is_floating_point() else x  # noqa: E731
        return attend(q, *map(like, others), attn_mask=like(attn_mask), **options)

    F.scaled_dot_product_attention = attend_in_one_type


def main(names: list[str]) -> None:
    seen: set[str] = set()
    torch.cuda.is_available = lambda: True
    torch.cuda.get_device_capability = lambda *_: CAPABILITY  # kernels start before those ahead of them end
    compile_launches(seen)
    leave_results_alone()
    from tests.kits.kernels import kernel_cases

    for name in names:
        own = torch.float32 if name in FLOAT32_STATE else DTYPE
        torch.set_default_dtype(own)
        kernel_cases.KINDS = (own, *kernel_cases.KINDS[1:])
        torch.manual_seed(0)
        seen.clear()
        kernel_cases.CASES[name](torch.device("cpu"))
        print(name, len(seen), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
