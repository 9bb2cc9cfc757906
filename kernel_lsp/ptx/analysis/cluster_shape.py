"""Determine the cluster shape of a launch, and why a GPU would refuse it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernel_lsp.ptx.run.layout import MAX_CLUSTER_BLOCKS
from kernel_lsp.ptx.text.syntax import Function

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
