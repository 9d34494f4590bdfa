"""One streamed request, timed where the bytes arrive.

`ask` sends one and reads it whole, `Exchange` hands over its events as they come, `Tape` is the record the load
generator keeps of each of thousands. Times come from the kernel's receive timestamps where it gives them.
"""

from moebox.stream.events import CONTENT, REASONING, TOOL, Event
from moebox.stream.exchange import Exchange, Reply, ask
from moebox.stream.tape import Tape

__all__ = ["CONTENT", "REASONING", "TOOL", "Event", "Exchange", "Reply", "Tape", "ask"]
