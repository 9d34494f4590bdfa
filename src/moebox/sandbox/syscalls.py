"""The few Linux calls that Python's standard library does not offer, through ctypes."""

import ctypes
import os
import platform

libc = ctypes.CDLL(None, use_errno=True)

# include/uapi/linux/sched.h
CLONE_THREAD = 0x00010000
CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
# include/uapi/linux/mount.h
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
# include/uapi/linux/prctl.h
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 24, 38
LAST_CAPABILITY = 63  # capability sets are 64 bits wide; dropping one that does not exist fails harmlessly
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}


def check_result(result: int, what: str) -> int:
    """`result`, or OSError saying what failed."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def prctl(option: int, value: int = 0) -> None:
    """prctl(2) with one argument."""
    check_result(libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl {option}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """mount(2)."""
    words = (source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), options.encode() or None)
    check_result(libc.mount(*words), f"mount {target}")


def unshare(flags: int) -> None:
    """unshare(2)."""
    check_result(libc.unshare(flags), "unshare")


def make_root(path: str) -> None:
    """Make `path` the root of this mount namespace, and let go of the old one."""
    os.chdir(path)
    check_result(libc.syscall(PIVOT_ROOT[platform.machine()], b".", b"."), "pivot_root")
    check_result(libc.umount2(b".", MNT_DETACH), "umount2")
    os.chdir("/")


def drop_capabilities() -> None:
    """Give up every capability for good, the bounding set included."""
    for number in range(LAST_CAPABILITY + 1):
        libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(number), 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    check_result(libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")
