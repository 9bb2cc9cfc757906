"""Evaluate expressions for all threads of a block: indices, addresses, calls of functions of the same file."""

from __future__ import annotations

import re
from abc import abstractmethod
from dataclasses import replace

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.definition import Definition
from kernel_lsp.rules.cuda.literals import integer_literal
from kernel_lsp.rules.cuda.outline import CudaFile
from kernel_lsp.rules.cuda.parsing import ParsedCuda
from kernel_lsp.rules.cuda.simulation.machine import INTEGERS, methods_of
from kernel_lsp.rules.cuda.simulation.structures import INDICES, Structures
from kernel_lsp.rules.cuda.simulation.values import (
    ALONG,
    BLOCK,
    CHOSEN,
    DATA,
    FOREIGN,
    LOADED,
    SIZE,
    UNKNOWN,
    WARP,
    Cell,
    Memory,
    Place,
    Value,
    applied,
    element_bytes,
    key_of,
    lanes,
    selected,
    unknown,
)
from kernel_lsp.rules.cuda.variables import type_bytes

INDICES_OF_GROUPS = {"thread_index": "threadIdx", "group_index": "blockIdx", "dim_threads": "blockDim"}
"""Methods of a group that return an index of the block in three dims."""
_ORDERING_PTX = re.compile(r"bar|fence|sync|wait")
_PLACES = frozenset(("subscript_expression", "field_expression", "identifier", "qualified_identifier"))


class Calculator(Structures):
    """Evaluates expressions. Accesses and barriers go to the methods that a watcher overrides."""

    def __init__(self, file: CudaFile, functions: dict[str, list[Definition]], block: tuple[int, int, int]) -> None:
        super().__init__(block[0] * block[1] * block[2])
        self.file, self.functions, self.block = file, functions, block
        self.readers = methods_of(type(self), "_value_of_")
        self.snippets: dict[str, tuple[ParsedCuda, Node | None]] = {}
        self.globals: dict[str, Cell] = {}
        self.device_memories: dict[str, Memory] = {}
        self.of_indices: dict[str, bool] = {}
        self.loaded: dict[tuple, Value] = {}
        x, y, _ = block
        everyone = range(self.n_threads)
        self.thread = ([i % x for i in everyone], [i // x % y for i in everyone], [i // (x * y) for i in everyone])
        self.block_origins = 0
        self.blocks = tuple(Value(3 + 2 * axis, BLOCK | SIZE | along) for axis, along in enumerate(ALONG))

    # what a watcher does

    @abstractmethod
    def access(self, place: Place, kind: str, node: Node, value: Value | None = None) -> None:
        """Watch an access: a read, a write, an atomic operation or a lock."""

    @abstractmethod
    def contributed(self, place: Place, node: Node) -> list[int] | None:
        """Return the threads whose data a loaded element contains."""

    @abstractmethod
    def exchanged(self, name: str, values: list[Value], node: Node) -> list[int] | None:
        """Return the threads whose data each thread receives in a warp function."""

    @abstractmethod
    def barrier(self, node: Node) -> None:
        """Watch a barrier of the block."""

    @abstractmethod
    def warp_barrier(self, node: Node, is_whole: bool) -> None:
        """Watch what orders the threads of each warp. `is_whole` is True where a mask names all of them."""

    @abstractmethod
    def forget(self, is_ordered: bool = True) -> None:
        """Take all shared memory for set and, with `is_ordered`, all accesses for ordered, as a call may do."""

    # values

    def value(self, node: Node | None) -> Value:
        if node is None:
            return UNKNOWN
        self.spend(4)
        kind = node.type
        if kind in _PLACES:
            return self.load(self.place(node), node)
        method = self.readers.get(kind)
        if method is not None:
            found: Value = method(self, node)
            return found
        return unknown(*(self.value(child) for child in node.named_children if "literal" not in child.type))

    def load(self, place: Cell | Place, node: Node) -> Value:
        """Return the value of a variable or an element."""
        if isinstance(place, Cell):
            if place.place is not None:
                return self.load(place.place, node)
            if not place.members or self.of_indices.get(place.type_text) is False:
                return place.value
            return replace(place.value, members=place.members) if self.holds_indices(place.type_text) else place.value
        memory, address = place.memory, place.address
        if place.width == 0:  # a row of an array
            return replace(address, memory=memory)
        self.access(place, "read", node)
        key = (id(memory), key_of(address), place.member)
        origins = DATA if address.differs or memory.kind == "local" else 0
        if memory.is_float or origins:
            stored = memory.stored_at(address) if memory.kind == "local" else None
            return Value(
                None,
                origins | CHOSEN | address.origins & ~BLOCK,
                origins > 0,
                loads=address.loads | (frozenset((key,)) if stored is None else stored.loads),
                parts=self.contributed(place, node),
                is_own=stored is not None and stored.is_own,
            )
        known = self.loaded.get(key)
        if known is None:
            origins = SIZE | CHOSEN | (LOADED if address.origins & (BLOCK | LOADED) else 0)
            origins |= address.origins & sum(ALONG)
            known = self.loaded[key] = replace(self.fresh(origins), loads=frozenset((key,)))
        parts = self.contributed(place, node)
        return known if parts is None else replace(known, parts=parts)

    def _value_of_number_literal(self, node: Node) -> Value:
        return Value(integer_literal(self.source(node)))

    def _value_of_char_literal(self, node: Node) -> Value:
        return Value(None)

    _value_of_string_literal = _value_of_char_literal

    def _value_of_gnu_asm_expression(self, node: Node) -> Value:
        self.forget(_ORDERING_PTX.search(self.source(node)) is not None)
        return UNKNOWN

    def _value_of_true(self, node: Node) -> Value:
        return Value(1)

    def _value_of_false(self, node: Node) -> Value:
        return Value(0)

    def _value_of_lambda_expression(self, node: Node) -> Value:
        return Value(None, group="lambda")

    def _value_of_sizeof_expression(self, node: Node) -> Value:
        number = type_bytes(self.source(node).removeprefix("sizeof").strip(" ()"))
        return self.fresh() if number is None else Value(number)

    def _value_of_parenthesized_expression(self, node: Node) -> Value:
        return self.value(node.named_children[-1]) if node.named_children else UNKNOWN

    _value_of_condition_clause = _value_of_parenthesized_expression

    def _value_of_comma_expression(self, node: Node) -> Value:
        results = [self.value(child) for child in node.named_children]
        return results[-1] if results else UNKNOWN

    def _value_of_unary_expression(self, node: Node) -> Value:
        value = self.value(node.child_by_field_id(fields.ARGUMENT))
        sign = self.source(node)[:1]
        if sign == "!":
            return applied("==", value, Value(0)) if value.memory is None else unknown(value)
        if sign == "-":
            return applied("-", Value(0), value)
        return value if sign == "+" else applied("^", value, Value(-1))

    def _value_of_pointer_expression(self, node: Node) -> Value:
        inner = node.child_by_field_id(fields.ARGUMENT)
        if inner is None:
            return UNKNOWN
        if not self.source(node).startswith("&"):
            return self.load(self.place(node), node)
        found = self.place(inner)
        if isinstance(found, Cell):
            return self._address_of(found)
        return replace(found.address, memory=found.memory, width=found.width or found.address.width, dims=())

    def _address_of(self, cell: Cell) -> Value:
        if isinstance(cell.place, Place):
            return replace(cell.place.address, memory=cell.place.memory, width=cell.place.width, dims=())
        if isinstance(cell.place, Cell):
            return self._address_of(cell.place)
        cell.value = unknown(cell.value) if cell.value.memory is None else cell.value
        if cell.value.memory is not None and cell.value.memory.kind == "shared" and not cell.value.dims:
            return cell.value
        return Value(0, 0, False, Memory("&", "local", 4, (None,), target=cell))

    def _value_of_cast_expression(self, node: Node) -> Value:
        target = node.child_by_field_id(fields.TYPE)
        return self.retyped(
            self.value(node.child_by_field_id(fields.VALUE)), "" if target is None else self.source(target)
        )

    def retyped(self, value: Value, type_text: str) -> Value:
        """Return the value of a cast."""
        if value.memory is not None:
            type_text, is_of_rows, extents = type_text.partition("(*)")
            sizes = map(self._extent_of, re.findall(r"\[([^\[\]]*)\]", extents)) if is_of_rows else ()
            dims = (None, *sizes) if is_of_rows else ()
            element = type_text.replace("*", "").replace("const", "").replace("&", "").replace("volatile", "").strip()
            width = type_bytes(element) or (value.width if element == "void" or value.width > 1 else 4)
            is_float = not INTEGERS.search(element)
            if value.memory.kind == "shared" and not value.memory.accesses:
                value.memory.is_float = is_float
            return replace(value, width=width, dims=dims)
        return self.cast(value, type_text)

    def _value_of_binary_expression(self, node: Node) -> Value:
        left, right = node.child_by_field_id(fields.LEFT), node.child_by_field_id(fields.RIGHT)
        operator = node.child_by_field_id(fields.OPERATOR)
        sign = "" if operator is None else operator.type
        if sign == "*" and left is not None and left.type == "template_function":
            return self._compared(left, right)
        one = self.value(left)
        if sign in ("&&", "||"):
            return self._connected(sign, one, right)
        two = self.value(right)
        self.spend(self.n_threads if one.differs or two.differs else 1)
        return applied(sign, one, two)

    def _compared(self, template: Node, right: Node | None) -> Value:
        """Return ``i < n && x > *best``, which the grammar takes for a template with the arguments ``n && x``."""
        arguments = template.child_by_field_id(fields.ARGUMENTS)
        sides = (template.child_by_field_id(fields.NAME), *(arguments.named_children if arguments else ()))
        return unknown(*map(self.value, sides), self.load(self._at(self.value(right), Value(0)), right or template))

    def _connected(self, sign: str, one: Value, right: Node | None) -> Value:
        """Return ``a && b``, where b is evaluated by the threads that a leaves."""
        before, origins = self.mask, self.origins
        two, count = UNKNOWN, len(self.conditions)
        self.conditions.append(one)
        self.origins |= one.origins
        truth: Value = one
        if not one.is_open:
            truth = replace(one, number=_truth(one.number))
            self.mask = self.narrowed([bool(each) is (sign == "&&") for each in lanes(truth.number, self.n_threads)])
        two = self.value(right) if self.is_active() else Value(int(sign == "||"))
        self.mask, self.origins = before, origins
        del self.conditions[count:]
        if two.number is None or truth.number is None:
            found = unknown(one, two)
            if sign == "&&" and isinstance(truth.number, list) and not one.is_open:
                found.possible = [bool(each) for each in truth.number]
            return found
        return applied("&" if sign == "&&" else "|", truth, replace(two, number=_truth(two.number)))

    def _value_of_conditional_expression(self, node: Node) -> Value:
        found: list[Value] = []
        condition = node.child_by_field_id(fields.CONDITION)
        value = self.value(condition)
        sides = [node.child_by_field_id(each) for each in (fields.CONSEQUENCE, fields.ALTERNATIVE)]
        results: dict[bool, Value] = {}

        def evaluate(is_true: bool) -> None:
            results[is_true] = self.value(sides[not is_true])

        before = self.mask
        self.branch(value, condition or node, lambda: evaluate(True), lambda: evaluate(False), node)
        self.mask = before
        found = list(results.values())
        if len(found) == 1:
            return found[0]
        if not found:
            return UNKNOWN
        if isinstance(value.number, list):
            return selected([bool(each) for each in value.number], results[True], results[False])
        if found[0].memory is not None and found[0].memory is found[1].memory:
            return found[0]
        is_uniform = not value.differs and not found[0].differs and not found[1].differs
        return self.fresh() if is_uniform and all(each.number is not None for each in found) else unknown(value, *found)

    def _value_of_assignment_expression(self, node: Node) -> Value:
        left, right = node.child_by_field_id(fields.LEFT), node.child_by_field_id(fields.RIGHT)
        operator = node.child_by_field_id(fields.OPERATOR)
        sign = "=" if operator is None else operator.type
        if left is None:
            return UNKNOWN
        value = self.value(right)
        return self.store(left, value, sign)

    def store(self, left: Node, value: Value, sign: str) -> Value:
        """Assign to a variable or an element; with ``+=`` it is read first."""
        found = self.place(left)
        while isinstance(found, Cell) and found.place is not None:
            found = found.place
        if sign != "=":
            value = applied(sign[:-1], self.load(found, left), value)
        if isinstance(found, Cell):
            if (
                found.value.memory is not None
                and found.value.memory.kind == "shared"
                and not found.value.dims
                and value.memory is None
            ):
                self.access(Place(found.value.memory, Value(0), found.value.width), "write", left, value)
            else:
                self.assign(found, self.cast(value, found.type_text.strip()))
        else:
            if found.memory.kind == "local" or found.memory.is_member:
                found.memory.hold(found.address, value)
            self.access(found, "write", left, value)
        return value

    def _value_of_update_expression(self, node: Node) -> Value:
        inner = node.child_by_field_id(fields.ARGUMENT)
        if inner is None:
            return UNKNOWN
        sign = "+=" if "++" in self.source(node) else "-="
        old = self.value(inner) if self.source(node).endswith(("++", "--")) else None
        new = self.store(inner, Value(1), sign)
        return new if old is None else old

    # places

    def place(self, node: Node) -> Cell | Place:
        kind = node.type
        if kind == "identifier":
            return self._named(node)
        if kind == "parenthesized_expression" and node.named_children:
            return self.place(node.named_children[-1])
        if kind == "subscript_expression":
            return self._element(node)
        if kind == "field_expression":
            return self._member(node)
        if kind == "pointer_expression" and not self.source(node).startswith("&"):
            pointer = self.value(node.child_by_field_id(fields.ARGUMENT))
            target = None if pointer.memory is None else pointer.memory.target
            return self._at(pointer, Value(0)) if target is None or pointer.number != 0 else target
        if kind == "call_expression":
            found = self.call(node, is_place=True)
            return Cell(found) if isinstance(found, Value) else found
        if kind == "qualified_identifier":
            return self._global(self.source(node))
        return Cell(self.value(node))

    def _named(self, node: Node) -> Cell | Place:
        name = self.source(node)
        cell = self.cell(name)
        if cell is None:
            method = next((each for each in reversed(self.frames) if not each.is_macro), self.frame)
            is_member = name in self.file.members.get(method.structure, ())
            return (
                self._global(name)
                if method.owner is None or not is_member
                else self._member_of(method.owner, name, node)
            )
        if cell.place is not None:
            return cell.place
        memory = cell.value.memory
        is_variable = memory is not None and memory.kind == "shared" and "__shared__" in cell.type_text
        if memory is not None and is_variable and not cell.value.dims:
            return Place(memory, Value(0), cell.value.width)
        return cell

    def _global(self, name: str) -> Cell | Place:
        """Return a name that no function declares: a constant, a macro, or a variable of the file."""
        if name in self.file.device_variables:
            memory = self.device_memories.setdefault(name, Memory(name, "global", 4, is_set=True))
            return Place(memory, Value(0), 4)
        if name not in self.globals:
            self.globals[name] = Cell(self._global_value(name))
        return self.globals[name]

    def _global_value(self, name: str) -> Value:
        if name == "warpSize":
            return Value(WARP)
        if name in INDICES:
            return Value(None, group=name)
        if (constant := name.rpartition("::")[2]) in self.file.constants:
            return Value(self.file.constants[constant])
        if name in self.file.shared_names:
            memory = Memory(name, "shared", 4, is_set=True, limit=self.dynamic_bytes)
            return Value(0, 0, False, memory, 4, (None,))
        if name in self.file.constant_arrays:
            element, sizes = self.file.constant_arrays[name]
            dims = tuple(map(self._extent_of, sizes))
            width = type_bytes(element) or 4
            memory = Memory(name, "constant", width, dims, is_set=True)
            memory.is_float = INTEGERS.search(element) is None
            return Value(0, 0, False, memory, width, dims)
        body = self.file.macros.get(name)
        if body is not None and body[0] is None:
            found = self.of_macro(body[1], None)
            return found if isinstance(found, Value) else UNKNOWN
        return self.fresh(SIZE | FOREIGN)

    def _builtin(self, name: str, axis: int) -> Value:
        if name == "threadIdx":
            return Value(self.thread[axis]) if self.block[axis] > 1 else Value(0)
        if name == "blockIdx":
            return self.blocks[axis]
        return (
            Value(self.block[axis], self.block_origins) if name == "blockDim" else Value((1009, 2003, 3001)[axis], SIZE)
        )

    def _element(self, node: Node) -> Cell | Place:
        owner, indices = node.child_by_field_id(fields.ARGUMENT), node.child_by_field_id(fields.INDICES)
        if owner is None or indices is None or not indices.named_children:
            return Cell(UNKNOWN)
        found = self.place(owner)
        base = self._pointer(found, owner)
        return self._at(base, self.value(indices.named_children[0]))

    def _pointer(self, found: Cell | Place, node: Node) -> Value:
        """Return the pointer that is subscripted; one that nothing is known of points to memory of its own."""
        if isinstance(found, Place):
            if found.width == 0:
                return replace(found.address, memory=found.memory)
            if found.memory.kind == "shared" and found.member and (array := self._member_array(found)) is not None:
                return array
            kind = "local" if found.memory.kind == "local" else "global"
            return Value(0, 0, False, Memory(self.source(node), kind, 4))
        if found.value.memory is None:
            number = 0 if not found.value.differs else None
            kind = "local" if found.type_text or self._is_member_of_another(node) else "global"
            found.value = Value(number, found.value.origins, number is None, Memory(self.source(node), kind, 4))
        return found.value

    def _extent_of(self, text: str) -> int | None:
        """Return the value of an array's size that is a number or a constant expression."""
        found = self.of_macro(text, None)
        number = found.number if isinstance(found, Value) and not found.origins else None
        return number if isinstance(number, int) else None

    def _at(self, base: Value, index: Value) -> Place:
        """Return the element of an array or pointer at an index."""
        if base.memory is None:
            base = Value(0 if not base.differs else None, base.origins, base.differs, Memory("*", "global", 4))
        memory = base.memory
        assert memory is not None
        if index.memory is not None:
            index = UNKNOWN
        stride = element_bytes(base)
        problem = self._beyond(base, index)
        offset = unknown(index) if stride is None else applied("*", index, Value(stride))
        address = applied("+", replace(base, memory=None, dims=()), offset)
        self.spend(2 * self.n_threads if index.differs else 2)
        if len(base.dims) > 1:
            address = replace(address, dims=base.dims[1:], width=base.width)
            return Place(memory, address, 0, problem=problem)
        return Place(memory, replace(address, width=base.width), base.width, problem=problem)

    @abstractmethod
    def call(self, node: Node, is_place: bool = False) -> Value | Place | Cell:
        """Run a call, and return its value or the place that it returns a reference to."""

    @abstractmethod
    def of_macro(self, body: str, given: dict[str, str] | None) -> Value | Place | Cell:
        """Return the value of a macro's text, or the place that it names."""

    @abstractmethod
    def _beyond(self, base: Value, index: Value) -> str:
        """Return why an index is out of bounds in some thread, or an empty text."""


def _truth(number: int | list[int] | None) -> int | list[int] | None:
    if isinstance(number, list):
        return [int(each != 0) for each in number]
    return None if number is None else int(number != 0)
