"""Check the files of a package."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from kernel_lsp.errors import PlanError, TargetError
from kernel_lsp.export.package.project import MARKER_FILE, package_texts, small_cases, write_package
from kernel_lsp.generate.codegen.helpers import HELPERS

from .other_samples import (
    AWKWARD_NAMES,
    BAKED_NUMBER,
    CONSTANT_SHAPE,
    LIBRARY_ONLY,
    LINEAR_RELU,
    ONE_GRADIENT,
    RMS_NORM,
    ROW_MAX,
    SAMPLES,
    TOTAL,
    Sample,
)
from .packages import parts_of, texts_of
from .samples import plan_of

ROW_SHAPES = ({"x": (6, 3)}, {"x": (80, 41)}, {"x": (40, 5)})


def cpp(sample: Sample, *shapes: dict[str, tuple[int, ...]]) -> str:
    return texts_of(sample, *shapes)["csrc/operator.cpp"]


@pytest.mark.parametrize("sample", [sample for sample in SAMPLES if sample is not ROW_MAX], ids=lambda s: s.stem)
def test_the_python_of_every_package_parses(sample: Sample) -> None:
    for name, text in texts_of(sample).items():
        if name.endswith(".py"):
            ast.parse(text, name)


def test_the_kernel_is_word_for_word_the_verified_one() -> None:
    assert texts_of(RMS_NORM)["csrc/rms_norm.cu"] == RMS_NORM.cu_text("rms_norm")


def test_a_launch_is_bound_before_anything_is_done() -> None:
    text = cpp(RMS_NORM)
    assert "grid_2 = {plan::ceil_div(D, 128_i), 1_i, 1_i};" in text
    assert text.index("value_1_3 = plan::as<int32_t>(D)") < text.index("From here on nothing is refused")


def test_a_gradient_of_two_inputs_is_returned_twice_in_cpp() -> None:
    assert "return {std::get<0>(found), std::get<0>(found), std::get<1>(found), given[0]};" in cpp(ONE_GRADIENT)


def test_the_contract_is_checked_in_cpp() -> None:
    assert 'return plan::floor_mod(D, 4_i) == 0_i; })) return "D % 4 == 0 does not hold";' in cpp(RMS_NORM)


def test_a_number_that_the_kernels_have_in_them_is_checked() -> None:
    assert 'if (temperature != 0.7) return "temperature is not 0.7";' in cpp(BAKED_NUMBER)


def test_a_condition_chooses_the_launch() -> None:
    assert "if (D > 32_i) {" in cpp(ROW_MAX, *ROW_SHAPES)


def test_attributes_reach_the_launch() -> None:
    assert "{0, 2, 0}" in cpp(ROW_MAX, *ROW_SHAPES)


def test_a_template_over_a_dim_is_compiled_for_each_configuration() -> None:
    text = texts_of(ROW_MAX, *ROW_SHAPES)["csrc/kernels.cu"]
    assert "&short_rows<3>" in text
    assert "&short_rows<5>" in text
    assert "&short_rows<41>" not in text


def test_other_dims_of_such_a_template_fall_back() -> None:
    assert "only these were compiled: short_rows<3>, short_rows<5>" in cpp(ROW_MAX, *ROW_SHAPES)


def test_a_template_over_a_dim_without_configurations_is_refused() -> None:
    with pytest.raises(PlanError, match="no configuration of the task takes this launch"):
        texts_of(ROW_MAX)


def test_a_fill_with_zero_is_a_memset() -> None:
    assert "out.zero_();" in cpp(TOTAL)


def test_a_fill_with_another_number_is_a_fill() -> None:
    text = cpp(CONSTANT_SHAPE)
    assert "seen.fill_(number_1);" in text
    assert "const auto number_1 = plan::as<int32_t>(-1_i);" in text


def test_scratch_that_no_step_uses_is_not_allocated() -> None:
    assert "shape_also" not in cpp(CONSTANT_SHAPE)


def test_a_library_step_goes_through_aten_without_autocast() -> None:
    text = cpp(LINEAR_RELU)
    assert "product = at::linear(ready_x, ready_weight, {}).contiguous();" in text
    assert "ExcludeDispatchKeyGuard without_autocast" in text
    assert "#include <ATen/ops/linear.h>" in text


def test_fused_attention_goes_through_the_packages_own_header() -> None:
    step, fused = "aten::linear(x, weight, none)", "sdpa::forward(x, weight, bias, true, 0.5)"
    text = cpp(replace(LINEAR_RELU, text=LINEAR_RELU.text.replace(step, fused)))
    assert "product = support::sdpa_forward(ready_x, ready_weight, ready_bias, true, 0.5).contiguous();" in text
    assert '#include "sdpa.h"' in text


def test_names_that_cpp_has_another_use_for_get_an_underscore() -> None:
    text = cpp(AWKWARD_NAMES)
    assert "int64_t operator_" in text
    assert "const Tensor& stream_" in text


def test_gradients_that_no_kernel_makes_come_from_pytorch() -> None:
    assert "if (!at::GradMode::is_enabled() && !needed[0]) {" in cpp(LIBRARY_ONLY)


def test_an_operator_is_registered_without_pybind() -> None:
    text = cpp(RMS_NORM)
    assert "TORCH_LIBRARY(rms_norm_cuda, m)" in text
    assert "pybind" not in text.lower()


def test_half_operators_are_allowed_again_for_nvcc() -> None:
    assert "-U__CUDA_NO_HALF_OPERATORS__" in texts_of(RMS_NORM)["setup.py"]


def test_no_word_is_left_unfilled() -> None:
    assert not [name for name, text in texts_of(RMS_NORM).items() if "@PACKAGE@" in text or "@NAME@" in text]


def test_the_provenance_has_the_kernels_hash() -> None:
    found = json.loads(texts_of(RMS_NORM)["src/rms_norm_cuda/provenance.json"])
    assert len(found["kernel_sha256"]) == 64


def test_small_cases_are_inside_the_contract() -> None:
    parts = parts_of(RMS_NORM)
    cases = small_cases(parts.task, parts.plan.forward)
    assert len(cases) > 1
    assert all(case["weight"][0] % 4 == 0 for case in cases)


def test_fixed_dims_stay_fixed_in_the_cases() -> None:
    parts = parts_of(CONSTANT_SHAPE)
    assert {case["table"] for case in small_cases(parts.task, parts.plan.forward)} == {(100, 64)}


def test_a_function_without_a_space_is_refused() -> None:
    parts = parts_of(TOTAL)
    text = parts.cu_text + "\nfloat twice(float x) { return 2 * x; }\n"
    with pytest.raises(TargetError, match="__device__"):
        package_texts(replace(parts, cu_text=text, plan=plan_of(text)))


def test_what_another_compiler_would_see_and_nobody_checked_is_refused() -> None:
    parts = parts_of(TOTAL)
    text = parts.cu_text + "\n#ifndef __CUDA_ARCH__\nstatic int started = start();\n#endif\n"
    with pytest.raises(TargetError, match="'__CUDA_ARCH__' decides here") as caught:
        package_texts(replace(parts, cu_text=text, plan=plan_of(text)))
    assert caught.value.line == text.count("\n", 0, text.index("#ifndef")) + 1


def test_the_generators_own_functions_may_ask_for_the_architecture() -> None:
    parts = parts_of(TOTAL)
    asking = [text for text in HELPERS.values() if "__CUDA_ARCH__" in text]
    assert len(asking) >= 4
    text = "\n".join([parts.cu_text, *asking])
    assert package_texts(replace(parts, cu_text=text, plan=plan_of(text)))
    changed = text.replace("return maximum(a, b);", "return started(a, b);")
    with pytest.raises(TargetError, match="'__CUDA_ARCH__' decides here"):
        package_texts(replace(parts, cu_text=changed, plan=plan_of(changed)))


@pytest.mark.parametrize("name", ["torch", "rms_norm", "Upper", "a-b", ""])
def test_a_name_that_cannot_be_imported_is_refused(name: str) -> None:
    with pytest.raises(TargetError, match="cannot be the name"):
        package_texts(replace(parts_of(RMS_NORM), name=name))


def test_it_is_written_again_over_itself(tmp_path: Path) -> None:
    write_package(parts_of(RMS_NORM), tmp_path)
    assert write_package(parts_of(RMS_NORM), tmp_path)
    assert (tmp_path / MARKER_FILE).exists()


def test_a_file_of_the_users_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(TargetError, match="in the way"):
        write_package(parts_of(RMS_NORM), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]


def test_a_changed_file_is_not_written_over(tmp_path: Path) -> None:
    write_package(parts_of(RMS_NORM), tmp_path)
    (tmp_path / "csrc" / "rms_norm.cu").write_text("// mine now")
    with pytest.raises(TargetError, match="changed since"):
        write_package(parts_of(RMS_NORM), tmp_path)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("sample", [RMS_NORM, ROW_MAX, CONSTANT_SHAPE], ids=lambda s: s.stem)
def test_nvcc_compiles_the_kernels(sample: Sample, tmp_path: Path) -> None:
    write_package(parts_of(sample, *(ROW_SHAPES if sample is ROW_MAX else ())), tmp_path)
    command = ["nvcc", "-std=c++17", "-arch=sm_90", "-c", "csrc/kernels.cu", "-o", "kernels.o"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
