"""Selected lines become a function: what flows in, what flows out, and what cannot move."""

from __future__ import annotations

import pytest

from kernel_lsp.errors import TargetError
from kernel_lsp.source.extraction import SIZES, Extraction, extract
from kernel_lsp.source.python_file import parse_python
from kernel_lsp.source.selection import Selection, select

TEXT = """\
import torch
from torch.nn import functional as F


# what it does
class Net(torch.nn.Module):
    def forward(self, x, n):
        \"\"\"Doc.\"\"\"
        a = x * self.weight
        b = a + self.norm.bias
        for i in range(n):
            b = F.relu(b) * i
        if n > 3:
            c = b
        else:
            c = -b
        return c + a


def plain(x, y):
    total = x
    for row in y:
        total = total + row
        if total.sum() > 3:
            break
    z = [total for total in y]
    z[0] += 1
    return total, z
"""
KNOWN = {
    "x": "f32[B, 8]",
    "y": "f32[4, 8]",
    "a": "f32[B, 8]",
    "b": "f32[B, 8]",
    "n": "5",
    "total": "f32[8]",
    "self.weight": "f32[8]",
    "self.norm.bias": "f32[8]",
    SIZES: "B=2",
}


def selected(symbol: str, first: int, last: int, text: str = TEXT) -> Selection:
    return select(parse_python(text, "net.py"), symbol, first, last)


def extracted(symbol: str, first: int, last: int, text: str = TEXT) -> Extraction:
    source = parse_python(text, "net.py")
    return extract(source, select(source, symbol, first, last), "part", KNOWN)


def check_refused(symbol: str, first: int, last: int, message: str) -> None:
    with pytest.raises(TargetError) as raised:
        extracted(symbol, first, last)
    assert message in raised.value.message
    assert raised.value.next_step
    assert raised.value.line is not None


def test_what_flows_in_and_out_is_found() -> None:
    found = selected("Net", 9, 10)
    assert (found.inputs, found.outputs) == (("x",), ("a", "b"))
    assert [own.path for own in found.own] == ["weight", "norm.bias"]


def test_the_lines_become_a_function_of_what_they_use() -> None:
    found = extracted("Net", 9, 10)
    assert found.function == (
        "# kernel-lsp: x=f32[B, 8], weight=f32[8], bias=f32[8], B=2\n"
        "def part(x, weight, bias):\n"
        "    a = x * weight\n"
        "    b = a + bias\n"
        "    return a, b"
    )
    assert found.call == "        a, b = part(x, self.weight, self.norm.bias)"
    assert (found.first_line, found.last_line, found.function_line) == (9, 10, 5)


def test_a_return_stays_one() -> None:
    found = extracted("Net", 13, 17)
    assert found.call == "        return part(n, b, a)"
    assert found.function.endswith("    return c + a")


def test_a_partly_selected_statement_is_taken_whole() -> None:
    assert (selected("Net", 11, 11).first_line, selected("Net", 11, 11).last_line) == (11, 12)


def test_statements_inside_of_a_block_can_be_selected() -> None:
    found = selected("Net", 12, 12)
    assert (found.inputs, found.outputs) == (("b", "i"), ("b",))


def test_a_loop_carries_its_own_results() -> None:
    found = selected("plain", 23, 23)
    assert (found.inputs, found.outputs) == (("total", "row"), ("total",))


def test_a_comprehension_s_own_name_is_no_input() -> None:
    assert selected("plain", 26, 26).inputs == ("y",)


def test_a_conditional_assignment_keeps_the_old_value() -> None:
    text = TEXT.replace("        else:\n            c = -b\n", "").replace("a = x *", "c = a = x *")
    found = selected("Net", 13, 14, text)
    assert (found.inputs, found.outputs) == (("n", "b", "c"), ("c",))


def test_names_of_the_file_are_told() -> None:
    assert extracted("Net", 11, 12).global_names == ("F",)


def test_what_is_own_under_another_name_is_called_so() -> None:
    text = TEXT.replace("self", "me")
    assert extracted("Net", 9, 9, text).call == "        a = part(x, me.weight)"


def test_text_before_an_own_use_may_hold_any_character() -> None:
    text = TEXT.replace("a = x * self.weight", 'é = "😀"; a = x * self.weight')
    assert "a = x * weight" in extracted("Net", 9, 9, text).function


def test_lines_without_statements_are_refused() -> None:
    check_refused("Net", 8, 8, "no statement")


def test_a_return_in_the_middle_is_refused() -> None:
    source = "def f(x):\n    if x > 0:\n        return x\n    y = -x\n    return y\n"
    with pytest.raises(TargetError, match="return"):
        select(parse_python(source, "f.py"), "f", 2, 4)


def test_a_break_of_an_outer_loop_is_refused() -> None:
    check_refused("plain", 24, 25, "outside of the selected lines")


def test_an_unknown_input_is_refused_with_the_line_to_add() -> None:
    check_refused("plain", 23, 23, "unknown value of 'row'")


def test_what_nobody_uses_is_refused() -> None:
    source = "def f(x):\n    y = x * 2\n    return x\n"
    with pytest.raises(TargetError, match="used after"):
        select(parse_python(source, "f.py"), "f", 2, 2)


def test_a_module_of_the_object_is_refused() -> None:
    text = TEXT.replace("self.norm.bias", "self.norm(x)")
    with pytest.raises(TargetError, match=r"'self\.norm' is no tensor"):
        extracted("Net", 10, 10, text)


@pytest.mark.parametrize("body", ["self.kept = x", "y = f(self)", "yield x"])
def test_what_cannot_move_is_refused(body: str) -> None:
    text = f"class A:\n    def forward(self, x):\n        {body}\n        y = x\n        return y\n"
    with pytest.raises(TargetError):
        select(parse_python(text, "a.py"), "A", 3, 4)
