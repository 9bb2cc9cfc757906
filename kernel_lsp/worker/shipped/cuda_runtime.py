"""NVRTC and the CUDA driver through ctypes: compiles a `.cu` text and launches its kernels on PyTorch's streams.

Needs the standard library and torch, and no CUDA toolkit: NVRTC comes with torch's own wheels. The part below the
imports is also what an exported operator carries in itself, word for word.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import logging
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

# --- CUDA runtime: compile with NVRTC, keep the result on disk, launch through the driver -----------------

_logger = logging.getLogger(__name__)

CACHE_FORMAT = 1
NVRTC_OPTIONS = (
    *("--std=c++17", "-default-device", "-lineinfo", "-DINFINITY=__int_as_float(0x7f800000)"),
    *("-DHUGE_VALF=__int_as_float(0x7f800000)", "-DNAN=__int_as_float(0x7fffffff)"),
    *("-DFLT_MAX=3.402823466e+38F", "-DFLT_MIN=1.175494351e-38F"),
    *("-DFLT_EPSILON=1.192092896e-07F", "-DM_PI=3.14159265358979323846"),
    *("-DM_SQRT2=1.41421356237309504880", "-DM_SQRT1_2=0.70710678118654752440"),
    *("-DM_2_SQRTPI=1.12837916709551257390", "-DM_LOG2E=1.4426950408889634074"),
    *("-DM_LN2=0.69314718055994530942", "-DINT_MAX=0x7fffffff"),
)  # the constants are nvcc's own, which kernels use without an include
FIXED_WIDTH = ("int8_t", "int16_t", "int32_t", "int64_t", "intptr_t")
FIXED_WIDTH_HEADER = "--pre-include=cuda/std/cstdint"  # nvcc's own headers bring int64_t and the like, too
SHORT_TYPES = re.compile(r"\b(?:uint|ushort)\b")
SHORT_TYPES_HEADER = "short_types.h"  # and these, by way of the C library's
SHORT_TYPES_TEXT = "typedef unsigned short ushort; typedef unsigned int uint;\n"
# What code for sm_90a may use and for sm_90 may not, and what ptxas says of such an instruction.
FIRST_WITH_OWN = 90
ASKS_FOR_OWN = re.compile(r"\b__CUDA_ARCH_(?:FEAT_SM\d+_ALL|SPECIFIC__|FAMILY_SPECIFIC__)")
NEEDS_OWN = re.compile(r"not supported on \.target|cannot be compiled for architecture|requires \.target")
# More dynamic shared memory per block, or more blocks per cluster, must be asked for (programming guide).
PORTABLE_CLUSTER_BLOCKS = 8
MAX_GRID_X, MAX_GRID_YZ = 2**31 - 1, 2**16 - 1  # every compute capability from 3.0 on
# Values of enums in cuda.h.
FUNCTION_MAX_DYNAMIC_SHARED_BYTES = 8
FUNCTION_NON_PORTABLE_CLUSTER_ALLOWED = 14
LAUNCH_ATTRIBUTE_COOPERATIVE = 2
LAUNCH_ATTRIBUTE_CLUSTER = 4

NO_HEADERS: Mapping[str, str] = {}
POINTER = "pointer"
_C_TYPES: dict[str, Any] = {
    "bool": ctypes.c_bool,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    **dict.fromkeys(("char", "signed char", "int8_t"), ctypes.c_int8),
    **dict.fromkeys(("unsigned char", "uint8_t"), ctypes.c_uint8),
    **dict.fromkeys(("short", "int16_t"), ctypes.c_int16),
    **dict.fromkeys(("unsigned short", "uint16_t"), ctypes.c_uint16),
    **dict.fromkeys(("int", "int32_t"), ctypes.c_int32),
    **dict.fromkeys(("unsigned", "unsigned int", "uint32_t"), ctypes.c_uint32),
    **dict.fromkeys(("long", "long long", "int64_t", "ptrdiff_t"), ctypes.c_int64),
    **dict.fromkeys(("unsigned long", "unsigned long long", "uint64_t", "size_t"), ctypes.c_uint64),
}
_HALF_TYPES = {"__half": torch.float16, "half": torch.float16, "__nv_bfloat16": torch.bfloat16}


class CudaError(RuntimeError):
    """NVRTC or the CUDA driver is missing or refused. The message has the call and the error's own name."""


Compiled = tuple[bytes, dict[str, str]]
"""A cubin, and the symbol of each name expression in it."""


class KernelLibrary:
    """A `.cu` text whose kernels are compiled at first use, once per GPU architecture, and cached on disk.

    `names` are C++ name expressions, e.g. ``rms_norm_rows<256>``; `headers` are those of C and C++ that the
    text includes and NVRTC does not have, by name.
    """

    def __init__(
        self, text: str, file_name: str, names: Sequence[str], headers: Mapping[str, str] = NO_HEADERS
    ) -> None:
        self._text, self._file_name, self._names = text, file_name, tuple(sorted(set(names)))
        self._headers = headers
        self._functions: dict[tuple[int, str], ctypes.c_void_p] = {}
        self._lock = threading.Lock()

    def function(self, name: str, device_index: int) -> ctypes.c_void_p:
        """The kernel's handle on a GPU, which must be current. Raises CudaError with the compiler's log."""
        make_context_current(device_index)
        with self._lock:
            if (device_index, name) not in self._functions:
                names = self._names if name in self._names else (name,)
                architecture = architecture_of(device_index)
                code, symbols = compiled(self._text, self._file_name, names, architecture, self._headers)
                module = load_module(code)
                for each in names:
                    self._functions[device_index, each] = find_function(module, symbols[each])
            return self._functions[device_index, name]


class KernelLaunch:
    """One launch with everything fixed but the stream and the tensors. Not for two threads at once.

    `arguments` holds `POINTER` for a tensor, or a C++ type and its value. `attributes` may hold
    ``cooperative`` (1), ``cluster`` (blocks along x) and ``max_shared`` (bytes). Raises OverflowError for a
    value that its C++ type cannot hold, and for a grid larger than a GPU takes.
    """

    def __init__(
        self,
        function: ctypes.c_void_p,
        grid: Sequence[int],
        block: Sequence[int],
        shared_bytes: int,
        arguments: Sequence[str | tuple[str, float]],
        attributes: Mapping[str, int],
    ) -> None:
        if grid[0] > MAX_GRID_X or max(grid[1:]) > MAX_GRID_YZ:
            raise OverflowError(f"a grid of {tuple(grid)} blocks is larger than a GPU takes")
        values = [ctypes.c_void_p() if argument == POINTER else pack(*argument) for argument in arguments]
        self._pointers = [value for value in values if isinstance(value, ctypes.c_void_p)]
        self._values = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        self._keep_alive = (values, _launch_attributes(attributes))
        listed = self._keep_alive[1]
        self._config = _LaunchConfig(*grid, *block, shared_bytes, None, listed, len(listed))
        self._reference = ctypes.byref(self._config)
        self._function = function
        self._is_empty = 0 in grid  # nothing to do, and the driver refuses it
        self._launch = driver().cuLaunchKernelEx
        _allow(function, shared_bytes, attributes)

    def __call__(self, stream: int, *pointers: int) -> None:
        """Launch on a stream handle, with the tensors' addresses in the order of the kernel's parameters."""
        if self._is_empty:
            return
        for slot, address in zip(self._pointers, pointers):
            slot.value = address
        self._config.stream = stream
        status = self._launch(self._reference, self._function, self._values, None)
        if status:
            _check(status, "cuLaunchKernelEx")


def on_device(index: int) -> contextlib.AbstractContextManager[Any]:
    """Makes a GPU current; costs nothing when it is."""
    return contextlib.nullcontext() if torch.cuda.current_device() == index else torch.cuda.device(index)


def current_stream(index: int) -> int:
    """The handle of PyTorch's current stream, without the Python object around it (Triton reads it so)."""
    return torch._C._cuda_getCurrentRawStream(index)


def architecture_of(device_index: int) -> str:
    """E.g. ``sm_90``."""
    major, minor = torch.cuda.get_device_capability(device_index)
    return f"sm_{major}{minor}"


def make_context_current(device_index: int) -> None:
    """Give this thread the context that PyTorch uses on a GPU: the driver's calls need one, and a new thread
    has none until something asks for it."""
    current = ctypes.c_int(-1)
    if driver().cuCtxGetDevice(ctypes.byref(current)) == 0 and current.value == device_index:
        return
    torch.cuda.init()
    context = ctypes.c_void_p()
    status = driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), device_index)
    _check(status, "cuDevicePrimaryCtxRetain")
    _check(driver().cuCtxSetCurrent(context), "cuCtxSetCurrent")


def load_module(code: bytes) -> ctypes.c_void_p:
    """A cubin or PTX text, loaded into the current context."""
    module = ctypes.c_void_p()
    _check(driver().cuModuleLoadData(ctypes.byref(module), code + b"\0"), "cuModuleLoadData")
    return module


def find_function(module: ctypes.c_void_p, symbol: str) -> ctypes.c_void_p:
    """A kernel of a module by its mangled name."""
    function = ctypes.c_void_p()
    status = driver().cuModuleGetFunction(ctypes.byref(function), module, symbol.encode())
    _check(status, f"cuModuleGetFunction({symbol})")
    return function


def compiled(
    text: str,
    file_name: str,
    names: Sequence[str],
    architecture: str,
    headers: Mapping[str, str] = NO_HEADERS,
) -> Compiled:
    """The machine code of a `.cu` text, from the cache or NVRTC. Raises CudaError with the compiler's log."""
    nvrtc_path, include = find_nvrtc()
    compiler = [nvrtc_path.name, nvrtc_path.resolve().name, nvrtc_path.stat().st_size, str(include)]
    given = [CACHE_FORMAT, text, dict(headers), file_name, list(names), architecture]
    key = json.dumps([*given, compiler, NVRTC_OPTIONS])
    entry = _cache_directory() / f"{hashlib.sha256(key.encode()).hexdigest()}.cubin"
    cached = _read_cache(entry)
    if cached is not None:
        return cached
    program = _Program(nvrtc_path, text, file_name, headers)
    code, symbols = _compiled_for(architecture, program, names, include)
    _write_cache(entry, code, symbols)
    return code, symbols


def find_nvrtc() -> tuple[Path, Path]:
    """NVRTC and the directory of its headers: torch's wheels first, then $CUDA_HOME, then the system's."""
    for root in _toolkit_roots():
        for library in sorted(root.glob("lib*/libnvrtc.so.*"), key=lambda path: len(path.name)):
            for include in (root / "include", root.parent / "cuda_runtime" / "include"):
                if (include / "cuda_fp16.h").is_file():
                    return library, include
    raise CudaError("no NVRTC with its headers found: pip install nvidia-cuda-nvrtc nvidia-cuda-runtime")


def pack(cuda_type: str, value: float) -> Any:
    """A value as its C++ type holds it. Raises OverflowError when it cannot."""
    if cuda_type in _HALF_TYPES:
        bits = torch.tensor(value, dtype=_HALF_TYPES[cuda_type]).view(torch.int16)
        return ctypes.c_int16(int(bits.item()))
    c_type = _C_TYPES[cuda_type]
    packed = c_type(value if c_type in (ctypes.c_float, ctypes.c_double) else int(value))
    if isinstance(packed.value, int) and packed.value != value:
        raise OverflowError(f"{value} does not fit a kernel parameter of type {cuda_type}")
    return packed


def driver() -> ctypes.CDLL:
    """The CUDA driver. Raises CudaError where there is none."""
    global _driver
    if _driver is None:
        try:
            _driver = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise CudaError(f"no CUDA driver: {error}") from error
    return _driver


_driver: ctypes.CDLL | None = None
_ALLOWING = threading.Lock()


class _LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute of cuda.h: a 64-byte union, of which we set the first three words."""

    _fields_ = [("id", ctypes.c_uint), ("pad", ctypes.c_uint), ("value", ctypes.c_uint * 16)]


class _LaunchConfig(ctypes.Structure):
    """CUlaunchConfig of cuda.h."""

    _fields_ = [
        *((name, ctypes.c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_LaunchAttribute)),
        ("n_attributes", ctypes.c_uint),
    ]


def _launch_attributes(attributes: Mapping[str, int]) -> ctypes.Array[_LaunchAttribute]:
    listed = []
    if "cooperative" in attributes:
        listed.append(_LaunchAttribute(LAUNCH_ATTRIBUTE_COOPERATIVE, 0, (attributes["cooperative"],)))
    if "cluster" in attributes:
        listed.append(_LaunchAttribute(LAUNCH_ATTRIBUTE_CLUSTER, 0, (attributes["cluster"], 1, 1)))
    return (_LaunchAttribute * len(listed))(*listed)


def _allow(function: ctypes.c_void_p, shared_bytes: int, attributes: Mapping[str, int]) -> None:
    shared_bytes = max(shared_bytes, attributes.get("max_shared", 0))
    with _ALLOWING:
        if shared_bytes > 0 and shared_bytes > _allowed_shared_bytes(function):
            status = driver().cuFuncSetAttribute(function, FUNCTION_MAX_DYNAMIC_SHARED_BYTES, shared_bytes)
            _check(status, f"{shared_bytes} bytes of shared memory")
    if attributes.get("cluster", 1) > PORTABLE_CLUSTER_BLOCKS:
        status = driver().cuFuncSetAttribute(function, FUNCTION_NON_PORTABLE_CLUSTER_ALLOWED, 1)
        _check(status, f"a cluster of {attributes['cluster']} blocks")


def _allowed_shared_bytes(function: ctypes.c_void_p) -> int:
    """Return the limit of dynamic shared memory: what a function's own variables leave of 48 KiB, or what it was
    allowed before, which other launches of it may need."""
    n_bytes = ctypes.c_int()
    status = driver().cuFuncGetAttribute(ctypes.byref(n_bytes), FUNCTION_MAX_DYNAMIC_SHARED_BYTES, function)
    _check(status, "cuFuncGetAttribute")
    return n_bytes.value


def _check(status: int, call: str) -> None:
    if status == 0:
        return
    name, text = ctypes.c_char_p(), ctypes.c_char_p()
    driver().cuGetErrorName(status, ctypes.byref(name))
    driver().cuGetErrorString(status, ctypes.byref(text))
    raise CudaError(f"{call}: {(name.value or b'?').decode()} ({status}): {(text.value or b'?').decode()}")


def _compiled_for(architecture: str, program: _Program, names: Sequence[str], include: Path) -> Compiled:
    """For the architecture, or with the instructions that it alone has where the text needs them."""
    has_own = int(architecture[len("sm_") :]) >= FIRST_WITH_OWN
    if not (has_own and ASKS_FOR_OWN.search(program.text)):
        try:
            return program.compile(names, architecture, include)
        except CudaError as error:
            if not (has_own and NEEDS_OWN.search(str(error))):
                raise
    return program.compile(names, f"{architecture}a", include)


class _Program:
    """A text and the compiler for it."""

    def __init__(self, nvrtc_path: Path, text: str, file_name: str, headers: Mapping[str, str]) -> None:
        for builtins in nvrtc_path.parent.glob("libnvrtc-builtins.so.*"):
            # NVRTC looks for it by name, which fails outside the loader's path unless it is there already.
            ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
        self._nvrtc = ctypes.CDLL(str(nvrtc_path))
        self._nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
        self._handle = ctypes.c_void_p()
        self._needs_integers = "stdint" not in text and any(name in text for name in FIXED_WIDTH)
        self._has_short_types = SHORT_TYPES.search(text) is not None
        self.text, self._file_name = text, file_name
        short = {SHORT_TYPES_HEADER: SHORT_TYPES_TEXT} if self._has_short_types else {}
        self._headers = {**headers, **short}

    def compile(self, names: Sequence[str], architecture: str, include: Path) -> Compiled:
        folders = [include, include / "cccl", *_cccl_folders()]
        options = [f"--gpu-architecture={architecture}", *(f"-I{folder}" for folder in folders), *NVRTC_OPTIONS]
        if self._needs_integers:
            options.append(FIXED_WIDTH_HEADER)
        if self._has_short_types:
            options.append(f"--pre-include={SHORT_TYPES_HEADER}")
        encoded = _c_strings(options)
        source, headers = (self.text.encode(), self._file_name.encode()), self._headers
        given = (len(headers), _c_strings(headers.values()), _c_strings(headers))
        self._call("CreateProgram", ctypes.byref(self._handle), *source, *given)
        for name in names:
            self._call("AddNameExpression", self._handle, name.encode())
        try:
            self._call("CompileProgram", self._handle, len(options), encoded)
        except CudaError as error:
            log = self._bytes("ProgramLog").rstrip(b"\0").decode(errors="replace")
            raise CudaError(f"{error}\n{log}") from error
        symbols = {name: self._symbol(name) for name in names}
        code = self._bytes("CUBIN")
        self._call("DestroyProgram", ctypes.byref(self._handle))
        return code, symbols

    def _symbol(self, name: str) -> str:
        symbol = ctypes.c_char_p()
        self._call("GetLoweredName", self._handle, name.encode(), ctypes.byref(symbol))
        return (symbol.value or b"").decode()

    def _bytes(self, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"Get{what}Size", self._handle, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(f"Get{what}", self._handle, buffer)
        return buffer.raw

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._nvrtc, f"nvrtc{name}")(*arguments)
        if status:
            raise CudaError(f"nvrtc{name}: {self._nvrtc.nvrtcGetErrorString(status).decode()}")


def _c_strings(texts: Iterable[str]) -> ctypes.Array[ctypes.c_char_p]:
    encoded = [text.encode() for text in texts]
    return (ctypes.c_char_p * len(encoded))(*encoded)


def _toolkit_roots() -> Iterator[Path]:
    packages = [Path(torch.__file__).parent.parent, *(Path(entry) for entry in sys.path if entry)]
    for directory in dict.fromkeys(packages):
        yield from sorted(directory.glob("nvidia/cu[0-9]*"), reverse=True)
        yield from directory.glob("nvidia/cuda_nvrtc")
    yield from (Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name))
    yield from sorted(Path("/usr/local").glob("cuda*"))
    yield Path("/usr")


def _cccl_folders() -> list[Path]:
    """Headers of CCCL in any toolkit: `cooperative_groups.h` needs them, and PyTorch's wheels do not have them."""
    folders = [root / "include" / part for root in _toolkit_roots() for part in ("cccl", "")]
    return [folder for folder in folders if (folder / "nv" / "target").is_file()][:1]


def _cache_directory() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kernel_lsp" / "cubin"


def _read_cache(entry: Path) -> Compiled | None:
    """Return what an earlier process compiled; None for no file, and for a torn or foreign one."""
    try:
        header, _, code = entry.read_bytes().partition(b"\n")
        facts = json.loads(header)
        return (code, facts["symbols"]) if facts["sha256"] == hashlib.sha256(code).hexdigest() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_cache(entry: Path, code: bytes, symbols: Mapping[str, str]) -> None:
    """Best effort: a read-only home directory costs a compilation per process and nothing else."""
    facts = {"sha256": hashlib.sha256(code).hexdigest(), "symbols": dict(symbols)}
    temporary = entry.with_name(f"{entry.name}.{os.getpid()}.tmp")
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(json.dumps(facts).encode() + b"\n" + code)
        os.replace(temporary, entry)
    except OSError as error:
        _logger.debug("the compiled kernel is not cached: %s", error)
        with contextlib.suppress(OSError):
            temporary.unlink()
