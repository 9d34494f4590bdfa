"""Names in the C++ sources of llama.cpp and ik_llama.cpp by month: architectures, types, CUDA flash attention."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

FIRST_MONTH = (2025, 10)
FATTN = "ggml/src/ggml-cuda/fattn.cu"
VECTOR = "ggml/src/ggml-cuda/fattn-vec-f16.cu"
TYPE = re.compile(r"GGML_TYPE_(\w+)")
# engine: (name of its table of architectures, file and pattern of the cache types)
TABLES = {
    "llama.cpp": (("common/arg.cpp", r"kv_cache_types = \{(.*?)\}"),),
    "ik_llama.cpp": (("common/common.cpp", r"kv_cache_type_from_str\(.*?\{(.*?)throw"),),
}
Row = tuple[str, str, str]  # kind, name, file:line


def git(repository: Path, *args: str) -> str:
    done = subprocess.run(["git", "-C", str(repository), *args], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def snapshots(engine: str, repository: Path) -> Iterator[tuple[str, str]]:
    """Yield the version and commit of the last state of every month; llama.cpp's version is its build tag."""
    newest = git(repository, "log", "-1", "--format=%cs", "HEAD").strip()
    year, month = FIRST_MONTH
    while (year, month) <= (int(newest[:4]), int(newest[5:7])):
        year, month = (year, month + 1) if month < 12 else (year + 1, 1)
        commit = git(repository, "rev-list", "-1", f"--before={year}-{month:02d}-01T00:00:00Z", "HEAD").strip()
        if engine == "llama.cpp":
            tag = git(repository, "describe", "--tags", "--match", "b[0-9]*", "--abbrev=0", commit).strip()
            yield tag, git(repository, "rev-list", "-1", f"refs/tags/{tag}").strip()
        else:
            yield git(repository, "log", "-1", "--format=%cs", commit).strip(), commit


def read_repository(engine: str, repository: Path, facts: Path) -> str:
    """Write the facts of every snapshot and return a line about them."""
    if engine not in TABLES or not git(repository, "rev-parse", "HEAD"):
        raise ValueError(f"{engine}={repository} is not a git repository of llama.cpp or ik_llama.cpp")
    done = []
    for version, commit in snapshots(engine, repository):
        made = [
            {"kind": "name", "key": {"kind": kind, "name": name}, "value": {"known": True}, "at": at}
            for kind, name, at in read_commit(engine, repository, commit)
        ]
        date = git(repository, "log", "-1", "--format=%cs", commit).strip()
        made.append(
            {"kind": "commit", "key": {"version": version}, "value": {"commit": commit[:12], "date": date}, "at": ""}
        )
        (facts / f"{engine}-{version}.json").write_text(json.dumps(made), encoding="utf-8")
        done.append(version)
    return f"{engine}: {', '.join(done)}"


def read_commit(engine: str, repository: Path, commit: str) -> Iterator[Row]:
    """Yield the names that one commit knows."""

    def text(path: str) -> str:
        return git(repository, "show", f"{commit}:{path}")

    for path in ("src/llama-arch.cpp", "src/llama.cpp"):
        table = re.search(r"LLM_ARCH_NAMES = \{(.*?)\n\};", source := text(path), re.S)
        if table:
            at = f"{path}:{source[: table.start()].count(chr(10)) + 1}"
            names = re.findall(r'LLM_ARCH_\w+,\s*"([^"]+)"', table[1])
            yield from (("architecture", name, at) for name in names if name not in ("(unknown)", "clip"))
            break
    source = text("ggml/include/ggml.h")
    types = re.search(r"enum ggml_type \{(.*?)\}", source, re.S)
    if types:
        at = f"ggml/include/ggml.h:{source[: types.start()].count(chr(10)) + 1}"
        listed = re.findall(r"^\s*GGML_TYPE_(\w+)\s*=", types[1], re.M)
        yield from (("type", name.lower(), at) for name in listed if name != "COUNT")
    for path, pattern in TABLES[engine]:
        found = re.search(pattern, source := text(path), re.S)
        if found:
            at = f"{path}:{source[: found.start()].count(chr(10)) + 1}"
            spelled = re.findall(r's == "([^"]+)"', found[1]) or [x.lower() for x in TYPE.findall(found[1])]
            yield from (("cache-type", name, at) for name in spelled)
    yield from flash_attention(engine, text(FATTN), text(VECTOR))


def flash_attention(engine: str, source: str, vector: str) -> Iterator[Row]:
    """Yield head sizes and cache types of flash attention on CUDA; "-all-quants" needs GGML_CUDA_FA_ALL_QUANTS."""
    if engine == "llama.cpp":
        body = re.search(r"best_fattn_kernel ggml_cuda_get_best_fattn_kernel\(.*?\n\}", source, re.S)
        sizes = re.search(r"switch \(K->ne\[0\]\) \{(.*?)default", body[0], re.S) if body else None
        if body and sizes:
            at = f"{FATTN}:{source[: body.start()].count(chr(10)) + 1}"
            yield from (("cuda-fattn-head-size", size, at) for size in re.findall(r"case\s+(\d+)", sizes[1]))
        types = re.search(r"switch \((?:type|K->type)\) \{(.*?)default", source, re.S)
        if types:
            at = f"{FATTN}:{source[: types.start()].count(chr(10)) + 1}"
            always, rest = types[1], ""
            guarded = re.search(r"(?:case GGML_TYPE_\w+:\s*)+(?=#ifndef GGML_CUDA_FA_ALL_QUANTS)", types[1])
            if guarded:
                always, rest = types[1].replace(guarded[0], ""), guarded[0]
            yield from (("cuda-fattn-cache-type", name.lower(), at) for name in TYPE.findall(always))
            yield from (("cuda-fattn-cache-type-all-quants", name.lower(), at) for name in TYPE.findall(rest))
        return
    sizes_at = f"{FATTN}:{source[: source.find('ggml_cuda_fattn_is_supported')].count(chr(10)) + 1}"
    pairs = set(re.findall(r"K->ne\[0\] == (\d+) && V->ne\[0\] == (\d+)", source))
    yield from (("cuda-fattn-mma-head-size", f"{k}/{v}", sizes_at) for k, v in sorted(pairs))
    branch = re.search(r"#ifdef GGML_CUDA_FA_ALL_QUANTS(.*?)#else(.*?)#endif", vector, re.S)
    if branch:
        at = f"{VECTOR}:{vector[: branch.start()].count(chr(10)) + 1}"
        for kind, part in (("cuda-fattn-vector", branch[2]), ("cuda-fattn-vector-all-quants", branch[1])):
            cases = re.findall(
                r"CASE(?:_DKDV)?\(\s*(\d+)(?:,\s*\d+)?,\s*GGML_TYPE_(\w+)\s*,\s*GGML_TYPE_(\w+)\s*\)", part
            )
            yield from ((kind, f"{size} {k.lower()}/{v.lower()}", at) for size, k, v in cases)
