"""Build LLVM IR text: names, labels, operations and counted loops."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class IrText:
    """Collect lines of IR, with a unique name for each value and each label."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.n_names = 0

    def name(self) -> str:
        self.n_names += 1
        return f"%t{self.n_names}"

    def label(self) -> str:
        self.n_names += 1
        return f"l{self.n_names}"

    def op(self, text: str) -> str:
        """Append ``name = text`` and return the name."""
        name = self.name()
        self.lines.append(f"  {name} = {text}")
        return name

    def line(self, text: str) -> None:
        self.lines.append("  " + text)

    def begin(self, label: str) -> None:
        self.lines.append(label + ":")

    def call(self, llvm_result: str, function: str, *arguments: str) -> str:
        """Call `function` with arguments given as ``type value``."""
        return self.op(f"call {llvm_result} @{function}({', '.join(arguments)})")

    def field(self, base: str, offset: int | str) -> str:
        """Return the pointer that many bytes after `base`."""
        return self.op(f"getelementptr i8, ptr {base}, i64 {offset}")

    @contextmanager
    def loop(self, count: int) -> Iterator[str]:
        """Emit a loop around the body of the `with`. Gives the name of its i64 counter, from 0."""
        before, head, end = self.label(), self.label(), self.label()
        counter, following = self.name(), self.name()
        latch = self.label()
        self.line(f"br label %{before}")
        self.begin(before)
        self.line(f"br label %{head}")
        self.begin(head)
        self.line(f"{counter} = phi i64 [ 0, %{before} ], [ {following}, %{latch} ]")
        yield counter
        self.line(f"br label %{latch}")
        self.begin(latch)
        self.line(f"{following} = add i64 {counter}, 1")
        self.line(f"br i1 {self.op(f'icmp ult i64 {following}, {count}')}, label %{head}, label %{end}")
        self.begin(end)
