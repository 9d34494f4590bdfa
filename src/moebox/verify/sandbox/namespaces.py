"""The strongest jail: namespaces with a root that holds Python's library, read-only, and an empty /tmp."""

import os
import sys

from moebox.verify.sandbox import kernel

TEMP = "/tmp"  # noqa: S108  (the jail's own, a moment old and empty)
# Flags that a mount made by somebody else keeps; a user namespace may not take them away when it makes it read-only.
_KEPT = {os.ST_NOSUID: kernel.MS_NOSUID, os.ST_NODEV: kernel.MS_NODEV, os.ST_NOEXEC: 8, os.ST_NOATIME: 1024}
_KEPT[os.ST_NODIRATIME] = 2048


def enter(folder: str, memory_bytes: int) -> None:
    """Leave the host behind; the next fork is process 1 of its own world. OSError where that is not allowed."""
    uid, gid = os.geteuid(), os.getegid()
    kernel.unshare(
        kernel.CLONE_NEWUSER
        | kernel.CLONE_NEWNS
        | kernel.CLONE_NEWNET
        | kernel.CLONE_NEWPID
        | kernel.CLONE_NEWIPC
        | kernel.CLONE_NEWUTS
        | kernel.CLONE_NEWCGROUP
    )
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"0 {uid} 1")
    _write("/proc/self/gid_map", f"0 {gid} 1")
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    size = f"size={memory_bytes},mode=755"
    kernel.mount("tmpfs", folder, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, size)
    for path in library():
        _show(path, folder + path)
    os.makedirs(folder + TEMP, exist_ok=True)
    kernel.mount("tmpfs", folder + TEMP, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, f"size={memory_bytes},mode=777")
    kernel.make_root(folder)
    kernel.mount("none", "/", flags=kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_RDONLY | kernel.MS_NOSUID)
    os.chdir(TEMP)


def library() -> list[str]:
    """Folders that the running Python may need after it has started."""
    places = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", f"{sys.base_prefix}/lib", f"{sys.base_prefix}/lib64"]
    found = [place for place in dict.fromkeys(places) if os.path.isdir(place)]
    return [place for place in found if not any(place.startswith(f"{other}/") for other in found)]


def _show(path: str, at: str) -> None:
    """Bind `path` read-only at `at`."""
    os.makedirs(at, exist_ok=True)
    kernel.mount(path, at, flags=kernel.MS_BIND)
    had = os.statvfs(at).f_flag
    kept = sum(flag for seen, flag in _KEPT.items() if had & seen)
    kernel.mount("none", at, flags=kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_RDONLY | kept)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
