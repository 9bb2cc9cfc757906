"""Gives up rights, then becomes the program that needs none of them. Standard library only, Python 3.9 and later.

    PYTHON confine.py SPEC run FILE [ARGUMENT]...      this interpreter runs a file
    PYTHON confine.py SPEC module NAME [ARGUMENT]...   this interpreter runs a module from beside this package
    PYTHON confine.py SPEC exec PROGRAM [ARGUMENT]...  another program takes this one's place

SPEC is JSON that `kernel_lsp.process.confinement` writes: ``{"parent": pid, "limits": [[resource, n]], "fs": mask,
"net": mask, "scoped": mask, "rules": [[path, mask]], "filter": hex, "group": path, "network": bool, "keeps": mask}``.
A zero or an empty text leaves that layer out; `group` is the file by which a cgroup is joined, `network` is false for a
network namespace with nothing but a loopback device, where one can be made, and `keeps` are capabilities to keep.
What is given up is given up for all children, too. A right that cannot be given up ends the program with
`EXIT_NOT_CONFINED`: nothing ever runs with more rights than asked for.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Callable

EXIT_NOT_CONFINED = 125
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 22, 38  # <linux/prctl.h>
SECCOMP_MODE_FILTER = 2  # <linux/seccomp.h>
CAPABILITY_VERSION_3 = 0x20080522  # <linux/capability.h>
FILE_CAPABILITIES = 0b11111
"""CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER, CAP_FSETID."""
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446  # on every architecture
LANDLOCK_RULE_PATH_BENEATH = 1  # <linux/landlock.h>
CLONE_NEWNET = 0x40000000  # <linux/sched.h>
SIOCSIFFLAGS, IFF_UP = 0x8914, 1  # <linux/sockios.h>, <linux/if.h>
FILE_RIGHTS = 0x8007
"""Landlock rights valid for a rule on a file, not a folder: execute, write, read, ioctl. Truncate is added below."""
TRUNCATE = 0x4000


def main() -> None:
    spec = json.loads(sys.argv[1])
    try:
        _confine(spec)
    except OSError as problem:
        sys.stderr.write(f"confine: {problem.strerror}: {problem.filename or 'no such right here'}\n")
        sys.exit(EXIT_NOT_CONFINED)
    _become(sys.argv[2], sys.argv[3:])


def _confine(spec: dict) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    _call(libc.prctl, "parent-death signal", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if spec["parent"] and os.getppid() != spec["parent"]:
        os._exit(EXIT_NOT_CONFINED)  # the parent died before the death signal was set
    if spec["group"]:
        with open(spec["group"], "w") as file:
            file.write(str(os.getpid()))
    for kind, limit in spec["limits"]:
        _limit(kind, limit)
    if not spec["network"]:
        _leave_network(libc)
    if spec["fs"] or spec["filter"]:
        _call(libc.prctl, "no_new_privs", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        _drop_capabilities(libc, spec["keeps"])
    if spec["fs"]:
        _landlock(libc, spec)
    if spec["filter"]:
        _filter(libc, bytes.fromhex(spec["filter"]))


def _limit(kind: int, limit: int) -> None:
    """Set a resource limit, never above the current one."""
    _, hard = resource.getrlimit(kind)
    value = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(kind, (value, value))


def _leave_network(libc: ctypes.CDLL) -> None:
    """Enter a network namespace with only a loopback device. Without the right to create one the process keeps its
    network: programs that reach their own children over TCP have no other way."""
    if libc.unshare(CLONE_NEWNET) != 0:
        return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


def _drop_capabilities(libc: ctypes.CDLL, keeps: int) -> None:
    """Drop capabilities. Root keeps its access to files and `keeps`, nothing else; other users have none."""
    header = struct.pack("=Ii", CAPABILITY_VERSION_3, 0)
    data = ctypes.create_string_buffer(24)
    _call(libc.capget, "capabilities", header, data)
    effective, permitted, _, _, _, _ = struct.unpack("=6I", data.raw)
    low, high = FILE_CAPABILITIES | keeps & 0xFFFFFFFF, keeps >> 32
    effective_2, permitted_2 = struct.unpack("=6I", data.raw)[3:5]
    kept = (effective & low, permitted & low, 0, effective_2 & high, permitted_2 & high, 0)
    _call(libc.capset, "capabilities", header, struct.pack("=6I", *kept))


def _landlock(libc: ctypes.CDLL, spec: dict) -> None:
    """Restrict file access. A missing path adds no rule."""
    attributes = struct.pack("=QQQ", spec["fs"], spec["net"], spec["scoped"])
    n_known = 24 if spec["scoped"] else 16 if spec["net"] else 8
    buffer = ctypes.create_string_buffer(attributes, 24)
    ruleset = _call(libc.syscall, "Landlock", LANDLOCK_CREATE_RULESET, buffer, ctypes.c_size_t(n_known), 0)
    for path, rights in spec["rules"]:
        try:
            beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        if not os.path.isdir(path):
            rights &= FILE_RIGHTS | TRUNCATE
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights & spec["fs"], beneath), 12)
        if rights & spec["fs"]:
            _call(libc.syscall, "Landlock rule", LANDLOCK_ADD_RULE, ruleset, LANDLOCK_RULE_PATH_BENEATH, rule, 0)
        os.close(beneath)
    _call(libc.syscall, "Landlock", LANDLOCK_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _filter(libc: ctypes.CDLL, program: bytes) -> None:
    class Program(ctypes.Structure):
        """``struct sock_fprog``."""

        _fields_ = [("n", ctypes.c_ushort), ("code", ctypes.c_char_p)]

    filled = Program(len(program) // 8, program)
    _call(libc.prctl, "seccomp", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(filled), 0, 0)


def _call(function: Callable[..., int], what: str, *arguments: object) -> int:
    result = function(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result


def _become(how: str, argv: list) -> None:
    """Become the program. Its own folder is first on the path, as if started without the launcher."""
    if how == "exec":
        os.execvp(argv[0], argv)
    sys.argv = argv
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    own, wanted = os.path.join(package, "process"), os.path.dirname(package)
    if how == "run":
        wanted = os.path.dirname(os.path.abspath(argv[0]))
    if not sys.flags.isolated:
        sys.path[:] = [wanted, *(entry for entry in sys.path if os.path.abspath(entry or ".") != own)]
    if how == "run":
        with open(argv[0], "rb") as file:
            code = compile(file.read(), argv[0], "exec")
    else:
        from importlib.util import find_spec

        found = find_spec(argv[0])
        code, sys.argv[0] = found.loader.get_code(argv[0]), found.origin  # type: ignore  # a name of ours
    namespace = sys.modules["__main__"].__dict__
    namespace.update(__file__=sys.argv[0], __package__=argv[0].rpartition(".")[0] if how == "module" else None)
    exec(code, namespace)


if __name__ == "__main__":
    main()
