"""What a recipe may ask of docker and podman: an image, mounts, and options that leave the machine to its owner."""

import re
from pathlib import PurePosixPath

from moebox.errors import BadInput, suggest_names

# A reference as the OCI distribution specification writes it: [host[:port]/]path[:tag][@digest].
IMAGE = re.compile(
    r"(?:(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?)(?::\d{1,5})?/)?"
    r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?"
    r"(?:@[a-z0-9]+(?:[.+_-][a-z0-9]+)*:[0-9a-fA-F]{32,})?"
)
VOLUME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{1,127}")
MODES = re.compile(r"(ro|rw|z|Z|cached|delegated|consistent|nocopy|r?(shared|slave|private))(,\w+)*")
# Folders that hold the machine's or a person's keys, or the door to the daemon that is root.
KEPT = ("/etc", "/proc", "/sys", "/boot", "/dev", "/run", "/var/run", "/var/lib/docker", "/var/lib/containers")
KEPT_PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib64")
PEOPLE = ("/", "/home", "/root", "/var", "~", "~/")  # whole: what lies below may be named
PRIVATE = frozenset(
    {".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".config", ".netrc", ".password-store", ".local"}
)
MOUNTS = "mount the folder itself, e.g. /data/models"

_SIZE = r"\d+[bkmgtBKMGT]?[bB]?"
_PLAIN = r"[A-Za-z0-9][A-Za-z0-9_.:/@+-]*"
# Option -> the values it takes; "" takes none. None of these gives the container more of the machine than the GPUs.
OPTIONS: dict[str, str] = {
    "--shm-size": _SIZE,
    "--memory": _SIZE,
    "-m": _SIZE,
    "--memory-swap": rf"-1|{_SIZE}",
    "--memory-reservation": _SIZE,
    "--cpus": r"\d+(\.\d+)?",
    "--cpuset-cpus": r"\d+(-\d+)?(,\d+(-\d+)?)*",
    "--cpuset-mems": r"\d+(-\d+)?(,\d+(-\d+)?)*",
    "--pids-limit": r"-?\d+",
    "--ulimit": r"[a-z]+=-?\d+(:-?\d+)?",
    "--ipc": r"host|private|shareable|none",
    "--network": r"host|bridge|none",
    "--net": r"host|bridge|none",
    "--gpus": r"all|\d+|\"?device=[\w:.,-]+\"?|device=[\w:.,-]+",
    "--device": r"nvidia\.com/gpu=[\w:.,-]+|/dev/(nvidia[\w-]*|infiniband(/[\w.-]+)?|dri(/[\w-]+)?|kfd|gdrdrv)",
    "--runtime": r"nvidia|runc|crun",
    "--cap-add": r"(CAP_)?(IPC_LOCK|SYS_NICE|SYS_RESOURCE)",
    "--cap-drop": r"[A-Za-z_]+",
    "--security-opt": r"no-new-privileges(:true|=true)?|label=disable",
    "--user": r"[A-Za-z0-9_-]+(:[A-Za-z0-9_-]+)?",
    "-u": r"[A-Za-z0-9_-]+(:[A-Za-z0-9_-]+)?",
    "--userns": r"keep-id|auto|private",
    "--group-add": r"[A-Za-z0-9_-]+",
    "--workdir": r"/[\w./+-]*",
    "-w": r"/[\w./+-]*",
    "--hostname": r"[A-Za-z0-9][A-Za-z0-9.-]*",
    "-h": r"[A-Za-z0-9][A-Za-z0-9.-]*",
    "--label": rf"{_PLAIN}(=[\w .:/@+-]*)?",
    "--platform": r"linux/[\w/]+",
    "--pull": r"always|missing|never|newer",
    "--restart": r"no|always|unless-stopped|on-failure(:\d+)?",
    "--stop-timeout": r"\d+",
    "--tmpfs": r"/[\w./-]+(:[\w=,]+)?",
    "--log-driver": r"json-file|local|journald|none|k8s-file",
    "--log-opt": r"(max-size|max-file|compress)=\w+",
    "--oom-score-adj": r"-?\d+",
    "--sysctl": r"net\.[\w.]+=[\w ]+",
    "--init": "",
    "--read-only": "",
    "--oom-kill-disable": "",
}
RENDER = "`moebox render` writes a script: an option that hands over the machine is added there by its owner"


def check_image(text: str) -> None:
    """A reference that no tool takes for an option or a path."""
    if len(text) > 512 or not IMAGE.fullmatch(text):
        raise BadInput(f"runtime.image: {text!r} is no image", hint='e.g. "vllm/vllm-openai:v0.32.0"')


def check_host_path(path: str, text: str) -> None:
    """A folder of this machine, or a volume's name, that a container may see."""
    if not text.startswith(("/", "~/")):
        if not VOLUME.fullmatch(text):
            raise BadInput(f"{path}: {text!r} is no folder", hint="begin with / or ~/, or name a volume")
        return
    _plain(path, text)
    folder = PurePosixPath(text)
    whole = str(folder)
    if _machines_own(folder) and not whole.startswith("/dev/shm"):  # noqa: S108
        raise BadInput(f"{path}: {text} belongs to the machine, not into a container", hint=MOUNTS)
    if _persons_own(folder):
        raise BadInput(f"{path}: {text} holds more than weights", hint=MOUNTS)
    if whole.endswith(".sock"):
        raise BadInput(f"{path}: {text} is a door, not a folder of weights", hint=MOUNTS)


def _machines_own(folder: PurePosixPath) -> bool:
    return any(map(folder.is_relative_to, (*KEPT, *KEPT_PROGRAMS)))


def _persons_own(folder: PurePosixPath) -> bool:
    """A whole home folder, or one that keys and settings lie in."""
    home = len(folder.parts) == 3 and folder.parts[1] == "home"
    return home or str(folder) in PEOPLE or not PRIVATE.isdisjoint(folder.parts)


def check_container_path(path: str, text: str) -> None:
    """A path in the container, with a mode or without."""
    folder, _, mode = text.partition(":")
    if not folder.startswith("/") or folder == "/":
        raise BadInput(f"{path}: {text!r} is no path in the container", hint='e.g. "/models:ro"')
    _plain(path, folder)
    if mode and not MODES.fullmatch(mode):
        raise BadInput(f"{path}: {mode!r} is no mode of a mount", hint="ro or rw")


def _plain(path: str, text: str) -> None:
    """docker splits a mount at its colons, and a path that climbs is not the one that is read."""
    if ":" in text or ".." in PurePosixPath(text).parts:
        raise BadInput(f"{path}: {text!r} holds a colon or ..", hint=MOUNTS)


def _meant(name: str) -> str:
    """The option that `name` resembles, or where options of one's own go."""
    near = suggest_names(name, [option for option in OPTIONS if option.startswith("--")])
    return near if name.startswith("-") and "?" in near else RENDER


def parse_options(words: tuple[str, ...]) -> list[tuple[str, str]]:
    """The options with their values; BadInput for one that a recipe may not ask for."""
    found: list[tuple[str, str]] = []
    rest = list(words)
    while rest:
        name, joined, value = rest.pop(0).partition("=")
        if name not in OPTIONS:
            raise BadInput(f"runtime.options: {name!r} is not taken from a recipe", hint=_meant(name))
        takes = OPTIONS[name]
        if takes and not joined:
            value = rest.pop(0) if rest else ""
        if not re.fullmatch(takes, value):
            raise BadInput(f"runtime.options: {name} does not take {value!r} from a recipe", hint=RENDER)
        found.append((name, value))
    return found
