"""Values that the interpreter follows beside tensors, numbers and layers."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from kernel_lsp.source.inference.arrays import Array
from kernel_lsp.source.python_file import FunctionNode


class Unknown:
    """A value that nothing is known of."""


UNKNOWN = Unknown()
Scope = dict[str, object]


@dataclass(eq=False)
class Instance:
    """An object of a class of the project, with its attributes as its constructor sets them."""

    node: ast.ClassDef
    attributes: Scope = field(default_factory=dict)


@dataclass(frozen=True)
class Method:
    """A method of such an object, or with `owner` None a function of the file."""

    owner: Instance | None
    node: FunctionNode


@dataclass(frozen=True)
class Named:
    """A name of a library, e.g. ``nn.Linear``; `on` is the tensor or module whose method it is."""

    name: str
    on: Array | Instance | None = None


@dataclass(frozen=True)
class Shape:
    """The shape of a tensor."""

    array: Array


@dataclass(frozen=True)
class Field:
    """An annotated attribute in the body of a class, as dataclasses declare their arguments."""

    name: str
    annotation: ast.expr | None
    default: ast.expr | None


def fields_of(node: ast.ClassDef) -> list[Field]:
    """Return the fields of a dataclass, or the constants of another class, in order."""
    found = []
    for statement in node.body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=default):
                if default is None and re.search(r"\b(ClassVar|KW_ONLY)\b", ast.unparse(annotation)):
                    continue  # no argument
                found.append(Field(name, annotation, default))
            case ast.Assign(targets=[ast.Name(id=name)], value=default):
                found.append(Field(name, None, default))
    return found
