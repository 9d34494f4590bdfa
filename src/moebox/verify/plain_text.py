"""Text of a server made fit to be shown."""

from moebox.escape import LONGEST, one_line

__all__ = ["LONGEST", "one_line"]
