"""Find the blocks of constant size that a file launches its kernels with, in its plan or its host code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from kernel_lsp.core.expression import Constant, Expression, evaluate_int
from kernel_lsp.core.plan import Launch, LaunchPlan
from kernel_lsp.source.host_launches import host_launches, number_of, size_parts

_TEMPLATE = re.compile(r"<.*>")


@dataclass(frozen=True, slots=True)
class LaunchedBlock:
    """One launch of a kernel. `template` has its arguments as written, ``<64>``, empty without; `dynamic_bytes` is its
    dynamic shared memory per block."""

    template: str
    n_threads: int
    dynamic_bytes: int = 0


def base_name(kernel: str) -> str:
    """Return the name of ``ns::rows<256>(float*)`` alone: ``rows``."""
    return kernel.split("<")[0].split("(")[0].split("::")[-1].split()[-1] if kernel.strip() else kernel


def launched_blocks(text: str, plan: LaunchPlan | None) -> dict[str, tuple[LaunchedBlock, ...]]:
    """Return the distinct blocks of each kernel, by its name without namespaces and template arguments."""
    found: dict[str, dict[LaunchedBlock, None]] = {}
    for kernel, block in _of_plan(plan) if plan is not None else _of_host(text):
        found.setdefault(base_name(kernel), {})[block] = None
    return {kernel: tuple(blocks) for kernel, blocks in found.items()}


def blocks_of_instance(instance: str, blocks: Sequence[LaunchedBlock]) -> tuple[LaunchedBlock, ...]:
    """Return the launches of one instance, such as ``fill<64>``; all of them where none is written like it."""
    template = _TEMPLATE.search(instance.replace(" ", ""))
    own = tuple(block for block in blocks if template is not None and block.template == template[0])
    return own or tuple(blocks)


def _of_plan(plan: LaunchPlan) -> Iterator[tuple[str, LaunchedBlock]]:
    for step in (step for operation in plan.operations for step in operation.steps):
        if isinstance(step, Launch) and all(isinstance(size, Constant) for size in (*step.block, step.shared_bytes)):
            sizes = [evaluate_int(size, {}) for size in step.block]
            yield step.kernel, _block(step.template_arguments, prod(sizes), evaluate_int(step.shared_bytes, {}))


def _of_host(text: str) -> Iterator[tuple[str, LaunchedBlock]]:
    for launch in host_launches(text) if "<<<" in text else ():
        parts = size_parts(launch.sizes[1], launch.defined) if launch.sizes[1:] else ()
        sizes = [number_of(part, launch.defined) for part in parts]
        shared = number_of(launch.sizes[2], launch.defined) if launch.sizes[2:] else 0
        known = [size for size in sizes if size is not None]
        if known and len(known) == len(sizes) and shared is not None:
            yield launch.kernel, _block(launch.template, prod(known), shared)


def _block(template: Sequence[Expression | str], n_threads: int, dynamic_bytes: int) -> LaunchedBlock:
    arguments = ",".join(str(each).replace(" ", "") for each in template)
    return LaunchedBlock(f"<{arguments}>" if arguments else "", n_threads, dynamic_bytes)
