"""KL130 and KL131: unintended double precision."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from kernel_lsp.rules.pytorch.declare import WARNING, declare, hit
from kernel_lsp.rules.pytorch.program import flow
from kernel_lsp.rules.pytorch.program.parsing import children_of, nodes_in
from kernel_lsp.rules.pytorch.program.scopes import Scope, keyword
from kernel_lsp.rules.rule import Hit, words

_DOUBLES = ("torch.float64", "torch.double", "numpy.float64", "numpy.double", "np.float64")
_DOUBLE_ARRAYS = words(
    """
    zeros ones full empty eye linspace logspace geomspace hanning hamming blackman bartlett kaiser
    random.rand random.randn random.normal random.uniform
    """
)


@declare(
    "KL130",
    "float64-in-forward",
    WARNING,
    needs=("double float64",),
    summary="A forward computes in double precision",
    why="""
    Consumer GPUs run double precision at 1/64 of the speed of single precision, data-centre ones at half of it or less,
    and every tensor is twice as large. If the accuracy is needed, say so in a comment; otherwise use float32, or
    accumulate in it.
    """,
    bad="""
    import torch

    def mean(x: torch.Tensor) -> torch.Tensor:
        return x.double().mean(-1)
    """,
    good="""
    import torch

    def mean(x: torch.Tensor) -> torch.Tensor:
        return x.float().mean(-1)
    """,
)
def float64_in_forward(scope: Scope) -> Iterator[Hit]:
    if not scope.is_forward:
        yield from _kept_in_double(scope)
        return
    for call in scope.calls:
        method = call.func if isinstance(call.func, ast.Attribute) and call.func.attr == "double" else None
        if method is not None and scope.is_tensor(method.value):
            yield hit(scope, call, "double precision: 2 to 64 times slower than float32")
    for attribute in scope.attributes:
        if scope.dotted(attribute) in _DOUBLES and not _is_compared(attribute, scope):
            yield hit(scope, attribute, "double precision: 2 to 64 times slower than float32")


@declare(
    "KL131",
    "float64-from-numpy",
    WARNING,
    needs=("from_numpy tensor as_tensor",),
    summary="An array of NumPy, float64 by default, becomes a tensor",
    why="""
    `torch.from_numpy` keeps NumPy's float64. Everything that meets the tensor is then computed in double precision or
    fails. Convert: `.float()`, or `dtype=np.float32` at the source.
    """,
    bad="""
    import numpy as np
    import torch

    weights = torch.from_numpy(np.linspace(0, 1, 128))
    """,
    good="""
    import numpy as np
    import torch

    weights = torch.from_numpy(np.linspace(0, 1, 128, dtype=np.float32))
    """,
)
def float64_from_numpy(scope: Scope) -> Iterator[Hit]:
    for call in scope.calls if not _ON_PURPOSE.search(scope.module.text) else ():
        name = scope.dotted(call.func)
        if name not in ("torch.from_numpy", "torch.tensor", "torch.as_tensor") or not call.args:
            continue
        if _is_double_array(call.args[0], scope) and keyword(call, "dtype") is None and not _is_converted(call, scope):
            yield hit(scope, call, "this tensor is float64, as NumPy's default is: convert it to float32")


def _kept_in_double(scope: Scope) -> Iterator[Hit]:
    """Yield the tensors that an object keeps in double precision, and double as the default dtype."""
    message = "kept in double precision: what meets it is computed 2 to 64 times slower"
    for call in scope.calls:
        name = scope.dotted(call.func)
        if name.endswith(("register_buffer", "nn.Parameter")) and any(_is_double(each, scope) for each in call.args):
            yield hit(scope, call, message)
        elif name == "torch.set_default_dtype" and call.args and scope.dotted(call.args[0]) in _DOUBLES:
            yield hit(scope, call, "double precision by default: 2 to 64 times slower than float32")
    for statement in scope.statements:
        match statement:
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"))], value=ast.Call() as value):
                is_moved = flow.called_name(value) in ("to", "cuda") or keyword(value, "device") is not None
                if is_moved and _is_double(value, scope) and not _is_accumulator(statement.targets[0], value, scope):
                    yield hit(scope, statement, message)


_ACCUMULATES = re.compile(r"(?:index_|scatter_)?add_|index_put_|lerp_|addcmul_")


def _is_accumulator(target: ast.expr, value: ast.Call, scope: Scope) -> bool:
    """Return whether an attribute starts at zero and a method of its class adds to it: a sum that is kept accurate."""
    owner = None if scope.function is None else scope.function.owner
    if owner is None or flow.called_name(value) not in ("zeros", "zeros_like", "new_zeros"):
        return False
    scope.is_followed = True
    name = ast.unparse(target)
    for node in nodes_in(owner):
        if isinstance(node, ast.AugAssign) and ast.unparse(node.target).partition("[")[0] == name:
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            changed = ast.unparse(node.func.value)
            if _ACCUMULATES.fullmatch(node.func.attr) and re.match(rf"{re.escape(name)}(?!\w)", changed):
                return True
        match node:
            case ast.Assign(targets=[ast.Attribute() as summed], value=ast.BinOp(left=old, op=ast.Add(), right=new)):
                if name == ast.unparse(summed) and name in (ast.unparse(old), ast.unparse(new)):
                    return True
    return False


def _is_double(node: ast.expr, scope: Scope, depth: int = 0) -> bool:
    """Return whether the tensor is computed in double precision, and nothing casts it."""
    if depth > flow.MAX_HOPS or flow.called_name(node) in ("float", "half", "bfloat16", "type", "item", "numpy"):
        return False
    if isinstance(node, ast.Call):
        given = [*node.args, *(each.value for each in node.keywords)]
        dtypes = [scope.dotted(each) for each in given if isinstance(each, ast.Attribute)]
        if any(each in _DOUBLES for each in dtypes):
            return True
        if any(each.startswith(_LIBRARIES) and each.rpartition(".")[2] in _OTHERS for each in dtypes):
            return False
    found = flow.values(node, scope)
    if found:
        return any(_is_double(each, where, depth + 1) for each, where in found)
    inner = [each for each in children_of(node) if isinstance(each, ast.expr) and not isinstance(node, ast.Subscript)]
    inner = [node.func.value, *inner] if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else inner
    return isinstance(node, ast.Call | ast.BinOp) and any(_is_double(each, scope, depth + 1) for each in inner)


_LIBRARIES = ("torch.", "numpy.", "np.")
_OTHERS = words("float32 float float16 half bfloat16 int32 int64 long bool int")


def _is_compared(attribute: ast.Attribute, scope: Scope) -> bool:
    """Return whether the attribute is only compared: ``x.dtype == torch.float64`` computes nothing."""
    return any(isinstance(parent, ast.Compare) for parent in scope.around(attribute))


_ON_PURPOSE = re.compile(r"dtype=(?:np|numpy|torch)\.(?:float64|double)")
"""An array or a tensor that is asked for in double precision: the file knows what it computes in."""


def _is_double_array(node: ast.expr, scope: Scope, depth: int = 0) -> bool:
    return depth < flow.MAX_HOPS and any(_makes_doubles(*each, depth + 1) for each in flow.origins(node, scope))


def _makes_doubles(node: ast.expr, scope: Scope, depth: int) -> bool:
    """Return whether an expression without names to follow is a float64 array of NumPy."""
    match node:
        case ast.BinOp(left=left, right=right):
            sides = [each for side in (left, right) for each in flow.origins(side, scope)]
            is_of_floats = isinstance(node.op, ast.Div) or any(_is_float(*each) for each in sides)
            is_widened = is_of_floats and any(_is_numpy(*each) for each in sides)
            return is_widened or any(_is_double_array(side, scope, depth) for side in (left, right))
        case ast.UnaryOp(operand=inner) | ast.Attribute(value=inner, attr="T") | ast.Subscript(value=inner):
            return _is_double_array(inner, scope, depth)
        case ast.Call(func=ast.Attribute(value=inner, attr=method)) if keyword(node, "dtype") is None:
            made = scope.dotted(node.func)
            name = made.removeprefix("numpy.").removeprefix("np.")
            if name == made:
                draws = any("default_rng" in ast.unparse(each) for each, _ in flow.origins(inner, scope))
                is_same = method in _KEEPS_TYPE or method in _SAME_TYPE
                return (draws and method in _DRAWS) or (is_same and _is_double_array(inner, scope, depth))
            is_listed = name == "array" and bool(node.args) and _has_floats(node.args[0])
            parts = [each for part in node.args for each in getattr(part, "elts", [part])]
            is_same = name in _SAME_TYPE and any(_is_double_array(part, scope, depth) for part in parts)
            return is_listed or is_same or name in _DOUBLE_ARRAYS
    return False


_DRAWS = ("normal", "uniform", "standard_normal", "random", "exponential", "beta", "gamma")
"""Methods of a generator of NumPy's that draw float64."""
_KEEPS_TYPE = ("copy", "reshape", "transpose", "ravel", "flatten", "squeeze", "swapaxes", "cumsum", "clip", "repeat")
_SAME_TYPE = words(
    """
    abs append ascontiguousarray clip concatenate cos cumprod cumsum diff divide exp flip hstack log maximum minimum
    multiply outer pad power repeat roll sin sqrt square stack tile vstack
    """
)
"""Functions of NumPy whose result is float64 if an argument is."""


def _is_float(node: ast.AST, scope: Scope) -> bool:
    """Return whether the node holds a number of Python's with a fraction: ``2.0`` or ``np.pi``."""
    if isinstance(node, ast.BinOp):
        return _is_float(node.left, scope) or _is_float(node.right, scope)
    is_constant = isinstance(node, ast.Attribute) and scope.dotted(node) in ("numpy.pi", "numpy.e", "math.pi", "math.e")
    return is_constant or (isinstance(node, ast.Constant) and type(node.value) is float)


def _is_numpy(node: ast.expr, scope: Scope) -> bool:
    """Return whether NumPy makes an array here, of its own dtype."""
    if isinstance(node, ast.BinOp):
        return _is_numpy(node.left, scope) or _is_numpy(node.right, scope)
    is_made = isinstance(node, ast.Call) and scope.dotted(node.func).startswith(("numpy.", "np."))
    return is_made and isinstance(node, ast.Call) and keyword(node, "dtype") is None


def _has_floats(node: ast.expr) -> bool:
    """Return whether the node is a list of numbers with a Python float: ``[0.1, 0.2]``."""
    parts = node.elts if isinstance(node, ast.List | ast.Tuple) else []
    return any(_has_floats(part) or (isinstance(part, ast.Constant) and type(part.value) is float) for part in parts)


def _is_converted(call: ast.Call, scope: Scope) -> bool:
    """Return whether a method that follows may give another dtype. A move to a device gives none."""
    node: ast.AST = call
    statement = scope.parents.get(id(call))
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        name = statement.targets[0].id
        later = (each for each in scope.attributes if isinstance(each.value, ast.Name) and each.value.id == name)
        return any(each.attr in ("float", "to", "half", "bfloat16", "type") for each in later)
    while isinstance(attribute := scope.parents.get(id(node)), ast.Attribute):
        node = scope.parents.get(id(attribute), attribute)
        if not isinstance(node, ast.Call) or attribute.attr not in _KEEP_DTYPE:
            is_move = attribute.attr == "to" and isinstance(node, ast.Call) and _is_only_moved(node)
            if not is_move:
                return True
    return False


_KEEP_DTYPE = frozenset(("cuda", "unsqueeze", "reshape", "view", "contiguous", "clone", "pin_memory", "t", "transpose"))


def _is_only_moved(call: ast.Call) -> bool:
    """Return whether ``.to(...)`` is given a device alone: ``"cuda"``, ``x.device`` or a name of one."""
    given = [*call.args, *(each.value for each in call.keywords if each.arg != "non_blocking")]
    return all(
        isinstance(each, ast.Constant) or "dev" in ast.unparse(each).rpartition(".")[2].lower() for each in given
    )
