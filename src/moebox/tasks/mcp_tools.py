"""Tools of the user's own MCP servers, over stdio or streamable HTTP, through the official `mcp` package.

An extra: nothing else in moebox needs it. The servers live in an event loop on a thread of its own, shared by all jobs;
one that dies ends the job that used it, and is started again for the next.
"""

import asyncio
import concurrent.futures
import os
import shlex
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from moebox.errors import BadInput, ExternalError, exception_text, refuse_if
from moebox.loose import Json
from moebox.tasks.tools import AgentTool, ToolServerDied
from moebox.tasks.workspace import ToolRefused

START_S = 30.0
CALL_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class McpAddress:
    """Where a server is, or the command that starts it."""

    name: str
    url: str = ""
    command: tuple[str, ...] = ()


def parse_addresses(given: Sequence[str]) -> list[McpAddress]:
    """NAME=COMMAND or NAME=URL; BadInput for anything else."""
    found = [_address(text) for text in given]
    refuse_if(len({address.name for address in found}) < len(found), "--mcp: two servers have the same name")
    return found


def _address(text: str) -> McpAddress:
    """One server."""
    name, _, place = text.partition("=")
    wrong = not name.isidentifier() or not place.strip()
    refuse_if(wrong, f"--mcp {text}: write NAME=COMMAND or NAME=URL")
    if place.startswith(("http://", "https://")):
        return McpAddress(name=name, url=place)
    try:
        return McpAddress(name=name, command=tuple(shlex.split(place)))
    except ValueError as problem:
        raise BadInput(f"--mcp {text}: {problem}") from None


class McpServers:
    """All servers of one `moebox task`; `tools` gives what they offer now."""

    def __init__(self, wanted: Sequence[McpAddress], *, call_s: float = CALL_S) -> None:
        try:
            import mcp  # noqa: F401
        except ImportError:
            raise ExternalError("--mcp needs the mcp package", hint="pip install 'moebox[mcp]'") from None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._lock = threading.Lock()
        self._servers = [_Server(address, self._loop, call_s) for address in wanted]

    def tools(self) -> list[AgentTool]:
        """Of every server, started where it is not up; ToolServerDied where one cannot be."""
        found: dict[str, AgentTool] = {}
        with self._lock:
            for server in self._servers:
                for tool in server.tools():
                    name = tool.name if tool.name not in found else f"{server.address.name}_{tool.name}"
                    found[name] = AgentTool(
                        name=name, description=tool.description, parameters=tool.parameters, run=tool.run
                    )
        return list(found.values())

    def close(self) -> None:
        """End what was started."""
        for server in self._servers:
            server.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)


class _Server:
    """One server and our connection to it."""

    def __init__(self, address: McpAddress, loop: asyncio.AbstractEventLoop, call_s: float) -> None:
        self.address, self._loop, self._call_s = address, loop, call_s
        self._client: Any = None
        self._stop: asyncio.Event | None = None
        self._life: concurrent.futures.Future[None] | None = None
        self._tools: list[AgentTool] = []

    def tools(self) -> list[AgentTool]:
        """What it offers; it is started, or started again, first."""
        if self._client is None:
            self._start()
        return self._tools

    def close(self) -> None:
        """Hang up, and end a process that was started."""
        if self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        if self._life is not None:
            concurrent.futures.wait([self._life], timeout=10)
        self._client = self._stop = self._life = None

    def _start(self) -> None:
        ready: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._life = asyncio.run_coroutine_threadsafe(self._live(ready), self._loop)
        try:
            self._client, offered = ready.result(START_S)
        except concurrent.futures.TimeoutError:
            self.close()
            raise ToolServerDied(f"MCP server {self.address.name}: not up within {START_S:g} s") from None
        self._tools = [self._tool(tool) for tool in offered]

    async def _live(self, ready: "concurrent.futures.Future[Any]") -> None:
        """The connection's whole life, in one task as the package wants it."""
        from mcp import Client, MCPError
        from mcp.client.stdio import StdioServerParameters, stdio_client

        self._stop = asyncio.Event()
        with open(os.devnull, "w") as nowhere:  # noqa: ASYNC230  (a device)
            target: Any = self.address.url
            if self.address.command:
                command, *words = self.address.command
                target = stdio_client(StdioServerParameters(command=command, args=words), errlog=nowhere)
            try:
                async with Client(target) as client:
                    ready.set_result((client, (await client.list_tools()).tools))
                    await self._stop.wait()
            except (OSError, MCPError, ValueError, ExceptionGroup) as problem:
                if not ready.done():
                    ready.set_exception(ToolServerDied(f"MCP server {self.address.name}: {_words(problem)}"))

    def _tool(self, tool: Any) -> AgentTool:
        def use(given: Json) -> str:
            return self._call(str(tool.name), given)

        return AgentTool(
            name=str(tool.name), description=str(tool.description or ""), parameters=dict(tool.input_schema), run=use
        )

    def _call(self, name: str, given: Json) -> str:
        """One call; Refused where the tool says no or nothing, ToolServerDied where its server is gone."""
        from mcp import MCPError

        client = self._client
        if client is None:
            raise ToolServerDied(f"MCP server {self.address.name} is gone")
        call = asyncio.run_coroutine_threadsafe(client.call_tool(name, dict(given)), self._loop)
        try:
            result = call.result(self._call_s)
        except concurrent.futures.TimeoutError:
            call.cancel()
            raise ToolRefused(f"{name} did not answer within {self._call_s:g} s") from None
        except (MCPError, OSError, ExceptionGroup) as problem:
            if not _gone(problem):
                raise ToolRefused(f"{name}: {_words(problem)}") from None
            self.close()
            raise ToolServerDied(f"MCP server {self.address.name} died in {name}: {_words(problem)}") from None
        return _text(name, result)


def _text(name: str, result: Any) -> str:
    """What a tool answered; Refused where that is an error."""
    text = "\n".join(str(getattr(part, "text", f"({part.type})")) for part in result.content)
    if result.is_error:
        raise ToolRefused(text or f"{name} failed")
    return text or "(nothing)"


def _gone(problem: BaseException) -> bool:
    """The connection is closed: no later call can work."""
    return not hasattr(problem, "error") or "closed" in str(problem).lower()


def _words(problem: BaseException) -> str:
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    return exception_text(problem)
