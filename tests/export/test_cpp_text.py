"""A plan's expressions as C++: one program prints the values of many, and they are those that the plan gives."""

from __future__ import annotations

import itertools
import math
import shutil
import subprocess
from pathlib import Path

import pytest

from kernel_lsp.core.expression import ExpressionError, Number, evaluate, parse
from kernel_lsp.export.package.cpp_text import (
    CppNames,
    cpp_condition,
    cpp_double,
    cpp_expression,
    cpp_integer,
    cpp_lines,
    cpp_string,
    cpp_value,
)
from kernel_lsp.export.package.project import SOURCES

VALUES: dict[str, Number] = {"B": 7, "D": -3, "N": 1 << 40, "Z": 0, "eps": 0.75, "low": -2.5, "flag": True}
NAMES = CppNames(
    {name: name for name in VALUES},
    {
        name: "bool" if isinstance(value, bool) else "real" if isinstance(value, float) else "integer"
        for name, value in VALUES.items()
    },
)
TEXTS = (
    *(
        f"{a} {operator} {b}"
        for a, b in itertools.product(("B", "D", "-7", "low"), repeat=2)
        for operator in ("//", "%")
    ),
    *(
        f"{function}({a}, {b})"
        for function in ("ceil_div", "min", "max")
        for a, b in (("B", "D"), ("D", "4"), ("B", "eps"))
    ),
    "B + D * 2 - (N - 1)",
    "-(B - D) * -2",
    "B - (D - 1)",
    "B / 2",
    "min(B, D, -8)",
    "flag + 1",
    "B * eps",
    "N * N",
    "N * 4194304 * 2",
    "B // Z",
    "B % Z",
    "eps / Z",
    "-9223372036854775807 - 2",
    "B < D",
    "not B < D and flag",
    "B and D or flag",
    "(flag or B < D) and D == -3",
    "not (flag and Z)",
    "1.5 // 0.5",
    "1e300 * 1e10",
)


def typed_texts() -> list[str]:
    """Each as the statement that prints its value, or that it has none."""
    lines = []
    for text in TEXTS:
        found = cpp_expression(parse(text), NAMES)
        value = {"integer": f"({found.text}).value", "real": found.text, "bool": f"int({found.text})"}[found.type]
        shown = "%.17g" if found.type == "real" else "%lld"
        cast = "" if found.type == "real" else "(long long)"
        lines.append(
            f'try {{ printf("{shown}\\n", {cast}({value})); }} catch (const plan::Unfit&) {{ puts("unfit"); }}'
        )
    return lines


def program() -> str:
    types = {"integer": "Integer", "real": "double", "bool": "bool"}
    declared = [
        f"const {types[NAMES.types[n]]} {n} = {str(v).lower() if isinstance(v, bool) else v};"
        for n, v in VALUES.items()
    ]
    return "\n".join(
        [
            '#include "plan_arithmetic.h"',
            "#include <cstdio>",
            'using plan::Integer; using plan::operator""_i;',
            "int main() {",
            *declared,
            *typed_texts(),
            "}",
        ]
    )


def expected(text: str) -> Number | None:
    try:
        value = evaluate(parse(text), VALUES)
    except ExpressionError:
        return None
    return value


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    folder: Path = tmp_path_factory.mktemp("cpp")
    (folder / "main.cpp").write_text(program())
    made = ["g++", "-std=c++17", "-Wall", "-Werror", f"-I{SOURCES}", "main.cpp", "-o", "main"]
    subprocess.run(made, cwd=folder, check=True, timeout=120)
    output = subprocess.run([folder / "main"], check=True, capture_output=True, text=True, timeout=20).stdout
    return dict(zip(TEXTS, output.splitlines(), strict=True))


@pytest.mark.parametrize("text", TEXTS)
def test_cpp_gives_the_value_that_the_plan_gives(printed: dict[str, str], text: str) -> None:
    value = expected(text)
    if value is None:
        assert printed[text] == "unfit"
    else:
        assert math.isclose(float(printed[text]), float(value), rel_tol=0.0) or float(printed[text]) == value


def test_an_integer_is_passed_as_its_parameter_holds_it() -> None:
    assert cpp_value(parse("B * 2"), NAMES, "int32_t") == "plan::as<int32_t>(B * 2_i)"


def test_a_size_is_an_integer_even_where_the_expression_is_real() -> None:
    assert (
        cpp_integer(parse("B / 2"), NAMES)
        == "plan::Integer(plan::as<int64_t>(plan::divide(plan::real(B), plan::real(2_i))))"
    )


def test_a_number_as_a_condition_is_compared_with_zero() -> None:
    assert cpp_condition(parse("B - 1"), NAMES) == "B - 1_i != 0_i"


def test_infinities_have_a_literal() -> None:
    assert cpp_double(-math.inf) == "-std::numeric_limits<double>::infinity()"


def test_strings_are_escaped() -> None:
    assert cpp_string('a "b"\\') == '"a \\"b\\"\\\\"'


def test_a_long_line_breaks_at_a_comma_outside_of_strings() -> None:
    line = f'call("{"a, " * 40}", second, third)'
    assert cpp_lines([line])[0].endswith('a, ",')


def test_two_empty_lines_become_one() -> None:
    assert cpp_lines(["a", "", "", "b"]) == ["a", "", "b"]
