"""Find the user's line behind each node of a graph, and the variable that the line assigns."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..failure import is_user_file

FRAME = re.compile(r'File "(?P<file>.+?)", line (?P<line>\d+), in ')


@dataclass(frozen=True)
class Place:
    """A line of the user's code."""

    file: str
    line: int

    @property
    def text(self) -> str:
        return linecache.getline(self.file, self.line).strip()

    def as_json(self) -> dict[str, Any]:
        return {"file": self.file, "line": self.line, "text": self.text}


class SourceLines:
    """Reads stack traces of nodes, and parses each of the user's files once."""

    def __init__(self) -> None:
        self._statements: dict[str, dict[int, ast.stmt]] = {}

    def of(self, node: Any) -> Place | None:
        """Return the innermost line of the user's own code that made the node."""
        frames = self.frames(node)
        return frames[-1] if frames else None

    def frames(self, node: Any) -> tuple[Place, ...]:
        """Return the user's lines that led to the node, outermost first."""
        trace = node.meta.get("stack_trace") or ""
        places = (Place(match["file"], int(match["line"])) for match in FRAME.finditer(trace))
        return tuple(place for place in places if is_user_file(place.file))

    def user_names(self, nodes: Sequence[Any]) -> dict[str, str]:
        """Return the variable that each of the user's lines assigns, by the name of the line's last node.

        A line that only returns passes its value to the calling line: ``h = self.mlp(x)`` names the value that `mlp`
        returns.
        """
        frames = [self.frames(node) for node in nodes]
        found = {}
        for position, node in enumerate(nodes):
            following = frames[position + 1] if position + 1 < len(nodes) else ()
            name = self._name_assigned(frames[position], following)
            if name is not None:
                found[node.name] = name
        return found

    def _name_assigned(self, frames: tuple[Place, ...], following: tuple[Place, ...]) -> str | None:
        for depth in range(len(frames), 0, -1):
            if frames[:depth] == following[:depth]:
                return None
            statement = self._statement(frames[depth - 1])
            if not isinstance(statement, ast.Return):
                return assigned_name(statement)
        return None

    def _statement(self, place: Place) -> ast.stmt | None:
        if place.file not in self._statements:
            self._statements[place.file] = _statements_by_line(place.file)
        return self._statements[place.file].get(place.line)


def assigned_name(statement: ast.stmt | None) -> str | None:
    """Return ``y`` for ``y = ...``, ``y += ...`` and ``y: T = ...``; None for any other statement."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
    elif isinstance(statement, (ast.AugAssign, ast.AnnAssign)):
        target = statement.target
    else:
        return None
    return target.id if isinstance(target, ast.Name) else None


def _statements_by_line(file: str) -> dict[int, ast.stmt]:
    """Return the innermost statement on each line of a file."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return {}
    found: dict[int, ast.stmt] = {}
    for node in ast.walk(tree):  # breadth first: an inner statement comes after its outer one
        if isinstance(node, ast.stmt):
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                found[line] = node
    return found
