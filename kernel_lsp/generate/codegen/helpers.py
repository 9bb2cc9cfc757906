"""Small `__device__` functions that kernels call. A file holds each that it uses once.

Their CUDA text lies in the `.cuh` files of this folder, in sections that begin with ``//@ NAME``. Texts are written for
one type: ``{T}`` is the type, ``{f}`` the suffix of math functions, ``{s}`` that of literals. A name with another
placeholder stands for a function for each row of that table in `INSTANCES`, one with ``:integer`` or a type for the
text that integers or this type have instead.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import astuple, dataclass
from itertools import groupby
from pathlib import Path

SUFFIXES = {"float": ("f", "f"), "double": ("", "")}
FILES = (
    "functions",
    "rows/rows",
    "scans/scans",
    "routines/routines",
    "tensor_cores/tensor_cores",
    "tensor_cores/warpgroups",
    "attention/attention",
    "attention/gradients",
    "attention/warpgroups",
)
"""Files of device functions: a function calls those of its own file and of earlier ones."""
ALL_COLUMNS = (*range(16, 72, 8), 96, 128)
"""Columns of results per `wgmma` that helpers exist for."""
MAX_SPLIT_COLUMNS = 64
"""Maximum columns of one product of split tiles: its large and small sums take as many registers of a thread."""
_REGISTERS_PER_LINE, _SUMS_PER_LINE = 16, 4
_LOG2_E = "1.4426950408889634f"
_OFFSET = f"""\
        float offset = -base * {_LOG2_E};
        if (fabsf(base) >= 0x1p18f) {{  // its rounding would be a power of two, up to infinity
            #pragma unroll
            for (int n = 0; n < KEYS / 8; ++n) {{
                #pragma unroll
                for (int c = half * 2; c < half * 2 + 2; ++c) scores[n][c] -= base;
            }}
            offset = 0.0f;
        }}
"""


@dataclass(frozen=True, order=True)
class HelperUse:
    """A helper for one type."""

    name: str
    type: str


def columns_per_product(n_columns: int) -> int:
    """Return the columns of each of the products of split tiles that give `n_columns`; 0 where they do not divide."""
    fitting = [n for n in ALL_COLUMNS if n <= MAX_SPLIT_COLUMNS and n_columns % n == 0]
    return max(fitting, default=0)


def render_helpers(uses: Iterable[HelperUse]) -> str:
    """Return the used functions and their dependencies, in an order that compiles."""
    wanted: set[HelperUse] = set()
    pending = list(uses)
    while pending:
        use = _needed(*astuple(pending.pop()))
        if use not in wanted:
            wanted.add(use)
            pending.extend(HelperUse(name, use.type) for name in NEEDS[use.name])
    order = {name: position for position, name in enumerate(HELPERS)}
    ordered = sorted(wanted, key=lambda use: (order[use.name], use.type))
    return "\n".join(_render(use) for use in ordered)


def with_called(uses: Collection[HelperUse], lines: Iterable[str]) -> frozenset[HelperUse]:
    """Return the uses, and those of functions without a type of their own that lines of code call besides."""
    known = {use.name for use in uses}
    called = {name for line in lines for name in _called(line) if "{T}" not in HELPERS.get(name, "{T}")}
    return frozenset(uses) | {HelperUse(name, "") for name in called - known}


def _needed(name: str, type_: str) -> HelperUse:
    """Return the use of a helper, whose text may be the same for all types."""
    return HelperUse(name, (type_ or "float") if "{T}" in HELPERS[name] else "")


def _render(use: HelperUse) -> str:
    f, s = SUFFIXES.get(use.type, ("", ""))
    kinds = [use.type] if use.type in SUFFIXES else [use.type, "integer"]
    own = (HELPERS[name] for kind in kinds if (name := f"{use.name}:{kind}") in HELPERS)
    text = next(own, HELPERS[use.name])
    return text.replace("{T}", use.type).replace("{f}", f).replace("{s}", s) + "\n"


def _table(columns: str, *rows: tuple[str, ...]) -> tuple[dict[str, str], ...]:
    return tuple(dict(zip(columns.split(), row, strict=True)) for row in rows)


def _lines(texts: list[str], indent: str, per_line: int, *, quoted: bool = False) -> str:
    rows = [", ".join(texts[start : start + per_line]) for start in range(0, len(texts), per_line)]
    return f', "\n{indent}"'.join(rows) if quoted else f",\n{indent}".join(rows)


def _wgmma(n_columns: int) -> tuple[str, ...]:
    """Return the columns of one `wgmma` of TF32 numbers, whose sums are `n_columns` / 2 registers of each thread."""
    n_sums = n_columns // 2
    registers = _lines([f"%{place}" for place in range(n_sums)], " " * 8, _REGISTERS_PER_LINE, quoted=True)
    sums = _lines([f'"+f"(sums[{place // 4}][{place % 4}])' for place in range(n_sums)], " " * 10, _SUMS_PER_LINE)
    a = ", ".join(f"%{n_sums + place}" for place in range(4))
    return (str(n_columns), str(n_columns // 8), registers, sums, a, f"%{n_sums + 4}", f"%{n_sums + 5}")


INSTANCES = {
    "extreme": _table("extreme other", ("max", "maximum"), ("min", "minimum")),
    "adding": _table(
        "adding exp purpose",
        ("add_exponentials", "exp{f}", ""),
        ("add_quick_exponentials", "__expf", "\n// For results of 16 bits."),
    ),
    "raising": _table("raising exp", ("raise_peak", "expf"), ("raise_quick_peak", "__expf")),
    "kind": _table(
        "kind word combine_lane combine_part start",
        *(
            (kind, word, f"result {sign}= of_lane[lane][column];", f"value {sign}= parts[part];", start)
            for kind, word, sign, start in (
                ("sum", "sum", "+", "if (threadIdx.x % 32 >= BLOCKS) value = 0;\n    "),
                ("prod", "product", "*", "if (threadIdx.x % 32 >= BLOCKS) value = 1;\n    "),
            )
        ),
        *(
            (kind, word, f"result = {word}(result, of_lane[lane][column]);", f"value = {word}(value, parts[part]);", "")
            for kind, word in (("max", "maximum"), ("min", "minimum"))
        ),
    ),
    "several": _table("several one", ("sums", "sum"), ("maxima", "max")),
    "bits": _table(
        "bits type pair to_pair",
        ("f16", "__half", "__half2", "__floats2half2_rn"),
        ("bf16", "__nv_bfloat16", "__nv_bfloat162", "__floats2bfloat162_rn"),
    ),
    "precision": _table(
        "precision rescaled shifted weight relative",
        ("f32", "expf(peaks[half] - base)", "", "expf(scores[n][c] - base)", "expf(scores[n][c] - base)"),
        (
            "16",
            f"exp2_approximate((peaks[half] - base) * {_LOG2_E})",
            _OFFSET,
            f"exp2_approximate(fmaf(scores[n][c], {_LOG2_E}, offset))",
            f"exp2_approximate((scores[n][c] - base) * {_LOG2_E})",
        ),
    ),
    "columns": _table("columns columns/8 registers sums a b adds", *map(_wgmma, ALL_COLUMNS)),
    "count": _table(
        "count count/2 count/8 count*32",
        *((str(n), str(n // 2), str(n // 8), str(n * 32)) for n in ALL_COLUMNS if n <= MAX_SPLIT_COLUMNS),
    ),
}
"""Rows of each placeholder in the name of a section, by the first of the placeholders that they replace."""


def _sections() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each section. Neighbours with the same placeholder alternate, row by row."""
    for file in FILES:
        text = (Path(__file__).parent / f"{file}.cuh").read_text(encoding="utf-8")
        parts = re.split(r"^//@ (\S+)\n", text, flags=re.MULTILINE)[1:]
        sections = list(
            zip(parts[::2], (part.removesuffix("\n").removesuffix("\n") for part in parts[1::2]), strict=True)
        )
        for placeholder, group in groupby(sections, key=lambda section: re.findall(r"{(\w+)}", section[0])):
            templates = list(group)
            for row in INSTANCES[placeholder[0]] if placeholder else ({},):
                for template in templates:
                    yield _replaced(template[0], row), _replaced(template[1], row)


def _replaced(text: str, row: dict[str, str]) -> str:
    for placeholder, value in row.items():
        text = text.replace(f"{{{placeholder}}}", value)
    return text


def _called(code: str) -> list[str]:
    return re.findall(r"\b(\w+)(?=[<(])", re.sub(r"//.*", "", code))


def _needs() -> dict[str, tuple[str, ...]]:
    """Return the other helpers that each text calls. A helper may define further functions beside that of its name."""
    owners = {name: name for name in HELPERS}
    for name, text in HELPERS.items():
        for function in re.findall(r"__device__ inline [^(\n]*?(\w+)\(", text):
            owners.setdefault(function, name)
    needs = {}
    for name, text in HELPERS.items():
        needs[name] = tuple(dict.fromkeys(owners[word] for word in _called(text) if owners.get(word, name) != name))
    return needs


HELPERS: dict[str, str] = dict(_sections())
"""Text of each device function, by its name."""
NEEDS = _needs()
