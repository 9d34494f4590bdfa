"""The two questions a starting server is asked: are you well, and do you answer a chat."""

import json
import threading
from typing import Any

from moebox import http
from moebox.core.endpoint import Endpoint

HEALTH_WAIT_S = 2.0
CHAT_WAIT_S = 900.0  # the first request may compile kernels; patience with the log decides before this does


class Chat(threading.Thread):
    """One short chat, asked beside the watching of the log; `answer` is None while it thinks."""

    def __init__(self, endpoint: Endpoint, *, text: str = "Say hello.", tokens: int = 16) -> None:
        super().__init__(daemon=True)
        self.endpoint, self.text, self.tokens = endpoint, text, tokens
        self.answer: http.Reply | None = None

    def run(self) -> None:
        """Ask."""
        body: dict[str, Any] = {"messages": [{"role": "user", "content": self.text}], "max_tokens": self.tokens}
        if self.endpoint.model:
            body["model"] = self.endpoint.model
        url = f"{self.endpoint.base_url}/chat/completions"
        self.answer = http.post_json(url, body, headers=self.endpoint.headers, timeout_s=CHAT_WAIT_S)

    @property
    def complaint(self) -> str:
        """Why the answer is none, or "" when it is one."""
        answer = self.answer
        assert answer is not None
        if not answer.ok:
            text = http.error_text(answer.text)
            return f"HTTP {answer.status}: {text}" if answer.status else text
        try:
            document = json.loads(answer.text)
            message = document["choices"][0]["message"]
            words = [message.get(name) for name in ("content", "reasoning", "reasoning_content")]
            counted = (document.get("usage") or {}).get("completion_tokens", 0)
        except (ValueError, LookupError, TypeError, AttributeError):
            return f"an answer that is no chat: {answer.text[:120]!r}"
        return "" if any(words) or counted else "an empty answer"
