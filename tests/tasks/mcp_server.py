"""A small MCP server for the tests: `stdio`, or `http PORT`."""

import os
import random
import sys
import time

from mcp.server.mcpserver import MCPServer

server = MCPServer("dice")


@server.tool()
def roll(sides: int) -> str:
    """Roll a die."""
    return f"rolled {random.Random(1).randint(1, sides)}"


@server.tool()
def refuse() -> str:
    """Say no."""
    raise ValueError("not today")


@server.tool()
def crash() -> str:
    """Die."""
    os._exit(7)


@server.tool()
def sleep() -> str:
    """Never answer."""
    time.sleep(30)
    return "late"


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
