"""`moebox fetch`: only what is needed, resumed, verified, and never a damaged file."""

import contextlib
import fcntl
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.checkpoint import tiny
from tests.hub.conftest import Moebox, small_repo
from tests.hub.server import COMMIT, HubServer, Repo, wait_until
from tests.sampling import one_in

TRIES = 200 if os.environ.get("HYPOTHESIS_PROFILE") == "explore" else 40
# Fetches a repository again and again into new folders, and compares every file that was accepted.
LOOP = """
import json, os, sys
from pathlib import Path
from moebox.errors import MoeboxError
from moebox.hub import fetch
from moebox.hub.client import list_repository
from tests.sampling import one_in

truth = {path.name: path.read_bytes() for path in Path(sys.argv[1]).iterdir()}
result = {"complete": 0, "refused": 0, "damaged": 0, "files": 0}
listing = list_repository("org/Small")
wanted = [file for file in listing.files if file.path != "README.md"]
fetch.PAUSE_S = 0.001
for number in range(int(sys.argv[2])):
    os.environ["HF_HUB_CACHE"] = f"{sys.argv[3]}/{number}"
    try:
        fetch.Fetcher(listing, advance=lambda size: None).fetch_all(wanted, at_once=4)
        result["complete"] += 1
    except MoeboxError:
        result["refused"] += 1
    for link in Path(os.environ["HF_HUB_CACHE"]).glob("*/snapshots/*/*"):
        result["files"] += 1
        result["damaged"] += link.read_bytes() != truth[link.name]
    for blob in Path(os.environ["HF_HUB_CACHE"]).glob("*/blobs/*"):
        result["damaged"] += not blob.name.endswith("part") and blob.read_bytes() not in truth.values()
print(json.dumps(result))
"""


def snapshot(tmp_path: Path) -> Path:
    return tmp_path / "hf/hub/models--org--Small/snapshots" / COMMIT


def test_only_needed_files_arrive_where_engines_look(hub: HubServer, moebox: Moebox, tmp_path: Path):
    """Shards of the index, tokenizer and settings; the library finds them by the repository's name without network."""
    repo = hub.repos["org/Small"] = small_repo(tmp_path / "m")
    extra = {"pytorch_model.bin": b"x" * 99, "x.png": b"x", "consolidated.safetensors": b"x" * 99, "evil.py": b"raise"}
    repo.files |= extra | {"original/model.safetensors": b"x" * 99, "Small-Q8_0.gguf": b"x" * 99}
    moebox("fetch", "org/Small").good()
    names = {path.name for path in snapshot(tmp_path).iterdir()}
    assert names == {name for name in small_repo(tmp_path / "n").files if name != "README.md"}
    code = "import huggingface_hub as h; print(h.hf_hub_download('org/Small', 'config.json', local_files_only=True))"
    env = os.environ | {"HF_HOME": str(tmp_path / "hf")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert Path(done.stdout.strip()).read_bytes() == repo.files["config.json"]


def test_check_repairs_only_damaged_files(hub: HubServer, moebox: Moebox, tmp_path: Path):
    """A complete download is not read again; --check finds a flipped byte, and only that file is fetched."""
    repo = hub.repos["org/Small"] = small_repo(tmp_path / "m", padding=50_000)
    moebox("fetch", "org/Small").good()
    assert moebox("fetch", "org/Small", "--json").good().document["fetched"] == []
    name = "model-00002-of-00003.safetensors"
    blob = (snapshot(tmp_path) / name).resolve()
    data = bytearray(blob.read_bytes())
    data[-5] ^= 1
    blob.write_bytes(data)
    assert moebox("fetch", "org/Small", "--check", "--json").good().document["fetched"] == [name]
    assert (snapshot(tmp_path) / name).read_bytes() == repo.files[name]


def largest_part(blobs: Path) -> int:
    """Bytes of the largest file under way; smaller ones may be complete, and renamed, at any moment."""
    sizes = [0]
    for path in blobs.glob("*-part"):
        with contextlib.suppress(FileNotFoundError):
            sizes.append(path.stat().st_size)
    return max(sizes)


def test_a_killed_download_is_resumed(hub: HubServer, moebox: Moebox, tmp_path: Path):
    """After SIGKILL in the middle, the next call fetches the rest: less than 1 % arrives twice."""
    size = 8_000_000
    hub.repos["org/Small"] = small_repo(tmp_path / "m", shards=1, padding=size)
    hub.stall_s = 30
    hub.choose_fault = lambda path, start: "stall" if path.endswith(".safetensors") else ""
    env = os.environ | {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "0"}
    env |= {"HF_HUB_DOWNLOAD_TIMEOUT": "60", "MOEBOX_STATE": str(tmp_path / "state")}
    argv = [sys.executable, "-m", "moebox", "fetch", "org/Small"]
    first = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    blobs = tmp_path / "hf/hub/models--org--Small/blobs"
    arrived = wait_until(lambda: largest_part(blobs) > 0.3 * size, 60)
    first.kill()
    first.wait()
    assert arrived
    kept = largest_part(blobs)
    hub.choose_fault = lambda path, start: ""
    before = hub.sent
    moebox("fetch", "org/Small").good()
    assert hub.sent - before < size - kept + 0.01 * size


def test_no_damaged_file_is_accepted(hub: HubServer, tmp_path: Path):
    """Many downloads from a Hub that cuts, flips, lies about lengths, redirects and sends HTML: 0 damaged files."""
    hub.repos["org/Small"] = small_repo(tmp_path / "m", shards=2, padding=3_000)
    truth = tmp_path / "truth"
    truth.mkdir()
    for name, data in hub.repos["org/Small"].files.items():
        (truth / name).write_bytes(data)
    hub.stall_s = 0.02
    hub.misbehave(seed=7)
    env = os.environ | {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HUB_DOWNLOAD_TIMEOUT": "10"}
    argv = [sys.executable, "-c", LOOP, str(truth), str(TRIES), str(tmp_path / "caches")]
    done = subprocess.run(argv, capture_output=True, text=True, env=env, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["complete"] + result["refused"] == TRIES
    assert result["damaged"] == 0, result
    assert result["complete"] > TRIES / 2, result
    assert result["files"] >= 4 * result["complete"]


def test_a_stalled_server_is_given_up(hub: HubServer, moebox: Moebox, tmp_path: Path):
    """A server that stops sending is asked again from there, and the file is whole."""
    repo = hub.repos["org/Small"] = small_repo(tmp_path / "m", shards=1, padding=50_000)
    hub.choose_fault = lambda path, start: "stall" if path.endswith(".safetensors") and not start else ""
    moebox("fetch", "org/Small", HF_HUB_DOWNLOAD_TIMEOUT="1").good()
    name = "model-00001-of-00001.safetensors"
    assert (snapshot(tmp_path) / name).read_bytes() == repo.files[name]


@pytest.mark.parametrize("fault", one_in(3, ["500", "flip", "html", "loop", "elsewhere", "wrong range", "longer"]))
def test_a_file_that_never_arrives_is_one_line(hub: HubServer, moebox: Moebox, tmp_path: Path, fault: str):
    """The line names the file; nothing under that name is left."""
    hub.repos["org/Small"] = small_repo(tmp_path / "m", shards=1, padding=2_000)
    hub.choose_fault = lambda path, start: fault if path.endswith(".safetensors") else ""
    done = moebox("fetch", "org/Small", "--retries", "1")
    assert done.code == 3
    assert "org/Small: model-00001-of-00001.safetensors" in done.err.splitlines()[0]
    assert not (snapshot(tmp_path) / "model-00001-of-00001.safetensors").exists()


def test_room_on_the_disk_is_checked_first(hub: HubServer, moebox: Moebox, tmp_path: Path):
    """A file larger than the disk: both sizes in one line, before a byte is fetched. A limit of the shell: one line."""
    hub.repos["org/Small"] = small_repo(tmp_path / "m", shards=1, padding=3_000_000)
    huge = {"rfilename": "model.safetensors", "size": 10**18, "lfs": {"sha256": "a" * 64, "size": 10**18}}
    hub.repos["org/Small"].listed = {"siblings": [huge | {"lfs": huge["lfs"] | {"pointerSize": 1}}]}
    done = moebox("fetch", "org/Small")
    assert done.code == 3
    assert "more on the disk" in done.err
    hub.repos["org/Small"].listed = {}
    env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "0"}
    limited = subprocess.run(
        ["bash", "-c", f"ulimit -f 1000; exec {sys.executable} -m moebox fetch org/Small"],
        capture_output=True,
        text=True,
        env=os.environ | env,
        check=False,
    )
    assert limited.returncode == 3, limited.stderr
    assert limited.stderr.startswith("error: org/Small: File too large")


def test_a_gguf_recipe_fetches_its_parts_only(hub: HubServer, moebox: Moebox, tmp_path: Path):
    """ORG/REPO:QUANT is all parts of that quantisation; a name that fits none lists what there is."""
    data = tiny.gguf(tmp_path / "a.gguf", tiny.DEEPSEEK2, tiny.TENSORS).read_bytes()
    parts = {f"Q8_0/T-Q8_0-0000{n}-of-00002.gguf": data + bytes([n]) for n in (1, 2)}
    hub.repos["org/Small"] = Repo(parts | {"T-IQ3_K.gguf": data, "README.md": b"x"})
    fetched = moebox("fetch", "org/Small:Q8_0", "--json").good().document["fetched"]
    assert sorted(fetched) == sorted(parts)
    refused = moebox("fetch", "org/Small:Q2_K")
    assert refused.code == 2
    assert "0 GGUF files are called Q2_K" in refused.err


def test_a_gated_repository_is_not_tried_again(hub: HubServer, moebox: Moebox, tmp_path: Path):
    """One line that names where to accept the terms, after one request."""
    hub.repos["org/Small"] = small_repo(tmp_path / "m")
    hub.repos["org/Small"].gated = True
    done = moebox("fetch", "org/Small")
    assert done.code == 3
    assert "gated; your account has no access" in done.err
    assert len([path for path, _, _ in hub.requests if "/resolve/" in path]) == 1


AS_ANOTHER_USER = """
import os, sys
from moebox.errors import MoeboxError
from moebox.hub.client import list_repository, read_remote
from moebox.hub.fetch import Fetcher

listing = list_repository("org/Small")
wanted = [file for file in listing.files if file.path.endswith(".safetensors")]
read_remote(listing, wanted[0], 0, 8)  # imports what the other user may not be able to read
os.setgroups([]), os.setgid(int(sys.argv[1])), os.setuid(65534)
try:
    Fetcher(listing, advance=lambda size: None, retries=0).fetch_all(wanted, at_once=1)
    print("fetched")
except MoeboxError as problem:
    print(problem)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
@pytest.mark.parametrize(
    ("group", "mode", "answer"),
    one_in(
        2,
        [(4711, 0o664, "fetched"), (4711, 0o644, "fetched"), (65534, 0o664, "org/Small: Permission denied")],
        unpack=True,
    ),
    ids=["group", "part of an older moebox", "not in the group"],
)
def test_users_of_a_shared_cache_see_each_others_locks(
    hub: HubServer, tmp_path: Path, group: int, mode: int, answer: str
):
    """While one user fetches a file, another is refused in one line; later the group can go on with the part."""
    repo = hub.repos["org/Small"] = small_repo(tmp_path / "m", shards=1, padding=50_000)
    name = "model-00001-of-00001.safetensors"
    with tempfile.TemporaryDirectory(dir="/tmp") as place:  # every user may enter it
        os.chmod(place, 0o755)  # noqa: S103
        cache, state = Path(place, "hub"), Path(place, "state")
        for folder in (cache, state):
            folder.mkdir()
        os.chown(cache, 0, 4711)
        os.chmod(cache, 0o2775)  # noqa: S103
        os.chmod(state, 0o777)  # noqa: S103
        env = os.environ | {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "0"}
        argv = [sys.executable, "-m", "moebox", "fetch", "org/Small", "--retries", "0"]
        hub.choose_fault = lambda path, start: "cut" if path == name else ""
        own = env | {"MOEBOX_STATE": str(tmp_path / "state")}
        subprocess.run(argv, env=own, preexec_fn=lambda: os.umask(0o077), capture_output=True, check=False)
        hub.choose_fault = lambda path, start: ""
        (part,) = cache.glob(f"*/blobs/{hashlib.sha256(repo.files[name]).hexdigest()}.moebox-part")

        def fetch_as_another() -> str:
            words = [sys.executable, "-c", AS_ANOTHER_USER, str(group)]
            other = env | {"MOEBOX_STATE": str(state / "other"), "HOME": place}
            done = subprocess.run(words, env=other, capture_output=True, text=True, check=False)
            assert not done.stderr, done.stderr[-2000:]
            return done.stdout.strip()

        with open(part, "rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            assert fetch_as_another() == f"{name}: a process of user 0 is fetching it"
        assert part.stat().st_mode & 0o777 == 0o664
        part.chmod(mode)
        assert fetch_as_another() == answer
        links = [link.read_bytes() for link in cache.glob("*/snapshots/*/*.safetensors")]
        assert links == [repo.files[name]] * (answer == "fetched")


def test_a_folder_without_weights_is_not_called_complete(moebox: Moebox, tmp_path: Path):
    """A plan from config.json alone notes that the weights are missing; fetch must not state that they are there."""
    made, recipe = tiny.folder(tmp_path / "odd", tiny.QWEN), tmp_path / "recipe.toml"
    assert moebox("plan", made, "--box", "8x-rtx-pro-6000-server", "-o", recipe).code == 0
    done = moebox("fetch", recipe)
    assert done.code == 2
    assert "holds no weights, and no repository is named" in done.err
    assert "nothing to fetch" not in done.err
