"""Kubernetes manifests of the router, and the kustomization of a fleet."""

import shlex

from moebox.fleet.file import RouterSettings
from moebox.fleet.routers import RouterStart, metrics_port, router_traits
from moebox.loose import Document

DRAIN_S = 180  # for replies in flight when the router stops


def router_manifests(name: str, settings: RouterSettings, started: RouterStart) -> list[Document]:
    """ConfigMap (if the router reads a file), Deployment and Service of the router."""
    labels = {"app": name}
    documents: list[Document] = []
    if started.files:
        documents.append(_manifest("v1", "ConfigMap", f"{name}-config") | {"data": dict(started.files)})
    documents.append(
        _manifest("apps/v1", "Deployment", name, labels)
        | {
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": _pod_spec(name, settings, started)},
            }
        }
    )
    ports = [{"name": "http", "port": settings.port, "targetPort": "http"}]
    documents.append(_manifest("v1", "Service", name, labels) | {"spec": {"selector": labels, "ports": ports}})
    return documents


def _pod_spec(name: str, settings: RouterSettings, started: RouterStart) -> Document:
    known = router_traits()[settings.kind]
    install = f"pip install --quiet --no-cache-dir '{known.package}=={known.tested}'"
    probe = {"httpGet": {"path": known.health, "port": "http"}}
    container: Document = {
        "name": "router",
        "image": "python:3.12-slim",
        "command": ["bash", "-c", f"{install} && exec python3 {shlex.join(started.argv)}"],
        "ports": [
            {"name": "http", "containerPort": settings.port},
            {"name": "metrics", "containerPort": metrics_port(settings)},
        ],
        "startupProbe": {**probe, "periodSeconds": 5, "failureThreshold": 60},
        "readinessProbe": {**probe, "periodSeconds": 5},
        "livenessProbe": {**probe, "periodSeconds": 20, "failureThreshold": 3},
        # The Service drops the endpoint while this sleeps; then the router finishes its replies.
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", "10"]}}},
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "4Gi"}},
    }
    keys: list[Document] = [
        {"name": variable, "valueFrom": {"secretKeyRef": {"name": f"{name}-secrets", "key": variable}}}
        for variable in started.key_envs
    ]
    if keys or started.env:
        container["env"] = [*keys, *({"name": variable, "value": value} for variable, value in started.env.items())]
    pod: Document = {"terminationGracePeriodSeconds": DRAIN_S + 20, "containers": [container]}
    if started.files:
        container["workingDir"] = "/fleet"
        container["volumeMounts"] = [{"name": "config", "mountPath": "/fleet", "readOnly": True}]
        pod["volumes"] = [{"name": "config", "configMap": {"name": f"{name}-config"}}]
    return pod


def network_policies(fleet: str, members: dict[str, int]) -> list[Document]:
    """Allow only the router to reach the members' API, and the pods of a member to reach each other."""
    return [
        _manifest("networking.k8s.io/v1", "NetworkPolicy", f"{name}-from-router")
        | {
            "spec": {
                "podSelector": {"matchLabels": {"app": name}},
                "policyTypes": ["Ingress"],
                "ingress": [
                    {
                        "from": [{"podSelector": {"matchLabels": {"app": fleet}}}],
                        "ports": [{"port": port, "protocol": "TCP"}],
                    },
                    {"from": [{"podSelector": {"matchLabels": {"app": name}}}]},
                ],
            }
        }
        for name, port in members.items()
    ]


def kustomization_manifest(resources: list[str], *, labels: dict[str, str]) -> Document:
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": resources,
        "labels": [{"pairs": labels, "includeSelectors": False}],
    }


def _manifest(version: str, kind: str, name: str, labels: dict[str, str] | None = None) -> Document:
    metadata: Document = {"name": name}
    if labels:
        metadata["labels"] = dict(labels)
    return {"apiVersion": version, "kind": kind, "metadata": metadata}
