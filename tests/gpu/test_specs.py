"""The table of GPUs."""

from __future__ import annotations

import pytest

from kernel_lsp.core.dtype import DType
from kernel_lsp.errors import SettingError
from kernel_lsp.gpu.floor import floor_us, peak_rate
from kernel_lsp.gpu.specs import GPUS, GpuSpec, find_gpu


def check(spelling: str, name: str) -> None:
    assert find_gpu(spelling).name == name


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("H200", "H200"),
        ("NVIDIA H200", "H200"),
        ("h200", "H200"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("rtx 5090", "RTX 5090"),
    ],
)
def test_a_gpu_is_found_by_what_drivers_and_people_call_it(spelling: str, name: str) -> None:
    check(spelling, name)


@pytest.mark.parametrize("spelling", ["H300", "", "A100", "H100", "RTX", "GPU"])
def test_an_unknown_or_ambiguous_gpu_gets_no_default(spelling: str) -> None:
    with pytest.raises(SettingError) as refused:
        find_gpu(spelling)
    assert "H200" in refused.value.next_step


def test_near_names_are_suggested() -> None:
    with pytest.raises(SettingError) as refused:
        find_gpu("RTX 4080")
    assert "did you mean RTX" in refused.value.next_step


def test_every_spelling_means_one_gpu() -> None:
    spellings = [spelling for spec in GPUS for spelling in (spec.name, *spec.aliases)]
    assert len(spellings) == len(set(spellings))
    for spec in GPUS:
        for spelling in (spec.name, *spec.aliases):
            check(spelling, spec.name)


F32_TFLOPS = {
    "H200": 67,
    "H100 PCIe": 51,
    "A100 80GB": 19.5,
    "V100": 15.7,
    "T4": 8.1,
    "A10": 31.2,
    "L4": 30.3,
    "L40S": 91.6,
    "RTX 3090": 35.6,
    "RTX 4090": 82.6,
    "RTX 5090": 104.8,
    "RTX 6000 Ada": 91.1,
    "B200": 75,
}


@pytest.mark.parametrize(("name", "tflops"), F32_TFLOPS.items())
def test_the_f32_rate_computed_from_sms_and_clock_is_the_datasheets(name: str, tflops: float) -> None:
    assert find_gpu(name).f32_rate / 1e12 == pytest.approx(tflops, rel=0.02)


@pytest.mark.parametrize(("name", "tflops"), [("H200", 34), ("A100 80GB", 9.7), ("V100", 7.8)])
def test_the_f64_rate_is_the_datasheets(name: str, tflops: float) -> None:
    assert find_gpu(name).f64_rate / 1e12 == pytest.approx(tflops, rel=0.03)


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_measured_bandwidth_is_below_the_datasheets(gpu: GpuSpec) -> None:
    assert gpu.bandwidth <= gpu.datasheet_bandwidth
    assert gpu.bandwidth_kind == ("measured" if gpu.name == "H200" else "datasheet")


def test_the_floor_of_rms_norm_is_that_of_its_bytes() -> None:
    n_bytes = 2 * 16 * 1024 * 4096 * 4
    assert floor_us(find_gpu("H200"), n_bytes=n_bytes, n_operations=n_bytes) == pytest.approx(125, abs=0.5)


def test_the_floor_of_a_large_product_is_that_of_its_operations() -> None:
    floor = floor_us(find_gpu("H200"), n_bytes=3 * 4096 * 4096 * 4, n_operations=2 * 4096**3)
    assert floor == pytest.approx(2 * 4096**3 / 66.9e12 * 1e6, rel=0.01)


def test_a_gpu_without_bf16_units_falls_back_to_f32() -> None:
    v100 = find_gpu("V100")
    assert peak_rate(v100, DType.BF16) == v100.f32_rate
    assert peak_rate(v100, DType.F16) == v100.f16_rate
