"""A local server that speaks the Hub's API, and misbehaves on request.

Replies follow huggingface.co: `/api/models/REPO/revision/REV?blobs=true` lists files with sizes and hashes,
`/REPO/resolve/REV/FILE` sends small files itself and redirects to another host for LFS files.
"""

import hashlib
import json
import random
import re
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FAULTS = ("cut", "stall", "flip", "longer", "shorter", "elsewhere", "html", "whole", "wrong range", "500", "loop")
LFS_SUFFIXES = (".safetensors", ".gguf", ".bin")


@dataclass
class Repo:
    """A repository of the server."""

    files: dict[str, bytes]
    gated: bool = False
    tags: list[str] = field(default_factory=list)
    commit: str = COMMIT
    revisions: tuple[str, ...] = ("main",)
    listed: dict[str, Any] = field(default_factory=dict)  # replaces keys of the reply


class QuietServer(ThreadingHTTPServer):
    """Clients may leave at any time."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


class HubServer:
    """The Hub, and a second server for LFS files, as the Hub's own are on another host."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.moved: dict[str, str] = {}  # old name -> new name
        self.requests: list[tuple[str, str, str]] = []  # path, range, authorization
        self.sent = 0  # bytes of files
        self.api_fault = ""
        self.resets = 0  # how many requests of the API end with a closed connection
        self.choose_fault: Callable[[str, int], str] = lambda path, start: ""
        self.stall_s = 3.0
        self.over = threading.Event()
        self.main = self._listen()
        self.storage = self._listen()

    def _listen(self) -> ThreadingHTTPServer:
        server = QuietServer(("127.0.0.1", 0), type("Handler", (HubHandler,), {"hub": self}))
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return server

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.main.server_port}"

    @property
    def storage_url(self) -> str:
        return f"http://localhost:{self.storage.server_port}"

    def close(self) -> None:
        self.over.set()
        for server in (self.main, self.storage):
            server.shutdown()
            server.server_close()

    def misbehave(self, seed: int, share: float = 0.5) -> None:
        """Answer a share of the requests for files with a random fault."""
        draw, lock = random.Random(seed), threading.Lock()

        def choose(path: str, start: int) -> str:
            with lock:
                return draw.choice(FAULTS) if draw.random() < share else ""

        self.choose_fault = choose


class HubHandler(BaseHTTPRequestHandler):
    """One connection."""

    hub: HubServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        self.hub.requests.append((path, self.headers.get("Range", ""), self.headers.get("Authorization", "")))
        moved = next(((old, new) for old, new in self.hub.moved.items() if f"/{old}/" in f"{path}/"), None)
        with suppress(OSError):
            if moved:  # as the Hub does: a relative address
                self.send_bytes(307, b"", Location=self.path.replace(*moved, 1))
            elif path.startswith("/api/models"):
                self.send_api(path, parse_qs(parts.query))
            elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
                self.send_resolved(*match.groups())
            elif match := re.fullmatch(r"/lfs/([^/]+/[^/]+)/(.+)", path):
                self.send_file(match[2], self.hub.repos[match[1]].files[match[2]])
            else:
                self.send_bytes(404, b"")

    def send_bytes(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error_code(self, status: int, code: str) -> None:
        self.send_bytes(status, b'{"error": "no"}', X_Error_Code=code, X_Error_Message="no")

    def send_api(self, path: str, query: dict[str, list[str]]) -> None:
        if self.hub.resets:
            self.hub.resets -= 1
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            return None
        if self.hub.api_fault == "html":
            return self.send_bytes(200, b"<html>Sign in to the network</html>", Content_Type="text/html")
        if self.hub.api_fault == "stall":
            self.hub.over.wait(self.hub.stall_s)
            return None
        if self.hub.api_fault:
            return self.send_bytes(200, self.hub.api_fault.encode(), Content_Type="application/json")
        name, _, revision = path.removeprefix("/api/models").strip("/").partition("/revision/")
        if not name:
            wanted, tag = query.get("search", [""])[0].lower(), query.get("filter", [""])[0]
            rows = [
                {"id": repo, "modelId": repo, "tags": each.tags, "downloads": 100 - number}
                for number, (repo, each) in enumerate(self.hub.repos.items())
                if wanted in repo.lower() and (not tag or tag in each.tags)
            ]
            return self.send_bytes(200, json.dumps(rows).encode(), Content_Type="application/json")
        repo = self.hub.repos.get(name)
        if repo is None:
            return self.send_error_code(401, "RepoNotFound")
        if revision and revision not in (*repo.revisions, repo.commit):
            return self.send_error_code(404, "RevisionNotFound")
        siblings = []
        for file, data in repo.files.items():
            row: dict[str, Any] = {"rfilename": file, "size": len(data), "blobId": git_sha1(data)}
            if file.endswith(LFS_SUFFIXES):
                digest = hashlib.sha256(data).hexdigest()
                row["lfs"] = {"sha256": digest, "size": len(data), "pointerSize": 134}
            siblings.append(row)
        reply = {"id": name, "modelId": name, "sha": repo.commit, "siblings": siblings, "tags": repo.tags}
        body = json.dumps(reply | repo.listed).encode()
        return self.send_bytes(200, body, Content_Type="application/json")

    def send_resolved(self, name: str, revision: str, file: str) -> None:
        repo = self.hub.repos.get(name)
        if repo is None:
            return self.send_error_code(401, "RepoNotFound")
        if repo.gated:
            return self.send_error_code(403, "GatedRepo")
        if file not in repo.files:
            return self.send_error_code(404, "EntryNotFound")
        if not file.endswith(LFS_SUFFIXES):
            return self.send_file(file, repo.files[file])
        digest = hashlib.sha256(repo.files[file]).hexdigest()
        location = f"{self.hub.storage_url}/lfs/{name}/{file}"
        return self.send_bytes(302, b"", Location=location, X_Repo_Commit=repo.commit, X_Linked_Etag=f'"{digest}"')

    def send_file(self, name: str, data: bytes) -> None:
        """Send a file or a part of it, with the fault that was chosen."""
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start = int(asked[1]) if asked else 0
        end = min(int(asked[2]) + 1, len(data)) if asked and asked[2] else len(data)
        fault = self.hub.choose_fault(name, start)
        if fault == "html":
            return self.send_bytes(200, b"<html>come back later</html>" * 3, Content_Type="text/html")
        if fault == "500":
            return self.send_bytes(500, b"")
        if fault == "elsewhere":
            return self.send_bytes(302, b"", Location=f"{self.hub.url}/no/such/place")
        if fault == "loop":
            return self.send_bytes(302, b"", Location=self.path)
        if fault == "whole":
            asked, start, end = None, 0, len(data)
        body = data[start:end]
        if fault == "flip" and body:
            at = len(body) // 2
            body = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
        self.send_response(206 if asked else 200)
        shift = 1 if fault == "wrong range" else 0
        if asked:
            self.send_header("Content-Range", f"bytes {start + shift}-{end - 1}/{len(data) + shift}")
        length = len(body) + {"longer": 7, "shorter": -min(7, len(body))}.get(fault, 0)
        self.send_header("Content-Length", str(length))
        self.send_header("ETag", f'"{git_sha1(data)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "HEAD":
            return None
        if fault in ("cut", "stall"):
            body = body[: len(body) // 2]
        body = body[:length] + b"x" * max(0, length - len(body)) if fault in ("longer", "shorter") else body
        self.wfile.write(body)
        self.wfile.flush()
        self.hub.sent += len(body)
        if fault == "stall":
            self.hub.over.wait(self.hub.stall_s)
        if fault in ("cut", "stall"):
            self.close_connection = True
        return None


def git_sha1(data: bytes) -> str:
    """The hash that git gives a file."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Wait for a condition; False if it does not come true."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.02)
    return False
