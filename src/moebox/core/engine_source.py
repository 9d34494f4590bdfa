"""An engine version as users write it: `vllm==0.32.0`, `llama.cpp@b11669`, or a container image."""

import re
from dataclasses import dataclass
from typing import Literal

from moebox.core import registry
from moebox.core.versions import canonical_version, version_numbers
from moebox.errors import BadInput, refuse_if, require_known

SourceKind = Literal["package", "build", "image"]
VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*")
IMAGE = re.compile(r"[a-z0-9][a-z0-9._/:@-]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSource:
    """One version of an engine: a Python package, a build from source, or an image."""

    kind: SourceKind
    engine: str
    version: str
    image: str = ""

    def __str__(self) -> str:
        return self.image or f"{self.engine}{'@' if self.kind == 'build' else '=='}{self.version}"


def parse_source(text: str, *, image: str = "") -> EngineSource:
    """Parse `ENGINE==VERSION`, `ENGINE@BUILD` or an image. Raise BadInput if it is none of them."""
    match = re.fullmatch(r"([^=@]+)(==|@)(.+)", text)
    if match and (match[2] == "==" or match[1] in registry.engine_names()):
        name, sign, version = match.groups()
        require_known("engine", name, registry.engine_names())
        if not VERSION.fullmatch(version) or version.endswith(("-", ".")):
            raise BadInput(f"{text}: {version!r} is not a version", hint="write it like vllm==0.32.0")
        if image:
            return EngineSource(kind="image", engine=name, version=version, image=image)
        if sign == "@":
            return EngineSource(kind="build", engine=name, version=version)
        refuse_if(not version_numbers(version), f"{text}: a package has a number", hint="write it like vllm==0.32.0")
        return EngineSource(kind="package", engine=name, version=canonical_version(version))
    return parse_image(image or text)


def parse_image(name: str) -> EngineSource:
    """Find the engine and version of an image by the names that engines publish theirs under."""
    hint = "write it like vllm==0.32.0, llama.cpp@b11669 or vllm/vllm-openai:v0.32.0"
    text = f"{name!r} is not an engine version"
    refuse_if(
        not IMAGE.fullmatch(name) or not ("/" in name or ":" in name) or name.endswith((":", "@")), text, hint=hint
    )
    repository, _, tag = name.partition("@")[0].partition(":")
    for traits in registry.all_traits():
        own, _, pattern = traits.image.partition(":")
        if own and repository.endswith(own):
            match = re.fullmatch(re.escape(pattern).replace(r"\{version\}", "(.+)"), tag)
            version = match[1] if match and match.groups() else tag.removeprefix("v")
            return EngineSource(kind="image", engine=traits.name, version=version, image=name)
    raise BadInput(f"{name}: no engine publishes this image", hint=f"name the engine: vllm==VERSION --image {name}")
