"""Draft a launch plan for a file that has none, from its kernels and the launches of its host code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kernel_lsp.core.expression import FUNCTIONS
from kernel_lsp.core.plan import KernelParameter, KernelSignature
from kernel_lsp.plan.cuda_types import INTEGER_RANGES, resolve_template, scalar_type
from kernel_lsp.source.cuda import kernel_signatures
from kernel_lsp.source.host_launches import HostLaunch, host_launches, plan_expression, size_parts, without_casts
from kernel_lsp.source.kernel_indices import (
    KernelBody,
    allocated_shape,
    dtype_of,
    element_count,
    kernel_bodies,
    root_of,
)
from kernel_lsp.source.plan_dims import TaskTensor, multiplied, parts_of_dims, spliced

BLOCK = 256
"""Threads per block of a drafted launch for which the file states none."""
TASK = "model.py::symbol"
"""Placeholder: no CUDA text names the PyTorch code that it computes."""
RESERVED = frozenset({"and", "or", "not", "true", "false", "inf", "nan", "none", *FUNCTIONS})
DISPATCHED = {"scalar_t": "float"}
"""The type that PyTorch's dispatch macros define around a launch, and the type drafted for it."""
MAX_STEPS = 8
NULLS = frozenset({"nullptr", "NULL"})
"""Arguments that name no tensor: the parameter's name stands for them."""
_TEMPLATE = re.compile(r"\btemplate\s*<(?P<parameters>[^<>]*)>[^;{}]*?\b(?P<name>[A-Za-z_]\w*)\s*\(")
_ATTRIBUTES = re.compile(r"\b__launch_bounds__\s*\([^()]*\)")
_TYPES = re.compile(r"(?:unsigned )?(?:float|double|int|char|bool|long long|__?half2?|__nv_bfloat16|float[24])\d?")
_HOST_NAME = re.compile(r"^(?:d|dev|g|gpu|device)_(?=\w)|(?<=\w)_(?:d|dev|gpu|device)$")


def draft_plan(text: str, task: str = TASK, kernel: str = "", tensors: Sequence[TaskTensor] = ()) -> str:
    """Return the lines of a plan, with a comment that names what a person completes. Empty without a kernel that
    writes to memory. It is for `kernel`, by default the last launched one; `tensors` are what the task takes."""
    steps = _chosen(text, kernel)
    return _Draft(text, task, steps, tensors).lines() if steps else ""


def assumed_arguments(text: str) -> dict[str, tuple[str, ...]]:
    """Return template arguments of each template function, as if nothing launched it: defaults, else ``float``,
    ``true`` and a block size."""
    heads = _TEMPLATE.finditer(_ATTRIBUTES.sub("", text))
    return {head["name"]: tuple(map(_argument, head["parameters"].split(","))) for head in heads}


@dataclass(frozen=True)
class _Step:
    """A kernel with its launch, where the file has one."""

    signature: KernelSignature
    launch: HostLaunch | None
    template: tuple[str, ...]
    body: KernelBody

    @property
    def arguments(self) -> tuple[str, ...]:
        names = tuple(parameter.name for parameter in self.signature.parameters)
        if self.launch is None:
            return names
        return tuple(
            name if argument in NULLS else argument for name, argument in zip(names, self.launch.arguments, strict=True)
        )

    @property
    def pairs(self) -> list[tuple[KernelParameter, str]]:
        return list(zip(self.signature.parameters, self.arguments, strict=True))

    def writes(self, parameter: KernelParameter) -> bool:
        return parameter.is_pointer and not parameter.is_const and self.body.writes(parameter.name)

    def roots(self, *, written: bool) -> set[str]:
        return {root_of(a) for p, a in self.pairs if p.is_pointer and self.writes(p) is written}


def _chosen(text: str, kernel: str) -> list[_Step]:
    """Return the last launch of a kernel that writes, after those of the same function whose results it reads. Without
    a launch, the last kernel that writes. `kernel` restricts both to one name."""
    signatures, bodies, assumed = kernel_signatures(text), kernel_bodies(text), assumed_arguments(text)
    launched = (_step(signatures, bodies, assumed, launch) for launch in host_launches(text))
    steps = [step for step in launched if step is not None and step.roots(written=True)]
    ends = [i for i, step in enumerate(steps) if kernel in ("", step.signature.name, _short(step.signature.name))]
    if not ends:
        alone = (_Step(s, None, assumed.get(_short(s.name), ()), bodies.get(s.name, KernelBody())) for s in signatures)
        named = (step for step in alone if kernel in ("", step.signature.name, _short(step.signature.name)))
        return [step for step in named if step.roots(written=True)][-1:]
    last = steps[ends[-1]]
    chosen, needed = [last], last.roots(written=False)
    for step in reversed(steps[: ends[-1]]):
        assert step.launch is not None
        assert last.launch is not None
        if last.launch.before.startswith(step.launch.before) and step.roots(written=True) & needed:
            chosen.insert(0, step)
            needed |= step.roots(written=False)
    return chosen[-MAX_STEPS:]


def _step(
    signatures: Sequence[KernelSignature],
    bodies: Mapping[str, KernelBody],
    all_assumed: Mapping[str, tuple[str, ...]],
    launch: HostLaunch,
) -> _Step | None:
    name = launch.kernel.removeprefix("::")
    named = (s for s in signatures if name in (s.name, _short(s.name)))
    signature = next((s for s in named if len(s.parameters) == len(launch.arguments)), None)
    if signature is None:
        return None
    assumed = all_assumed.get(_short(signature.name), ())
    given = launch.template or (assumed if len(assumed) > len(signature.template_defaults) else ())
    template = tuple(_template(argument, index, launch, assumed) for index, argument in enumerate(given))
    return _Step(signature, launch, template, bodies.get(signature.name, KernelBody()))


def _short(name: str) -> str:
    return name.rpartition("::")[2]


def _template(argument: str, index: int, launch: HostLaunch, assumed: tuple[str, ...]) -> str:
    """Return a template argument that means the same outside of the host function."""
    argument = DISPATCHED.get(argument, argument)
    value = plan_expression(argument, {}, launch.defined)
    if value is not None or _TYPES.fullmatch(argument) or not argument.isidentifier():
        return value or argument
    return assumed[index] if index < len(assumed) else argument


def _argument(parameter: str) -> str:
    head, _, default = " ".join(parameter.split()).partition("=")
    return default.strip() or {"typename": "float", "class": "float", "bool": "true"}.get(
        head.split(" ")[0], str(BLOCK)
    )


@dataclass
class _Draft:
    """One operation. `names` are the dims of host expressions, `shapes` and `dtypes` those of tensors by root."""

    text: str
    task: str
    steps: list[_Step]
    task_tensors: Sequence[TaskTensor] = ()
    names: dict[str, str] = field(default_factory=dict)
    tensors: dict[str, str] = field(default_factory=dict)
    shapes: dict[str, list[str]] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    scalars: dict[str, str] = field(default_factory=dict)
    open: list[str] = field(default_factory=list)

    def lines(self) -> str:
        for step in self.steps:
            self._name_values(step)
        self._drop_computed()
        for step in self.steps:
            self._add_tensors(step)
        inputs, results, scratch = self._roles()
        self._complete_shapes(inputs, (*results, *scratch))
        parts = self._fitted(inputs)
        launches = [multiplied(self._launch(step), parts) for step in self.steps]
        body = [*(f"// scratch: {self._declared(each)}" for each in scratch), *self._fills(), *launches]
        body += [each for step in self.steps for each in _warnings(step)]
        dims = {name for each in inputs for name in self.shapes[each] if name.isidentifier()}
        free = [name for name in dict.fromkeys(self.names.values()) if name not in dims and _mentions(body, name)]
        free += [
            name for name in dict.fromkeys(self.names.values()) if name not in (*dims, *free) and self._sized(name)
        ]
        parameters = [self._declared(each) for each in inputs]
        parameters += [f"{name}: int" for name in free] + [f"{name}: {kind}" for name, kind in self.scalars.items()]
        name = _short(self.steps[-1].signature.name)
        op = f"// op: {name}({', '.join(parameters)}) -> ({', '.join(map(self._declared, results))})"
        plan = ["// kernel-lsp: 1", f"// task: {self.task}", op, *body]
        return _lowered("\n".join([*plan, *self._completed()]), free)

    def _name_values(self, step: _Step) -> None:
        for parameter, argument in step.pairs:
            if parameter.is_pointer:
                continue
            if _is_integer(parameter):
                self._name_dims(parameter, argument)
            else:
                kind = scalar_type(resolve_template(parameter.element, step.signature, step.template) or "")
                self.scalars.setdefault(self._fresh(parameter.name), "bool" if kind == "bool" else "float")
                if kind is None:
                    self.open.append(f"`{parameter.name}`, whose type a launch cannot pass")

    def _name_dims(self, parameter: KernelParameter, argument: str) -> None:
        value = without_casts(argument)
        if re.fullmatch(r"[A-Za-z_][\w.]*(?:\(\w*\))?|[\dxXuUlL]+", value):
            self._name(value if not value[0].isdigit() else parameter.name, parameter.name)
            return
        for chain in re.findall(r"[A-Za-z_]\w*(?:\.\w+\(\w*\))?", value):
            if chain not in ("min", "max") and not chain.lower().startswith(("ceil", "div", "cdiv")):
                self._name(chain, re.sub(r"\W+", "_", chain).strip("_"))

    def _name(self, expression: str, wanted: str) -> None:
        if expression not in self.names:
            name = wanted.upper()
            taken = {*self.names.values(), *self.scalars}
            self.names[expression] = name if name not in taken else f"{name}_{len(taken)}"

    def _drop_computed(self) -> None:
        """Forget dims that the host computes from others, such as a number of blocks."""
        defined = {name: value for step in self.steps if step.launch for name, value in step.launch.defined.items()}
        for name in [each for each in self.names if each in defined]:
            others = {each: dim for each, dim in self.names.items() if each != name}
            value = plan_expression(defined[name], others, {k: v for k, v in defined.items() if k not in self.names})
            if value is not None and _mentions_any(value, others.values()):
                del self.names[name]

    def _fresh(self, name: str) -> str:
        taken = {*RESERVED, *self.names.values(), *self.tensors.values()}
        return f"{name}_" if name in taken else name

    def _add_tensors(self, step: _Step) -> None:
        for parameter, argument in step.pairs:
            if not parameter.is_pointer:
                continue
            root = root_of(argument)
            wanted = parameter.name if len(self.steps) == 1 else _HOST_NAME.sub("", root)
            self.tensors.setdefault(root, self._fresh_tensor(wanted))
            element = resolve_template(parameter.element, step.signature, step.template) or parameter.element
            dtype = dtype_of(element)
            if dtype is None:
                self.open.append(f"the dtype of {self.tensors[root]}")
            self.dtypes.setdefault(root, dtype or ("i32" if scalar_type(element) in INTEGER_RANGES else "f32"))
            if root not in self.shapes and (shape := self._shape(step, parameter, root, element)):
                self.shapes[root] = shape

    def _fresh_tensor(self, wanted: str) -> str:
        name = wanted if wanted not in (*RESERVED, *self.scalars, *self.names.values()) else f"{wanted}_"
        return name if name not in self.tensors.values() else f"{name}_{len(self.tensors)}"

    def _shape(self, step: _Step, parameter: KernelParameter, root: str, element: str) -> list[str] | None:
        """Return the shape from the host's sizes, else from the kernel's indices."""
        if step.launch is not None and (known := allocated_shape(step.launch, root, self.names)):
            return known
        by_parameter = {p.name: self._value(a, step, p) for p, a in step.pairs if _is_integer(p)}
        grid = self._size(step, 0)
        found = step.body.shape(parameter.name, by_parameter, grid[0] if len(grid) == 1 else None)
        if not found:
            return None
        n_elements = element_count(element)
        return [*found[:-1], f"{n_elements} * {found[-1]}"] if n_elements > 1 else found

    def _complete_shapes(self, inputs: Sequence[str], others: Sequence[str]) -> None:
        """Give an input of unknown shape a dim of its own, which a call binds; another tensor that of an input."""
        for root in inputs:
            if root not in self.shapes:
                self.shapes[root] = [f"{self.tensors[root].upper()}_SIZE"]
        largest = max((self.shapes[root] for root in inputs), key=len, default=[])
        for root in others:
            if root not in self.shapes:
                self.shapes[root] = largest or [next(iter(self.names.values()), "1")]
                self.open.append(f"the shape of {self.tensors[root]}")

    def _fitted(self, inputs: Sequence[str]) -> dict[str, list[str]]:
        """Give the tensors the task's dims. Return these by the drafted dim that they replace."""
        drafted = [(self.tensors[root], self.shapes[root]) for root in inputs]
        taken = {*self.names.values(), *self.tensors.values(), *self.scalars, *RESERVED}
        parts = parts_of_dims(drafted, self.task_tensors, taken)
        self.shapes = {root: spliced(shape, parts) for root, shape in self.shapes.items()}
        return parts

    def _roles(self) -> tuple[list[str], list[str], list[str]]:
        """Return the inputs, the results, and what one step writes for a later one."""
        written: list[str] = []
        read_later: set[str] = set()
        inputs: list[str] = []
        for step in self.steps:
            reads = {root_of(a) for p, a in step.pairs if p.is_pointer and not step.writes(p)}
            read_later |= reads & {*written}
            inputs += [root_of(a) for p, a in step.pairs if root_of(a) in reads and p.is_pointer]
            written += [root_of(a) for p, a in step.pairs if step.writes(p)]
        ours = dict.fromkeys(root for root in inputs if root not in written)
        results = dict.fromkeys(root for root in written if root not in read_later)
        return list(ours), list(results), list(dict.fromkeys(root for root in written if root in read_later))

    def _declared(self, root: str) -> str:
        return f"{self.tensors[root]}: {self.dtypes[root]}[{', '.join(self.shapes[root])}]"

    def _fills(self) -> Iterator[str]:
        """Yield a fill for what the host sets to zero and for what atomics add to."""
        for step in self.steps:
            for parameter, argument in step.pairs:
                root = root_of(argument)
                is_set = step.launch is not None and re.search(
                    rf"\bcudaMemset(?:Async)?\s*\(\s*{re.escape(root)}\s*,\s*0\b", step.launch.before
                )
                if step.writes(parameter) and (is_set or step.body.adds_atomically(parameter.name)):
                    yield f"// fill: {self.tensors[root]} = 0"

    def _launch(self, step: _Step) -> str:
        template = f"<{', '.join(step.template)}>" if step.template else ""
        sizes = [_as_size(self._size(step, 0)), _as_size(self._size(step, 1)), *self._shared(step)]
        arguments = ", ".join(self._passed(p, a, step) for p, a in step.pairs)
        return f"// launch: {step.signature.name}{template}<<<{', '.join(sizes)}>>>({arguments})"

    def _passed(self, parameter: KernelParameter, argument: str, step: _Step) -> str:
        if parameter.is_pointer:
            return self.tensors[root_of(argument)]
        return self._value(argument, step, parameter) if _is_integer(parameter) else self._scalar(parameter)

    def _scalar(self, parameter: KernelParameter) -> str:
        return parameter.name if parameter.name in self.scalars else f"{parameter.name}_"

    def _value(self, argument: str, step: _Step, parameter: KernelParameter) -> str:
        value = without_casts(argument)
        known = self.names.get(parameter.name if value[:1].isdigit() else value)
        return known or plan_expression(argument, self.names, self._defined(step)) or parameter.name.upper()

    def _size(self, step: _Step, index: int) -> list[str]:
        """Return grid (0) or block (1) as the host has it, else as the kernel's body suggests."""
        written = step.launch.sizes[index] if step.launch is not None else ""
        parts = size_parts(written, self._defined(step))
        found = [plan_expression(part, self.names, self._defined(step)) for part in parts]
        if found and None not in found:
            return [each for each in found if each is not None]
        what = ("the grid", "the block")[index]
        if step.launch is not None and what not in self.open:
            self.open.append(what)
        return self._suggested_grid(step) if index == 0 else step.body.block(BLOCK)

    def _suggested_grid(self, step: _Step) -> list[str]:
        dims = [
            self.names[name]
            for name in (without_casts(a) for p, a in step.pairs if _is_integer(p))
            if name in self.names
        ]
        block = step.body.block(BLOCK)
        first = dims[0] if dims else "1"
        if len(block) > 1 and len(dims) > 1:
            return [f"ceil_div({dims[1]}, {block[0]})", f"ceil_div({first}, {block[1]})"]
        if step.body.has_block_per_row:
            return [first]
        bound = step.body.n_threads({p.name: self._value(a, step, p) for p, a in step.pairs if _is_integer(p)})
        return [f"ceil_div({' * '.join(bound or [first])}, {block[0]})"]

    def _shared(self, step: _Step) -> list[str]:
        sizes = step.launch.sizes if step.launch is not None else ()
        given = sizes[2] if len(sizes) > 2 else "0"
        if given == "0" and (step.launch is not None or not step.body.has_dynamic_shared):
            return []
        value = plan_expression(given, self.names, self._defined(step))
        if value is None or given == "0":
            self.open.append("the bytes of shared memory")
        return [value or "0"]

    def _defined(self, step: _Step) -> Mapping[str, str]:
        known = step.launch.defined if step.launch is not None else {}
        return {name: value for name, value in known.items() if name not in self.names}

    def _sized(self, name: str) -> bool:
        return any(_mentions(shape, name) for shape in self.shapes.values())

    def _completed(self) -> list[str]:
        """Return the comment that names what a person completes; none where nothing is open."""
        parts = list(dict.fromkeys([*(["the task"] if self.task == TASK else []), *self.open]))
        last = " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))
        return [f"// Complete {last}."] if parts else []


def _warnings(step: _Step) -> Iterator[str]:
    """Yield a comment for each tensor that the kernel changes in place, which no plan can say."""
    for parameter in step.signature.parameters:
        if step.writes(parameter) and step.body.updates(parameter.name):
            yield f"// The kernel updates `{parameter.name}` in place: let it read an input and write a result."


def _is_integer(parameter: KernelParameter) -> bool:
    return not parameter.is_pointer and scalar_type(parameter.element) in INTEGER_RANGES


def _as_size(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"dim3({', '.join(parts)})"


def _mentions(texts: Sequence[str], name: str) -> bool:
    return any(re.search(rf"\b{re.escape(name)}\b", text) for text in texts)


def _mentions_any(text: str, names: Iterable[str]) -> bool:
    return any(_mentions([text], name) for name in names)


def _lowered(plan: str, scalars: Sequence[str]) -> str:
    """Write the names of scalars in lower case, where nothing else is called so."""
    for name in scalars:
        if not re.search(rf"\b{name.lower()}\b", plan) and name.lower() not in RESERVED:
            plan = re.sub(rf"\b{name}\b", name.lower(), plan)
    return plan
