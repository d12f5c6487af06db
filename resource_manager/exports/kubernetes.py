"""Kubernetes: a PyTorchJob (Kubeflow's training operator), a ConfigMap with the job, and the image's recipe.

Pods get credentials from the secret `quark-credentials`, whose keys are names of variables. What is
in a pod goes with it: checkpoints must go to a store for a pod that is started again to go on.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from brain.ml.run_files import JOB_FILE
from resource_manager.export_format import (
    RENDEZVOUS_PORT,
    SAVE_SECONDS,
    Export,
    ExportFormat,
    start_command,
)
from tools_utilities.yaml_text import dump_yaml

MANIFEST, RECIPE = "run.yaml", "Dockerfile"
SECRET = "quark-credentials"  # noqa: S105 - the name of one
IMAGE = "quark-launcher"
JOB_FOLDER, RUN_FOLDER, CACHE_FOLDER = "/quark/job", "/quark/runs", "/quark/cache"
_LONGEST_NAME = 50
"""Names of pods add to it, and may have 63."""


class Kubernetes:
    """The format `kubernetes`."""

    name = "kubernetes"
    ships = True
    sends_files = False
    run_root = RUN_FOLDER
    needs_gpu_type = False
    credentials = f"as keys of the secret {SECRET}"
    cache_folder = CACHE_FOLDER

    def texts(self, export: Export) -> Mapping[str, str]:
        """Return the manifest and the recipe of its image."""
        documents = [_config_map(export), _pytorch_job(export)]
        return {
            MANIFEST: "---\n".join(dump_yaml(one) for one in documents),
            RECIPE: _recipe(export.wheel),
        }

    def next_command(self, folder: Path) -> str:
        """Return the commands that build the image and start the run."""
        place = shlex.quote(str(folder))
        return f"docker build -t {IMAGE} {place} && kubectl apply -f {place}/{MANIFEST}"


def _recipe(wheel: str) -> str:
    lines = [
        "FROM python:3.11-slim",
        f"COPY {wheel} constraints.txt /tmp/quark/",
        f"RUN pip install --no-cache-dir -c /tmp/quark/constraints.txt /tmp/quark/{wheel}",
    ]
    return "\n".join([*lines, ""])


def object_name(run: str) -> str:
    """Return a run's name as Kubernetes takes it: lower case, digits and dashes (RFC 1123)."""
    kept = "".join(char if char.isascii() and char.isalnum() else "-" for char in run.lower())
    return f"quark-{kept}"[:_LONGEST_NAME].strip("-")


def _config_map(export: Export) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": object_name(export.job.name)},
        "data": {JOB_FILE: msgspec.yaml.encode(export.job).decode()},
    }


def _pytorch_job(export: Export) -> dict[str, Any]:
    replicas = {"Master": 1, "Worker": export.job.nodes - 1}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": object_name(export.job.name)},
        "spec": {
            "runPolicy": {"backoffLimit": export.job.max_restarts, "cleanPodPolicy": "Running"},
            "pytorchReplicaSpecs": {
                role: {
                    "replicas": count,
                    "restartPolicy": "OnFailure",
                    "template": {"spec": _pod(export)},
                }
                for role, count in replicas.items()
                if count
            },
        },
    }


def _pod(export: Export) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": "pytorch",  # as the operator looks for it
        "image": IMAGE,
        "command": ["sh", "-c", _script(export)],
        "envFrom": [{"secretRef": {"name": SECRET, "optional": True}}],
        "ports": [{"name": "quark", "containerPort": RENDEZVOUS_PORT}],
        "volumeMounts": [
            {"name": "job", "mountPath": JOB_FOLDER, "readOnly": True},
            {"name": "runs", "mountPath": RUN_FOLDER},
        ],
    }
    if export.gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": export.gpus}}
    pod: dict[str, Any] = {
        "terminationGracePeriodSeconds": SAVE_SECONDS,
        "containers": [container],
        "volumes": [
            {"name": "job", "configMap": {"name": object_name(export.job.name)}},
            {"name": "runs", "emptyDir": {}},
        ],
    }
    if export.gpu_type:
        pod["nodeSelector"] = {"nvidia.com/gpu.product": export.gpu_type}
    return pod


def _script(export: Export) -> str:
    """Return what a pod does; the operator's own numbering of pods is not that of ranks."""
    run = shlex.quote(export.folder)
    start = start_command(export, ("python",), "$MASTER_ADDR")
    return (
        f"mkdir -p {run} && cp {JOB_FOLDER}/{JOB_FILE} {run}/{JOB_FILE}"
        f" && exec env -u RANK -u WORLD_SIZE -u LOCAL_RANK {start}"
    )


EXPORT_FORMAT: ExportFormat = Kubernetes()
