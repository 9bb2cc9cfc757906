"""Updates combined at indices, operators over lists of tensors, and products of three factors."""

from __future__ import annotations

import pytest

from tests.generate.harness import check, plan_text, tensor

INDEX = tensor("t", 5, 12, dtype="i64", within=(0, 9))


@pytest.mark.parametrize("kind", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include", [True, False])
def test_updates_are_combined_in_their_order(kind: str, include: bool) -> None:
    text = f"def f(x, t, y): return x.scatter_reduce(1, t, y, '{kind}', include_self={include})"
    checked = check(text, inputs=[tensor("x", 7, 9), INDEX, tensor("y", 5, 12)])
    assert "atomic" not in checked.text


@pytest.mark.parametrize("kind", ["prod", "mean", "amax"])
def test_rows_are_combined_at_indices(kind: str) -> None:
    inputs = [tensor("x", 6, 9), tensor("t", 11, dtype="i64", within=(0, 6)), tensor("y", 11, 9)]
    check(f"def f(x, t, y): return x.index_reduce(0, t, y, '{kind}')", inputs=inputs)


def test_gradient_clipping_by_the_norm_of_all_tensors_takes_few_launches() -> None:
    text = """
        def f(a, b, c):
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm([a, b, c])))
            return torch._foreach_mul([a, b, c], torch.clamp(1.0 / (norm + 1e-6), max=1.0))
    """
    checked = check(text, inputs=[tensor("a", 7, 9), tensor("b", 130), tensor("c", 3, 3)])
    assert checked.n_kernels == 1


def test_a_step_of_adamw_over_lists_is_one_launch() -> None:
    text = """
        def f(p1, p2, g1, g2, m1, m2, v1, v2):
            g = [g1, g2]
            m = torch._foreach_lerp([m1, m2], g, 0.1)
            v = torch._foreach_addcmul(torch._foreach_mul([v1, v2], 0.999), g, g, 0.001)
            d = torch._foreach_add(torch._foreach_sqrt(torch._foreach_abs(v)), 1e-8)
            return torch._foreach_addcdiv([p1, p2], m, d, -0.01), m
    """
    shapes = ((7, 9), (40,))
    checked = check(
        text, inputs=[tensor(f"{name}{i + 1}", *shape) for name in "pgmv" for i, shape in enumerate(shapes)]
    )
    assert checked.n_kernels == 1


@pytest.mark.parametrize("call", ["x.unfold(1, 5, 3)", "x.unfold(0, 2, 1).unfold(1, 3, 2).sum(-1)"])
def test_windows_of_a_dim_are_a_view(call: str) -> None:
    check(f"def f(x): return {call} * 2", inputs=[tensor("x", 7, 20)], backward=True)


def test_products_of_three_factors_and_of_a_batch() -> None:
    text = "def f(a, b, w, m, p, q): return F.bilinear(a, b, w), torch.addbmm(m, p, q, beta=0.5)"
    products = [tensor("m", 5, 6), tensor("p", 2, 5, 4), tensor("q", 2, 4, 6)]
    check(text, inputs=[tensor("a", 4, 8), tensor("b", 4, 6), tensor("w", 5, 8, 6), *products])


def test_losses_that_branch_on_a_label() -> None:
    text = "def f(x, y, s): return F.hinge_embedding_loss(x, y.sign()), F.cosine_embedding_loss(x, y, s.sign())"
    check(text, inputs=[tensor("x", 6, 20), tensor("y", 6, 20), tensor("s", 6)])


def test_special_functions_of_the_field() -> None:
    text = "def f(x, y): return torch.i0(x), torch.ldexp(x, y), torch.special.log_ndtr(x), x.exp().int() << 1"
    check(text, inputs=[tensor("x", 6, 20), tensor("y", 6, 20)])


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
def test_the_derivative_of_the_logarithm_of_gamma(dtype: str) -> None:
    x = tensor("x", 64, 20, dtype=dtype)
    check("def f(x): return torch.digamma(x), torch.digamma(9 * x), torch.digamma(x.exp() * 1e3)", inputs=[x])


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "i32"])
def test_the_angle_of_real_numbers(dtype: str) -> None:
    x = tensor("x", 9, 20, dtype=dtype)
    families = ("normal",) if dtype == "i32" else ("normal", "special_mixed", "negative_zeros")
    check("def f(x): return torch.angle(x)", inputs=[x], families=families)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_rows_gather_their_updates(dtype: str) -> None:
    """The gradient of an embedding, where tokens repeat: no atomic additions, and the padding token's row is zero."""
    text = "def f(ids, weight): return torch.nn.functional.embedding(ids, weight, padding_idx=2)"
    inputs = [tensor("ids", 3, 40, dtype="i64", within=(0, 9)), tensor("weight", 9, 24, dtype=dtype)]
    checked = check(text, inputs=inputs, backward=True, schedule=_choice("gathered", text, inputs))
    assert "atomicAdd" not in checked.text
    assert "atomicExch" in checked.text


def test_rows_gather_their_updates_of_a_tensor() -> None:
    text = "def f(x, t, y): return x.index_add(0, t, y * 2)"
    inputs = [tensor("x", 6, 5, 3), tensor("t", 40, dtype="i64", within=(0, 6)), tensor("y", 40, 5, 3)]
    checked = check(text, inputs=inputs, schedule=_choice("gathered", text, inputs), sizes=({}, {"N": 1}))
    assert "atomicAdd" not in checked.text


@pytest.mark.parametrize(("n_rows", "dtype"), [(6, "f32"), (6, "i64")])
def test_updates_of_a_vector_may_count_places_from_its_end(n_rows: int, dtype: str) -> None:
    text = f"def f(t, y): return torch.zeros({n_rows}, dtype=y.dtype).index_add(0, t, y * 2)"
    check(text, inputs=[tensor("t", 40, dtype="i64", within=(0, n_rows)), tensor("y", 40, dtype=dtype)])


def _choice(knob: str, text: str, inputs: list[object]) -> dict[str, int | str]:
    """Return the schedule that sets every knob of this name to 1."""
    knobs = plan_text(text, inputs=inputs, backward="weight" in text).realize({}).knobs
    found = {each.name: 1 for each in knobs if each.name.endswith(f".{knob}")}
    assert found
    return found


@pytest.mark.parametrize(
    "text",
    [
        "def f(q, k, v): return F.group_norm(F.scaled_dot_product_attention(q, k, v), 1)",
        "def f(q, k, v): return F.group_norm(torch.slice_scatter(q, k, 1, 2, 14), 1) + v[:, :1]",
    ],
)
def test_one_group_of_an_open_number_of_channels(text: str) -> None:
    inputs = [tensor("q", 3, 24, 16), tensor("k", 3, 12, 16), tensor("v", 3, 12, 16)]
    check(text, inputs=inputs, backward=True)


@pytest.mark.parametrize("pad", ["1, 2, 3, 0", "-1, 2"])
def test_gradients_of_circular_padding(pad: str) -> None:
    """PyTorch pads by copies in place, which the trace of a backward lost."""
    text = f"def f(x): return F.pad(x, ({pad}), mode='circular').exp()"
    check(text, inputs=[tensor("x", 2, 3, 8, 9) if "0" in pad else tensor("x", 2, 3, 8)], backward=True)
