"""Configure one launch (kernel, grid, block, cluster, shared memory), and check that a GPU would accept it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from kernel_lsp.ptx.analysis.cluster_shape import ClusterShape, cluster_shape, invalid_cluster
from kernel_lsp.ptx.compile.emitter import EmittedKernel
from kernel_lsp.ptx.compile.jit import CompiledKernel, LoadedModule
from kernel_lsp.ptx.run.cooperative_grid import WORKSPACE_BYTES, invalid_cooperation
from kernel_lsp.ptx.run.run_request import InvalidRequestError
from kernel_lsp.ptx.text.syntax import Function

MAX_THREADS_PER_BLOCK = 1024  # every GPU since Fermi
MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_SHARED_BYTES = 227 * 1024  # sm_90


@dataclass(frozen=True)
class LaunchSetup:
    """Hold a launch configuration. `step` is the `BoundLaunch` as JSON. `n_shared` are the static and dynamic bytes as
    laid out here. A launch `is_clustered` when its blocks may access each other's shared memory."""

    kernel: CompiledKernel
    function: Function
    step: dict[str, Any]
    grid: tuple[int, ...]
    block: tuple[int, ...]
    attributes: dict[str, int]
    cluster: ClusterShape
    is_clustered: bool
    n_shared: int

    @property
    def emitted(self) -> EmittedKernel:
        return self.kernel.emitted

    @property
    def name(self) -> str:
        """Return the kernel's name in the plan."""
        return str(self.step["kernel"])

    @property
    def is_cooperative(self) -> bool:
        """Check whether all blocks are co-resident and may wait for each other."""
        return self.attributes.get("cooperative", 0) != 0

    @property
    def n_workspace_bytes(self) -> int:
        """Return the bytes of the driver's workspace for the launch."""
        return WORKSPACE_BYTES if self.is_cooperative else 0

    @property
    def n_threads(self) -> int:
        """Return the threads per block."""
        return math.prod(self.block)

    @property
    def n_blocks(self) -> int:
        return math.prod(self.grid)

    @property
    def n_shared_on_gpu(self) -> int:
        """Return static and dynamic bytes without the gaps between variables."""
        return self.emitted.shared.n_static_bytes + int(self.step["shared_bytes"])


def launch_setup(loaded: LoadedModule, step: dict[str, Any]) -> LaunchSetup:
    """Return the setup of a step. Raises InvalidRequestError for a kernel that the module lacks."""
    kernel = _find_kernel(loaded, step)
    function = loaded.module.functions[kernel.emitted.name]
    attributes = dict(step.get("attributes") or {})
    cluster = cluster_shape(function, attributes)
    return LaunchSetup(
        kernel=kernel,
        function=function,
        step=step,
        grid=tuple(step["grid"]),
        block=tuple(step["block"]),
        attributes=attributes,
        cluster=cluster,
        is_clustered=kernel.emitted.uses_clusters or cluster.n_blocks > 1,
        n_shared=kernel.emitted.shared.n_laid_out_bytes + step["shared_bytes"],
    )


def invalid_launch(setup: LaunchSetup) -> str:
    """Return why the GPU would refuse the launch, or an empty string."""
    allowed = setup.function.max_threads or MAX_THREADS_PER_BLOCK
    if setup.n_threads > min(allowed, MAX_THREADS_PER_BLOCK):
        return f"a block of {setup.n_threads} threads; this kernel allows {min(allowed, MAX_THREADS_PER_BLOCK)}"
    if any(size > limit for size, limit in zip(setup.grid, MAX_GRID, strict=True)):
        return f"a grid of {setup.grid} blocks; the limit is {MAX_GRID}"
    n_shared = setup.n_shared_on_gpu
    if n_shared > MAX_SHARED_BYTES:
        return f"{n_shared} bytes of shared memory; a block can have {MAX_SHARED_BYTES}"
    if setup.is_cooperative and (problem := invalid_cooperation(setup.n_blocks, setup.n_threads, n_shared)):
        return problem
    return invalid_cluster(setup.function, setup.attributes, setup.grid)


# --- below


def _find_kernel(loaded: LoadedModule, step: dict[str, Any]) -> CompiledKernel:
    symbol = step.get("symbol") or step["kernel"]
    if symbol not in loaded.kernels:
        raise InvalidRequestError(f"no kernel '{symbol}' in the module; it has {', '.join(loaded.kernels) or 'none'}")
    return loaded.kernels[symbol]
