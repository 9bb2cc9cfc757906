"""Evaluate calls: barriers, atomic operations, groups of threads, functions and macros of the same file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.declare import BARRIERS
from kernel_lsp.rules.cuda.definition import Definition
from kernel_lsp.rules.cuda.literals import integer_literal
from kernel_lsp.rules.cuda.members import plain_name, structure_of
from kernel_lsp.rules.cuda.parsing import ParsedCuda, parse
from kernel_lsp.rules.cuda.simulation.expressions import INDICES_OF_GROUPS, Calculator
from kernel_lsp.rules.cuda.simulation.machine import MAX_CALLS, Frame, Loop, Stopped
from kernel_lsp.rules.cuda.simulation.structures import vector_of
from kernel_lsp.rules.cuda.simulation.values import (
    BLOCK,
    DATA,
    ELECTED,
    FOREIGN,
    SIZE,
    UNKNOWN,
    WARP,
    Cell,
    Place,
    Value,
    applied,
    unknown,
)
from kernel_lsp.rules.cuda.variables import Variable, parameters_of
from kernel_lsp.source.host_launches import split_top

_INTRINSICS = (
    r"__(?:ld|float|half|int|uint|double|ll|ull|long|bfloat|h|f|d|u|s|clz|ffs|popc|brev|byte|exp|log|sin|cos|tan|pow|fdividef"
    r"|saturatef|mul|umul|low|high|halves|bfloat162|nv|builtin|is)\w*"
)
_MATHEMATICS = (
    r"a?(?:sin|cos|tan)h?f?|atan2f?|f?(?:abs|min|max|ma|mod|dim)f?|exp(?:2|10|m1)?f?|log(?:2|10|1p|b)?f?|r?sqrtf?|r?cbrtf?"
    r"|powi?f?|erfc?f?|erfinvf?|floorf?|ceilf?|round(?:f|l)?|l?l?rintf?|truncf?|fmaf?|fma_rn|hypotf?|norm\w*|copysignf?"
    r"|sincosf?|ldexpf?|frexpf?|modff?|signbit|nearbyintf?|lgammaf?|tgammaf?|max|min|clamp"
)
_CONVERSIONS = (
    r"make_\w+|(?:is|as)\w*|T|scalar_t|float\d?|double\d?|half2?|int\d?|u?char\d?|u?int(?:8|16|32|64)_t|unsigned|long|size_t"
    r"|bool|short|uint\d?|decltype|h\w+|vec\w*"
)
_OTHERS = (
    r"swap|move|forward|get|at|clock\w*|printf|assert|tex\w+|surf\w+|curand\w*"
    r"|numeric_limits\w*|lowest|infinity|epsilon"
)
_PURE = re.compile(rf"(?:std::|::|cuda::std::)?(?:{_INTRINSICS}|{_MATHEMATICS}|{_CONVERSIONS}|{_OTHERS})")
"""Calls that are provably no barrier: arithmetic, conversions, loads."""
_CLASS = re.compile(r"[A-Z]\w*[a-z]\w*")
"""A name of a class, whose constructor without arguments is no barrier: ``MaxOp()``."""
_WARP_CALLS = re.compile(
    r"(?:__shfl|__any|__all|__ballot|__match|__reduce|__syncwarp|__activemask)\w*|(?:\w+\.)?(?:shfl\w*|any|all|ballot)|cg::reduce|(?:cg|cooperative_groups)::(?:reduce|\w+_scan)"
)
_EXCHANGES = re.compile(r"shfl|__(?:any|all|ballot)_sync")
"""Calls whose mask names the lanes that take part."""
_VOTES = re.compile(r"__(?:any|all|ballot|reduce_\w+)_sync|__activemask")
"""Calls whose result all lanes of a mask share."""


class Caller(Calculator):
    """Evaluates expressions with their calls."""

    # calls

    def _value_of_call_expression(self, node: Node) -> Value:
        found = self.call(node)
        return found if isinstance(found, Value) else self.load(found, node)

    def call(self, node: Node, is_place: bool = False) -> Value | Place | Cell:
        function = node.child_by_field_id(fields.FUNCTION)
        arguments = node.child_by_field_id(fields.ARGUMENTS)
        given = [] if arguments is None else [child for child in arguments.named_children if child.type != "comment"]
        text = "" if function is None else self.source(function)
        name = text.split("<", 1)[0].strip()
        macro = self.file.macros.get(name)
        if macro is not None and macro[0] is not None:
            return self.of_macro(
                macro[1], dict(zip(macro[0], [self.source(each) for each in given], strict=False)), node, is_place
            )
        if name.rpartition("::")[2].endswith("_cast") and given:
            return self.retyped(self.value(given[0]), text.partition("<")[2].rpartition(">")[0])
        if name in BARRIERS or name.endswith("::sync"):
            if given and self._group_of(given[0]) == "tile":
                self.warp_barrier(node, False)
            else:
                self.barrier(node)
            return unknown()
        if name.startswith("atomic") and given:
            return self._atomic(name, given)
        if name in ("__pipeline_commit", "__pipeline_wait_prior") or self._copied(name, given):
            return unknown()
        known = self._known_call(node, function, name, given)
        if known is not None:
            return known
        definition, owner, structure = self._called(function, text, given)
        if definition is not None and len(self.frames) < MAX_CALLS:
            return self._inlined(definition, node, text, given, owner, structure)
        values = [self.value(each) for each in given]
        last = name.rpartition("::")[2].rpartition(".")[2]
        cell = self.cell(name)
        is_functor = cell is not None and cell.value.group != "lambda"
        is_functor = is_functor or (not given and _CLASS.fullmatch(last) is not None)
        if not _PURE.fullmatch(name) and not _PURE.fullmatch(last) and not is_functor:
            self.forget()
        if last.startswith("make_") and len(values) > 1:
            return vector_of(values, last.removeprefix("make_"))
        is_here = definition is not None
        return (
            unknown(*values)
            if _PURE.fullmatch(last) or is_functor
            else Value(None, DATA | (0 if is_here else FOREIGN), True, parts=self.exchanged(name, values, node))
        )

    def _atomic(self, name: str, given: list[Node]) -> Value:
        values = [self.value(each) for each in given]
        if values[0].memory is not None:
            place = self._at(replace(values[0], dims=()), Value(0))
            target = given[0].child_by_field_id(fields.ARGUMENT) if given[0].type == "pointer_expression" else None
            if target is not None:
                exact = self.place(target)
                place = exact if isinstance(exact, Place) else place
            if "Exch" in name and isinstance(place, Place):
                place.memory.is_set = True
            self.access(place, "atomic" if "CAS" not in name and "Exch" not in name else "lock", given[0], values[-1])
        return Value(None, DATA | ELECTED, True)

    def _copied(self, name: str, given: list[Node]) -> bool:
        """Record the elements that a thread copies to shared memory, which its own wait orders for itself alone."""
        size = self.value(given[2]).number if name == "__pipeline_memcpy_async" and len(given) == 3 else None
        base = self.value(given[0]) if size is not None else UNKNOWN
        is_known = base.memory is not None and base.number is not None and not base.origins
        if not is_known or base.memory is None or not isinstance(size, int) or size % base.memory.width:
            return False
        self.value(given[1])
        for element in range(size // base.memory.width):
            place = self._at(replace(base, dims=()), Value(element))
            if isinstance(place, Place):
                self.access(place, "write", given[0])
        return True

    def _known_call(self, node: Node, function: Node | None, name: str, given: list[Node]) -> Value | None:
        last = name.rpartition("::")[2]
        if last in ("min", "max", "umin", "umax", "imin", "imax") and len(given) == 2:
            return applied(last[-3:], self.value(given[0]), self.value(given[1]))
        if last in ("__umul24", "__mul24") and len(given) == 2:
            return applied("*", self.value(given[0]), self.value(given[1]))
        if (
            last in ("int", "unsigned", "size_t", "uint32_t", "int32_t", "int64_t", "uint64_t", "long", "short")
            and len(given) == 1
        ):
            return self.retyped(self.value(given[0]), last)
        if last.startswith("__ld") and given:
            return self.load(self._at(self.value(given[0]), Value(0)), given[0])
        is_of_warp = name not in self.functions and _WARP_CALLS.fullmatch(name) is not None
        if is_of_warp or (function is not None and function.type == "field_expression" and "shfl" in name):
            values = [self.value(each) for each in given]
            is_whole = bool(values) and values[0].number in (0xFFFFFFFF, -1) and _EXCHANGES.search(name) is not None
            self.warp_barrier(node, is_whole)
            is_shared = _VOTES.fullmatch(name) is not None or _is_broadcast(name, values)
            parts = self.exchanged(name, values, node)
            return Value(None, DATA | ELECTED, True, parts=parts, of_warps=is_shared or None)
        if last in ("this_thread_block", "tiled_partition", "this_grid", "coalesced_threads", "binary_partition"):
            group = {"this_thread_block": "block", "this_grid": "grid"}.get(last, "tile")
            return Value(None, group=group)
        if function is not None and function.type == "field_expression":
            return self._method(node, function, name)
        return None

    def _method(self, node: Node, function: Node, name: str) -> Value | None:
        owner, method = function.child_by_field_id(fields.ARGUMENT), name.rpartition(".")[2].rpartition(">")[2]
        group = "" if owner is None or owner.type != "identifier" else self._group_of(owner)
        if method in INDICES_OF_GROUPS:
            return Value(None, group=INDICES_OF_GROUPS[method])
        if not group:
            return None
        if method == "sync":
            if group == "tile":
                self.warp_barrier(node, False)
            else:
                self.barrier(node)
            return unknown()
        ranks = list(range(self.n_threads))
        if method in ("thread_rank", "meta_group_rank"):
            if group == "block" or method == "meta_group_rank":
                return Value(ranks) if group == "block" else Value([rank // WARP for rank in ranks])
            return (
                Value([rank % WARP for rank in ranks])
                if group == "tile"
                else applied("+", Value(3 * 4096, BLOCK | SIZE), Value(ranks))
            )
        if method in ("size", "num_threads", "meta_group_size"):
            number = self.n_threads if group == "block" else WARP
            number = max(1, self.n_threads // WARP) if method == "meta_group_size" else number
            return Value(number, 0 if number == WARP else self.block_origins)
        return Value(None)

    def _group_of(self, owner: Node) -> str:
        cell = self.cell(self.source(owner))
        if cell is None and owner.type == "call_expression":
            return self.value(owner).group
        text = "" if cell is None else cell.type_text
        if cell is None:  # the grammar reads ``cg::thread_block_tile<32> tile = ...`` as comparisons
            declared = re.search(
                rf"\b((?:thread_block|coalesced|grid)\w*)\s*<\w+(?:, [^<>;]*)?>\s+{re.escape(self.source(owner))}\b",
                self.frame.parsed.text,
            )
            text = "" if declared is None else declared[1]
            return "tile" if "tile" in text or "coalesced" in text else ""
        return cell.value.group or (
            "tile" if "tile" in text or "coalesced" in text else "block" if "thread_block" in text else ""
        )

    def _called(
        self, function: Node | None, text: str, given: list[Node]
    ) -> tuple[Definition | None, Cell | Place | None, str]:
        """Return the function of the file that is called, and the structure that a method belongs to."""
        is_method = function is not None and function.type == "field_expression"
        inner = function.child_by_field_id(fields.ARGUMENT) if is_method and function is not None else None
        cell = self.cell(text)
        known = self.functions.get(plain_name(text), ())
        if cell is not None and function is not None and function.type == "identifier":
            inner, known = function, self.functions.get("operator()", ())
        owner = None if inner is None or not known or inner.type == "call_expression" else self.place(inner)
        structure = self._structure_of(owner)
        methods = known if structure else ()
        own = next((each for each in methods if self._fits(each, len(given), structure)), None)
        found = own or (self._overload(known, given) if cell is None else None)
        return found, None if own is None else owner, structure

    def _overload(self, known: Iterable[Definition], given: list[Node]) -> Definition | None:
        """Return the function that takes the arguments: of several, the one with most of their types."""
        cells = [self.cell(self.source(each)) if each.type == "identifier" else None for each in given]
        types = [None if cell is None else cell.type_text.strip() for cell in cells]

        def n_equal(definition: Definition) -> int:
            parameters = self._parameters_of(definition)
            return sum(each.type_text.strip() == of for each, of in zip(parameters, types, strict=False))

        found = [each for each in known if _n_parameters(each) >= len(given)]
        return max(found, key=n_equal) if len(found) > 1 else next(iter(found), None)

    def _parameters_of(self, definition: Definition) -> list[Variable]:
        declarator, body = definition.declarator, definition.body
        if declarator is None or body is None:
            return []
        return list(parameters_of(self.file.parsed, declarator, body))

    def _fits(self, definition: Definition, n_arguments: int, structure: str) -> bool:
        """Return whether the function is a method of the structure that takes so many arguments."""
        takes_all = _n_parameters(definition) >= n_arguments
        return takes_all and structure_of(self.file.parsed, definition.outer) == structure

    def _structure_of(self, owner: Cell | Place | None) -> str:
        while isinstance(owner, Cell) and owner.place is not None:
            owner = owner.place
        if isinstance(owner, Place):
            return owner.memory.element
        return "" if owner is None else plain_name(owner.type_text)

    def _inlined(
        self,
        definition: Definition,
        node: Node,
        text: str,
        given: list[Node],
        owner: Cell | Place | None,
        structure: str,
    ) -> Value | Place:
        """Run a function of the file with these arguments."""
        declarator, body = definition.declarator, definition.body
        assert declarator is not None
        assert body is not None
        parameters = self._parameters_of(definition)
        scope = {each.name: self._passed(each, argument) for each, argument in zip(parameters, given, strict=False)}
        scope |= {each.name: Cell(self.fresh(), each.type_text) for each in parameters[len(given) :]}
        constants = self._constants_of(definition, text)
        frame = Frame(self.file.parsed, node, False, [scope], constants)
        frame.returned, frame.owner, frame.structure = [False] * self.n_threads, owner, structure
        name = declarator.child_by_field_id(fields.DECLARATOR) or declarator
        frame.returns_reference = "&" in self.file.parsed.between(definition.node.start_byte, name.start_byte)
        before, loops, outer = self.mask, self.loops, self.outer_loops
        frame.entered = before
        self.loops, self.outer_loops = [], [*outer, *loops]
        self.frames.append(frame)
        self.run(body)
        self.frames.pop()
        self.mask, self.loops, self.outer_loops = before, loops, outer
        returned = definition.node.child_by_field_id(fields.TYPE)
        if isinstance(frame.result, Value) and frame.result.members and returned is not None:
            return self.named(self.file.parsed.source(returned), frame.result)
        return frame.result if frame.result is not None else unknown()

    def _constants_of(self, definition: Definition, text: str) -> dict[str, Value]:
        """Return the values of the template parameters of a function, and of its class."""
        scope, _, last = text.rpartition("::")
        owner, dot, method = text.rpartition(".")
        if dot:
            cell = self.cell(owner)
            scope, last = "" if cell is None else cell.type_text, method
        given = [self._template_value(each) for each in _template_texts(last)]
        constants = self.template_values(definition.outer, given)
        around = definition.outer.parent
        while around is not None and around.type != "template_declaration":
            around = around.parent
        if around is not None:
            constants |= self.template_values(around, [self._template_value(each) for each in _template_texts(scope)])
        return constants

    def _passed(self, parameter: Variable, argument: Node) -> Cell:
        if parameter.is_reference:
            found = self.place(argument)
            if isinstance(found, Place) and found.width == 0:
                return Cell(replace(found.address, memory=found.memory), parameter.type_text)
            if isinstance(found, Cell) and found.value.dims:
                return Cell(found.value, parameter.type_text)
            return Cell(found.value if isinstance(found, Cell) else UNKNOWN, parameter.type_text, found)
        value = self.value(argument)
        if parameter.is_pointer and len(value.dims) <= 1 and value.memory is not None:
            value = replace(value, dims=())
        value = self.cast(value, parameter.element) if not parameter.is_pointer else value
        return self.variable_of(value, parameter.type_text)

    def template_values(self, outer: Node, given: list[Value | None]) -> dict[str, Value]:
        """Return the values of a template's parameters: those given, defaults, or unknown ones."""
        declared = outer.child_by_field_id(fields.PARAMETERS) if outer.type == "template_declaration" else None
        found: dict[str, Value] = {}
        for index, each in enumerate(() if declared is None else declared.named_children):
            text = self.file.parsed.source(each)
            name = (re.findall(r"\w+", text.partition("=")[0]) or [""])[-1]
            if "type_parameter" in each.type:
                continue
            value = given[index] if index < len(given) else None
            default = text.partition("=")[2].strip()
            if value is None and default:
                value = Value(integer_literal(default) or self.file.constants.get(default))
            found[name] = value if value is not None and value.number is not None else self.guessed(name)
        return found

    def guessed(self, name: str) -> Value:
        """Return a number for a template parameter that no launch of the file states."""
        return self.fresh()

    def _template_value(self, text: str) -> Value | None:
        text = text.strip()
        number = integer_literal(text)
        if number is None and text in ("true", "false"):
            number = int(text == "true")
        if number is not None:
            return Value(number)
        if text.isidentifier():
            cell = self.cell(text)
            return (
                cell.value
                if cell is not None
                else Value(self.file.constants[text])
                if text in self.file.constants
                else None
            )
        is_expression = re.fullmatch(r"[\w\s+*/()-]+", text) and re.search(r"[+*/-]", text)
        found = self.of_macro(text, None) if is_expression else None
        return found if isinstance(found, Value) else None

    # macros

    def _run_function_definition(self, node: Node) -> None:
        """Run a loop that a macro begins, ``GRID_LOOP(i, n) { ... }``, once: the grammar takes it for a function."""
        declarator, body = node.child_by_field_id(fields.DECLARATOR), node.child_by_field_id(fields.BODY)
        head = None if declarator is None else self._head_of_loop(declarator)
        if head is None or declarator is None:
            self.run(body)
            return
        entered, origins = self.threads(), self.origins
        loop = Loop(
            node, [False] * self.n_threads, [False] * self.n_threads, len(self.splits), depth=len(self.frames) - 1
        )
        loop.is_open, loop.n_exchanges = True, self.n_exchanges
        parsed, statement = head
        self.frames.append(Frame(parsed, declarator, True, [{}]))
        self.run(statement.child_by_field_name("initializer"))
        condition = self.value(statement.child_by_field_id(fields.CONDITION))
        cells = self.frames.pop().scopes[-1]
        self.frame.scopes.append(cells)
        self.loops.append(loop)
        self.branch(condition, declarator, lambda: self.run(body), lambda: None, declarator)
        self.loops.pop()
        self.frame.scopes.pop()
        self.left_loop(loop)
        del self.splits[loop.splits :]
        left = [a and not b for a, b in zip(entered, self.frame.returned, strict=True)]
        self.mask, self.origins = None if all(left) else left, origins

    def _head_of_loop(self, declarator: Node) -> tuple[ParsedCuda, Node] | None:
        """Return the `for` that a macro of the file stands for, and its parsed text; None for any other macro."""
        name, given = declarator.child_by_field_id(fields.DECLARATOR), declarator.child_by_field_id(fields.PARAMETERS)
        parameters, text = self.file.macros.get("" if name is None else self.source(name), (None, ""))
        if parameters is None or given is None:
            return None
        arguments = dict(zip(parameters, [self.source(each) for each in given.named_children], strict=False))
        parsed, block = self._parsed_macro(text, arguments)
        statements = [] if block is None else block.named_children
        is_loop = bool(statements) and statements[0].type == "for_statement"
        return (parsed, statements[0]) if is_loop and len(statements) == 1 else None

    def _parsed_macro(self, body: str, given: dict[str, str] | None) -> tuple[ParsedCuda, Node | None]:
        text = re.sub(r"\w+", lambda found: given.get(found[0], found[0]), body) if given else body
        if text not in self.snippets:
            self.snippets[text] = _snippet(text)
        return self.snippets[text]

    def of_macro(
        self, body: str, given: dict[str, str] | None, call: Node | None = None, is_place: bool = False
    ) -> Value | Place | Cell:
        """Return the value of a macro's text, or the place that it names."""
        parsed, block = self._parsed_macro(body, given)
        if block is None or len(self.frames) >= 2 * MAX_CALLS:
            raise Stopped
        frame = Frame(parsed, call, True, [{}])
        frame.returned, frame.entered = [False] * self.n_threads, self.mask
        self.frames.append(frame)
        value: Value | Place | Cell = UNKNOWN
        for statement in block.named_children:
            is_value = statement.type == "expression_statement" and len(statement.named_children) == 1
            if is_value:
                evaluate = self.place if is_place else self.value
                value = evaluate(statement.named_children[0])
            else:
                self.run(statement)
        self.frames.pop()
        return value


def _snippet(text: str) -> tuple[ParsedCuda, Node | None]:
    """Return a macro's text as the statements of a function."""
    parsed = parse(f"void f() {{ {text}; }}")
    definition = next(
        (each for each in parsed.tree.root_node.named_children if each.type == "function_definition"), None
    )
    is_broken = parsed.tree.root_node.has_error
    return parsed, None if definition is None or is_broken else definition.child_by_field_id(fields.BODY)


def _is_broadcast(name: str, values: list[Value]) -> bool:
    """Return whether a shuffle gives all lanes the value of one."""
    return name == "__shfl_sync" and len(values) == 3 and isinstance(values[2].number, int)


def _n_parameters(definition: Definition) -> int:
    parameters = None if definition.declarator is None else definition.declarator.child_by_field_id(fields.PARAMETERS)
    return 0 if parameters is None else len([each for each in parameters.named_children if each.type != "comment"])


def _template_texts(text: str) -> tuple[str, ...]:
    """Return the template arguments in ``f<float, 256>``."""
    return split_top(text.partition("<")[2].rpartition(">")[0], opening="<(", closing=">)")
