"""Check who may import whom, and the voice of docstrings. The rooms and the reasons are in `docs/architecture.md`."""

from __future__ import annotations

import ast
import contextlib
import json
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "kernel_lsp"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
OUTSIDE = ("tests", "benchmarks", "scripts")
CLAUSES = ("What", "Whether", "How", "Where", "Which", "That", "Why", "Who", "Whose", "Of")
"""Words that open a clause: a docstring opens with a verb, the note under a constant with a noun."""
MAX_CLAUSES = 9
ROOMS = (
    "core",
    "errors",
    "config",
    "process",
    "plan",
    "source",
    "record",
    "rules",
    "gpu",
    "toolchain",
    "ptx",
    "worker",
    "generate",
    "llm",
    "verify",
    "export",
    "training",
    "evolve",
    "synthesize",
    "engine",
    "server",
    "cli",
)
"""From the ground up: a room imports only rooms before it. `docs/architecture.md` lists the same ones."""
NO_ROOM = ("__init__", "__main__")

WHERE_ALLOWED = {
    "torch": ("worker/",),
    "sympy": ("worker/",),
    "lsprotocol": ("server/",),
    "pygls": ("server/",),
    "litellm": ("llm/",),
    "jinja2": ("llm/",),
    "typer": ("cli/",),
    "rich": ("cli/",),
    "llvmlite": ("ptx/",),
    "ray": ("process/ray_bridge.py",),
    "gymnasium": ("training/gymnasium_environment.py",),
}
PRIVATE = {
    "Evaluator": ("verify/session/verifier.py", "verify/session/evaluation.py"),
    "Evaluation": ("verify/session/verifier.py",),
}
"""Classes of a room, and the only modules that import them: a full verdict is more than one evaluation."""
MAY_PRINT = ("cli/", "worker/", "process/probe.py", "toolchain/nvrtc/nvrtc_program.py")
"""The command line, and programs of their own whose stdout is a protocol."""
WORKER_MAY_IMPORT = {*sys.stdlib_module_names, "torch", "sympy"}
"""sympy comes with torch: it is what symbolic sizes are made of."""

HEAVY = ("torch", "numpy", "llvmlite", "tree_sitter", "sqlite3", "sympy", "litellm", "jinja2", "pygls")
IMPORT_BUDGET_MS = 300
N_IMPORT_TRIES = 5
"""The best of several: other work on the machine only ever adds."""


def test_what_a_program_runs_is_defined_above_its_call() -> None:
    for path in PACKAGE.rglob("*.py"):
        guard = re.search(r"^if __name__ == .*\n(?: .*\n)+", path.read_text(), re.MULTILINE)
        assert guard is None or guard.end() == path.stat().st_size, path


def test_every_module_belongs_to_a_room() -> None:
    assert {module.room for module in modules()} <= {*ROOMS, *NO_ROOM}


def test_a_room_imports_only_rooms_below_it() -> None:
    check(
        f"{module.path}:{used.line} is in {module.room} and imports {used.module}"
        for module in modules()
        if module.room in ROOMS
        for used in module.imports
        if used.room in ROOMS and used.room != module.room and ROOMS.index(used.room) > ROOMS.index(module.room)
    )


def test_core_imports_nothing_of_ours_outside_core() -> None:
    check(
        f"{module.path}:{used.line} imports {used.module}"
        for module in modules()
        if module.room == "core"
        for used in module.imports
        if used.is_ours and used.room != "core"
    )


@pytest.mark.parametrize("library", WHERE_ALLOWED)
def test_a_heavy_library_is_imported_only_in_its_room(library: str) -> None:
    check(
        f"{module.path}:{used.line} imports {used.module}"
        for module in modules()
        if not module.path.startswith(WHERE_ALLOWED[library])
        for used in module.imports
        if used.top == library
    )


@pytest.mark.parametrize("name", PRIVATE)
def test_a_private_class_is_imported_by_its_owner_alone(name: str) -> None:
    """So nothing can reach a verdict but through the owner: `Verifier.verify`."""
    everything = [*modules(), *modules_outside(name)]
    assert any(imports_of(module, name) for module in everything if module.path in PRIVATE[name])
    check(
        f"{module.path}:{used.line} imports {used.module}"
        for module in everything
        if module.path not in PRIVATE[name]
        for used in imports_of(module, name)
    )


def test_the_worker_imports_the_standard_library_and_torch_alone() -> None:
    check(
        f"{module.path}:{used.line} imports {used.module}"
        for module in modules()
        if module.room == "worker"
        for used in module.imports
        if not used.is_relative and used.top not in WORKER_MAY_IMPORT
    )


def test_the_worker_reaches_only_its_own_files_by_relative_imports() -> None:
    check(
        f"{module.path}:{used.line} imports {used.module}"
        for module in modules()
        if module.room == "worker"
        for used in module.imports
        if used.is_relative and used.room != "worker"
    )


def test_nobody_imports_the_worker() -> None:
    check(
        f"{module.path}:{used.line} imports {used.module}"
        for module in modules()
        if module.room != "worker"
        for used in module.imports
        if used.is_ours and used.room == "worker"
    )


def test_modules_import_each_other_in_no_circle() -> None:
    edges = {module.name: list(resolved_imports(module)) for module in modules()}
    check(" -> ".join(circle) for circle in find_circles(edges))


def test_only_the_command_line_and_child_programs_print() -> None:
    check(
        f"{module.path}:{call.lineno} prints"
        for module in modules()
        if not module.path.startswith(MAY_PRINT)
        for call in ast.walk(module.tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print"
    )


def test_a_broad_except_says_why() -> None:
    check(
        f"{module.path}:{handler.lineno} catches everything without a comment"
        for module in modules()
        for handler in ast.walk(module.tree)
        if isinstance(handler, ast.ExceptHandler)
        and catches_everything(handler)
        and not raises_again(handler)
        and not module.has_comment(handler)
    )


def test_every_room_is_described() -> None:
    text = ARCHITECTURE.read_text()
    check(f"docs/architecture.md lacks {room}" for room in rooms_on_disk() if f"`{room}`" not in text)


def test_every_path_in_these_rules_exists() -> None:
    paths = {*MAY_PRINT, *(path for paths in (*WHERE_ALLOWED.values(), *PRIVATE.values()) for path in paths)}
    check(f"tests/test_import_rules.py names {path}" for path in sorted(paths) if not (PACKAGE / path).exists())


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys, json, runpy\n"
        "sys.argv = ['kernel-lsp', '--help']\n"
        "try: runpy.run_module('kernel_lsp', run_name='__main__')\n"
        "except SystemExit: pass\n"
        f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stderr.splitlines()[-1]) == []


def test_a_wrong_target_is_said_before_the_search_is_imported() -> None:
    program = (
        "import sys, runpy\n"
        "sys.argv = ['kernel-lsp', 'optimize', 'none.py::f']\n"
        "try: runpy.run_module('kernel_lsp', run_name='__main__')\n"
        "except SystemExit as end: print(end.code, 'kernel_lsp.evolve.run.optimize' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "2 False\n"
    assert "there is no such file" in done.stderr


def test_help_imports_within_its_budget() -> None:
    assert min(help_import_ms() for _ in range(N_IMPORT_TRIES)) <= IMPORT_BUDGET_MS


def test_what_confines_a_worker_elsewhere_imports_no_event_loop() -> None:
    """Every start of a slot pays for it: asyncio takes half as long again."""
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from kernel_lsp.process import confinement, profiles\n"
        "sys.exit('asyncio' in sys.modules)"
    )
    subprocess.run([sys.executable, "-I", "-S", "-c", program], timeout=60, check=True)


def test_the_rules_see_a_function_level_import() -> None:
    module = Module.parse("core/x.py", "def f():\n    from kernel_lsp.plan import parser\n")
    assert [used.room for used in module.imports] == ["plan"]


def test_the_rules_follow_an_import_inside_a_function_and_none_for_types() -> None:
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import a\n\ndef f():\n    import b\n"
    found = Module.parse("plan/late.py", text).imports
    assert {used.module: used.is_run for used in found if used.module in "ab"} == {"a": False, "b": True}


def test_the_rules_see_a_circle() -> None:
    assert find_circles({"a": ["b"], "b": ["c"], "c": ["a"]}) == [["a", "b", "c", "a"]]


def test_docstrings_open_with_a_verb_or_a_noun() -> None:
    found = [place for folder in (PACKAGE.name, *OUTSIDE) for place in clauses_in(ROOT / folder)]
    assert len(found) <= MAX_CLAUSES, "\n".join(found)


def test_no_type_is_left_out() -> None:
    marker = "ignore" + "[no-untyped-def]"
    check(f"{module.path} has {marker}" for module in modules() if marker in module.text)


def test_the_rules_see_a_clause() -> None:
    text = 'def f():\n    """What it is."""\n\nX = 1\n"""Of two."""\ns = "Where"\n'
    assert sorted(clauses(ast.parse(text))) == [2, 5]


# --- below: how the package is read


def check(violations: Iterator[str]) -> None:
    found = list(violations)
    assert not found, "\n".join(found)


@dataclass(frozen=True)
class Import:
    """One imported module, by its full name. `is_run` is False inside `if TYPE_CHECKING`."""

    module: str
    line: int
    is_relative: bool
    is_run: bool

    @property
    def top(self) -> str:
        return self.module.split(".")[0]

    @property
    def is_ours(self) -> bool:
        return self.top == PACKAGE.name

    @property
    def room(self) -> str:
        parts = self.module.split(".")
        return parts[1] if self.is_ours and len(parts) > 1 else ""


@dataclass(frozen=True)
class Module:
    """One file of the package. `path` is relative to the package."""

    path: str
    text: str
    tree: ast.Module
    imports: tuple[Import, ...]

    @classmethod
    def parse(cls, path: str, text: str) -> Module:
        tree = ast.parse(text)
        return cls(path, text, tree, tuple(find_imports(tree, package_of(path))))

    @property
    def name(self) -> str:
        parts = (PACKAGE.name, *Path(self.path).with_suffix("").parts)
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def room(self) -> str:
        return Path(self.path).parts[0].removesuffix(".py")

    def has_comment(self, handler: ast.ExceptHandler) -> bool:
        """Return whether a comment stands on the handler's line, the one above or the one below."""
        lines = self.text.splitlines()[handler.lineno - 2 : handler.lineno + 1]
        return any("#" in line for line in lines)


@cache
def modules() -> tuple[Module, ...]:
    files = sorted(PACKAGE.rglob("*.py"))
    return tuple(Module.parse(file.relative_to(PACKAGE).as_posix(), file.read_text()) for file in files)


def modules_outside(name: str) -> Iterator[Module]:
    """Return our Python files outside of the package that mention a name. Paths are relative to the repository."""
    for file in sorted(file for folder in OUTSIDE for file in (ROOT / folder).rglob("*.py")):
        text = file.read_text(errors="replace")
        if re.search(rf"\bimport\b.*\b{name}\b", text):
            yield Module.parse(file.relative_to(ROOT).as_posix(), text)


def imports_of(module: Module, name: str) -> list[Import]:
    return [used for used in module.imports if used.is_ours and used.module.rpartition(".")[2] == name]


def clauses_in(folder: Path) -> Iterator[str]:
    for file in sorted(folder.rglob("*.py")):
        with contextlib.suppress(SyntaxError, UnicodeDecodeError):  # some samples are broken on purpose
            yield from (f"{file.relative_to(ROOT)}:{line}" for line in clauses(ast.parse(file.read_text())))


def clauses(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of docstrings and notes that open with a clause."""
    for node in ast.walk(tree):
        text = node.value.value if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) else None
        if isinstance(text, str) and re.match(rf"\s*({'|'.join(CLAUSES)})\b", text):
            yield node.lineno


def rooms_on_disk() -> set[str]:
    return {module.room for module in modules()} - {*NO_ROOM}


def package_of(path: str) -> tuple[str, ...]:
    return (PACKAGE.name, *Path(path).parts[:-1])


def find_imports(tree: ast.Module, package: tuple[str, ...]) -> Iterator[Import]:
    for_types = set(map(id, type_checking_statements(tree)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, False, id(node) not in for_types)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            source = ".".join(part for part in (base, node.module) if part)
            # `from package import name` may name a module: the longest name that is one counts.
            for alias in node.names:
                yield Import(f"{source}.{alias.name}", node.lineno, node.level > 0, id(node) not in for_types)


def type_checking_statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the statements that type checkers alone read."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and is_type_checking(node.test):
            yield from node.body


def is_type_checking(test: ast.expr) -> bool:
    return "TYPE_CHECKING" in ast.unparse(test)


def resolved_imports(module: Module) -> Iterator[str]:
    """Yield the modules of ours that this one imports, also inside functions, without its own parents."""
    known = {other.name for other in modules()}
    for used in module.imports:
        name = used.module
        while name and name not in known:
            name = name.rpartition(".")[0]
        if used.is_run and name and name != module.name and not module.name.startswith(f"{name}."):
            yield name


def find_circles(edges: dict[str, list[str]]) -> list[list[str]]:
    """One circle for each module from which a walk comes back to a module it is still in."""
    circles: list[list[str]] = []
    done: set[str] = set()

    def walk(name: str, path: list[str]) -> None:
        if name in path:
            circles.append([*path[path.index(name) :], name])
        elif name not in done:
            for target in edges.get(name, ()):
                walk(target, [*path, name])
            done.add(name)

    for name in edges:
        walk(name, [])
    return circles


def catches_everything(handler: ast.ExceptHandler) -> bool:
    return handler.type is None or ast.unparse(handler.type) in ("Exception", "BaseException")


def raises_again(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def help_import_ms() -> float:
    """Processor time of `--help` beyond that of Python itself, ms: what else the machine does adds little to it."""
    return processor_ms("-m", PACKAGE.name, "--help") - processor_ms("-c", "pass")


def processor_ms(*arguments: str) -> float:
    """Processor time of one Python program, ms."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], capture_output=True, timeout=60, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
