"""A task: the computation of a captured PyTorch function, and the configurations for which a kernel must be correct;
and a target, as its source text describes it before any of it runs.

The graph is core ATen as decomposed by `torch.export`. Sizes are expressions (`kernel_lsp.core.expression`) over
symbols, in text form. `kernel_lsp.worker` emits exactly this as JSON; it cannot import this file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

from pydantic import field_validator

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import free_names, parse
from kernel_lsp.core.model import SCHEMA_VERSION, Noun

DimText = str
"""A size as expression text, e.g. ``"B"``, ``"4096"``, ``"B * (T // 2)"``."""


class TensorType(Noun):
    """Dtype and symbolic shape of a value. `dtype` is the plan's spelling."""

    dtype: DType
    shape: tuple[DimText, ...]


class SourceLine(Noun):
    """The user's line that produced a node. `line` is 1-based."""

    file: str
    line: int
    text: str


class TaskTensor(Noun):
    """A tensor argument. `integer_range` is [low, high) for integer tensors that index something, e.g. class labels."""

    kind: Literal["tensor"] = "tensor"
    name: str
    type: TensorType
    role: Literal["input", "parameter", "buffer"]
    qualified_name: str | None = None
    """For parameters and buffers: the attribute path in the module, e.g. ``norm.weight``."""
    requires_grad: bool = False
    integer_range: tuple[int, int] | None = None


class TaskScalar(Noun):
    """A Python number argument; `value` is its captured value, a constant of the graph except where `GraphNode.scalars`
    has its name."""

    kind: Literal["scalar"] = "scalar"
    name: str
    type: Literal["float", "int", "bool"]
    value: float | int | bool
    qualified_name: str | None = None
    """For an attribute of the module: its path, e.g. ``norm.eps``."""


class GraphNode(Noun):
    """One ATen call. `op` is e.g. ``aten.mul.Tensor``.

    `arguments` and `keywords` are JSON values in which a reference to another value is ``{"node": name}`` (with
    ``"item": i`` for one result of a node with several), a size is ``{"expression": text}``, a dtype is ``{"dtype":
    "f32"}``, an infinite or NaN float is ``{"float": "inf"}``, and lists and plain scalars stand for themselves.
    `types` has one entry per result.
    """

    name: str
    op: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any] = {}
    scalars: dict[str, str] = {}
    """Arguments, by position or keyword, that are computed from the task's scalars: ``{"1": "eps"}``. `arguments` has
    their values at the capture."""
    types: tuple[TensorType | None, ...]
    source: SourceLine | None = None
    user_name: str | None = None
    """The variable that the user's line assigns, for the last node of that line."""
    module_path: str | None = None
    """The submodule that contains the node, e.g. ``attention.q_proj``."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Return the names of the inputs and nodes among its arguments, in order."""
        return tuple(names_in(self.arguments))


class GraphOutput(Noun):
    """A result of the graph. `node` is None for a gradient that does not exist."""

    name: str
    node: str | None
    item: int | None = None
    type: TensorType | None


class Graph(Noun):
    """A function of tensors. `inputs` name the task's tensor arguments (and ``grad_<output>`` in a backward)."""

    inputs: tuple[str, ...]
    input_types: tuple[TensorType, ...]
    nodes: tuple[GraphNode, ...]
    outputs: tuple[GraphOutput, ...]

    @property
    def numbers(self) -> frozenset[str]:
        """Return the scalars that arguments of nodes are computed from."""
        texts = [text for node in self.nodes for text in node.scalars.values()]
        return frozenset().union(*(free_names(parse(text)) for text in texts))

    def value_types(self) -> dict[str, TensorType]:
        """Return the type of each input, and of the first result of each node."""
        made = {node.name: node.types[0] for node in self.nodes if node.types and node.types[0] is not None}
        return {**dict(zip(self.inputs, self.input_types, strict=True)), **made}


class Symbol(Noun):
    """A dynamic dim. `captured` is its size in the capture; `minimum` and `maximum` are its inclusive bounds."""

    name: str
    captured: int
    minimum: int = 0
    maximum: int | None = None


class Configuration(Noun):
    """One configuration of the task: the shape of each tensor argument, by name. `settings` are its parameters in the
    task's own file (robust-kbench's keyword arguments)."""

    name: str
    shapes: dict[str, tuple[int, ...]]
    settings: dict[str, Any] = {}


class UncoveredConfiguration(Noun):
    """A configuration of a task folder for which the capture does not hold, e.g. because a constant differs. `index` is
    its number in the folder; it is captured as a separate task. `shapes` are those of the capture's tensor arguments,
    () for one that is missing there; none where it cannot be built."""

    index: int
    name: str
    reason: str
    shapes: dict[str, tuple[int, ...]] = {}


TargetKind = Literal["function", "module", "method", "kernelbench", "robust_kbench"]


class Task(Noun):
    """A captured target."""

    schema_version: int = SCHEMA_VERSION
    name: str
    """snake_case; the name of the operator and of the files."""
    target: str
    """The target as spelled by the user."""
    kind: TargetKind
    source_file: str
    source_line: int
    symbols: tuple[Symbol, ...]
    arguments: tuple[TaskTensor | TaskScalar, ...]
    """In the order of the operator's signature: the user's inputs first, then parameters, then buffers."""
    forward: Graph
    backward: Graph | None = None
    """Inputs: ``grad_<output>`` for each floating output, then the forward's inputs. Outputs: ``grad_<argument>``."""
    reference_source: str
    """A functional PyTorch function ``<name>_reference(...)`` over the same arguments, printed from the graph."""
    configurations: tuple[Configuration, ...]
    configuration: int = 0
    """Index of the captured configuration in the task's folder."""
    uncovered: tuple[UncoveredConfiguration, ...] = ()
    """Further configurations of the task's folder; a kernel is checked on each as a separate task."""
    module_settings: dict[str, bool | int | float | str | tuple[bool | int | float | str | None, ...] | None] = {}
    """For a module: plain attributes of it, of its submodules and of what they hold at the capture, by qualified name,
    e.g. ``{"norm.eps": 1e-06, "config.width": 8, "training": False}``. Their values are constants of the graph, which
    does not hold for an instance with other values."""
    module_code: dict[str, str] = {}
    """For a module: its method, and the class of each submodule by path: ``{"": "Block.forward", "act": "ReLU"}``."""
    module_ties: dict[str, str] = {}
    """For a module: paths of parameters and submodules that are the same object as one before, with that one's path."""
    returns: str = ""
    """The results as the code returns them, as a Python lambda of their tuple: ``lambda out: {"a": out[0]}``; empty for
    one tensor, and for a tuple of several."""
    state_updates: dict[str, Literal["assigned", "in place"]] = {}
    """For a module: buffers and attributes, by path, that a call updates. The last results of the forward are their new
    values, in this order: ``{"bn.running_mean": "in place"}``."""
    state_graphs: dict[str, list[str]] = {}
    """For new values that depend on no parameter: the inputs, and states by path, that they have their graphs from."""
    call_constants: dict[str, str] = {}
    """Arguments of the captured call that no kernel takes, as Python literals: ``{"mode": "'bilinear'"}``."""
    call_structures: dict[str, str] = {}
    """Parameters of the code that are no arguments of their own, in Python's syntax over these: ``(rotary_0, 4)`` for a
    tuple, ``f32[_, 64]`` for a tensor that no kernel reads."""
    draws: tuple[str, ...] = ()
    """Inputs that the code draws itself, in their order: no call of it gives them."""
    counters: dict[str, int] = {}
    """For a module: buffers of one integer, by path, and what a call adds: ``{"bn.num_batches_tracked": 1}``."""
    has_no_grad_region: bool = False
    """Some of the code runs under ``torch.no_grad()``, so that its gradients are not those of the graph."""
    code_digest: str = ""
    """Digest of the code that the operator stands for: after an edit it does not. Empty where it has no source."""
    torch_version: str
    notes: tuple[str, ...] = ()
    """Decisions of the capture, e.g. a shape that could not stay symbolic."""

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """Return the forward graph, and the backward's where there is one."""
        return (self.forward,) if self.backward is None else (self.forward, self.backward)

    @field_validator("module_settings", mode="before")
    @classmethod
    def _with_infinities(cls, settings: Any) -> Any:
        """JSON has an infinity as text."""
        return {name: _number_of_text(value) for name, value in settings.items()}

    @property
    def input_names(self) -> frozenset[str]:
        """Return the names that operations may use for inputs: arguments, and gradients of results."""
        backward = () if self.backward is None else self.backward.inputs
        return frozenset((*(argument.name for argument in self.arguments), *backward))

    @property
    def scalars(self) -> tuple[TaskScalar, ...]:
        return tuple(argument for argument in self.arguments if isinstance(argument, TaskScalar))

    @property
    def tensors(self) -> tuple[TaskTensor, ...]:
        return tuple(argument for argument in self.arguments if isinstance(argument, TaskTensor))


def names_in(arguments: Any) -> Iterator[str]:
    """Yield the names of the inputs and nodes among a node's arguments or keywords, in order."""
    if isinstance(arguments, dict) and "node" in arguments:
        yield arguments["node"]
    elif isinstance(arguments, dict | list | tuple):
        for argument in arguments.values() if isinstance(arguments, dict) else arguments:
            yield from names_in(argument)


class TensorInput(Noun):
    """A tensor that a pragma or an annotation describes. `dim_names` has a name or None per dim."""

    kind: Literal["tensor"] = "tensor"
    name: str
    dtype: DType
    shape: tuple[int, ...]
    dim_names: tuple[str | None, ...] = ()
    integer_range: tuple[int, int] | None = None
    """Range [low, high) of an integer tensor used as an index."""


class ScalarInput(Noun):
    """A Python number specified by a pragma."""

    kind: Literal["scalar"] = "scalar"
    name: str
    value: float | int | bool


class AttributeValue(Noun):
    """A value for a float attribute of a module, by its path; `name` is the task's argument."""

    name: str
    path: str
    value: float


class ConstantInput(Noun):
    """An argument that is neither a tensor nor a number, as a Python literal: ``'bilinear'``, ``(5, 5)``,
    ``torch.float32``. It is a constant of the capture, but for the `tensors`, whose names stand for them in a tuple or
    list: ``(rotary_0, rotary_1)``."""

    kind: Literal["constant"] = "constant"
    name: str
    literal: str
    tensors: tuple[TensorInput, ...] = ()


TargetInput = TensorInput | ScalarInput | ConstantInput


def identities(inputs: Iterable[TargetInput]) -> list[tuple[object, ...]]:
    """Return the dtypes, shapes, numbers and literals by name, which identify a configuration."""
    return [_identity(each) for each in inputs]


def _identity(given: TargetInput) -> tuple[object, ...]:
    if isinstance(given, TensorInput):
        return given.name, given.dtype, given.shape
    if isinstance(given, ScalarInput):
        return given.name, given.value
    return given.name, given.literal, *identities(given.tensors)


class Construction(Noun):
    """A constructor's argument that is no number or string, in Python: a sequence of literals, None, a class or
    function by name, or the call that constructs an object, ``NormConfig(width=64)``, whose arguments are keywords."""

    call: str


InitArgument = float | int | bool | str | Construction


class InputConfiguration(Noun):
    """Further inputs that a target must be correct for, e.g. from a recorded run, with its constructor's arguments."""

    name: str
    inputs: tuple[TargetInput, ...]
    init_arguments: dict[str, InitArgument] | None = None


class TargetSource(Noun):
    """Location of a target and the inputs declared in its text. `inputs` is None without a pragma or annotations: then
    `get_inputs` (`has_get_inputs`) or a robust-kbench folder's configurations define them.

    `symbol` is empty for a KernelBench file or a task folder. `example_pragma` is a pragma to add when nothing declares
    inputs.
    """

    target: str
    file: str
    """The Python file; for a robust-kbench folder its `func_forward.py`."""
    symbol: str
    kind: TargetKind
    line: int
    parameters: tuple[str, ...]
    """Parameters of the function or of `forward`, without `self`."""
    inputs: tuple[TargetInput, ...] | None
    init_arguments: dict[str, InitArgument] | None = None
    """Keyword arguments to construct a module with, from ``# kernel-lsp: init: dim=4096, eps=1e-6``."""
    attributes: tuple[AttributeValue, ...] | None = None
    """Attributes to set before a capture with other numbers; None for the capture of a task."""
    configurations: tuple[InputConfiguration, ...] = ()
    """Recorded configurations other than `inputs`, the most frequent first."""
    inputs_are_recorded: bool = False
    """True if the text declares no inputs: `inputs` is then the most frequent recorded configuration."""
    digest: str = ""
    """Identifies its text, without calls that were inserted by us; empty for a task folder."""
    has_get_inputs: bool = False
    has_get_init_inputs: bool = False
    configuration: int = 0
    """Index of a task folder's configuration to capture alone; 0 captures the first and covers others."""
    example_pragma: str


def _number_of_text(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(map(_number_of_text, value))
    return float(value) if value in ("Infinity", "-Infinity") else value
