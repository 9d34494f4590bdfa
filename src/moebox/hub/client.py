"""Requests to the Hub: the files of a repository, a search, and the bytes of a file from any position."""

import contextlib
import errno
import functools
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from moebox import files
from moebox.errors import BadInput, ExternalError, MoeboxError, refuse_if
from moebox.hub.names import hub_endpoint, parse_repo_name
from moebox.redact import hide_known_keys, remember_key

if TYPE_CHECKING:
    from hashlib import _Hash

REQUEST_S = 10.0  # for a reply to begin or go on: huggingface_hub's DEFAULT_REQUEST_TIMEOUT
MAX_FILES = 20_000  # of one repository; the largest checkpoints have a few hundred
MAX_SMALL_FILE = 64 << 20  # bytes of a file that is read whole; the index of Kimi K2 has 15 MB
CHUNK = 1 << 20
T = TypeVar("T")
ATTEMPTS, RETRY_S = 4, 0.2  # for a header or a small file


class PermanentFailure(ExternalError):
    """No access, or a full disk: trying again does not help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFile:
    """A file of a repository: its path, size, and the SHA-256 of an LFS file or the git hash of another."""

    path: str
    size: int
    sha256: str = ""
    git_sha1: str = ""

    @property
    def digest(self) -> str:
        """The name of the file among the blobs of huggingface_hub's cache."""
        return self.sha256 or self.git_sha1

    def new_hash(self) -> "_Hash":
        """Begin the hash that the Hub publishes for this file."""
        if self.sha256:
            return hashlib.sha256()
        return hashlib.sha1(f"blob {self.size}\0".encode(), usedforsecurity=False)  # git's object name


@dataclass(frozen=True, slots=True, kw_only=True)
class HubListing:
    """The files of a repository at one commit."""

    repo: str
    revision: str = ""  # as asked for; "" is the default branch
    commit: str
    files: tuple[HubFile, ...]
    tags: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        return f"{hub_endpoint()}/{self.repo}/tree/{self.commit}"

    def find(self, path: str) -> HubFile | None:
        return next((file for file in self.files if file.path == path), None)


def hub_cache() -> Path:
    """The folder that huggingface_hub and the engines look for downloads in, by the same variables."""
    home = os.environ.get("HF_HOME") or files.xdg_home("cache") / "huggingface"
    named = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(os.path.expandvars(Path(named or Path(home) / "hub").expanduser()))


def list_repository(repo: str, revision: str = "") -> HubListing:
    """Ask the Hub for the files of a repository. Raise BadInput if a name climbs out of the cache."""
    from huggingface_hub import HfApi

    with report_hub_errors(repo, revision):
        api = HfApi(endpoint=hub_endpoint())
        ask = functools.partial(api.model_info, repo, revision=revision or None, files_metadata=True, timeout=REQUEST_S)
        found = ask_again(ask)
        listed = []
        for each in found.siblings or ():
            lfs = each.lfs
            size = lfs.size if lfs else each.size
            file = HubFile(
                path=str(each.rfilename),
                size=-1 if size is None else int(size),
                sha256=str(lfs.sha256) if lfs else "",
                git_sha1="" if lfs else str(each.blob_id or ""),
            )
            check_remote_name(repo, file)
            listed.append(file)
        if not re.fullmatch(r"[0-9a-f]{40}", found.sha or "") or len(listed) > MAX_FILES:
            raise ExternalError(f"{repo}: the Hub replied without a commit, or with more than {MAX_FILES:,} files")
        tags = tuple(map(str, found.tags or ()))
        named = parse_repo_name(str(found.id))  # another one if the repository was renamed
        repo = named.repo if named else repo
        return HubListing(repo=repo, revision=revision, commit=str(found.sha), files=tuple(listed), tags=tags)


def ask_again(ask: Callable[[], T]) -> T:
    """Ask the Hub, and again if the connection broke: servers and proxies close those that were kept open."""
    import httpx

    for attempt in range(1, ATTEMPTS):
        with contextlib.suppress(httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
            return ask()
        time.sleep(RETRY_S * attempt)
    return ask()


def check_remote_name(repo: str, file: HubFile) -> None:
    """Raise BadInput if a file's name leads out of its folder; ExternalError if its size or hash cannot be right."""
    climbs = file.path.startswith("/") or any(part in ("", ".", "..") for part in file.path.split("/"))
    odd = "\\" in file.path or not file.path.isprintable() or len(file.path) > 1000
    refuse_if(climbs or odd, f"{repo}: the file name {file.path[:80]!r} leads out of the cache; nothing was read")
    if file.size < 0 or not re.fullmatch(r"[0-9a-f]{64}" if file.sha256 else r"[0-9a-f]{40}", file.digest):
        raise ExternalError(f"{repo}: the Hub gives no valid size and hash for {file.path}")


def search_repositories(limit: int, **wanted: str) -> list[tuple[str, int, tuple[str, ...]]]:
    """List models by `search` (words) or `filter` (a tag), the most downloaded first: name, downloads, tags."""
    from huggingface_hub import HfApi

    with report_hub_errors(f"search for {', '.join(wanted.values())!r}"):
        api = HfApi(endpoint=hub_endpoint())
        found = ask_again(lambda: list(api.list_models(sort="downloads", limit=limit, **wanted)))
        return [(str(each.id), int(each.downloads or 0), tuple(map(str, each.tags or ()))) for each in found]


@contextlib.contextmanager
def open_remote_file(
    listing: HubListing, file: HubFile, start: int = 0, end: int | None = None
) -> Iterator[Iterator[bytes]]:
    """Open a file of the Hub at `start`; the iterator ends at `end`, or early if the connection does.

    A server that ignores the range sends the whole file, of which the beginning is dropped. The token is not sent on
    to other hosts: httpx removes it from redirects.
    """
    from huggingface_hub import constants, get_session, hf_hub_url
    from huggingface_hub.utils._headers import build_hf_headers
    from huggingface_hub.utils._http import hf_raise_for_status

    stop = file.size if end is None else min(end, file.size)
    url = hf_hub_url(listing.repo, file.path, revision=listing.commit, endpoint=hub_endpoint())
    headers = {**build_hf_headers(), "Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
    timeout = float(constants.HF_HUB_DOWNLOAD_TIMEOUT)
    with (
        report_hub_errors(listing.repo, listing.revision),
        get_session().stream("GET", url, headers=headers, timeout=timeout) as response,
    ):
        hf_raise_for_status(response)
        is_part = response.status_code == 206
        stated = response.headers.get("content-range" if is_part else "content-length", str(file.size))
        right = f"bytes {start}-{stop - 1}/{file.size}" if is_part else str(file.size)
        length = response.headers.get("content-length", "")
        if stated != right or (is_part and length not in ("", str(stop - start))):
            text = f"asked for bytes {start}-{stop - 1} of {file.size}, the server sent {stated[:60]!r}"
            raise ExternalError(f"{listing.repo}: {file.path}: {text}")

        def wanted_bytes() -> Iterator[bytes]:
            at = start if is_part else 0
            for chunk in response.iter_bytes():
                piece = chunk[max(0, start - at) : max(0, stop - at)]
                at += len(chunk)
                if piece:
                    yield piece
                if at >= stop:
                    return

        yield wanted_bytes()


def read_remote(listing: HubListing, file: HubFile, start: int, end: int, *, whole: bool = False) -> bytes:
    """Return bytes `start` to `end` of a file, after a few attempts; with `whole` their hash must be the Hub's."""
    end = min(end, file.size)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            data = b""
            if end > start:
                with open_remote_file(listing, file, start, end) as chunks:
                    data = b"".join(chunks)
            if len(data) != max(0, end - start):
                raise ExternalError(f"{listing.repo}: {file.path} ended after {len(data):,} of {end - start:,} bytes")
            check = file.new_hash()
            check.update(data)
            if whole and check.hexdigest() != file.digest:
                raise ExternalError(f"{listing.repo}: {file.path} arrived damaged: its hash is not the one on the Hub")
            return data
        except ExternalError as problem:
            if attempt == ATTEMPTS or isinstance(problem, PermanentFailure):
                raise
            time.sleep(RETRY_S * attempt)
    raise AssertionError("unreachable")


def read_whole_file(listing: HubListing, file: HubFile) -> bytes:
    """Return a small file. Raise ExternalError if its hash is not the Hub's."""
    if file.size > MAX_SMALL_FILE:
        raise ExternalError(f"{listing.repo}: {file.path} has {file.size:,} bytes, which is too large for such a file")
    return read_remote(listing, file, 0, file.size, whole=True)


@contextlib.contextmanager
def report_hub_errors(what: str, revision: str = "") -> Iterator[None]:
    """Turn failures of the Hub, the network and the disk into one line."""
    import httpx
    from huggingface_hub import errors, get_token

    remember_key(get_token())
    name, page = f"{what}@{revision}" if revision else what, f"{hub_endpoint()}/{what}"
    try:
        yield
    except MoeboxError:
        raise
    except errors.GatedRepoError:
        hint = f"accept its terms at {page}, then set HF_TOKEN or run `hf auth login`"
        raise PermanentFailure(f"{name}: gated; your account has no access", hint=hint) from None
    except errors.RevisionNotFoundError:
        raise BadInput(f"{name}: the repository has no such revision", hint=f"see {page}") from None
    except errors.RepositoryNotFoundError:
        hint = "check the name (`moebox models search WORDS`); a private repository needs HF_TOKEN or `hf auth login`"
        raise BadInput(f"{name}: no such repository on {hub_endpoint()}", hint=hint) from None
    except errors.HFValidationError:
        raise BadInput(f"{name}: not a valid name of a repository", hint="ORG/REPO[@REVISION][:QUANT]") from None
    except errors.OfflineModeIsEnabled:
        hint = "unset HF_HUB_OFFLINE, or name a model of `moebox models`"
        raise PermanentFailure(f"{name}: not read before, and the Hub is in offline mode", hint=hint) from None
    except errors.HfHubHTTPError as problem:
        status, url = problem.response.status_code, problem.response.url  # of the storage, if the Hub sent us there
        hint = "set HF_TOKEN or run `hf auth login`" if status in (401, 403) else "try again later"
        place = f"{url.scheme}://{url.netloc.decode()}{url.path[:120]}"
        raise ExternalError(f"{name}: {place} replied HTTP {status}", hint=hint) from None
    except (httpx.HTTPError, httpx.InvalidURL) as problem:
        reason = hide_known_keys(str(problem).partition("\n")[0][:120]) or type(problem).__name__
        hint = "check the network, HF_ENDPOINT and proxy settings; what was read before works without"
        raise ExternalError(f"{name}: no reply from {hub_endpoint()}: {reason}", hint=hint) from None
    except OSError as problem:
        full = problem.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = "no room left on the disk" if full else hide_known_keys(problem.strerror or str(problem)[:120])
        hint = "free some, or move the cache with HF_HOME" if full else "HF_HOME names the folder of the cache"
        raise PermanentFailure(f"{name}: {reason}", hint=hint) from None
    except (ValueError, KeyError, TypeError, AttributeError):  # HTML instead of JSON, or JSON of another shape
        raise ExternalError(f"{name}: {hub_endpoint()} replied something that is not the Hub's API") from None


def repository_folder(repo: str) -> Path:
    """The folder of a repository in the cache: blobs by hash, and for each commit links with the files' names."""
    return hub_cache() / f"models--{repo.replace('/', '--')}"


def find_snapshot(repo: str, revision: str = "") -> Path | None:
    """Return the folder of a downloaded revision in the cache, or None."""
    folder = repository_folder(repo)
    with contextlib.suppress(OSError, ValueError):
        reference = folder / "refs" / (revision or "main")
        commit = reference.read_text().strip() if reference.is_file() else revision
        if re.fullmatch(r"[0-9a-f]{40}", commit) and (folder / "snapshots" / commit).is_dir():
            return folder / "snapshots" / commit
    return None
