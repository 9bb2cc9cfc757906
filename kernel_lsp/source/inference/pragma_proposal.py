"""Propose the pragmas that a target lacks: sizes that its code requires, and examples for those it leaves open."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from kernel_lsp.core.expression import Constant, Name, free_names
from kernel_lsp.core.task import Construction, InitArgument
from kernel_lsp.source.inference.arrays import Array, Dim, Elements
from kernel_lsp.source.inference.callers import use_of
from kernel_lsp.source.inference.constructions import construction
from kernel_lsp.source.inference.interpreter import Interpreter
from kernel_lsp.source.inference.number_uses import AXIS, RATE, SIZE, is_reshaped, number_kind
from kernel_lsp.source.inference.sequences import kind_of, sequence_example
from kernel_lsp.source.inference.values import UNKNOWN, Scope
from kernel_lsp.source.inference.views import MAX_INDEX
from kernel_lsp.source.pragma import Pragma, PragmaError, TensorItem, last_name, tensor_item, unquoted
from kernel_lsp.source.python_file import FunctionNode, Parameter, PythonFile, parameters_of

PREFIX = "# kernel-lsp: "
INIT_PREFIX = f"{PREFIX}init: "


@dataclass(frozen=True)
class Example:
    """Sizes for what the code leaves open: the rank of tensors, the height and width of images, or one for all."""

    rank: int = 2
    extent: int = 56
    every: int | None = None


EXAMPLES = (
    Example(),
    *(Example(rank=rank) for rank in (3, 4, 1)),
    *(Example(extent=extent) for extent in (64, 32, 28, 224, 128, 256)),
    Example(every=64),
    Example(rank=3, every=64),
    Example(every=56),
)
"""Examples to try, in order of preference."""


@dataclass(frozen=True)
class Signature:
    """Callee of a proposal: `owner` is the class to construct first, `pragma` what the text states already."""

    source: PythonFile
    function: FunctionNode
    owner: ast.ClassDef | None
    pragma: Pragma
    has_init_inputs: bool = False

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return parameters_of(self.function, of_class=self.owner is not None)

    @property
    def constructor(self) -> FunctionNode | None:
        found = self.source.inherited(self.owner, "__init__") if self.owner is not None else None
        return found if isinstance(found, FunctionNode) else None


@dataclass(frozen=True)
class Proposal:
    """Proposed values by parameter, as a pragma spells them: constructor arguments, inputs, and sizes of named dims.
    `objects` are constructor arguments of unknown classes, `called` inputs with a default that a call gives."""

    init: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, str] = field(default_factory=dict)
    objects: tuple[str, ...] = ()
    called: tuple[str, ...] = ()

    def pragma(self, names: Sequence[str]) -> str:
        """Return ``# kernel-lsp: x=f32[1024, 4096], eps=1e-6`` for some parameters."""
        items = ", ".join(f"{name}={self.inputs[name]}" for name in names)
        return f"{PREFIX}{items or 'x=f32[1024, 4096]'}"

    def init_pragma(self, names: Sequence[str]) -> str:
        """Return ``# kernel-lsp: init: dim=1024``."""
        return f"{INIT_PREFIX}{', '.join(f'{name}={self.init[name]}' for name in names)}"

    @property
    def sizes_pragma(self) -> str:
        return f"{PREFIX}{', '.join(f'{name}={size}' for name, size in self.sizes.items())}"


def propose(signature: Signature, example: Example = EXAMPLES[0]) -> Proposal:
    """Return a proposal whose sizes agree with each other, as far as the code can be followed."""
    return _Inference(signature, example).proposal()


def needed(parameters: Sequence[Parameter]) -> list[str]:
    """Return the parameters without a default, or all when every one has a default."""
    required = [parameter.name for parameter in parameters if not parameter.has_default]
    return required or [parameter.name for parameter in parameters]


_SHAPES = {1: (4096,), 2: (1024, 4096), 3: (8, 512, 1024), 5: (2, 16, 16, 32, 32)}
"""Example shapes by rank: rows of a matrix, a batch of sequences, of volumes."""
_IMAGE = (8, 64)
_ROWS = 4096
"""Rows of a matrix whose width the code fixes: another number than most widths."""
_LABELS = (1024,)
_MAX_RANK = 8
_DEFAULT_SIZE = 1024
_INDEX_BOUND = 1000
_VECTORS = ("weight", "bias", "gamma", "beta", "scale", "shift", "mean", "var", "running_mean", "running_var")
_LABEL_NAMES = ("target", "targets", "label", "labels")
_INDICES = (*_LABEL_NAMES, "index", "indices", "tokens", "token_ids", "input_ids", "ids")
_LIKELY_RANKS = {
    **dict.fromkeys((*_INDICES, "lengths", "lens", "seq_lens", "timesteps", "t", "sigma", "sigmas"), 1),
    **dict.fromkeys(("img", "imgs", "image", "images", "pixel_values"), 4),
}
"""Ranks of inputs by name, where the code needs one and leaves it open."""
_FLOATS = {"eps": "1e-6", "epsilon": "1e-6", "alpha": "1.0", "temperature": "0.7", "p": "0.0"}
_LIMITS = {
    **dict.fromkeys(("low", "lower", "min", "min_value", "minimum"), "-1.0"),
    **dict.fromkeys(("high", "upper", "max", "max_value", "maximum"), "1.0"),
}
"""Examples of annotated floats: with equal ones a result between them would not depend on the inputs."""
_SIZES = (
    (r"dropout|drop(_?(rate|path|prob|p))?|.*_(dropout|drop)|p", "0.0"),
    (r"(n|num)?_?(kv|q|query|key|value)?_?(n|num)?_?heads?|nheads?|(n|num)_?kv", "8"),
    (r"(n|num)_?(layers?|blocks?)|depth|layers", "2"),
    (r"(n_)?vocab(_?size)?|num_embeddings|n_?tokens?", "32000"),
    (r"kernel(_size)?|k|ks", "3"),
    (r"stride|dilation|groups|padding|pad", "1"),
    (r"(num|n)_?groups|experts|(n|num)_?experts", "8"),
    (r"(num|n)_?classes", "1000"),
    (r"top_?k", "2"),
    (r"(dim|d)_?heads?|head_?(dim|size)s?|d_?(k|v|head)", "64"),
    (r"reduction(_?ratio)?|squeeze(_?(ratio|factor))?|expansion|expand(_?ratio)?|mlp_?ratio", "4"),
    (r"patch(_?size)?", "16"),
    (r"(img|image)(_?size)?|resolution", "224"),
    (r"in_?chans?", "3"),
    (r"window(_?size)?", "8"),
    (r".*(channels?|planes|filters)|c_?(in|out)|ch|(in|out)_?c|inp|oup", "64"),
    (r"bias|.*_bias|affine", "True"),
)
"""Example constructor arguments by name, from what PyTorch code commonly calls things."""


_OBJECTS = ("Module", "Callable")
"""Last names of annotations whose arguments no example can be made for."""
_NUMBER_KINDS = ("none", "float", "int", "bool")
N_READINGS = 2
"""Readings of the function: a rank that a later line fixes says what `x.shape[1]` above it is."""


class _Inference:
    def __init__(self, signature: Signature, example: Example) -> None:
        self._signature, self._example = signature, example
        self._dims: dict[str, Dim] = {name: Dim(size) for name, size in signature.pragma.sizes.items()}
        self._arrays: dict[str, Array] = {}
        self._numbers: dict[str, str] = {}
        self._called: list[str] = []
        self._ranks: Mapping[str, int] = {}
        self._interpreter = Interpreter(signature.source, lambda node, name: _value(guess(name, "none")))

    def proposal(self) -> Proposal:
        """Follow the constructor and the function; then give every open dim a size."""
        init, scope = self._init(), self._inputs()
        with suppress(RecursionError):  # an expression nested too deeply: what was found before it counts
            self._follow(init, scope)
        parameters = self._signature.parameters
        ranks = {name: array.known_rank or 0 for name, array in self._arrays.items()}
        # What shares dims with a tensor of more than two has that tensor's examples.
        largest_first = sorted(parameters, key=lambda p: -max(ranks.get(p.name, 0), 2))
        texts = {p.name: self._text(p) for p in largest_first}
        inputs = {p.name: texts[p.name] for p in parameters}
        constructor = self._signature.constructor
        return Proposal(
            init=init,
            inputs=inputs,
            sizes={name: str(self._size(dim, _DEFAULT_SIZE)) for name, dim in self._unsized().items()},
            objects=tuple(_objects(constructor, init)) if constructor is not None else (),
            called=tuple(self._called),
        )

    def _init(self) -> dict[str, str]:
        """Return the arguments to construct with: given ones, those of a call, those of a module of the file that
        constructs the target, or examples."""
        constructor, given = self._signature.constructor, self._signature.pragma.init or {}
        if constructor is None:
            return {}
        parameters = parameters_of(constructor, of_class=True)
        missing = [p for p in parameters if not p.has_default and p.name not in given]
        known = {name: _spelled_argument(value) for name, value in given.items()}
        owner = self._signature.owner
        if missing and not given and owner is not None:
            known = self._called_with(owner.name, [parameter.name for parameter in parameters], missing)
            if not known and (
                use := use_of(self._signature.source, owner, [p.name for p in missing], self._called_with)
            ):
                defaults = self._interpreter.defaults(constructor)
                known = {name: text for name, text in use.arguments.items() if repr(defaults.get(name)) != text}
                self._ranks = use.ranks
        return known | {p.name: self._example_argument(constructor, p) for p in missing if p.name not in known}

    def _example_argument(self, constructor: FunctionNode, parameter: Parameter) -> str:
        """Return an example of a constructor argument: a call where it is an object of a known class."""
        annotation = unquoted(parameter.annotation)
        called = construction(self._interpreter, self._signature.source, constructor, parameter.name, annotation, guess)
        return called or sequence_example(constructor, parameter, guess) or guess(parameter.name, kind_of(annotation))

    def _argument(self, text: str) -> object:
        """Return the value of a constructor argument, as the interpreter has it."""
        return self._interpreter.value(ast.parse(text, mode="eval").body, {})

    def _called_with(self, called: str, names: Sequence[str], missing: Sequence[Parameter]) -> dict[str, str]:
        """Return the arguments of the first call of a class that gives all missing ones as numbers or strings."""
        for call in self._signature.source.calls.get(called, ()):
            pairs = [*zip(names, call.args, strict=False), *((k.arg, k.value) for k in call.keywords if k.arg)]
            values = {name: self._interpreter.value(value, {}) for name, value in pairs if name is not None}
            texts = {name: repr(v) for name, v in values.items() if isinstance(v, bool | int | float | str)}
            if all(parameter.name in texts for parameter in missing):
                return texts
        return {}

    def _inputs(self) -> Scope:
        scope: Scope = self._interpreter.defaults(self._signature.function)
        for parameter in self._signature.parameters:
            number = self._signature.pragma.numbers.get(parameter.name)
            if number is not None:
                scope[parameter.name] = number.value
            elif given := self._number_in_calls(parameter):
                self._numbers[parameter.name] = given
                scope[parameter.name] = _value(given)
                self._called += [parameter.name] if parameter.has_default else []
            elif (text := self._number_text(parameter)) is not None:
                self._numbers[parameter.name] = text
                scope.setdefault(parameter.name, _value(text))
            elif not parameter.has_default or parameter.name in self._signature.pragma.tensors:
                scope[parameter.name] = self._arrays[parameter.name] = self._array(parameter)
        return scope

    def _number_in_calls(self, parameter: Parameter) -> str:
        """Return the number that a call gives for a parameter of a function; empty where none gives one."""
        signature = self._signature
        if signature.owner is not None or kind_of(parameter.annotation) not in _NUMBER_KINDS:
            return ""
        names = [each.name for each in signature.parameters]
        for call in signature.source.calls.get(signature.function.name, ()):
            pairs = [*zip(names, call.args, strict=False), *((k.arg, k.value) for k in call.keywords)]
            values = [self._interpreter.value(given, {}) for name, given in pairs if name == parameter.name]
            if values and isinstance(values[0], bool | int | float) and math.isfinite(values[0]):
                return repr(values[0])
        return ""

    def _number_text(self, parameter: Parameter) -> str | None:
        """Return an example of a number; None for a tensor. Without an annotation the name or the code says so."""
        text, annotated = _number_text(parameter), kind_of(parameter.annotation)
        if not parameter.has_default and (annotated == "int" or (text is None and annotated == "none")):
            kind = number_kind(self._signature.function, parameter.name)
            return {AXIS: "-1", SIZE: guess(parameter.name, "int"), RATE: "0.0"}.get(kind, text)
        return text

    def _array(self, parameter: Parameter) -> Array:
        item = self._declared(parameter)
        if item is not None:
            return Array([self._dim(dim) for dim in item.dims], len(item.dims), Elements(item.dtype.value))
        array = Array()
        if parameter.rank:
            array.set_rank(parameter.rank)
        elif parameter.name in _VECTORS and not is_reshaped(self._signature.function, parameter.name):
            array.set_rank(1)
        return array

    def _declared(self, parameter: Parameter) -> TensorItem | None:
        given = self._signature.pragma.tensors.get(parameter.name)
        try:
            return given or tensor_item(parameter.name, parameter.annotation, Pragma())
        except PragmaError:
            return None

    def _dim(self, dim: object) -> Dim:
        if isinstance(dim, Name):
            return self._dims.setdefault(dim.id, Dim())
        return Dim(int(dim.value)) if isinstance(dim, Constant) else Dim()

    def _follow(self, init: Mapping[str, str], scope: Scope) -> None:
        signature = self._signature
        if signature.owner is not None:
            given: dict[str, object] = {name: self._argument(text) for name, text in init.items()}
            if signature.pragma.init is None and signature.has_init_inputs:
                given |= self._init_inputs()
            owner = self._interpreter.construct(signature.owner, given)
            names = [each.arg for each in (*signature.function.args.posonlyargs, *signature.function.args.args)]
            scope |= {name: owner for name in names[:1] if name not in scope}
        for _ in range(N_READINGS):
            self._interpreter.run(signature.function, dict(scope))
        for name, array in self._arrays.items():
            array.likely_rank = _LIKELY_RANKS.get(name, self._example.rank)
        for _ in range(N_READINGS):
            self._interpreter.run(signature.function, dict(scope))

    def _init_inputs(self) -> dict[str, object]:
        function, constructor = self._signature.source.definition("get_init_inputs"), self._signature.constructor
        values = self._interpreter.run(function, {}) if isinstance(function, FunctionNode) else UNKNOWN
        if constructor is None or not isinstance(values, list):
            return {}
        names = [parameter.name for parameter in parameters_of(constructor, of_class=True)]
        return dict(zip(names, values, strict=False))

    def _text(self, parameter: Parameter) -> str:
        if parameter.name in self._numbers:
            return self._numbers[parameter.name]
        array = self._arrays.get(parameter.name) or self._array(parameter)
        return self._tensor_text(parameter, array)

    def _tensor_text(self, parameter: Parameter, array: Array) -> str:
        item = self._declared(parameter)
        dtype = array.elements.dtype or _dtype_by_name(parameter.name, array)
        is_index = dtype == "i64" and item is None and (array.elements.below is not None or parameter.name in _INDICES)
        if array.known_rank is None:
            rank = 1 if is_index and array.elements.below is None else self._example.rank
            rank = self._ranks.get(parameter.name, max(rank, array.root.least_rank))
            array.set_rank(max(rank, min(len(array.all_dims()), _MAX_RANK)))
        if is_index and array.elements.below is None:
            array.suggest(_LABELS)
        sizes = self._sizes(array.all_dims(), is_fixed=item is not None)
        if item is not None:
            sizes = [_spelled(dim, size) for dim, size in zip(item.dims, sizes, strict=True)]
        text = f"{dtype}[{', '.join(map(str, sizes))}]"
        if not is_index:
            return text
        bound = self._size(array.elements.below, _INDEX_BOUND) if array.elements.below is not None else _INDEX_BOUND
        return f"{text} in [0, {bound})"

    def _sizes(self, dims: Sequence[Dim], *, is_fixed: bool) -> list[int | str]:
        n = len(dims)
        template = _SHAPES.get(n, (8,) * n)
        if n == len(_IMAGE) + 2:
            template = (*_IMAGE, self._example.extent, self._example.extent)
        if n == 2 and (dims[1].size is not None or _is_narrow(dims[1])):
            template = (_ROWS, template[1])
        if is_fixed:
            template = (_DEFAULT_SIZE,) * n
        return [self._size(dim, example) for dim, example in zip(dims, template, strict=True)]

    def _size(self, dim: Dim, example: int) -> int:
        """Return the dim's size. The first example that an open dim gets is its size from then on."""
        dim.give(self._example.every or dim.root.hint or (dim.root.least if _is_narrow(dim) else example))
        assert dim.size is not None
        return dim.size

    def _unsized(self) -> dict[str, Dim]:
        """Return the named dims that the text gives no size, in order of use."""
        names: dict[str, Dim] = {}
        for parameter in self._signature.parameters:
            item = self._declared(parameter)
            for dim in item.dims if item is not None else ():
                for name in sorted(free_names(dim) - self._signature.pragma.sizes.keys()):
                    names.setdefault(name, self._dims.setdefault(name, Dim()))
        return names


def _is_narrow(dim: Dim) -> bool:
    """Return True for a dim that constant indices read: it holds the columns of boxes, or channels of a pixel."""
    return 1 < dim.root.least <= MAX_INDEX


def _number_text(parameter: Parameter) -> str | None:
    """Return an example of a number; None for a tensor."""
    match kind_of(parameter.annotation):
        case "float":
            return (_FLOATS | _LIMITS).get(parameter.name, "0.0" if "drop" in parameter.name else "0.5")
        case "int":
            return "-1" if parameter.name in ("dim", "axis") else "4"
        case "bool":
            return "True"
        case "none" if parameter.name in _FLOATS and parameter.name != "p":  # of dropout, or a tensor
            return _FLOATS[parameter.name]
    return None


def guess(name: str, kind: str) -> str:
    """Return an example constructor argument, usually a size."""
    if name in _FLOATS:
        return _FLOATS[name]
    by_name = next((text for pattern, text in _SIZES if re.fullmatch(pattern, name, re.IGNORECASE)), None)
    if kind == "bool":
        return "True"
    if kind == "float":
        return _LIMITS.get(name, "0.0" if by_name == "0.0" else "0.5")
    if name in ("activation", "act", "nonlinearity"):
        return "'gelu'"
    return by_name or str(_DEFAULT_SIZE)


def _value(text: str) -> float | int | bool | str:
    value = ast.literal_eval(text)
    assert isinstance(value, float | int | bool | str)
    return value


def _spelled_argument(value: InitArgument) -> str:
    return value.call if isinstance(value, Construction) else repr(value)


def _dtype_by_name(name: str, array: Array) -> str:
    """Return the dtype that a name suggests. Labels and masks that are added to or multiplied with another tensor are
    numbers."""
    if name in _INDICES and not (name in _LABEL_NAMES and array.elements.is_operand):
        return "i64"
    return "bool" if "mask" in name and not array.elements.is_operand else "f32"


def _spelled(dim: object, size: int | str) -> str:
    """Spell a declared dim; one that is a name gets its size."""
    return f"{dim}={size}" if isinstance(dim, Name) else str(dim)


def _objects(constructor: FunctionNode, init: Mapping[str, str]) -> Iterator[str]:
    """Yield the missing constructor arguments that are objects of an unknown class: the constructor reads their
    attributes, or their annotation says so."""
    read = {
        node.value.id
        for node in ast.walk(constructor)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    annotations = {each.name: unquoted(each.annotation) for each in parameters_of(constructor, of_class=True)}
    read |= {name for name, node in annotations.items() if node is not None and last_name(node) in _OBJECTS}
    yield from (name for name in init if name in read and not init[name].endswith(")"))
