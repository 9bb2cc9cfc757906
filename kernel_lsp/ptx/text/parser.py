"""Parse PTX (ISA 9.0, as NVRTC and nvcc print it) into `kernel_lsp.ptx.text.syntax`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from kernel_lsp.ptx.text.syntax import (
    WIDTH_BITS,
    Address,
    Function,
    Guard,
    Immediate,
    Instruction,
    Label,
    Location,
    Module,
    Negated,
    Operand,
    Pair,
    Register,
    Statement,
    Symbol,
    UnsupportedPtxError,
    Variable,
    Vector,
)

WARP_SIZE = 32

_COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?(?:\*/|\Z)|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_FILE = re.compile(r'\.file\s+(\d+)\s+"([^"]*)"')
_SECTION = re.compile(r"\.section\s+(\S+)\s*\{([^}]*)\}")
_DEBUG_TEXT = re.compile(r"([$\w]+):\s*((?:\.b8\s+[\d,\s]+)+)")
_FUNCTION = re.compile(r"(?:\.(?:visible|weak|extern)\s+)?\.(entry|func)\b")
_LINE_DIRECTIVE = re.compile(r"\.(version|target|address_size|file|loc)\b[^\n]*")
_LOC = re.compile(
    r"\.loc\s+(\d+)\s+(\d+)\s+(\d+)"
    r"(?:\s*,\s*function_name\s+([$\w]+)(?:\s*\+\s*\d+)?\s*,\s*inlined_at\s+(\d+)\s+(\d+)\s+(\d+))?"
)
_LABEL = re.compile(r"([$%A-Za-z_][\w$]*)\s*:(?!:)")
_BRACE_OR_LABEL = re.compile(rf"(?<=[;{{}}\s:]){_LABEL.pattern}|[{{}}]")
_VARIABLE = re.compile(
    r"(?:\.(?:visible|weak|extern|common)\s+)*\.(global|const|shared|local|param)\b(.*?)"
    r"\.([busf]\d+(?:x\d)?|bf16(?:x2)?|pred)\s+(?:\.ptr\b[^%$\w]*(?:\.\w+\s+)*(?:\d+\s+)?)?([$%\w]+)\s*(\[[^=]*\])?\s*(?:=\s*(.*))?$",
    re.DOTALL,
)
_INTEGER = re.compile(r"-?(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?$")
_SPACE = re.compile(r"\s+")


def parse(text: str) -> Module:
    """Parse `text` into a module. Raises UnsupportedPtxError for unsupported text."""
    try:
        return _parse(text)
    except (ValueError, IndexError, AttributeError, TypeError) as error:
        # The readers below assume compiler output, so other text makes them fail in many ways.
        raise UnsupportedPtxError(f"text that is not the PTX of a compiler ({error})") from None


def _parse(text: str) -> Module:
    text = _COMMENT_OR_STRING.sub(lambda match: match[0] if match[0][0] == '"' else "", text)
    texts = {}
    for section in _SECTION.finditer(text):
        texts.update(_debug_texts(section.group(2)))
    parser = _ModuleParser(_SECTION.sub("", text))
    parser.run()
    return Module(
        functions={function.name: function for function in parser.functions},
        declared=frozenset(parser.declared),
        variables=tuple(parser.variables),
        files=parser.files,
        texts=texts,
    )


def parse_operand(text: str, scope: _Scope) -> Operand:
    """Parse one operand. Register names are resolved in `scope`."""
    text = text.strip()
    head = text[:1]
    if head == "[":
        return _parse_address(text[1:-1].strip(), scope)
    if head in ("{", "("):
        inside = text[1:-1].strip()
        return Vector(tuple(parse_operand(part, scope) for part in _split_commas(inside)) if inside else ())
    if head == "!":
        return Negated(scope.register(text[1:].strip()))
    if "|" in text:
        first, second = text.split("|")
        return Pair(parse_operand(first, scope), parse_operand(second, scope))
    return _parse_simple(text, scope)


@dataclass
class _Scope:
    """Resolve visible names. Nested braces may redeclare a name, so each scope has a suffix."""

    parent: _Scope | None
    suffix: str
    registers: set[str] = field(default_factory=set)
    prefixes: set[str] = field(default_factory=set)
    """Prefixes of register ranges: ``.reg .b32 %r<5>`` declares the prefix ``%r``."""
    symbols: set[str] = field(default_factory=set)

    def resolve(self, name: str) -> Register | Symbol:
        """Return what the name refers to in this scope.
        Special registers and names from outside of the function stay unchanged."""
        prefix = name.rstrip("0123456789")
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.registers or (prefix in scope.prefixes and prefix != name):
                return Register(name + scope.suffix)
            if name in scope.symbols:
                return Symbol(name + scope.suffix)
            scope = scope.parent
        return Register(name) if name.startswith("%") else Symbol(name)

    def register(self, name: str) -> Register:
        """Return the register of that name. Raises UnsupportedPtxError when it is something else."""
        found = self.resolve(name)
        if not isinstance(found, Register):
            raise UnsupportedPtxError(f"'{name}' is not a register")
        return found


class _ModuleParser:
    """Parse the top level of the file."""

    def __init__(self, text: str) -> None:
        self.text, self.position = text, 0
        self.functions: list[Function] = []
        self.declared: list[str] = []
        self.variables: list[Variable] = []
        self.files: dict[int, str] = {}

    def run(self) -> None:
        while self._skip_space():
            if line := _LINE_DIRECTIVE.match(self.text, self.position):
                self._line_directive(line)
            elif _FUNCTION.match(self.text, self.position):
                self._function()
            else:
                self._variable()

    def _skip_space(self) -> bool:
        found = re.compile(r"\s*").match(self.text, self.position)
        self.position = found.end() if found else self.position
        return self.position < len(self.text)

    def _line_directive(self, line: re.Match[str]) -> None:
        if file := _FILE.match(line.group()):
            self.files[int(file.group(1))] = file.group(2)
        self.position = line.end()

    def _variable(self) -> None:
        end = self.text.find(";", self.position)
        if end < 0:
            raise UnsupportedPtxError(f"cannot read '{self.text[self.position : self.position + 60]}'")
        statement = self.text[self.position : end].strip()
        self.position = end + 1
        if statement.startswith((".pragma", ".alias")):
            return
        self.variables.append(_parse_variable(statement))

    def _function(self) -> None:
        brace, semicolon = self.text.find("{", self.position), self.text.find(";", self.position)
        if semicolon >= 0 and (brace < 0 or semicolon < brace):
            self.declared.append(_parse_header(self.text[self.position : semicolon]).name)
            self.position = semicolon + 1
            return
        start = self.position
        header = _parse_header(self.text[start:brace])
        body = _BodyParser(self.text, brace + 1)
        self.position = body.run()
        self.functions.append(
            Function(
                name=header.name,
                is_entry=header.is_entry,
                parameters=header.parameters,
                results=header.results,
                variables=tuple(body.variables),
                registers=body.registers,
                branch_tables=body.branch_tables,
                statements=tuple(body.statements),
                max_threads=_max_threads(self.text[start:brace]),
                cluster=_cluster(self.text[start:brace]),
                needs_cluster=".explicitcluster" in self.text[start:brace],
            )
        )


class _BodyParser:
    """Parse the body of one function, from after its opening brace."""

    def __init__(self, text: str, position: int) -> None:
        self.text, self.position = text, position
        self.scope = _Scope(None, "")
        self.n_scopes = 0
        self.registers: dict[str, str] = {}
        self.variables: list[Variable] = []
        self.branch_tables: dict[str, tuple[str, ...]] = {}
        self.statements: list[Statement] = []
        self.location: Location | None = None
        self.call_sites: dict[tuple[int, int, int], Location] = {}

    def run(self) -> int:
        """Parse the body and return the position after the closing brace."""
        space = re.compile(r"[\s;]*")
        while True:
            found = space.match(self.text, self.position)
            self.position = found.end() if found else self.position
            head = self.text[self.position : self.position + 1]
            if not head:
                raise UnsupportedPtxError("the function has no end")
            if head == "{":
                self._open_scope()
            elif head == "}":
                self.position += 1
                if self.scope.parent is None:
                    return self.position
                self.scope = self.scope.parent
            else:
                self._statement()

    def _open_scope(self) -> None:
        self.position += 1
        self.n_scopes += 1
        self.scope = _Scope(self.scope, f"@{self.n_scopes}", symbols=self._labels_ahead())

    def _labels_ahead(self) -> set[str]:
        """Return the labels of the scope that begins here: a branch may come before its label."""
        depth, labels = 0, set()
        for found in _BRACE_OR_LABEL.finditer(self.text, self.position):
            if label := found.group(1):
                labels |= {label} if depth == 0 else set()
            else:
                depth += 1 if found.group() == "{" else -1
            if depth < 0:
                break
        return labels

    def _statement(self) -> None:
        if line := _LINE_DIRECTIVE.match(self.text, self.position):
            self._line(line)
        elif label := _LABEL.match(self.text, self.position):
            self._label(label)
        else:
            end = self.text.index(";", self.position)
            statement = self.text[self.position : end].strip()
            self.position = end + 1
            self._declaration(statement) if statement[0] == "." else self._instruction(statement)

    def _line(self, line: re.Match[str]) -> None:
        self.position = line.end()
        found = _LOC.match(line.group())
        if not found:
            return
        file, row, column = int(found.group(1)), int(found.group(2)), int(found.group(3))
        if found.group(4) is None:
            self.location = Location(file, row, column)
            return
        caller = (int(found.group(5)), int(found.group(6)), int(found.group(7)))
        inlined_at = self.call_sites.get(caller) or Location(*caller)
        self.location = Location(file, row, column, found.group(4), inlined_at)
        self.call_sites[(file, row, column)] = self.location

    def _label(self, label: re.Match[str]) -> None:
        self.position = label.end()
        name = label.group(1)
        table = re.compile(r"\s*\.branchtargets\s+([^;]*);").match(self.text, self.position)
        if table:
            targets = (part.strip() for part in table.group(1).split(","))
            self.branch_tables[self._label_name(name)] = tuple(self._label_name(target) for target in targets)
            self.position = table.end()
            return
        prototype = re.compile(r"\s*\.callprototype\b[^;]*;").match(self.text, self.position)
        if prototype:
            self.position = prototype.end()
            return
        self.statements.append(Label(self._label_name(name)))

    def _label_name(self, name: str) -> str:
        """Return a label's name in the whole function: braces of inline assembly may hold one that others have."""
        found = self.scope.resolve(name)
        return found.name if isinstance(found, Symbol) else name

    def _declaration(self, statement: str) -> None:
        if statement.startswith(".reg"):
            self._registers(statement[4:])
        elif not statement.startswith(".pragma"):
            variable = _parse_variable(statement)
            if self.scope.parent is not None:
                self.scope.symbols.add(variable.name)
                variable = _renamed(variable, variable.name + self.scope.suffix)
            self.variables.append(variable)

    def _registers(self, statement: str) -> None:
        kind, names = statement.strip().lstrip(".").split(None, 1)
        if kind not in WIDTH_BITS:
            raise UnsupportedPtxError(f"registers of type .{kind}")
        for part in names.split(","):
            name = part.strip()
            if name.endswith(">"):
                prefix, count = name[:-1].split("<")
                self.scope.prefixes.add(prefix)
                self.registers.update((f"{prefix}{index}{self.scope.suffix}", kind) for index in range(int(count)))
            else:
                self.scope.registers.add(name)
                self.registers[name + self.scope.suffix] = kind

    def _instruction(self, statement: str) -> None:
        text = _SPACE.sub(" ", statement)
        guard, rest = self._guard(text)
        opcode, _, operands = rest.partition(" ")
        if not _ and "{" in opcode:
            raise UnsupportedPtxError(f"cannot read '{text}'")
        name, *modifiers = opcode.replace("::", "__").split(".")
        parsed = tuple(parse_operand(part, self.scope) for part in _split_commas(operands.strip()))
        self.statements.append(Instruction(name, tuple(modifiers), parsed, guard, self.location, text))

    def _guard(self, text: str) -> tuple[Guard | None, str]:
        if not text.startswith("@"):
            return None, text
        predicate, _, rest = text[1:].partition(" ")
        is_negated = predicate.startswith("!")
        return Guard(self.scope.register(predicate.lstrip("!")), is_negated), rest.lstrip()


@dataclass(frozen=True)
class _Header:
    name: str
    is_entry: bool
    parameters: tuple[Variable, ...]
    results: tuple[Variable, ...]


def _parse_header(text: str) -> _Header:
    """Parse ``.visible .entry name(params) .maxntid ...`` or ``.func (results) name(params)``."""
    found = re.match(
        r"(?:\.\w+\s+)?\.(entry|func)\s*(?:\.noreturn\s*)?(\([^)]*\))?\s*([$\w]+)\s*(\((?:[^()]|\([^)]*\))*\))?", text
    )
    if not found:
        raise UnsupportedPtxError(f"cannot read the function header '{_SPACE.sub(' ', text)[:80]}'")
    kind, results, name, parameters = found.groups()
    return _Header(name, kind == "entry", _parse_parameters(parameters), _parse_parameters(results))


def _max_threads(header: str) -> int:
    """Return the product of ``.maxntid`` or ``.reqntid``; 0 when there is neither."""
    found = re.search(r"\.(?:maxntid|reqntid)\s+(\d+(?:\s*,\s*\d+)*)", header)
    return math.prod(int(size) for size in found.group(1).split(",")) if found else 0


def _cluster(header: str) -> tuple[int, ...]:
    """Return the three sizes of ``.reqnctapercluster``, or an empty tuple."""
    found = re.search(r"\.reqnctapercluster\s+(\d+(?:\s*,\s*\d+)*)", header)
    if not found:
        return ()
    sizes = [int(size) for size in found.group(1).split(",")]
    return (*sizes, *(1,) * (3 - len(sizes)))


def _parse_parameters(text: str | None) -> tuple[Variable, ...]:
    inside = (text or "")[1:-1].strip()
    if not inside:
        return ()
    return tuple(_parse_variable(part.strip()) for part in inside.split(",") if part.strip())


def _parse_variable(text: str) -> Variable:
    found = _VARIABLE.match(text.strip())
    if not found:
        raise UnsupportedPtxError(f"cannot read the declaration '{_SPACE.sub(' ', text)[:80]}'")
    space, middle, kind, name, dims, initialiser = found.groups()
    element_bytes = max(1, WIDTH_BITS[kind] // 8)
    n_elements = 1
    for dim in re.findall(r"\[\s*(\d*)\s*\]", dims or ""):
        n_elements *= int(dim or 0)
    align = re.search(r"\.align\s+(\d+)", middle)
    initial, references = _parse_initialiser(initialiser, element_bytes)
    return Variable(
        name=name,
        space=space,
        n_bytes=n_elements * element_bytes,
        align=int(align.group(1)) if align else element_bytes,
        initial=initial,
        references=references,
        is_extern=n_elements == 0,
    )


def _parse_initialiser(text: str | None, element_bytes: int) -> tuple[bytes, tuple[tuple[int, Symbol], ...]]:
    data, references = bytearray(), []
    for part in re.findall(r"[^\s{},]+", text or ""):
        if _INTEGER.match(part):
            bits = _parse_integer(part)
        elif re.match(r"0[fFdD][0-9a-fA-F]+$", part):
            bits = int(part[2:], 16)
        elif reference := re.match(r"(?:generic\()?([$%A-Za-z_][\w$]*)(?:\+(\d+))?\)?(?:\+(\d+))?$", part):
            references.append(
                (len(data), Symbol(reference.group(1), int(reference.group(2) or reference.group(3) or 0)))
            )
            bits = 0
        else:
            raise UnsupportedPtxError(f"cannot read the initialiser '{part}'")
        data += (bits & ((1 << 8 * element_bytes) - 1)).to_bytes(element_bytes, "little")
    return bytes(data), tuple(references)


def _renamed(variable: Variable, name: str) -> Variable:
    return Variable(name, variable.space, variable.n_bytes, variable.align, variable.initial, variable.references)


def _parse_integer(text: str) -> int:
    text = text.rstrip("U")
    if text.startswith("0") and text.isdigit() and len(text) > 1:
        return int(text, 8)
    return int(text, 0)


def _parse_simple(text: str, scope: _Scope) -> Operand:
    if _INTEGER.match(text):
        return Immediate(_parse_integer(text))
    lowered = text[:2].lower()
    if lowered == "0f" or (lowered == "0d" and len(text) == 18):
        return Immediate(int(text[2:], 16), 32 if lowered == "0f" else 64)
    if text == "WARP_SZ":
        return Immediate(WARP_SIZE)
    name, _, offset = text.partition("+")
    found = scope.resolve(name.strip())
    if isinstance(found, Symbol) and offset:
        return Symbol(found.name, _parse_integer(offset.strip()))
    return found


def _parse_address(text: str, scope: _Scope) -> Address:
    place, *coordinates = _split_commas(text)
    found = re.match(r"([^+\-,]+)\s*(?:\+?\s*(-?\s*\w+))?$", place)
    if not found:
        raise UnsupportedPtxError(f"cannot read the address [{text}]")
    base = _parse_simple(found.group(1).strip(), scope)
    if not isinstance(base, Register | Symbol | Immediate):
        raise UnsupportedPtxError(f"cannot read the address [{text}]")
    offset = _parse_integer(found.group(2).replace(" ", "")) if found.group(2) else 0
    return Address(base, offset, tuple(parse_operand(part, scope) for part in coordinates))


def _split_commas(text: str) -> list[str]:
    """Split at commas outside of brackets."""
    if not text:
        return []
    if not any(bracket in text for bracket in "[{("):
        return text.split(",")
    parts, depth, start = [], 0, 0
    for index, character in enumerate(text):
        if character in "[{(":
            depth += 1
        elif character in "]})":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    parts.append(text[start:])
    return parts


def _debug_texts(section: str) -> dict[str, str]:
    found = {}
    for label, data in _DEBUG_TEXT.findall(section):
        codes = [int(code) for code in re.findall(r"\b\d+\b", data.replace(".b8", ""))]
        found[label] = bytes(code for code in codes if code).decode(errors="replace")
    return found
