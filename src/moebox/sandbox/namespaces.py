"""The strongest jail: namespaces with a root that holds Python's library, read-only, and an empty /tmp."""

import os
import sys

from moebox.sandbox import syscalls

JAIL_TEMP = "/tmp"  # noqa: S108  (the jail's own, a moment old and empty)
# Flags that a mount made by somebody else keeps; a user namespace may not take them away when it makes it read-only.
_KEPT = {os.ST_NOSUID: syscalls.MS_NOSUID, os.ST_NODEV: syscalls.MS_NODEV, os.ST_NOEXEC: 8, os.ST_NOATIME: 1024}
_KEPT[os.ST_NODIRATIME] = 2048


def enter_namespaces(folder: str, max_bytes: int, max_entries: int) -> None:
    """Leave the host behind; the next fork is process 1 of its own world. OSError where that is not allowed.

    Both file systems of the jail have quotas that the kernel holds (tmpfs(5)).
    """
    uid, gid = os.geteuid(), os.getegid()
    syscalls.unshare(
        syscalls.CLONE_NEWUSER
        | syscalls.CLONE_NEWNS
        | syscalls.CLONE_NEWNET
        | syscalls.CLONE_NEWPID
        | syscalls.CLONE_NEWIPC
        | syscalls.CLONE_NEWUTS
        | syscalls.CLONE_NEWCGROUP
    )
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"0 {uid} 1")
    _write("/proc/self/gid_map", f"0 {gid} 1")
    syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
    quota = f"size={max_bytes},nr_inodes={max_entries + 1}"  # the file system's own folder is one
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
    syscalls.mount("tmpfs", folder, "tmpfs", flags, f"{quota},mode=755")
    for path in library_folders():
        _bind_read_only(path, folder + path)
    os.makedirs(folder + JAIL_TEMP, exist_ok=True)
    syscalls.mount("tmpfs", folder + JAIL_TEMP, "tmpfs", flags, f"{quota},mode=777")
    syscalls.make_root(folder)
    syscalls.mount("none", "/", flags=syscalls.MS_BIND | syscalls.MS_REMOUNT | syscalls.MS_RDONLY | syscalls.MS_NOSUID)
    os.chdir(JAIL_TEMP)


def library_folders() -> list[str]:
    """Folders that the running Python may need after it has started."""
    places = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", f"{sys.base_prefix}/lib", f"{sys.base_prefix}/lib64"]
    found = [place for place in dict.fromkeys(places) if os.path.isdir(place)]
    return [place for place in found if not any(place.startswith(f"{other}/") for other in found)]


def _bind_read_only(path: str, at: str) -> None:
    """Bind `path` read-only at `at`."""
    os.makedirs(at, exist_ok=True)
    syscalls.mount(path, at, flags=syscalls.MS_BIND)
    had = os.statvfs(at).f_flag
    kept = sum(flag for seen, flag in _KEPT.items() if had & seen)
    syscalls.mount("none", at, flags=syscalls.MS_BIND | syscalls.MS_REMOUNT | syscalls.MS_RDONLY | kept)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
