"""The toy itself: a server that lists its model and answers every chat with the same word."""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    """Health, models and chats."""

    def do_GET(self) -> None:
        self._answer({"data": [{"id": "toy", "owned_by": "toy"}]})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        message = {"role": "assistant", "content": "yes"}
        self._answer({"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"completion_tokens": 1}})

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def _answer(self, body: dict[str, object]) -> None:
        text = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def main() -> None:
    """Serve until killed."""
    port = int(sys.argv[sys.argv.index("--port") + 1])
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    print("listening on http", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
