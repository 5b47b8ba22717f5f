"""What the instructions of `eight_bits.py` make of every value of 8 bits: they are read here as a GPU reads them."""

from __future__ import annotations

import importlib.util
import operator
import re
from collections.abc import Callable

import pytest
import torch

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed on this platform"
)
Registers = dict[str, int]


def prmt(a: int, b: int, selector: int) -> int:
    """Picks four bytes of two numbers; what has its highest bit set stands for the byte's sign."""
    picked = (a | b << 32).to_bytes(8, "little")
    nibbles = [selector >> 4 * i & 15 for i in range(4)]
    return int.from_bytes(bytes(255 * (picked[n & 7] >> 7) if n > 7 else picked[n] for n in nibbles), "little")


def halves(bits: int) -> torch.Tensor:
    return torch.tensor([bits - (bits >> 31 << 32)], dtype=torch.int32).view(torch.float16).clone()


def bits_of(values: torch.Tensor) -> int:
    return int(values.contiguous().view(torch.int32)) & 0xFFFFFFFF


def computed(name: str, kind: str, values: list[int]) -> int:
    """Returns what an instruction makes of its operands."""
    if name == "cvt":
        assert kind == "rn.f16x2.e4m3x2"
        return bits_of(torch.tensor([values[0]], dtype=torch.uint16).view(torch.float8_e4m3fn).half())
    if name == "sub":
        assert kind == "rn.f16x2"
        first, second = (halves(value) for value in values)
        return bits_of(first - second)
    return {"prmt": prmt, "xor": operator.xor, "mov": lambda value: value}[name](*values)


def run(assembly: str, packed: int) -> tuple[int, int]:
    """Returns the two outputs of a function's instructions, whose input is four values of 8 bits."""
    registers: Registers = {"$2": packed}

    def value(operand: str) -> int:
        return registers[operand] if operand in registers else int(operand, 0)

    for line in assembly.split(";"):
        words = line.strip().strip("{}").strip()
        if not words or words.startswith("."):
            continue
        instruction, _, operands = words.partition(" ")
        name, _, kind = instruction.partition(".")
        if operands.startswith("{"):  # a number falls into two
            low, high = re.findall(r"\w+", operands.split("}")[0])
            whole = value(operands.split(",")[-1].strip())
            registers |= {low: whole & 0xFFFF, high: whole >> 16}
            continue
        target, *sources = (operand.strip() for operand in operands.split(","))
        registers[target] = computed(name, kind, [value(source) for source in sources])
    return registers["$0"], registers["$1"]


@pytest.mark.parametrize(
    ("name", "source"),
    [("int8_to_float16", torch.int8), ("_e4m3_to_float16", torch.float8_e4m3fn)],
)
def test_every_value_becomes_the_same_in_float16(name, source):
    from vlm.ops.kernels import eight_bits

    function: Callable = getattr(eight_bits, name)
    assembly = function.src.split('"""{')[1].split('}"""')[0]
    codes = torch.arange(256, dtype=torch.uint8)
    four = torch.stack((codes, codes.flip(0), codes.roll(1), codes.roll(77)), 1)
    want = four.view(source).float()
    packed = four.contiguous().view(torch.int32).flatten().tolist()
    found = torch.cat([
        torch.cat([halves(bits) for bits in run(assembly, number & 0xFFFFFFFF)])[None] for number in packed
    ])  # fmt: skip
    known = ~want.isnan()
    assert known.sum() >= 4 * 254
    assert torch.equal(found.float()[known], want[known])
    assert torch.equal(found.float()[known].signbit(), want[known].signbit())  # of zeros, too
