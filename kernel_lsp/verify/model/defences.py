"""The defences of a verdict by name, and a switch for each, for tests that show what it detects.

with without("sizes"):
    verdict = await verifier.verify(candidate, "full")

No command, setting or candidate reaches a switch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

SWITCHED = {
    "audit": "reads the PTX for refused constructs",
    "budget": "compares with the fp64 reference within a tolerance of a few roundings",
    "choices": "checks which of several equal elements an index names",
    "coverage": "compares the share that sampled blocks write with their share of the grid; if small, runs all",
    "families": "draws inputs from many distributions, and numbers that the code compares with",
    "guards": "compiles again with guards around local arrays",
    "initialised": "reports reads of memory that nothing has written",
    "interruptions": "interrupts threads before atomic and volatile accesses",
    "nonfinite": "compares NaN and infinities in kind",
    "numbers": "mutates the scalars that a plan takes",
    "orders": "runs threads and blocks in reverse and in random order",
    "patterns": "poisons integers with several bytes",
    "poison": "fills results and scratch with poison before a run",
    "races": "tracks the writer of each byte",
    "sizes": "runs other sizes than the task names",
    "state": "forbids writes to variables in device memory",
    "zeros": "gives negative zeros as inputs",
}
"""The defences with a switch: an attack that names one in `Without:` passes where it is off."""

ALWAYS_ON = {
    "bounds": "checks every access of memory against the arrays of the plan, and that inputs stay unchanged",
    "builds": "compiles for other architectures where the text depends on them",
    "compiler": "refuses text that does not compile, or that has refused constructs",
    "contract": "refuses a plan that does not fit its task, its kernels or its own contract",
    "environment": "places tensors and shared memory elsewhere in each case; keeps lanes apart where the code asks"
    " which are active",
    "labels": "names the vendor's library functions in the verdict",
    "launches": "refuses launches that exceed a GPU's registers, shared memory or resident blocks",
    "limits": "bounds the time and memory of a build and of a run",
    "reference": "compares with PyTorch on the task's own inputs",
    "termination": "reports loops that cannot end, livelocks and divergent barriers",
}
"""The defences without a switch: without them a verdict is nothing, or the kernel cannot run."""

DEFENCES = SWITCHED | ALWAYS_ON
_OFF: ContextVar[frozenset[str]] = ContextVar("defences that are off", default=frozenset())


def is_on(*names: str) -> bool:
    """Check that none of these defences is switched off."""
    return _OFF.get().isdisjoint(names)


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Switch defences off, for what is run and begun inside the block. Raises KeyError for a name without a switch."""
    for name in names:
        _ = SWITCHED[name]
    before = _OFF.set(_OFF.get() | {*names})
    try:
        yield
    finally:
        _OFF.reset(before)
