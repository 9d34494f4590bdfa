"""Models of the Hub: read the headers of a repository once, and keep the result as a row beside the shipped tables.

Headers are copied into a scratch folder as sparse files of the full size, so that they are read like a download.
"""

import contextlib
import datetime
import re
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from moebox import codec, files
from moebox.checkpoint import FORMATS_SEEN, ResolvedModel, model_from_file, model_from_folder
from moebox.checkpoint.gguf import HeaderCutShort
from moebox.checkpoint.gguf import read_header as read_gguf_header
from moebox.checkpoint.safetensors import MAX_HEADER_BYTES, read_index
from moebox.core import catalogue
from moebox.core.model import Checkpoint, Model
from moebox.errors import BadInput, ExternalError, MoeboxError, Unsupported
from moebox.hub import client

INDEX = "model.safetensors.index.json"
TEXTS = ("config.json", "hf_quant_config.json", INDEX, "chat_template.jinja", "tokenizer_config.json")
SEARCHED = 20  # repositories that a search returns; the Hub sorts them by downloads
AT_ONCE = 8  # requests for headers; a checkpoint has up to a few hundred shards
FIRST_READ = 1 << 20  # bytes; holds the header of most shards
MAX_GGUF_HEADER = 256 << 20  # bytes; a vocabulary of 200,000 tokens takes about 8 MB
# Parts of repository names and tags -> format, the more specific first.
FORMATS = ("nvfp4", "mxfp8", "mxfp4", "fp8", "awq", "gptq", "compressed-tensors", "exl3", "exl2", "gguf", "mlx")
_QUANT = re.compile(r"(?:(?:UD|smol)-)?(?:I?Q\d\w*|TQ\d\w*|MXFP4\w*|BF16|F16|F32)", re.IGNORECASE)
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptModel:
    """A model as it was read from the Hub: the row that is kept."""

    repo: str
    revision: str = ""  # as asked for; "" is the default branch
    commit: str
    read_on: str  # date
    model: Model
    checkpoints: tuple[Checkpoint, ...]
    notes: tuple[str, ...] = ()
    # format -> repositories seen on the Hub, the most downloaded first
    formats: dict[str, tuple[str, ...]] = field(default_factory=dict)
    files: tuple[client.HubFile, ...] = ()

    def resolve(self) -> ResolvedModel:
        """Return the row as a model to plan with, with a note on where it is from."""
        where = f"{self.repo}@{self.revision or 'main'}"
        notes = [f"{where} ({self.commit[:12]}) read on {self.read_on}; `moebox models add` reads it again"]
        own = (each.name.partition(":")[2] or each.quant for each in self.checkpoints)  # a GGUF by its file's name
        formats = dict.fromkeys(own, (self.repo,)) | self.formats
        if len(formats) > 1:
            seen = ", ".join(f"{kind} ({repos[0]})" for kind, repos in formats.items())
            notes.append(f"{FORMATS_SEEN}: {seen}")
        return ResolvedModel(model=self.model, checkpoints=self.checkpoints, notes=(*notes, *self.notes))


def kept_path(repo: str) -> Path:
    return files.moebox_state() / "models" / f"{repo.lower().replace('/', '--')}.json"


def find_kept(repo: str) -> KeptModel | None:
    """Return the kept row of a repository; None if there is none, or if another version of moebox wrote it."""
    path = kept_path(repo)
    with contextlib.suppress(BadInput):
        return codec.decode(KeptModel, codec.load_json(path), where=str(path)) if path.is_file() else None
    return None


def kept_models() -> list[KeptModel]:
    folder = files.moebox_state() / "models"
    names = sorted(path.stem.replace("--", "/", 1) for path in folder.glob("*--*.json"))
    return [kept for kept in map(find_kept, names) if kept]


def find_kept_checkpoint(name: str) -> tuple[Model, Checkpoint] | None:
    """Find REPOSITORY or REPOSITORY:QUANT, as recipes name it, among the kept rows."""
    repo = name.partition(":")[0]
    kept = find_kept(repo) if client.parse_repo_name(repo) and "@" not in repo else None
    if kept is None:
        return None
    named = (each for each in kept.checkpoints if each.name.lower() == name.lower())
    return next(((kept.model, each) for each in named), None)


def look_up_repository(name: str) -> ResolvedModel | None:
    """Return the model of ORG/REPO[@REVISION], from its kept row or the Hub; None if it cannot be one."""
    parsed = client.parse_repo_name(name)
    if parsed is None:
        return None
    kept = find_kept(parsed[0])
    if kept is None or parsed[1] not in (kept.revision, kept.commit):
        kept = keep_model(*parsed)
    return kept.resolve()


def find_by_name(name: str) -> ResolvedModel | None:
    """Look up a model that no table has on the Hub: the most downloaded repository of that name; None without one."""
    with contextlib.suppress(MoeboxError):
        for repo, _, _ in client.search_repositories(name, SEARCHED):
            if repo.rpartition("/")[2].lower() == name.lower():
                return look_up_repository(repo)
    return None


def keep_model(repo: str, revision: str = "") -> KeptModel:
    """Read a repository from the Hub and keep the row."""
    kept = read_repository(client.list_repository(repo, revision))
    path = kept_path(repo)
    with files.report_write_errors(path):
        files.write_atomic(path, codec.to_json(kept, indent=None))
    return kept


def read_repository(listing: client.HubListing) -> KeptModel:
    """Read config, index and headers of all weights. Raise Unsupported if a repository has none."""
    repo = listing.repo
    with files.scratch_folder("hub") as scratch:
        folder = scratch / repo  # its name helps to recognise the model
        folder.mkdir(parents=True)
        found: list[ResolvedModel] = []
        try:
            if listing.find("config.json") and not listing.find("adapter_config.json"):
                found.append(_read_safetensors(listing, folder))
            found += _read_gguf(listing, folder)
        except MoeboxError as problem:  # names the repository instead of the scratch folder
            problem.message = problem.message.replace(str(folder), repo)
            problem.hint = (problem.hint or "").replace(
                "download is incomplete; run it again", "repository is incomplete"
            )
            raise
        if not found:
            raise _missing_model(listing)
        is_published = any(
            repo.lower() in (known.repo.lower(), *(each.repo.lower() for each in catalogue.published_checkpoints(name)))
            for name, known in catalogue.models().items()
        )
        model = found[0].model
        model = replace(model, trust_remote_code=model.trust_remote_code and is_published, source=listing.url)
        notes = [note.replace(str(folder), repo) for note in dict.fromkeys(n for each in found for n in each.notes)]
        if any(file.path.endswith(".py") for file in listing.files) and not model.trust_remote_code:
            notes.append(f"{repo} contains code of its own, which moebox never runs and the recipe does not allow")
        return KeptModel(
            repo=repo,
            revision=listing.revision,
            commit=listing.commit,
            read_on=datetime.datetime.now(datetime.UTC).date().isoformat(),
            model=model,
            checkpoints=tuple(
                replace(each, model=model.name, revision=listing.commit if listing.revision else "")
                for one in found
                for each in one.checkpoints
            ),
            notes=tuple(notes),
            formats=find_formats(listing),
            files=listing.files,
        )


def _missing_model(listing: client.HubListing) -> Unsupported:
    paths, rows = "\n".join(file.path for file in listing.files), catalogue.load_table("weights")["contents"]
    row = next(row for row in rows if re.search(row["path"], paths, re.MULTILINE))  # the last one always does
    return Unsupported(f"{listing.repo}: {row['text']}", hint=row["hint"])


def _read_safetensors(listing: client.HubListing, folder: Path) -> ResolvedModel:
    """Read a repository with config.json, with or without weights."""
    for name in TEXTS:
        if file := listing.find(name):
            (folder / name).write_bytes(client.read_whole_file(listing, file))
    index = read_index(folder)
    named = (
        index.weight_map.values() if index else client.weight_files((file.path for file in listing.files), listing.repo)
    )
    shards = [file for file in listing.files if file.path in set(named) and "/" not in file.path]

    def copy_header(file: client.HubFile) -> None:
        head = client.read_remote(listing, file, 0, FIRST_READ)
        (length,) = struct.unpack("<Q", head[:8].ljust(8, b"\xff"))
        if length > min(MAX_HEADER_BYTES, file.size - 8):
            raise ExternalError(f"{listing.repo}: {file.path} does not begin with a safetensors header")
        head += client.read_remote(listing, file, len(head), 8 + length)
        write_sparse(folder / file.path, head[: 8 + length], file.size)

    _run_at_once(copy_header, shards)
    found = model_from_folder(folder)
    checkpoint = replace(found.checkpoints[0], name=listing.repo, repo=listing.repo, path="", source=listing.url)
    return replace(found, checkpoints=(checkpoint,))


def _read_gguf(listing: client.HubListing, folder: Path) -> list[ResolvedModel]:
    """Read each quantisation of a repository with GGUF files; vision projectors and importance matrices are not."""
    weights = [
        file
        for file in listing.files
        if file.path.endswith(".gguf") and not re.search("mmproj|imatrix", file.path, re.IGNORECASE)
    ]

    def copy_header(file: client.HubFile) -> None:
        path, size = folder / file.path, FIRST_READ
        path.parent.mkdir(parents=True, exist_ok=True)
        head = b""
        while True:
            head += client.read_remote(listing, file, len(head), size)
            path.write_bytes(head)
            try:
                read_gguf_header(path)
            except HeaderCutShort:
                if len(head) >= min(file.size, MAX_GGUF_HEADER):
                    raise
                size *= 4
                continue
            write_sparse(path, head, file.size)
            return

    _run_at_once(copy_header, weights)
    found = []
    for file in weights:
        part = _PART.search(file.path)
        if part and part[1] != "00001":
            continue
        each = model_from_file(folder / file.path)
        stem = _PART.sub("", Path(file.path).name).removesuffix(".gguf")
        quant = (_QUANT.findall(stem) or [stem])[-1]
        name = f"{listing.repo}:{quant}"
        checkpoint = replace(
            each.checkpoints[0], name=name, repo=listing.repo, path="", file=file.path, source=listing.url
        )
        found.append(replace(each, checkpoints=(checkpoint,)))
    return found


def write_sparse(path: Path, head: bytes, size: int) -> None:
    """Write the beginning of a file; the rest is a hole that takes no room."""
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(size)


def _run_at_once(work: Callable[[client.HubFile], None], items: list[client.HubFile]) -> None:
    """Do `work` for all items in a few threads; the first failure is raised."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for _ in pool.map(work, items):
            pass


def name_format(repo: str, tags: tuple[str, ...]) -> str:
    """Return the format that the name of a repository or its tags state, or ""."""
    return next((kind for text in (repo, " ".join(tags)) for kind in FORMATS if kind in text.lower()), "")


def find_formats(listing: client.HubListing) -> dict[str, tuple[str, ...]]:
    """Return the quantised versions of a model that the Hub knows, by format; {} if it cannot be asked."""
    base = next((tag.rpartition(":")[2] for tag in listing.tags if tag.startswith("base_model:quantized:")), "")
    found: dict[str, tuple[str, ...]] = {}
    with contextlib.suppress(MoeboxError):
        for repo, _, tags in client.list_quantized(base or listing.repo):
            kind = name_format(repo, tags)
            if kind and repo != listing.repo:
                found[kind] = (*found.get(kind, ()), repo)
    return found
