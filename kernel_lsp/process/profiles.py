"""Sandbox profiles of each kind of program: compiler, executor, worker with the user's code, foreign host code.

Compiler, executor and foreign code see the system's libraries, their interpreter and their inputs. A worker runs the
user's own code, which may read the user's files except known secrets.
"""

from __future__ import annotations

import functools
import os
import site
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from kernel_lsp.process.confinement import Confinement, SandboxLevel

SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/nix/store", "/gnu/store", "/proc"),
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime"),
    *("/etc/nsswitch.conf", "/etc/passwd", "/etc/group", "/etc/os-release", "/sys/devices/system", "/sys/fs/cgroup"),
)
"""Programs, libraries and machine information. Landlock hides other users' files in /proc."""
CAP_SYS_ADMIN = 1 << 21  # <linux/capability.h>
DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")
GPU_DEVICE_PATTERNS = ("nvidia*", "nvidia-caps", "dxg")
OWN_THREADS = Path("/proc/self/task")
"""CUDA names its threads here, and fails to start without access (measured on an H200, driver 580)."""
GPU_READABLE = ("/sys/module/nvidia", "/sys/bus/pci", "/sys/devices", "/run/nvidia-persistenced", "/etc/nvidia")
SECRET_FOLDERS = (
    *("/run", "/boot", "/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/sudoers.d", "/etc/ssh", "/etc/ssl/private"),
    *("/etc/kubernetes", "/etc/krb5.keytab", "/var/run", "/var/lib/docker", "/var/lib/kubelet", "/var/lib/containers"),
    *("/var/lib/cloud", "/var/log", "/var/spool", "/var/mail", "/var/backups", "/lost+found"),
)
HOME_ALLOWED = (
    *(".cache", ".local", ".pyenv", ".conda", ".venv", ".venvs", ".virtualenvs", ".nv", ".triton", ".torch", ".keras"),
    *(".rye", ".asdf", ".mise", ".nix-profile", ".julia", ".python-version"),
)
"""Hidden entries of a home folder that hold interpreters, packages and caches. Any other may hold secrets."""
SECRET_IN_HOME = (
    *(".cache/huggingface/token", ".cache/huggingface/stored_tokens", ".local/share/keyrings", ".local/share/kwalletd"),
    *(".local/share/containers", ".local/share/jupyter/runtime", ".local/share/TelegramDesktop", "snap"),
)
CACHE_VARIABLES = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "extensions",
    "CUDA_CACHE_PATH": "cuda",
    "MPLCONFIGDIR": "matplotlib",
}
"""Cache folders of torch and its compilers, redirected so that a worker writes only there."""


def compiler_confinement(level: SandboxLevel, readable: Sequence[Path]) -> Confinement:
    """Confine NVRTC in our interpreter: reads the toolkit, writes and starts nothing."""
    return Confinement(
        level,
        readable=(*_system(), *_interpreter(Path(sys.executable)), *readable),
        max_file_bytes=0,
        max_memory_bytes=_machine_memory_bytes(),
    )


def executor_confinement(level: SandboxLevel, *, readable: Sequence[Path], writable: Sequence[Path]) -> Confinement:
    """Confine the PTX executor in our interpreter: reads inputs, writes outputs, starts nothing."""
    package = Path(__file__).resolve().parents[1]
    return Confinement(
        level,
        readable=(*_system(), *_interpreter(Path(sys.executable)), *_python_path(), package, *readable),
        writable=tuple(writable),
        listable=(package.parent,),
        max_memory_bytes=_machine_memory_bytes(),
    )


def worker_confinement(
    level: SandboxLevel, python: Path, *, scratch: Path | None, cache: Path, private: Sequence[Path] = ()
) -> Confinement:
    """Confine the user's code under the user's interpreter, with the GPU if there is one. Without a `scratch` folder it
    may write to the temporary folder. `private` is hidden in addition to known secrets."""
    folder = scratch or Path(tempfile.gettempdir())
    if level in (SandboxLevel.NONE, SandboxLevel.LIMITS):
        return Confinement(level, may_start_programs=True)
    own = (*_interpreter(python), *_python_path(), *map(Path, GPU_READABLE), folder, cache)
    return Confinement(
        level,
        readable=(*_all_but_secrets(tuple(private)), *_working_directory(), Path("/proc"), *own),
        writable=(folder, cache, *_own_threads()),
        listable=(Path("/"),),
        devices=_gpu_devices(),
        may_listen=True,
        may_start_programs=True,
        environment=(*cache_environment(cache), ("TMPDIR", str(folder))),
    )


def foreign_confinement(
    level: SandboxLevel, python: Path, *, readable: Sequence[Path], scratch: Path, may_start_programs: bool
) -> Confinement:
    """Confine foreign host code with torch and the GPU: its own files, one writable folder, nothing of the user's.
    Building needs `may_start_programs`; running does not."""
    return Confinement(
        level,
        readable=(*_system(), *_interpreter(python), *_python_path(), *map(Path, GPU_READABLE), *readable, scratch),
        writable=(scratch, *_own_threads()),
        listable=(Path("/"),),
        devices=_gpu_devices(),
        may_listen=True,
        may_start_programs=may_start_programs,
        environment=(*cache_environment(scratch / "cache"), ("HOME", str(scratch)), ("TMPDIR", str(scratch))),
    )


def profiler_confinement(
    level: SandboxLevel,
    python: Path,
    *,
    readable: Sequence[Path] = (),
    scratch: Path,
    needs_counters: bool,
    private: Sequence[Path] = (),
) -> Confinement:
    """Confine a profiler or sanitizer and our program below it, which launches a candidate's device code. It reads what
    a worker reads and writes to one folder. It reaches that program over sockets, so it has no system-call filter, but
    an empty network namespace where root can create one. Where the driver grants performance counters to administrators
    only, root keeps that capability."""
    if level in (SandboxLevel.NONE, SandboxLevel.LIMITS):
        return Confinement(level, may_start_programs=True, has_network=False)
    return Confinement(
        SandboxLevel.LANDLOCK,
        readable=(
            *(*_all_but_secrets(tuple(private)), *_working_directory(), Path("/proc"), *_interpreter(python)),
            *(*_python_path(), *map(Path, GPU_READABLE), *readable, scratch),
        ),
        writable=(scratch, Path("/dev/shm"), *_own_threads()),
        listable=(Path("/"),),
        devices=_gpu_devices(),
        may_listen=True,
        may_start_programs=True,
        has_network=False,
        kept_capabilities=CAP_SYS_ADMIN if needs_counters and _are_counters_for_administrators() else 0,
        environment=(("HOME", str(scratch)), ("TMPDIR", str(scratch))),
    )


def linter_confinement(level: SandboxLevel, program: Path, readable: Sequence[Path]) -> Confinement:
    """Confine a tool on one file: it reads that, headers and its own installation, and writes nothing. A tool that pip
    installed is a script of the Python beside it."""
    own = (*_interpreter(program), *_interpreter(program.with_name("python")))
    return Confinement(level, readable=(*_system(), *own, *readable), max_file_bytes=0, may_start_programs=True)


def cache_environment(cache: Path) -> tuple[tuple[str, str], ...]:
    """Return variables that redirect torch's caches to a folder."""
    return tuple((variable, str(cache / folder)) for variable, folder in CACHE_VARIABLES.items())


def _machine_memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _system() -> tuple[Path, ...]:
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    return (*map(Path, SYSTEM), *(Path(entry) for entry in libraries if os.path.isabs(entry)))


@functools.cache
def _interpreter(python: Path) -> tuple[Path, ...]:
    """Return the interpreter's environment, and the installation that it was created from."""
    prefixes = {python.parent.parent, python.resolve().parent.parent}
    if python == Path(sys.executable):
        prefixes |= {Path(sys.prefix), Path(sys.base_prefix), Path(site.getusersitepackages())}
    home = Path.home()
    return tuple(prefix for prefix in sorted(prefixes) if prefix != home and prefix != Path("/"))


def _python_path() -> tuple[Path, ...]:
    return tuple(Path(entry) for entry in os.environ.get("PYTHONPATH", "").split(":") if os.path.isabs(entry))


def _gpu_devices() -> tuple[Path, ...]:
    return tuple(path for pattern in GPU_DEVICE_PATTERNS for path in Path("/dev").glob(pattern))


def _are_counters_for_administrators() -> bool:
    """Return True when the driver restricts performance counters to administrators (NVIDIA, ERR_NVGPUCTRPERM) or does
    not say."""
    if not _gpu_devices():
        return False
    try:
        return "RmProfilingAdminOnly: 0" not in DRIVER_PARAMETERS.read_text()
    except OSError:
        return True


def _own_threads() -> tuple[Path, ...]:
    return (OWN_THREADS,) if _gpu_devices() else ()


def _working_directory() -> tuple[Path, ...]:
    """Return the working directory, readable even inside a hidden folder, but not an entire home."""
    here = Path(os.path.realpath(os.curdir))
    return () if any(here in secret.parents for secret in _secrets()) else (here,)


@functools.cache
def _all_but_secrets(private: tuple[Path, ...]) -> tuple[Path, ...]:
    """Return the largest folders and files without secrets. Files created next to a secret later are not included."""
    secrets = (
        _secrets() | {*map(_real, private)} | {Path("/dev"), Path("/proc"), Path("/sys/kernel"), Path("/sys/firmware")}
    )
    above = {parent for secret in secrets for parent in secret.parents}
    return tuple(_largest(Path("/"), secrets, above))


@functools.cache
def _secrets() -> set[Path]:
    return {_real(secret) for secret in (*map(Path, SECRET_FOLDERS), *_secrets_in_homes())}


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _secrets_in_homes() -> Iterator[Path]:
    for home in {Path.home(), Path("/root"), *_entries(Path("/home"))}:
        allowed = set(HOME_ALLOWED)
        yield from (entry for entry in _entries(home) if entry.name.startswith(".") and entry.name not in allowed)
        yield from (home / secret for secret in SECRET_IN_HOME)


def _largest(folder: Path, secrets: set[Path], above: set[Path]) -> Iterator[Path]:
    for entry in _entries(folder):
        if entry in secrets or entry.is_symlink():
            continue
        if entry in above:
            yield from _largest(entry, secrets, above)
        else:
            yield entry


def _entries(folder: Path) -> list[Path]:
    try:
        return [folder / name for name in os.listdir(folder)]
    except OSError:
        return []
