"""The two questions a starting server is asked: are you well, and do you answer a chat."""

import threading

from moebox import http
from moebox.core.endpoint import Endpoint
from moebox.loose import get_number, get_objects, get_text

HEALTH_TIMEOUT_S = 2.0
CHAT_TIMEOUT_S = 900.0  # the first request may compile kernels; patience with the log decides before this does


class ChatProbe(threading.Thread):
    """One short chat, asked beside the watching of the log; `answer` is None while it thinks."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(daemon=True)
        self.endpoint = endpoint
        self.reply: http.HttpReply | None = None

    def run(self) -> None:
        """Ask."""
        body: dict[str, object] = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 16}
        if self.endpoint.model:
            body["model"] = self.endpoint.model
        url = f"{self.endpoint.base_url}/chat/completions"
        self.reply = http.post_json(url, body, headers=self.endpoint.headers, timeout_s=CHAT_TIMEOUT_S)

    @property
    def is_loading(self) -> bool:
        """It answered that it is not ready yet: some servers answer health first."""
        return self.reply is not None and self.reply.status == 503

    @property
    def problem(self) -> str:
        """Why the answer is none, or "" when it is one."""
        answer = self.reply
        assert answer is not None
        if not answer.ok:
            return answer.error
        reply = answer.json()
        choices = get_objects(reply, "choices")
        if not choices or not isinstance(choices[0].get("message"), dict):
            return f"an answer that is no chat: {answer.text[:120]!r}"
        said = get_text(choices[0], "message.content", "message.reasoning", "message.reasoning_content")
        return "" if said or get_number(reply, "usage.completion_tokens") else "an empty answer"
