"""Files made from the command line itself: docs/reference/cli.md, the man page and the completion scripts in share/.

python scripts/reference.py          # write them
python scripts/reference.py --check  # exit 1 if one is not current
"""

import contextlib
import io
import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
WIDTH = "100"
ENVIRONMENT = {
    "MOEBOX_RUNS": "Folder of run folders.",
    "MOEBOX_STATE": "Folder of the records of engines that moebox started.",
    "MOEBOX_CALIBRATIONS": "Folder of calibrations.",
    "MOEBOX_API_KEY": "Key for an endpoint that asks for one.",
    "NO_COLOR": "Print without colour.",
}
EXAMPLES = (
    "moebox run",
    "moebox plan kimi-k2.6 --box 8x-rtx-pro-6000-server",
    "moebox verify http://127.0.0.1:8000/v1",
)
COMPLETIONS = {
    "bash": "share/bash-completion/completions/moebox",
    "zsh": "share/zsh/site-functions/_moebox",
    "fish": "share/fish/vendor_completions.d/moebox.fish",
}


def reference_page() -> str:
    """Return the help of every command as one Markdown page."""
    from moebox.cli import COMMANDS, main, section_of

    parts = ["# Command line", "", "Made from the commands' own help by `python scripts/reference.py`.", ""]
    for name in sorted(COMMANDS, key=lambda name: (section_of(name.partition(" ")[0]), name)):
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            main([*name.split(), "--help"])
        trimmed = "\n".join(line.rstrip() for line in text.getvalue().strip().splitlines())
        parts += [f"## moebox {name}", "", "```", trimmed, "```", ""]
    return "\n".join(parts)


def man_page() -> str:
    """Return the man page: commands with their options, environment, exit codes and examples."""
    from moebox import __version__
    from moebox.cli import COMMANDS, GROUPS, SECTIONS
    from moebox.cli.completion import command_options

    lines = [f'.TH MOEBOX 1 "" "moebox {__version__}" "User Commands"', ".SH NAME"]
    lines += ["moebox \\- plan, start, verify, measure and report LLM endpoints", ".SH SYNOPSIS"]
    lines += [".B moebox", "[\\fICOMMAND\\fR] [\\fIARGUMENTS\\fR] [\\fIOPTIONS\\fR]", ".SH DESCRIPTION"]
    lines.append("From the box you have and a mixture-of-experts model to a checked, measured endpoint.")
    lines.append("Without a command: what to do now on this machine.")
    for title, group in (*SECTIONS.items(), ("More", ("completion",))):
        lines.append(f".SH {title.upper()}")
        for name in (name for head in group for name in COMMANDS if name.partition(" ")[0] == head):
            options = " ".join(command_options(name)).replace("-", "\\-")
            about = COMMANDS[name][1] or GROUPS[name]
            lines += [".TP", f".B moebox {name}", about, *([".br", f"Options: {options}"] if options else [])]
    lines += [".SH OPTIONS OF EVERY COMMAND"]
    for option, about in (
        ("--help", "Explain the command and each option."),
        ("--json", "Print one JSON document (commands that print results)."),
        ("--runs FOLDER", "Use another folder of runs."),
        ("--plain", "No colour and no live views."),
        ("--debug", "Print a traceback if the command fails."),
    ):
        lines += [".TP", f".B {option}".replace("-", "\\-"), about]
    lines.append(".SH ENVIRONMENT")
    for variable, about in ENVIRONMENT.items():
        lines += [".TP", f".B {variable}", about]
    lines += [".SH EXIT STATUS", "0 good; 1 done, and the answer is no; 2 bad input;"]
    lines += ["3 something outside is missing or failed; 130 interrupted.", ".SH EXAMPLES", ".nf"]
    return "\n".join([*lines, *(example.replace("-", "\\-") for example in EXAMPLES), ".fi", ""])


def made_files() -> dict[str, str]:
    """Return every made file by its path in the repository."""
    os.environ |= {"COLUMNS": WIDTH, "NO_COLOR": "1", "TERM": "dumb"}
    from moebox.data import FOLDER

    files = {path: (FOLDER / "completion" / f"moebox.{shell}").read_text() for shell, path in COMPLETIONS.items()}
    return {"docs/reference/cli.md": reference_page(), "share/man/man1/moebox.1": man_page(), **files}


def main() -> int:
    """Write, or check."""
    files = made_files()
    if "--check" in sys.argv:
        return int(any(not (ROOT / path).exists() or (ROOT / path).read_text() != text for path, text in files.items()))
    for path, text in files.items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
