"""The options of `karpool dashboard`."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar

from karpool.dashboard.server.access import is_loopback
from karpool.kube.transport.prometheus import PrometheusServer
from karpool.manager.options import (
    Catalogue,
    ConnectionOptions,
    ContractFile,
    Options,
    option,
    region_problems,
)
from karpool.model.errors import Invalid
from karpool.model.web_address import is_http_url
from karpool.scheduler.controller.options import DecisionOptions

PORT = 8088
_HOST = re.compile(r"[0-9a-z]([0-9a-z.-]{0,251}[0-9a-z])?|[0-9a-f:]{2,45}")  # the second alternative is IPv6


class DashboardOptions(Options, frozen=True):
    command: ClassVar[str] = "dashboard"
    chart: ClassVar[str] = "dashboard"

    clusters: Annotated[
        tuple[str, ...],
        option(
            "Cluster to show; repeatable. NAME is the name in Karmada, if it differs from the context.",
            flag="cluster",
            metavar="[NAME=]CONTEXT",
        ),
    ] = ()
    all_contexts: Annotated[bool, option("Show every cluster of the kubeconfig.")] = False
    members: Annotated[
        bool,
        option("Also show the members of the first cluster, which is a Karmada control plane."),
    ] = False
    snapshot: Annotated[
        Path | None,
        option(
            "Show this file of `karpool snapshot` or kubectl get -o json instead of a cluster.",
            exists=True,
            metavar="FILE",
        ),
    ] = None
    host: Annotated[str, option("Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, option("Port to listen on. Default: 0, a free port.", least=0, most=65535)] = PORT
    token_file: Annotated[
        Path | None,
        option(
            "File with the token to require. Default: outside loopback a new token, printed once.",
            exists=True,
        ),
    ] = None
    tls_cert_file: Annotated[Path | None, option("Server certificate, PEM. Default: none.", exists=True)] = (
        None
    )
    tls_private_key_file: Annotated[
        Path | None, option("Key of the server certificate, PEM. Default: none.", exists=True)
    ] = None
    insecure_http: Annotated[
        bool, option("Serve without TLS outside loopback, behind a proxy that terminates TLS.")
    ] = False
    allowed_hosts: Annotated[
        tuple[str, ...],
        option("Host name to accept in addition to loopback names. Default: none.", flag="allowed-host"),
    ] = ()
    history_file: Annotated[
        Path | None,
        option("SQLite file for the history of the fleet. Default: in memory.", metavar="FILE"),
    ] = None
    prometheus_url: Annotated[
        str,
        option(
            "Prometheus that scrapes dashboards; its data fills gaps in the charts. Default: none.",
            metavar="URL",
        ),
    ] = ""
    prometheus_token_file: Annotated[
        Path | None,
        option(
            "File with the bearer token for --prometheus-url. Default: none.", exists=True, metavar="FILE"
        ),
    ] = None
    prometheus_ca_file: Annotated[
        Path | None,
        option(
            "Certificate authority of --prometheus-url, PEM. Default: the system's authorities.",
            exists=True,
            metavar="FILE",
        ),
    ] = None
    region: Annotated[
        str,
        option(
            "Region whose prices are used if a cluster does not name one. Default: none, prices are unknown.",
            chart="region",
        ),
    ] = ""
    catalogue: Catalogue = None
    contract: ContractFile = None
    connection: ConnectionOptions = ConnectionOptions()
    decisions: DecisionOptions = DecisionOptions()

    @property
    def prometheus(self) -> PrometheusServer | None:
        if not self.prometheus_url:
            return None
        token, ca = self.prometheus_token_file, self.prometheus_ca_file
        return PrometheusServer(
            self.prometheus_url,
            bearer_token_file=str(token or ""),
            ca_file=str(ca or ""),
            refused="it requires authentication; see --prometheus-token-file",
        )

    def problems(self) -> Iterator[Invalid | str]:
        if self.clusters and self.all_contexts:
            yield "--cluster and --all-contexts cannot be combined"
        if self.snapshot is not None and (self.clusters or self.all_contexts or self.members):
            yield "--snapshot cannot be combined with --cluster, --all-contexts or --members"
        if (self.tls_cert_file is None) != (self.tls_private_key_file is None):
            yield "--tls-cert-file and --tls-private-key-file must be used together"
        elif self.tls_cert_file is None and not is_loopback(self.host) and not self.insecure_http:
            yield (
                f"--host {self.host} is not loopback: pass --tls-cert-file and --tls-private-key-file, "
                "or --insecure-http behind a proxy that terminates TLS"
            )
        for name in self.allowed_hosts:
            if not _HOST.fullmatch(name):
                reason = "must be a host name without port, in lower case, like dashboard.example.com"
                yield Invalid("--allowed-host", name, reason)
        if self.prometheus_url and not is_http_url(self.prometheus_url):
            reason = "must be an address without a password, like http://prometheus.monitoring.svc:9090"
            yield Invalid("--prometheus-url", "...", reason)  # the given value may contain a password
        if not self.prometheus_url and (self.prometheus_token_file or self.prometheus_ca_file):
            yield "--prometheus-token-file and --prometheus-ca-file need --prometheus-url"
        if self.prometheus_ca_file and not self.prometheus_url.startswith("https:"):
            yield "--prometheus-ca-file needs an https address"
        yield from region_problems(self.region, self.catalogue)
