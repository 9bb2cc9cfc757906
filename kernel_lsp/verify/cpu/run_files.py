"""The files of one run on the executor: the case's inputs, and poisoned outputs and scratch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from kernel_lsp.core.plan import BoundFill, BoundLaunch, BoundOperation, BoundStep, BoundTensor, TensorArgument
from kernel_lsp.process.case_files import CaseFiles, CaseTensor
from kernel_lsp.ptx.executor import WRITTEN_BY_KERNEL, WRITTEN_SUFFIX, BufferFile, written_ranges
from kernel_lsp.verify.model.defences import is_on
from kernel_lsp.verify.oracle.arrays import EXACT_POISON_BYTES, POISON_BYTE, write_poison

MAX_WATCHED_BYTES = 1 << 22
"""Maximum bytes of outputs and scratch for which the writer of each byte is tracked."""
NO_PLACES: Mapping[str, int] = {}


class RunFiles:
    """The tensors of one bound operation as files. Inputs are links to the case's; the rest is poisoned."""

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
        """Return the case's files."""
        assert self._files is not None, "zeros are not judged"
        return self._files

    def path(self, tensor: BoundTensor) -> Path:
        """Return the file of a tensor's elements."""
        return self._inputs[tensor.name] if tensor.role == "input" else self._directory / f"{tensor.name}.bin"

    @property
    def is_small(self) -> bool:
        """Check whether the run's own tensors are small enough to track the writer of each byte."""
        return is_on("races") and sum(tensor.n_bytes for tensor in self._own()) <= MAX_WATCHED_BYTES

    def write_poison(self, seed: int) -> None:
        """Poison outputs and scratch, so that an element that is never written cannot pass by chance."""
        other = EXACT_POISON_BYTES[seed % len(EXACT_POISON_BYTES)] if is_on("patterns") else POISON_BYTE
        for tensor in self._own():
            byte = POISON_BYTE if tensor.dtype.is_floating else other
            write_poison(self.path(tensor), tensor.n_bytes, byte if is_on("poison") else 0)

    def zeros(self) -> list[BufferFile]:
        """Zero outputs and scratch, where values are not judged, and return the buffers: all memory is initialised."""
        for tensor in self._own():
            _write_zeros(self.path(tensor), tensor)
        return self.buffers({tensor.name for tensor in self.bound.tensors})

    def _own(self) -> Iterator[BoundTensor]:
        return (tensor for tensor in self.bound.tensors if tensor.role != "input")

    def buffers(self, initialised: set[str], places: Mapping[str, int] = NO_PLACES) -> list[BufferFile]:
        """Return the buffers of a run. `places` moves each from its best-aligned address, in bytes."""
        return [
            BufferFile(
                name=tensor.name,
                path=self.path(tensor),
                n_bytes=tensor.n_bytes,
                role=tensor.role,
                description=f"{tensor.dtype}[{', '.join(map(str, tensor.shape))}]",
                offset_bytes=places.get(tensor.name, 0),
                is_initialised=tensor.name in initialised or not is_on("initialised"),
            )
            for tensor in self.bound.tensors
        ]

    def case_tensor(self, name: str) -> CaseTensor:
        """Return a tensor as the worker's requests describe it."""
        tensor = self.bound.tensor(name)
        return CaseTensor(name, self.path(tensor), tensor.dtype, tensor.shape)

    def tell_numbers_from_poison(self) -> None:
        """Clear the sign of written NaNs with all bits set: they look like poison. A kernel gets one by negating an
        arithmetic NaN."""
        for tensor in self._own():
            is_judged = tensor.role == "output" and tensor.dtype.is_floating and tensor.n_elements > 0
            if is_judged and self._marks(tensor).exists():
                bits = np.fromfile(self.path(tensor), dtype=f"u{tensor.dtype.itemsize}")
                ends = np.iinfo(bits.dtype).max
                is_poison = bits == ends
                if is_poison.any():
                    bits[is_poison & self.written_elements(tensor).reshape(-1)] = ends >> 1
                    bits.tofile(self.path(tensor))

    def n_written_bytes(self, tensor: BoundTensor) -> int:
        """Return the number of written bytes, for a sparse file."""
        n_written = 0
        for start, stop in written_ranges(self.path(tensor)):
            shadow = np.fromfile(self._marks(tensor), np.uint8, stop - start, offset=start)
            n_written += int(np.count_nonzero(shadow & WRITTEN_BY_KERNEL))
        return n_written

    def written_elements(self, tensor: BoundTensor) -> np.ndarray:
        """Return the mask of elements that the blocks wrote."""
        size = tensor.dtype.itemsize
        shadow, of_all = np.fromfile(self._marks(tensor), f"u{size}"), int.from_bytes([WRITTEN_BY_KERNEL] * size)
        return ((shadow & of_all) == of_all).reshape(tensor.shape)

    def _marks(self, tensor: BoundTensor) -> Path:
        return Path(f"{self.path(tensor)}{WRITTEN_SUFFIX}")

    def note_written(self, steps: Sequence[BoundStep]) -> None:
        """Mark what these steps may have written as initialised: a later step may read it."""
        for step in steps:
            if isinstance(step, BoundLaunch):
                self.written |= {a.tensor for a in step.arguments if isinstance(a, TensorArgument)}
            elif isinstance(step, BoundFill):
                self.written.add(step.tensor)
            else:
                self.written |= set(step.results)


def _write_zeros(path: Path, tensor: BoundTensor) -> None:
    """Write a sparse file: untouched pages take no space."""
    with path.open("wb") as file:
        file.truncate(tensor.n_bytes)
