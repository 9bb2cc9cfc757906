"""Read from a kernel's body and signature how it indexes its parameters: dtypes, shapes, block sizes, what is
written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from kernel_lsp.core.dtype import DType
from kernel_lsp.plan.cuda_types import canonical_type, pointer_fits, type_size_bytes
from kernel_lsp.source.cuda import closing, kernel_line_ranges, without_comments_and_strings
from kernel_lsp.source.host_launches import HostLaunch, plan_expression, split_top, without_casts

MAX_EXPANSIONS = 16
_LOCAL = re.compile(
    r"\b(?:const\s+)?(?:auto|size_t|u?int(?:8|16|32|64)?_t|(?:unsigned|long|int)(?:\s+(?:int|long))*)\s+"
    r"(?P<name>[A-Za-z_]\w*)\s*=\s*(?P<value>[^;]+);"
)
_ALIAS = re.compile(
    r"\*\s*(?:__restrict__\s+|const\s+)*(?P<name>\w+)\s*=\s*(?P<base>[A-Za-z_]\w*)\s*\+(?P<offset>[^;]+);"
)
_ONE_PER_THREAD = re.compile(r"blockIdx\.x\s*\*\s*(?:blockDim\.x|[A-Z_]+\b|\d+)|blockDim\.x\s*\*\s*blockIdx\.x")
_BOUNDS = re.compile(r"__launch_bounds__\s*\(\s*(\d+)\s*[,)]")
_TILE = "16"
"""Side of a drafted block of two dims."""


@dataclass(frozen=True)
class KernelBody:
    """The text of one kernel, without comments."""

    text: str = ""

    def writes(self, parameter: str) -> bool:
        """Return True if the kernel stores to the parameter or passes it on, and for a body that is unknown."""
        names = {parameter, *(name for name, (base, _) in self._aliases.items() if base == parameter)}
        words = "|".join(map(re.escape, names))
        stored = rf"\b(?:{words})\s*\[[^;]*?\]\s*(?:\.\w+\s*)?[-+*/|&^]?=(?!=)|\*\s*(?:{words})\s*=(?!=)"
        passed = rf"[(,&]\s*(?:{words})\s*(?:[+,)]|\[)"
        cast = rf"=\s*[^;]*\(\s*\w+\s*\*+\s*\)\s*(?:{words})\b|<[^<>]*\*>\s*\(\s*&?\s*(?:{words})"
        return not self.text or bool(re.search(f"{stored}|{passed}|{cast}", self._inside))

    def updates(self, parameter: str) -> bool:
        """Return True if the kernel reads what it writes to the parameter."""
        name = re.escape(parameter)
        reads = rf"(?<!&)(?<!& )\b{name}\s*\[(?P<index>[^\[\]]*)\](?!\s*=(?!=))(?!\s*\.\w+\s*=(?!=))"
        return bool(re.search(reads, self._inside))

    def adds_atomically(self, parameter: str) -> bool:
        return bool(re.search(rf"\batomic(?:Add|Or|Xor|Inc)\s*\(\s*&?\s*{re.escape(parameter)}\b", self._inside))

    @property
    def has_dynamic_shared(self) -> bool:
        return "extern" in self.text and "__shared__" in self.text

    @property
    def has_block_per_row(self) -> bool:
        """Return True if a block takes a row: its index is used as it is."""
        return "blockIdx.x" in self.text and not _ONE_PER_THREAD.search(self.text)

    def n_threads(self, dims: Mapping[str, str]) -> list[str] | None:
        """Return the factors that the body bounds a thread's index across the grid by. `dims` are the values of integer
        parameters."""
        for name, value in self._locals.items():
            if _ONE_PER_THREAD.search(value) and "threadIdx.x" in value and not set("/%") & set(value):
                return self._bound(name, dims, None)
        return None

    def block(self, otherwise: int) -> list[str]:
        """Return the block size that the body suggests."""
        bounds = _BOUNDS.search(self.text)
        if "threadIdx.y" in self.text:
            return [_TILE, _TILE]
        return [bounds[1] if bounds else str(otherwise)]

    def shape(self, parameter: str, dims: Mapping[str, str], rows: str | None) -> list[str] | None:
        """Return the shape that the indices of a parameter span. `dims` are the values of integer parameters, `rows`
        the number of blocks. None where the indices leave it open."""
        found = [shape for index in self._indices(parameter) if (shape := self._span(index, dims, rows))]
        return max(found, key=len, default=None)

    @cached_property
    def _inside(self) -> str:
        return self.text[self.text.find("{") :]

    @cached_property
    def _locals(self) -> dict[str, str]:
        return {match["name"]: match["value"] for match in _LOCAL.finditer(self._inside)}

    @cached_property
    def _aliases(self) -> dict[str, tuple[str, str]]:
        return {m["name"]: (m["base"], m["offset"]) for m in _ALIAS.finditer(self._inside)}

    def _indices(self, parameter: str) -> Iterator[str]:
        names = {parameter: ""} | {
            n: f"{offset} + " for n, (base, offset) in self._aliases.items() if base == parameter
        }
        for name, offset in names.items():
            for match in re.finditer(rf"\b{re.escape(name)}\s*\[", self._inside):
                yield offset + self._inside[match.end() : closing(self._inside, match.end(), "[]")]

    def _span(self, index: str, dims: Mapping[str, str], rows: str | None) -> list[str] | None:
        if index.strip().isdigit():
            return ["1"]
        direct = self._bound(index.strip(), dims, rows)
        expanded = self._expanded(index, dims)
        products = re.findall(r"([A-Za-z_][\w.]*)\s*\*\s*(?:\(\s*\w+\s*\)\s*)?([A-Za-z_]\w*)", expanded)
        strides = [(v, s) if s in dims else (s, v) for v, s in products if (s in dims) != (v in dims)]
        if not strides:
            return direct
        lead = self._bound(strides[0][0], dims, rows)
        return [*lead, *(dims[stride] for _, stride in strides)] if lead else None

    def _bound(self, variable: str, dims: Mapping[str, str], rows: str | None) -> list[str] | None:
        """Return the factors that a comparison bounds a variable by; for the index of a block, the number of blocks."""
        name = re.escape(variable)
        for match in re.finditer(rf"\b{name}\s*(?:<|>=)\s*([A-Za-z_]\w*(?:\s*\*\s*\w+)*)", self._inside):
            factors = re.split(r"\s*\*\s*", match[1])
            if {*factors} <= {*dims}:
                return [dims[factor] for factor in factors]
        is_block = self._locals.get(variable, variable).strip() == "blockIdx.x"
        return [rows] if is_block and rows else None

    def _expanded(self, index: str, dims: Mapping[str, str]) -> str:
        """Replace locals by their values, except those that a comparison bounds."""
        for _ in range(MAX_EXPANSIONS):
            known = [
                n for n in re.findall(r"[A-Za-z_]\w*", index) if n in self._locals and not self._bound(n, dims, None)
            ]
            if not known or self._locals[known[0]].strip().startswith("blockIdx"):
                return index
            index = re.sub(rf"\b{known[0]}\b", f"({self._locals[known[0]]})", index)
        return index


def kernel_bodies(text: str) -> dict[str, KernelBody]:
    """Return the body of each kernel by its name."""
    lines = without_comments_and_strings(text).split("\n")
    ranges = reversed(kernel_line_ranges(text))
    return {each.name: KernelBody("\n".join(lines[each.first_line - 1 : each.last_line])) for each in ranges}


_NO_ROOT = frozenset(
    ("const", "reinterpret_cast", "static_cast", "thrust", "raw_pointer_cast", "float", "double", "int", "char", "void")
)
_CASTS = re.compile(r"<[^<>]*>|\((?:const\s+)?[\w: ]+\*+\s*\)")
_SIZE = re.compile(r"(?P<tensor>\w+)\s*\.\s*size\s*\(\s*(?P<index>\d+)\s*\)")


def dtype_of(element: str) -> str | None:
    """Return the dtype of a pointer's elements, f32 for ``float4``; None for a type of no dtype."""
    name = canonical_type(element)
    exact = next((dtype for dtype in DType if canonical_type(dtype.cuda_type) == name), None)
    vector = next((dtype for dtype in DType if name.startswith(_vector_base(dtype)) and name[-1:].isdigit()), None)
    fitting = next((dtype for dtype in (DType.F32, *DType) if pointer_fits(element, dtype)), None)
    found = exact or vector or fitting
    return str(found) if found is not None else None


def element_count(element: str) -> int:
    """Return how many tensor elements one element of a pointer holds: 4 for ``float4``, else 1."""
    dtype, size = dtype_of(element), type_size_bytes(element)
    return size // DType(dtype).itemsize if dtype is not None and size else 1


def root_of(argument: str) -> str:
    """Return the host variable that an argument is made of: ``x`` for ``(float4*)x.data_ptr<float>()``."""
    names = re.findall(r"[A-Za-z_]\w*", _CASTS.sub(" ", argument))
    return next((name for name in names if name not in _NO_ROOT), argument)


def allocated_shape(launch: HostLaunch, root: str, names: Mapping[str, str]) -> list[str] | None:
    """Return the shape from ``root.size(i)`` and ``root.numel()`` in scope, else from the size of its allocation."""
    seen: set[str] = set()
    while root not in seen:
        seen.add(root)
        like = re.search(rf"\b{re.escape(root)}\s*=\s*[\w:]*_like\s*\(\s*(\w+)", launch.before)
        root = like[1] if like is not None else root
    return _named_sizes(launch, root, names) or _created(launch, root, names) or _allocation(launch, root, names)


def _vector_base(dtype: DType) -> str:
    return {DType.F16: "__half", DType.BF16: "__nv_bfloat16", DType.F64: "double", DType.I32: "int"}.get(dtype, "float")


def _named_sizes(launch: HostLaunch, root: str, names: Mapping[str, str]) -> list[str] | None:
    dims: dict[int, str] = {}
    for name, dim in names.items():
        value = without_casts(launch.defined.get(name, name))
        match = _SIZE.fullmatch(value)
        if match and match["tensor"] == root:
            dims[int(match["index"])] = dim
        elif re.fullmatch(rf"{re.escape(root)}\s*\.\s*numel\s*\(\s*\)", value):
            return [dim]
    return [dims[i] for i in sorted(dims)] if dims and sorted(dims) == list(range(len(dims))) else None


def _created(launch: HostLaunch, root: str, names: Mapping[str, str]) -> list[str] | None:
    """Return the shape of ``torch::empty({rows, cols}, ...)``."""
    made = rf"\b{re.escape(root)}\s*=\s*(?:torch|at)::(?:empty|zeros|ones)\s*\(\s*\{{(?P<sizes>[^{{}}]*)\}}"
    match = re.search(made, launch.before)
    shape = [plan_expression(size, names, launch.defined) for size in split_top(match["sizes"])] if match else []
    known = [each for each in shape if each is not None]
    return known if known and len(known) == len(shape) else None


def _allocation(launch: HostLaunch, root: str, names: Mapping[str, str]) -> list[str] | None:
    name = re.escape(root)
    allocated = rf"\bcudaMalloc\w*\s*(?P<call>\()\s*(?:\([^()]*\)\s*)?&\s*{name}\s*,"
    filled = rf"\bcudaMemset\w*\s*(?P<call>\()\s*{name}\s*,[^,]*,"
    match = re.search(allocated, launch.before) or re.search(filled, launch.before)
    if match is None:
        return None
    size = next(iter(split_top(launch.before[match.end() : closing(launch.before, match.end("call"))])), "")
    seen: set[str] = set()  # a definition that is half typed may name itself
    while (whole := without_casts(size)) in launch.defined and whole not in {*names, *seen}:
        seen.add(whole)
        size = launch.defined[whole]
    factors = [factor for factor in split_top(without_casts(size), "*") if not factor.startswith("sizeof")]
    defined = {name: value for name, value in launch.defined.items() if name not in names}
    shape = [plan_expression(factor, names, defined) for factor in factors] or ["1"]
    known = [each for each in shape if each is not None]
    if len(known) < len(shape):
        return None
    return [" * ".join(known)] if any(each.isdigit() for each in known) else known
