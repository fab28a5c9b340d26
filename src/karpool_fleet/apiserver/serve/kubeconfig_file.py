"""The kubeconfig of embedded clusters: one context per cluster, the first one current.

The whole file is ours. It is replaced atomically and readable by its owner only. A file with other content is
not changed: our clusters have an extension that marks them, which kubectl keeps when it edits the file.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from karpool.kube.config.kubeconfig_file import SIZE_LIMIT
from karpool.kube.errors import ConfigError
from karpool.model.safe_yaml import UnusableYaml, load_documents
from karpool_fleet.apiserver.serve.private_files import check_replaceable, write_private

MARK = "karpool.io/embedded"


@dataclass(frozen=True, slots=True)
class EmbeddedClusterEntry:
    """One cluster, its context and its user, all under one name."""

    name: str
    server: str  # "https://127.0.0.1:6443"
    token: str = field(default="", repr=False)
    ca_pem: bytes = b""
    namespace: str = "default"


def kubeconfig(clusters: Sequence[EmbeddedClusterEntry]) -> dict[str, Any]:
    """Return the document; raises ConfigError when there is no cluster or a name occurs twice."""
    names = [entry.name for entry in clusters]
    if not names:
        raise ConfigError("a kubeconfig needs at least one cluster")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"cluster {twice}: the name occurs more than once; every context needs its own")
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "preferences": {},
        "clusters": [{"name": entry.name, "cluster": _cluster(entry)} for entry in clusters],
        "users": [
            {"name": entry.name, "user": {"token": entry.token} if entry.token else {}} for entry in clusters
        ],
        "contexts": [
            {
                "name": entry.name,
                "context": {"cluster": entry.name, "user": entry.name, "namespace": entry.namespace},
            }
            for entry in clusters
        ],
        "current-context": names[0],
    }


def write_kubeconfig(path: Path, clusters: Sequence[EmbeddedClusterEntry]) -> None:
    """Write or replace our file; raises ConfigError and leaves any other file as it is."""
    document = kubeconfig(clusters)
    try:
        if not _may_replace(path):
            raise ConfigError(
                f"kubeconfig {path}: exists and contains other clusters; choose another file, or move "
                "this one"
            )
        write_private(path, yaml.safe_dump(document, sort_keys=False).encode())
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"kubeconfig {path}: {reason}; name a file that can be written") from error


def _cluster(entry: EmbeddedClusterEntry) -> dict[str, Any]:
    cluster: dict[str, Any] = {
        "server": entry.server,
        "extensions": [{"name": MARK, "extension": {"provider": "karpool"}}],
    }
    if entry.ca_pem:
        cluster["certificate-authority-data"] = base64.b64encode(entry.ca_pem).decode()
    return cluster


def _may_replace(path: Path) -> bool:
    """Whether nothing would be lost: no file, an empty one, or one with only our clusters."""
    check_replaceable(path)  # opening a pipe would block
    try:
        with path.open("rb") as file:
            data = file.read(SIZE_LIMIT + 1)
    except FileNotFoundError:
        return True
    if not data.strip():
        return True
    try:
        documents = list(load_documents(data, size_limit=SIZE_LIMIT))
    except UnusableYaml:
        return False
    return len(documents) == 1 and _all_ours(documents[0])


def _all_ours(document: Any) -> bool:
    clusters = document.get("clusters") if isinstance(document, dict) else None
    return isinstance(clusters, list) and bool(clusters) and all(map(_is_ours, clusters))


def _is_ours(named: Any) -> bool:
    cluster = named.get("cluster") if isinstance(named, dict) else None
    extensions = cluster.get("extensions") if isinstance(cluster, dict) else None
    return isinstance(extensions, list) and any(
        isinstance(extension, dict) and extension.get("name") == MARK for extension in extensions
    )
