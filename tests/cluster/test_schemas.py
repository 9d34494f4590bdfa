"""Rendered objects against the schemas of those who read them: CRDs of the operators, llama-swap's own schema.

MOEBOX_SCHEMAS names the folder that scripts/fetch-schemas.sh filled.
"""

import copy
import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path

import fastjsonschema
import pytest
import yaml

from moebox.checkpoint import deploy
from moebox.core.recipe import Recipe
from moebox.flows.recipes import load_recipe
from moebox.render import render_files
from moebox_fleet.file import KeyLimits
from moebox_fleet.models_file import ModelEntry, ModelsFile, llama_swap_config
from tests.serve import schemas as hand_written

pytestmark = pytest.mark.engine
FOLDER = Path(os.environ.get("MOEBOX_SCHEMAS", ".venv-schemas")).absolute()
CRDS = {
    "LeaderWorkerSet": "leaderworkersets.yaml",
    "ServiceMonitor": "servicemonitors.yaml",
    "PrometheusRule": "prometheusrules.yaml",
}
Schema = dict[str, object]


def crd(kind: str) -> Schema:
    """The schema of the version that is stored, closed: a field it does not know is an error, as for kubectl."""
    document = yaml.load((FOLDER / CRDS[kind]).read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    (version,) = [one for one in document["spec"]["versions"] if one["storage"]]
    schema = closed(version["schema"]["openAPIV3Schema"])
    assert isinstance(schema, dict)
    schema["properties"]["metadata"] = {"type": "object"}
    return schema


def closed(schema: object) -> object:
    """`schema` with no room for fields it does not name."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {name: closed(part) for name, part in schema.items()}
    if "(?i)" in str(schema.get("pattern", "")):  # Go takes it anywhere, Python at the start alone
        inner["pattern"] = "(?i)" + str(schema["pattern"]).replace("(?i)", "")
    loose = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object" and not loose:
        inner["additionalProperties"] = False
    return inner


def spanning(kind: str) -> Recipe:
    recipe = load_recipe("kimi-k26-sglang" if kind == "sglang" else "kimi-k26-vllm")
    return dataclasses.replace(recipe, parallel=dataclasses.replace(recipe.parallel, tp=8, pp=2, nodes=2))


def rendered(engine: str) -> dict[str, Mapping[str, object]]:
    texts = render_files(deploy(spanning(engine)), "kustomize").values()
    objects = [found for text in texts for found in yaml.safe_load_all(text) if found]
    return {found["kind"]: found for found in objects}


def problem(schema: Schema, document: object) -> str:
    """What the schema has against it; "" for nothing."""
    try:
        fastjsonschema.validate(schema, document)
    except fastjsonschema.JsonSchemaValueException as wrong:
        return str(wrong.message)
    return ""


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("kind", list(CRDS))
def test_the_operators_own_schemas_take_what_is_rendered(kind: str, engine: str) -> None:
    assert not problem(crd(kind), rendered(engine)[kind])


def test_a_field_they_do_not_know_is_an_error_here() -> None:
    wrong = copy.deepcopy(dict(rendered("vllm")["LeaderWorkerSet"]))
    spec = wrong["spec"]
    assert isinstance(spec, dict)
    spec["leaderWorkerTemplate"]["sizes"] = 2

    assert problem(crd("LeaderWorkerSet"), wrong)


@pytest.mark.parametrize("policy", ["RecreateGroupOnPodRestart", "None"])
def test_the_schema_of_the_quick_suite_is_no_laxer(policy: str) -> None:
    """What our hand-written schema lists, the real one has too."""
    real = crd("LeaderWorkerSet")["properties"]
    assert isinstance(real, dict)
    template = real["spec"]["properties"]["leaderWorkerTemplate"]["properties"]
    ours = hand_written.KUBERNETES["LeaderWorkerSet"]["properties"]["spec"]["properties"]["leaderWorkerTemplate"]

    assert set(ours["properties"]) <= set(template)
    assert policy in template["restartPolicy"]["enum"]


def test_llama_swaps_own_schema_takes_its_configuration() -> None:
    schema = json.loads((FOLDER / "llama-swap.json").read_text())
    models = {name: ModelEntry(recipe="kimi-k26-vllm", ttl_s=600.0, preload=True) for name in ("a", "b")}
    file = ModelsFile(models=models, users={"anna": KeyLimits(key_env="K")})
    deployments = {name: deploy(load_recipe("kimi-k26-vllm")) for name in models}
    assert not problem(schema, yaml.safe_load(llama_swap_config(file, deployments, [("a",), ("b",)])))
