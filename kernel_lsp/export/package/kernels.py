"""Table of a package's kernels: their addresses and names, by index."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernel_lsp.errors import PlanError
from kernel_lsp.export.package.cpp_text import cpp_string
from kernel_lsp.export.python.operator_text import OperatorText

_KERNELS_HEADER = """\
// The kernels by their place in the launch plan's table, as the CUDA runtime knows them.
#pragma once

namespace kernels {{

extern const void* const all[{count}];
extern const char* const names[{count}];

}}  // namespace kernels
"""


@dataclass
class KernelTable:
    """The kernels of all launches by name expression, without duplicates."""

    names: list[str] = field(default_factory=list)

    def index(self, name: str) -> int:
        """Return the kernel's index in the table. Adds the kernel if it is missing."""
        if name not in self.names:
            self.names.append(name)
        return self.names.index(name)


def kernels_header(table: KernelTable) -> str:
    """Print ``kernels.h``."""
    return _KERNELS_HEADER.format(count=max(len(table.names), 1))


def kernels_source(name: str, table: KernelTable) -> str:
    """Print ``kernels.cu``, which includes the kernel file of that name."""
    addresses = ",\n".join(f"    reinterpret_cast<const void*>(&{each})" for each in table.names) or "    nullptr"
    spelled = ",\n".join(f"    {cpp_string(each)}" for each in table.names) or '    ""'
    return (
        "// Compiles the kernels as they were verified, apart from PyTorch's headers.\n"
        f'#include "{name}.cu"\n\n#include "kernels.h"\n\nnamespace kernels {{\n\n'
        f"const void* const all[] = {{\n{addresses},\n}};\n\n"
        f"const char* const names[] = {{\n{spelled},\n}};\n\n}}  // namespace kernels\n"
    )


def refuse_overloads(operator: OperatorText, table: KernelTable) -> None:
    """Raise PlanError for an overloaded kernel, whose address would be ambiguous."""
    declared = [signature.name for signature in operator.forward.signatures]
    for name in table.names:
        plain = name.partition("<")[0].removeprefix("::")
        if declared.count(plain) > 1:
            raise PlanError(
                f"the kernel '{plain}' is overloaded, and a package needs its address",
                next_step="give the overloads names of their own",
            )
