"""Knobs of the kernels of attention: their names, values and defaults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernel_lsp.generate.codegen.attention.attention import (
    AttentionRenderer,
    default_attention_schedule,
    is_valid_attention_schedule,
)
from kernel_lsp.generate.codegen.attention.attention_gradients import (
    GradientRenderer,
    default_gradient_schedule,
    is_valid_gradient_schedule,
)
from kernel_lsp.generate.codegen.attention.attention_tiles import TileSchedule
from kernel_lsp.generate.codegen.attention.warpgroup_attention import (
    REGISTERS,
    WarpgroupAttentionRenderer,
    are_tiles_filled,
    blocks_of_queries,
    warpgroup_schedules,
)
from kernel_lsp.generate.codegen.attention.warpgroup_gradients import (
    WarpgroupGradientRenderer,
    are_tiles,
    blocks_of_queries_of,
    warpgroup_gradient_schedule,
)
from kernel_lsp.generate.codegen.kernel import KernelWriter, RenderedKernel
from kernel_lsp.generate.fusion.groups import AttentionGradientGroup, AttentionGroup
from kernel_lsp.generate.ir.workload import HOPPER, Workload
from kernel_lsp.generate.schedule.knobs import Choices

_GRADIENT_COMMENTS = {
    "statistics": "Finds the logarithm of the sum of exponentials of each query's scores, and the sum of its "
    "probabilities times their gradients.",
    "query": "Finds the gradients of queries: those of scores times keys.",
    "key": "Finds the gradients of keys and values: those of scores times queries, and probabilities times those of "
    "the result.",
}


def choose_attention(
    kernel: KernelWriter,
    group: AttentionGroup,
    choices: Choices,
    workload: Workload,
) -> tuple[RenderedKernel, bool]:
    """Return the kernel of an attention, and True if its schedule is supported as it was chosen."""
    pick = choices.pick_int
    of_groups = warpgroup_schedules(group) if workload.capability == HOPPER else ()
    name = kernel.name
    if group.log_sums is not None:  # as the gradients that read them: `wgmma` and `mma.sync` need not round alike
        name = kernel.tensor_names[group.log_sums.tensor]
        of_groups = of_groups if are_tiles(group.value.dtype, group.head, group.n) else ()
    if of_groups:
        fills = blocks_of_queries(group, of_groups[0], workload) >= workload.n_multiprocessors
        fills &= group.log_sums is not None or are_tiles_filled(group, of_groups[0], workload)
        if pick(f"{name}.warpgroups", (0, 1), int(fills), "four warps multiply together, by wgmma"):
            return _by_warpgroups(kernel, group, choices, of_groups), True
    default = default_attention_schedule(group, workload)
    schedule = TileSchedule(
        pick(f"{kernel.name}.warps", (1, 2, 4, 8), default.warps, "warps per block, of 16 queries each"),
        pick(f"{kernel.name}.keys", (16, 32, 64, 128), default.columns, "keys per tile"),
        pick(f"{kernel.name}.resident", (1, 2), default.resident, "blocks that registers leave room for"),
    )
    is_valid = is_valid_attention_schedule(group, schedule)
    used = schedule if is_valid else default
    comment = (
        f"Blocks of {used.warps * 16} queries, 16 per warp, go over the keys, {used.columns} at a time. Scores stay in"
        " registers; weights are relative to the largest score so far, to which the sums are scaled."
    )
    return AttentionRenderer(kernel, group, used).render(comment), is_valid


def _by_warpgroups(
    kernel: KernelWriter, group: AttentionGroup, choices: Choices, schedules: Sequence[TileSchedule]
) -> RenderedKernel:
    values = tuple(schedule.columns for schedule in schedules)
    keys = choices.pick_int(f"{kernel.name}.keys", values, values[0], "keys per tile")
    used = next((schedule for schedule in schedules if schedule.columns == keys), schedules[0])
    used = _with_copying(kernel, choices, used)
    comment = (
        f"Blocks of {used.warps * 16} queries go over the keys, {used.columns} at a time: three TF32 products stand for"
        " one of f32. Scores stay in registers; weights are relative to the largest score so far, to which the sums"
        " are scaled."
    )
    return WarpgroupAttentionRenderer(kernel, group, used).render(comment)


def _with_copying(kernel: KernelWriter, choices: Choices, schedule: TileSchedule) -> TileSchedule:
    copying = choices.pick_int(f"{kernel.name}.copying", tuple(REGISTERS), schedule.copying, "warps that copy tiles")
    return replace(schedule, copying=copying)


def choose_gradient(
    kernel: KernelWriter,
    group: AttentionGradientGroup,
    choices: Choices,
    workload: Workload,
) -> tuple[RenderedKernel, bool]:
    """Return a kernel of the gradients of an attention, and True if its schedule is supported as it was chosen."""
    pick = choices.pick_int
    of_groups = warpgroup_gradient_schedule(group) if workload.capability == HOPPER else None
    if of_groups and _uses_warpgroups(kernel, group, choices, workload):
        of_groups = _with_copying(kernel, choices, of_groups)
        comment = (
            f"{_GRADIENT_COMMENTS[group.kind]} Blocks of {of_groups.warps * 16} go over the others, "
            f"{of_groups.columns} at a time: three TF32 products stand for one of f32; scores are computed again."
        )
        return WarpgroupGradientRenderer(kernel, group, of_groups).render(comment), True
    default = default_gradient_schedule(group, workload)
    rows, columns = ("queries", "keys") if group.is_by_query else ("keys", "queries")
    schedule = TileSchedule(
        pick(f"{kernel.name}.warps", (1, 2, 4, 8), default.warps, f"warps per block, of 16 {rows} each"),
        pick(f"{kernel.name}.columns", (16, 32, 64, 128), default.columns, f"{columns} per tile"),
    )
    is_valid = is_valid_gradient_schedule(group, schedule)
    used = schedule if is_valid else default
    comment = (
        f"{_GRADIENT_COMMENTS[group.kind]} Blocks of {used.warps * 16} {rows}, 16 per warp, go over the {columns}, "
        f"{used.columns} at a time; scores are computed again and stay in registers."
    )
    return GradientRenderer(kernel, group, used).render(comment), is_valid


def _uses_warpgroups(
    kernel: KernelWriter,
    group: AttentionGradientGroup,
    choices: Choices,
    workload: Workload,
) -> bool:
    """Decide for all kernels that share the statistics: `wgmma` and `mma.sync` need not round alike, and where scores
    are large, probabilities are the exponential of their difference."""
    knob = f"{kernel.tensor_names[group.statistics[0].tensor]}.warpgroups"
    fills = blocks_of_queries_of(group, workload) >= workload.n_multiprocessors
    return bool(choices.pick_int(knob, (0, 1), int(fills), "four warps multiply together, by wgmma"))
