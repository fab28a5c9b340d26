"""Connection settings of a Karmada member, from its Cluster object and the secret that it names."""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from karpool.kube.config.kubeconfig import ClusterConfig, DataOrFile, KubeUser
from karpool.kube.errors import ConfigError
from karpool.model.kubernetes.api_resources import ObjectKey

_SECRET_BYTES_MAX = 1 << 20  # etcd's limit


def secret_of(cluster: Mapping[str, Any]) -> ObjectKey:
    """Return the key of the member's secret. Raises ConfigError if the Cluster names none."""
    spec = cluster.get("spec") or {}
    named = spec.get("secretRef") or {}
    if not spec.get("apiEndpoint") or not named.get("name"):
        raise ConfigError(
            f"{_shown(cluster)}: has no spec.apiEndpoint with a spec.secretRef (as in Pull mode); "
            "add a file for it to the folder of --kubeconfig"
        )
    return ObjectKey(str(named.get("namespace") or ""), str(named["name"]))


def member_config(cluster: Mapping[str, Any], secret: Mapping[str, Any]) -> ClusterConfig:
    """Return the connection settings of a member. Raises ConfigError naming the field."""
    spec, data = cluster["spec"], secret.get("data") or {}
    token = _decoded(cluster, data, "token")
    if not token:
        raise ConfigError(f"{_shown(cluster)}: its secret has no data.token")
    return ClusterConfig(
        str(cluster["metadata"]["name"]),
        str(spec["apiEndpoint"]).rstrip("/"),
        ca=DataOrFile(_decoded(cluster, data, "caBundle")),
        insecure=spec.get("insecureSkipTLSVerification") is True,
        proxy_url=str(spec.get("proxyURL") or ""),
        user=KubeUser(token=token.decode("ascii", "replace").strip()),
    )


def _decoded(cluster: Mapping[str, Any], data: Mapping[str, Any], name: str) -> bytes:
    text = str(data.get(name) or "")
    try:
        if len(text) > _SECRET_BYTES_MAX:
            raise ValueError("too long")
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        raise ConfigError(f"{_shown(cluster)}: data.{name} of its secret is not base64") from None


def _shown(cluster: Mapping[str, Any]) -> str:
    return f"cluster {(cluster.get('metadata') or {}).get('name', '')}"
