"""A kustomize base: the Kubernetes objects of a recipe in files of their own, with monitoring beside them."""

from moebox import yaml_text
from moebox.core.deployment import Deployment
from moebox.errors import BadInput
from moebox.loose import Document
from moebox.render import grafana, quoting

FILES = {
    "Deployment": "engine.yaml",
    "LeaderWorkerSet": "engine.yaml",
    "Service": "service.yaml",
    "NetworkPolicy": "network-policy.yaml",
    "PersistentVolumeClaim": "weights.yaml",
}


def kustomize_files(deployment: Deployment, text: str) -> dict[str, str]:
    """File names and texts, from the rendered objects (`text`, one document after another)."""
    name = quoting.make_slug(deployment.recipe.name)
    head, *documents = _documents(text)
    files = {FILES[_kind(document)]: head + document for document in documents}
    monitor = [service_monitor(name), prometheus_rule(deployment)]
    files["monitoring.yaml"] = "# Needs the Prometheus operator; leave it out of kustomization.yaml without.\n"
    files["monitoring.yaml"] += yaml_text.dump_documents(monitor)
    kustomization: Document = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": sorted(files),
        "labels": [{"pairs": {"app.kubernetes.io/part-of": name}, "includeSelectors": False}],
    }
    return {"kustomization.yaml": yaml_text.dump_yaml(kustomization), **files}


def service_monitor(name: str) -> Document:
    """Tells the Prometheus operator where /metrics is."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "endpoints": [{"port": "http", "path": "/metrics", "interval": "15s"}],
        },
    }


def prometheus_rule(deployment: Deployment) -> Document:
    """The alerts as the operator takes them."""
    name = quoting.make_slug(deployment.recipe.name)
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"groups": grafana.alert_groups(deployment)},
    }


def _documents(text: str) -> list[str]:
    """The comment at the top, then each document."""
    parts = text.split("\n---\n")
    lines = parts[0].splitlines(keepends=True)
    cut = next((place for place, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return ["".join(lines[:cut]), "".join(lines[cut:]) + "\n", *(part.rstrip("\n") + "\n" for part in parts[1:])]


def _kind(document: str) -> str:
    kind = next((line.partition(":")[2].strip() for line in document.splitlines() if line.startswith("kind:")), "")
    if kind not in FILES:
        raise BadInput(f"a Kubernetes object of kind {kind!r} has no place in a base")
    return kind
