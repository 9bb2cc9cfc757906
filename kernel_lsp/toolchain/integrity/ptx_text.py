"""Parse PTX into statements with source lines, for audits, and relate the registers of a function: which statements
define and read each. Accepts any PTX.

Execution order is ignored, which overestimates what a register may hold. A question about the code is a rule over this
graph: `inferred` carries facts forward to a fixed point, `behind` and `provenance` look back.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache
from typing import Any, Generic, TypeVar

from kernel_lsp.core.digest import SHORT_DIGITS, sha256_of
from kernel_lsp.source.preprocessor import blanked

COMPILED_AS = "kernel.cu"
"""File name of a candidate's text while it is compiled, and so in its PTX."""
N_REMEMBERED = 8
"""Cached texts: several checks of one candidate read the same PTX."""
N_ANSWERS = 4096
"""Functions whose answer to a question is cached: a network has up to 300."""
_COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?(?:\*/|\Z)|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.MULTILINE)
_LOC = re.compile(r"^\.loc\s+(\d+)\s+(\d+)\s+(\d+)(?:.*?\binlined_at\s+(\d+)\s+(\d+)\s+(\d+))?")
_HEADER = re.compile(r"\.(?P<kind>entry|func)\b(?P<rest>.*)", re.DOTALL)
_GUARD = re.compile(r"^@\s*!?\s*(?P<predicate>[%$\w]+)\s+")
_LABELS = re.compile(r"^(?:[$%\w]+\s*:(?!:)\s*)+")
_SECTION = re.compile(r"\.section\s+\.debug_\w+\s*\{[^{}]*\}")
"""Debug information, which holds bytes and labels. Sections with other names are read as statements."""
_PIECE = re.compile(r"[{};]|[^{};]+")
_LABEL = re.compile(r"[$%\w]+")
_FIRST_OPERAND = re.compile(r"\s*(\{[^}]*\}\s*|[^,\[]*)(,)")
_IN_MEMORY = re.compile(r"\[[^\]]*\]")
_PREDICATE = re.compile(r"%p\d+")
_MENTIONED = re.compile(r"[%$A-Za-z_][\w$]*(?:\.[xyzw]\b)?")


@dataclass(frozen=True)
class Place:
    """Location in the user's file, 1-based; None for an unknown line or column."""

    line: int | None
    column: int | None


@dataclass(frozen=True)
class Statement:
    """Text up to a semicolon, without guard, label and comments. `function` is the enclosing symbol, or empty; `guard`
    is its predicate, or empty; `labels` are those directly before it."""

    text: str
    function: str
    place: Place
    guard: str = ""
    labels: tuple[str, ...] = ()

    @cached_property
    def opcode(self) -> str:
        return self.text.split(None, 1)[0] if self.text else ""

    @cached_property
    def names(self) -> frozenset[str]:
        """Return all names in it."""
        return frozenset(mentioned(self.text))

    @cached_property
    def results(self) -> tuple[str, ...]:
        """Return the registers that it sets; none for a store."""
        first, comma, _ = self._split()
        return tuple(mentioned(first)) if comma and not self._is_store else ()

    @cached_property
    def sources(self) -> str:
        """Return its operands except the results."""
        first, comma, rest = self._split()
        return rest if comma and not self._is_store else f"{first},{rest}"

    @cached_property
    def source_names(self) -> tuple[str, ...]:
        """Return the names in its sources, in order."""
        return tuple(mentioned(self.sources))

    @cached_property
    def source_registers(self) -> tuple[str, ...]:
        """Return the registers in its sources, except predicates and those that address memory."""
        sources = self.sources
        names = _MENTIONED.findall(_IN_MEMORY.sub("", sources) if "[" in sources else sources)
        return tuple([name for name in names if name[0] == "%" and not _PREDICATE.fullmatch(name)])

    @property
    def _is_store(self) -> bool:
        return self.opcode.startswith(("st", "red"))

    def _split(self) -> tuple[str, str, str]:
        operands = self.text.partition(self.opcode)[2]
        match = _FIRST_OPERAND.match(operands)
        return (match[1], match[2], operands[match.end() :]) if match else (operands, "", "")


@dataclass(frozen=True)
class PtxText:
    """The statements of all functions, and the symbols of the kernels."""

    statements: tuple[Statement, ...]
    entries: tuple[str, ...]

    @cached_property
    def functions(self) -> dict[str, Function]:
        """Return the functions by symbol; statements outside of functions by the empty name."""
        bodies: dict[str, list[Statement]] = {}
        for statement in self.statements:
            bodies.setdefault(statement.function, []).append(statement)
        return {name: Function(name, body) for name, body in bodies.items()}


@lru_cache(maxsize=N_REMEMBERED)
def read_ptx(ptx: str) -> PtxText:
    """Parse `ptx`; its lines refer to the file called `COMPILED_AS`."""
    reader = _Reader(user_file_numbers(ptx, COMPILED_AS))
    for line in _SECTION.sub("", _blank_comments(ptx)).splitlines():
        reader.line(line.strip())
    return PtxText(tuple(reader.statements), tuple(reader.entries))


def user_file_numbers(ptx: str, file_name: str) -> frozenset[str]:
    """Return the numbers that `.loc` uses for the user's file."""
    return frozenset(number for number, path in _FILE.findall(ptx) if f"/{path}".endswith(f"/{file_name}"))


def place_of(loc: str, user_files: frozenset[str]) -> Place | None:
    """Return the location of a `.loc` line in the user's file, that of the call when inlined; None for other text."""
    match = _LOC.match(loc)
    if match is None:
        return None
    for file, line, column in (match.group(1, 2, 3), match.group(4, 5, 6)):
        if file in user_files:
            return Place(int(line), int(column) or None)
    return Place(None, None)


class _Reader:
    """Collect statements line by line. A function's header ends at its brace, all else at semicolons."""

    def __init__(self, user_files: frozenset[str]) -> None:
        self._user_files = user_files
        self._function = ""
        self._depth = 0
        self._pending = ""
        self._labels: tuple[str, ...] = ()
        self._place = Place(None, None)
        self.statements: list[Statement] = []
        self.entries: list[str] = []

    def line(self, line: str) -> None:
        if not line or line.startswith((".file", ".version", ".target", ".address_size")):
            return
        if line.startswith(".loc") and (place := place_of(line, self._user_files)):
            self._place = place
            return
        if not self._pending and line.find(";") == len(line) - 1 and "{" not in line and "}" not in line:
            self._pending = line[:-1]  # one statement, as most lines are
            self._end()
            return
        for piece in _PIECE.findall(line):
            self._piece(piece)

    def _piece(self, piece: str) -> None:
        if piece == "{" and not self._is_operand_brace():
            self._open()
        elif piece == "}" and not self._is_operand_brace():
            self._close()
        elif piece == ";":
            self._end()
        else:
            self._pending += " " + piece

    def _is_operand_brace(self) -> bool:
        """Return True for a brace within a statement: a vector operand ``{%f1, %f2}`` or an initializer."""
        text = _LABELS.sub("", self._pending.strip())
        return bool(text) and not _HEADER.search(text)

    def _open(self) -> None:
        if self._depth == 0:
            self._begin_function()
        self._depth += 1
        self._take_labels()
        self._pending = ""

    def _close(self) -> None:
        self._depth = max(0, self._depth - 1)
        self._take_labels()
        self._pending = ""
        if self._depth == 0:
            self._function, self._labels = "", ()

    def _begin_function(self) -> None:
        if match := _HEADER.search(self._pending):
            name = _function_name(match["rest"])
            self._function = name
            if match["kind"] == "entry":
                self.entries.append(name)

    def _end(self) -> None:
        rest = self._take_labels()
        guard = _GUARD.match(rest) if rest.startswith("@") else None
        text = rest[guard.end() :].strip() if guard else rest
        self._pending = ""
        if text:
            predicate, labels, self._labels = guard["predicate"] if guard else "", self._labels, ()
            self.statements.append(Statement(" ".join(text.split()), self._function, self._place, predicate, labels))

    def _take_labels(self) -> str:
        """Move leading labels of the pending text to the next statement; return the rest."""
        pending = self._pending.strip()
        if ":" in pending and (match := _LABELS.match(pending)):
            self._labels += tuple(_LABEL.findall(match[0]))
            return pending[match.end() :].strip()
        return pending


def _function_name(rest: str) -> str:
    """Return the name in ``.func (.param .b32 r) name(...)`` or ``.entry name(...)``."""
    without_result = re.sub(r"^\s*\([^)]*\)", "", rest)
    match = re.match(r"\s*([$%\w]+)", without_result)
    return match[1] if match else ""


def _blank_comments(text: str) -> str:
    """Blank comments, and strings except the path of a `.file`. A string may look like a comment, and vice versa."""
    return _COMMENT_OR_STRING.sub(
        lambda match: re.sub(r"[{};]", " ", match[0]) if match[0][0] == '"' else blanked(match[0]), text
    )


def mentioned(text: str) -> list[str]:
    """Return the names in part of a statement: registers, variables, labels, special registers."""
    return _MENTIONED.findall(text)


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_DEBUG_SECTION = re.compile(r"^\s*\.section\b.*\Z", re.MULTILINE | re.DOTALL)
_NOT_RUN = re.compile(r"^\s*\.(?:loc|file|version|target|address_size)\b[^\n]*$", re.MULTILINE)
_ENTRY = re.compile(r"\.(?:entry|func)\s+(?:\([^)]*\)\s*)?([\w$]+)")
_NAME = re.compile(r"[$%]?[A-Za-z_$][\w$]*")
_REGISTER = re.compile(r"%[a-z]+\d+|\$L_\w+|[\w$]+_param_\d+")


def program_hash(ptx: str) -> str:
    """Hash the instructions, ignoring lines, comments and the names of kernels, registers, labels and parameters."""
    text = _NOT_RUN.sub("", _DEBUG_SECTION.sub("", _COMMENT.sub("", ptx)))
    renamed: dict[str, str] = {name: f"@{position}" for position, name in enumerate(_ENTRY.findall(text))}

    def rename(match: re.Match[str]) -> str:
        name = match[0]
        if name not in renamed and _REGISTER.fullmatch(name):
            renamed[name] = f"@{len(renamed)}"
        return renamed.get(name, name)

    words = " ".join(_NAME.sub(rename, text).split())
    return sha256_of(words, SHORT_DIGITS)


_ENTRY_START = re.compile(r"^(?=(?:\.visible\s+|\.weak\s+)?\.entry\b)", re.MULTILINE)
_MODULE_VARIABLE = re.compile(
    r"^(?:\.(?:extern|visible|weak|common)\s+)?\.(?:global|const|shared)\b[^\n]*$", re.MULTILINE
)


def kernels_hash(ptx: str, symbols: Collection[str]) -> str:
    """Hash the code of some kernels with the module's variables, ignoring lines and comments: kernels with equal hashes
    do the same. Empty where the PTX has functions that kernels may call."""
    text = _NOT_RUN.sub("", _DEBUG_SECTION.sub("", _COMMENT.sub("", ptx)))
    if re.search(r"^\s*(?:\.\w+\s+)*\.func\b", text, re.MULTILINE):
        return ""
    start, *kernels = _ENTRY_START.split(text)
    parts = [start]
    for kernel in kernels:
        found = _ENTRY.search(kernel)
        is_chosen = found is not None and found[1] in symbols
        parts += [kernel] if is_chosen else _MODULE_VARIABLE.findall(kernel)
    return sha256_of(" ".join(" ".join(parts).split()), SHORT_DIGITS)


Fact = TypeVar("Fact")


class Source(Enum):
    """Origin of a value, by the prefixes of special registers, or of the opcodes that load it."""

    THREAD = ("%tid.",)
    BLOCK = ("%ctaid.",)
    LAUNCH = ("%ntid.", "%nctaid.", "ld.param")
    CLOCK = ("%clock", "%globaltimer", "%pm")
    WORKSPACE = ("%envreg1", "%envreg2")
    LOADED = ("ld.global", "ld.shared", "ld.local", "atom", "shfl", "call")


class Function:
    """The definition-use graph of one function."""

    def __init__(self, name: str, body: Sequence[Statement]) -> None:
        self.name, self.body = name, body

    @cached_property
    def code(self) -> bytes:
        """Return the hash of its statements, wherever they are in the user's file."""
        parts = ("\0".join((each.text, each.guard, *each.labels)) for each in self.body)
        return hashlib.sha256("\n".join(parts).encode(errors="surrogatepass")).digest()

    @cached_property
    def definitions(self) -> dict[str, list[Statement]]:
        """Map each register to the statements that set it."""
        found: dict[str, list[Statement]] = {}
        for statement in self.body:
            for register in statement.results:
                found.setdefault(register, []).append(statement)
        return found

    @cached_property
    def mentions(self) -> dict[str, list[int]]:
        """Map each name to the positions of the statements that mention it, or are guarded by it."""
        found = defaultdict[str, list[int]](list)
        for position, statement in enumerate(self.body):
            for name in {statement.guard, *mentioned(statement.text)}:
                found[name].append(position)
        return dict(found)

    def behind(self, statement: Statement) -> Iterator[Statement]:
        """Yield the statements that the value depends on, each once; the first definition of each register."""
        pending, seen = [statement], set[str]()
        while pending:
            for name in pending.pop().source_names:
                if name in self.definitions and name not in seen:
                    seen.add(name)
                    pending.append(self.definitions[name][0])
                    yield self.definitions[name][0]

    def provenance(self, statement: Statement) -> frozenset[Source]:
        """Return the origins of the value that a statement computes from."""
        behind = list(self.behind(statement))
        words = {one.opcode for one in behind}
        words.update(name for one in (statement, *behind) for name in one.source_names if name.startswith("%"))
        return frozenset(source for source in Source if any(word.startswith(source.value) for word in words))

    def inferred(
        self,
        start: Mapping[str, Fact],
        rule: Callable[[Statement, Mapping[str, Fact]], Fact | None],
        join: Callable[[Fact, Fact], Fact],
        origins: Iterable[int] | None = None,
    ) -> dict[str, Fact]:
        """Return a fact for each register, by iteration to a fixed point: the `join` of those that the `rule` gives for
        the statements that set it, None for a statement without one. `origins` are the positions of all statements
        with a fact that depends on no other; by default any may have one."""
        facts, waiting = dict(start), deque(range(len(self.body)) if origins is None else origins)
        queued = set(waiting)
        while waiting:
            position = waiting.popleft()
            queued.discard(position)
            statement = self.body[position]
            fact = rule(statement, facts)
            if fact is None:
                continue
            for name in statement.results:
                joined = join(facts[name], fact) if name in facts else fact
                if name not in facts or joined != facts[name]:
                    facts[name] = joined
                    again = [other for other in self.mentions.get(name, ()) if other not in queued]
                    waiting.extend(again)
                    queued.update(again)
        return facts


Answer = TypeVar("Answer")


class OncePerCode(Generic[Answer]):
    """A question about a function, and the hashable arguments of it, whose answer depends on the statements alone, not
    on their places. Asked once for all texts: the candidates of a search differ in few kernels."""

    def __init__(self, question: Callable[..., Answer]) -> None:
        self._question, self._answers = question, dict[tuple[Any, ...], Answer]()

    def __call__(self, function: Function, *arguments: Hashable) -> Answer:
        key = (function.code, *arguments)
        if key not in self._answers:
            while len(self._answers) >= N_ANSWERS:
                del self._answers[next(iter(self._answers))]
            self._answers[key] = self._question(function, *arguments)
        return self._answers[key]
