"""Dashboards, alerts and the kustomize base: what Grafana, Prometheus and kustomize read, in each engine's names."""

import json
import re

import fastjsonschema
import pytest
import yaml

from moebox.checkpoint import deploy
from moebox.cli import main
from moebox.core import metrics
from moebox.core.deployment import Deployment
from moebox.core.recipe import Recipe
from moebox.flows.recipes import load_recipe
from moebox.render import render_files
from tests.serve.schemas import KUBERNETES

TEXT = {"type": "string", "minLength": 1}
# What Grafana's own importer needs of a dashboard (dashboard JSON model, schemaVersion 39), as far as moebox writes it.
DASHBOARD = {
    "type": "object",
    "required": ["uid", "title", "schemaVersion", "panels", "templating", "time"],
    "properties": {
        "uid": {"type": "string", "maxLength": 40, "pattern": "^[a-zA-Z0-9_-]+$"},
        "title": TEXT,
        "schemaVersion": {"type": "integer", "minimum": 36},
        "panels": {
            "type": "array",
            "minItems": 3,
            "items": {
                "type": "object",
                "required": ["id", "type", "title", "gridPos", "targets", "datasource"],
                "properties": {
                    "type": {"enum": ["timeseries"]},
                    "gridPos": {
                        "type": "object",
                        "required": ["x", "y", "w", "h"],
                        "properties": {"x": {"maximum": 12}, "w": {"maximum": 24}},
                    },
                    "targets": {
                        "type": "array",
                        "minItems": 1,
                        "items": {"type": "object", "required": ["refId", "expr", "legendFormat"]},
                    },
                },
            },
        },
    },
}


def deployment(engine: str) -> Deployment:
    recipe = Recipe(
        name=f"on-{engine.replace('.', '-').replace('_', '-')}",
        engine=engine,
        model="kimi-k2.6",
        checkpoint="moonshotai/Kimi-K2.6",
        served_name="kimi",
    )
    return deploy(recipe)


@pytest.mark.parametrize("engine", sorted(metrics.all_engine_metrics()))
def test_a_dashboard_asks_only_for_what_the_engine_shows(engine: str) -> None:
    board = json.loads(render_files(deployment(engine), "grafana")[""])
    fastjsonschema.validate(DASHBOARD, board)

    known = {name for figure in metrics.EngineMetrics.__slots__ for name in _names(engine, figure)}
    asked = set(re.findall(r"[a-z]+:[a-z0-9_]+", json.dumps(board["panels"])))
    assert asked
    assert asked <= known | {f"{name}_bucket" for name in known}
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def _names(engine: str, figure: str) -> tuple[str, ...]:
    value = getattr(metrics.engine_metrics(engine), figure)
    return value if isinstance(value, tuple) else ()


@pytest.mark.parametrize("engine", sorted(metrics.all_engine_metrics()))
def test_alerts_are_rules_as_prometheus_reads_them(engine: str) -> None:
    (group,) = yaml.safe_load(render_files(deployment(engine), "prometheus")[""])["groups"]

    names = [rule["alert"] for rule in group["rules"]]
    assert {"EngineDown", "QueueGrows"} <= set(names)
    assert ("EngineSilent" in names) == (
        not metrics.engine_metrics(engine).counts_at_end
    )  # a rate of 0 would be no news there
    for rule in group["rules"]:
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert rule["expr"].count("(") == rule["expr"].count(")")


def test_a_kustomize_base_holds_every_object_in_a_file_of_its_own() -> None:
    files = render_files(deploy(load_recipe("kimi-k26-vllm")), "kustomize")
    listed = yaml.safe_load(files["kustomization.yaml"])["resources"]

    assert sorted(listed) == sorted(set(files) - {"kustomization.yaml"})
    kinds = set()
    for name in listed:
        for document in yaml.safe_load_all(files[name]):
            kinds.add(document["kind"])
            if document["kind"] in KUBERNETES:
                fastjsonschema.validate(KUBERNETES[document["kind"]], document)
    assert kinds == {
        "Deployment",
        "Service",
        "NetworkPolicy",
        "PersistentVolumeClaim",
        "ServiceMonitor",
        "PrometheusRule",
    }


def test_pods_drain_before_they_stop_and_weights_may_lie_on_the_node() -> None:
    from dataclasses import replace

    recipe = load_recipe("kimi-k26-vllm")
    recipe = replace(recipe, runtime=replace(recipe.runtime, models_dir="/srv/models"))
    engine = next(iter(yaml.safe_load_all(render_files(deploy(recipe), "kustomize")["engine.yaml"])))
    pod = engine["spec"]["template"]["spec"]

    assert pod["terminationGracePeriodSeconds"] > 15
    assert pod["containers"][0]["lifecycle"]["preStop"]
    assert {"name": "models", "hostPath": {"path": "/srv/models", "type": "Directory"}} in pod["volumes"]


def test_an_engine_that_shows_nothing_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", "kimi-k26-vllm", "--as", "grafanna"]) == 2
    assert "Traceback" not in capsys.readouterr().err
