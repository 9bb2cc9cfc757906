"""Follow the members of structures: through copies, initializers, results of functions, and arrays inside of them."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.members import plain_name
from kernel_lsp.rules.cuda.outline import CudaFile
from kernel_lsp.rules.cuda.simulation.loops import Looper
from kernel_lsp.rules.cuda.simulation.values import (
    OF_FLOATS,
    UNKNOWN,
    Cell,
    Memory,
    Place,
    Value,
    cell_of,
    unknown,
)
from kernel_lsp.rules.cuda.variables import type_bytes

INDICES = {"threadIdx": 0, "blockIdx": 1, "blockDim": 2, "gridDim": 3}
"""Built-in variables with members along x, y and z."""
_AXES = "xyzw"


class Structures(Looper):
    """Evaluates members. Those of an initializer without designators are named by position until its type is known."""

    file: CudaFile
    of_indices: dict[str, bool]
    """Known results of `holds_indices`, by type."""

    @abstractmethod
    def _builtin(self, name: str, axis: int) -> Value:
        """Return a thread's or block's index, or the size of a block or grid, along an axis."""

    @abstractmethod
    def _at(self, base: Value, index: Value) -> Place:
        """Return the element of an array or pointer at an index."""

    @abstractmethod
    def _extent_of(self, text: str) -> int | None:
        """Return the value of an array's size that is a number or a constant expression."""

    def _value_of_initializer_list(self, node: Node) -> Value:
        given = [child for child in node.named_children if child.type != "comment"]
        names = [self._designated(child) or str(place) for place, child in enumerate(given)]
        return composed([self.value(child) for child in given], tuple(names))

    def _value_of_compound_literal_expression(self, node: Node) -> Value:
        target, given = node.child_by_field_id(fields.TYPE), node.child_by_field_id(fields.VALUE)
        type_text = "" if target is None else self.source(target)
        if given is not None and not self.holds_indices(type_text):
            return unknown(*[self.value(child) for child in given.named_children])
        return self.named(type_text, self.value(given))

    def _value_of_initializer_pair(self, node: Node) -> Value:
        return self.value(node.child_by_field_id(fields.VALUE))

    def _designated(self, node: Node) -> str:
        """Return x of ``.x = 1``, an empty text for other parts of an initializer."""
        designator = node.child_by_field_name("designator") if node.type == "initializer_pair" else None
        return "" if designator is None else self.source(designator).lstrip(". ")

    def holds_indices(self, type_text: str) -> bool:
        """Return whether a structure has a member that may be an index. Others are followed as one value."""
        known = self.of_indices.get(type_text)
        if known is None:
            inside = self.file.members.get(plain_name(type_text))
            known = inside is None or any(each.is_integer or each.type_facts.is_integer for each in inside.values())
            known = self.of_indices[type_text] = known and not OF_FLOATS.match(type_text)
        return known

    def variable_of(self, value: Value, type_text: str) -> Cell:
        if value.members and self.holds_indices(type_text):
            return cell_of(value, type_text)
        value.members = None
        return Cell(value, type_text)

    def named(self, type_text: str, value: Value) -> Value:
        """Return a structure whose members have the names of their type."""
        if not value.members or "0" not in value.members:
            return value
        if not self.holds_indices(type_text):
            value.members = None
            return value
        names = self.file.members.get(plain_name(type_text), ()) or _AXES
        return replace(value, members=dict(zip(names, value.members.values(), strict=False)))

    def _member(self, node: Node) -> Cell | Place:
        owner, name = node.child_by_field_id(fields.ARGUMENT), node.child_by_field_name("field")
        member = "" if name is None else self.source(name)
        text = "" if owner is None else self.source(owner)
        if text in INDICES and member in ("x", "y", "z"):
            return Cell(self._builtin(text, "xyz".index(member)))
        if owner is None:
            return Cell(UNKNOWN)
        found = self.place(owner)
        if isinstance(found, Cell) and found.value.group in INDICES and member in ("x", "y", "z"):
            return Cell(self._builtin(found.value.group, "xyz".index(member)))
        return self._member_of(found, member, node)

    def _member_of(self, found: Cell | Place, member: str, node: Node) -> Cell | Place:
        while isinstance(found, Cell) and found.place is not None:
            found = found.place
        if isinstance(found, Place):
            return Place(found.memory, found.address, found.width, f"{found.member}.{member}", found.problem)
        if found.value.memory is not None:
            target = found.value.memory.target
            return self._at(found.value, Value(0)) if target is None else self._member_of(target, member, node)
        if "0" in found.members:
            found.members = self.named(found.type_text, replace(found.value, members=found.members)).members or {}
        if member not in found.members:
            arrays = self.file.structure_arrays
            array = self._array_in(plain_name(found.type_text), member) if arrays else None
            new = unknown(found.value) if found.value.differs else self.fresh()
            if new.loads and self.holds_indices(found.type_text):
                new.loads = frozenset((memory, key, f"{inside}.{member}") for memory, key, inside in new.loads)
            found.members[member] = Cell(new if array is None else array)
        return found.members[member]

    def _array_in(self, structure: str, member: str) -> Value | None:
        """Return the array that is a member of a variable. What the kernel is given is alike for all threads until
        they write to it."""
        declared = self.file.structure_arrays.get((structure, member))
        if declared is None:
            return None
        width = type_bytes(declared[0]) or 4
        memory = Memory(f"{structure}.{member}", "global", width, is_member=True)
        return Value(0, 0, False, memory, width, tuple(self._extent_of(size) for size in declared[1]))

    def _is_member_of_another(self, node: Node) -> bool:
        """Return whether the array is a member of an object whose structure is not in the file: it may be the thread's
        own, as ``fragment.x`` is."""
        owner = node.child_by_field_id(fields.ARGUMENT) if node.type == "field_expression" else None
        if owner is None or owner.type != "identifier" or "->" in self.source(node):
            return False
        found = self.place(owner)
        type_text = found.type_text if isinstance(found, Cell) else ""
        return bool(type_text) and plain_name(type_text) not in self.file.members

    def _member_array(self, place: Place) -> Value | None:
        """Return the array that is a member of a structure in shared memory."""
        memory, name = place.memory, place.member.removeprefix(".")
        declared = self.file.structure_arrays.get((memory.element, name))
        if declared is None or place.address.number != 0:
            return None
        if name not in memory.members:
            element, sizes = declared
            numbers = [self._extent_of(size) for size in sizes]
            width = type_bytes(element) or 4
            array = Memory(f"{memory.name}.{name}", "shared", width, tuple(numbers))
            array.is_set = True
            memory.members[name] = Value(0, 0, False, array, width, tuple(numbers))
        return memory.members[name]


def composed(values: list[Value], names: tuple[str, ...]) -> Value:
    """Return a structure of these values."""
    found = unknown(*values)
    found.members = {name: cell_of(value) for name, value in zip(names, values, strict=False)}
    return found


def vector_of(values: list[Value], type_text: str) -> Value:
    """Return a vector, ``make_int2(a, b)``."""
    return unknown(*values) if OF_FLOATS.match(type_text) else composed(values, tuple(_AXES))
