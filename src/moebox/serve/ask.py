"""The two questions a starting server is asked: are you well, and do you answer a chat."""

import http.client
import json
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from moebox.core.endpoint import Endpoint

HEALTH_WAIT_S = 2.0
CHAT_WAIT_S = 900.0  # the first request may compile kernels; patience with the log decides before this does
LARGEST = 4 << 20  # bytes of an answer that are read
_SURPRISES = (OSError, http.client.HTTPException, ValueError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back: status 0 when nothing did."""

    status: int
    text: str

    @property
    def good(self) -> bool:
        """It answered as asked."""
        return self.status == 200


def get(url: str, *, headers: dict[str, str] | None = None, wait_s: float = HEALTH_WAIT_S) -> Answer:
    """One GET; a refused connection is an answer too."""
    return fetch(urllib.request.Request(url, headers=headers or {}), wait_s)  # noqa: S310  (http by construction)


def fetch(request: urllib.request.Request, wait_s: float) -> Answer:
    """Send and read, whatever comes."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never through a proxy: it is this machine
    try:
        with opener.open(request, timeout=wait_s) as reply:
            return Answer(status=reply.status, text=reply.read(LARGEST).decode("utf-8", "replace"))
    except urllib.error.HTTPError as problem:
        return Answer(status=problem.code, text=problem.read(LARGEST).decode("utf-8", "replace"))
    except _SURPRISES as problem:
        return Answer(status=0, text=str(problem) or type(problem).__name__)


class Chat(threading.Thread):
    """One short chat, asked beside the watching of the log; `answer` is None while it thinks."""

    def __init__(self, endpoint: Endpoint, *, text: str = "Say hello.", tokens: int = 16) -> None:
        super().__init__(daemon=True)
        self.endpoint, self.text, self.tokens = endpoint, text, tokens
        self.answer: Answer | None = None

    def run(self) -> None:
        """Ask."""
        body: dict[str, Any] = {"messages": [{"role": "user", "content": self.text}], "max_tokens": self.tokens}
        if self.endpoint.model:
            body["model"] = self.endpoint.model
        headers = {"Content-Type": "application/json", **self.endpoint.headers}
        url = f"{self.endpoint.base_url}/chat/completions"
        request = urllib.request.Request(url, data=json.dumps(body).encode(), headers=headers)  # noqa: S310
        self.answer = fetch(request, CHAT_WAIT_S)

    @property
    def complaint(self) -> str:
        """Why the answer is none, or "" when it is one."""
        answer = self.answer
        assert answer is not None
        if not answer.good:
            return f"HTTP {answer.status}: {said(answer.text)}" if answer.status else said(answer.text)
        try:
            document = json.loads(answer.text)
            message = document["choices"][0]["message"]
            words = [message.get(name) for name in ("content", "reasoning", "reasoning_content")]
            counted = (document.get("usage") or {}).get("completion_tokens", 0)
        except (ValueError, LookupError, TypeError, AttributeError):
            return f"an answer that is no chat: {answer.text[:120]!r}"
        return "" if any(words) or counted else "an empty answer"


def said(text: str) -> str:
    """The message inside an error document, or its beginning."""
    try:
        document = json.loads(text)
        inner = document.get("error", document)
        return str(inner.get("message", inner) if isinstance(inner, dict) else inner)[:300]
    except (ValueError, AttributeError):
        return " ".join(text.split())[:300]
