"""Read the launch plan at the head of an operator's `.cu` file, and compile it: to the contract of each operation, and
to the function that launches it.

The part below the imports is carried by the shared runtime of operator files, word for word.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from .operator_support import DTYPES, Contract, ceil_div, holds, require, sizes
from .sdpa import sdpa_backward, sdpa_backward_kept, sdpa_forward, sdpa_forward_kept

# --- Launch plans ---------------------------------------------------------------------------------------

MAX_ELEMENTS = (1 << 31) - (1 << 24)  # of a tensor: kernels count in 32 bits, past the last index by up to a grid
MAY_DIVIDE_BY_ZERO = re.compile(r"ceil_div|[/%] *[^/ \d]")
PLAN_START = re.compile(r"\s*//\s*kernel-lsp\s*:")
DIRECTIVE = re.compile(r"([A-Za-z][\w-]*)\s*(?:\[([^\]]*)\]\s*)?:(?!:)\s*(.*)", re.DOTALL)
CONTINUED = re.compile(r"\s*//\s{3,}(\S.*)")
ORPHAN = re.compile(r"(op|launch|library)[^:]*:\s*[\w:.]+\s*[<(]|where\b.*[<=>]|(keeps|scratch)\b.*\[|fill\b.*=")
NO_FUNCTION = re.compile(r"\b[A-Za-z_]\w*\b(?!\s*\()")
NO_EXPRESSION = re.compile(r"[^\w\s.+\-*/%<>=!(),\[\]]|[A-Za-z_]\w*\s*\.|[)\].]\s*\.|[)\]]\s*\(")
OPERATORS = (ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.Compare, ast.unaryop, ast.operator, ast.boolop, ast.cmpop)
IN_EXPRESSIONS = (ast.Expression, ast.List, ast.Tuple, ast.Name, ast.Constant, ast.Call, ast.expr_context, *OPERATORS)
WORDS_OF_PLANS = {"true": True, "false": False, "inf": math.inf, "nan": math.nan, "none": None}
FUNCTIONS = {"ceil_div": ceil_div, "min": min, "max": max}
NO_TABLE: Mapping[str, str] = {}


class LaunchPlan:
    """The launch plan in the `.cu` file beside `file`, for an operator that takes the arguments of `function`.

    It has what the file does not say: `where`, numbers and sizes that the kernels hold for alone; names that are
    `renamed`, since Python or the operator's file uses them; and, by kernel, the C++ name of one that needs more than
    its name (`kernels`), and the C++ types of the numbers that it takes (`numbers`) where these are not `float` and
    `bool` for arguments of that type and `int` for all else. `problem` explains why there is no plan."""

    def __init__(
        self,
        file: str,
        function: Callable[..., Any],
        *,
        where: Sequence[str] = (),
        backward_where: Sequence[str] = (),
        renamed: Mapping[str, str] = NO_TABLE,
        kernels: Mapping[str, str] = NO_TABLE,
        numbers: Mapping[str, str] = NO_TABLE,
    ) -> None:
        self.file, self.function, self.path = file, function, Path(file).with_suffix(".cu")
        self.renamed, self.kernels, self.numbers = renamed, kernels, numbers
        self.arguments = {name: each.annotation for name, each in inspect.signature(function).parameters.items()}
        self.problem = ""
        self.forward: Plan | None = None
        self.backward: Plan | None = None
        try:
            self.forward, self.backward = self._read(self.path.read_text(encoding="utf-8"), where, backward_where)
        except OSError as error:
            self.problem = f"{self.path.name} cannot be read: {error.strerror}"
        except (ArithmeticError, LookupError, MemoryError, RecursionError, SyntaxError, TypeError, ValueError) as error:
            self.problem = f"{self.path.name} has another launch plan than {Path(file).name} was written for: {error}"

    def _read(self, text: str, where: Sequence[str], backward_where: Sequence[str]) -> tuple[Plan, Plan | None]:
        first, *others = _operations(text)
        forward, backward = Plan(self, first, where), None
        if others:
            of_numbers = [each for each in where if _words(each) - {"not"} <= self.arguments.keys()]
            backward = Plan(self, others[0], [*of_numbers, *backward_where], forward)
            backward.compile()
        forward.compile(kept=backward.before if backward is not None else ())
        return forward, backward


class Plan:
    """One operation of a launch plan. A backward takes the gradients of the results, what it is given of all that its
    `forward` returns, and the arguments of that. `contract` says what its kernels take, and `run` allocates,
    launches by its first argument, a `Run`, and returns the results."""

    contract: Callable[..., Contract]
    run: Callable[..., Any]

    def __init__(
        self,
        plan: LaunchPlan,
        directives: Sequence[tuple[str, str, str]],
        where: Sequence[str],
        forward: Plan | None = None,
    ) -> None:
        self.plan, self.forward = plan, forward
        self.name = plan.function.__name__ + ("_backward" if forward is not None else "")
        self.numbers = {name: type_ for name, type_ in plan.arguments.items() if type_ != "Tensor"}
        self.where, self.steps = [*where], []
        self.kept: dict[str, str] = {}
        self.scratch: dict[str, str] = {}
        for key, condition, body in directives:
            text = self._renamed(body) if key != "launch" else body
            if key == "op":
                self._declare(text)
            elif key == "where":
                self.where.append(_expression(text))
            elif key in ("keeps", "scratch"):
                (self.kept if key == "keeps" else self.scratch).update(map(_declared, _entries(text)))
            elif key in _STEPS:
                self.steps.append((key, _expression(self._renamed(condition)), text))

    def _renamed(self, text: str) -> str:
        """Rename arguments and dims; a function may have the name of one."""
        return NO_FUNCTION.sub(lambda word: self.plan.renamed.get(word[0], word[0]), text)

    def _declare(self, body: str) -> None:
        takes, _, returns = body.rpartition("->")
        takes = takes.strip()[:-1].partition("(")[2]
        declared = dict(map(_declared, _entries(takes)))
        self.inputs = {name: type_ for name, type_ in declared.items() if type_.endswith("]")}
        results = [each.partition("=") for each in _entries(returns.strip()[1:-1])]
        self.same = {_word(name): _word(of) for name, _, of in results if of}
        self.results = dict(_declared(name) for name, _, of in results if not of)
        self.before = self._before(declared) if self.forward is not None else []
        self.order = [*self.before, *self.plan.arguments]
        if strange := declared.keys() - set(self.order):
            raise ValueError(f"{self.name} takes {', '.join(sorted(strange))}")
        if not self.inputs:
            raise ValueError(f"{self.name} takes no tensor")

    def _before(self, declared: Mapping[str, str]) -> list[str]:
        """List what a backward takes before the forward's arguments."""
        assert self.forward is not None
        floating = [name for name, type_ in self.forward.results.items() if type_.startswith(("f", "bf"))]
        short = {f"grad_{name}": f"grad_{name.removesuffix('_')}" for name in floating}  # as in `argument_of`
        gradients = [of if of in declared and name not in declared else name for name, of in short.items()]
        returned = {**self.forward.results, **self.forward.kept}
        return [*gradients, *[name for name in declared if name in returned]]

    def argument_of(self, gradient: str) -> str:
        """Return the argument that a gradient belongs to; an underscore tells it from a name that the file has."""
        name = gradient[len("grad_") :]
        return name if name in self.order else f"{name}_"

    def given(self) -> list[int]:
        """Return what a backward is given of all that its forward returns, by place."""
        assert self.forward is not None
        returned = [*self.forward.results, *self.forward.kept]
        return [returned.index(name) for name in self.before if name in returned]

    def same_gradients(self) -> dict[str, str | int]:
        """Return the arguments whose gradient is another argument's, by name, or a result's, by its number."""
        same = {name: self.same.get(of, of) for name, of in self.same.items()}
        held = {name: place for place, name in enumerate(self.before)}
        return {self.argument_of(name): held.get(of, self.argument_of(of)) for name, of in same.items()}

    @property
    def kernels(self) -> list[str]:
        """List the kernels that no shape chooses."""
        launches = [(number, body) for number, (step, _, body) in enumerate(self.steps, 1) if step == "launch"]
        names = dict.fromkeys(self._kernel(body.partition("<<<")[0], number) for number, body in launches)
        return [name for name in names if "{" not in name]

    def schema(self) -> str:
        """Return the schema behind the name: ``(Tensor x, float eps) -> Tensor``."""
        types = {"int": "SymInt", "float": "float", "bool": "bool"}
        takes = ", ".join(f"{types.get(self.numbers.get(name, ''), 'Tensor')} {name}" for name in self.order)
        returned = ["Tensor"] * (len(self.results) + len(self.kept))
        return f"({takes}) -> {returned[0] if len(returned) == 1 else '(' + ', '.join(returned) + ')'}"

    # as Python

    def compile(self, kept: Sequence[str] = ()) -> None:
        """Make `contract` and `run`. Of what a forward can keep it keeps what its backward is given, `kept`."""
        unused = {name: type_ for name, type_ in self.kept.items() if name not in kept}
        self.kept = {name: type_ for name, type_ in self.kept.items() if name in kept}
        self.scratch = {**unused, **self.scratch}
        arguments = ", ".join(self.order)
        contract = [f"def contract({arguments}):", *_indented(self._contract())]
        steps = [f"def steps(run, {arguments}):", *_indented(self._steps())]
        source, place = "\n".join([*contract, *steps, ""]), f"{self.plan.file}::{self.name}"
        linecache.cache[place] = (len(source), None, source.splitlines(keepends=True), place)
        attention = (sdpa_forward, sdpa_backward, sdpa_forward_kept, sdpa_backward_kept)
        known = {each.__name__: each for each in (sizes, holds, Contract, *attention)}
        functions = {f"{name}()": function for name, function in {"bool": bool, "str": str, **FUNCTIONS}.items()}
        names: dict[str, Any] = {"torch": torch, **WORDS_OF_PLANS, **functions, **known}
        if self.results and not self.steps:
            raise ValueError(f"{self.name} launches nothing")
        tree = ast.fix_missing_locations(_Functions().visit(ast.parse(source)))
        _check_names(tree, names)
        exec(compile(tree, place, "exec"), names)  # expressions of the plan, which `_expression` has checked
        self.contract, self.run = names["contract"], names["steps"]

    def _contract(self) -> list[str]:
        inputs = [f"{_label(item)}: ({item[0]}, {_shape(item[1])})" for item in self.inputs.items()]
        conditions = [f"{each!r}: {self._condition(each)}" for each in [*self.where, *self._countable()]]
        numbers = [f"{_label(item)}: {item[0]}" for item in self.numbers.items()]
        parts = [inputs, _shapes(self.results), conditions, numbers, _shapes(self.kept)]
        made = ", ".join("{" + ", ".join(part) + "}" for part in parts)
        return [*self._dims("sizes({name}, {rank})"), f"return Contract({made})"]

    def _condition(self, text: str) -> str:
        may_fail = MAY_DIVIDE_BY_ZERO.search(text) or not self.numbers.keys().isdisjoint(_words(text))
        return f"holds(lambda: {text})" if may_fail else text

    def _countable(self) -> list[str]:
        """Return conditions that bound the elements of each tensor. Dims are at least 1, so that a tensor whose dims
        are all among those of another needs none."""
        types = {**self.inputs, **self.results, **self.kept, **self.scratch}.values()
        shapes = [Counter(_dims_of(type_)) for type_ in dict.fromkeys(types) if _words(type_.partition("[")[2])]
        largest = [own for own in shapes if not any(own != other and not own - other for other in shapes)]
        products = dict.fromkeys(" * ".join(map(_grouped, own.elements())) for own in largest)
        return [f"{product} <= {MAX_ELEMENTS}" for product in products]

    def _dims(self, shape: str) -> list[str]:
        """Assign each dim, from the first tensor and place at which it stands alone."""
        lines, known = [], {*self.numbers}
        for name, type_ in self.inputs.items():
            dims = _dims_of(type_)
            own = ["_" if not d.isidentifier() or d in known or d in dims[:i] else d for i, d in enumerate(dims)]
            known.update(own)
            if any(dim != "_" for dim in own):
                lines.append(f"{', '.join(own)}, = {shape.format(name=name, rank=len(own))}")
        return lines

    def _steps(self) -> list[str]:
        returned = {**self.results, **self.kept}
        device, made = f"{next(iter(self.inputs))}.device", self._made()
        used = {word for _, _, body in self.steps for word in _words(self._renamed(body))}
        lines = self._dims("{name}.shape")
        for name, type_ in {**returned, **self.scratch}.items():
            if name not in made and (name in used or name in returned):
                dtype = DTYPES[type_.partition("[")[0]]
                lines.append(f"{name} = torch.empty({_shape(type_)}, dtype={dtype}, device={device})")
        for number, (step, condition, body) in enumerate(self.steps, 1):
            own = _STEPS[step](self, body, number)
            lines += [f"if {condition}:", *_indented(own)] if condition else own
        lines.append(f"return {', '.join(returned)}")
        has_library = any(step == "library" for step, _, _ in self.steps)
        return ['with torch.autocast("cuda", enabled=False):', *_indented(lines)] if has_library else lines

    def _made(self) -> set[str]:
        """Return the tensors that a library step allocates, before any other step has them."""
        made: set[str] = set()
        seen: set[str] = set()
        for step, condition, body in self.steps:
            if step == "library" and not condition:
                made |= _words(body.rpartition("->")[2]) - seen
            seen |= _words(self._renamed(body))
        return made

    # steps

    def _fill(self, body: str, number: int) -> list[str]:
        tensor, _, value = body.partition("=")
        return [f"{_word(tensor)}.fill_({_expression(value.strip())})"]

    def _launch(self, body: str, number: int) -> list[str]:
        kernel, _, rest = body.partition("<<<")
        size, _, rest = rest.partition(">>>")
        listed, attributes = _parenthesized(rest)
        grid, block, *shared = [re.sub(r"^dim3\s*", "", _expression(each)) for each in _entries(self._renamed(size))]
        given = [_expression(each) for each in _entries(self._renamed(listed))]
        tensors = {**self.inputs, **self.results, **self.kept, **self.scratch}
        types = [self.numbers.get(each, "int") for each in given if each not in tensors]
        stated = self._stated(self.plan.numbers, kernel, number) or ", ".join(types)
        name = self._kernel(kernel, number)
        extra = [f"shared={each}" for each in shared]
        extra += [f"{attribute}={value}" for attribute, value in re.findall(r"(\w+)\s*=\s*(\d+)", attributes)]
        arguments = "(" + "".join(f"{each}, " for each in given) + ")"
        parts = ["f" * ("{" in name) + repr(name), grid, block, arguments, repr(stated), *extra]
        return [f"run.launch({', '.join(parts)})"]

    def _stated(self, table: Mapping[str, str], kernel: str, number: int) -> str:
        """Return what a table has for a step's kernel, or for that step alone, which is one of several overloads."""
        return table.get(f"{self.name} {number}", table.get(_name_of(kernel), ""))

    def _kernel(self, text: str, number: int) -> str:
        """Return a kernel's C++ name, with ``{...}`` around template arguments that are computed at each call."""
        if "{" in text or "}" in text:
            raise ValueError(f"not a kernel's name: {text}")
        if stated := self._stated(self.plan.kernels, text, number):
            return stated
        arguments = [self._template_argument(each) for each in self._template_entries(text)]
        return _name_of(text) + (f"<{', '.join(arguments)}>" if arguments else "")

    def _template_entries(self, text: str) -> list[str]:
        """Split at the commas that are outside of a type's brackets, as in ``Chain<Relu, Scale>``."""
        whole: list[str] = []
        for entry in _entries(text.partition("<")[2].rstrip()[:-1]):
            is_open = bool(whole) and whole[-1].count("<") > whole[-1].count(">") and not self._is_number(whole[-1])
            whole[-1:] = [f"{whole[-1]}, {entry}"] if is_open else [*whole[-1:], entry]
        return whole

    def _template_argument(self, text: str) -> str:
        is_literal = re.fullmatch(r"-?\d+|true|false", text) is not None
        return text if is_literal or not self._is_number(text) else f"{{str({self._renamed(text)}).lower()}}"

    def _is_number(self, text: str) -> bool:
        """Tell an expression over dims and numbers from a C++ type or constant."""
        types = {**self.inputs, **self.results, **self.kept, **self.scratch}.values()
        dims = {word for type_ in types for word in _words(type_.partition("[")[2])}
        known = {*dims, *self.numbers, *FUNCTIONS, "and", "or", "not", "true", "false"}
        return _words(self._renamed(text)) <= known and not NO_EXPRESSION.search(text)

    def _library(self, body: str, number: int) -> list[str]:
        call, _, returned = body.rpartition("->")
        name, _, rest = call.partition("(")
        room, _, function = name.strip().partition("::")
        library = f"torch.ops.aten.{_word(function)}" if room == "aten" else _word(f"{room}_{function}")
        call = f"{library}({_expression(rest.strip()[:-1])})"
        results = [*map(_word, _entries(returned.strip()[1:-1]))]
        if len(results) == 1 and not function.endswith("_backward"):
            return [f"{results[0]} = {call}.contiguous()"]
        values = "(value.contiguous() for value in returned if value is not None)"
        return [f"returned = {call}", f"{', '.join(results)}, = {values}"]


_STEPS: dict[str, Callable[[Plan, str, int], list[str]]] = {
    "fill": Plan._fill,
    "launch": Plan._launch,
    "library": Plan._library,
}


class _Functions(ast.NodeTransformer):
    """Python's `and` and `or` return an operand; a plan's return a truth value. Functions are called by names that no
    argument or dim has: ``min()``."""

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        return ast.Call(ast.Name("bool()", ast.Load()), [node], [])

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in ("str", *FUNCTIONS):
            node.func.id += "()"
        return node


def _check_names(tree: ast.AST, names: Mapping[str, Any]) -> None:
    """Raise ValueError for a name that the plan does not declare, and for one that is the runtime's."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    own = {node.id for node in found if isinstance(node.ctx, ast.Store)} - {"value", "returned"}
    taken = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    if hidden := own & {"run", *names} - WORDS_OF_PLANS.keys():
        raise ValueError(f"'{min(hidden)}' is a name of the runtime")
    if unknown := {node.id for node in found} - own - taken - {"value", "returned", *names}:
        raise ValueError(f"'{min(unknown)}' is neither an argument nor a dim")


def captured_with(plan: LaunchPlan) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator for code that holds for the captured sizes alone: those that are numbers in the plan's `op:`
    line. Other sizes raise ValueError."""
    inputs = plan.forward.inputs if plan.forward is not None else {}
    places = [([*plan.arguments].index(name), f"{name}: {type_}") for name, type_ in inputs.items()]
    types = "; ".join(label for _, label in places)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def checked(*arguments: Any) -> Any:
            require(plan.function.__name__, types, *[arguments[place] for place, _ in places])
            return function(*arguments)

        return checked

    return decorate


def _operations(text: str) -> list[list[tuple[str, str, str]]]:
    """Read the directives of each operation: key, condition and value."""
    lines = iter(enumerate(text.splitlines(), 1))
    if not any(PLAN_START.match(line) for _, line in lines):
        raise ValueError("it has none")
    joined: list[str] = []
    is_directive = False
    for number, line in lines:
        if not line.lstrip().startswith("//"):
            _refuse_orphans(number, [(number, line), *lines])
            break
        continued, content = CONTINUED.match(line), line.partition("//")[2].strip()
        if continued is not None and is_directive:
            joined[-1] += f"\n{continued[1]}"
        elif is_directive := DIRECTIVE.match(content) is not None:
            joined.append(content)
    operations: list[list[tuple[str, str, str]]] = []
    for match in map(DIRECTIVE.match, joined):
        assert match is not None
        key, condition, value = match[1], match[2] or "", match[3]
        operations += [[]] if key == "op" else []
        if operations:
            value = value if key in ("where", "fill") else _without_comments(value)
            operations[-1].append((key, condition, " ".join(value.split())))
    # a step may use scratch that is declared below it
    return [sorted(each, key=lambda directive: directive[0] not in ("op", "keeps", "scratch")) for each in operations]


def _refuse_orphans(end: int, lines: Sequence[tuple[int, str]]) -> None:
    """Raise ValueError for a directive between the end of the plan, an empty line, and the first line of code."""
    for number, line in lines:
        if line.strip() and not line.lstrip().startswith("//"):
            return
        content = line.strip()[2:].strip()
        if DIRECTIVE.match(content) and ORPHAN.match(content):
            raise ValueError(f"line {number} is not read, since the plan ends at the empty line {end}")


def _without_comments(text: str) -> str:
    """Remove comments and semicolons, which stand outside of brackets and of ``<<<...>>>``; inside, `//` divides."""
    kept, depth, is_comment = "", 0, False
    for at, character in enumerate(text):
        is_comment = character != "\n" and (is_comment or (depth == 0 and text.startswith("//", at)))
        if not is_comment:
            depth += (character in "([{") - (character in ")]}")
            depth += text.startswith("<<<", at) - text.startswith(">>>", at)
            kept += "" if character == ";" else character
    return kept


def _expression(text: str) -> str:
    """Return an expression of the plan, which is Python of numbers, names, operators and `FUNCTIONS`."""
    called = set(re.findall(r"(\w+)\s*\(", text)) - {"and", "or", "not", "dim3", *FUNCTIONS}
    nodes = [] if NO_EXPRESSION.search(text) or called else [*ast.walk(ast.parse(f"[{text.strip()}]", mode="eval"))]
    if not nodes or not all(isinstance(node, IN_EXPRESSIONS) and not getattr(node, "keywords", ()) for node in nodes):
        raise ValueError(f"not an expression: {text}")
    return text


def _entries(text: str) -> list[str]:
    """Split a list at the commas that are outside of brackets."""
    found, depth, start = [], 0, 0
    for at, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            found.append(text[start:at].strip())
            start = at + 1
    return [each for each in (*found, text[start:].strip()) if each]


def _declared(entry: str) -> tuple[str, str]:
    """Return the name and the type, ``f32[B, D]`` or ``float``."""
    name, _, type_ = entry.partition(":")
    dtype, opened, dims = type_.strip().partition("[")
    if opened and dtype.strip() not in DTYPES:
        raise ValueError(f"no dtype: {dtype}")
    return _word(name), dtype.strip() + (f"[{', '.join(_entries(_expression(dims[:-1])))}]" if opened else "")


def _word(text: str) -> str:
    """Return a name of the plan."""
    if not text.strip().isidentifier():
        raise ValueError(f"not a name: {text}")
    return text.strip()


def _parenthesized(text: str) -> tuple[str, str]:
    """Split ``(a, b) c`` into what is inside of the first parentheses and what is behind them."""
    depth, start = 0, text.index("(")
    for at in range(start, len(text)):
        depth += (text[at] == "(") - (text[at] == ")")
        if depth == 0:
            return text[start + 1 : at], text[at + 1 :]
    raise ValueError(f"not closed: {text}")


def _name_of(kernel: str) -> str:
    return re.sub(r"\s", "", kernel.partition("<")[0])


def _words(text: str) -> set[str]:
    return set(re.findall(r"\b[A-Za-z_]\w*", text))


def _grouped(dim: str) -> str:
    return dim if dim.isalnum() else f"({dim})"


def _dims_of(type_: str) -> list[str]:
    return _entries(type_.partition("[")[2][:-1])


def _shape(type_: str) -> str:
    return "(" + "".join(f"{dim}, " for dim in _dims_of(type_)) + ")"


def _shapes(types: Mapping[str, str]) -> list[str]:
    return [f"{_label(item)}: {_shape(item[1])}" for item in types.items()]


def _label(item: tuple[str, str]) -> str:
    return repr(": ".join(item))


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]
