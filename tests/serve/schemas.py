"""What Compose and Kubernetes accept, as far as moebox writes it: closed schemas, so that a misspelt key fails.

Written by hand after the Compose specification (compose-spec.json) and the API references of apps/v1, v1 and
leaderworkerset.x-k8s.io/v1.
"""

from typing import Any

TEXT = {"type": "string"}
TEXTS = {"type": "array", "items": TEXT}
FLAG = {"type": "boolean"}
MOUNT = {"type": "string", "pattern": "^[^:]+:/[^:]*(:[a-zA-Z,]+)?$"}
NAME = {"type": "string", "pattern": r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"}


def closed(properties: dict[str, Any], required: tuple[str, ...] = ()) -> dict[str, Any]:
    """An object with these keys and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


COMPOSE = closed(
    {
        "services": {
            "type": "object",
            "minProperties": 1,
            "additionalProperties": closed(
                {
                    "image": TEXT,
                    "entrypoint": TEXTS,
                    "command": TEXTS,
                    "ipc": {"enum": ["host", "private", "shareable", "none"]},
                    **dict.fromkeys(
                        ("shm_size", "mem_limit", "memswap_limit", "mem_reservation", "cpus", "cpuset", "runtime"), TEXT
                    ),
                    **dict.fromkeys(("user", "working_dir", "hostname", "platform"), TEXT),
                    **dict.fromkeys(
                        ("cap_add", "cap_drop", "security_opt", "group_add", "labels", "tmpfs", "sysctls", "devices"),
                        TEXTS,
                    ),
                    **{key: {"type": "integer"} for key in ("pids_limit", "oom_score_adj")},
                    **{key: {"enum": [True]} for key in ("init", "read_only", "oom_kill_disable")},
                    "pull_policy": {"enum": ["always", "missing", "never"]},
                    "logging": closed({"driver": TEXT, "options": {"type": "object", "additionalProperties": TEXT}}),
                    "ulimits": {
                        "type": "object",
                        "additionalProperties": {
                            "oneOf": [
                                {"type": "integer"},
                                closed({"soft": {"type": "integer"}, "hard": {"type": "integer"}}, ("soft", "hard")),
                            ]
                        },
                    },
                    "privileged": {"type": "boolean"},
                    "network_mode": {"enum": ["host"]},
                    "ports": {
                        "type": "array",
                        "items": {"type": "string", "pattern": r"^([\d.]+:)?\$\{PORT:-\d+\}:\$\{PORT:-\d+\}$"},
                    },
                    "environment": {"type": "object", "additionalProperties": TEXT},
                    "volumes": {
                        "type": "array",
                        "items": {"type": "string", "pattern": "^[^:]+:/[^:]*(:[a-zA-Z,]+)?$"},
                    },
                    "deploy": closed(
                        {
                            "resources": closed(
                                {
                                    "reservations": closed(
                                        {
                                            "devices": {
                                                "type": "array",
                                                "items": closed(
                                                    {"driver": TEXT, "count": {"enum": ["all"]}, "capabilities": TEXTS},
                                                    ("capabilities",),
                                                ),
                                            }
                                        }
                                    )
                                }
                            )
                        }
                    ),
                    "healthcheck": closed(
                        {
                            "test": TEXTS,
                            "interval": {"type": "string", "pattern": r"^\d+[smh]$"},
                            "timeout": {"type": "string", "pattern": r"^\d+[smh]$"},
                            "start_period": {"type": "string", "pattern": r"^\d+[smh]$"},
                            "retries": {"type": "integer"},
                        }
                    ),
                    "restart": {"type": "string", "pattern": r"^(no|always|unless-stopped|on-failure(:\d+)?)$"},
                    "stop_grace_period": TEXT,
                },
                ("image", "command"),
            ),
        },
        "volumes": {"type": "object", "additionalProperties": {"type": "object"}},
    },
    ("services",),
)

PROBE = closed(
    {
        "httpGet": closed({"path": TEXT, "port": TEXT}, ("path", "port")),
        "periodSeconds": {"type": "integer"},
        "timeoutSeconds": {"type": "integer"},
        "failureThreshold": {"type": "integer"},
    }
)
VARIABLE = {
    "oneOf": [
        closed({"name": TEXT, "value": TEXT}, ("name", "value")),
        closed(
            {
                "name": TEXT,
                "valueFrom": closed(
                    {
                        "secretKeyRef": closed(
                            {"name": NAME, "key": TEXT, "optional": {"type": "boolean"}}, ("name", "key")
                        )
                    }
                ),
            },
            ("name", "valueFrom"),
        ),
    ]
}
CONTAINER = closed(
    {
        "name": NAME,
        "image": TEXT,
        "command": TEXTS,
        "args": TEXTS,
        "env": {"type": "array", "items": VARIABLE},
        "ports": {
            "type": "array",
            "items": closed({"name": NAME, "containerPort": {"type": "integer"}}, ("containerPort",)),
        },
        "startupProbe": PROBE,
        "readinessProbe": PROBE,
        "livenessProbe": PROBE,
        "lifecycle": closed({"preStop": closed({"exec": closed({"command": TEXTS}, ("command",))})}),
        "resources": closed(
            {
                "limits": closed({"nvidia.com/gpu": {"type": "string", "pattern": r"^\d+$"}}),
                "requests": closed({"cpu": TEXT, "memory": {"type": "string", "pattern": r"^\d+Gi$"}}),
            }
        ),
        "securityContext": closed({"capabilities": closed({"add": TEXTS})}),
        "volumeMounts": {"type": "array", "items": closed({"name": NAME, "mountPath": TEXT}, ("name", "mountPath"))},
    },
    ("name", "image", "args"),
)
VOLUME = closed(
    {
        "name": NAME,
        "emptyDir": closed({"medium": {"enum": ["Memory"]}, "sizeLimit": TEXT}),
        "persistentVolumeClaim": closed({"claimName": NAME}, ("claimName",)),
        "hostPath": closed({"path": TEXT, "type": {"enum": ["Directory"]}}, ("path",)),
    },
    ("name",),
)
LABELS = {"type": "object", "additionalProperties": TEXT}
POD = closed(
    {
        "metadata": closed({"labels": LABELS}),
        "spec": closed(
            {
                "terminationGracePeriodSeconds": {"type": "integer"},
                "containers": {"type": "array", "minItems": 1, "items": CONTAINER},
                "volumes": {"type": "array", "items": VOLUME},
            },
            ("containers",),
        ),
    },
    ("spec",),
)


def document(version: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    """A Kubernetes object of one kind."""
    return closed(
        {
            "apiVersion": {"enum": [version]},
            "kind": {"enum": [kind]},
            "metadata": closed({"name": NAME, "labels": LABELS}, ("name",)),
            "spec": spec,
        },
        ("apiVersion", "kind", "metadata", "spec"),
    )


KUBERNETES = {
    "Deployment": document(
        "apps/v1",
        "Deployment",
        closed(
            {
                "replicas": {"type": "integer"},
                "strategy": closed({"type": {"enum": ["Recreate", "RollingUpdate"]}}),
                "selector": closed({"matchLabels": LABELS}, ("matchLabels",)),
                "template": POD,
            },
            ("selector", "template"),
        ),
    ),
    "LeaderWorkerSet": document(
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
        closed(
            {
                "replicas": {"type": "integer"},
                "leaderWorkerTemplate": closed(
                    {
                        "size": {"type": "integer", "minimum": 2},
                        "restartPolicy": {"enum": ["RecreateGroupOnPodRestart", "None"]},
                        "leaderTemplate": POD,
                        "workerTemplate": POD,
                    },
                    ("size", "workerTemplate"),
                ),
            },
            ("leaderWorkerTemplate",),
        ),
    ),
    "Service": document(
        "v1",
        "Service",
        closed(
            {
                "selector": LABELS,
                "ports": {
                    "type": "array",
                    "items": closed({"name": NAME, "port": {"type": "integer"}, "targetPort": TEXT}, ("port",)),
                },
            },
            ("ports",),
        ),
    ),
    "NetworkPolicy": document(
        "networking.k8s.io/v1",
        "NetworkPolicy",
        closed(
            {
                "podSelector": closed({"matchLabels": LABELS}),
                "policyTypes": {"type": "array", "items": {"enum": ["Ingress", "Egress"]}},
                "ingress": {
                    "type": "array",
                    "items": closed(
                        {
                            "from": {
                                "type": "array",
                                "items": closed(
                                    dict.fromkeys(("podSelector", "namespaceSelector"), closed({"matchLabels": LABELS}))
                                ),
                            },
                            "ports": {
                                "type": "array",
                                "items": closed({"port": {"type": "integer"}, "protocol": {"enum": ["TCP"]}}),
                            },
                        }
                    ),
                },
            },
            ("podSelector",),
        ),
    ),
    "PersistentVolumeClaim": document(
        "v1",
        "PersistentVolumeClaim",
        closed(
            {
                "accessModes": {"type": "array", "items": {"enum": ["ReadWriteOnce", "ReadWriteMany"]}},
                "resources": closed({"requests": closed({"storage": {"type": "string", "pattern": r"^\d+[GT]i$"}})}),
            },
            ("accessModes", "resources"),
        ),
    ),
}
