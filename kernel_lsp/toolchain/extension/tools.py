"""Find the programs that build a torch extension: a C++ compiler, nm, and nvcc for CUDA code."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from kernel_lsp.core.finding import Finding, Severity
from kernel_lsp.core.model import Noun
from kernel_lsp.errors import EnvironmentProblem
from kernel_lsp.process.supervisor import run
from kernel_lsp.toolchain.tools.binaries import find_tools

CXX_NAMES = ("g++", "c++", "clang++")
VERSION_DEADLINE_S = 10.0
LIBRARY_FOLDERS = ("lib64", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib", "lib")
INCLUDE_FOLDERS = ("include", "targets/x86_64-linux/include", "targets/sbsa-linux/include")
STATIC_STUBS = "-static-global-template-stub"
MANGLED = re.compile(r"_Z\w+")
"""C++ names of PyTorch and the standard library, whose dangerous functions are refused by name. No other C++ library is
linked, so other names would not load."""
_ALLOWED = (
    # Python, as used by pybind11; functions that run or import Python text are refused by name.
    r"_?Py\w+",
    # CUDA: the runtime, nvcc's kernel registration, tensor maps, computing libraries.
    r"__cuda\w+|__nv_\w+|_nv_\w+|cuda[A-Z]\w+|cuTensorMap\w+|cuGetError(String|Name)|cuLaunchKernel(Ex)?|cuFunc[GS]et\w+",
    r"(cublas|cublasLt|cudnn|cufft|cusolver|cusparse|cusparseLt|cutensor|curand|nvtx)\w+",
    # Compiler support functions.
    r"__dynamic_cast|__libc_single_threaded|__cxa_\w+|__gxx_\w+|_Unwind_\w+|__stack_chk_fail|__gmon_start__|_ITM_\w+",
    r"__dso_handle|__tls_get_addr|_GLOBAL_OFFSET_TABLE_|_edata|_end|__bss_start|_fini|_init|__assert_fail|abort",
    # nvcc's own registration needs `atexit`; destructors of static objects also run at the end of the process.
    r"atexit|__errno_location|__(u?div|u?mod|mul|fix|float|extend|trunc|pop|clz|ctz|add|sub|gcc_personality)\w+",
    r"__atomic_\w+|__aarch64_\w+",
    r"pthread_(mutex|once|rwlock|cond|spin|key|getspecific|setspecific|self|equal)\w*|sched_yield|__pthread_key_create",
    # Memory, text and numbers of the C library.
    r"mem\w+|str\w+|wcs\w+|wmem\w+|bcmp|bzero|is\w+|to(upper|lower)|malloc|calloc|realloc|free|posix_memalign",
    r"aligned_alloc|malloc_usable_size|atoi|atol|atoll|atof|labs|llabs|abs|div|ldiv|qsort|bsearch|rand|srand|random",
    r"v?s?n?printf|v?f?printf|v?asprintf|puts|putchar|fputs|fputc|putc|fflush|fwrite|perror|stderr|stdout|sscanf",
    r"__\w*printf_chk|__(mem|str|stp|wcs|wmem)\w+_chk|__fdelt_chk|__ctype_\w+|__isoc\w+|\w+_l|localeconv",
    r"newlocale|freelocale|uselocale|setlocale|environ|getenv|secure_getenv|getpid|sysconf|get_nprocs",
    r"time|clock|clock_gettime|gettimeofday|localtime(_r)?|gmtime(_r)?|mktime|strftime|difftime",
    # Arithmetic.
    r"(sin|cos|tan|asin|acos|atan2?|sinh|cosh|tanh|asinh|acosh|atanh|sincos|exp2?|exp10|expm1|log|log2|log10|log1p|pow"
    r"|sqrt|cbrt|fabs|floor|ceil|round|roundeven|l?lround|l?lrint|rint|nearbyint|trunc|fmod|remainder|remquo|fma|fmax"
    r"|fmin|fdim|hypot|erfc?|lgamma|lgamma_r|tgamma|ldexp|frexp|scalbn|scalbln|copysign|nextafter|nexttoward|isnan|isinf"
    r"|finite|logb|ilogb|modf|nan|j0|j1|jn|y0|y1|yn)[fl]?",
    # Threads of the compiler's own pool, which finishes its work before it returns.
    r"GOMP_\w+|omp_\w+|__kmpc_\w+",
)
PLAIN = re.compile("|".join(_ALLOWED))
"""Non-C++ names needed for computing. All others are refused as unknown."""
REFUSED = {
    "starts threads or processes": (
        r"_ZNSt6thread.*|_ZNSt5async.*|_ZNSt13__future_base.*|pthread_create|thrd_create|v?fork|clone3?|posix_spawnp?"
        r"|PyThread_start_\w+|_ZN3c10\w*10ThreadPool.*|_ZN2at6launchE.*|_ZN2at14intraop_launchE.*"
    ),
    "finds code at run time": (
        r"dlm?open|dlv?sym|dladdr1?|dl_iterate_phdr|cudaGetDriverEntryPoint\w*|cuGetProcAddress\w*|_ZNK?\w*DynamicLibrary.*"
    ),
    "runs or imports Python": (
        r"PyRun_\w+|Py_CompileString\w*|PyEval_EvalCode\w*|PyEval_Set(Trace|Profile)\w*|PyImport_\w+|Py_AddPendingCall"
        r"|Py_NewInterpreter\w*|Py_Exit|Py_AtExit|Py_Finalize\w*|PyOS_\w+|PyMarshal_\w+"
    ),
    "loads or compiles code": (
        r"cuModule\w+|cuLibrary\w+|cudaLibrary\w+|cuLink\w+|nvrtc\w+|nvJitLink\w+|_ZNK?\w*getNVRTC.*"
        r"|_ZNK?5torch3jit\w*(load|compile|CompilationUnit).*"
    ),
    "has the device call the host later": r"cu(da)?LaunchHostFunc\w*|cu(da)?StreamAddCallback\w*",
    "captures graphs": r"cu(da)?StreamBeginCapture\w*|cu(da)?Graph\w+|_ZNK?2at4cuda9CUDAGraph.*",
    "changes the device for others": (
        r"cudaDeviceSetLimit|cu(da)?Ctx\w+|cu(da)?StreamSetAttribute\w*|cudaDeviceReset|cudaIpc\w+|cu(da)?Profiler\w+"
    ),
    "reaches past its process": (
        r"ptrace|process_vm_\w+|mprotect|mmap\w*|mremap|signal|sigaction|syscall|prctl|system|popen|exec\w+|t?g?kill"
        r"|ioctl|memfd_create|shm_open|shmget|setns|unshare|mount|pthread_kill|timer_create|setitimer|_?_?exit|_Exit"
    ),
    "opens files or connections": (
        r"_ZNS?t?.*basic_[io]?f(stream|ilebuf).*|_ZNSt10filesystem.*|fopen\w*|open\w*|creat|unlink|rename|socket"
        r"|connect|bind|listen|accept4?|send\w*|recv\w*|getaddrinfo"
    ),
}
"""Refused symbols by their effect."""
SIDE_STREAMS = re.compile(r"^(cudaStreamCreate\w*|cuStreamCreate\w*)$|_ZN3c104cuda17getStreamFromPool")


class ExtensionTools(Noun):
    """Paths of the compilers. `version` distinguishes builds of different compilers. `nvcc` is None without a toolkit.
    `shared_stubs` are nvcc's flags that let other object files launch instances of a template kernel: since CUDA 13
    these are local to their file by default."""

    cxx: Path
    nm: Path
    nvcc: Path | None
    version: str
    cuda_includes: tuple[Path, ...] = ()
    cuda_libraries: tuple[Path, ...] = ()
    shared_stubs: tuple[str, ...] = ()

    @property
    def roots(self) -> tuple[Path, ...]:
        """Folders of the compilers' own files outside the system."""
        own = [path.parent for path in (self.cxx, self.nm, self.nvcc) if path is not None]
        return (*own, *self.cuda_includes, *self.cuda_libraries)


async def find_extension_tools() -> ExtensionTools:
    """Find the tools of this machine. Raises EnvironmentProblem without a C++ compiler."""
    cxx = next(
        (path for name in (os.environ.get("CXX", ""), *CXX_NAMES) if name and (path := shutil.which(name))), None
    )
    nm = shutil.which("nm")
    if cxx is None or nm is None:
        raise EnvironmentProblem(
            "there is no C++ compiler here to build a torch extension with", next_step="install g++ (with binutils)"
        )
    said = await run([cxx, "--version"], deadline_s=VERSION_DEADLINE_S)
    (nvcc,) = await find_tools(["nvcc"])
    root = await _toolkit_root(nvcc.path) if nvcc.path is not None else None
    return ExtensionTools(
        cxx=Path(cxx),
        nm=Path(nm),
        nvcc=nvcc.path,
        version=f"{said.stdout.decode(errors='replace').splitlines()[:1]} nvcc {nvcc.version}",
        cuda_includes=_present(root, INCLUDE_FOLDERS),
        cuda_libraries=_present(root, LIBRARY_FOLDERS),
        shared_stubs=await _shared_stubs(nvcc.path) if nvcc.path is not None else (),
    )


async def _shared_stubs(nvcc: Path) -> tuple[str, ...]:
    """Return nvcc's flags for shared stubs; older versions have none and need none."""
    said = await run([nvcc, "--help"], deadline_s=VERSION_DEADLINE_S)
    return (f"{STATIC_STUBS}=false",) if STATIC_STUBS.encode() in said.stdout else ()


async def _toolkit_root(nvcc: Path) -> Path:
    """Return nvcc's own toolkit root, since the program on the path may be a script or a link."""
    said = await run([nvcc, "--dryrun", "-c", "none.cu"], deadline_s=VERSION_DEADLINE_S)
    text = (said.stdout + said.stderr).decode(errors="replace")
    top = next((line.split("TOP=", 1)[1] for line in text.splitlines() if "TOP=" in line), "")
    return Path(os.path.realpath(top.strip())) if top else nvcc.resolve().parent.parent


def _present(root: Path | None, folders: tuple[str, ...]) -> tuple[Path, ...]:
    return tuple(root / folder for folder in folders if root is not None and (root / folder).is_dir())


def symbol_findings(undefined: Sequence[str]) -> tuple[Finding, ...]:
    """Report imported symbols that are refused or unknown (errors), and notable ones (information)."""
    found = [_finding(symbol) for symbol in undefined]
    return tuple(finding for finding in found if finding is not None)


def _finding(symbol: str) -> Finding | None:
    for does, pattern in REFUSED.items():
        if re.fullmatch(pattern, symbol):
            return _said(Severity.ERROR, "symbol-refused", f"it asks for `{symbol}`, which {does}")
    if SIDE_STREAMS.search(symbol):
        return _said(Severity.INFORMATION, "own-stream", f"it makes streams of its own (`{symbol}`)")
    if PLAIN.fullmatch(symbol) or MANGLED.fullmatch(symbol):
        return None
    return _said(Severity.ERROR, "symbol-unknown", f"it asks for `{symbol}`, which is no part of what computing needs")


def _said(severity: Severity, code: str, message: str) -> Finding:
    return Finding(code=code, severity=severity, message=message, source="integrity")
