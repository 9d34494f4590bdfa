"""Twenty tasks of a new user, with moebox installed from its wheel: no checkout, nothing but --help and the docs.

python benchmarks/twenty_tasks.py                 # builds the wheel, installs it into a new environment, then the tasks
python benchmarks/twenty_tasks.py --python FILE   # takes an environment that has it

A task is done if its commands end with the expected exit code, the answer is in their output, every command and flag in
them is explained by the installed `--help`, and the command stands in README.md or docs/.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD = "import sys; from hatchling import build; print(build.build_wheel(sys.argv[1]))"
LOG = "vllm-0.32-port-in-use.log"  # of tests/logs: what a user would have on disk
HYBRID = "--box 2x-rtx-5090 --ram 512GiB --ram-bandwidth 460GB/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A question, the commands that answer it, and what the answer contains."""

    question: str
    commands: tuple[str, ...]
    answer: str  # a regular expression
    code: int = 0
    file: str = ""  # that has to exist afterwards


TASKS = (
    Task(question="what do I do first on this machine", commands=("moebox",), answer="now, on this machine"),
    Task(question="which models are there", commands=("moebox models",), answer="glm-5.3"),
    Task(question="how large is Kimi K2.6", commands=("moebox models show kimi-k2.6",), answer=r"595\.1 GB"),
    Task(
        question="does it run on 8 RTX PRO 6000s",
        commands=("moebox plan kimi-k2.6 --box 8x-rtx-pro-6000-server",),
        answer="✓ fits",
    ),
    Task(
        question="and on one RTX 4090",
        commands=("moebox plan kimi-k2.6 --box 1x-rtx-4090",),
        answer="does not fit",
        code=1,
    ),
    Task(question="and with experts in RAM", commands=(f"moebox plan glm-5.3-flash {HYBRID}",), answer=r"GiB of RAM"),
    Task(
        question="keep the plan as a file",
        commands=("moebox plan kimi-k2.6 --box 8x-rtx-pro-6000-server -o recipe.toml",),
        answer="moebox up recipe.toml",
        file="recipe.toml",
    ),
    Task(question="what would be started", commands=("moebox up recipe.toml --dry-run",), answer="vllm serve"),
    Task(
        question="as a Compose file",
        commands=("moebox render recipe.toml --as compose -o compose.yaml",),
        answer="",
        file="compose.yaml",
    ),
    Task(
        question="how fast for 1, 8 and 32 users",
        commands=("moebox forecast kimi-k2.6 --box 8x-b200 --input 8192 --output 2048 --concurrency 1,8,32",),
        answer="out tok/s",
    ),
    Task(question="is this machine fit", commands=("moebox doctor box",), answer=r"checks: \d+ failed"),
    Task(
        question="why did the engine die", commands=("moebox doctor logs engine.log",), answer="cause: .*port", code=1
    ),
    Task(question="start the small model", commands=("moebox up phantom --detach",), answer="ready after"),
    Task(question="what runs", commands=("moebox ps",), answer="phantom"),
    Task(
        question="is it right",
        commands=("moebox verify --only alive,json --effort quick",),
        answer=r"(pass|warn): \d of 2 checks passed",
    ),
    Task(
        question="how fast is it",
        commands=("moebox bench --concurrency 1 --requests 4 --set allow_failures=true",),
        answer="out tok/s",
    ),
    Task(question="use it from Python", commands=("moebox connect openai",), answer="OPENAI_BASE_URL"),
    Task(
        question="stop it and see that it is gone",
        commands=("moebox down", "moebox ps"),
        answer="nothing is running",
    ),
    Task(question="a report of the measurement", commands=("moebox report latest",), answer=r"report\.html"),
    Task(question="a folder to publish", commands=("moebox pack latest -o published",), answer="", file="published"),
)


class NewUser:
    """An environment with the wheel, an empty folder, and no other setting."""

    def __init__(self, python: Path, folder: Path) -> None:
        self.bin, self.folder = python.parent, folder
        kept = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
        self.env = {**kept, "HOME": str(folder), "PATH": f"{self.bin}:/usr/bin:/bin", "COLUMNS": "80"}
        self.env |= {"NO_COLOR": "1", "TERM": "dumb"}
        self.docs = "\n".join(
            path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
        )

    def type_command(self, command: str) -> tuple[int, str]:
        """Run it as typed and return exit code and everything printed."""
        words = [str(self.bin / "moebox"), *shlex.split(command)[1:]]
        done = subprocess.run(
            words, cwd=self.folder, env=self.env, capture_output=True, text=True, check=False, timeout=600
        )
        return done.returncode, done.stdout + done.stderr

    def unexplained(self, command: str) -> str:
        """Return the first word of a command that help and docs do not explain; empty if they explain all."""
        _, *words = shlex.split(command)
        if not words:
            return ""
        overview = self.type_command("moebox help")[1]
        if f"\n  {words[0]} " not in overview or f"moebox {words[0]}" not in self.docs:
            return words[0]
        pair = words[:2] if len(words) > 1 and words[0] in ("models", "doctor") else words[:1]
        page = self.type_command(f"moebox {' '.join(pair)} --help")[1]
        flags = [word for word in words if re.match("--?[a-z]", word)]
        return next((flag for flag in flags if not re.search(rf"(^|\s){flag}\b", page)), "")

    def do_task(self, task: Task) -> str:
        """Return why a task could not be done; empty if it was."""
        code, shown = 0, ""
        for command in task.commands:
            if word := self.unexplained(command):
                return f"{word} of `{command}` is not explained"
            code, shown = self.type_command(command)
        if code != task.code:
            return f"exit code {code}, not {task.code}: {shown[-300:]}"
        if not re.search(task.answer, shown):
            return f"no {task.answer!r} in: {shown[-300:]}"
        return f"{task.file} was not written" if task.file and not (self.folder / task.file).exists() else ""


def install_wheel(folder: Path) -> Path:
    """Build the wheel of this tree, install it with the embedded engine, and return the environment's Python."""
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(folder)], cwd=ROOT, check=True, capture_output=True, text=True
    )
    wheel = folder / done.stdout.split()[-1]
    subprocess.run([sys.executable, "-m", "venv", str(folder / "env")], check=True)
    python = folder / "env" / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{wheel}[embedded]"]
    subprocess.run(install, check=True, stderr=subprocess.DEVNULL)
    return python


def main() -> int:
    """Do the tasks and print how many were done."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", type=Path, help="an environment's Python that has moebox installed from the wheel")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        python = given.python.absolute() if given.python else install_wheel(folder)
        home = folder / "home"
        home.mkdir()
        (home / "engine.log").write_bytes((ROOT / "tests" / "logs" / LOG).read_bytes())
        user, done = NewUser(python, home), 0
        try:
            for task in TASKS:
                problem = user.do_task(task)
                done += not problem
                print(f"{'✗' if problem else '✓'} {task.question}" + (f": {problem}" if problem else ""), flush=True)
        finally:
            user.type_command("moebox down")
    print(f"{done} of {len(TASKS)}")
    return int(done < len(TASKS))


if __name__ == "__main__":
    sys.exit(main())
