"""What a built extension may ask of the system: PyTorch, CUDA's libraries, the C++ library and arithmetic.

An extension's host code runs, so that what it could do is told from the symbols that it leaves for the loader to find.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from kernel_lsp.core.finding import Finding, Severity

MANGLED = re.compile(r"_Z\w+")
"""C++ names: of PyTorch and of the standard library, whose dangerous parts are refused by name. No other C++ library is
linked, so that another name would not load."""
PLAIN = re.compile(
    r"(_?Py\w+|__cuda\w+|cuda\w+|cublas\w+|cudnn\w+|cufft\w+|cusolver\w+|cusparse\w+|curand\w+|nvtx\w+"
    r"|__dynamic_cast|__libc_single_threaded|pthread_(mutex|once|rwlock|key|getspecific|setspecific|self)\w*|__cxa_\w+|__gxx_\w+|_Unwind_\w+|__stack_chk_fail|__gmon_start__|_ITM_\w+|__dso_handle|__tls_get_addr"
    r"|mem\w+|str\w+|wcs\w+|is\w+|to(upper|lower)|malloc|calloc|realloc|free|posix_memalign|aligned_alloc|abort|abs|atoi|atof"
    r"|v?s?n?printf|v?f?printf|puts|putchar|fputs|fputc|fflush|fwrite|stderr|stdout|__\w*printf_chk|__mem\w+_chk|__str\w+_chk"
    r"|(sin|cos|tan|asin|acos|atan2?|sinh|cosh|tanh|exp2?|expm1|log|log2|log10|log1p|pow|sqrt|cbrt|fabs|floor|ceil|round"
    r"|l?lround|l?lrint|rint|nearbyint|trunc|fmod|remainder|fma|fmax|fmin|hypot|erfc?|lgamma|tgamma|ldexp|frexp|scalbn"
    r"|copysign|isnan|isinf|logb|ilogb|modf|nan)[fl]?|qsort|bsearch|rand|srand|time|clock|clock_gettime|gettimeofday|getenv"
    r"|__ctype_\w+|__isoc\w+|\w+_l|newlocale|freelocale|uselocale|bcmp|bzero|secure_getenv|__assert_fail|__errno_location|GOMP_\w+|omp_\w+|__kmpc_\w+|_GLOBAL_OFFSET_TABLE_|_edata|_end|__bss_start|_fini|_init|environ)$"
)
REFUSED = {
    "starts threads or processes": (
        r"_ZNSt6thread.*|_ZNSt5async.*|_ZNSt13__future_base.*|pthread_create|thrd_create|v?fork|clone3?|posix_spawnp?"
    ),
    "finds code at run time": r"dlm?open|dlv?sym|dladdr1?|dl_iterate_phdr",
    "loads or compiles code": r"cuModule\w+|cuLibrary\w+|cudaLibrary\w+|cuLink\w+|nvrtc\w+|nvJitLink\w+",
    "has the device call the host later": r"cu(da)?LaunchHostFunc\w*|cu(da)?StreamAddCallback\w*",
    "captures graphs": r"cu(da)?StreamBeginCapture\w*|cu(da)?Graph\w+",
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
"""What a symbol of the kind does -> the symbols."""
SIDE_STREAMS = re.compile(r"^(cudaStreamCreate\w*|cuStreamCreate\w*)$|_ZN3c104cuda17getStreamFromPool")


def symbol_findings(undefined: Sequence[str]) -> tuple[Finding, ...]:
    """What a built extension asks for that it may not have (errors), what is unusual (warnings), and what is worth
    knowing (information)."""
    found = [_finding(symbol) for symbol in undefined]
    return tuple(finding for finding in found if finding is not None)


# --- below


def _finding(symbol: str) -> Finding | None:
    for does, pattern in REFUSED.items():
        if re.fullmatch(pattern, symbol):
            return _said(Severity.ERROR, "symbol-refused", f"it asks for `{symbol}`, which {does}")
    if SIDE_STREAMS.search(symbol):
        return _said(Severity.INFORMATION, "own-stream", f"it makes streams of its own (`{symbol}`)")
    if PLAIN.match(symbol) or MANGLED.match(symbol):
        return None
    return _said(Severity.WARNING, "symbol-unusual", f"it asks for `{symbol}`, which few extensions need")


def _said(severity: Severity, code: str, message: str) -> Finding:
    return Finding(code=code, severity=severity, message=message, source="integrity")
