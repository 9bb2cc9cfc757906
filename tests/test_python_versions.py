"""Avoid everywhere what versions of Python understand differently."""

from __future__ import annotations

import symtable
from collections.abc import Iterator
from pathlib import Path

from kernel_lsp import __file__ as package

COMPREHENSIONS = ("listcomp", "setcomp", "dictcomp")


def test_no_comprehension_rebinds_a_variable_of_an_enclosing_function() -> None:
    """Python 3.12.0 to 3.12.3 look such a variable up in the wrong scope: "cannot access free variable"."""
    found = [
        f"{path}: {name}"
        for path in sorted(Path(package).parent.rglob("*.py"))
        for name in rebound(symtable.symtable(path.read_text(encoding="utf-8"), str(path), "exec"))
    ]
    assert found == []


def test_a_rebound_variable_is_found() -> None:
    text = "def f(name):\n    def g(x):\n        return [name for name in x], lambda: name\n    return g\n"
    assert list(rebound(symtable.symtable(text, "f.py", "exec"))) == ["g: name"]


def rebound(table: symtable.SymbolTable) -> Iterator[str]:
    """Yield the functions with a comprehension whose variable is one that the function takes from around it."""
    for child in table.get_children():
        if isinstance(table, symtable.Function) and child.get_name() in COMPREHENSIONS:
            assert isinstance(child, symtable.Function)
            own = {name for name in child.get_locals() if not name.startswith(".")}
            yield from (f"{table.get_name()}: {name}" for name in sorted(own & set(table.get_frees())))
        yield from rebound(child)
