"""Write plain values as YAML in block style. Strings are quoted as JSON, which is valid YAML, unless they are words."""

import json
import re
from collections.abc import Iterable
from typing import Any

PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*(?<![.])")  # YAML 1.1 and 1.2 both read these as strings …
NOT_TEXT = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})  # … but for these
PAIR = re.compile(r"\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})")  # JSON's surrogate pairs, which YAML does not have
WITHOUT_POINT = re.compile(r"^(-?\d+)e")


def dump_yaml(value: Any) -> str:
    """Write dicts, lists, strings, numbers, booleans and None as YAML, ending in a newline."""
    return "\n".join(_lines(value, 0)) + "\n"


def dump_kustomization(resources: Iterable[str], part_of: str) -> str:
    """Write the kustomization of these files; a label names what their objects are part of."""
    labels = [{"pairs": {"app.kubernetes.io/part-of": part_of}, "includeSelectors": False}]
    kind = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    return dump_yaml({**kind, "resources": sorted(resources), "labels": labels})


def _lines(value: Any, indent: int) -> list[str]:
    pad = " " * indent
    if not isinstance(value, dict | list | tuple) or not value:
        return [pad + scalar_yaml(value)]
    lines: list[str] = []
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        first, *rest = _lines(inner, indent + 2)
        if not isinstance(value, dict):
            lines += [f"{pad}- {first.lstrip(' ')}", *rest]
        elif isinstance(inner, dict | list | tuple) and inner:
            lines += [f"{pad}{scalar_yaml(key)}:", first, *rest]
        else:
            lines.append(f"{pad}{scalar_yaml(key)}: {first.lstrip(' ')}")
    return lines


def scalar_yaml(value: Any) -> str:
    """Write one value on one line."""
    if not isinstance(value, str):
        return WITHOUT_POINT.sub(r"\1.0e", json.dumps(value))  # YAML 1.1 reads 1e-05 as a string, 1.0e-05 as a float
    if PLAIN.fullmatch(value) and value.lower() not in NOT_TEXT:
        return value

    def join_surrogates(pair: re.Match[str]) -> str:
        point = 0x10000 + ((int(pair[1], 16) - 0xD800) << 10) + int(pair[2], 16) - 0xDC00
        return f"\\U{point:08x}"

    return PAIR.sub(join_surrogates, json.dumps(value, ensure_ascii=True))
