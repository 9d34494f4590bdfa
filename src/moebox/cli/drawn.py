"""What is redrawn on a terminal while something goes on, and left as it is elsewhere."""

from types import TracebackType

from rich.live import Live


class LiveDisplay:
    """A view with a `live` display, begun where there is a terminal; it ends with the block, whatever ended that."""

    live: Live | None = None

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live:
            self.live.__exit__(kind, value, trace)
            self.live = None
            self.print_final()

    def print_final(self) -> None:
        """Print what is to stay on the screen; nothing, unless a view says so."""
