"""One streamed request, timed where the bytes arrive.

`ask` sends one and reads it whole, `Exchange` hands over its events as they come. Times come from the kernel's receive
timestamps where it gives them. The load generator records thousands at once with the same parts (bench/generator).
"""

from moebox.stream.events import CONTENT, REASONING, TOOL, StreamEvent
from moebox.stream.exchange import StreamExchange, StreamReply, send_request

__all__ = ["CONTENT", "REASONING", "TOOL", "StreamEvent", "StreamExchange", "StreamReply", "send_request"]
