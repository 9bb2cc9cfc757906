"""A block of C++ statements within a kernel, and the scope of its names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Self

from kernel_lsp.generate.codegen.kernel import KernelWriter
from kernel_lsp.generate.codegen.operators import ATOM, Text
from kernel_lsp.generate.identifiers import NamePool
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.scalar import Scalar

INDENT = "    "


class Block:
    """Statements at one depth. Names of an outer block are visible in an inner one."""

    def __init__(self, kernel: KernelWriter, parent: Self | None = None, depth: int = 1) -> None:
        self.kernel, self.parent, self.depth = kernel, parent, depth
        self.lines: list[str] = parent.lines if parent else []
        self.named: dict[bytes, Text] = {}
        self.variables: dict[Variable, Text] = {}
        self.names: NamePool = parent.names.child() if parent else kernel.names
        self._optional: tuple[int, str] | None = None
        self._opener: Self | None = parent

    def line(self, text: str = "") -> None:
        """Append one line of text at this depth."""
        self.lines.append(f"{INDENT * self.depth}{text}" if text else "")

    def open(self, *headers: str, closes_this: bool = False) -> Self:
        """Open a block after each header, one in the other, and return the innermost. `with` closes them at the end of
        its statements, else `close` does, and this block, too, with `closes_this`. A header with # is a line before,
        an empty one opens a plain block."""
        block = self
        for header in headers:
            if header.startswith("#"):
                block.line(header)
            else:
                block.line(f"{header} {{".lstrip())
                block = type(self)(self.kernel, block, block.depth + 1)
        block._opener = self._opener if closes_this else self
        return block

    def unroll(self, *headers: str) -> Self:
        """Open unrolled loops, one in the other, and return the innermost."""
        return self.open(*(line for header in headers for line in ("#pragma unroll", header)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()

    def declare_if_used(self, name: str, declaration: str) -> None:
        """Append the declaration of a block's first name; `close` removes it if no later line has the name."""
        self._optional = (len(self.lines), name)
        self.line(declaration)

    def close(self) -> None:
        """Close this block, and those that were opened with it."""
        self._end()
        if self.parent is not None and self.parent is not self._opener:
            self.parent._opener = self._opener
            self.parent.close()

    def _end(self) -> None:
        if self._optional is not None:
            index, name = self._optional
            if not any(re.search(rf"\b{name}\b", line) for line in self.lines[index + 1 :]):
                del self.lines[index]
        self.lines.append(f"{INDENT * (self.depth - 1)}}}")

    def declare(self, wanted: str, type_: str, text: str, *, is_const: bool = True) -> str:
        """Declare a named value; return its name."""
        name = self.names.take(wanted)
        self.line(f"{'const ' if is_const else ''}{type_} {name} = {text};")
        return name

    def define(self, variable: Variable, text: str | Text) -> None:
        """Set the text of an index variable for the rest of the block."""
        self.variables[variable] = text if isinstance(text, Text) else Text(text, ATOM)

    def bind(self, scalar: Scalar, text: str | Text) -> None:
        """Set the text of a scalar for the rest of the block."""
        self.named[scalar.digest] = text if isinstance(text, Text) else Text(text, ATOM)

    def lookup(self, digest: bytes) -> Text | None:
        """Return the text of the scalar or index with that digest; None when it has no name in scope."""
        return next((block.named[digest] for block in self._enclosing() if digest in block.named), None)

    def variable_text(self, variable: Variable) -> Text:
        """Return the text of an index variable. Raises KeyError for a variable without a value in scope."""
        for block in self._enclosing():
            if variable in block.variables:
                return block.variables[variable]
        raise KeyError(f"the index variable {variable.name} has no value in {self.kernel.name}")

    def knows(self, variables: Iterable[Variable]) -> bool:
        """Return True if every variable has a value in scope."""
        known = set().union(*(block.variables for block in self._enclosing()))
        return known.issuperset(variables)

    def _enclosing(self) -> Iterator[Block]:
        """Yield this block and its enclosing blocks, from the inside out."""
        block: Block | None = self
        while block is not None:
            yield block
            block = block.parent
