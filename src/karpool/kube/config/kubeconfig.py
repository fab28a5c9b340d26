"""Finds the API server and its user in the same way as kubectl.

Order: an explicit file, the merged files of $KUBECONFIG, ~/.kube/config, and the service account of the pod.
The result is a `ClusterConfig`. `kube.transport.http` opens connections; `credentials` obtains credentials.
Messages name the file, context, cluster or user that is wrong, and what to do.
"""

import ipaddress
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

import msgspec

from karpool.kube.bounded_input import read_bounded
from karpool.kube.config.kubeconfig_file import (
    ContextEntry,
    ExecSpec,
    KubeconfigFile,
    UserEntry,
    bytes_of,
    merge,
    read_file,
)
from karpool.kube.errors import ConfigError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
T = TypeVar("T", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class DataOrFile:
    """Literal bytes, or a file that holds them and may change."""

    data: bytes = field(default=b"", repr=False)
    path: Path | None = None

    def __bool__(self) -> bool:
        return bool(self.data) or self.path is not None


NOTHING = DataOrFile()


@dataclass(frozen=True, slots=True)
class KubeUser:
    """How we authenticate. Secrets are kept out of the representation."""

    token: str = field(default="", repr=False)
    token_file: Path | None = None
    username: str = ""
    password: str = field(default="", repr=False)
    certificate: DataOrFile = NOTHING
    key: DataOrFile = field(default=NOTHING, repr=False)
    plugin: ExecSpec | None = field(default=None, repr=False)
    plugin_directory: Path | None = None
    impersonate: tuple[tuple[str, str], ...] = ()  # header name and value

    @property
    def anonymous(self) -> bool:
        credentials = (self.token, self.token_file, self.username, self.certificate, self.plugin)
        return not any(credentials)


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    name: str  # name in messages
    server: str  # no trailing slash, may have a path
    namespace: str = "default"
    ca: DataOrFile = NOTHING
    insecure: bool = False
    tls_server_name: str = ""
    proxy_url: str = field(default="", repr=False)  # may hold a password
    user: KubeUser = KubeUser()
    exec_config: Any = None  # extension for exec plugins, passed through
    # Its files and how to read them again, because tokens in a kubeconfig are renewed, too.
    files: tuple[Path, ...] = field(default=(), compare=False)
    read_again: "Callable[[], ClusterConfig] | None" = field(default=None, compare=False, repr=False)


def load(
    path: Path | str | None = None,
    *,
    context: str = "",
    cluster: str = "",
    env: Mapping[str, str] = os.environ,
    home: Path | None = None,
    service_account: Path = SERVICE_ACCOUNT,
) -> ClusterConfig:
    """Load the configuration. `cluster` is the name of the cluster in messages; by default it is derived."""
    prefix = f"cluster {cluster}: " if cluster else ""
    files = _files(path, env, home or Path.home())
    present = [file for file in files if file.is_file()]
    if path is not None and not present:
        raise ConfigError(f"{prefix}{_not_a_file(path)}")
    if present:
        return _chosen(present, prefix, context, cluster)
    if env.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster(env, service_account, name=cluster)
    tried = ", ".join(str(file) for file in files) or "nothing"
    raise ConfigError(
        f"{prefix}no kubeconfig found (tried {tried}) and not running in a pod; use "
        "--kubeconfig or set KUBECONFIG"
    )


def load_contexts(path: Path) -> list[ClusterConfig]:
    """One cluster per context of a file, under the context's name. Raises ConfigError."""
    if not path.is_file():
        raise ConfigError(_not_a_file(path))
    names = merge([read_file(path, "")]).contexts
    return [_chosen([path], f"cluster {name}: ", name, name) for name in names]


def _chosen(files: Sequence[Path], prefix: str, context: str, cluster: str) -> ClusterConfig:
    merged = merge([read_file(file, prefix) for file in files])
    config = _Chooser(merged, prefix).choose(context, cluster)
    return replace(config, files=tuple(files), read_again=lambda: _chosen(files, prefix, context, cluster))


def contexts(
    path: Path | str | None = None, *, env: Mapping[str, str] = os.environ, home: Path | None = None
) -> list[str]:
    """Return the names of all contexts; an empty list without a kubeconfig."""
    present = [file for file in _files(path, env, home or Path.home()) if file.is_file()]
    if path is not None and not present:
        raise ConfigError(_not_a_file(path))
    return list(merge([read_file(file, "") for file in present]).contexts)


def _not_a_file(path: Path | str) -> str:
    """Return the refusal of a path: devices and pipes may never end, and the file is read more than once."""
    wrong = "is a device, pipe or directory, not a file" if Path(path).exists() else "does not exist"
    return f"kubeconfig {path} {wrong}; check --kubeconfig"


def _files(path: Path | str | None, env: Mapping[str, str], home: Path) -> list[Path]:
    if path is not None:
        return [Path(path)]
    if listed := env.get("KUBECONFIG"):
        return [Path(name) for name in listed.split(os.pathsep) if name]
    return [home / ".kube" / "config"]


def in_cluster(
    env: Mapping[str, str] = os.environ, service_account: Path = SERVICE_ACCOUNT, *, name: str = ""
) -> ClusterConfig:
    """Return the in-cluster configuration: address from the environment, rotating token and CA from files."""
    host, port = env.get("KUBERNETES_SERVICE_HOST", ""), env.get("KUBERNETES_SERVICE_PORT", "443")
    token, ca = service_account / "token", service_account / "ca.crt"
    if not host:
        raise ConfigError("KUBERNETES_SERVICE_HOST is not set: not running in a pod; use --kubeconfig")
    for needed in (token, ca):
        if not needed.is_file():
            raise ConfigError(f"{needed} is missing; set automountServiceAccountToken: true on the pod")
    namespace_file = service_account / "namespace"
    namespace = read_bounded(namespace_file, 1024).decode().strip() if namespace_file.is_file() else "default"
    shown = f"[{host}]" if ":" in host else host
    return ClusterConfig(
        name=name or "in-cluster",
        server=f"https://{shown}:{port}",
        namespace=namespace or "default",
        ca=DataOrFile(path=ca),
        user=KubeUser(token_file=token),
    )


class _Chooser:
    """Resolves a context to its cluster and user; all its messages have the same prefix."""

    def __init__(self, config: KubeconfigFile, prefix: str) -> None:
        self._config = config
        self._prefix = prefix

    def choose(self, context: str, name: str) -> ClusterConfig:
        context_name = context or self._config.current_context
        if not context_name:
            if not self._config.contexts:
                self._fail("the kubeconfig holds no contexts; check --kubeconfig or KUBECONFIG")
            self._fail(f"no current context{_choices(self._config.contexts)}; use --context")
        chosen = self._find(self._config.contexts, context_name, "context")
        where = f'kubeconfig context "{context_name}"'
        if not chosen.cluster:
            self._fail(f"{where} names no cluster; add one or use --context")
        cluster = self._find(self._config.clusters, chosen.cluster, f"{where}: cluster")
        directory = cluster.directory
        if cluster.insecure and (cluster.ca_data or cluster.ca_file):
            self._fail(
                f'cluster "{chosen.cluster}" has both a certificate authority and '
                "insecure-skip-tls-verify; remove one"
            )
        server = self._address(cluster.server, f'cluster "{chosen.cluster}": server')
        return ClusterConfig(
            name=name or context_name,
            server=server,
            namespace=chosen.namespace or "default",
            ca=self._source(cluster.ca_data, cluster.ca_file, directory, "certificate-authority"),
            insecure=cluster.insecure,
            tls_server_name=cluster.tls_server_name,
            proxy_url=self._proxy(cluster.proxy_url, chosen.cluster),
            user=self._user(chosen, where, server),
            exec_config=cluster.exec_config(),
        )

    def _user(self, chosen: ContextEntry, where: str, server: str) -> KubeUser:
        plain = server.startswith("http:")
        if not chosen.user:
            if plain:  # kubectl proxy, which adds the credentials
                return KubeUser()
            self._fail(f"{where} has no credentials; add a user or use --kubeconfig")
        entry = self._find(self._config.users, chosen.user, f"{where}: user")
        name = f'user "{chosen.user}"'
        if entry.auth_provider is not None:
            self._fail(
                f"{name}: auth-provider is no longer supported; "
                "use the provider's exec plugin (for example gke-gcloud-auth-plugin or kubelogin)"
            )
        user = self._user_of(entry, chosen.user)
        if user.anonymous and not plain:
            self._fail(f"{where} has no credentials: {name} is empty; add a token, certificate or exec")
        if bool(user.certificate) != bool(user.key):
            missing = "client-key" if user.certificate else "client-certificate"
            self._fail(f"{name}: {missing} is missing; a certificate and its key come together")
        if plain and not user.anonymous and not _is_loopback(server):
            self._fail(f"{where}: credentials would go to {server} unencrypted; use https")
        return user

    def _user_of(self, entry: UserEntry, name: str) -> KubeUser:
        directory = entry.directory
        return KubeUser(
            token=self._header_safe(entry.token, name, "token"),
            token_file=directory / entry.token_file if entry.token_file else None,
            username=entry.username,
            password=entry.password,
            certificate=self._source(
                entry.certificate_data, entry.certificate_file, directory, "client-certificate"
            ),
            key=self._source(entry.key_data, entry.key_file, directory, "client-key"),
            plugin=entry.exec,
            plugin_directory=directory,
            impersonate=tuple(
                (key, self._header_safe(value, name, "impersonation")) for key, value in entry.impersonation()
            ),
        )

    def _header_safe(self, value: str, user: str, what: str) -> str:
        if not value.isprintable():  # the value itself is a secret and is not shown
            self._fail(f'user "{user}": {what} contains a line break or control character; check the file')
        return value

    def _source(self, data: str, file: str, directory: Path, what: str) -> DataOrFile:
        if data:
            return DataOrFile(data=bytes_of(data, what, self._prefix))
        return DataOrFile(path=directory / file) if file else NOTHING

    def _address(self, server: str, what: str) -> str:
        address = self._url(server, what, ("https", "http"))
        if "@" in address.netloc:
            self._fail(f"{what} contains a user name; put credentials into a user entry")
        return server.rstrip("/")

    def _proxy(self, proxy: str, cluster: str) -> str:
        if proxy:
            self._url(proxy, f'cluster "{cluster}": proxy-url', ("https", "http"))
        return proxy

    def _url(self, text: str, what: str, schemes: tuple[str, ...]) -> Any:
        try:
            parts = urlsplit(text)
            good = parts.scheme in schemes and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            good = False
        if not good:
            shown = text.rpartition("@")[2][:200]
            self._fail(
                f"{what} {shown!r} is not an address like https://host:6443 (schemes: {', '.join(schemes)})"
            )
        return parts

    def _find(self, entries: Mapping[str, T], name: str, what: str) -> T:
        entry = entries.get(name)
        if entry is None:
            self._fail(f'{what} "{name}" does not exist{_choices(entries)}')
        return entry

    def _fail(self, message: str) -> NoReturn:
        raise ConfigError(self._prefix + message)


def _is_loopback(server: str) -> bool:
    host = urlsplit(server).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _choices(entries: Mapping[str, object]) -> str:
    names = sorted(entries)
    if not names:
        return ""
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return f" (there are: {', '.join(names[:10])}{more})"
