"""Share verified kernels across tasks: prompts for a related task show them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pydantic import TypeAdapter

from kernel_lsp.core.model import Noun
from kernel_lsp.core.task import Task
from kernel_lsp.evolve.archive.archive import Archive
from kernel_lsp.evolve.propose.population import KernelText

N_RELATED = 2
MIN_SIMILARITY = 0.3
"""Minimum weighted Jaccard similarity of the operators. Below it two functions share little but additions."""
MAX_INNOVATIONS = 500


class Innovation(Noun):
    """A fully verified kernel. `operators` counts the ATen operators of its task."""

    identity: str
    task: str
    operators: dict[str, int]
    name: str
    thought: str
    time: str
    text: str


INNOVATIONS: TypeAdapter[tuple[Innovation, ...]] = TypeAdapter(tuple[Innovation, ...])


def operators_of(task: Task) -> dict[str, int]:
    """Count the calls of each ATen operator, forward and backward."""
    nodes = (*task.forward.nodes, *(task.backward.nodes if task.backward is not None else ()))
    return dict(sorted(Counter(".".join(node.op.split(".")[:2]) for node in nodes).items()))


def keep_innovation(archive: Archive, innovation: Innovation) -> None:
    """Store it for other tasks; the newest few hundred are kept."""
    with archive.writing() as db:
        db.execute(
            "INSERT OR REPLACE INTO innovations VALUES (?, ?)", (innovation.identity, innovation.model_dump_json())
        )
        db.execute(
            "DELETE FROM innovations WHERE rowid NOT IN (SELECT rowid FROM innovations ORDER BY rowid DESC LIMIT ?)",
            (MAX_INNOVATIONS,),
        )


def related(archive: Archive, task: Task) -> tuple[Innovation, ...]:
    """Return the most similar kernels of other tasks, most similar first."""
    rows = archive.rows("SELECT innovation FROM innovations ORDER BY identity")
    known = [Innovation.model_validate_json(row[0]) for row in rows]
    operators = operators_of(task)
    others = [(similarity(operators, other.operators), other) for other in known if other.task != task.name]
    close = sorted(
        (pair for pair in others if pair[0] >= MIN_SIMILARITY), key=lambda pair: (-pair[0], pair[1].identity)
    )
    return tuple(innovation for _, innovation in close[:N_RELATED])


def similarity(ours: dict[str, int], theirs: dict[str, int]) -> float:
    """Return the weighted Jaccard similarity: shared calls over all calls, 0 to 1."""
    names = ours.keys() | theirs.keys()
    all_calls = sum(max(ours.get(name, 0), theirs.get(name, 0)) for name in names)
    shared = sum(min(ours.get(name, 0), theirs.get(name, 0)) for name in names)
    return shared / all_calls if all_calls else 0.0


def as_kernels(innovations: Sequence[Innovation]) -> list[KernelText]:
    """Convert to the form used in prompts."""
    return [
        KernelText(name=f"{found.task}, {found.name}", time=found.time, thought=found.thought, code=found.text.strip())
        for found in innovations
    ]
