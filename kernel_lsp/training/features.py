"""Random schedules of a program, and their features: what the cost model and the policy see.

All sizes are logarithms to base 2, so that a weight means "per doubling". Nothing depends on names of the user's code
or of kernels; several kernels of one program add up or take their maximum.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from kernel_lsp.core.digest import SHORT_DIGITS, sha256_of
from kernel_lsp.core.expression import evaluate_int, parse
from kernel_lsp.core.operators import is_a
from kernel_lsp.core.plan import BoundLaunch, BoundLibraryStep, BoundOperation
from kernel_lsp.core.task import Task
from kernel_lsp.plan.binding import bind
from kernel_lsp.plan.parser import parse_or_raise
from kernel_lsp.plan.renaming import chained_backward
from kernel_lsp.source.cuda import kernel_signatures

Schedule = Mapping[str, int | str]

N_CHANGES = (1, 1, 2, 2, 3, 4, 6)
"""Numbers of knobs that differ from the default, drawn with equal probability: half are neighbours of the default."""
MAX_DRAWS_PER_SCHEDULE = 12
"""Maximum renderings per schedule; failures are invalid combinations or known texts."""


class KnobLike(Protocol):
    """One choice of a schedule."""

    @property
    def name(self) -> str: ...
    @property
    def values(self) -> Sequence[int | str]: ...
    @property
    def default(self) -> int | str: ...


class RealizedLike(Protocol):
    """A rendered schedule, with only the choices that affect the text."""

    @property
    def schedule(self) -> Mapping[str, int | str]: ...
    @property
    def knobs(self) -> Sequence[KnobLike]: ...
    @property
    def text(self) -> str: ...
    @property
    def is_valid(self) -> bool: ...


class SchedulableProgram(Protocol):
    """Interface of a generated program. A knob missing in a schedule has its default."""

    def realize(self, schedule: Schedule) -> RealizedLike: ...


def draw_schedules(program: SchedulableProgram, n: int, seed: int | str) -> list[RealizedLike]:
    """Return the default and up to `n` - 1 random valid schedules with distinct texts; fewer from a small space."""
    draw = random.Random(f"schedules:{seed}")
    default = program.realize({})
    found = {default.text: default}
    for _ in range(n * MAX_DRAWS_PER_SCHEDULE):
        if len(found) >= n:
            break
        realized = _drawn(program, default, draw)
        if realized.is_valid:
            found.setdefault(realized.text, realized)
    return list(found.values())


def _drawn(program: SchedulableProgram, default: RealizedLike, draw: random.Random) -> RealizedLike:
    """Change several knobs, one at a time: a choice of structure brings knobs of its own."""
    realized = default
    for _ in range(draw.choice(N_CHANGES)):
        mutable = [knob for knob in realized.knobs if len(knob.values) > 1]
        if not mutable:
            break
        knob = draw.choice(mutable)
        value = draw.choice([value for value in knob.values if value != realized.schedule[knob.name]])
        changed = program.realize({**realized.schedule, knob.name: value})
        realized = changed if changed.is_valid else realized
    return realized


N_MULTIPROCESSORS = 132
"""Multiprocessors of the GPU that was measured (H100, H200)."""
THREADS_PER_MULTIPROCESSOR = 2048
SHARED_BYTES_PER_MULTIPROCESSOR = 227 * 1024

NUMERIC_KNOBS = (
    *("threads", "rows", "vector", "unroll", "blocks", "split", "items", "cluster", "stages", "step", "sharing"),
    *("tile_m", "tile_n", "tile_k", "warps_m", "warps_n", "thread_m", "thread_n", "warps", "keys", "resident", "block"),
    *("cached", "streaming", "online", "staged", "chain", "warpgroups", "planes", "lines", "chained", "inlined"),
)
"""Numeric knobs by the last part of their name. Others count by the features of their text and launches."""
CATEGORIES = {
    "contraction": ("direct", "rows", "tiled", "split_warps", "register_tiles", "tensor_cores", "library"),
    "launches": ("each", "one_block", "cooperative"),
    "place": ("own_kernel", "every_block"),
    "attention": ("online", "products"),
}
"""Knobs of structure, and their values."""
TILED_KNOBS = ("box", "tile", "sums")
"""Knobs whose values are sizes of a tile: ``1x4x1x2``, ``16x8_4x2``."""
HEAVY_KINDS = ("reduction", "row", "loss", "scan", "product", "vector_product", "convolution", "attention", "pool")
"""Kinds of operators that decide which templates a graph needs; a family of tasks is a set of them."""
KINDS = ("pointwise", *HEAVY_KINDS)
TOKENS = ("__syncthreads", "mma.sync", "wgmma", "cp.async", "__shfl", "atomic", "for (", "__shared__", "float4")
"""Words of CUDA text whose counts distinguish templates."""


def schedule_features(realized: RealizedLike, task: Task) -> dict[str, float]:
    """Return the features of a schedule alone, without zeros. Raises PlanError for a text that cannot be bound."""
    return nonzero({**knob_features(realized), **launch_features(realized.text, task)})


def nonzero(features: Mapping[str, float]) -> dict[str, float]:
    """Return the features that are not 0, with 4 digits behind the point: files keep these."""
    return {name: round(value, 4) for name, value in features.items() if round(value, 4)}


def candidate_features(
    of_task: Mapping[str, float], of_schedule: Mapping[str, float], of_default: Mapping[str, float]
) -> dict[str, float]:
    """Return all that a model sees of a schedule: its task, itself, and the differences from the default schedule."""
    names = dict.fromkeys([*of_schedule, *of_default])
    changes = {f"change.{name}": of_schedule.get(name, 0.0) - of_default.get(name, 0.0) for name in names}
    n_changes = sum(abs(value) > 1e-9 for value in changes.values())
    return {**of_task, **of_schedule, **changes, "n_changes": float(n_changes)}


def task_features(task: Task) -> dict[str, float]:
    """Return the features of the graphs: sizes of tensors, work of products, and calls by kind of operator."""
    sizes = {symbol.name: symbol.captured for symbol in task.symbols}
    shapes = _captured_shapes(task)
    elements = [math.prod(shape) for shape in shapes.values()]
    nodes = [node for graph in task.graphs for node in graph.nodes]
    outputs = [out.type for graph in task.graphs for out in graph.outputs if out.type is not None]
    n_out = [math.prod(_size(text, sizes) for text in each.shape) for each in outputs]
    row = max((shape[-1] for shape in shapes.values() if shape), default=1)
    found = {
        "task.inputs": log2(sum(elements)),
        "task.largest": log2(max(elements, default=1)),
        "task.outputs": log2(sum(n_out)),
        "task.row": log2(row),
        "task.nodes": log2(len(nodes)),
        "task.bytes_per_element": float(max((t.type.dtype.itemsize for t in task.tensors), default=4)),
    }
    return found | {f"task.{kind}": log2(sum(is_a(node.op, kind) for node in nodes)) for kind in KINDS}


def knob_features(realized: RealizedLike) -> dict[str, float]:
    """Return the choices: mean logarithm of each numeric knob over the kernels that have it, and shares of values."""
    by_name: dict[str, list[int | str]] = {}
    knobs: Mapping[str, KnobLike] = {knob.name: knob for knob in realized.knobs}
    for name, value in realized.schedule.items():
        if name in knobs and len(knobs[name].values) > 1:
            by_name.setdefault(name.rsplit(".", 1)[-1], []).append(value)
    found = {f"knob.{name}": _mean(log2(_number(v)) for v in by_name.get(name, ())) for name in NUMERIC_KNOBS}
    for name, values in CATEGORIES.items():
        chosen = by_name.get(name, [])
        found |= {f"knob.{name}.{value}": _mean(float(v == value) for v in chosen) for value in values}
    for name in TILED_KNOBS:
        tiles = [_tile(str(value)) for value in by_name.get(name, ())]
        found[f"knob.{name}.area"] = _mean(log2(math.prod(tile)) for tile in tiles)
        found[f"knob.{name}.last"] = _mean(log2(tile[-1]) for tile in tiles)
    return found


def launch_features(text: str, task: Task) -> dict[str, float]:
    """Return the features of the bound launches at the captured sizes, and of the text."""
    operations = _bound(text, task)
    steps = [step for operation in operations for step in operation.steps]
    launches = [step for step in steps if isinstance(step, BoundLaunch)]
    scratch = sum(t.n_bytes for o in operations for t in o.scratch)
    elements = sum(t.n_elements for o in operations for t in o.tensors if t.role != "scratch")
    threads = sum(each.n_blocks * each.n_threads_per_block for each in launches)
    found = {
        "launch.n": float(len(launches)),
        "launch.library": float(sum(isinstance(step, BoundLibraryStep) for step in steps)),
        "launch.threads": log2(threads),
        "launch.elements_per_thread": log2(elements) - log2(threads),
        "launch.scratch_bytes": log2(scratch),
        "launch.cooperative": float(any(each.attributes.get("cooperative") for each in launches)),
        "launch.cluster": max((log2(each.attributes.get("cluster", 1)) for each in launches), default=0.0),
    }
    shapes: dict[str, Callable[[BoundLaunch], float]] = {
        "blocks": lambda each: log2(each.n_blocks),
        "block_threads": lambda each: log2(each.n_threads_per_block),
        "shared_bytes": lambda each: log2(each.shared_bytes),
        "waves": _waves,
    }
    for name, shape in shapes.items():
        found[f"launch.{name}"] = max(map(shape, launches), default=0.0)
        found[f"launch.{name}.least"] = min(map(shape, launches), default=0.0)
    found |= {f"text.{token}": log2(text.count(token)) for token in TOKENS}
    return found | {"text.length": log2(len(text))}


def log2(value: float) -> float:
    """Return the logarithm of a count to base 2, shifted so that 0 stays 0."""
    return math.log2(1.0 + max(0.0, value))


def graph_hash(task: Task) -> str:
    """Return a hash of the operators and their dependences: equal for the same graph at other sizes."""
    rows = []
    for graph in task.graphs:
        places = {name: place for place, name in enumerate((*graph.inputs, *(node.name for node in graph.nodes)))}
        rows += [[node.op, *(places.get(name, -1) for name in node.reads)] for node in graph.nodes]
    return sha256_of(json.dumps(rows), SHORT_DIGITS)


def family(task: Task) -> str:
    """Return the kinds of heavy operators in the graph, e.g. ``product+reduction``; ``pointwise`` where it has none."""
    nodes = [node for graph in task.graphs for node in graph.nodes]
    return "+".join(kind for kind in HEAVY_KINDS if any(is_a(node.op, kind) for node in nodes)) or "pointwise"


def _waves(launch: BoundLaunch) -> float:
    """Return the logarithm of the waves of blocks, by threads and dynamic shared memory."""
    per_multiprocessor = max(1, THREADS_PER_MULTIPROCESSOR // launch.n_threads_per_block)
    if launch.shared_bytes:
        per_multiprocessor = max(1, min(per_multiprocessor, SHARED_BYTES_PER_MULTIPROCESSOR // launch.shared_bytes))
    return math.log2(launch.n_blocks / (per_multiprocessor * N_MULTIPROCESSORS))


def _bound(text: str, task: Task) -> list[BoundOperation]:
    plan, signatures = parse_or_raise(text, "schedule.cu"), kernel_signatures(text)
    shapes = _captured_shapes(task)
    scalars = {scalar.name: scalar.value for scalar in task.scalars}
    sizes = {symbol.name: symbol.captured for symbol in task.symbols}
    for output in task.forward.outputs:
        if output.type is not None:
            shapes[f"grad_{output.name}"] = tuple(_size(each, sizes) for each in output.type.shape)
    found = []
    for operation in (plan.forward, chained_backward(plan)):
        if operation is not None:
            names = [parameter.name for parameter in operation.parameters]
            given = {name: shapes[name] for name in names if name in shapes}
            bound = bind(operation, given, {n: v for n, v in scalars.items() if n in names}, signatures)
            found.append(bound.timed)
    return found


def _captured_shapes(task: Task) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arguments at the capture."""
    sizes = {symbol.name: symbol.captured for symbol in task.symbols}
    return {t.name: tuple(_size(each, sizes) for each in t.type.shape) for t in task.tensors}


def _size(text: str, sizes: Mapping[str, int]) -> int:
    return evaluate_int(parse(text), sizes)


def _tile(value: str) -> list[int]:
    """Return the sizes in ``16x8_4x2``."""
    return [int(part) for part in value.replace("_", "x").split("x") if part.isdigit()] or [1]


def _number(value: int | str) -> float:
    return float(value) if isinstance(value, int) else 0.0


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else 0.0
