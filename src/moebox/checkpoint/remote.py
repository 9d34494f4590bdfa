"""Models of the Hub: read the headers of a repository once, and keep the result as a row beside the shipped tables.

Headers are copied into a scratch folder as sparse files of the full size, so that they are read like a download.
"""

import contextlib
import datetime
import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote

from moebox import codec, files
from moebox.checkpoint import FORMATS_SEEN, ResolvedModel
from moebox.checkpoint.disk import model_from_file, model_from_folder
from moebox.checkpoint.gguf import read_header as read_gguf_header
from moebox.checkpoint.safetensors import MAX_HEADER_BYTES, read_index
from moebox.core import catalogue
from moebox.core.model import Checkpoint, Model
from moebox.errors import BadInput, ExternalError, MoeboxError, Unsupported, refuse_if
from moebox.gguf_file import HeaderCutShort
from moebox.hub import client, names
from moebox.hub.fetch import INDEX
from moebox.hub.names import RepoName

TEXTS = ("config.json", "hf_quant_config.json", INDEX, "chat_template.jinja", "tokenizer_config.json")
SEARCHED = 20  # repositories that a search returns; the Hub sorts them by downloads
AT_ONCE = 8  # requests for headers; a checkpoint has up to a few hundred shards
FIRST_READ = 1 << 20  # bytes; holds the header of most shards
MAX_GGUF_HEADER = 256 << 20  # bytes; a vocabulary of 200,000 tokens takes about 8 MB
# Parts of repository names and tags -> format, the more specific first.
FORMATS = ("nvfp4", "mxfp8", "mxfp4", "fp8", "awq", "gptq", "compressed-tensors", "exl3", "exl2", "gguf", "mlx")


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
    refused: dict[str, str] = field(default_factory=dict)  # weights that cannot be loaded -> reason
    other_models: dict[str, Model] = field(default_factory=dict)  # GGUF files of another shape, by their label

    def resolve(self, wanted: RepoName = RepoName("")) -> ResolvedModel:
        """Return the row, or one GGUF of it, as a model to plan with, with a note on where it is from."""
        where = f"{self.repo}@{self.revision or 'main'}"
        notes = [f"{where} ({self.commit[:12]}) read on {self.read_on}; `moebox models add` reads it again"]
        rows = {each.name.partition(":")[2] or each.quant: each for each in self.checkpoints}
        if len(rows) + len(self.formats) > 1:
            seen = (
                f"{', '.join(rows)} ({self.repo})",
                *(f"{kind} ({repos[0]})" for kind, repos in self.formats.items()),
            )
            notes.append(f"{FORMATS_SEEN}: {', '.join(seen)}")
        notes += [f"{self.repo}:{label} is not planned: {reason}" for label, reason in self.refused.items()]
        shape = "{0.title}, {0.layers} layers of {0.hidden:,}; name it to plan it"
        notes += [f"{self.repo}:{label} is another model: {shape.format(m)}" for label, m in self.other_models.items()]
        label = names.select_gguf(names.group_gguf_files(self.files), wanted) if wanted.quant else ""
        refuse_if(label in self.refused, f"{self.repo}:{label}: {self.refused.get(label)}", hint="name another file")
        chosen = [rows[label]] if label else [each for name, each in rows.items() if name not in self.other_models]
        if wanted.revision:  # a recipe must load this commit; engines of GGUF files have no flag for it
            own, exact = f"{self.repo}:", f"{self.repo}@{self.commit}:"
            chosen = [replace(each, revision=self.commit, name=each.name.replace(own, exact)) for each in chosen]
        model = self.other_models.get(label, self.model)
        return ResolvedModel(model=model, checkpoints=tuple(chosen), notes=(*notes, *self.notes))


def kept_path(name: RepoName) -> Path:
    at = f"@{quote(name.revision, safe='')}" * bool(name.revision)
    return files.moebox_state() / "models" / f"{name.repo.lower().replace('/', '--')}{at}.json"


def _read_kept(path: Path) -> KeptModel | None:
    """Return a kept row; None if there is none, or if another version of moebox wrote it."""
    with contextlib.suppress(BadInput):
        return codec.decode(KeptModel, codec.load_json(path), where=str(path))
    return None


def find_kept(name: RepoName) -> KeptModel | None:
    """Return the kept row of a repository at a revision, which may be the commit of another row."""
    path = kept_path(name._replace(revision=""))
    others = sorted(path.parent.glob(f"{path.stem}@*.json"))
    rows = map(_read_kept, dict.fromkeys((kept_path(name), path, *others)))
    return next((row for row in rows if row and name.revision in (row.revision, row.commit)), None)


def kept_models() -> list[KeptModel]:
    rows = map(_read_kept, sorted((files.moebox_state() / "models").glob("*--*.json")))
    return list({(kept.repo, kept.revision): kept for kept in rows if kept}.values())  # once under an old name


def find_kept_checkpoint(name: str, revision: str) -> tuple[Model, Checkpoint] | None:
    """Find REPOSITORY[@COMMIT][:QUANT], as recipes name it, among the kept rows."""
    parsed = names.parse_repo_name(name)
    if parsed is None:
        return None
    exact = parsed._replace(revision=parsed.revision or revision)
    kept = find_kept(exact) or find_kept(parsed)
    with contextlib.suppress(BadInput):  # a name that the row does not have
        found = kept.resolve(exact) if kept else None
        if found and (parsed.quant or found.checkpoints[0].format == "safetensors"):
            return found.model, found.checkpoints[0]
    return None


def look_up_repository(name: str) -> ResolvedModel | None:
    """Read a repository from its kept row, the Hub, or else the catalogue; None if `name` cannot be one."""
    parsed = names.parse_repo_name(name)
    if parsed is None:
        return None
    try:
        return (find_kept(parsed) or keep_model(parsed.repo, parsed.revision)).resolve(parsed)
    except ExternalError as problem:
        repo, quant = parsed.repo.lower(), parsed.quant.lower()
        for model in catalogue.models().values():
            published = catalogue.published_checkpoints(model.name)
            chosen = tuple(each for each in published if each.repo.lower() == repo and quant in ("", each.name.lower()))
            if chosen and not parsed.revision:
                note = f"{problem.message}; sizes are from the table of moebox"
                return ResolvedModel(model=model, checkpoints=chosen, notes=(note,))
        raise


def find_by_name(name: str) -> ResolvedModel | None:
    """Look up a model that no table has on the Hub: the most downloaded repository of that name; None without one."""
    with contextlib.suppress(MoeboxError):
        for repo, _, _ in client.search_repositories(SEARCHED, search=name):
            if repo.rpartition("/")[2].lower() == name.lower():
                return look_up_repository(repo)
    return None


def keep_model(repo: str, revision: str = "") -> KeptModel:
    kept = read_repository(client.list_repository(repo, revision))
    if kept.repo.lower() != repo.lower():
        kept = replace(kept, notes=(f"{repo} is now {kept.repo}", *kept.notes))
    for name in (kept.repo, repo):
        path = kept_path(RepoName(name, revision))
        with files.report_write_errors(path):
            files.write_atomic(path, codec.to_json(kept, indent=None))
    return kept


def read_repository(listing: client.HubListing) -> KeptModel:
    """Read config, index and headers of all weights. Raise Unsupported if a repository has none.

    Weights that are incomplete or damaged are refused by name, and the others are kept.
    """
    repo, groups = listing.repo, names.group_gguf_files(listing.files)
    suffixes = {Path(file.path).suffix for file in listing.files if "/" not in file.path}
    has_config = listing.find("config.json") and not listing.find("adapter_config.json")
    labels = ["safetensors"] if has_config and (".safetensors" in suffixes or not groups) else []
    found: dict[str, ResolvedModel] = {}
    problems: dict[str, MoeboxError] = {}
    with files.scratch_folder("hub") as scratch:
        folder = scratch / repo  # its name helps to recognise the model
        folder.mkdir(parents=True)
        _copy_gguf_headers(listing, folder, [part for parts in groups.values() for part in parts])
        for label in (*labels, *groups):
            parts = groups.get(label, [])
            try:
                missing = names.missing_gguf_parts(parts) if parts else ""
                refuse_if(missing, f"{repo}:{label}: {missing}", hint="incomplete")
                read = model_from_file(folder / parts[0].path) if parts else _read_safetensors(listing, folder)
            except (BadInput, Unsupported) as problem:  # names the repository instead of the scratch folder
                problem.message = problem.message.replace(str(folder), repo)
                if "incomplete" in (problem.hint or ""):
                    problem.hint = "the repository is incomplete; name another one"
                problems[label] = problem
                continue
            own = replace(read.checkpoints[0], repo=repo, path="", source=listing.url)
            own = replace(own, name=f"{repo}:{label}", file=parts[0].path) if parts else replace(own, name=repo)
            texts = tuple(note.replace(str(folder), repo) for note in read.notes)
            found[label] = replace(read, checkpoints=(own,), notes=texts)
    if not found:
        raise next(iter(problems.values()), names.describe_contents(listing))
    is_published = any(
        repo.lower() in (known.repo.lower(), *(each.repo.lower() for each in catalogue.published_checkpoints(name)))
        for name, known in catalogue.models().items()
    )
    sizes = [(each.model, each.checkpoints[0].total_bytes) for each in found.values()]
    most = max(sizes, key=lambda row: sum(size for model, size in sizes if _is_same_model(model, row[0])))
    model = found["safetensors"].model if "safetensors" in found else most[0]
    others = {label: each.model for label, each in found.items() if not _is_same_model(each.model, model)}
    model = replace(model, trust_remote_code=model.trust_remote_code and is_published, source=listing.url)
    notes = list(dict.fromkeys(note for each in found.values() for note in each.notes))
    if suffixes & {".bin", ".pt", ".pth"} and not suffixes & {".safetensors", ".gguf"}:
        notes.append(names.describe_contents(listing).message)
    if ".py" in suffixes and not model.trust_remote_code:
        notes.append(f"{repo} contains code of its own, which moebox never runs and the recipe does not allow")
    return KeptModel(
        repo=repo,
        revision=listing.revision,
        commit=listing.commit,
        read_on=datetime.datetime.now(datetime.UTC).date().isoformat(),
        model=model,
        checkpoints=tuple(
            replace(each.checkpoints[0], model=others.get(label, model).name) for label, each in found.items()
        ),
        notes=tuple(notes),
        formats=find_formats(listing),
        files=listing.files,
        refused={label: problem.message.partition(": ")[2] for label, problem in problems.items()},
        other_models=others,
    )


def _is_same_model(one: Model, other: Model) -> bool:
    """True if two files of a repository can hold one model; some count layers of drafts and some do not."""
    return (one.hidden, one.experts) == (other.hidden, other.experts) and abs(one.layers - other.layers) <= 3


def _read_safetensors(listing: client.HubListing, folder: Path) -> ResolvedModel:
    """Read a repository with config.json, with or without weights."""
    for name in TEXTS:
        if file := listing.find(name):
            (folder / name).write_bytes(client.read_whole_file(listing, file))
    index = read_index(folder)
    paths = [file.path for file in listing.files]
    named = set(index.weight_map.values() if index else names.weight_files(paths, listing.repo))
    shards = [file for file in listing.files if file.path in named and "/" not in file.path]

    def copy_header(file: client.HubFile) -> None:
        head = client.read_remote(listing, file, 0, FIRST_READ)
        (length,) = struct.unpack("<Q", head[:8].ljust(8, b"\xff"))
        if length > min(MAX_HEADER_BYTES, file.size - 8):
            raise ExternalError(f"{listing.repo}: {file.path} does not begin with a safetensors header")
        head += client.read_remote(listing, file, len(head), 8 + length)
        write_sparse(folder / file.path, head[: 8 + length], file.size)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(copy_header, shards))  # the first failure is raised
    return model_from_folder(folder)


def _copy_gguf_headers(listing: client.HubListing, folder: Path, weights: list[client.HubFile]) -> None:
    def copy_header(file: client.HubFile) -> None:
        path, head, size = folder / file.path, b"", FIRST_READ
        path.parent.mkdir(parents=True, exist_ok=True)
        while len(head) < min(size, file.size):
            head += client.read_remote(listing, file, len(head), size)
            path.write_bytes(head)
            try:
                read_gguf_header(path)
                write_sparse(path, head, file.size)
            except HeaderCutShort:
                size = min(4 * size, MAX_GGUF_HEADER)
            except BadInput:
                return  # reported when the file is read with its other parts

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(copy_header, weights))  # the first failure is raised


def write_sparse(path: Path, head: bytes, size: int) -> None:
    """Write the beginning of a file; the rest is a hole that takes no room."""
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(size)


def name_format(repo: str, tags: tuple[str, ...]) -> str:
    """Return the format that the name of a repository or its tags state, or ""."""
    return next((kind for text in (repo, " ".join(tags)) for kind in FORMATS if kind in text.lower()), "")


def find_formats(listing: client.HubListing) -> dict[str, tuple[str, ...]]:
    """Return the quantised versions of a model that the Hub knows, by format; {} if it cannot be asked."""
    base = next((tag.rpartition(":")[2] for tag in listing.tags if tag.startswith("base_model:quantized:")), "")
    found: dict[str, tuple[str, ...]] = {}
    with contextlib.suppress(MoeboxError):
        for repo, _, tags in client.search_repositories(100, filter=f"base_model:quantized:{base or listing.repo}"):
            kind = name_format(repo, tags)
            if kind and repo != listing.repo:
                found[kind] = (*found.get(kind, ()), repo)
    return found
