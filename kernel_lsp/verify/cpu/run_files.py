"""The files of one run on the executor: the case's inputs, and outputs and scratch that are poisoned before."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from kernel_lsp.core.plan import BoundFill, BoundLaunch, BoundOperation, BoundStep, BoundTensor, TensorArgument
from kernel_lsp.process.worker_client import CaseFiles, CaseTensor
from kernel_lsp.ptx.executor import WRITTEN_BY_KERNEL, WRITTEN_SUFFIX, BufferFile
from kernel_lsp.verify.oracle.arrays import EXACT_POISON_BYTES, POISON_BYTE, write_poison

MAX_WATCHED_BYTES = 1 << 22
"""Of outputs and scratch."""
NO_PLACES: Mapping[str, int] = {}


class RunFiles:
    """The tensors of one bound operation as files: links to the case's inputs, the rest poisoned and its own."""

    def __init__(self, directory: Path, given: Path, bound: BoundOperation, files: CaseFiles | None) -> None:
        """Without files the inputs are zeros."""
        self.bound, self._files = bound, files
        self._directory, self._given = directory, given
        inputs = [tensor.name for tensor in (files.inputs if files is not None else bound.tensors)]
        self._inputs = {name: given / f"{position}.bin" for position, name in enumerate(inputs)}
        for tensor in files.inputs if files is not None else ():
            os.link(tensor.path, self._inputs[tensor.name])
        for zeros in bound.tensors if files is None else ():
            _write_zeros(self.path(zeros), zeros)
        self.written: set[str] = set()

    @property
    def files(self) -> CaseFiles:
        """Of the case."""
        assert self._files is not None, "zeros are not judged"
        return self._files

    def path(self, tensor: BoundTensor) -> Path:
        """Where a tensor's elements are."""
        return self._inputs[tensor.name] if tensor.role == "input" else self._directory / f"{tensor.name}.bin"

    @property
    def is_small(self) -> bool:
        """Whether who writes each byte of its own tensors can be noted."""
        return sum(tensor.n_bytes for tensor in self._own()) <= MAX_WATCHED_BYTES

    def write_poison(self, seed: int) -> None:
        """What nobody writes is never right by luck."""
        other = EXACT_POISON_BYTES[seed % len(EXACT_POISON_BYTES)]
        for tensor in self._own():
            write_poison(self.path(tensor), tensor.n_bytes, POISON_BYTE if tensor.dtype.is_floating else other)

    def write_zeros(self) -> None:
        """In place of poison, where values are not judged."""
        for tensor in self._own():
            _write_zeros(self.path(tensor), tensor)

    def _own(self) -> Iterator[BoundTensor]:
        return (tensor for tensor in self.bound.tensors if tensor.role != "input")

    def buffers(self, initialised: set[str], places: Mapping[str, int] = NO_PLACES) -> list[BufferFile]:
        """`places` says how far each is moved from where it is aligned best."""
        return [
            BufferFile(
                name=tensor.name,
                path=self.path(tensor),
                n_bytes=tensor.n_bytes,
                role=tensor.role,
                description=f"{tensor.dtype}[{', '.join(map(str, tensor.shape))}]",
                offset_bytes=places.get(tensor.name, 0),
                is_initialised=tensor.name in initialised,
            )
            for tensor in self.bound.tensors
        ]

    def case_tensor(self, name: str) -> CaseTensor:
        """A tensor as the worker is told of it."""
        tensor = self.bound.tensor(name)
        return CaseTensor(name, self.path(tensor), tensor.dtype, tensor.shape)

    def tell_numbers_from_poison(self) -> None:
        """A NaN with all bits set looks like poison, and a kernel gets one by negating that of arithmetic: where
        it was written, its sign goes."""
        for tensor in self._own():
            is_judged = tensor.role == "output" and tensor.dtype.is_floating and tensor.n_elements > 0
            if is_judged and self._marks(tensor).exists():
                bits = np.fromfile(self.path(tensor), dtype=f"u{tensor.dtype.itemsize}")
                ends = np.iinfo(bits.dtype).max
                is_poison = (bits == ends) & self.written_elements(tensor).reshape(-1)
                if is_poison.any():
                    bits[is_poison] = ends >> 1
                    bits.tofile(self.path(tensor))

    def n_written_bytes(self, tensor: BoundTensor) -> int:
        """Of what `written_elements` says, for a tensor that is mostly a hole."""
        n_written, end = 0, 0
        with self._marks(tensor).open("rb") as file:
            while True:
                try:
                    start = os.lseek(file.fileno(), end, os.SEEK_DATA)
                except OSError:  # there is nothing but a hole
                    return n_written
                end = os.lseek(file.fileno(), start, os.SEEK_HOLE)
                shadow = np.frombuffer(os.pread(file.fileno(), end - start, start), dtype=np.uint8)
                n_written += int(np.count_nonzero(shadow & WRITTEN_BY_KERNEL))

    def written_elements(self, tensor: BoundTensor) -> np.ndarray:
        """Which elements the blocks that ran wrote."""
        shadow = np.fromfile(self._marks(tensor), dtype=np.uint8)
        by_kernel = (shadow & WRITTEN_BY_KERNEL) != 0
        return by_kernel.reshape(-1, tensor.dtype.itemsize).all(axis=1).reshape(tensor.shape)

    def _marks(self, tensor: BoundTensor) -> Path:
        return Path(f"{self.path(tensor)}{WRITTEN_SUFFIX}")

    def note_written(self, steps: Sequence[BoundStep]) -> None:
        """What these steps may have written counts as initialised from here on: a later step may read it."""
        for step in steps:
            if isinstance(step, BoundLaunch):
                self.written |= {a.tensor for a in step.arguments if isinstance(a, TensorArgument)}
            elif isinstance(step, BoundFill):
                self.written.add(step.tensor)
            else:
                self.written |= set(step.results)

    def remove(self) -> None:
        """Take the folders away."""
        shutil.rmtree(self._directory, ignore_errors=True)
        shutil.rmtree(self._given, ignore_errors=True)


# --- below


def _write_zeros(path: Path, tensor: BoundTensor) -> None:
    """As a hole: what is not touched takes no space."""
    with path.open("wb") as file:
        file.truncate(tensor.n_bytes)
