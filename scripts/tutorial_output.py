"""Output in the tutorials, made by the commands that stand above it.

python scripts/tutorial_output.py           # run every command again and write its output; a test keeps it current
python scripts/tutorial_output.py --check   # exit 1 if a block is not current
python scripts/tutorial_output.py --record  # also what an engine answers: serves the rehearsal model for some minutes

A page has `<!-- output: moebox … -->` before a block and `<!-- end of output -->` after it. Commands of one page run in
one folder, in their order. `<!-- recorded: NAME -->` is a file of scripts/recorded: real output that takes an engine.
"""

import argparse
import contextlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "scripts" / "recorded"
PAGES = sorted((ROOT / "docs").rglob("*.md"))
BLOCK = re.compile(r"<!-- (output|recorded): (.+?) -->\n.*?<!-- end of output -->", re.DOTALL)
LOG = ROOT / "tests" / "logs" / "vllm-0.32-kv-too-small.log"  # is engine.log in the folder of a page
ADDRESS = "http://127.0.0.1:8000/v1"
# What is recorded with the rehearsal model as the server: name -> arguments of moebox.
SESSIONS = {
    "verify": f"verify {ADDRESS} --only alive,streaming,json,errors --effort quick",
    "bench": f"bench {ADDRESS} --concurrency 1,2 --input 64 --output 32 --requests 8",
    "connect": f"connect openai {ADDRESS}",
}


def command_output(command: str) -> str:
    """Run one command in this process and return what it prints, errors last."""
    from moebox.cli import main, output

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        output.stdout_console.cache_clear()
        output.stderr_console.cache_clear()
        main(shlex.split(command)[1:])
    return out.getvalue() + err.getvalue()


def recorded_output(name: str) -> str:
    """Return a kept recording; of a run only the steps and the assessment."""
    if name != "run":
        return (RECORDED / f"{name}.txt").read_text(encoding="utf-8")
    lines = [str(text) for _, text in json.loads((RECORDED / "run.json").read_text(encoding="utf-8"))]
    result = lines.index("")
    steps = [line for line in lines[:result] if line[:1] in ("✓", "✗")]
    return "\n".join(["$ moebox run", *steps, *lines[result:]])


def with_output(text: str, *, folder: Path) -> str:
    """Return a page with every block made again."""

    def made_block(found: re.Match[str]) -> str:
        kind, source = found.groups()
        shown = f"$ {source}\n{command_output(source)}" if kind == "output" else recorded_output(source)
        lines = [line.rstrip().replace(str(folder), "~") for line in shown.strip().splitlines()]
        return "\n".join([f"<!-- {kind}: {source} -->", "```", *lines, "```", "<!-- end of output -->"])

    return BLOCK.sub(made_block, text)


def record_sessions() -> None:
    """Serve the rehearsal model and keep what the commands of SESSIONS print."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "MOEBOX_RUNS": f"{folder}/runs", "MOEBOX_STATE": f"{folder}/state"}
        program = [sys.executable, "-m", "moebox"]
        subprocess.run([*program, "up", "phantom", "--detach", "--port", "8000"], env=env, check=True)
        try:
            for name, words in SESSIONS.items():
                command = [*program, *words.split()]
                with open(RECORDED / f"{name}.txt", "w+", encoding="utf-8") as kept:  # both streams in their order
                    subprocess.run(command, env=env, check=False, stdout=kept, stderr=subprocess.STDOUT)
                    kept.seek(0)
                    text = f"$ moebox {words}\n{kept.read().replace(folder, '~')}"
                (RECORDED / f"{name}.txt").write_text(text, encoding="utf-8")
        finally:
            subprocess.run([*program, "down"], env=env, check=False)


def main() -> int:
    """Write, check or record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a block is not current")
    parser.add_argument("--record", action="store_true", help="record the commands that need an engine first")
    given = parser.parse_args()
    os.environ |= {"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}
    if given.record:
        record_sessions()
    stale = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if not BLOCK.search(text):
            continue
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            shutil.copy(LOG, "engine.log")
            for name in ("RUNS", "STATE", "CALIBRATIONS"):
                os.environ[f"MOEBOX_{name}"] = f"{folder}/{name.lower()}"
            made = with_output(text, folder=Path(folder))
        if made != text:
            stale.append(str(page.relative_to(ROOT)))
            if not given.check:
                page.write_text(made, encoding="utf-8")
    print("\n".join(stale) or "every block is current")
    return int(given.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
