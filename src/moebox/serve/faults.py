"""The ways a launch can fail.

exited   ended with an error before it served
quit     ended with code 0 before it served
stuck    no progress and no answer for longer than the patience
mute     healthy, but does not answer a chat
died     ended after it had been ready
oom      killed by the kernel because memory ran out
"""

import signal
from typing import Literal

from moebox.core.symptom import Finding
from moebox.doctor.logs import LogSearch
from moebox.errors import ExternalError

Fault = Literal["exited", "quit", "stuck", "mute", "died", "unstartable", "oom"]


class LaunchFailed(ExternalError):
    """An engine does not serve; `finding` is the known cause if the log shows one."""

    def __init__(self, message: str, *, fault: Fault, finding: Finding | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.fault = fault
        self.finding = finding


def launch_failure(fault: Fault, what: str, search: LogSearch, *, log: str) -> LaunchFailed:
    """The failure in one line, with the first cause in the log and its fix."""
    search.finish()
    cause = search.cause
    if cause is None:
        reason = f": {search.unknown_failure}" if search.unknown_failure else ""
        hint = f"{MEMORY_HINT}. The log is {log}" if fault == "oom" else f"no known symptom; the log is {log}"
        return LaunchFailed(f"{what}{reason}", fault=fault, hint=hint)
    hint = cause.remedy
    if cause.change:
        hint += f" (in the recipe: {cause.change_text}; `moebox up --apply-remedy` tries it)"
    hint += f". Line {cause.line} of {log}: {cause.text[:160]}"
    return LaunchFailed(f"{what}: {cause.cause}", fault=fault, finding=cause, hint=hint)


MEMORY_HINT = "use a shorter context, fewer sequences or a smaller batch; `moebox plan` shows what fits"
OUT_OF_MEMORY = "ran out of memory: the kernel's OOM killer ended it"


def describe_exit(code: int | None, *, oom: bool = False) -> str:
    """How a process ended, as a phrase."""
    if oom:
        return OUT_OF_MEMORY
    if code is None:
        return "vanished"
    if code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"ended with code {code}"
