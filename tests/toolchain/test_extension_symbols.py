"""Check what a built extension may ask of the system."""

from __future__ import annotations

import pytest

from kernel_lsp.core.finding import Severity
from kernel_lsp.toolchain.extension.tools import symbol_findings

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
    "atexit",
    "pthread_mutex_lock",
    "GOMP_parallel",
    # CUB and thrust, as nvcc compiles them.
    "cudaFuncGetAttributes",
    "cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
    "cudaPeekAtLastError",
    "cudaMemcpyToSymbolAsync",
    "__cudaPushCallConfiguration",
    "__cudaRegisterVar",
    "_ZN6thrust24THRUST_200500_900_NS6system12system_errorC1E",
    # Libraries that compute.
    "cublasLtMatmul",
    "cublasGemmEx",
    "cudnnConvolutionForward",
    "cuTensorMapEncodeTiled",
    # What g++ and glibc bring in.
    "__libc_single_threaded",
    "__isoc23_strtol",
    "__sprintf_chk",
    "__fprintf_chk",
    "__memcpy_chk",
    "sincosf",
    "pthread_cond_signal",
    "_Py_NoneStruct",
    "PyThread_tss_get",
    "PyInterpreterState_GetDict",
    "_ZNSt6chrono3_V212steady_clock3nowEv",
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
    "cudaGetDriverEntryPoint": "finds code",
    "cudaGetDriverEntryPointByVersion": "finds code",
    "cuGetProcAddress_v2": "finds code",
    "_ZN2at14DynamicLibraryC1EPKcS2_b": "finds code",
    "PyRun_SimpleStringFlags": "runs or imports Python",
    "PyImport_ImportModule": "runs or imports Python",
    "PyThread_start_new_thread": "starts threads",
    "_ZN2at6launchESt8functionIFvvEE": "starts threads",
    "_ZNK2at7Context8getNVRTCEv": "loads or compiles",
    "_ZN2at4cuda9CUDAGraph13capture_beginE": "captures graphs",
}


@pytest.mark.parametrize("symbol", ALLOWED)
def test_what_pytorch_cuda_and_cpp_give_is_allowed(symbol: str) -> None:
    assert symbol_findings([symbol]) == ()


@pytest.mark.parametrize(("symbol", "why"), REFUSED.items())
def test_ways_out_are_refused(symbol: str, why: str) -> None:
    (finding,) = symbol_findings([symbol])
    assert finding.severity is Severity.ERROR
    assert why in finding.message


@pytest.mark.parametrize("symbol", ["some_other_library_call", "io_uring_setup", "seccomp", "io_submit"])
def test_what_is_on_no_list_is_refused(symbol: str) -> None:
    (finding,) = symbol_findings([symbol])
    assert finding.severity is Severity.ERROR


def test_streams_of_its_own_are_worth_knowing() -> None:
    (finding,) = symbol_findings(["cudaStreamCreateWithFlags"])
    assert finding.severity is Severity.INFORMATION
