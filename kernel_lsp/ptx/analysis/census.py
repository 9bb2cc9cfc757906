"""Turn execution counts of basic blocks into counts per instruction class.
The content of a block is known statically."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from kernel_lsp.ptx.analysis.kernel_traits import MATRIX_OPCODES
from kernel_lsp.ptx.compile.clusters import is_mapped_access
from kernel_lsp.ptx.compile.matrices import MATRIX_BYTES, loaded_fragment, n_matrices, product_of
from kernel_lsp.ptx.compile.warpgroups import warpgroup_product
from kernel_lsp.ptx.run.layout import WARP_SIZE
from kernel_lsp.ptx.text.flow import Block
from kernel_lsp.ptx.text.syntax import WIDTH_BITS, Instruction

_ARITHMETIC = frozenset(["add", "sub", "mul", "fma", "mad", "min", "max", "neg", "abs"])
_SPECIAL = frozenset(["ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh", "div"])
_FLOATS = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f64")
_VECTOR = {"v2": 2, "v4": 4, "v8": 8}


@dataclass
class Census:
    """Hold counts per thread, named as in `kernel_lsp.core.profile.LaunchCounters`."""

    n_instructions: int = 0
    n_floating_operations: int = 0
    n_special_operations: int = 0
    n_f64_operations: int = 0
    global_load_bytes: int = 0
    global_store_bytes: int = 0
    shared_load_bytes: int = 0
    shared_store_bytes: int = 0
    n_atomics: int = 0
    n_barriers: int = 0
    n_shuffles: int = 0
    n_matrix_operations: int = 0

    def add(self, other: Census, times: int = 1) -> None:
        """Add `other`, multiplied by `times`."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + times * getattr(other, field.name))


@dataclass
class LineCensus:
    """Hold the counts of one line, named as in `kernel_lsp.core.profile.LineCounters`."""

    n_instructions: int = 0
    n_global_requests: int = 0
    n_global_sectors: int = 0
    n_global_accesses: int = 0
    n_global_bytes: int = 0

    def add_site(self, traced: Sequence[int], n_bytes: int) -> None:
        """Count an access on the line: its requests, its sectors and its per-thread accesses of `n_bytes` each."""
        n_requests, n_sectors, n_accesses = traced
        self.n_global_requests += n_requests
        self.n_global_sectors += n_sectors
        self.n_global_accesses += n_accesses
        self.n_global_bytes += n_accesses * n_bytes


def census_of(block: Block, mapped: frozenset[str]) -> Census:
    """Count one execution of the block. `mapped` are the registers of `kernel_lsp.ptx.compile.clusters`."""
    total = Census(n_instructions=block.n_instructions)
    for instruction in block.instructions:
        _count_arithmetic(total, instruction)
        _count_memory(total, instruction, mapped)
        if instruction.opcode in MATRIX_OPCODES:
            _count_matrices(total, instruction)
    return total


def _count_arithmetic(total: Census, instruction: Instruction) -> None:
    kinds = instruction.types()
    if not kinds or kinds[-1] not in _FLOATS:
        return
    lanes = 2 if kinds[-1].endswith("x2") else 1
    n_operations = 0
    if instruction.opcode in _SPECIAL:
        total.n_special_operations += lanes
        n_operations = lanes
    elif instruction.opcode in _ARITHMETIC:
        n_operations = lanes * (2 if instruction.opcode in ("fma", "mad") else 1)
    total.n_floating_operations += n_operations
    if kinds[-1] == "f64":
        total.n_f64_operations += n_operations


def _count_memory(total: Census, instruction: Instruction, mapped: frozenset[str]) -> None:
    opcode = instruction.opcode
    if opcode in ("ld", "ldu", "st"):
        _count_access(total, instruction, mapped)
    elif opcode in ("atom", "red"):
        total.n_atomics += 1
    elif opcode in ("bar", "barrier"):
        # A cluster barrier is an arrive and a wait; only the wait is counted.
        total.n_barriers += not instruction.has("warp") and not (
            instruction.has("cluster") and instruction.has("arrive")
        )
    elif opcode in ("shfl", "vote", "match", "redux"):
        total.n_shuffles += 1
    elif opcode == "cp" and instruction.has("ca", "cg"):
        n_bytes = getattr(instruction.operands[2], "bits", 0)
        total.global_load_bytes += n_bytes
        total.shared_store_bytes += n_bytes


def _count_matrices(total: Census, instruction: Instruction) -> None:
    """Count the thread's share of its warp's matrix instructions."""
    if instruction.opcode in ("ldmatrix", "stmatrix"):
        n_bytes = MATRIX_BYTES * n_matrices(instruction) // WARP_SIZE
        _add_bytes(total, n_bytes, is_load=instruction.opcode == "ldmatrix", is_shared=True)
    elif instruction.opcode == "wmma" and instruction.has("load", "store"):
        n_bytes = loaded_fragment(instruction).n_bytes
        is_shared = instruction.has("shared", "shared__cta")
        _add_bytes(total, n_bytes, is_load=instruction.has("load"), is_shared=is_shared)
    elif instruction.opcode in ("mma", "wmma"):
        shape = product_of(instruction).shape
        total.n_matrix_operations += 2 * shape.m * shape.n * shape.k // WARP_SIZE
    elif instruction.opcode == "wgmma" and instruction.has("mma_async"):
        product = warpgroup_product(instruction)
        shape = product.shape
        total.n_matrix_operations += 2 * shape.m * shape.n * shape.k // WARP_SIZE
        # The four warps of a warpgroup share one read of the columns.
        _add_bytes(total, product.b.n_bytes // 4, is_load=True, is_shared=True)


def _add_bytes(total: Census, n_bytes: int, *, is_load: bool, is_shared: bool) -> None:
    total.shared_load_bytes += n_bytes if is_shared and is_load else 0
    total.shared_store_bytes += n_bytes if is_shared and not is_load else 0
    total.global_load_bytes += n_bytes if not is_shared and is_load else 0
    total.global_store_bytes += n_bytes if not is_shared and not is_load else 0


def _count_access(total: Census, instruction: Instruction, mapped: frozenset[str]) -> None:
    lanes = next((_VECTOR[modifier] for modifier in instruction.modifiers if modifier in _VECTOR), 1)
    n_bytes = WIDTH_BITS[instruction.types()[-1]] // 8 * lanes
    is_load = instruction.opcode != "st"
    if instruction.has("shared", "shared__cta", "shared__cluster") or is_mapped_access(instruction, mapped):
        _add_bytes(total, n_bytes, is_load=is_load, is_shared=True)
    elif not instruction.has("param", "local", "const", "param__func", "param__entry"):
        # Assume global memory for a generic access: compilers usually infer the other state spaces.
        _add_bytes(total, n_bytes, is_load=is_load, is_shared=False)
