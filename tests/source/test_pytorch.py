"""A target's text says what it is called with, or an error says where to write it."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernel_lsp.core.task import ConstantInput, Construction, ScalarInput, TargetInput, TargetSource, TensorInput
from kernel_lsp.errors import TargetError, UnknownInputsError
from kernel_lsp.source.python_file import parse_python, read_python_file
from kernel_lsp.source.pytorch import TargetLocation, read_target, targets_in

EXAMPLES = Path(__file__).parents[2] / "examples"
IGNORED_CHECKS = (HealthCheck.function_scoped_fixture, HealthCheck.too_slow)
"""Every example overwrites the same file; and a machine under load is slow."""
HELPERS_WITHOUT_PRAGMA = ("rotate_half", "RMSNorm")
"""Parts of examples that are no example themselves; `rms_norm.py::RMSNorm` is read by the examples' own tests."""


@pytest.fixture
def read(tmp_path: Path):
    def read_text(text: str, symbol: str = "f") -> TargetSource:
        (tmp_path / "m.py").write_text(dedent(text).lstrip("\n"))
        return read_target(f"m.py::{symbol}" if symbol else "m.py", tmp_path)

    return read_text


@pytest.fixture
def check(read):
    """The inputs of a target, each as (name, dtype, shape) or (name, value)."""

    def check_inputs(text: str, *expected: tuple, symbol: str = "f") -> TargetSource:
        source = read(text, symbol)
        assert source.inputs is not None
        assert tuple(plain(entry) for entry in source.inputs) == expected
        return source

    return check_inputs


@pytest.fixture
def check_error(read):
    def check_fault(text: str, line: int, words: str, next_step: str, symbol: str = "f") -> None:
        with pytest.raises(TargetError) as caught:
            read(text, symbol)
        assert (caught.value.file, caught.value.line) == ("m.py", line)
        assert words in caught.value.message
        assert next_step in caught.value.next_step

    return check_fault


def plain(entry: TargetInput) -> tuple:
    if isinstance(entry, ConstantInput):
        return entry.name, entry.literal
    return (entry.name, entry.dtype.value, entry.shape) if isinstance(entry, TensorInput) else (entry.name, entry.value)


MODULE = """
    class Norm(nn.Module):
        def __init__(self, dim, eps=1e-6):
            super().__init__()

        def forward(self, x):
            return x
"""


# --- where a pragma stands


def test_a_pragma_above_the_function_is_read(check) -> None:
    source = check(
        "# kernel-lsp: x=f32[8192, 4096], eps=1e-6\ndef f(x, eps):\n    return x",
        ("x", "f32", (8192, 4096)),
        ("eps", 1e-6),
    )
    assert (source.kind, source.symbol, source.line, source.parameters) == ("function", "f", 2, ("x", "eps"))


def test_a_pragma_on_the_line_of_the_def_is_read(check) -> None:
    check("def f(x):  # kernel-lsp: x=f16[4]\n    return x", ("x", "f16", (4,)))


def test_a_pragma_in_the_first_lines_of_the_body_is_read(check) -> None:
    check('def f(x):\n    """Doc."""\n    # kernel-lsp: x=i8[4]\n    return x', ("x", "i8", (4,)))


def test_a_pragma_above_decorators_and_among_other_comments_is_read(check) -> None:
    check("# why\n# kernel-lsp: x=f32[4]\n# how\n@torch.compile\ndef f(x):\n    return x", ("x", "f32", (4,)))


def test_several_pragma_lines_are_one(check) -> None:
    check("# kernel-lsp: x=f32[4]\n# kernel-lsp: y=f32[]\ndef f(x, y): pass", ("x", "f32", (4,)), ("y", "f32", ()))


def test_a_pragma_in_a_string_is_none(check_error) -> None:
    check_error('"""\n# kernel-lsp: x=f32[4]\n"""\ndef f(x): pass', 4, "unknown input shapes", "add above it")


@pytest.mark.parametrize("lost", ["# kernel_lsp: x=f32[4]\n", "# kernel-lsp x=f32[4]\n", "# kernel-lsp: x=f32[4]\n\n"])
def test_a_pragma_that_is_not_read_is_named(check_error, lost: str) -> None:
    why = "line 1 must begin with `# kernel-lsp:`, with no empty line below"
    check_error(f"{lost}def f(x): pass", lost.count("\n") + 1, why, "x=f32")


def test_a_pragma_of_another_function_is_not_taken(check_error) -> None:
    check_error("# kernel-lsp: x=f32[4]\ndef g(x): pass\n\ndef f(x): pass", 4, "unknown input shapes", "x=f32")


def test_inputs_come_in_the_order_of_the_signature(check) -> None:
    check("# kernel-lsp: y=f32[2], x=f32[1]\ndef f(x, y): pass", ("x", "f32", (1,)), ("y", "f32", (2,)))


def test_parameters_with_a_default_may_be_left_out(check) -> None:
    check("# kernel-lsp: x=f32[1]\ndef f(x, eps=1e-5, *, mask=None): pass", ("x", "f32", (1,)))


# --- what a pragma says


def test_named_dims_have_their_size_from_any_place(check) -> None:
    source = check(
        "# kernel-lsp: x=f32[B=8, D], w=f32[2 * D, n], D=3, n=5\ndef f(x, w, n): pass",
        ("x", "f32", (8, 3)),
        ("w", "f32", (6, 5)),
        ("n", 5),
    )
    assert source.inputs[0].dim_names == ("B", "D")
    assert source.inputs[1].dim_names == (None, "n")


def test_integer_tensors_take_a_range(read) -> None:
    source = read("# kernel-lsp: t=i64[B=8] < V, u=i32[8] in [-1, V), V=100\ndef f(t, u): pass")
    assert [entry.integer_range for entry in source.inputs] == [(0, 100), (-1, 100)]


def test_scalars_may_be_negative_logical_or_a_quotient(check) -> None:
    check("# kernel-lsp: a=-100, b=True, c=1/8\ndef f(a, b, c): pass", ("a", -100), ("b", True), ("c", 0.125))


def test_the_names_of_torch_dtypes_are_understood(check) -> None:
    check("# kernel-lsp: x=bfloat16[4]\ndef f(x): pass", ("x", "bf16", (4,)))


def test_empty_tensors_are_allowed(check) -> None:
    check("# kernel-lsp: x=f32[0, 4]\ndef f(x): pass", ("x", "f32", (0, 4)))


def test_an_unknown_dtype_is_refused(check_error) -> None:
    check_error("# kernel-lsp: x=c64[4]\ndef f(x): pass", 1, "complex numbers are not supported", "x=f32[")
    check_error("# kernel-lsp: x=f33[4]\ndef f(x): pass", 1, "no dtype 'f33' for 'x': did you mean", "x=f32[")


def test_a_tensor_without_dims_is_refused(check_error) -> None:
    check_error("# kernel-lsp: x=f32\ndef f(x): pass", 1, "write x=f32[1024]", "x=f32[")


def test_an_unknown_parameter_is_refused_with_the_nearest(check_error) -> None:
    check_error("# kernel-lsp: wieght=f32[4]\ndef f(weight): pass", 1, "did you mean 'weight'?", "weight=f32[4096]")


def test_a_number_that_is_no_parameter_and_no_size_is_refused(check_error) -> None:
    check_error("# kernel-lsp: x=f32[4], dim=1\ndef f(x): pass", 1, "'dim' is no parameter of f", "x=f32")


def test_an_item_that_is_no_assignment_is_refused(check_error) -> None:
    check_error("# kernel-lsp: x: f32[4]\ndef f(x): pass", 1, "expected name=value", "x=f32")


def test_a_dim_with_two_sizes_is_refused(check_error) -> None:
    check_error("# kernel-lsp: x=f32[B=4], y=f32[B=5]\ndef f(x, y): pass", 1, "'B' is 4 and 5", "x=f32")


def test_a_dim_without_a_size_shows_the_pragma_for_it(check_error) -> None:
    check_error("# kernel-lsp: x=f32[B, D=4]\ndef f(x): pass", 1, "'B' of 'x' has no size", "# kernel-lsp: B=1024")


def test_a_range_on_a_float_tensor_is_refused(check_error) -> None:
    check_error("# kernel-lsp: x=f32[4] < 5\ndef f(x): pass", 1, "a range is for integers", "x=f32")


def test_an_empty_range_is_refused(check_error) -> None:
    check_error("# kernel-lsp: x=i64[4] in [5, 5)\ndef f(x): pass", 1, "is empty", "x=f32")


def test_what_the_pragma_leaves_open_is_asked_for(check_error) -> None:
    check_error(
        "# kernel-lsp: x=f32[4]\ndef f(x, labels): pass",
        2,
        "unknown shape of 'labels' in `f`",
        "labels=i64[1024] in [0",
    )


# --- nothing says


def test_without_shapes_the_example_is_filled_in_from_the_signature(check_error) -> None:
    check_error(
        "def f(x: torch.Tensor, weight, mask, eps: float, n: int, flag: bool, k=3): pass",
        1,
        "unknown input shapes for `f`",
        "# kernel-lsp: x=f32[1024, 4096], weight=f32[4096], mask=bool[1024, 4096], eps=1e-6, n=4, flag=True",
    )


def test_the_example_pragma_is_itself_accepted(read, check_error) -> None:
    signature = "def f(x: torch.Tensor, weight, labels, mask, eps: float, n: int, flag: bool, p): pass"
    with pytest.raises(TargetError) as caught:
        read(signature)
    pragma = caught.value.next_step.removeprefix("add above it: ")
    assert len(read(f"{pragma}\n{signature}").inputs) == 8


def test_two_limits_are_proposed_with_room_between_them(check_error) -> None:
    check_error("def f(x, low: float, high: float): pass", 1, "unknown input shapes", "low=-1.0, high=1.0")


def test_each_pragma_that_a_module_lacks_has_a_line_of_its_own(read) -> None:
    with pytest.raises(UnknownInputsError) as caught:
        read("""
            class f(nn.Module):
                def __init__(self, dim):
                    self.w = nn.Parameter(torch.ones(dim))

                def forward(self, x):
                    return x * self.w
        """)
    lacking = caught.value.pragmas
    assert caught.value.next_step.splitlines() == [f"add above line {line}: {text}" for line, text in lacking]
    assert len(lacking) == 2


def test_a_function_without_parameters_needs_no_pragma(check) -> None:
    check("def f(): pass")


# --- annotations


def test_jaxtyping_annotations_say_dtype_and_shape(check) -> None:
    check(
        'def f(x: Float[Tensor, "8 4"], y: BFloat16[torch.Tensor, ""], i: "Int64[Tensor, \'3\']"): pass',
        ("x", "f32", (8, 4)),
        ("y", "bf16", ()),
        ("i", "i64", (3,)),
    )


def test_sizes_of_names_in_annotations_come_from_the_pragma(check) -> None:
    source = check(
        '# kernel-lsp: B=8, D=4\ndef f(x: Float32[Tensor, "B D"], w: Float16[Tensor, "2*D"]): pass',
        ("x", "f32", (8, 4)),
        ("w", "f16", (8,)),
    )
    assert source.inputs[0].dim_names == ("B", "D")


def test_names_without_sizes_in_annotations_show_the_pragma(check_error) -> None:
    check_error('def f(x: Float[Tensor, "B D"]): pass', 1, "'B' of 'x' has no size", "# kernel-lsp: B=1024, D=1024")


def test_the_pragma_overrules_the_annotation(check) -> None:
    check('# kernel-lsp: x=f16[2]\ndef f(x: Float[Tensor, "8 4"]): pass', ("x", "f16", (2,)))


def test_an_annotation_that_leaves_dims_open_says_nothing(check_error) -> None:
    check_error('def f(x: Float[Tensor, "*batch 4"]): pass', 1, "unknown input shapes", "x=f32")


# --- modules and methods


def test_a_module_is_called_through_forward(check) -> None:
    text = MODULE.replace("def forward", "# kernel-lsp: x=f32[2, 4]\n        def forward")
    source = check("# kernel-lsp: init: dim=4, eps=1e-5" + dedent(text), ("x", "f32", (2, 4)), symbol="Norm")
    assert (source.kind, source.line, source.parameters) == ("module", 2, ("x",))
    assert source.init_arguments == {"dim": 4, "eps": 1e-5}


def test_both_pragmas_may_stand_above_the_class(check) -> None:
    pragmas = "# kernel-lsp: init: dim=4\n# kernel-lsp: x=f32[2, 4]"
    assert check(pragmas + dedent(MODULE), ("x", "f32", (2, 4)), symbol="Norm").init_arguments == {"dim": 4}


def test_a_constructor_argument_may_be_a_string(read) -> None:
    text = "# kernel-lsp: init: dim=4, eps='a, b'\n# kernel-lsp: x=f32[2]" + dedent(MODULE)
    assert read(text, "Norm").init_arguments == {"dim": 4, "eps": "a, b"}


def test_a_required_constructor_argument_is_asked_for(check_error) -> None:
    text = "# kernel-lsp: x=f32[2, 4]" + dedent(MODULE)
    check_error(text, 3, "unknown constructor argument 'dim' of `Norm`", "# kernel-lsp: init: dim=1024", "Norm")


def test_an_unknown_constructor_argument_is_refused(check_error) -> None:
    text = "# kernel-lsp: init: dmi=4\n# kernel-lsp: x=f32[2, 4]" + dedent(MODULE)
    check_error(text, 1, "did you mean 'dim'?", "init: dim=1024", "Norm")


def test_a_constructor_of_defaults_needs_no_pragma(read) -> None:
    text = "# kernel-lsp: x=f32[2, 4]" + dedent(MODULE.replace("dim,", "dim=4,"))
    assert read(text, "Norm").init_arguments is None


def test_a_method_has_its_own_pragma_and_the_init_of_its_class(check) -> None:
    text = """
        # kernel-lsp: init: dim=4
        # kernel-lsp: x=f32[9]
        class Norm(nn.Module):
            def __init__(self, dim): pass
            def forward(self, x): pass
            # kernel-lsp: gate=f32[3]
            def gate(self, gate): pass
    """
    source = check(text, ("gate", "f32", (3,)), symbol="Norm.gate")
    assert (source.kind, source.line, source.init_arguments) == ("method", 7, {"dim": 4})
    check(text, ("x", "f32", (9,)), symbol="Norm.forward")


def test_a_static_method_keeps_its_first_parameter(check) -> None:
    text = "class A:\n    @staticmethod\n    def g(x):  # kernel-lsp: x=f32[3]\n        pass"
    check(text, ("x", "f32", (3,)), symbol="A.g")


def test_forward_and_constructor_may_be_inherited_in_the_file(check) -> None:
    base = dedent(MODULE).replace("    def forward", "    # kernel-lsp: x=f32[2]\n    def forward")
    text = f"{base}# kernel-lsp: init: dim=1\nclass Child(Norm): pass"
    assert check(text, ("x", "f32", (2,)), symbol="Child").init_arguments == {"dim": 1}


BASES = {
    "from layers.base import Norm\n# kernel-lsp: init: dim=1\nclass Child(Norm): pass": ("dim", 1),
    "import layers.base as b\nclass Mid(b.Norm): pass\n# kernel-lsp: init: dim=2\nclass Child(Mid): pass": ("dim", 2),
    "from .layers import Again\n# kernel-lsp: init: dim=3\nclass Child(Again): pass": ("dim", 3),
}


@pytest.mark.parametrize("text", BASES, ids=["from", "import as", "relative, re-exported"])
def test_forward_and_constructor_may_be_inherited_from_a_file_beside_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "layers").mkdir()
    (tmp_path / "layers" / "base.py").write_text(dedent(MODULE))
    (tmp_path / "layers" / "__init__.py").write_text("from .base import Norm\nclass Again(Norm): pass\n")
    (tmp_path / "model.py").write_text(text.replace("class Child", "# kernel-lsp: x=f32[2]\nclass Child"))
    found = read_target("model.py::Child", tmp_path)
    assert (found.kind, found.parameters, dict([BASES[text]])) == ("module", ("x",), found.init_arguments)
    assert [target.symbol for target in targets_in(read_python_file(tmp_path / "model.py", ""))][-1] == "Child"


def test_a_forward_that_no_file_of_the_project_has_is_named_with_what_to_write(check_error) -> None:
    text = "from torchvision.models import ResNet\nclass A(ResNet): pass"
    check_error(text, 2, "'A' inherits forward from 'ResNet'", "define forward in 'A'", "A")


def test_a_nested_class_is_found(check) -> None:
    text = "class A:\n    class B(nn.Module):\n        def forward(self, x):  # kernel-lsp: x=f32[2]\n            pass"
    assert check(text, ("x", "f32", (2,)), symbol="A.B").kind == "module"


def test_a_definition_under_an_if_is_found_and_the_last_one_counts(check) -> None:
    check("if X:\n    def f(x): pass\nelse:\n    # kernel-lsp: x=f32[2]\n    def f(x): pass", ("x", "f32", (2,)))


def test_a_class_that_is_no_module_is_refused(check_error) -> None:
    check_error("class A:\n    def g(self): pass", 1, "'A' is no nn.Module", "A.method", "A")


def test_a_module_without_forward_is_refused(check_error) -> None:
    check_error("class A(nn.Module): pass", 1, "defines no forward", "define forward", "A")


# --- KernelBench and robust-kbench

KERNELBENCH = """
    class Model(nn.Module):
        def __init__(self, dim): pass
        def forward(self, x): pass
    def get_inputs(): return []
    def get_init_inputs(): return [4]
    def helper(x): pass
"""


def test_a_kernelbench_file_is_read(read) -> None:
    source = read(KERNELBENCH, "")
    assert (source.kind, source.symbol, source.inputs, source.parameters) == ("kernelbench", "", None, ("x",))
    assert source.has_get_inputs
    assert source.has_get_init_inputs


def test_the_model_of_a_kernelbench_file_may_be_named(read) -> None:
    assert read(KERNELBENCH, "Model").has_get_inputs


def test_get_inputs_belong_to_the_model_only(check_error) -> None:
    check_error(KERNELBENCH, 6, "unknown input shapes for `helper`", "x=f32", "helper")


def test_a_file_without_symbol_that_is_no_kernelbench_file_lists_its_targets(check_error) -> None:
    check_error("def f(x): pass\ndef g(x): pass", 1, "names no symbol", "m.py::f or m.py::g", "")


def task_folder(path: Path, **files: str) -> Path:
    for name, text in files.items():
        (path / f"{name}.{'json' if name.startswith('config') else 'py'}").write_text(text)
    return path


FORWARD = "def forward_fn(x, eps): pass\ndef get_inputs(n=4): pass\nclass Model: pass\n"


def test_a_task_folder_is_read(tmp_path: Path) -> None:
    task_folder(tmp_path, func_forward=FORWARD, config_forward=json.dumps({"single_input_configs": []}))
    source = read_target(".", tmp_path)
    assert (source.kind, source.symbol, source.parameters) == ("robust_kbench", "", ("x", "eps"))
    assert source.file == str(tmp_path / "func_forward.py")


def check_folder(path: Path, file: str, line: int | None, words: str) -> None:
    with pytest.raises(TargetError) as caught:
        read_target("task", path)
    assert (caught.value.file, caught.value.line) == (file, line)
    assert words in caught.value.message
    assert caught.value.next_step


def test_a_folder_without_a_task_is_refused(tmp_path: Path) -> None:
    (tmp_path / "task").mkdir()
    check_folder(tmp_path, "task", None, "it has no func_forward.py")


def test_a_configuration_that_is_no_json_is_located(tmp_path: Path) -> None:
    (tmp_path / "task").mkdir()
    task_folder(tmp_path / "task", func_forward=FORWARD, config_forward="{\n'a'\n}")
    check_folder(tmp_path, "task/config_forward.json", 2, "not JSON")


def test_a_task_without_forward_fn_is_refused(tmp_path: Path) -> None:
    (tmp_path / "task").mkdir()
    task_folder(tmp_path / "task", func_forward="x = 1", config_forward="{}")
    check_folder(tmp_path, "task/func_forward.py", 1, "no function 'forward_fn'")


# --- bad files and symbols


def test_a_missing_file_suggests_a_near_one(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("")
    with pytest.raises(TargetError, match="no such file") as caught:
        read_target("modle.py::f", tmp_path)
    assert caught.value.file == "modle.py"
    assert "model.py" in caught.value.next_step


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(TargetError) as caught:
        read_target("a/b.py::f", tmp_path)
    assert "does not exist" in caught.value.next_step


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text("")
    with pytest.raises(TargetError, match="a Python file"):
        read_target("k.cu::f", tmp_path)


def check_bytes(path: Path, data: bytes, line: int, words: str) -> None:
    (path / "m.py").write_bytes(data)
    with pytest.raises(TargetError) as caught:
        read_target("m.py::f", path)
    assert (caught.value.file, caught.value.line) == ("m.py", line)
    assert words in caught.value.message


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    check_bytes(tmp_path, b"\x7fELF\0\0", 1, "binary")


def test_a_file_that_is_no_utf8_names_the_byte_and_its_line(tmp_path: Path) -> None:
    check_bytes(tmp_path, b"a = 1\nb = '\xff'\n", 2, "0xff")


def test_an_unknown_encoding_is_refused(tmp_path: Path) -> None:
    check_bytes(tmp_path, b"# coding: nonsense\nb = '\xff'\n", 2, "0xff")


def test_another_declared_encoding_is_understood(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_bytes("# coding: latin-1\n# ü\n# kernel-lsp: x=f32[4]\ndef f(x): pass".encode("latin-1"))
    assert read_target("m.py::f", tmp_path).line == 4


def test_a_syntax_error_has_its_line(check_error) -> None:
    check_error("def f(x):\n    return (\n", 2, "not valid Python", "correct")


def test_code_nested_too_deep_is_refused(check_error) -> None:
    check_error("x = " + "(" * 500, 1, "Python", "")
    check_error("x = " + "-" * 100_000 + "1", 1, "Python", "")


def test_a_misspelled_symbol_suggests_a_near_one(check_error) -> None:
    check_error("def softmax(x): pass", 1, "defines no 'sofmax'", "did you mean softmax?", "sofmax")


def test_a_misspelled_method_suggests_a_near_one(check_error) -> None:
    check_error(MODULE, 1, "defines no 'Norm.forwrad'", "Norm.forward", "Norm.forwrad")


def test_an_imported_symbol_names_where_it_comes_from(check_error) -> None:
    check_error("import torch\nfrom .layers import Norm", 2, "imported here from .layers", "", "Norm")


def test_a_variable_is_refused_at_its_line(check_error) -> None:
    check_error("a = 1\nf = partial(a)", 2, "is a variable here", "")


def test_a_function_inside_a_function_is_refused_at_its_line(check_error) -> None:
    check_error("def g():\n    def f(x): pass", 2, "inside a function", "")


def test_an_async_function_is_refused(check_error) -> None:
    check_error("async def f(x): pass", 1, "async", "plain function")


def test_an_empty_symbol_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("def f(x): pass")
    with pytest.raises(TargetError, match="no symbol"):
        read_target("m.py::", tmp_path)


def test_a_symbol_in_the_style_of_pytest_is_corrected(check_error) -> None:
    check_error(MODULE, 1, "write Norm.forward", "", "Norm::forward")


def test_nothing_of_the_file_is_executed(read, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    read(f"open({str(marker)!r}, 'w')\n# kernel-lsp: x=f32[4]\ndef f(x): pass")
    assert not marker.exists()


# --- all of it


def test_targets_of_a_file_are_listed_with_their_lines() -> None:
    functions = "class Config: pass\n@torch.compile\ndef f(x):\n    pass\ndef get_inputs(): pass\n"
    text = dedent(MODULE).lstrip("\n") + functions
    assert targets_in(parse_python(text, "")) == (
        TargetLocation("Norm", "module", 1, 6),
        TargetLocation("f", "function", 9, 10),
    )


IN_CLASSES = """import torch.nn as nn
class Model:
    # kernel-lsp: init: width=8
    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()

        # kernel-lsp: x=f32[4, 8]
        def forward(self, x):
            return x

    class Wide(Block):
        class Part(nn.Module):
            def forward(self, x):
                return x

        def part(self):
            return self.Part()

    class Config:
        pass
"""


def test_a_class_below_one_of_torch_nn_is_a_target_where_it_has_a_forward() -> None:
    text = "class LayerNorm2d(nn.LayerNorm):\n    def forward(self, x): pass\nclass Plain(torch.nn.Sequential): pass\n"
    assert [found.symbol for found in targets_in(parse_python(text, ""))] == ["LayerNorm2d"]


def test_modules_in_classes_are_targets_by_dotted_names(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(IN_CLASSES)
    source = parse_python(IN_CLASSES, "")
    assert [(found.symbol, found.line) for found in targets_in(source)] == [
        ("Model.Block", 4),
        ("Model.Wide", 12),
        ("Model.Wide.Part", 13),
    ]
    block = read_target("model.py::Model.Block", tmp_path)
    assert (block.kind, block.init_arguments, [each.name for each in block.inputs or ()]) == (
        "module",
        {"width": 8},
        ["x"],
    )
    assert source.pragmas_of(source.named["Model"]) == []


@pytest.mark.parametrize("symbol", ["make.loss", "loss", "make.Net", "Net"])
def test_what_a_function_defines_has_a_message_at_its_line(tmp_path: Path, symbol: str) -> None:
    (tmp_path / "model.py").write_text("def make():\n    def loss(x): pass\n    class Net: pass\n")
    with pytest.raises(TargetError, match="is defined inside a function: move it to the top") as raised:
        read_target(f"model.py::{symbol}", tmp_path)
    assert raised.value.line == (2 if "loss" in symbol else 3)


def test_calls_of_a_class_in_a_class_give_its_constructor_arguments(tmp_path: Path) -> None:
    text = IN_CLASSES.replace("    # kernel-lsp: init: width=8\n", "").replace("self.Part()", "Model.Block(24)")
    (tmp_path / "model.py").write_text(text)
    with pytest.raises(UnknownInputsError) as raised:
        read_target("model.py::Model.Block", tmp_path)
    assert raised.value.pragmas == ((3, "# kernel-lsp: init: width=24"),)


def test_every_example_is_read() -> None:
    for path in sorted(EXAMPLES.glob("*.py")):
        for location in targets_in(parse_python(path.read_text(), path.name)):
            if location.symbol not in HELPERS_WITHOUT_PRAGMA:
                assert read_target(f"{path.name}::{location.symbol}", EXAMPLES).line == location.line


@settings(max_examples=300, deadline=None, suppress_health_check=IGNORED_CHECKS)
@given(pragma=st.text(alphabet="x=f32[4,] <in(0)B:i64'\"init *-.e", max_size=60) | st.text(max_size=60))
def test_any_pragma_gives_inputs_or_a_located_error(tmp_path: Path, pragma: str) -> None:
    text = f"# kernel-lsp: {pragma.encode('utf-8', 'ignore').decode()}\ndef f(x): pass\n"
    (tmp_path / "m.py").write_bytes(text.encode())
    file, line, next_step = fault(tmp_path)
    assert file == "m.py"
    assert line is not None
    assert next_step


def fault(path: Path) -> tuple[str | None, int | None, str]:
    """Return where reading ``m.py::f`` fails and what to do next, or some place when its inputs are read."""
    try:
        source = read_target("m.py::f", path)
    except TargetError as error:
        return error.file, error.line, error.next_step
    assert source.inputs is not None
    return "m.py", 1, "none"


PYTHON_CHARACTERS = "def f(x):\n class A.pass#=[]'\"\\\r\f"


@settings(max_examples=200, deadline=None, suppress_health_check=IGNORED_CHECKS)
@given(
    data=st.binary(max_size=80) | st.text(alphabet="def f(x):\n class A.pass#=[]'\"\\\r\f", max_size=80).map(str.encode)
)
def test_any_file_gives_a_target_or_an_error_with_a_next_step(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "m.py").write_bytes(data)
    assert fault(tmp_path)[2]


def test_a_constructor_argument_may_be_an_object(read) -> None:
    call = "Config(width=4, scales=(1.0, -2), inner=project.Inner(dtype=torch.float16), name='a, b')"
    text = f"# kernel-lsp: init: dim={call}, eps=1e-6\n# kernel-lsp: x=f32[2]" + dedent(MODULE)
    assert read(text, "Norm").init_arguments == {"dim": Construction(call=call), "eps": 1e-6}


@pytest.mark.parametrize("call", ["Config(4)", "Config(a=open('a'))", "Config(a=[w for w in x])", "Config(**a)"])
def test_a_construction_has_literals_by_keyword(check_error, call: str) -> None:
    text = f"# kernel-lsp: init: dim={call}\n# kernel-lsp: x=f32[2]" + dedent(MODULE)
    check_error(text, 1, "write literals by keyword", "# kernel-lsp: x=", "Norm")


@pytest.mark.parametrize(
    "argument",
    [
        "[32, 64]",
        "(3, -1.5)",
        "None",
        "{'p': 0.5}",
        "nn.GELU",
        "make_norm",
        "[nn.Conv2d, 'same', None]",
        "partial(nn.LayerNorm, eps=1e-6)",
        "functools.partial(LayerNorm)",
    ],
)
def test_a_constructor_argument_may_be_a_sequence_a_class_or_none(read, argument: str) -> None:
    text = f"# kernel-lsp: init: dim={argument}, eps=1e-6\n# kernel-lsp: x=f32[2]" + dedent(MODULE)
    assert read(text, "Norm").init_arguments == {"dim": Construction(call=argument), "eps": 1e-6}


@pytest.mark.parametrize("call", ["partial(f, 4)", "f(a=1)", "[open('a')]", "{**a}", "lambda: 1"])
def test_a_constructor_argument_calls_no_function(check_error, call: str) -> None:
    text = f"# kernel-lsp: init: dim={call}\n# kernel-lsp: x=f32[2]" + dedent(MODULE)
    check_error(text, 1, f"'dim={call}'", "# kernel-lsp: x=", "Norm")


def test_inputs_may_be_literals(check) -> None:
    literals = [("mode", "'bi, linear'"), ("size", "(5, 5)"), ("mask", "None"), ("dtype", "torch.float16")]
    items = ", ".join(f"{name}={literal}" for name, literal in literals)
    text = f"# kernel-lsp: x=f32[2], {items}\ndef f(x, mode, size, mask, dtype): pass"
    check(text, ("x", "f32", (2,)), *literals)


@pytest.mark.parametrize("literal", ["relu", "torch.relu", "Config(a=1)", "[x]"])
def test_inputs_are_no_names_or_objects(check_error, literal: str) -> None:
    text = f"# kernel-lsp: x=f32[2], act={literal}\ndef f(x, act): pass"
    check_error(text, 1, f"'act={literal}' is neither a tensor such as f32[8, 16] nor a literal", "e.g.")


STRUCTURED = """
import torch
from torch import nn

class Net(nn.Module):
    # kernel-lsp: init: sizes=(3, 64), kind=None, names=['a', 'b']
    def __init__(self, sizes, kind, names):
        super().__init__()

    # kernel-lsp: x=f32[B=2, T=16, 64], rotary=(f32[1, T, 32], [i64[T] < 10]), window=(16, 0), cache=None, mode="sum"
    # kernel-lsp: gain=(15 + 1) * 2, one=(True,)
    def forward(self, x, rotary, window, cache, mode, gain, one, mask=None):
        return x
"""


def test_arguments_may_be_none_strings_tuples_and_lists(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(STRUCTURED)
    source = read_target("net.py::Net", tmp_path)
    given = {each.name: each for each in source.inputs or () if isinstance(each, ConstantInput)}
    assert {name: each.literal for name, each in given.items()} == {
        "rotary": "(rotary_0, [rotary_1_0])",
        "window": "(16, 0)",
        "cache": "None",
        "mode": '"sum"',
        "one": "(True,)",
    }
    assert [(each.name, each.shape, each.integer_range) for each in given["rotary"].tensors] == [
        ("rotary_0", (1, 16, 32), None),
        ("rotary_1_0", (16,), (0, 10)),
    ]
    assert ScalarInput(name="gain", value=32) in (source.inputs or ())
    texts = {name: each.call for name, each in (source.init_arguments or {}).items() if isinstance(each, Construction)}
    assert texts == {"sizes": "(3, 64)", "kind": "None", "names": "['a', 'b']"}


@pytest.mark.parametrize("value", ["(f32[2], 3x)", "(g32[2], 1)", "(1, 2", "[f32[T2], 1]"])
def test_a_wrong_part_of_a_tuple_gets_a_clear_line(tmp_path: Path, value: str) -> None:
    text = f"import torch\n\n# kernel-lsp: x=f32[4], pair={value}\ndef f(x, pair):\n    return x\n"
    (tmp_path / "f.py").write_text(text)
    with pytest.raises(TargetError, match="pair"):
        read_target("f.py::f", tmp_path)


def test_arguments_behind_keywords_are_inputs_and_sizes_are_not(tmp_path: Path) -> None:
    text = "# kernel-lsp: x=f32[T, 4], T=8, flag=False, mode='sum'\ndef f(x, **more):\n    return x\n"
    (tmp_path / "f.py").write_text(text)
    assert [each.name for each in read_target("f.py::f", tmp_path).inputs or ()] == ["x", "flag", "mode"]
