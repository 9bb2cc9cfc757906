"""The system-call filter of confined processes, as the bytes of a BPF program for `prctl(PR_SET_SECCOMP)`.

Listed calls fail with EACCES or EPERM, as if the user lacked the right; all others are left to the kernel. Numbers are
from <asm/unistd_64.h> and <asm-generic/unistd.h>, structures from <linux/seccomp.h>.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Architecture:
    """`audit` identifies the architecture in a filter; `numbers` maps the system calls used here to their numbers,
    without those that the architecture lacks."""

    audit: int
    numbers: dict[str, int]


_SINCE_5_1 = {
    **{"io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429},
    **{"fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_open": 434, "clone3": 435},
    **{"pidfd_getfd": 438, "process_madvise": 440, "mount_setattr": 442},
}
"""The same on every architecture."""
_X86_64 = {
    **{"socket": 41, "connect": 42, "accept": 43, "sendto": 44, "bind": 49, "listen": 50, "socketpair": 53},
    **{"clone": 56, "fork": 57, "vfork": 58, "execve": 59, "ptrace": 101, "syslog": 103, "setpgid": 109, "setsid": 112},
    **{"personality": 135, "vhangup": 153, "pivot_root": 155, "adjtimex": 159, "chroot": 161, "acct": 163},
    **{"settimeofday": 164, "mount": 165, "umount2": 166, "swapon": 167, "swapoff": 168, "reboot": 169},
    **{"sethostname": 170, "setdomainname": 171, "iopl": 172, "ioperm": 173, "init_module": 175, "delete_module": 176},
    **{"quotactl": 179, "clock_settime": 227, "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250},
    **{"unshare": 272, "accept4": 288, "perf_event_open": 298, "name_to_handle_at": 303, "open_by_handle_at": 304},
    **{"clock_adjtime": 305, "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312},
    **{"finit_module": 313, "kexec_file_load": 320, "bpf": 321, "execveat": 322, "userfaultfd": 323, **_SINCE_5_1},
}
_AARCH64 = {
    **{"umount2": 39, "mount": 40, "pivot_root": 41, "chroot": 51, "vhangup": 58, "quotactl": 60, "acct": 89},
    **{"personality": 92, "unshare": 97, "kexec_load": 104, "init_module": 105, "delete_module": 106},
    **{"clock_settime": 112, "syslog": 116, "ptrace": 117, "reboot": 142, "setpgid": 154, "setsid": 157},
    **{"sethostname": 161, "setdomainname": 162, "settimeofday": 170, "adjtimex": 171, "socket": 198},
    **{"socketpair": 199, "bind": 200, "listen": 201, "accept": 202, "connect": 203, "sendto": 206, "add_key": 217},
    **{"request_key": 218, "keyctl": 219, "clone": 220, "execve": 221, "swapon": 224, "swapoff": 225},
    **{"perf_event_open": 241, "accept4": 242, "name_to_handle_at": 264, "open_by_handle_at": 265},
    **{"clock_adjtime": 266, "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272},
    **{"finit_module": 273, "bpf": 280, "execveat": 281, "userfaultfd": 282, "kexec_file_load": 294, **_SINCE_5_1},
}
ARCHITECTURES = {"x86_64": Architecture(0xC000003E, _X86_64), "aarch64": Architecture(0xC00000B7, _AARCH64)}
"""Architectures by `platform.machine()`; the codes are AUDIT_ARCH_* of <linux/audit.h>."""

CONNECTING = ("connect",)
LISTENING = ("bind", "listen", "accept", "accept4")
"""Sockets of every other family are denied, also netlink: nothing can be connected. `may_listen` allows UNIX sockets
that cannot connect, since CUDA opens one for its children. io_uring would bypass the filter."""
OTHER_PROCESSES = ("ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "pidfd_getfd")
KERNEL = (
    *("mount", "umount2", "pivot_root", "chroot", "open_tree", "move_mount", "fsopen", "fsconfig", "fsmount", "fspick"),
    *("mount_setattr", "unshare", "setns", "open_by_handle_at", "name_to_handle_at", "bpf", "perf_event_open"),
    *("userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register", "add_key", "request_key", "keyctl"),
    *("init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot", "swapon", "swapoff"),
    *("settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "sethostname", "setdomainname", "acct"),
    *("quotactl", "iopl", "ioperm", "syslog", "vhangup", "personality"),
)
"""Calls that change the machine, create namespaces, or widen the kernel's attack surface."""
STAYS_IN_GROUP = ("setsid", "setpgid")
"""These report success without effect, so that everything a confined process starts dies with its group."""
PROGRAMS = ("fork", "vfork", "execve", "execveat")

CLONE_THREAD = 0x00010000
CLONE_NAMESPACES = 0x7E020080
"""CLONE_NEWTIME, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET of <linux/sched.h>."""
AF_UNIX = 1
SOCK_TYPE_MASK, SOCK_DGRAM, SOCK_RAW = 0xF, 2, 3
X32_BIT = 0x40000000

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000


def filter_program(machine: str, *, may_start_programs: bool, may_listen: bool) -> bytes:
    """The filter for one architecture (a key of `ARCHITECTURES`), as an array of ``struct sock_filter``."""
    architecture = ARCHITECTURES[machine]
    code = [
        _statement(_LOAD, _ARCHITECTURE),
        *_unless(_EQUAL, architecture.audit, [_statement(_RETURN, _KILL)]),
        _statement(_LOAD, _NUMBER),
    ]
    if machine == "x86_64":
        code += _when(_AT_LEAST, X32_BIT, [_fail(errno.ENOSYS)])
    denied = _denied(architecture.numbers, may_start_programs=may_start_programs, may_listen=may_listen)
    for number, verdict in denied:
        code += _when(_EQUAL, number, [verdict])
    for name, body in _conditional(may_start_programs=may_start_programs, may_listen=may_listen):
        code += _when(_EQUAL, architecture.numbers[name], [*body, _statement(_RETURN, _ALLOW)])
    return b"".join([*code, _statement(_RETURN, _ALLOW)])


def _denied(numbers: dict[str, int], *, may_start_programs: bool, may_listen: bool) -> Iterator[tuple[int, bytes]]:
    """Return the calls that are always denied. On ENOSYS for clone3 glibc falls back to clone, whose flags a filter can
    inspect."""
    lists: list[tuple[tuple[str, ...], int]] = [
        (CONNECTING if may_listen else (*CONNECTING, *LISTENING), errno.EACCES),
        (OTHER_PROCESSES, errno.EPERM),
        (KERNEL, errno.EPERM),
        (STAYS_IN_GROUP, 0),
        (("clone3",), errno.ENOSYS),
    ]
    if not may_start_programs:
        lists.append((PROGRAMS, errno.EPERM))
    for names, number in lists:
        yield from ((numbers[name], _fail(number)) for name in names if name in numbers)


def _conditional(*, may_start_programs: bool, may_listen: bool) -> Iterator[tuple[str, list[bytes]]]:
    """Return the calls that depend on an argument: threads but no namespaces, stream pairs but no datagrams, no
    addresses."""
    clone = [_statement(_LOAD, _ARGUMENTS), *_when(_ANY_BIT, CLONE_NAMESPACES, [_fail(errno.EPERM)])]
    if not may_start_programs:
        clone += _unless(_ANY_BIT, CLONE_THREAD, [_fail(errno.EPERM)])
    yield "clone", clone
    no_datagrams = [
        _statement(_LOAD, _ARGUMENTS + 8),
        _statement(_AND, SOCK_TYPE_MASK),
        *_when(_EQUAL, SOCK_DGRAM, [_fail(errno.EACCES)]),
        *_when(_EQUAL, SOCK_RAW, [_fail(errno.EACCES)]),
    ]
    yield "socketpair", no_datagrams
    unix_only = [_statement(_LOAD, _ARGUMENTS), *_unless(_EQUAL, AF_UNIX, [_fail(errno.EACCES)]), *no_datagrams]
    yield "socket", unix_only if may_listen else [_fail(errno.EACCES)]
    address = _ARGUMENTS + 4 * 8
    yield (
        "sendto",
        [
            *(part for word in (0, 4) for part in (_statement(_LOAD, address + word), *_nonzero(errno.EACCES))),
        ],
    )


def _nonzero(number: int) -> list[bytes]:
    return _unless(_EQUAL, 0, [_fail(number)])


def _statement(code: int, value: int, when_true: int = 0, when_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, when_true, when_false, value)


def _fail(number: int) -> bytes:
    return _statement(_RETURN, _ERRNO | number)


def _when(test: int, value: int, body: list[bytes]) -> list[bytes]:
    return [_statement(test, value, 0, len(body)), *body]


def _unless(test: int, value: int, body: list[bytes]) -> list[bytes]:
    return [_statement(test, value, len(body), 0), *body]
