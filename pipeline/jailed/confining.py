"""Confine the calling process: limits on what it takes, and a filter on what it asks of the system.

The filter is Linux's seccomp: sockets, other processes, other programs and every way to change a
file fail with "permission denied"; reading files and what is open already still work. It cannot be
taken off again. Elsewhere, and where a container forbids filters, there are the limits alone.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
import sys
from collections.abc import Iterator, Sequence

MAX_OPEN_FILES = 128
MAX_FILE_BYTES = 1024 * 1024

# Numbers of (x86_64, aarch64); None where the machine does not have the call.
# Sources: linux/arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h.
_CALLS: dict[str, tuple[int | None, int | None]] = {
    # The network, and channels to other processes.
    "socket": (41, 198),
    "socketpair": (53, 199),
    "connect": (42, 203),
    "accept": (43, 202),
    "accept4": (288, 242),
    "bind": (49, 200),
    "listen": (50, 201),
    "sendto": (44, 206),
    "sendmsg": (46, 211),
    "sendmmsg": (307, 269),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    # Other processes.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "setpriority": (141, 140),
    # Files: everything that changes one, and ways to open one past the filter.
    "creat": (85, None),
    "openat2": (437, 437),
    "open_by_handle_at": (304, 265),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "truncate": (76, 45),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "rmdir": (84, None),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "link": (86, None),
    "linkat": (265, 37),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "lchown": (94, None),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "inotify_add_watch": (254, 27),
    "fanotify_init": (300, 262),
    # The system itself.
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "syslog": (103, 116),
    "personality": (135, 92),
}
_PROGRAM_CALLS: dict[str, tuple[int | None, int | None]] = {
    "kill": (62, 129),  # of a program that is no longer wanted
    "execve": (59, 221),
    "execveat": (322, 281),
    "fork": (57, None),
    "vfork": (58, None),
}
_OPEN = (2, None)
_OPENAT = (257, 56)
_CLONE = (56, 220)
_CLONE3 = (435, 435)
_PRLIMIT = (302, 261)
_TGKILL = (234, 131)
_SECCOMP = (317, 277)
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Which number of a call, and AUDIT_ARCH of it."""
_CLONE_THREAD = 0x00010000
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""BPF: load a word, compare (==, >=, &) and jump, return."""
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
"""Offsets into struct seccomp_data; of an argument, the low half comes first."""
_ALLOW = 0x7FFF0000
_FAIL = 0x00050000
_PR_SET_NO_NEW_PRIVS = 38
_SET_MODE_FILTER, _TSYNC = 1, 1
_X32 = 0x40000000


def limit_resources(*, memory_bytes: int) -> None:
    """Bound address space, open files, file sizes, and core dumps. Not to be undone."""
    for kind, value in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_NOFILE, MAX_OPEN_FILES),
        (resource.RLIMIT_FSIZE, MAX_FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(kind)
        limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (limit, limit))


def filter_calls(*, allow_programs: bool) -> str:
    """Install the filter in all threads; returns why there is none, or nothing.

    `allow_programs`: other programs may be started, under the same filter.
    """
    machine = platform.machine()
    if sys.platform != "linux" or machine not in _MACHINES or sys.byteorder != "little":
        return f"not known on {sys.platform} {machine}"
    column, architecture = _MACHINES[machine]
    number = _SECCOMP[column]
    program = b"".join(_filter(column, architecture, allow_programs=allow_programs))
    code = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: how many instructions, and where.
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return f"no_new_privs: {os.strerror(ctypes.get_errno())}"
    if libc.syscall(ctypes.c_long(number), _SET_MODE_FILTER, _TSYNC, header):
        return f"seccomp: {os.strerror(ctypes.get_errno())}"
    return ""


def _filter(column: int, architecture: int, *, allow_programs: bool) -> Iterator[bytes]:
    # Small tests one after the other: each either returns or goes on with the next.
    yield _step(_LOAD, _ARCHITECTURE)
    yield _step(_EQUAL, architecture, when_false=0, when_true=1)
    yield _step(_RETURN, _FAIL | errno.EPERM)
    yield _step(_LOAD, _NUMBER)
    if column == 0:
        yield from _fail_if(_AT_LEAST, _X32)
    calls = _CALLS if allow_programs else _CALLS | _PROGRAM_CALLS
    for numbers in calls.values():
        if numbers[column] is not None:
            yield from _fail_if(_EQUAL, numbers[column])
    # Its flags lie where a filter cannot look; libc then uses clone.
    yield from _fail_if(_EQUAL, _CLONE3[column], error=errno.ENOSYS)
    if not allow_programs:
        yield from _with_argument(_CLONE[column], 0, _unless_bit(_CLONE_THREAD))
    yield from _with_argument(_OPEN[column], 1, _fail_if(_ANY_BIT, _WRITING))
    yield from _with_argument(_OPENAT[column], 2, _fail_if(_ANY_BIT, _WRITING))
    # Limits of its own only.
    not_itself = (_step(_EQUAL, 0, when_true=1), _step(_RETURN, _FAIL | errno.EPERM))
    yield from _with_argument(_PRLIMIT[column], 0, not_itself)
    if not allow_programs:  # a process may abort, but not end another one
        itself = (
            _step(_EQUAL, os.getpid(), when_true=1),
            _step(_RETURN, _FAIL | errno.EPERM),
        )
        yield from _with_argument(_TGKILL[column], 0, itself)
    yield _step(_RETURN, _ALLOW)


def _step(code: int, value: int | None, *, when_true: int = 0, when_false: int = 0) -> bytes:
    assert value is not None
    return struct.pack("<HBBI", code, when_true, when_false, value)


def _fail_if(comparison: int, value: int | None, *, error: int = errno.EPERM) -> Sequence[bytes]:
    return _step(comparison, value, when_false=1), _step(_RETURN, _FAIL | error)


def _unless_bit(bit: int) -> Sequence[bytes]:
    return _step(_ANY_BIT, bit, when_true=1), _step(_RETURN, _FAIL | errno.EPERM)


def _with_argument(number: int | None, argument: int, steps: Sequence[bytes]) -> Iterator[bytes]:
    # For one call: look at an argument, then back at the number.
    if number is None:
        return
    yield _step(_EQUAL, number, when_false=len(steps) + 2)
    yield _step(_LOAD, _ARGUMENTS + 8 * argument)
    yield from steps
    yield _step(_LOAD, _NUMBER)
