"""Check the findings on a plan and its kernels before any shape is known."""

from __future__ import annotations

from kernel_lsp.core.finding import Severity
from kernel_lsp.plan.checking import check as check_plan
from kernel_lsp.plan.parser import parse_or_raise
from kernel_lsp.source.cuda import kernel_signatures

SIGNATURE = "f(x: f32[B, D], eps: float) -> (out: f32[B, D])"
LAUNCH = "launch: k<<<B, 256>>>(x, out, D, eps)"
KERNEL = "__global__ void k(const float* x, float* out, int D, float eps) {}"


def findings(body: str, kernel: str, signature: str):
    text = f"// kernel-lsp: 1\n// op: {signature}\n" + "".join(f"// {line}\n" for line in body.split("\n")) + kernel
    return check_plan(parse_or_raise(text, "f.cu"), kernel_signatures(text))


def check(
    code: str, line: int, column: int, words: str, body: str = LAUNCH, kernel: str = KERNEL, signature: str = SIGNATURE
) -> None:
    """Exactly one finding."""
    found = findings(body, kernel, signature)
    assert [(f.code, f.line, f.column) for f in found] == [(code, line, column)]
    assert words in found[0].message


def check_clean(body: str = LAUNCH, kernel: str = KERNEL, signature: str = SIGNATURE) -> None:
    assert findings(body, kernel, signature) == ()


def check_element(element: str, dtype: str, *, fits: bool) -> None:
    found = findings(
        "launch: k<<<B, 256>>>(x, out)",
        f"__global__ void k(const {element}* x, float* out) {{}}",
        f"f(x: {dtype}[B]) -> (out: f32[B])",
    )
    assert [f.code for f in found] == ([] if fits else ["argument-type"])


def test_a_plan_that_fits_its_kernel_has_no_findings() -> None:
    check_clean()


def test_the_own_type_of_a_dtype_fits() -> None:
    for element, dtype in (("__half", "f16"), ("half", "f16"), ("__nv_bfloat16", "bf16"), ("double", "f64")):
        check_element(element, dtype, fits=True)
    for element, dtype in (("int64_t", "i64"), ("long long", "i64"), ("std::int32_t", "i32"), ("bool", "bool")):
        check_element(element, dtype, fits=True)


def test_vectors_and_bytes_fit_a_dtype_whose_size_divides_them() -> None:
    for element, dtype in (("float4", "f32"), ("uint4", "bf16"), ("__half2", "f16"), ("void", "f32"), ("int2", "i64")):
        check_element(element, dtype, fits=True)


def test_another_type_does_not_fit() -> None:
    for element, dtype in (("float", "f16"), ("int", "f32"), ("double", "f32"), ("__half2", "f32"), ("float", "i32")):
        check_element(element, dtype, fits=element == "__half2")
    check_element("float2", "f64", fits=True)
    check_element("char4", "i64", fits=False)


def test_a_template_type_is_resolved_by_the_launch() -> None:
    kernel = "template <typename T> __global__ void k(const T* x, float* out) {}"
    signature = "f(x: f16[B]) -> (out: f32[B])"
    check_clean("launch: k<__half><<<B, 32>>>(x, out)", kernel, signature)
    body = "launch: k<float><<<B, 32>>>(x, out)"
    check("argument-type", 3, 32, "points to float", body, kernel, signature)


def test_an_alias_is_followed() -> None:
    check_clean(kernel=f"using real = float;\n{KERNEL.replace('const float', 'const real')}")


def test_a_type_we_do_not_know_is_a_warning() -> None:
    found = findings(LAUNCH, KERNEL.replace("const float*", "const Pair*"), SIGNATURE)
    assert [(f.code, f.severity) for f in found] == [("unknown-type", Severity.WARNING)]


def test_a_pointer_to_an_input_must_be_const() -> None:
    check("input-written", 3, 26, "not const", kernel=KERNEL.replace("const ", ""))


def test_an_unknown_kernel_lists_those_there_are() -> None:
    check("unknown-kernel", 3, 12, "there are k", body=LAUNCH.replace("k<", "row<"))


def test_a_kernel_in_a_namespace_is_suggested() -> None:
    check("unknown-kernel", 3, 12, "did you mean ns::k?", kernel=f"namespace ns {{ {KERNEL} }}")


def test_a_wrong_number_of_arguments_is_one_finding() -> None:
    check("argument-count", 3, 12, "takes 4 arguments (x, out, D, eps), and gets 3", body=LAUNCH.replace(", eps", ""))


def test_template_arguments_for_a_plain_kernel_are_refused() -> None:
    check("template-count", 3, 12, "is no template", body=LAUNCH.replace("k<", "k<4><"))


def test_a_missing_template_argument_is_named() -> None:
    check("template-count", 3, 12, "no N", kernel=f"template <int N> {KERNEL}")


def test_a_template_argument_with_a_default_may_be_left_out() -> None:
    check_clean(kernel=f"template <int N = 4> {KERNEL}")


def test_a_tensor_for_a_value_parameter_is_located_at_the_argument() -> None:
    check("argument-kind", 3, 34, "'x' is a tensor", body=LAUNCH.replace("D,", "x,"))


def test_a_number_for_a_pointer_is_located_at_the_argument() -> None:
    check("argument-kind", 3, 26, "is a pointer", body=LAUNCH.replace("(x", "(D"))


def test_a_float_scalar_for_an_int_parameter_is_refused() -> None:
    check("argument-type", 3, 34, "'eps' is a float", body=LAUNCH.replace("D,", "eps,"))


def test_a_half_value_cannot_be_passed() -> None:
    check("argument-type", 3, 37, "which no launch can pass", kernel=KERNEL.replace("float eps", "__half eps"))


def test_an_unknown_name_in_a_grid_is_found() -> None:
    check("unknown-name", 3, 12, "'H' in 'H'", body=LAUNCH.replace("<<<B", "<<<H"))


def test_an_unknown_argument_is_found() -> None:
    check("unknown-name", 3, 34, "'H'", body=LAUNCH.replace("D,", "H,"))


def test_a_tensor_inside_an_expression_is_found() -> None:
    check("tensor-as-number", 3, 34, "'x' stands in 'x + 1'", body=LAUNCH.replace("D,", "x + 1,"))


def test_an_unknown_name_in_where_is_found() -> None:
    check("unknown-name", 3, 11, "'H'", body=f"where: H > 1\n{LAUNCH}")


def test_a_dim_that_no_input_binds_is_found() -> None:
    check("unbound-dim", 2, 40, "'H'", signature=SIGNATURE.replace("-> (out: f32[B, D])", "-> (out: f32[B, H])"))


def test_a_name_declared_twice_is_found() -> None:
    check("duplicate-name", 3, 13, "'x' is declared twice", body=f"scratch: x: f32[B]\n{LAUNCH}")


def test_a_tensor_called_as_a_dim_is_found() -> None:
    signature = SIGNATURE.replace("eps: float", "eps: float, B: i32[]")
    check("duplicate-name", 2, 36, "'B' is also a dim", signature=signature)


def test_a_result_that_nothing_writes_is_found() -> None:
    check("result-not-written", 2, 40, "'out'", body="")


def test_a_result_that_is_only_read_is_not_written() -> None:
    check("result-not-written", 2, 40, "'out'", kernel=KERNEL.replace("float* out", "const float* out"))


def test_fills_and_library_steps_write_results() -> None:
    check_clean("fill: out = 0")
    check_clean("library: aten::mul(x, eps) -> (out)")


def test_scratch_that_nothing_uses_is_a_warning() -> None:
    found = findings(f"scratch: s: f32[B]\n{LAUNCH}", KERNEL, SIGNATURE)
    assert [(f.code, f.severity) for f in found] == [("unused-scratch", Severity.WARNING)]


def test_filling_an_input_is_refused() -> None:
    check("input-written", 3, 10, "fills 'x'", body=f"fill: x = 0\n{LAUNCH}")


def test_filling_an_unknown_tensor_is_refused() -> None:
    check("unknown-tensor", 3, 10, "fills 'y'", body=f"fill: y = 0\n{LAUNCH}")


def test_a_library_step_that_reads_an_unknown_name_is_refused() -> None:
    check("unknown-name", 3, 13, "'y'", body="library: aten::mul(x, y) -> (out)")


BACKWARD = "op: f_backward(grad_out: f32[B, D], x: f32[B, D], eps: float) -> (grad_x: f32[B, D])\nfill: grad_x = 0"


def check_backward(code: str, column: int, words: str, backward: str) -> None:
    check(code, 4, column, words, body=f"{LAUNCH}\n{backward}")


def test_a_backward_of_gradients_and_forward_parameters_is_clean() -> None:
    check_clean(f"{LAUNCH}\n{BACKWARD}")


def test_a_second_operation_of_another_name_is_a_warning() -> None:
    check_backward("backward-name", 8, "'f_backward'", BACKWARD.replace("f_backward", "g"))


def test_a_backward_parameter_must_be_known() -> None:
    check_backward("backward-parameter", 40, "'rstd'", BACKWARD.replace(" x:", " rstd:"))


def test_a_gradient_stands_before_the_forward_parameters() -> None:
    swapped = BACKWARD.replace("grad_out: f32[B, D], x: f32[B, D]", "x: f32[B, D], grad_out: f32[B, D]")
    check_backward("backward-parameter", 33, "must stand before", swapped)


def test_a_backward_parameter_has_the_forward_dtype() -> None:
    check_backward("backward-parameter", 40, "bf16", BACKWARD.replace(" x: f32", " x: bf16"))


def test_a_backward_result_is_the_gradient_of_a_parameter() -> None:
    check_backward("backward-result", 70, "'grad_w'", BACKWARD.replace("grad_x", "grad_w"))


def check_same(code: str, words: str, results: str, body: str = "fill: grad_x = 0") -> None:
    """Exactly one finding in a backward with these results; none where the code is empty."""
    given = "grad_out: f32[B, D], x: f32[B, D], y: f32[B, D]"
    text = f"{LAUNCH}\nop: f_backward({given}) -> ({results})\n{body}"
    found = findings(text, KERNEL, SIGNATURE.replace("eps", "y: f32[B, D], eps"))
    assert [f.code for f in found] == ([code] if code else [])
    assert words in "".join(f.message for f in found)


def test_the_gradients_of_a_backward_may_be_one_tensor() -> None:
    check_same("", "", "grad_x: f32[B, D], grad_y = grad_x")
    check_same("", "", "grad_x: f32[B, D], grad_y = grad_out")
    check_same("same-result", "'grad_y' cannot be 'x'", "grad_x: f32[B, D], grad_y = x")
    check_same("same-result", "writes none", "grad_x = grad_out", body="")


def test_a_forward_returns_no_input() -> None:
    found = findings(LAUNCH, KERNEL, SIGNATURE.replace("(out", "(again = x, out"))
    assert [f.code for f in found] == ["same-result"]


def test_a_template_may_take_any_number_of_arguments() -> None:
    kernel = f"template <int N, int... Ns> {KERNEL}"
    check_clean(LAUNCH.replace("k<<<", "k<4><<<"), kernel)
    check_clean(LAUNCH.replace("k<<<", "k<4, 5, 6><<<"), kernel)
    check("template-count", 3, 12, "no N", LAUNCH, kernel)


def test_the_words_of_a_type_stand_in_any_order() -> None:
    check_clean(kernel=KERNEL.replace("int D", "long int unsigned long D"))


def test_of_overloads_the_one_that_takes_the_tensors_is_meant() -> None:
    others = "__global__ void k(const double* x, double* out, int D, float eps) {}\n"
    check_clean(kernel=f"{others}__global__ void k(float eps, const float* x, float* out, int D) {{}}\n{KERNEL}")
