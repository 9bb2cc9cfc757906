"""Kernels are found and read in every form CUDA code has, also around faults."""

from __future__ import annotations

import time

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernel_lsp.core.plan import KernelParameter, KernelSignature, Span
from kernel_lsp.source.cuda import KernelLines, kernel_line_ranges, kernel_signatures

MAX_READ_S = 20.0
"""Far above what any text of these tests takes: it catches only what explodes."""


def one(text: str) -> KernelSignature:
    (signature,) = kernel_signatures(text)
    return signature


def check(parameters: str, *expected: tuple[str, str, bool, bool]) -> None:
    """(name, element, is_pointer, is_const) of each parameter."""
    found = one(f"__global__ void k({parameters}) {{}}").parameters
    assert found == tuple(KernelParameter(*parameter) for parameter in expected)


def check_names(text: str, *names: str) -> None:
    assert tuple(signature.name for signature in kernel_signatures(text)) == names


def test_pointers_and_values_are_told_apart() -> None:
    check(
        "const float* x, float* out, int D",
        ("x", "float", True, True),
        ("out", "float", True, False),
        ("D", "int", False, False),
    )


def test_const_may_stand_on_either_side_of_the_type() -> None:
    check("int const* x", ("x", "int", True, True))


def test_a_const_pointer_to_writable_data_is_not_const() -> None:
    check("float* const x", ("x", "float", True, False))


def test_restrict_is_left_out() -> None:
    check("const float4 *__restrict__ x", ("x", "float4", True, True))


def test_types_of_several_words_have_single_spaces() -> None:
    check(
        "const  unsigned   long long * x, unsigned n",
        ("x", "unsigned long long", True, True),
        ("n", "unsigned", False, False),
    )


def test_qualified_and_templated_types_are_kept() -> None:
    check(
        "std::int64_t n, const Array<float, 4>* x",
        ("n", "std::int64_t", False, False),
        ("x", "Array<float,4>", True, True),
    )


def test_default_arguments_are_left_out() -> None:
    check("float eps = 1e-6f", ("eps", "float", False, False))


def test_an_array_parameter_is_a_pointer() -> None:
    check("const __half x[]", ("x", "__half", True, True))


def test_a_pointer_to_pointers_keeps_one_star() -> None:
    check("float** x", ("x", "float*", True, False))


def test_a_grid_constant_is_a_value() -> None:
    check("const __grid_constant__ int n", ("n", "int", False, True))


def test_a_parameter_without_a_name_has_an_empty_one() -> None:
    check("const float*, int", ("", "float", True, True), ("", "int", False, False))


def test_void_means_no_parameters() -> None:
    check("void")


def test_a_comment_between_parameters_changes_nothing() -> None:
    check("const float* x,  // (B, D)\n int D", ("x", "float", True, True), ("D", "int", False, False))


def test_template_parameters_are_named_and_defaults_known() -> None:
    signature = one("template <typename T, int BLOCK = 256, bool A = (1 > 0)> __global__ void k(const T* x) {}")
    assert signature.template_parameters == ("T", "BLOCK", "A")
    assert signature.template_defaults == ("256", "(1 > 0)")


def test_the_span_is_that_of_the_name() -> None:
    assert one("// ü\n__global__ void /* ü */ rows(int n) {}").span == Span(2, 25, 29)


def test_launch_bounds_may_stand_on_either_side_of_the_return_type() -> None:
    check_names(
        "__global__ void __launch_bounds__(256, 2) a(int n) {}\n__global__ __launch_bounds__(128) void b() {}", "a", "b"
    )


def test_cluster_dims_do_not_hide_the_kernel() -> None:
    signature = one("template <int N>\n__global__ void __cluster_dims__(2, 1, 1)\nk(int n) {}")
    assert (signature.template_parameters, signature.span) == (("N",), Span(3, 1, 2))


def test_extern_c_static_and_blocks_are_read() -> None:
    check_names(
        'extern "C" __global__ void a() {}\nstatic __global__ void b() {}\nextern "C" { __global__ void c() {} }',
        "a",
        "b",
        "c",
    )


def test_namespaces_are_part_of_the_name() -> None:
    check_names("namespace a::b { namespace { __global__ void k() {} } }", "a::b::k")


def test_kernels_inside_preprocessor_branches_are_read() -> None:
    check_names("#ifdef X\n__global__ void a() {}\n#else\n__global__ void b() {}\n#endif", "a", "b")


def test_a_declaration_repeated_by_its_definition_counts_once() -> None:
    check_names("__global__ void k(int n);\n__global__ void k(int m) {}", "k")


def test_overloads_count_each() -> None:
    check_names("__global__ void k(int n) {}\n__global__ void k(float n) {}", "k", "k")


def test_device_functions_and_comments_are_no_kernels() -> None:
    check_names('// __global__ void a() {}\n__device__ void b() {}\nconst char* s = "__global__ void c() {}";')


def test_aliases_of_pointers_say_whether_what_they_point_to_is_const() -> None:
    text = (
        "using in_t = const float* __restrict__;\ntypedef float *out_t;\nusing scalar = double;\ntypedef scalar item;\n"
    )
    found = one(f"namespace n {{ {text}__global__ void k(in_t x, const out_t y, n::item s) {{}} }}").parameters
    assert [(p.element, p.is_pointer, p.is_const) for p in found] == [
        ("float", True, True),
        ("float", True, False),
        ("double", False, False),
    ]


def test_template_parameters_may_be_functions_and_any_number() -> None:
    signature = one("template <float (*F)(float), int... Ns> __global__ void k(float* x, float e) {}")
    assert (signature.template_parameters, signature.takes_any_number) == (("F", "Ns..."), True)


def test_an_alias_is_replaced_by_its_type() -> None:
    (x,) = one("using vec = float4;\n__global__ void k(const vec* x) {}").parameters
    assert x.element == "float4"
    (y,) = one("typedef unsigned short bits;\n__global__ void k(bits y) {}").parameters
    assert y.element == "unsigned short"


def test_kernels_around_a_fault_are_read() -> None:
    check_names("__global__ void a(int n) {}\nint x = = 3;\n__global__ void b(int n) {}", "a", "b")


def test_line_ranges_go_from_the_template_to_the_closing_brace() -> None:
    text = "\ntemplate <int N>\n__global__ void a() {\n  int x;\n}\n__global__ void b();\n__global__ void c() {}\n"
    assert kernel_line_ranges(text) == (KernelLines("a", 2, 5), KernelLines("c", 7, 7))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(max_size=200) | st.text(alphabet='__global__ void k(){}<>,*& \n;:=const template int"', max_size=200))
def test_any_text_is_read(text: str) -> None:
    for signature in kernel_signatures(text):
        assert 1 <= signature.span.line <= text.count("\n") + 1
    kernel_line_ranges(text)


def test_large_and_deep_texts_are_read_soon() -> None:
    for text in ("//\n" * 50_000, "(" * 50_000, "namespace a {" * 5000 + "}" * 5000, "__global__ void k(" * 3000):
        started = time.perf_counter()
        kernel_signatures(text)
        assert time.perf_counter() - started < MAX_READ_S


def test_text_that_is_no_utf8_is_read() -> None:
    check_names("// \ud800\n__global__ void k() {}", "k")


# --- heads that macros make


def test_a_kernel_that_a_macro_makes_is_found_on_its_line() -> None:
    text = "#define MAKE(name, T) \\\n  __global__ void scale_##name(const T* x, T* out) {}\nMAKE(f32, float)\n"
    signature = one(text)
    assert (signature.name, signature.span.line) == ("scale_f32", 3)
    assert [(p.element, p.is_const) for p in signature.parameters] == [("float", True), ("float", False)]


def test_a_list_of_types_makes_a_kernel_of_each() -> None:
    text = (
        "#define EACH(_) _(f32, float) _(f64, double)\n#define MAKE(n, T) __global__ void k_##n(T* x) {}\nEACH(MAKE)\n"
    )
    check_names(text, "k_f32", "k_f64")


def test_macros_in_a_head_are_what_they_stand_for() -> None:
    text = '#define KERNEL extern "C" __global__ void\n#define IN(T) const T* __restrict__\nKERNEL k(IN(float) x) {}\n'
    signature = one(text)
    assert (signature.name, signature.parameters) == ("k", (KernelParameter("x", "float", True, True),))


def test_of_two_branches_the_compiled_one_counts() -> None:
    text = "#define WIDE 1\n#if WIDE\n__global__ void k(float4* x) {}\n#else\n__global__ void k(float* x) {}\n#endif\n"
    assert one(text).parameters[0].element == "float4"


def test_a_name_that_a_macro_leaves_alone_keeps_its_place() -> None:
    assert one("#define N 4\n  __global__ void k(float* x) {}\n").span == Span(2, 19, 20)


def test_what_only_another_condition_would_compile_is_still_known() -> None:
    check_names("#ifdef NOBODY\n__global__ void k(float* x) {}\n#endif\n", "k")


def test_macros_without_end_leave_what_is_written() -> None:
    lines = "".join(f"#define M{n} M{n + 1} M{n + 1}\n" for n in range(40))
    check_names(f"{lines}__global__ void k(float* x) {{ M0 }}\n", "k")
