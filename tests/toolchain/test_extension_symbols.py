"""What a built extension may ask of the system."""

from __future__ import annotations

import pytest

from kernel_lsp.core.finding import Severity
from kernel_lsp.toolchain.extension_symbols import symbol_findings

ALLOWED = (
    "_ZN2at4_ops10empty_like4callERKNS_6TensorE",
    "_ZNK2at10TensorBase8data_ptrEv",
    "_ZNK2at6Tensor5cloneEv",
    "_ZN3c105ErrorC1E",
    "_ZNSt8ios_base4InitC1Ev",
    "_Unwind_Resume",
    "__cxa_throw",
    "PyList_New",
    "cudaLaunchKernel",
    "cudaGetErrorString",
    "__cudaRegisterFunction",
    "cublasSgemm_v2",
    "memcpy",
    "expf",
    "pthread_mutex_lock",
    "GOMP_parallel",
)
REFUSED = {
    "dlopen": "finds code",
    "dlsym": "finds code",
    "system": "reaches past",
    "execve": "reaches past",
    "fork": "starts threads",
    "pthread_create": "starts threads",
    "_ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE": "starts threads",
    "cuModuleLoadData": "loads or compiles",
    "nvrtcCompileProgram": "loads or compiles",
    "cudaLaunchHostFunc": "call the host later",
    "cudaStreamBeginCapture": "captures graphs",
    "cudaDeviceSetLimit": "changes the device",
    "socket": "opens files",
    "_ZNSt14basic_ifstreamIcSt11char_traitsIcEEC1Ev": "opens files",
    "kill": "reaches past",
    "sendto": "opens files",
}


@pytest.mark.parametrize("symbol", ALLOWED)
def test_what_pytorch_cuda_and_cpp_give_is_allowed(symbol: str) -> None:
    assert symbol_findings([symbol]) == ()


@pytest.mark.parametrize(("symbol", "why"), REFUSED.items())
def test_ways_out_are_refused(symbol: str, why: str) -> None:
    (finding,) = symbol_findings([symbol])
    assert finding.severity is Severity.ERROR
    assert why in finding.message


def test_what_is_on_no_list_is_said() -> None:
    (finding,) = symbol_findings(["some_other_library_call"])
    assert finding.severity is Severity.WARNING


def test_streams_of_its_own_are_worth_knowing() -> None:
    (finding,) = symbol_findings(["cudaStreamCreateWithFlags"])
    assert finding.severity is Severity.INFORMATION
