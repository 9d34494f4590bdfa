"""Names of repositories as users write them, and which files of a repository are one set of weights."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from moebox.core import catalogue
from moebox.errors import BadInput, Unsupported, refuse_if

if TYPE_CHECKING:
    from moebox.hub.client import HubFile, HubListing

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_VALID = re.compile(r"(?!.*(?:--|\.\.)).{1,96}")
_REVISION = re.compile(r"(?!.*\.\.)[A-Za-z0-9][\w./+-]{0,199}", re.ASCII)
_LABEL = re.compile(r"(?!.*\.\.)\w[\w./+() -]{0,299}")
_ADDRESS = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/")
_PAGE = re.compile(r"/(?:tree|blob|resolve)/([^/]+)(?:/(.+\.gguf)|/.*)?$")
_SHARD = re.compile(r"(.+)-\d{5}-of-(\d{5})\.safetensors")
_GGUF = re.compile(r"(.*?)(?:-\d{5}-of-(\d{5}))?\.gguf")
_QUANT = re.compile(r"(?i)(?:(?:UD|smol)-)?(?:[IT]?Q\d\w*|(?:MX|NV)FP4\w*|BF16|FP?(?:16|32))(?![^\W_])")
# Loaded beside a model: common/download.cpp of llama.cpp (22 Aug 2026), gguf_filename_is_model.
_SIDECAR = re.compile(r"(?i:mmproj|imatrix)|(?:mtp|eagle3|dflash|dspark)-")


class RepoName(NamedTuple):
    """ORG/REPO[@REVISION][:QUANT]."""

    repo: str
    revision: str = ""  # a branch, a tag or a commit; "" is the default branch
    quant: str = ""  # of a GGUF, or its path without parts and .gguf

    def __str__(self) -> str:
        return self.repo + f"@{self.revision}" * bool(self.revision) + f":{self.quant}" * bool(self.quant)


def hub_endpoint() -> str:
    """The address of the Hub, from HF_ENDPOINT."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def parse_repo_name(name: str) -> RepoName | None:
    """Split ORG/REPO[@REVISION][:QUANT], or the address of a page; None if `name` cannot be a repository."""
    plain = _ADDRESS.sub("", name.removeprefix(f"{hub_endpoint()}/"), count=1).partition("?")[0].rstrip("/")
    refuse_if(plain.startswith(("datasets/", "spaces/")), f"{name}: is a dataset or a space of the Hub, not a model")
    if page := _PAGE.search(plain):
        revision = unquote(page[1]) * (page[1] != "main")
        plain = str(RepoName(plain[: page.start()], revision, unquote(page[2] or "")))
    repo, *marks = re.split(r"(?=[@:])", plain)
    if not _NAME.fullmatch(repo):
        return None
    refuse_if(not _VALID.fullmatch(repo), f"{name}: not a valid name of a repository")
    given = {mark[0]: mark[1:] for mark in marks}
    invalid = not _REVISION.fullmatch(given.get("@", "main"))
    refuse_if(invalid, f"{name}: not a valid revision", hint="a branch, a tag or a commit of the repository")
    invalid = len(given) < len(marks) or not _LABEL.fullmatch(given.get(":", "Q8_0"))
    refuse_if(invalid, f"{name}: not a valid quantization", hint="ORG/REPO[@REVISION][:QUANT], such as :Q4_K_M")
    return RepoName(repo, given.get("@", ""), given.get(":", "").removesuffix(".gguf"))


def weight_files(paths: Iterable[str], where: str) -> list[str]:
    """Return the shards that engines load without an index. Raise BadInput if one is missing."""
    found = sorted(path for path in paths if path.endswith(".safetensors") and "/" not in path)
    plain = [path for path in found if not path.startswith(("consolidated", "adapter_model"))] or found
    for stem, count in {(part[1], part[2]) for path in plain if (part := _SHARD.fullmatch(path))}:
        names = [f"{stem}-{number:05d}-of-{count}.safetensors" for number in range(1, int(count) + 1)]
        missing = ", ".join(sorted(set(names) - set(plain)))
        text = f"{where}: shards are missing: {missing[:200]}"
        refuse_if(missing, text, hint="the download is incomplete; run it again")
    return plain


def group_gguf_files(files: Iterable["HubFile"]) -> dict[str, list["HubFile"]]:
    """Group the parts of each GGUF under its quantization, or under its path if several have that quantization.

    Vision projectors, drafts and importance matrices are left out.
    """
    parts: dict[tuple[str, str], list[HubFile]] = {}
    for file in sorted(files, key=lambda file: file.path):
        match = _GGUF.fullmatch(file.path)
        if match and not _SIDECAR.search(file.path.rpartition("/")[2]):
            parts.setdefault((match[1], match[2] or ""), []).append(file)
    quants = {key: (_QUANT.findall(key[0]) or [key[0]])[-1] for key in parts}
    uses, stems = Counter(map(str.lower, quants.values())), Counter(stem for stem, _ in parts)
    labels = {}
    for (stem, count), quant in quants.items():
        own = stem if stems[stem] == 1 else f"{stem}-of-{count or 1}"
        labels[quant if uses[quant.lower()] == 1 else own] = parts[stem, count]
    return labels


def select_gguf(groups: Mapping[str, Sequence["HubFile"]], name: RepoName) -> str:
    """Return the group that `name.quant` means, by llama.cpp's rule. Raise BadInput if it is none, or several."""
    wanted = _GGUF.sub(r"\1", f"{name.quant.lower()}.gguf")
    paths = {label: parts[0].path.lower() for label, parts in groups.items()}
    exact = [label for label, path in paths.items() if wanted in (label.lower(), _GGUF.sub(r"\1", path))]
    alike = [label for label, path in paths.items() if re.search(re.escape(wanted) + "[.-]", path)]
    found = exact or alike
    if len(found) != 1:
        rest = f"name one: {', '.join(found)}" if found else f"there are {', '.join(groups) or 'none at all'}"
        again = f"`moebox models add {name.repo}` reads the repository again if it has changed"
        raise BadInput(f"{name.repo}: {len(found)} GGUF files are called {name.quant}; {rest}", hint=again)
    return found[0]


def gguf_part_names(path: str) -> list[str]:
    """Return the names of all parts of a GGUF file, of which one is named."""
    match = _GGUF.fullmatch(path)
    if match is None or not match[2]:
        return [path]
    return [f"{match[1]}-{number:05d}-of-{match[2]}.gguf" for number in range(1, max(int(match[2]), 1) + 1)]


def missing_gguf_parts(parts: Sequence["HubFile"]) -> str:
    """Name the parts of a GGUF that the repository lacks; "" if it is complete."""
    wanted = gguf_part_names(parts[0].path)
    missing = sorted(set(wanted) - {part.path for part in parts})
    if not missing:
        return ""
    lead = "they have no first part; " if missing[0] == wanted[0] else ""
    return f"{lead}{len(missing)} of {len(wanted)} parts are missing, the first is {missing[0].rpartition('/')[2]}"


def describe_contents(listing: "HubListing") -> Unsupported:
    """Describe a repository that has no weights to plan or fetch, and what to name instead."""
    paths, rows = "\n".join(file.path for file in listing.files), catalogue.load_table("weights")["contents"]
    row = next(row for row in rows if re.search(row["path"], paths, re.MULTILINE))  # the last one always does
    base = re.search(r"base_model:adapter:(\S+)", " ".join(listing.tags))
    hint = f"`moebox plan {base[1]}` plans its base; " if base else ""
    return Unsupported(f"{listing.repo}: {row['text']}", hint=hint + row["hint"])
