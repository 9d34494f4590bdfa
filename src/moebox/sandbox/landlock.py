"""The second jail: Landlock, the kernel's rules that a process lays on itself."""

import ctypes
import os

from moebox.sandbox import syscalls
from moebox.sandbox.namespaces import library_folders

# include/uapi/linux/landlock.h; the system call numbers are the same on every architecture
_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446
_EXECUTE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 2, 1 << 3
_ALL_FILES = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}  # by ABI version
_TCP = 0b11  # bind and connect, since ABI 4
_SCOPES = 0b11  # abstract sockets and signals, since ABI 6


def enter_landlock(folder: str) -> None:
    """From here on: Python's library to read, `folder` to use, no more. OSError where there is no Landlock."""
    version = syscalls.check_result(syscalls.libc.syscall(_CREATE, None, ctypes.c_size_t(0), 1), "landlock")
    files = _ALL_FILES[max(known for known in _ALL_FILES if known <= version)]
    rules = [files] + ([_TCP] if version >= 4 else []) + ([_SCOPES] if version >= 6 else [])
    attributes = (ctypes.c_uint64 * len(rules))(*rules)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    ruleset = syscalls.check_result(syscalls.libc.syscall(_CREATE, attributes, size, 0), "landlock ruleset")
    for path in library_folders():
        _allow_path(ruleset, path, _EXECUTE | _READ_FILE | _READ_DIR)
    _allow_path(ruleset, folder, files & ~_EXECUTE)
    syscalls.check_result(syscalls.libc.syscall(_RESTRICT, ruleset, 0), "landlock restrict")
    os.close(ruleset)
    os.chdir(folder)


class _Beneath(ctypes.Structure):
    """struct landlock_path_beneath_attr."""

    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def _allow_path(ruleset: int, path: str, access: int) -> None:
    where = os.open(path, os.O_PATH | os.O_CLOEXEC)
    rule = _Beneath(access, where)
    syscalls.check_result(syscalls.libc.syscall(_ADD_RULE, ruleset, 1, ctypes.byref(rule), 0), f"landlock {path}")
    os.close(where)
