"""Merge the launches of an operation: groups of one stage in parallel, or all stages separated by grid barriers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from kernel_lsp.core.expression import Expression
from kernel_lsp.generate.codegen.elements.lines import rotation_axis
from kernel_lsp.generate.codegen.kernel import RenderedKernel
from kernel_lsp.generate.codegen.shared_launch import can_share, share_launch
from kernel_lsp.generate.fusion.groups import (
    ContractionGroup,
    ElementwiseGroup,
    Group,
    RowGroup,
    scalars_of_group,
    written_by,
)
from kernel_lsp.generate.fusion.row_patterns import n_passes
from kernel_lsp.generate.ir.scalar import Loop, accesses, nodes
from kernel_lsp.generate.ir.tensor import Tensor
from kernel_lsp.generate.ir.workload import Workload
from kernel_lsp.generate.schedule.knobs import Choices

EACH, TOGETHER, SMALL, ONE_BLOCK, COOPERATIVE = "each", "together", "small", "one_block", "cooperative"
MAX_SHARED_ELEMENTS = 1 << 23
"""Maximum elements that groups of a stage read and write to share a launch by default, whatever they are: a larger one
may need a block size or a cluster of its own."""
MAX_BLOCK_ELEMENTS = 1 << 12
"""Maximum elements that an operation reads and writes to run in one block by default: a few per thread."""
MAX_OFFERED_BLOCK_ELEMENTS = 1 << 16
BLOCK_THREADS, GRID_THREADS, SMALL_THREADS = 1024, 256, 128
MAX_TINY_ELEMENTS = 1 << 10
"""Maximum elements, a constant number, that an operation reads and writes for `GRID_THREADS` threads in its only block:
four per thread."""
MAX_SMALL_GROUP_ELEMENTS = 1 << 18
"""Maximum elements that a group reads and writes to share a launch with others of its stage beside large groups: it
takes less time than a launch."""
MAX_SMALL_ELEMENTS = 1 << 17
"""Maximum elements that an operation reads and writes for small blocks in a shared grid. The gradients of a linear
layer took 2.7 us on an H200 with 256 threads and 2.1 with 128 for (64, 128) to 128, 5.7 and 5.9 for (64, 1600)."""
ROTATION_THREADS = 128
"""Threads of blocks that rotate: 43.2 us on an H200 with 256, 42.5 us so."""


@dataclass(frozen=True)
class LaunchPlanner:
    """Plans the launches of one operation's groups, given in launch order."""

    operation: str
    groups: tuple[Group, ...]
    choices: Choices
    workload: Workload

    @property
    def stages(self) -> list[list[int]]:
        """Return the positions of groups by stage: the number of groups that must run before them."""
        levels: list[int] = []
        for position, group in enumerate(self.groups):
            read = {access.tensor for access in accesses(*scalars_of_group(group))}
            before = [levels[other] for other in range(position) if read & written_by(self.groups[other])]
            levels.append(1 + max(before, default=-1))
        return [
            [position for position, level in enumerate(levels) if level == stage]
            for stage in range(1 + max(levels, default=-1))
        ]

    def mode(self) -> str:
        """Return the schedule's choice of how groups share launches."""
        modes = self._modes()
        if len(modes) == 1:
            return EACH
        default = self._default_mode(modes)
        return str(self.choices.pick(f"{self.operation}.launches", modes, default, "which groups share a launch"))

    def threads(self, mode: str) -> dict[int, int]:
        """Return the block size of every group that shares a launch, by its position."""
        shared = {position for stage in self._shared(mode) for position in stage}
        if not shared:
            return {}
        everything = range(len(self.groups))
        is_constant = all(tensor.n_elements.constant is not None for tensor in self._tensors(everything))
        is_tiny = is_constant and self._n_elements(everything) <= MAX_TINY_ELEMENTS
        in_one_block = GRID_THREADS if is_tiny else BLOCK_THREADS
        default = in_one_block if mode == ONE_BLOCK else self._grid_threads()
        if mode == TOGETHER and all(self._is_rotation(position) for position in shared):
            default = ROTATION_THREADS
        name = f"{self.operation}.block"
        values = (256, 512, 1024) if mode == ONE_BLOCK else (128, 256, 512)
        threads = self.choices.pick_int(name, values, default, "threads per block of a shared launch")
        return dict.fromkeys(shared, threads)

    def shared_kernels(
        self,
        mode: str,
        kernels: Sequence[RenderedKernel | None],
        new_name: Callable[[str], str],
        index_type: str,
        sizes: Mapping[str, Expression],
        scratch: Collection[str],
    ) -> list[tuple[frozenset[int], RenderedKernel]] | None:
        """Return the launches of several groups, each with their positions; None where a template does not fit.
        `kernels` are those of the groups by position, `scratch` the operation's tensors of its own."""
        found: list[tuple[frozenset[int], RenderedKernel]] = []
        stages = self._shared(mode)
        launches = [stages] if mode in (ONE_BLOCK, COOPERATIVE) else [[stage] for stage in stages]
        for launch in launches:
            positions = [position for stage in launch for position in stage]
            parts = [[kernel for position in stage if (kernel := kernels[position])] for stage in launch]
            flat = [kernel for stage in parts for kernel in stage]
            if len(flat) != len(positions) or not can_share(flat):
                return None
            n_resident = self._n_resident() if mode == COOPERATIVE else 1
            n_blocks = 1 if mode == ONE_BLOCK else self.workload.n_multiprocessors * n_resident
            covers_all = len(positions) == len(self.groups)
            name = new_name(f"{self.operation}_{'all' if covers_all else 'together'}")
            kernel = share_launch(name, parts, n_blocks, n_resident, index_type, sizes, scratch if covers_all else ())
            found.append((frozenset(positions), kernel))
        return found

    def _n_resident(self) -> int:
        """Return the blocks of a cooperative grid per multiprocessor."""
        name = f"{self.operation}.resident"
        return self.choices.pick_int(name, (1, 2, 4), 2, "blocks per multiprocessor of a cooperative grid")

    def _grid_threads(self) -> int:
        is_small = self._n_elements(range(len(self.groups))) <= MAX_SMALL_ELEMENTS
        return SMALL_THREADS if is_small else GRID_THREADS

    def _shared(self, mode: str) -> list[list[int]]:
        """Return the stages of positions that share launches."""
        if mode in (ONE_BLOCK, COOPERATIVE):
            return self.stages
        if mode in (TOGETHER, SMALL):
            may_share = self._is_kernel if mode == TOGETHER else self._is_small
            stages = [[position for position in stage if may_share(position)] for stage in self.stages]
            return [stage for stage in stages if len(stage) > 1]
        return []

    def _modes(self) -> list[str]:
        modes = [EACH]
        if self._shared(TOGETHER):
            modes.append(TOGETHER)
        if (small := self._shared(SMALL)) and small != self._shared(TOGETHER):
            modes.append(SMALL)
        if len(self.groups) > 1 and all(self._is_kernel(position) for position in range(len(self.groups))):
            if self._n_elements(range(len(self.groups))) <= MAX_OFFERED_BLOCK_ELEMENTS:
                modes.append(ONE_BLOCK)
            if len(self.stages) > 1:
                modes.append(COOPERATIVE)
        return modes

    def _default_mode(self, modes: Sequence[str]) -> str:
        everything = range(len(self.groups))
        if ONE_BLOCK in modes and self._n_elements(everything) <= MAX_BLOCK_ELEMENTS:
            return ONE_BLOCK
        if TOGETHER in modes and (self._n_elements(everything) <= MAX_SHARED_ELEMENTS or self._are_plain()):
            return TOGETHER
        return SMALL if SMALL in modes else EACH

    def _are_plain(self) -> bool:
        """Return True if the groups that may share launches read memory once, whatever the size of their blocks. A step
        of AdamW over three tensors took 203.8 us on an H200 by one launch, 208.5 us by three; a gradient's clipping
        98.7 us by three launches, 105.8 us by eight."""
        groups = [self.groups[position] for stage in self._shared(TOGETHER) for position in stage]
        return all(_is_plain(group) for group in groups)

    def _is_rotation(self, position: int) -> bool:
        group = self.groups[position]
        return isinstance(group, ElementwiseGroup) and rotation_axis(group, self.workload) is not None

    def _is_kernel(self, position: int) -> bool:
        """Return True if the group is one kernel without prior steps, and with any block size."""
        group = self.groups[position]
        if isinstance(group, ContractionGroup):
            return group.operand is None
        return isinstance(group, ElementwiseGroup) or (isinstance(group, RowGroup) and not group.line_sums)

    def _is_small(self, position: int) -> bool:
        return self._is_kernel(position) and self._n_elements([position]) <= MAX_SMALL_GROUP_ELEMENTS

    def _n_elements(self, positions: Sequence[int]) -> int:
        """Return the number of elements that the groups read or write at the captured sizes."""
        return sum(self.workload.size(tensor.n_elements) for tensor in self._tensors(positions))

    def _tensors(self, positions: Sequence[int]) -> set[Tensor]:
        """Return the tensors that the groups read or write."""
        tensors: set[Tensor] = set()
        for position in positions:
            group = self.groups[position]
            tensors |= {access.tensor for access in accesses(*scalars_of_group(group))} | written_by(group)
        return tensors


def _is_plain(group: Group) -> bool:
    if isinstance(group, RowGroup):
        return n_passes(group) == 1 and not group.column_sums
    loops = (node for node in nodes(*scalars_of_group(group)) if isinstance(node, Loop))
    return isinstance(group, ElementwiseGroup) and not any(loops)


__all__ = ["COOPERATIVE", "EACH", "ONE_BLOCK", "SMALL", "TOGETHER", "LaunchPlanner"]
