"""Namespaces and Landlock: the walls around a jail. Linux calls that Python's standard library lacks, by ctypes.

Namespaces are the stronger wall: a root file system that holds Python's library, read-only, and an empty /tmp. Landlock
is the kernel's access rules that a process sets for itself.
"""

import ctypes
import os
import platform
import sys

libc = ctypes.CDLL(None, use_errno=True)
JAIL_TEMP = "/tmp"  # noqa: S108  (the jail's own, new and empty)

# include/uapi/linux/sched.h
CLONE_THREAD = 0x00010000
CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
# include/uapi/linux/mount.h
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
# Flags of another user's mount; a user namespace may not remove them when it makes the mount read-only.
_KEPT_FLAGS = {os.ST_NOSUID: MS_NOSUID, os.ST_NODEV: MS_NODEV, os.ST_NOEXEC: 8, os.ST_NOATIME: 1024}
_KEPT_FLAGS[os.ST_NODIRATIME] = 2048
# include/uapi/linux/prctl.h
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 24, 38
LAST_CAPABILITY = 63  # capability sets are 64 bits wide; dropping one that does not exist fails harmlessly
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
# include/uapi/linux/landlock.h; the system call numbers are the same on every architecture
_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446
_EXECUTE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 2, 1 << 3
_ALL_FILES = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}  # by ABI version
_TCP = 0b11  # bind and connect, since ABI 4
_SCOPES = 0b11  # abstract sockets and signals, since ABI 6


def check_result(result: int, what: str) -> int:
    """Return `result`, or raise OSError that names the failed call."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def prctl(option: int, value: int = 0) -> None:
    check_result(libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl {option}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    texts = (source.encode(), target.encode(), kind.encode() or None)
    check_result(libc.mount(*texts, ctypes.c_ulong(flags), options.encode() or None), f"mount {target}")


def drop_capabilities() -> None:
    """Give up every capability for good, the bounding set included."""
    for number in range(LAST_CAPABILITY + 1):
        libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(number), 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    check_result(libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


def library_folders() -> list[str]:
    """Return the folders that the running Python may need after it has started."""
    places = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", f"{sys.base_prefix}/lib", f"{sys.base_prefix}/lib64"]
    found = list(filter(os.path.isdir, dict.fromkeys(places)))
    return [place for place in found if not any(place.startswith(f"{other}/") for other in found)]


def enter_namespaces(folder: str, max_bytes: int, max_entries: int) -> None:
    """Leave the host's namespaces; the next fork is process 1 of its own. Raise OSError if that is not allowed.

    Both file systems of the jail have quotas that the kernel enforces (tmpfs(5)).
    """
    maps = {"setgroups": "deny", "uid_map": f"0 {os.geteuid()} 1", "gid_map": f"0 {os.getegid()} 1"}
    spaces = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP
    check_result(libc.unshare(spaces), "unshare")
    for name, text in maps.items():
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    quota = f"size={max_bytes},nr_inodes={max_entries + 1}"  # the file system's own folder is one
    flags = MS_NOSUID | MS_NODEV
    mount("tmpfs", folder, "tmpfs", flags, f"{quota},mode=755")
    for path in library_folders():
        os.makedirs(folder + path, exist_ok=True)
        mount(path, folder + path, flags=MS_BIND)
        had = os.statvfs(folder + path).f_flag
        kept = sum(flag for seen, flag in _KEPT_FLAGS.items() if had & seen)
        mount("none", folder + path, flags=MS_BIND | MS_REMOUNT | MS_RDONLY | kept)
    os.makedirs(folder + JAIL_TEMP, exist_ok=True)
    mount("tmpfs", folder + JAIL_TEMP, "tmpfs", flags, f"{quota},mode=777")
    os.chdir(folder)
    check_result(libc.syscall(PIVOT_ROOT[platform.machine()], b".", b"."), "pivot_root")
    check_result(libc.umount2(b".", MNT_DETACH), "umount2")
    os.chdir("/")
    mount("none", "/", flags=MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID)
    os.chdir(JAIL_TEMP)


class PathBeneath(ctypes.Structure):
    """struct landlock_path_beneath_attr."""

    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def enter_landlock(folder: str) -> None:
    """Allow this process Python's library to read and `folder` to use. Raise OSError if there is no Landlock."""
    version = check_result(libc.syscall(_CREATE, None, ctypes.c_size_t(0), 1), "landlock")
    files = _ALL_FILES[max(known for known in _ALL_FILES if known <= version)]
    rules = [files] + ([_TCP] if version >= 4 else []) + ([_SCOPES] if version >= 6 else [])
    attributes = (ctypes.c_uint64 * len(rules))(*rules)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    ruleset = check_result(libc.syscall(_CREATE, attributes, size, 0), "landlock ruleset")
    access = dict.fromkeys(library_folders(), _EXECUTE | _READ_FILE | _READ_DIR)
    for path, allowed in {**access, folder: files & ~_EXECUTE}.items():
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = PathBeneath(allowed, parent)
        check_result(libc.syscall(_ADD_RULE, ruleset, 1, ctypes.byref(rule), 0), f"landlock {path}")
        os.close(parent)
    check_result(libc.syscall(_RESTRICT, ruleset, 0), "landlock restrict")
    os.close(ruleset)
    os.chdir(folder)
