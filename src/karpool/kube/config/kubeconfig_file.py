"""Reads kubeconfig files and merges them.

The first file that defines a context, cluster or user wins, and so does the first current context. Relative
paths are relative to the file that contains them, so every entry keeps its directory.
"""

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from karpool.kube.bounded_input import read_bounded
from karpool.kube.errors import ConfigError
from karpool.model import safe_yaml

SIZE_LIMIT = 8 * 1024 * 1024
EXEC_EXTENSION = "client.authentication.k8s.io/exec"

# Messages list these names; the limit is that of Kubernetes object names.
EntryName = Annotated[str, msgspec.Meta(max_length=253)]
T = TypeVar("T", bound=msgspec.Struct)
NOWHERE = Path()


class _Entry(msgspec.Struct, kw_only=True, rename="kebab"):
    directory: Path = msgspec.field(default=NOWHERE, name=" ")  # set by us, never read from the file


class KubeconfigExtension(msgspec.Struct):
    name: str = ""
    extension: Any = None


class ContextEntry(_Entry):
    cluster: EntryName = ""
    user: EntryName = ""
    namespace: str = ""


class ClusterEntry(_Entry):
    server: str = ""
    ca_file: str = msgspec.field(default="", name="certificate-authority")
    ca_data: str = msgspec.field(default="", name="certificate-authority-data")
    insecure: bool = msgspec.field(default=False, name="insecure-skip-tls-verify")
    tls_server_name: str = ""
    proxy_url: str = ""
    extensions: list[KubeconfigExtension] | None = None

    def exec_config(self) -> Any:
        return next((e.extension for e in self.extensions or () if e.name == EXEC_EXTENSION), None)


class ExecEnv(msgspec.Struct):
    name: str
    value: str = ""


class ExecSpec(msgspec.Struct, rename="camel"):
    command: str
    api_version: str = ""
    args: list[str] | None = None
    env: list[ExecEnv] | None = None
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = ""


class UserEntry(_Entry):
    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    username: str = ""
    password: str = ""
    certificate_file: str = msgspec.field(default="", name="client-certificate")
    certificate_data: str = msgspec.field(default="", name="client-certificate-data")
    key_file: str = msgspec.field(default="", name="client-key")
    key_data: str = msgspec.field(default="", name="client-key-data")
    exec: ExecSpec | None = None
    auth_provider: dict[str, Any] | None = None
    as_user: str = msgspec.field(default="", name="as")
    as_uid: str = ""
    as_groups: list[str] | None = None
    as_user_extra: dict[str, list[str]] | None = None

    def __repr__(self) -> str:
        return "UserEntry(...)"  # nearly every field is a secret

    def impersonation(self) -> Iterator[tuple[str, str]]:
        """Return header names and values. Ignoring them would act with more rights than requested."""
        if self.as_user:
            yield "impersonate-user", self.as_user
        if self.as_uid:
            yield "impersonate-uid", self.as_uid
        for group in self.as_groups or ():
            yield "impersonate-group", group
        for key, values in (self.as_user_extra or {}).items():
            for value in values:
                yield f"impersonate-extra-{key.lower()}", value


class _NamedContext(msgspec.Struct):
    name: EntryName
    context: ContextEntry | None = None


class _NamedCluster(msgspec.Struct):
    name: EntryName
    cluster: ClusterEntry | None = None


class _NamedUser(msgspec.Struct):
    name: EntryName
    user: UserEntry | None = None


class _Document(msgspec.Struct, rename="kebab"):
    current_context: EntryName | None = None
    contexts: list[_NamedContext] | None = None
    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None


@dataclass(slots=True)
class KubeconfigFile:
    current_context: str = ""
    contexts: dict[str, ContextEntry] = field(default_factory=dict)
    clusters: dict[str, ClusterEntry] = field(default_factory=dict)
    users: dict[str, UserEntry] = field(default_factory=dict)


def read_file(path: Path, prefix: str = "") -> KubeconfigFile:
    """Read one file. Raises ConfigError. Values are never shown: any of them may be a secret."""
    try:
        documents = list(safe_yaml.load_documents(read_bounded(path, SIZE_LIMIT), size_limit=SIZE_LIMIT))
    except OSError as error:
        raise ConfigError(
            f"{prefix}kubeconfig {path}: {error.strerror}; check the file and its permissions"
        ) from None
    except safe_yaml.UnusableYaml as error:
        raise ConfigError(f"{prefix}kubeconfig {path}: {error}") from None
    if len(documents) > 1:
        raise ConfigError(f"{prefix}kubeconfig {path} contains {len(documents)} documents; one is expected")
    if documents and not isinstance(documents[0], Mapping):
        raise ConfigError(
            f"{prefix}kubeconfig {path} is not a kubeconfig: it contains no clusters and contexts"
        )
    try:
        document = msgspec.convert(_without_nulls(documents[0] if documents else {}), _Document, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ConfigError(f"{prefix}kubeconfig {path}: {error}") from None
    return _index(document, path.absolute().parent)


def merge(files: Sequence[KubeconfigFile]) -> KubeconfigFile:
    merged = KubeconfigFile(current_context=next((f.current_context for f in files if f.current_context), ""))
    for file in reversed(files):
        merged.contexts.update(file.contexts)
        merged.clusters.update(file.clusters)
        merged.users.update(file.users)
    return merged


def bytes_of(text: str, what: str, prefix: str = "") -> bytes:
    """Decode the content of a `*-data` field."""
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError(f"{prefix}{what}-data is not base64; copy it again") from None


def _index(document: _Document, directory: Path) -> KubeconfigFile:
    file = KubeconfigFile(current_context=document.current_context or "")
    _fill(file.contexts, ((e.name, e.context or ContextEntry()) for e in document.contexts or ()), directory)
    _fill(file.clusters, ((e.name, e.cluster or ClusterEntry()) for e in document.clusters or ()), directory)
    _fill(file.users, ((e.name, e.user or UserEntry()) for e in document.users or ()), directory)
    return file


def _fill(entries: dict[str, T], named: Iterator[tuple[str, T]], directory: Path) -> None:
    for name, entry in named:
        if isinstance(entry, _Entry):
            entry.directory = directory
        entries.setdefault(name, entry)


def _without_nulls(value: Any) -> Any:
    """Remove null values: `token: null` and `token:` mean that there is no token."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value if item is not None]
    return value
