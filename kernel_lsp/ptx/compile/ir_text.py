"""Build LLVM IR text: names, labels, operations, counted loops, and declarations of intrinsics."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

_INTRINSICS = {
    "({t})": "fabs sqrt roundeven floor ceil trunc exp2 log2 sin cos ctpop bitreverse",
    "({t}, i1)": "abs ctlz cttz",
    "({t}, {t})": (
        "copysign minimumnum maximumnum minimum maximum smin smax umin umax sadd.sat ssub.sat"
        " uadd.with.overflow usub.with.overflow"
    ),
    "({t}, {t}, {t})": "fma fshl fshr",
}
"""Names of intrinsics by the types of their parameters. Their result has the type of the first one."""
_PARAMETERS = {name: parameters for parameters, names in _INTRINSICS.items() for name in names.split()}
_LLVM_NAME = {"f32": "float", "f64": "double"}


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


def declarations(text: str) -> str:
    """Return the declaration of each intrinsic that `text` calls."""
    lines = []
    for name, kind in sorted(set(re.findall(r"@llvm\.([a-z0-9.]+?)\.([if]\d+)\(", text))):
        if name in _PARAMETERS:
            llvm_type = _LLVM_NAME.get(kind, kind)
            result = f"{{{llvm_type}, i1}}" if name.endswith(".with.overflow") else llvm_type
            lines.append(f"declare {result} @llvm.{name}.{kind}{_PARAMETERS[name].format(t=llvm_type)}")
    for integer, floating in sorted(set(re.findall(r"@llvm\.fpto[su]i\.sat\.(i\d+)\.(f\d+)\(", text))):
        for sign in "su":
            name = f"llvm.fpto{sign}i.sat.{integer}.{floating}"
            if f"@{name}(" in text:
                lines.append(f"declare {integer} @{name}({_LLVM_NAME[floating]})")
    for count in sorted(set(re.findall(r"@llvm\.fma\.v(\d+)f64\(", text))):
        vector = f"<{count} x double>"
        lines.append(f"declare {vector} @llvm.fma.v{count}f64({vector}, {vector}, {vector})")
    if "@tanhf(" in text:
        lines.append("declare float @tanhf(float)")
    return "\n".join(lines)
