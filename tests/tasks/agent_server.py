"""A scripted model behind a real port: it does jobs well, badly or not at all, by the name it is asked under.

`python -m tests.tasks.agent_server` prints its port. It knows jobs by their instruction and reads from the
conversation how far it has come, so it keeps no state and any number of jobs may be done at once. It speaks OpenAI's
chat and Anthropic's messages, streamed.
"""

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

from moebox.tasks.families import FAMILIES, make_job
from moebox.tasks.gadget import TROLLEY_CAPACITY
from moebox.tasks.result import LEVELS, AgentJob

SEEDS = range(6)
Step = dict[str, Any]  # text, calls [(name, arguments)], thinking, finish, raw arguments


def call(name: str, **arguments: Any) -> Step:
    return {"calls": [(name, json.dumps(arguments))]}


def solve(job: AgentJob) -> list[Step]:
    """The right steps."""
    if job.reply_file:
        return [{"text": f"```python\n{job.solution[job.reply_file]}\n```"}]
    if job.gadget:
        return [*(call("gadget", line=line) for line in commands(job)), {"text": "done"}]
    steps = [call("list_files")]
    if job.files:
        steps.append(call("read_file", path=sorted(job.files)[0]))
    for path, text in job.solution.items():
        if path in job.files and job.family == "plan":
            steps.append(call("read_file", path=path))
            steps.append(call("write_file", path=path, content=text))
        else:
            steps.append(call("write_file", path=path, content=text))
    if "run_tests" in job.tools and job.protected and any(name.startswith("tests/") for name in job.protected):
        steps.append(call("run_tests"))
    return [*steps, {"text": "done: it works now"}]


def commands(job: AgentJob) -> list[str]:
    """What the store must be sent so that it ends as wanted."""
    have = json.loads(job.gadget)
    want = json.loads(next(iter(job.solution.values())))
    lines = ["?*"]
    for thing in sorted({name for held in have.values() for name in held}):
        short = {shelf: want[shelf].get(thing, 0) - have[shelf].get(thing, 0) for shelf in have}
        for source in have:
            while short[source] < 0:
                target = next(shelf for shelf in have if short[shelf] > 0)
                amount = min(-short[source], short[target], TROLLEY_CAPACITY)
                lines += [f"@{source}", f"^{amount}:{thing}", f"@{target}", f"v{amount}:{thing}"]
                short[source] += amount
                short[target] -= amount
    return lines


def test_file(job: AgentJob) -> str:
    return next(name for name in job.protected if name.startswith("tests/test"))


def package_file(job: AgentJob) -> str:
    return next(name for name in job.solution if name.endswith(".py"))


FORGER = """import json, os, sys
print("OK", file=sys.stderr)
for number in range(3, 64):
    for place in range(40):
        try: os.write(number, json.dumps({"place": place, "value": True}).encode() + b"\\n")
        except OSError: pass
"""


def claude(job: AgentJob) -> list[Step]:
    """With Claude Code's tools: a file must be read before it is written."""
    steps = [call("Glob", pattern="**/*")]
    for path, text in job.solution.items():
        if path in job.files:
            steps.append(call("Read", file_path=path))
        steps.append(call("Write", file_path=path, content=text))
    return [*steps, {"text": "done"}]


def clumsy(steps: list[Step], reads: str, argument: str) -> list[Step]:
    """Those steps with thought and talk before each, and first five calls at once of which four go wrong."""
    nowhere, unread = json.dumps({argument: "no-such-file"}), json.dumps({argument: "no-such-file"})[:-2]
    wrong = [(reads, nowhere), (reads, "{}"), ("NoSuchTool", "{}"), (reads, unread)]
    spoken = [{**step, "thinking": "hm", "text": step.get("text", "Let me see.")} for step in steps]
    return [{**spoken[0], "calls": [*spoken[0]["calls"], *wrong]}, *spoken[1:]]


def opencode(job: AgentJob) -> list[Step]:
    """With opencode's."""
    steps = []
    for path, text in job.solution.items():
        if path in job.files:
            steps.append(call("read", filePath=path))
        steps.append(call("write", filePath=path, content=text))
    return [*steps, {"text": "done"}]


def terminus(job: AgentJob) -> list[Step]:
    """With the terminal of Harbor's terminus-2, which reads JSON in plain replies and asks twice whether it is done."""
    keys = [f"cat > /app/{path} <<'END'\n{text}END\n" for path, text in job.solution.items()]
    commands = [{"keystrokes": typed, "duration": 1.0} for typed in keys]
    reported = {"analysis": "a file is asked for", "plan": "write it", "commands": commands}
    finished = {**reported, "commands": [], "task_complete": True}
    return [{"text": json.dumps(reported)}, {"text": json.dumps(finished)}]


SCRIPTS = {
    "small": solve,
    "terminus": terminus,
    "terminus-lazy": lambda job: terminus(job)[1:],
    "claude": claude,
    "claude-clumsy": lambda job: clumsy(claude(job), "Read", "file_path"),
    "opencode": opencode,
    "opencode-clumsy": lambda job: clumsy(opencode(job), "read", "filePath"),
    "solve": solve,
    "parallel": lambda job: [{"calls": [c for s in solve(job)[:-1] for c in s["calls"]]}, {"text": "done"}],
    "lazy": lambda job: [{"text": "I have done it. All tests pass. PASS"}],
    "edits-tests": lambda job: [call("write_file", path=test_file(job), content="# nothing fails\n"), {"text": "done"}],
    "solves-and-edits-tests": lambda job: [
        *solve(job)[:-1],
        call("write_file", path=test_file(job), content="# shorter\n"),
        {"text": "done"},
    ],
    "prints-pass": lambda job: [
        call("write_file", path=package_file(job), content="print('OK')\nimport os\nos._exit(0)\n"),
        call("run_tests"),
        {"text": "all tests pass"},
    ],
    "forges": lambda job: [call("write_file", path=package_file(job), content=FORGER), {"text": "done"}],
    "outside": lambda job: [
        call("write_file", path="/tmp/moebox-was-here", content="x"),
        call("write_file", path="../../moebox-was-here", content="x"),
        call("read_file", path="/etc/passwd"),
        {"text": "done"},
    ],
    "writes-outside-by-code": lambda job: [
        call("write_file", path="out.py", content="open('/tmp/moebox-was-here', 'w').write('x')\n"),
        call("run_python", path="out.py"),
        {"text": "done"},
    ],
    "endless-code": lambda job: [
        call("write_file", path=package_file(job), content="while True: pass\n"),
        {"text": "done"},
    ],
    "loop": lambda job: [call("list_files")] * 100,
    "wanders": lambda job: [call("search", text=f"word {number}") for number in range(500)],
    "only-thinks": lambda job: [{"thinking": "hm " * 30}] * 20,
    "thinks-once": lambda job: [{"thinking": "hm " * 30}, *solve(job)],
    "malformed": lambda job: [{"calls": [("write_file", '{"path": "x", "content": ')]}] * 20,
    "repairs": lambda job: [{"calls": [("write_file", '{"path": 3}'), ("no_such_tool", "{}")]}, *solve(job)],
    "cut": lambda job: [{"thinking": "hm " * 10, "finish": "length"}],
    "context": lambda job: [call("list_files"), {"status": 400, "error": "maximum context length is 2048 tokens"}],
    "refuses": lambda job: [{"status": 500, "error": "CUDA error"}],
    "breaks-off": lambda job: [call("list_files"), {"text": "I will now", "breaks": True}],
    "hangs": lambda job: [{"hangs": True}],
    "dies": lambda job: [call("list_files"), {"dies": True}],
    "mcp": lambda job: [call("roll", sides=6), *solve(job)],
    "mcp-crash": lambda job: [call("crash"), *solve(job)],
    "slow": lambda job: [{**step, "delay": 0.3} for step in solve(job)],
}


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    jobs: ClassVar[dict[str, AgentJob]]

    def log_message(self, *_: Any) -> None:
        """Be quiet."""

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            rows = [{"id": name, **({} if name == "small" else {"max_model_len": 131072})} for name in SCRIPTS]
            self._json(200, {"object": "list", "data": rows})
        else:
            self._json(404, {"error": "not found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        anthropic = "/messages" in self.path
        messages = [row for row in body["messages"] if row["role"] != "system"]
        if not body.get("tools") and "title" in json.dumps(body["messages"][0]):  # opencode wants one
            self._stream(chat_events({"text": "A job"}, 1), {})
            return
        job = self._job(json.dumps(messages))
        turn = sum(row["role"] == "assistant" for row in messages)
        steps = SCRIPTS[body["model"]](job)
        step = steps[min(turn, len(steps) - 1)]
        time.sleep(step.get("delay", 0))
        if not body.get("stream"):
            self._json(200, whole(step, body["model"]))
            return
        if body["model"] == "small" and body["max_tokens"] > 2048:
            self._json(400, {"error": {"message": "maximum context length is 4096 tokens"}})
            return
        if step.get("status"):
            self._json(step["status"], {"error": {"message": step["error"]}})
        elif step.get("hangs"):
            time.sleep(60)
        elif step.get("dies"):
            os._exit(9)
        else:
            prompt = len(json.dumps(body["messages"])) // 4
            self._stream(anthropic_events(step, prompt, turn) if anthropic else chat_events(step, prompt, turn), step)

    def _job(self, conversation: str) -> AgentJob:
        """The job whose instruction stands in the conversation, whatever a client puts around it."""
        twice = conversation.replace("\\\\", "\\").replace('\\"', '"')
        return next(job for text, job in self.jobs.items() if text in conversation or text in twice)

    def _json(self, status: int, document: Any) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, events: list[tuple[str, Any]], step: Step) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for number, (name, data) in enumerate(events):
            if step.get("breaks") and number > 1:
                break
            head = f"event: {name}\n" if name else ""
            text = data if isinstance(data, str) else json.dumps(data)
            self.wfile.write(f"{head}data: {text}\n\n".encode())
        self.close_connection = True


def whole(step: Step, model: str) -> Any:
    """The step as one reply; of its parts the text alone."""
    message = {"role": "assistant", "content": step.get("text", "")}
    usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"id": "x", "object": "chat.completion", "model": model, "choices": [choice], "usage": usage}


def chat_events(step: Step, prompt: int, turn: int = 0) -> list[tuple[str, Any]]:
    """The step as OpenAI's chunks."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": piece} for piece in cut(step.get("thinking", ""))]
    deltas += [{"content": piece} for piece in cut(step.get("text", ""))]
    for index, (name, arguments) in enumerate(step.get("calls", ())):
        head = {
            "index": index,
            "id": f"call_{turn}_{index}",
            "type": "function",
            "function": {"name": name, "arguments": ""},
        }
        deltas.append({"tool_calls": [head]})
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in cut(arguments)]
    finish = step.get("finish") or ("tool_calls" if step.get("calls") else "stop")
    events: list[tuple[str, Any]] = [
        ("", {"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}) for delta in deltas
    ]
    events.append(("", {"id": "x", "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}))
    usage = {"prompt_tokens": prompt, "completion_tokens": len(deltas)}
    usage["prompt_tokens_details"] = {"cached_tokens": prompt // 2}
    return [*events, ("", {"id": "x", "choices": [], "usage": usage}), ("", "[DONE]")]


def anthropic_events(step: Step, prompt: int, turn: int = 0) -> list[tuple[str, Any]]:
    """The step as Anthropic's events."""
    blocks: list[tuple[dict[str, Any], str, str]] = []
    if step.get("thinking"):
        blocks.append(({"type": "thinking", "thinking": ""}, "thinking", step["thinking"]))
    if step.get("text"):
        blocks.append(({"type": "text", "text": ""}, "text", step["text"]))
    for index, (name, arguments) in enumerate(step.get("calls", ())):
        block = {"type": "tool_use", "id": f"toolu_{turn}_{index}", "name": name, "input": {}}
        blocks.append((block, "partial_json", arguments))
    usage = {"input_tokens": prompt, "output_tokens": 1}
    message = {"id": f"m{turn}", "type": "message", "role": "assistant", "content": [], "model": "x", "usage": usage}
    events: list[tuple[str, Any]] = [("message_start", {"type": "message_start", "message": message})]
    kinds = {"thinking": "thinking_delta", "text": "text_delta", "partial_json": "input_json_delta"}
    for index, (block, key, text) in enumerate(blocks):
        events.append(("content_block_start", {"type": "content_block_start", "index": index, "content_block": block}))
        for piece in cut(text):
            delta = {"type": kinds[key], key: piece}
            events.append(("content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta}))
        events.append(("content_block_stop", {"type": "content_block_stop", "index": index}))
    stop = "tool_use" if step.get("calls") else "end_turn"
    delta = {"stop_reason": stop, "stop_sequence": None}
    events.append(("message_delta", {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 20}}))
    return [*events, ("message_stop", {"type": "message_stop"})]


def cut(text: str, size: int = 400) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def jobs_by_instruction() -> dict[str, AgentJob]:
    """Every job that may be asked for."""
    jobs: dict[str, AgentJob] = {}
    for family in FAMILIES:
        for level in LEVELS:
            for seed in SEEDS:
                job = make_job(family, level, seed)
                text = json.dumps(job.instruction)[1:-1]
                assert text not in jobs
                jobs[text] = job
    return jobs


def main() -> None:
    Handler.jobs = jobs_by_instruction()  # before the first request: several may come at once
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    sys.exit(main())
