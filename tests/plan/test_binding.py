"""Plans meet shapes: what is computed, what is left out, what is refused and as whose fault."""

from __future__ import annotations

import re

import pytest

from kernel_lsp.core.plan import (
    BoundFill,
    BoundLaunch,
    BoundLibraryStep,
    BoundOperation,
    ScalarArgument,
    TensorArgument,
)
from kernel_lsp.errors import PlanError
from kernel_lsp.plan.binding import bind, decisions
from kernel_lsp.plan.contract import ContractError, contract_holds, open_scope
from kernel_lsp.plan.parser import parse_or_raise
from kernel_lsp.source.cuda import kernel_signatures

KERNELS = """
__global__ void k(const float* x, float* out, int D, float eps) {}
template <typename T, int BLOCK, bool TAIL> __global__ void t(const T* x, T* out, T scale) {}
template <int BLOCK = 256> __global__ void d(const float* x, float* out) {}
__global__ void wide(float* out, size_t n, unsigned m, bool flag, double eps, long long l) {}
template <int BLOCK, typename I = int> __global__ void i(const float* x, float* out, I n) {}
__global__ void odd(float* out, __half h) {}
"""
SIGNATURE = "f(x: f32[B, D], eps: float) -> (out: f32[B, D])"
SHAPES = {"x": (4, 8)}
SCALARS = {"eps": 1e-6}


def bound(body: str, signature: str = SIGNATURE, shapes=SHAPES, scalars=SCALARS) -> BoundOperation:
    text = f"// kernel-lsp: 1\n// op: {signature}\n" + "".join(f"// {line}\n" for line in body.split("\n"))
    return bind(parse_or_raise(text, "f.cu").forward, shapes, scalars, kernel_signatures(KERNELS))


def launch(line: str, **changes) -> BoundLaunch:
    (step,) = bound(line, **changes).steps
    assert isinstance(step, BoundLaunch)
    return step


def check_outside(body: str, words: str, **changes) -> None:
    with pytest.raises(ContractError, match=words):
        bound(body, **changes)


def check_fault(body: str, words: str, line: int = 3, **changes) -> None:
    """The plan is at fault, in that line."""
    with pytest.raises(PlanError, match=words) as caught:
        bound(body, **changes)
    assert not isinstance(caught.value, ContractError)
    assert caught.value.line == line


def test_a_launch_is_computed_in_full() -> None:
    found = launch("launch: k<<<dim3(B, ceil_div(D, 3)), 32 * 2, D * 4>>>(x, out, D, eps) cooperative=1")
    assert found == BoundLaunch(
        kernel="k",
        grid=(4, 3, 1),
        block=(64, 1, 1),
        shared_bytes=32,
        arguments=(
            TensorArgument(tensor="x"),
            TensorArgument(tensor="out"),
            ScalarArgument(cuda_type="int", value=8),
            ScalarArgument(cuda_type="float", value=1e-6),
        ),
        attributes={"cooperative": 1},
        line=3,
    )


def test_dims_are_bound_by_name_and_tensors_have_their_roles() -> None:
    found = bound("scratch: s: i32[B, 2 * D]")
    assert found.dims == {"B": 4, "D": 8}
    assert [(t.name, t.role, t.shape) for t in found.tensors] == [
        ("x", "input", (4, 8)),
        ("out", "output", (4, 8)),
        ("s", "scratch", (4, 16)),
    ]
    assert found.tensor("s").n_bytes == 256


def test_a_dim_may_be_bound_by_a_later_input() -> None:
    signature = "f(x: f32[B * D], y: f32[B], z: f32[D]) -> (out: f32[B])"
    assert bound("", signature, {"x": (6,), "y": (2,), "z": (3,)}).dims == {"B": 2, "D": 3}


def test_an_integer_scalar_may_be_a_size() -> None:
    assert bound("", "f(x: f32[N], n: int) -> (out: f32[n])", {"x": (6,)}, {"n": 3}).tensor("out").shape == (3,)


def test_template_arguments_become_a_name_expression() -> None:
    signature = "f(x: f16[B, D], eps: float) -> (out: f16[B, D])"
    assert launch("launch: t<float, D * 32, D % 3 == 0><<<B, 256>>>(x, out, eps)", signature=signature).kernel == (
        "t<float, 256, false>"
    )


def test_a_type_that_a_launch_leaves_out_is_its_default() -> None:
    step = launch("launch: i<64><<<1, 32>>>(x, out, D)")
    assert (step.kernel, step.arguments[2]) == ("i<64>", ScalarArgument(cuda_type="int", value=8))


def test_a_template_of_defaults_gets_empty_brackets() -> None:
    assert launch("launch: d<<<B, 256>>>(x, out)").kernel == "d<>"


def test_a_scalar_of_a_template_type_has_the_type_of_the_argument() -> None:
    found = launch("launch: t<double, 1, true><<<B, 256>>>(x, out, eps)")
    assert found.arguments[2] == ScalarArgument(cuda_type="double", value=1e-6)


def test_scalars_have_the_types_of_the_parameters() -> None:
    found = launch("launch: wide<<<B, 256>>>(out, D, B, D > 4, 1, D)")
    assert [(a.cuda_type, a.value) for a in found.arguments if isinstance(a, ScalarArgument)] == [
        ("unsigned long long", 8),
        ("unsigned int", 4),
        ("bool", True),
        ("double", 1.0),
        ("long long", 8),
    ]


def test_only_the_variant_whose_condition_holds_is_launched() -> None:
    body = "launch[D > 8]: k<<<1, 32>>>(x, out, D, eps)\nlaunch[D <= 8]: k<<<2, 32>>>(x, out, D, eps)"
    assert launch(body).grid == (2, 1, 1)


def test_a_launch_with_an_empty_grid_is_left_out() -> None:
    assert bound("launch: k<<<B, D>>>(x, out, D, eps)", shapes={"x": (0, 8)}).steps == ()


def test_fills_and_library_steps_are_bound() -> None:
    found = bound("fill: out = -inf\nlibrary: aten::sum.dim_IntList(x, [0, D - 9], true, none) -> (out)")
    assert found.steps == (
        BoundFill(tensor="out", value=float("-inf")),
        BoundLibraryStep(
            function="aten::sum.dim_IntList", arguments=({"tensor": "x"}, [0, -1], True, None), results=("out",)
        ),
    )


def test_another_rank_is_outside_the_contract() -> None:
    check_outside("", "'x' has 3 dims, and the plan says 2", shapes={"x": (2, 4, 8)})


def test_a_dim_that_does_not_unify_is_outside_the_contract() -> None:
    signature = "f(x: f32[B, D], y: f32[D]) -> (out: f32[B])"
    check_outside("", "dim 0 of 'y' is 7, and 'D' is 8", signature=signature, shapes={"x": (4, 8), "y": (7,)})


def test_a_fixed_dim_is_part_of_the_contract() -> None:
    check_outside("", "dim 0 of 'x' is 5, and '4' is 4", signature="f(x: f32[4]) -> (out: f32[4])", shapes={"x": (5,)})


def test_a_where_that_does_not_hold_says_its_values() -> None:
    check_outside("where: D % 4 == 0", r"does not hold for D = 6", shapes={"x": (4, 6)})


def test_a_where_that_divides_by_zero_does_not_hold() -> None:
    check_outside("where: 8 % D == 0", "does not hold", shapes={"x": (4, 0)})


def test_contract_holds_tells_inside_from_outside() -> None:
    text = f"// kernel-lsp: 1\n// op: {SIGNATURE}\n// where: D % 4 == 0\n"
    operation = parse_or_raise(text, "f.cu").forward
    assert contract_holds(operation, SHAPES, SCALARS)
    assert not contract_holds(operation, {"x": (4, 6)}, SCALARS)
    assert not contract_holds(operation, {"x": (4,)}, SCALARS)


def test_decisions_are_the_variants_and_the_instances_that_some_shapes_take() -> None:
    body = "launch[D <= 8]: k<<<1, 32>>>(x, out, D, eps)\n// launch: t<float, 32, D % 4 == 0><<<1, 32>>>(x, out, eps)\n"
    operation = parse_or_raise(f"// kernel-lsp: 1\n// op: {SIGNATURE}\n// {body}", "f.cu").forward
    assert decisions(open_scope(operation, {"x": (4, 8)}, SCALARS)) == ("k", "t<float, 32, true>")
    assert decisions(open_scope(operation, {"x": (4, 9)}, SCALARS)) == ("", "t<float, 32, false>")


def test_an_unknown_name_in_where_is_the_plans_fault() -> None:
    check_fault("where: H > 1", "'H' in 'H > 1' has no value")


def test_a_missing_shape_is_an_error_and_not_outside() -> None:
    check_fault("", "no shape for the tensor 'x'", line=2, shapes={})


def test_a_missing_scalar_is_an_error() -> None:
    check_fault("", "no value for the scalar 'eps'", line=2, scalars={})


def test_a_scalar_of_another_type_is_an_error() -> None:
    check_fault("", "the scalar 'eps' is float, and got True", line=2, scalars={"eps": True})


def test_an_int_that_overflows_says_the_parameter_type() -> None:
    check_fault("launch: k<<<1, 32>>>(x, out, D * 1000000000, eps)", "8000000000 does not fit int")


def test_a_float_for_an_int_parameter_is_an_error() -> None:
    check_fault("launch: k<<<1, 32>>>(x, out, D / 3, eps)", "is not an integer")


def test_a_negative_unsigned_is_an_error() -> None:
    check_fault("launch: wide<<<1, 32>>>(out, 0 - D, 1, true, 1, 1)", "does not fit unsigned long long")


def test_too_many_threads_are_an_error() -> None:
    check_fault("launch: k<<<1, dim3(64, 32)>>>(x, out, D, eps)", "the block of 'k' is")


def test_a_deep_block_is_an_error() -> None:
    check_fault("launch: k<<<1, dim3(1, 1, 65)>>>(x, out, D, eps)", "z up to 64")


def test_a_block_of_no_threads_is_an_error() -> None:
    check_fault("launch: k<<<1, D - 8>>>(x, out, D, eps)", "the block of 'k' is")


@pytest.mark.parametrize(
    ("block", "bound"),
    [
        ("D * 256", "D * 256 <= 1024"),
        ("dim3(D, 1, 20 * D)", "(D) * (20 * D) <= 1024"),
        ("D // 16", "D // 16 > 0"),
    ],
)
def test_a_block_that_grows_with_a_size_says_which_condition_bounds_it(block: str, bound: str) -> None:
    to_pytorch = re.escape(f"leave other sizes to PyTorch by '// where: {bound}'")
    check_fault(f"launch: k<<<1, {block}>>>(x, out, D, eps)", to_pytorch)
    to_a_launch = re.escape(f"leave other sizes to another launch by 'launch[(D > 4) and {bound}]'")
    check_fault(f"launch[D > 4]: k<<<1, {block}>>>(x, out, D, eps)", to_a_launch)
    check_outside(f"where: {bound}\nlaunch: k<<<1, {block}>>>(x, out, D, eps)", "does not hold")


def test_a_grid_past_the_limit_of_its_axis_is_an_error() -> None:
    assert launch("launch: k<<<65536, 32>>>(x, out, D, eps)").grid == (65536, 1, 1)
    check_fault("launch: k<<<dim3(1, 65536), 32>>>(x, out, D, eps)", "y may be 65535 at most")


def test_too_much_shared_memory_is_an_error() -> None:
    assert launch("launch: k<<<1, 32, 232448>>>(x, out, D, eps)").shared_bytes == 232448
    check_fault("launch: k<<<1, 32, 232449>>>(x, out, D, eps)", "232448 at most")


def test_a_tensor_for_a_number_is_an_error() -> None:
    check_fault("launch: k<<<1, 32>>>(x, out, x, eps)", "'x' is a tensor, and the parameter 'D' is a value")


def test_a_number_for_a_pointer_is_an_error() -> None:
    check_fault("launch: k<<<1, 32>>>(D, out, D, eps)", "'D' is a number, and the parameter 'x' is a pointer")


def test_a_parameter_type_that_is_no_plain_number_is_an_error() -> None:
    check_fault("launch: odd<<<1, 32>>>(out, 1)", "has the type '__half'")


def test_an_unknown_kernel_is_an_error() -> None:
    check_fault("launch: nope<<<1, 32>>>(x)", "no kernel 'nope'")


def test_a_wrong_count_is_an_error() -> None:
    check_fault("launch: k<<<1, 32>>>(x, out)", "takes 4 arguments, and gets 2")


def test_a_negative_result_size_is_an_error() -> None:
    check_fault("", "would have the shape", line=2, signature="f(x: f32[B, D]) -> (out: f32[B - 5])")


def test_a_fill_that_an_integer_tensor_cannot_hold_is_an_error() -> None:
    check_fault("scratch: s: u8[B]\nfill: s = 256", "does not fit unsigned char", line=4)


def test_variants_that_leave_a_gap_are_the_plans_fault() -> None:
    body = "launch[D > 8]: k<<<1, 32>>>(x, out, D, eps)\nlaunch[D < 8]: k<<<1, 32>>>(x, out, D, eps)"
    assert len(bound(body, shapes={"x": (4, 9)}).steps) == 1
    assert bound(body, shapes={"x": (0, 8)}).steps == ()
    check_fault(body, "no step writes 'out' for B = 4, D = 8", line=2)
