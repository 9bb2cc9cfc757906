"""Loads compiled kernels into this process and runs them on numpy arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kernel_lsp.core.verdict import Built
from kernel_lsp.ptx.executor_process import Session

CUDA_FILE = "kernel.cu"
BF16 = np.dtype("uint16")
_DTYPES = {
    "float64": "f64",
    "float32": "f32",
    "float16": "f16",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint8": "u8",
    "uint16": "bf16",
    "uint32": "i32",
    "uint64": "i64",
    "bool": "bool",
}

CLUSTER = (
    "struct cluster_group { "
    "__device__ unsigned block_rank() { return __clusterRelativeBlockRank(); } "
    "__device__ unsigned num_blocks() { return __clusterSizeInBlocks(); } "
    "__device__ dim3 block_index() { return __clusterRelativeBlockIdx(); } "
    "__device__ dim3 dim_blocks() { return __clusterDim(); } "
    "template <class T> __device__ T* map_shared_rank(T* p, unsigned r) { "
    "return (T*)__cluster_map_shared_rank((void*)p, r); } "
    "__device__ unsigned query_shared_rank(const void* p) { return __cluster_query_shared_rank(p); } "
    "__device__ void barrier_arrive() { __cluster_barrier_arrive(); } "
    "__device__ void barrier_wait() { __cluster_barrier_wait(); } "
    "__device__ void sync() { barrier_arrive(); barrier_wait(); } };"
)
"""Cooperative groups in few lines: their header takes seconds to compile."""

CompileCuda = Callable[..., Built]


@dataclass(frozen=True)
class Scalar:
    """A number argument of a launch."""

    cuda_type: str
    value: float


@dataclass(frozen=True)
class Ran:
    """Result of a run: the answer's report, and every buffer afterwards."""

    answer: dict[str, Any]
    arrays: dict[str, np.ndarray]
    written: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def findings(self) -> list[dict[str, Any]]:
        return self.answer["report"]["findings"]

    @property
    def counters(self) -> dict[str, Any]:
        return self.answer["report"]["counters"][0]

    def finding(self) -> dict[str, Any]:
        """The one finding."""
        assert len(self.findings) == 1, self.findings
        return self.findings[0]


class Executor:
    """A loaded module and its runs."""

    def __init__(self, session: Session, ptx: str, directory: Path, symbols: dict[str, str]) -> None:
        self.session, self.directory, self.symbols = session, directory, symbols
        self.loaded = session.handle({"command": "load", "ptx": ptx, "file_name": CUDA_FILE})

    def run(
        self,
        kernel: str,
        *,
        grid: int | tuple[int, ...] = 1,
        block: int | tuple[int, ...] = 32,
        shared_bytes: int = 0,
        attributes: dict[str, int] | None = None,
        inputs: dict[str, np.ndarray] | None = None,
        outputs: dict[str, np.ndarray] | None = None,
        scratch: dict[str, np.ndarray] | None = None,
        arguments: tuple[Any, ...] | None = None,
        fills: dict[str, float] | None = None,
        **options: Any,
    ) -> Ran:
        """One launch. Arguments are buffer names, ints (as ``int``), floats (as ``float``) or `Scalar`s; without them
        the inputs, outputs and scratch in order."""
        groups = (inputs, outputs, scratch)
        launch = launch_step(self, kernel, grid, block, shared_bytes, arguments, groups)
        return self.run_steps(
            [*fill_steps(fills or {}), {**launch, "attributes": attributes or {}}],
            inputs=inputs,
            outputs=outputs,
            scratch=scratch,
            **options,
        )

    def run_steps(
        self,
        steps: list[dict[str, Any]],
        *,
        inputs: dict[str, np.ndarray] | None = None,
        outputs: dict[str, np.ndarray] | None = None,
        scratch: dict[str, np.ndarray] | None = None,
        offsets: dict[str, int] | None = None,
        **options: Any,
    ) -> Ran:
        assert self.loaded.get("ok"), self.loaded
        arrays: dict[str, np.ndarray] = {}
        buffers = []
        for role, group in (("input", inputs), ("output", outputs), ("scratch", scratch)):
            for name, array in (group or {}).items():
                arrays[name] = array
                path = self.directory / name
                array.tofile(path)
                description = f"{_DTYPES[array.dtype.name]}[{', '.join(map(str, array.shape))}]"
                buffers.append(
                    {
                        "name": name,
                        "path": str(path),
                        "n_bytes": array.nbytes,
                        "role": role,
                        "description": description,
                        "offset_bytes": (offsets or {}).get(name, 0),
                    }
                )
        answer = self.session.handle({"command": "run", "buffers": buffers, "steps": steps, **options})
        after = {
            name: np.fromfile(self.directory / name, dtype=array.dtype).reshape(array.shape)
            for name, array in arrays.items()
        }
        marks = {
            name: np.fromfile(self.directory / f"{name}.written", dtype=np.uint8)
            for name in arrays
            if (self.directory / f"{name}.written").exists()
        }
        return Ran(answer, after, marks)


def fill_steps(fills: dict[str, float]) -> list[dict[str, Any]]:
    return [{"kind": "fill", "tensor": name, "value": value} for name, value in fills.items()]


def launch_step(
    executor: Executor,
    kernel: str,
    grid: int | tuple[int, ...],
    block: int | tuple[int, ...],
    shared_bytes: int,
    arguments: tuple[Any, ...] | None,
    groups: tuple[dict[str, np.ndarray] | None, ...] = (),
) -> dict[str, Any]:
    if arguments is None:
        arguments = tuple(name for group in groups for name in group or {})
    return {
        "kind": "launch",
        "kernel": kernel,
        "symbol": executor.symbols.get(kernel, kernel),
        "grid": _three(grid),
        "block": _three(block),
        "shared_bytes": shared_bytes,
        "arguments": [_argument(argument) for argument in arguments],
    }


def _argument(argument: Any) -> dict[str, Any]:
    if isinstance(argument, str):
        return {"kind": "tensor", "tensor": argument}
    if isinstance(argument, Scalar):
        return {"kind": "scalar", "cuda_type": argument.cuda_type, "value": argument.value}
    return {"kind": "scalar", "cuda_type": "float" if isinstance(argument, float) else "int", "value": argument}


def _three(size: int | tuple[int, ...]) -> tuple[int, ...]:
    sizes = (size,) if isinstance(size, int) else size
    return (*sizes, *(1,) * (3 - len(sizes)))
