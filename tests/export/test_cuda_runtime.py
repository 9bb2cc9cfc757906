"""NVRTC, its cache, and how launches reach the driver."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import ModuleType

import pytest
import torch

from kernel_lsp.toolchain.nvrtc import compile as checking
from kernel_lsp.toolchain.nvrtc.standard_headers import headers_of
from kernel_lsp.worker.shipped import cuda_runtime

from .fake_driver import FakeDriver

SOURCE = "template <int N> __global__ void fill(float* out) { out[threadIdx.x] = N; }\n"
NAMES = ("fill<4>", "fill<8>")
ELF_MAGIC = b"\x7fELF"


@pytest.fixture(scope="module")
def runtime() -> ModuleType:
    return cuda_runtime


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "kernel_lsp" / "cubin"


def check_compiles(runtime: ModuleType, source: str = SOURCE, architecture: str = "sm_90") -> bytes:
    code, symbols = runtime.compiled(source, "fill.cu", NAMES, architecture)
    assert code.startswith(ELF_MAGIC)
    assert set(symbols) == set(NAMES)
    assert all(symbol.encode() in code for symbol in symbols.values())
    return code


# --- compiling


def test_a_template_compiles_to_machine_code(runtime: ModuleType, cache: Path) -> None:
    check_compiles(runtime)


def test_what_was_compiled_is_read_from_the_disk(
    runtime: ModuleType, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = check_compiles(runtime)
    monkeypatch.setattr(runtime, "_Program", None)
    assert check_compiles(runtime) == code


def test_each_text_and_architecture_has_its_own_entry(runtime: ModuleType, cache: Path) -> None:
    check_compiles(runtime)
    check_compiles(runtime, SOURCE + "\n")
    check_compiles(runtime, architecture="sm_80")
    assert len(list(cache.iterdir())) == 3


@pytest.mark.parametrize("damage", [b"", b"not json\n", b'{"sha256": "0", "symbols": {}}\ncode', b"[]\n"])
def test_a_damaged_entry_is_compiled_again(runtime: ModuleType, cache: Path, damage: bytes) -> None:
    code = check_compiles(runtime)
    (entry,) = cache.iterdir()
    entry.write_bytes(damage)
    assert check_compiles(runtime) == code


def test_a_torn_entry_is_compiled_again(runtime: ModuleType, cache: Path) -> None:
    code = check_compiles(runtime)
    (entry,) = cache.iterdir()
    entry.write_bytes(entry.read_bytes()[:-100])
    assert check_compiles(runtime) == code


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(
    runtime: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    check_compiles(runtime)


def test_an_error_of_the_compiler_names_file_and_line(runtime: ModuleType, cache: Path) -> None:
    with pytest.raises(runtime.CudaError, match=r"fill\.cu\(2\): error: identifier"):
        runtime.compiled("\n__global__ void k() { nothing; }", "fill.cu", ["k"], "sm_90")
    assert not cache.exists()


def test_half_headers_are_found(runtime: ModuleType, cache: Path) -> None:
    source = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n#include <cuda/std/cstdint>\n" + SOURCE
    check_compiles(runtime, source)


def test_no_compiler_is_an_error_with_a_next_step(runtime: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_toolkit_roots", lambda: iter(()))
    with pytest.raises(runtime.CudaError, match="pip install"):
        runtime.find_nvrtc()


def test_headers_of_c_and_cpp_are_those_that_checks_compile_with(runtime: ModuleType, cache: Path) -> None:
    kernel = "__global__ void k(std::int32_t n, float* x) { *x = std::sqrt(*x); }"
    text = f"#include <cmath>\n#include <cstdint>\n{SOURCE}{kernel}"
    code, _ = runtime.compiled(text, "fill.cu", NAMES, "sm_90", headers_of(text))
    assert code.startswith(ELF_MAGIC)
    with pytest.raises(runtime.CudaError, match="cstdint"):
        runtime.compiled(text.replace("#include <cmath>", ""), "fill.cu", NAMES, "sm_90")


def test_an_instruction_of_one_architecture_is_compiled_for_it_alone(runtime: ModuleType, cache: Path) -> None:
    source = f'{SOURCE}__global__ void k() {{ asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }}'
    check_compiles(runtime, source)
    with pytest.raises(runtime.CudaError, match="sm_80"):
        check_compiles(runtime, source, architecture="sm_80")


# --- launching


@pytest.fixture
def driver(runtime: ModuleType, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    types = [ctypes.c_void_p, ctypes.c_int, ctypes.c_float, ctypes.c_bool, ctypes.c_longlong, ctypes.c_void_p]
    fake = FakeDriver({"k": types})
    monkeypatch.setattr(runtime, "_driver", fake)
    return fake


ARGUMENTS = ["pointer", ("int", -3), ("float", 0.5), ("bool", True), ("long long", 1 << 40), "pointer"]


def launch(runtime: ModuleType, driver: FakeDriver, shared_bytes: int = 0, **attributes: int) -> None:
    made = runtime.KernelLaunch(driver.handle("k"), (2, 3, 4), (32, 2, 1), shared_bytes, ARGUMENTS, attributes)
    made(99, 0x1000, 0x2000)


def test_the_driver_sees_grid_block_stream_and_arguments(runtime: ModuleType, driver: FakeDriver) -> None:
    launch(runtime, driver)
    (seen,) = driver.launches
    assert (seen.grid, seen.block, seen.shared_bytes, seen.stream) == ((2, 3, 4), (32, 2, 1), 0, 99)
    assert seen.arguments == [0x1000, -3, 0.5, True, 1 << 40, 0x2000]
    assert not seen.attributes
    assert not driver.settings


def test_cooperative_launches_and_clusters_are_attributes(runtime: ModuleType, driver: FakeDriver) -> None:
    launch(runtime, driver, cooperative=1, cluster=4)
    attributes = driver.launches[0].attributes
    assert attributes[runtime.LAUNCH_ATTRIBUTE_COOPERATIVE][0] == 1
    assert attributes[runtime.LAUNCH_ATTRIBUTE_CLUSTER] == (4, 1, 1)


@pytest.mark.parametrize(("shared_bytes", "attributes", "asked"), [(49152, {}, 0), (49156, {}, 49156)])
def test_much_shared_memory_is_asked_for(
    runtime: ModuleType, driver: FakeDriver, shared_bytes: int, attributes: dict[str, int], asked: int
) -> None:
    launch(runtime, driver, shared_bytes, **attributes)
    expected = [("k", runtime.FUNCTION_MAX_DYNAMIC_SHARED_BYTES, asked)] if asked else []
    assert driver.settings == expected


def test_what_the_kernels_own_variables_take_is_asked_for_too(runtime: ModuleType, driver: FakeDriver) -> None:
    driver.default_shared_bytes = 40_000
    launch(runtime, driver, 40_004)
    assert driver.settings == [("k", runtime.FUNCTION_MAX_DYNAMIC_SHARED_BYTES, 40_004)]


def test_what_another_launch_of_the_function_needs_is_not_taken_back(runtime: ModuleType, driver: FakeDriver) -> None:
    launch(runtime, driver, 100_000)
    launch(runtime, driver, 60_000)
    assert driver.settings == [("k", runtime.FUNCTION_MAX_DYNAMIC_SHARED_BYTES, 100_000)]


def test_max_shared_and_large_clusters_are_asked_for(runtime: ModuleType, driver: FakeDriver) -> None:
    launch(runtime, driver, max_shared=100_000, cluster=16)
    assert driver.settings == [
        ("k", runtime.FUNCTION_MAX_DYNAMIC_SHARED_BYTES, 100_000),
        ("k", runtime.FUNCTION_NON_PORTABLE_CLUSTER_ALLOWED, 1),
    ]


def test_an_empty_grid_is_not_launched(runtime: ModuleType, driver: FakeDriver) -> None:
    runtime.KernelLaunch(driver.handle("k"), (0, 1, 1), (32, 1, 1), 0, ARGUMENTS, {})(99, 1, 2)
    assert not driver.launches


@pytest.mark.parametrize("grid", [(1 << 31, 1, 1), (1, 65536, 1), (1, 1, 65536)])
def test_a_grid_that_is_too_large_overflows(
    runtime: ModuleType, driver: FakeDriver, grid: tuple[int, int, int]
) -> None:
    with pytest.raises(OverflowError):
        runtime.KernelLaunch(driver.handle("k"), grid, (32, 1, 1), 0, ARGUMENTS, {})


@pytest.mark.parametrize(
    ("cuda_type", "value"), [("int", 1 << 31), ("int", -(1 << 31) - 1), ("unsigned int", -1), ("short", 40000)]
)
def test_a_number_that_its_type_cannot_hold_overflows(runtime: ModuleType, cuda_type: str, value: int) -> None:
    with pytest.raises(OverflowError):
        runtime.pack(cuda_type, value)


@pytest.mark.parametrize(
    ("cuda_type", "value"),
    [("int", (1 << 31) - 1), ("unsigned long long", (1 << 64) - 1), ("float", 3), ("double", 0.1), ("int", 4.0)],
)
def test_a_number_that_fits_is_kept(runtime: ModuleType, cuda_type: str, value: float) -> None:
    assert runtime.pack(cuda_type, value).value == value


@pytest.mark.parametrize(("cuda_type", "dtype"), [("__half", torch.float16), ("__nv_bfloat16", torch.bfloat16)])
def test_halves_are_passed_as_their_bits(runtime: ModuleType, cuda_type: str, dtype: torch.dtype) -> None:
    bits = runtime.pack(cuda_type, 0.1).value
    assert torch.tensor(bits, dtype=torch.int16).view(dtype) == torch.tensor(0.1, dtype=dtype)


def test_a_refused_launch_names_call_and_error(runtime: ModuleType, driver: FakeDriver) -> None:
    driver.status = 1
    with pytest.raises(runtime.CudaError, match=r"cuLaunchKernelEx: CUDA_ERROR_INVALID_VALUE \(1\): invalid argument"):
        launch(runtime, driver)


def test_structures_have_the_size_of_cuda_h(runtime: ModuleType) -> None:
    assert ctypes.sizeof(runtime._LaunchConfig) == 56
    assert ctypes.sizeof(runtime._LaunchAttribute) == 72


def test_integers_of_fixed_width_need_no_include(runtime: ModuleType, cache: Path) -> None:
    check_compiles(runtime, SOURCE + "__device__ int64_t twice(uint32_t n) { return int64_t(n) * 2; }\n")
    check_compiles(runtime, SOURCE + "__device__ uint twice_short(ushort n) { return uint(n) * 2u; }\n")


def test_an_operator_compiles_as_a_check_does(runtime: ModuleType) -> None:
    """It carries the options itself: what was verified is what runs."""
    assert set(checking.NVCC_CONSTANTS) < set(runtime.NVRTC_OPTIONS)
    assert set(runtime.NVRTC_OPTIONS) < set(checking.DEFAULT_OPTIONS)
    assert runtime.FIXED_WIDTH == checking.FIXED_WIDTH
    for name in ("SHORT_TYPES", "SHORT_TYPES_HEADER", "SHORT_TYPES_TEXT"):
        assert getattr(runtime, name) == getattr(checking, name)
    assert runtime.FIXED_WIDTH_HEADER == checking.FIXED_WIDTH_HEADER
