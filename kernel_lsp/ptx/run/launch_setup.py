"""Configure one launch (kernel, grid, block, cluster, shared memory), and check that a GPU would accept it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernel_lsp.gpu.launch import occupancy
from kernel_lsp.gpu.specs import find_gpu
from kernel_lsp.ptx.compile.emitter import EmittedKernel
from kernel_lsp.ptx.compile.jit import CompiledKernel, LoadedModule
from kernel_lsp.ptx.races.layout import LaunchRaces
from kernel_lsp.ptx.run.buffers import AddressTable, Region
from kernel_lsp.ptx.run.layout import GRID_WORKSPACE_WINDOW, MAX_CLUSTER_BLOCKS, window_base
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


def _find_kernel(loaded: LoadedModule, step: dict[str, Any]) -> CompiledKernel:
    symbol = step.get("symbol") or step["kernel"]
    if symbol not in loaded.kernels:
        raise InvalidRequestError(f"no kernel '{symbol}' in the module; it has {', '.join(loaded.kernels) or 'none'}")
    return loaded.kernels[symbol]


PORTABLE_CLUSTER_BLOCKS = 8
"""Maximum blocks per cluster on every GPU with clusters.
Larger clusters are opt-in (programming guide, thread block clusters)."""


@dataclass(frozen=True)
class ClusterShape:
    """Blocks per cluster along x, y and z.
    Without clusters, each block is its own cluster and `is_explicit` is false."""

    sizes: tuple[int, ...]
    is_explicit: bool

    @property
    def n_blocks(self) -> int:
        return math.prod(self.sizes)


def cluster_shape(kernel: Function, attributes: Mapping[str, int]) -> ClusterShape:
    """Return the shape from ``__cluster_dims__``, or from the launch attribute ``cluster``: blocks along x."""
    if kernel.cluster:
        return ClusterShape(kernel.cluster, is_explicit=True)
    return ClusterShape((attributes.get("cluster", 1), 1, 1), is_explicit="cluster" in attributes)


def invalid_cluster(kernel: Function, attributes: Mapping[str, int], grid: Sequence[int]) -> str:
    """Return why the GPU would refuse the launch, or an empty string."""
    shape, asked = cluster_shape(kernel, attributes), attributes.get("cluster")
    if asked is not None and shape.sizes != (asked, 1, 1):
        return f"cluster={asked}, which are clusters of ({asked}, 1, 1) blocks; __cluster_dims__ says {shape.sizes}"
    if kernel.needs_cluster and not shape.is_explicit:
        return "no cluster; the kernel has __cluster_dims__ without sizes, so the launch must say cluster=N"
    if shape.n_blocks > MAX_CLUSTER_BLOCKS:
        return f"clusters of {shape.n_blocks} blocks; the limit is {MAX_CLUSTER_BLOCKS}"
    if shape.n_blocks > PORTABLE_CLUSTER_BLOCKS and asked is None:
        return (
            f"clusters of {shape.n_blocks} blocks; more than {PORTABLE_CLUSTER_BLOCKS} are not portable and must be "
            f"asked for, with cluster={shape.n_blocks} in the launch"
        )
    if any(n_blocks % size for n_blocks, size in zip(grid, shape.sizes, strict=True)):
        return f"a grid of {tuple(grid)} blocks, which clusters of {shape.sizes} blocks do not divide"
    return ""


WORKSPACE_BYTES = 8
"""Bytes of `struct grid_workspace` (cooperative_groups/details/driver_abi.h), and the offset of the barrier's word."""
GPU = "H200"
"""GPU whose multiprocessors must hold all blocks."""


class GridWorkspace:
    """Hold the driver's memory for one launch, initialised to zero; empty unless the launch is cooperative. Fields that
    it lacks are out of bounds. Its word is watched like a tensor's: signals through it order the blocks' accesses."""

    def __init__(self, table: AddressTable, races: LaunchRaces | None, n_bytes: int) -> None:
        self.data, self._shadow = Region(n_bytes), Region(n_bytes)
        self._records = Region(races.record_bytes(n_bytes) if races else 0)
        base, records = window_base(GRID_WORKSPACE_WINDOW), self._records.address if races else 0
        self.address = base if n_bytes else 0
        """Generic address of the workspace; 0 means that there is none."""
        table.set(GRID_WORKSPACE_WINDOW, base, self.data.address, self._shadow.address, n_bytes, 0, records)

    def close(self) -> None:
        for region in (self.data, self._shadow, self._records):
            region.close()


def invalid_cooperation(n_blocks: int, n_threads: int, n_shared_bytes: int) -> str:
    """Return why a GPU would refuse a cooperative launch of blocks with that many threads and bytes of shared memory,
    or an empty string. PTX does not give registers per thread, so a launch that only registers prevent from fitting
    passes."""
    gpu = find_gpu(GPU)
    resident = occupancy(
        gpu.architecture, n_threads_per_block=n_threads, n_registers=0, shared_bytes=n_shared_bytes
    ).n_blocks
    if n_blocks <= resident * gpu.n_sms:
        return ""
    return (
        f"a cooperative launch of {n_blocks} blocks, which must all run at once; of this size an {GPU} holds "
        f"{resident * gpu.n_sms}: launch fewer, each with more to do"
    )
