"""Run every rule over a Python file. Findings of a function are cached until its text changes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from kernel_lsp.rules.cached import Kept, uncollected
from kernel_lsp.rules.finding import FINDING_BYTES, RuleFinding, shifted_finding
from kernel_lsp.rules.pytorch import (
    compiling,
    copies,
    cost,
    devices,
    doubles,
    graphs,
    loading,
    memory,
    precision,
    rows,
    sync,
    timing,
    training,
    usage,
)
from kernel_lsp.rules.pytorch.program.file_names import ModuleClass, Names, read_names
from kernel_lsp.rules.pytorch.program.functions import FunctionNode
from kernel_lsp.rules.pytorch.program.inference import read_program
from kernel_lsp.rules.pytorch.program.parsing import ParsedModule, parse
from kernel_lsp.rules.pytorch.program.scopes import Scope, first_line
from kernel_lsp.rules.pytorch.program.trained import is_hot, may_be_forward
from kernel_lsp.rules.rule import Check, checks_in

CHECKS = checks_in(
    *(
        sync,
        cost,
        copies,
        devices,
        memory,
        doubles,
        graphs,
        precision,
        usage,
        training,
        loading,
        timing,
        rows,
        compiling,
    )
)
RULES = tuple(check.rule for check in CHECKS)
MAX_FINDINGS = 500
"""Maximum findings per file. An editor shows no more usefully."""
MAX_KEPT_FUNCTIONS, MAX_KEPT_BYTES = 4096, 8 << 20
"""Maximum cached functions and bytes over all files. The bytes include the functions' lines, which are the keys."""
LINE_BYTES = 64
"""Memory of one line in bytes, in addition to its characters."""


@uncollected
def check(text: str, *, tree: ParsedModule | None = None) -> tuple[RuleFinding, ...]:
    """Return the findings in a Python file that imports torch, in source order. Never raises.

    `tree` is a parse that the caller keeps. It is used only if it matches the text. If the text does not parse as a
    whole, the top-level statements that do parse are checked. A line that ends in ``# noqa`` or ``# noqa: KL101``
    suppresses all findings or those of that code.
    """
    if "torch" not in text:
        return ()
    module = tree if tree is not None and tree.text == text else parse(text)
    names = read_names(module)
    if not names.has_torch:
        return ()
    found = dict.fromkeys(_findings(module, names))
    kept = [finding for finding in found if not _is_silenced(finding, module)]
    return tuple(sorted(kept, key=lambda finding: (finding.range, finding.code))[:MAX_FINDINGS])


_Entry = tuple[tuple[RuleFinding, ...], int | None]
"""The findings of a function, and the hash of the file's text where they depend on other functions."""


def _n_bytes_of(key: tuple, entry: _Entry) -> int:
    """Return the bytes of an entry: its lines and its findings."""
    return sum(map(len, key[0])) + LINE_BYTES * len(key[0]) + FINDING_BYTES * len(entry[0])


_kept: Kept[tuple, _Entry] = Kept(MAX_KEPT_FUNCTIONS, MAX_KEPT_BYTES, _n_bytes_of)
"""Cached findings, by everything in a function and its file that the rules read directly. Ranges are relative to the
function's first line."""


def _findings(module: ParsedModule, names: Names) -> Iterator[RuleFinding]:
    selection = _Selection(names, module)
    try:
        top = selection.program.read_once(module.tree, None)
    except RecursionError:  # nested beyond the stack: nothing is reported
        return
    yield from _check(top, selection.checks_for(module.text, False))
    for node, owner in top.inner:
        yield from _function_findings(node, owner, module, selection)


def _function_findings(
    node: FunctionNode, owner: ModuleClass | None, module: ParsedModule, selection: _Selection
) -> tuple[RuleFinding, ...]:
    """Return the findings of a function and of all functions nested in it."""
    line = first_line(node) - 1
    init = None if owner is None else owner.methods.get("__init__")
    seen_of_class = None if owner is None else (owner.context, () if init is None else _lines(init, module))
    seen = (selection.names.context, selection.seen_of_file, bool(selection.program.functions.by_node))
    key = (_text(node, module), node.col_offset, seen, seen_of_class)
    found, text = _kept.get(key) or ((), 0)
    if text is not None and text != selection.text:
        fresh, is_followed = _fresh_findings(node, owner, module, selection)
        found = tuple(shifted_finding(finding, -line) for finding in fresh)
        _kept.keep(key, (found, selection.text if is_followed else None))
    return tuple(shifted_finding(finding, line) for finding in found)


_FILE_WORDS = (
    "channels_last",
    "autocast",
    ".half()",
    "bfloat16",
    "float16",
    "cuda",
    "caler",
    "scale_loss",
    "enabled=False",
    "compile",
    "dynamic=False",
)
_LINE_WORDS = ("Linear(", "Embedding(", "vocab", "VOCAB", "enabled=False")
_DEFINITION_WORDS = ("Conv2d", "synchronize", "backward", ".eval()", ".item(", ".cpu(", "perf_counter", "time()")


def _seen_of_file(module: ParsedModule) -> tuple:
    """Return what rules about one function read elsewhere in the file: words, and the classes' bases and numbers."""
    classes = [node for node in module.tree.body if isinstance(node, ast.ClassDef)]
    fields = [field for each in classes for field in each.body]
    assigned = (node for node in (*fields, *module.tree.body) if isinstance(node, ast.Assign | ast.AnnAssign))
    numbers = frozenset(ast.unparse(each) for each in assigned if isinstance(each.value, ast.Constant))
    words = frozenset(word for word in _FILE_WORDS if word in module.text)
    lines = frozenset(line.strip() for line in module.lines if any(word in line for word in _LINE_WORDS))
    definitions = (node for node in module.tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef))
    texts = ((each.name, "\n".join(module.lines[each.lineno - 1 : each.end_lineno])) for each in definitions)
    found = frozenset((name, word) for name, text in texts for word in _DEFINITION_WORDS if word in text)
    n_convolutions = min(module.text.count("Conv2d("), 2)
    return words, n_convolutions, frozenset((c.name, bool(c.bases)) for c in classes), numbers, lines, found


def _text(node: FunctionNode, module: ParsedModule) -> tuple[str, ...]:
    """Return the function's lines and the line above, which may contain a pragma."""
    first = max(first_line(node) - 2, 0)
    above = module.lines[first] if first_line(node) >= 2 else ""
    return (above.strip(), *_lines(node, module))


def _lines(node: FunctionNode, module: ParsedModule) -> tuple[str, ...]:
    return module.lines[first_line(node) - 1 : node.end_lineno]


def _fresh_findings(
    node: FunctionNode, owner: ModuleClass | None, module: ParsedModule, selection: _Selection
) -> tuple[list[RuleFinding], bool]:
    """Return the findings of a function and of those nested in it, and whether they depend on other functions. A
    function that no rule can match is not read."""
    found: list[RuleFinding] = []
    is_followed = False
    waiting: list[tuple[FunctionNode, ModuleClass | None]] = [(node, owner)]
    while waiting:
        function, its_owner = waiting.pop()
        text = "\n".join(_lines(function, module))
        checks = selection.checks_for(text, may_be_forward(function, its_owner, module))
        if not checks and text.count("def") <= 1 and "class" not in text:
            continue
        try:
            scope = selection.program.read_once(function, its_owner)
        except RecursionError:  # nested beyond the stack: nothing is reported
            continue
        found += _check(scope, checks)
        is_followed = is_followed or scope.is_followed
        waiting += scope.inner
    return found, is_followed


def _check(scope: Scope, checks: tuple[Check, ...]) -> list[RuleFinding]:
    try:
        scope.is_forward = scope.is_forward and is_hot(scope)
        wanted = [check for check in checks if check.on == "any" or scope.is_forward]
        return [finding for check in wanted for finding in check.findings(scope)]
    except RecursionError:  # an expression nested beyond the stack: nothing is reported for this function
        return []


class _Selection:
    """The rules that each scope of one file needs, by the words in its text. A name that an import renames counts as
    present in every scope."""

    def __init__(self, names: Names, module: ParsedModule) -> None:
        self.names = names
        self.program = read_program(module, names)
        self.text = hash(module.text)
        self.seen_of_file = _seen_of_file(module)
        renamed = {target.rpartition(".")[2] for target in names.imported.values()} - names.imported.keys()
        self.renamed = "".join(f" {name}(" for name in sorted(renamed))
        self.selected: dict[tuple, tuple[Check, ...]] = {}

    def checks_for(self, text: str, is_hot: bool) -> tuple[Check, ...]:
        """Return the checks that may find something in a scope, which may be a forward. All checks are returned if
        the text may spell letters in several ways."""
        if not text.isascii():
            return tuple(check for check in CHECKS if check.on == "any" or is_hot)
        text += self.renamed
        words, symbols = set(_WORD.findall(text)), text.replace("->", "")
        present = [word for word in _NEEDED_WORDS if word in words]
        present += [symbol for symbol in _NEEDED_SYMBOLS if symbol in symbols]
        key = is_hot, *present
        if key not in self.selected:
            self.selected[key] = tuple(_without_others(frozenset(present), is_hot))
        return tuple(check for check in self.selected[key] if not check.patterns or check.may_find_in(text))


def _without_others(present: frozenset[str], is_hot: bool) -> Iterator[Check]:
    for check in CHECKS:
        has_words = not any(present.isdisjoint(needed.split()) for needed in check.needs)
        if has_words and (check.on == "any" or is_hot):
            yield check


_WORD = re.compile(r"\w+")
_NEEDED = sorted({word for check in CHECKS for needed in check.needs for word in needed.split()})
_NEEDED_WORDS = tuple(word for word in _NEEDED if _WORD.fullmatch(word))
_NEEDED_SYMBOLS = tuple(word for word in _NEEDED if not _WORD.fullmatch(word))
_NOQA = re.compile(r"#\s*noqa\b(?::\s*(?P<codes>[A-Z]+\d+(?:[,\s]+[A-Z]+\d+)*))?", re.IGNORECASE)


def _is_silenced(finding: RuleFinding, module: ParsedModule) -> bool:
    line = module.lines[finding.range.start_line] if finding.range.start_line < len(module.lines) else ""
    match = _NOQA.search(line) if "noqa" in line.lower() else None
    return match is not None and (match["codes"] is None or finding.code in match["codes"].upper())
