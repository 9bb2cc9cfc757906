"""Parse a user's Python file: functions, classes and pragma comments. Nothing in it is executed."""

from __future__ import annotations

import ast
import copy
import io
import re
import tokenize
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal

from kernel_lsp.config import find_workspace
from kernel_lsp.core.digest import SHORT_DIGITS, sha256_of
from kernel_lsp.errors import TargetError
from kernel_lsp.source.pragma import PragmaLine

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
Definition = FunctionNode | ast.ClassDef
MAX_ORIGINS, MAX_FOLDERS, MAX_NEIGHBOURS = 6, 4, 64
"""Maximum files in a chain of imports, folders upwards in which an absolute import is looked up, and parsed files that
are kept."""
USE_PREFIX = "use_"
"""``use_softmax(softmax)(x)`` stands for ``softmax(x)``, ``use_rms_norm(RMSNorm(8))`` for ``RMSNorm(8)``: the kernels
where they can, and what was there before everywhere else."""
_IMPORTED = re.compile(rf"^\s*from \S+ import ({USE_PREFIX}\w+)\s*$", re.MULTILINE)
_LAYER = re.compile(r"(torch\.)?nn\.[A-Z]\w*$")
"""Matches a class of `torch.nn`: a class below it that has a `forward` of its own is a module."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a function, except `self`. `rank` is the number of dims where the function unpacks its shape, else
    0."""

    name: str
    annotation: ast.expr | None
    has_default: bool
    rank: int = 0


@dataclass(frozen=True)
class PythonFile:
    """The parsed file. `file` is its name in errors; `pragmas` are all of its pragma comments."""

    file: str
    tree: ast.Module
    lines: tuple[str, ...]
    pragmas: tuple[PragmaLine, ...]
    origins: tuple[Path, ...] = ()
    """The files that led here by imports, this one last. Empty for a text whose imports are not followed."""
    elsewhere: tuple[tuple[str, ast.Call], ...] = ()
    """Calls in other files, each by the name that this file has for what is called."""

    def definition(self, symbol: str) -> Definition | None:
        """Return the function or class named by a dotted symbol, including methods inherited within the file. Of
        several definitions the last one counts, as in Python."""
        found: Definition | None = None
        body: Sequence[ast.stmt] = self.tree.body
        for part in symbol.split("."):
            inside = found
            found = self._last(body, part)
            if found is None and isinstance(inside, ast.ClassDef):
                found = self.inherited(inside, part)
            if found is None:
                return None
            body = found.body if isinstance(found, ast.ClassDef) else ()
        return found

    def inherited(self, node: ast.ClassDef, name: str) -> Definition | None:
        """Return `name` from the class or its bases in this file, else from bases imported from other files; such a
        definition has the line of the class."""
        for ancestor in self.ancestry(node):
            found = self._last(ancestor.body, name)
            if found is not None:
                return found
        for source, base in self._imported_bases(node):
            found = source.inherited(base, name)
            if found is not None:
                return _at_line(found, node.lineno)
        return None

    def ancestry(self, node: ast.ClassDef) -> list[ast.ClassDef]:
        """Return the class and its bases in this file, in order of distance."""
        found = [node]
        for each in found:
            for base in each.bases:
                ancestor = self._base(each, base)
                if isinstance(ancestor, ast.ClassDef) and ancestor not in found:
                    found.append(ancestor)
        return found

    def _base(self, node: ast.ClassDef, base: ast.expr) -> Definition | None:
        """Return what a base of the class names: in the body that the class stands in, else in the file."""
        around, text = self._names.get(id(node), "").rpartition(".")[0], ast.unparse(base)
        return self.named.get(f"{around}.{text}", self.named.get(text))

    def is_module_class(self, node: ast.ClassDef) -> bool:
        """Return True when this file, or one that it imports a base from, shows that the class is an `nn.Module`."""
        bases = [ast.unparse(base) for ancestor in self.ancestry(node) for base in ancestor.bases]
        return (
            any(base.rpartition(".")[2] == "Module" for base in bases)
            or (any(map(_LAYER.match, bases)) and self.inherited(node, "forward") is not None)
            or any(source.is_module_class(base) for source, base in self._imported_bases(node))
        )

    def base_elsewhere(self, node: ast.ClassDef) -> str:
        """Return the first base that no file of the project defines; empty without one."""
        names = [name for ancestor in self.ancestry(node) for name in map(ast.unparse, ancestor.bases)]
        known = {ancestor.name for ancestor in self.ancestry(node)}
        return next((n for n in names if n not in (*known, "object") and self.imported_class(n) is None), "")

    def pragmas_of(self, node: Definition) -> list[PragmaLine]:
        """Return the pragmas directly above the definition, within its header, or before its first statement."""
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        while first > 1 and self.lines[first - 2].lstrip().startswith("#"):
            first -= 1
        last = self._last_header_line(node)
        return [pragma for pragma in self.pragmas if first <= pragma.line <= last]

    def lost_pragma_above(self, node: Definition) -> int | None:
        """Return the line of a comment above the definition that names kernel-lsp and is no pragma of it."""
        own = {pragma.line for pragma in self.pragmas_of(node)}
        above = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1
        while above and re.match(r"\s*(#|$)", self.lines[above - 1]):
            if above not in own and re.match(r"\s*#\s*kernel[-_ ]?lsp\b", self.lines[above - 1], re.IGNORECASE):
                return above
            above -= 1
        return None

    def _last_header_line(self, node: Definition) -> int:
        """Return the last line above the first statement; above a class in it, the comments are that class's."""
        last = _first_statement_line(node) - 1
        inner = next((each for each in node.body if each.lineno > last), None)
        while isinstance(inner, ast.ClassDef) and self.lines[last - 1].lstrip().startswith("#"):
            last -= 1
        return max(last, node.lineno)

    def _imported_bases(self, node: ast.ClassDef) -> Iterator[tuple[PythonFile, ast.ClassDef]]:
        """Yield the bases of the class that files beside this one define, with their files."""
        for ancestor in self.ancestry(node):
            for base in ancestor.bases:
                found = self.imported_class(ast.unparse(base))
                if found is not None:
                    yield found

    def imported_class(self, name: str) -> tuple[PythonFile, ast.ClassDef] | None:
        """Find the class that ``Base`` or ``layers.Base`` names, through the imports at the top of this file."""
        if not 0 < len(self.origins) < MAX_ORIGINS:
            return None
        if name not in self._classes:
            self._classes[name] = next(self._named_by_imports(name), None)
        return self._classes[name]

    def _named_by_imports(self, name: str) -> Iterator[tuple[PythonFile, ast.ClassDef]]:
        head, _, rest = name.partition(".")
        for module, level, imported in self._imports.get(head, ()):
            within = ".".join(part for part in (module, imported if rest else "") if part)
            if (within, level) not in self._files:
                self._files[within, level] = self._imported_file(within, level)
            source = self._files[within, level]
            found = source.definition(rest or imported) if source is not None else None
            if source is not None and isinstance(found, ast.ClassDef):
                yield source, found

    def _imported_file(self, within: str, level: int) -> PythonFile | None:
        folder = self.origins[-1].parent
        folders = (folder, *folder.parents)
        if not within and level == 0:  # `import torch` names no class
            return None
        for root in folders[:MAX_FOLDERS] if level == 0 else folders[level - 1 : level]:
            path = root.joinpath(*within.split("."))
            for candidate in (path.with_name(f"{path.name}.py"), path / "__init__.py"):
                if candidate not in self.origins and candidate.is_file():
                    source = _neighbour(candidate, candidate.stat().st_mtime_ns)
                    return None if source is None else replace(source, origins=(*self.origins, candidate))
        return None

    @cached_property
    def _imports(self) -> dict[str, dict[tuple[str, int, str], None]]:
        """Return the imports at the top by the name that each binds: module, level and imported name."""
        found: dict[str, dict[tuple[str, int, str], None]] = {}
        for node in self.tree.body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                place = (node.module or "", node.level) if isinstance(node, ast.ImportFrom) else ("", 0)
                for alias in node.names:
                    found.setdefault(alias.asname or alias.name, {})[*place, alias.name] = None
        return found

    def _last(self, body: Sequence[ast.stmt], name: str) -> Definition | None:
        """Return the last definition of the name in a body. Each body is indexed once, because lookups are frequent."""
        index = self._indexes.get(id(body))
        if index is None:
            index = self._indexes[id(body)] = {node.name: node for node in definitions(body)}
        return index.get(name)

    @cached_property
    def constants(self) -> dict[str, ast.expr]:
        """Return the expressions that the file assigns to names at its top."""
        assigned = [node for node in self.tree.body if isinstance(node, ast.Assign) and len(node.targets) == 1]
        return {node.targets[0].id: node.value for node in assigned if isinstance(node.targets[0], ast.Name)}

    @cached_property
    def calls(self) -> dict[str, list[ast.Call]]:
        """Return the calls by the plain name that is called, of classes inside of classes by their own: the file's own,
        then those of other files."""
        found: dict[str, list[ast.Call]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                found.setdefault(node.func.id, []).append(node)
            elif isinstance(node, ast.Call) and (symbol := symbol_called(node.func, self.named)) in self.named:
                found.setdefault(symbol.rpartition(".")[2], []).append(node)
        for name, call in self.elsewhere:
            found.setdefault(name, []).append(call)
        return found

    @cached_property
    def named(self) -> dict[str, Definition]:
        """Return the functions and classes at the top and, by dotted names, in classes."""
        return dict(nested(self.tree.body))

    @cached_property
    def _names(self) -> dict[int, str]:
        return {id(node): name for name, node in self.named.items()}

    @cached_property
    def _indexes(self) -> dict[int, dict[str, Definition]]:
        return {}

    @cached_property
    def _classes(self) -> dict[str, tuple[PythonFile, ast.ClassDef] | None]:
        return {}

    @cached_property
    def _files(self) -> dict[tuple[str, int], PythonFile | None]:
        return {}


def read_python_file(path: Path, file: str) -> PythonFile:
    """Read and parse a file. Raises TargetError when it cannot be read, is not text or is not Python."""
    return parse_python(_decode(_read_bytes(path, file), file), file, origin=path)


def parse_python(text: str, file: str, tree: ast.Module | None = None, *, origin: Path | None = None) -> PythonFile:
    """Parse the text, reusing `tree` if given. Raises TargetError with the line of a syntax error. Imports are followed
    from `origin`, where the text belongs."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    lines = tuple(text.split("\n"))
    tree = _tree(text, file) if tree is None else tree
    return PythonFile(file, tree, lines, tuple(_pragmas(lines, tree)), (origin,) if origin is not None else ())


@lru_cache(maxsize=MAX_NEIGHBOURS)
def _neighbour(path: Path, modified_ns: int) -> PythonFile | None:
    try:
        return read_python_file(path, str(path))
    except TargetError:
        return None


def _at_line(node: Definition, line: int) -> Definition:
    """Return a copy of a definition from another file, all of it at one line of this one."""
    copied = copy.deepcopy(node)
    for part in ast.walk(copied):
        if isinstance(part, ast.stmt | ast.expr | ast.arg | ast.keyword | ast.ExceptHandler):
            part.lineno = part.end_lineno = line
    return copied


def parameter_names(function: FunctionNode) -> list[str]:
    """Return the names of all parameters but `*args` and `**kwargs`; of a method, `self` too."""
    return [each.arg for each in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]


def parameters_of(node: FunctionNode, *, of_class: bool) -> tuple[Parameter, ...]:
    """Return the parameters in order, without `*args`, `**kwargs` and a method's `self`."""
    positional = [*node.args.posonlyargs, *node.args.args]
    n_required = len(positional) - len(node.args.defaults)
    ranks = _ranks(node)
    read = [Parameter(a.arg, a.annotation, i >= n_required, ranks.get(a.arg, 0)) for i, a in enumerate(positional)]
    if of_class and not any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in node.decorator_list):
        read = read[1:]
    pairs = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    named = (Parameter(a.arg, a.annotation, default is not None, ranks.get(a.arg, 0)) for a, default in pairs)
    return (*read, *named)


def _ranks(node: FunctionNode) -> dict[str, int]:
    """Return ranks by parameter, from ``b, n, d = x.shape`` or ``x.size()`` among the function's own statements."""
    found: dict[str, int] = {}
    for statement in node.body:
        match statement:
            case ast.Assign(
                targets=[ast.Tuple(elts=names)],
                value=ast.Attribute(value=ast.Name(id=name), attr="shape")
                | ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="size"), args=[]),
            ) if not any(isinstance(each, ast.Starred) for each in names):
                found.setdefault(name, len(names))
    return found


def definitions(body: Sequence[ast.stmt]) -> Iterator[Definition]:
    """Yield the functions and classes of a body in order, including those under `if`, `try` and `with`. Uses a stack,
    since an `elif` chain nests as deep as it is long."""
    stack: list[ast.stmt | ast.excepthandler] = list(reversed(body))
    while stack:
        statement = stack.pop()
        if isinstance(statement, Definition):
            yield statement
        elif isinstance(statement, ast.If | ast.Try | ast.With | ast.ExceptHandler):
            for block in ("finalbody", "orelse", "handlers", "body"):
                stack.extend(reversed(getattr(statement, block, ())))


def nested(body: Sequence[ast.stmt], around: str = "") -> Iterator[tuple[str, Definition]]:
    """Yield the functions and classes of a body and of its classes, each class before what is in it, by dotted
    names."""
    for node in definitions(body):
        yield f"{around}{node.name}", node
        if isinstance(node, ast.ClassDef):
            yield from nested(node.body, f"{around}{node.name}.")


def symbol_called(called: ast.expr, named: Mapping[str, Definition]) -> str:
    """Return the dotted name that a call has for what it calls; ``self.Block`` in the class `Net` is ``Net.Block``.
    Empty for anything but names. `named` are the definitions of the file."""
    text = ast.unparse(called) if isinstance(called, ast.Name | ast.Attribute) else ""
    if not text.startswith("self."):
        return text
    spans = (
        (name, node.lineno, node.end_lineno or 0) for name, node in named.items() if isinstance(node, ast.ClassDef)
    )
    around = [name for name, first, last in spans if first <= called.lineno <= last]
    return f"{around[-1]}.{text.removeprefix('self.')}" if around else ""


ImportStyle = Literal["absolute", "relative", "either"]


def import_style(path: Path, tree: ast.Module) -> ImportStyle:
    """Choose how the file imports a neighbour: ``from .kernels...`` where it has relative imports already,
    ``from kernels...`` in the workspace's own folder, else in both ways: a file below may be run as a script, and be
    imported as a part of a package, with or without an ``__init__.py``."""
    if any(isinstance(node, ast.ImportFrom) and node.level for node in tree.body):
        return "relative"
    is_package = (path.parent / "__init__.py").is_file()
    return "either" if is_package or path.parent != find_workspace(path.parent) else "absolute"


def import_line(tree: ast.Module, used: Iterable[int] = ()) -> int:
    """Return the number of lines above the position for one more import: after the last top-level import above the
    statement of the first of the `used` lines, else after the docstring. Scripts import between their statements."""
    first = min(used, default=None)
    body = [node for node in tree.body if first is None or (node.end_lineno or node.lineno) < first]
    lines = [node.end_lineno or node.lineno for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    if lines:
        return max(lines)
    docstring = tree.body[0] if tree.body else None
    is_docstring = isinstance(docstring, ast.Expr) and isinstance(docstring.value, ast.Constant)
    return (docstring.end_lineno or 0) if is_docstring and docstring is not None else 0


def digest_of(text: str) -> str:
    """Return the digest of a text."""
    return sha256_of(text, SHORT_DIGITS)


def target_digest(source: PythonFile, line: int, end_line: int) -> str:
    """Return the digest of a definition with the comments and decorators above it: a pragma is part of a target. Lines
    are 1-based and inclusive."""
    first = line
    while first > 1 and source.lines[first - 2].lstrip().startswith(("#", "@")):
        first -= 1
    text = "\n".join(source.lines[first - 1 : end_line])
    if USE_PREFIX in text:
        for name in set(_IMPORTED.findall("\n".join(source.lines))):
            text = _unwrapped(text, name)
    return digest_of(text)


_PRAGMA = re.compile(r"#+\s*kernel-lsp\s*:(.*)")


def _read_bytes(path: Path, file: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        message = f"the file cannot be read: {error.strerror or error}"
        raise TargetError(message, file=file, next_step="check the path and its permissions") from None


def _decode(data: bytes, file: str) -> str:
    if b"\0" in data:
        raise TargetError("this is a binary file, not Python", file=file, line=1, next_step="name a .py file")
    try:
        return data.decode(_encoding(data))
    except (UnicodeDecodeError, LookupError) as error:
        at = error.start if isinstance(error, UnicodeDecodeError) else 0
        message = f"the file is not UTF-8 text: byte 0x{data[at]:02x}"
        line = data.count(b"\n", 0, at) + 1
        raise TargetError(message, file=file, line=line, next_step="save the file as UTF-8") from None


def _encoding(data: bytes) -> str:
    """Return the declared encoding, else UTF-8."""
    try:
        return tokenize.detect_encoding(io.BytesIO(data).readline)[0]
    except SyntaxError:
        return "utf-8"


def _tree(text: str, file: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about the user's invalid escapes are suppressed
            return ast.parse(text)
    except SyntaxError as error:
        message = f"the file is not valid Python: {error.msg}"
        raise TargetError(message, file=file, line=error.lineno or 1, next_step="correct the line") from None
    except (ValueError, RecursionError, MemoryError) as error:
        message = f"the file cannot be parsed as Python: {error}"
        raise TargetError(message, file=file, line=1, next_step="name a Python file") from None


def _pragmas(lines: Sequence[str], tree: ast.Module) -> Iterator[PragmaLine]:
    """Yield the pragmas. Between statements, a pragma is a line of its own. Within a statement the text may be part of
    a string, so it is tokenized, which takes longer than parsing."""
    candidates = [number for number, line in enumerate(lines, start=1) if _PRAGMA.search(line)]
    spans = iter(_statement_lines(tree) if candidates else ())
    first, last, done = 0, 0, 0
    for number in candidates:
        while last < number and (span := next(spans, None)) is not None:
            first, last = span
        if number < first or last < number:
            match = _PRAGMA.match(lines[number - 1].lstrip())
            if match:
                yield PragmaLine(match.group(1), number)
        elif done < first:
            done = last
            yield from _pragmas_by_tokens(lines[first - 1 : last], first)


def _statement_lines(tree: ast.Module) -> list[tuple[int, int]]:
    """Return the first and last lines of the file's statements; those that share a line are merged."""
    spans: list[tuple[int, int]] = []
    for node in tree.body:
        first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])
        last = node.end_lineno or node.lineno
        if spans and first <= spans[-1][1]:
            first, last = spans[-1][0], max(last, spans.pop()[1])
        spans.append((first, last))
    return spans


def _pragmas_by_tokens(lines: Sequence[str], first: int) -> Iterator[PragmaLine]:
    """Yield the pragmas in a statement that begins at the line `first` of the file."""
    try:
        for token in tokenize.generate_tokens(io.StringIO("\n".join(lines)).readline):
            match = _PRAGMA.match(token.string) if token.type == tokenize.COMMENT else None
            if match:
                yield PragmaLine(match.group(1), first - 1 + token.start[0])
    except (tokenize.TokenError, SyntaxError):
        return  # the tree was parsed, so the tokenizer's error is after the last relevant pragma


def _first_statement_line(node: Definition) -> int:
    """Return the first line of the first statement that is not the docstring, decorators included; without one, the
    line past the end."""
    for statement in node.body:
        is_docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not is_docstring:
            decorators = getattr(statement, "decorator_list", [])
            return min([statement.lineno, *(decorator.lineno for decorator in decorators)])
    return (node.end_lineno or node.lineno) + 1


def _unwrapped(text: str, name: str) -> str:
    """Replace ``name(X)`` by ``X``, as before the operator was used."""
    parts = text.split(f"{name}(")
    unwrapped = parts[0]
    for part in parts[1:]:
        end = _closing(part)
        unwrapped += part[:end] + part[end + 1 :] if end >= 0 else f"{name}({part}"
    return unwrapped


def _closing(text: str) -> int:
    """Return the position of the parenthesis that closes one opened before `text`; -1 without any."""
    depth = 1
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return position
    return -1
