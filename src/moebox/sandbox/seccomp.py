"""The lock on every jail: a list of allowed system calls; all others fail with "not permitted".

What a computing Python needs is on the list. Sockets, new processes, signals to others, tracing, mounting, namespaces,
io_uring and everything the kernel may add later are not.
"""

import ctypes
import errno
import platform
import struct
from collections.abc import Iterator

from moebox.sandbox import walls

# name: (x86_64, aarch64); from the kernel's asm/unistd_64.h and asm-generic/unistd.h
# fmt: off
_COMPUTE: dict[str, tuple[int, int | None]] = {
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67), "pwrite64": (18, 68),
    "close": (3, 57), "lseek": (8, 62), "fstat": (5, 80), "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215),
    "mremap": (25, 216), "madvise": (28, 233), "brk": (12, 214), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139), "sigaltstack": (131, 132), "futex": (202, 98), "sched_yield": (24, 124),
    "sched_getaffinity": (204, 123), "nanosleep": (35, 101), "clock_nanosleep": (230, 115), "clock_gettime": (228, 113),
    "clock_getres": (229, 114), "gettimeofday": (96, 169), "time": (201, None), "getrandom": (318, 278),
    "exit": (60, 93), "exit_group": (231, 94), "getpid": (39, 172), "getppid": (110, 173), "gettid": (186, 178),
    "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177), "getpgrp": (111, None),
    "getrusage": (98, 165), "times": (100, 153), "restart_syscall": (219, 128), "poll": (7, None), "ppoll": (271, 73),
    "select": (23, None), "pselect6": (270, 72), "epoll_create1": (291, 20), "epoll_ctl": (233, 21),
    "epoll_wait": (232, None), "epoll_pwait": (281, 22), "eventfd2": (290, 19), "sysinfo": (99, 179),
    "uname": (63, 160), "getcwd": (79, 17), "membarrier": (324, 283), "rseq": (334, 293),
    "set_robust_list": (273, 99), "set_tid_address": (218, 96), "get_robust_list": (274, 100),
    "arch_prctl": (158, None), "dup": (32, 23), "dup2": (33, None), "dup3": (292, 24), "pipe": (22, None),
    "pipe2": (293, 59), "getrlimit": (97, 163), "capget": (125, 90),
}
_FILES: dict[str, tuple[int, int | None]] = {
    "open": (2, None), "openat": (257, 56), "stat": (4, None), "lstat": (6, None), "newfstatat": (262, 79),
    "statx": (332, 291), "access": (21, None), "faccessat": (269, 48), "faccessat2": (439, 439),
    "readlink": (89, None), "readlinkat": (267, 78), "getdents64": (217, 61), "unlink": (87, None),
    "unlinkat": (263, 35), "mkdir": (83, None), "mkdirat": (258, 34), "rmdir": (84, None), "rename": (82, None),
    "renameat": (264, 38), "renameat2": (316, 276), "ftruncate": (77, 46), "truncate": (76, 45), "chdir": (80, 49),
    "fsync": (74, 82), "fdatasync": (75, 83), "statfs": (137, 43), "fstatfs": (138, 44), "umask": (95, 166),
}
# fmt: on
_CLONE, _CLONE3, _TGKILL = (56, 220), (435, 435), (234, 131)
# (numbers, index of an argument, its allowed values): no F_SETOWN, no TIOCSTI, no change of the parent-death signal
_GUARDED: tuple[tuple[tuple[int, int], int, tuple[int, ...]], ...] = (
    ((72, 25), 1, (0, 1, 2, 3, 4, 1030)),  # fcntl: F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC
    ((16, 29), 1, (0x5401, 0x5413, 0x541B, 0x5450, 0x5451)),  # ioctl: TCGETS, TIOCGWINSZ, FIONREAD, FIONCLEX, FIOCLEX
    ((157, 167), 0, (15, 16, 0x53564D41)),  # prctl: PR_SET_NAME, PR_GET_NAME, PR_SET_VMA
)
_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # include/uapi/linux/audit.h
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06  # BPF instructions
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000


class SockFprog(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))


def enter_seccomp(*, allow_files: bool, pid: int) -> None:
    """Lock this process; it cannot be undone. `allow_files`: paths may be opened, if another wall guards them."""
    machine = platform.machine()
    if machine not in _AUDIT:
        raise OSError(errno.ENOSYS, f"no list of system calls for {machine}")
    code = b"".join(_filter_program(machine, allow_files, pid))
    buffer = ctypes.create_string_buffer(code, len(code))
    walls.prctl(walls.PR_SET_NO_NEW_PRIVS, 1)
    program = SockFprog(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    mode = ctypes.c_ulong(2)  # SECCOMP_MODE_FILTER
    result = walls.libc.prctl(walls.PR_SET_SECCOMP, mode, ctypes.byref(program), 0, 0)
    walls.check_result(result, "seccomp")


def _filter_program(machine: str, allow_files: bool, pid: int) -> Iterator[bytes]:
    """Yield the filter's instructions; a jump of (a, b) skips a lines if true, b if not.

    Calls of x86_64's second table (x32, from 0x40000000 on) equal no number on the lists, so they are refused as well.
    """
    column = 0 if machine == "x86_64" else 1
    allow, refuse = _instruction(_RETURN, _ALLOW), _instruction(_RETURN, _ERROR | errno.EPERM)
    no_such_call = _instruction(_RETURN, _ERROR | errno.ENOSYS)
    yield _instruction(_LOAD, 4)  # seccomp_data.arch
    yield _instruction(_EQUAL, _AUDIT[machine], 1, 0)
    yield _instruction(_RETURN, _KILL)
    yield _instruction(_LOAD, 0)  # seccomp_data.nr
    yield from _if_call(_CLONE3[column], [no_such_call])  # the C library then uses clone
    is_thread = [_load_argument(0), _instruction(_ANY_BIT, walls.CLONE_THREAD, 0, 1), allow, refuse]
    yield from _if_call(_CLONE[column], is_thread)
    for numbers, index, values in (*_GUARDED, (_TGKILL, 0, (pid,))):
        allowed = [part for value in values for part in (_instruction(_EQUAL, value, 0, 1), allow)]
        yield from _if_call(numbers[column], [_load_argument(index), *allowed, refuse])
    for pair in (*_COMPUTE.values(), *(_FILES.values() if allow_files else ())):
        number = pair[column]
        if number is not None:
            yield from _if_call(number, [allow])
    yield refuse


def _if_call(number: int, then: list[bytes]) -> list[bytes]:
    return [_instruction(_EQUAL, number, 0, len(then)), *then]


def _load_argument(index: int) -> bytes:
    return _instruction(_LOAD, 16 + 8 * index)  # the low half of seccomp_data.args[index]


def _instruction(code: int, value: int, true: int = 0, false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, true, false, value)
