"""The options of `karpool dashboard`."""

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


class DashboardOptions(Options, frozen=True):
    command: ClassVar[str] = "dashboard"
    chart: ClassVar[str] = "dashboard"

    clusters: Annotated[
        tuple[str, ...],
        option(
            "A cluster to show; repeat for more. NAME is the one Karmada knows it by, if it differs.",
            flag="cluster",
            metavar="[NAME=]CONTEXT",
        ),
    ] = ()
    all_contexts: Annotated[bool, option("Show every cluster of the kubeconfig.")] = False
    members: Annotated[
        bool,
        option("Show the members of the first cluster too, a control plane, as they join and leave."),
    ] = False
    snapshot: Annotated[
        Path | None,
        option(
            "Show what this file holds, of `karpool snapshot` or kubectl get -o json; no cluster is asked.",
            exists=True,
            metavar="FILE",
        ),
    ] = None
    host: Annotated[str, option("Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, option("Port to listen on. Default: 0, a free one.", least=0, most=65535)] = PORT
    token_file: Annotated[
        Path | None,
        option(
            "Token to ask for, never shown. Outside loopback one is made and shown, if none is given.",
            exists=True,
        ),
    ] = None
    tls_cert_file: Annotated[
        Path | None, option("Certificate of the server, PEM. Default: none.", exists=True)
    ] = None
    tls_private_key_file: Annotated[
        Path | None, option("Key of the certificate, PEM. Default: none.", exists=True)
    ] = None
    insecure_http: Annotated[
        bool, option("No TLS outside loopback: only behind a proxy that ends TLS itself.")
    ] = False
    allowed_hosts: Annotated[
        tuple[str, ...],
        option("A name it may be asked by, beside loopback's. Default: none.", flag="allowed-host"),
    ] = ()
    history_file: Annotated[
        Path | None,
        option("SQLite file that keeps the past of the fleet; without it only memory does.", metavar="FILE"),
    ] = None
    prometheus_url: Annotated[
        str,
        option(
            "A Prometheus that scrapes dashboards: what it kept fills the charts.",
            metavar="URL",
        ),
    ] = ""
    prometheus_token_file: Annotated[
        Path | None, option("Bearer token for --prometheus-url, never shown.", exists=True, metavar="FILE")
    ] = None
    prometheus_ca_file: Annotated[
        Path | None,
        option("Authority that --prometheus-url is known by, PEM.", exists=True, metavar="FILE"),
    ] = None
    region: Annotated[
        str,
        option(
            "Region whose prices are used where a cluster does not say its own. Default:"
            " none, prices are unknown.",
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
            refused="it wants to know who asks; see --prometheus-token-file",
        )

    def problems(self) -> Iterator[Invalid | str]:
        if self.clusters and self.all_contexts:
            yield "--cluster and --all-contexts exclude each other"
        if self.snapshot is not None and (self.clusters or self.all_contexts or self.members):
            yield "--snapshot shows a file: it goes with none of --cluster, --all-contexts and --members"
        if (self.tls_cert_file is None) != (self.tls_private_key_file is None):
            yield "--tls-cert-file and --tls-private-key-file belong together"
        elif self.tls_cert_file is None and not is_loopback(self.host) and not self.insecure_http:
            yield (
                f"--host {self.host} is not loopback: give --tls-cert-file and --tls-private-key-file, "
                "or --insecure-http behind a proxy that ends TLS"
            )
        if self.prometheus_url and not is_http_url(self.prometheus_url):
            reason = "must be an address without a password, like http://prometheus.monitoring.svc:9090"
            yield Invalid("--prometheus-url", "...", reason)  # what was typed may hold a password
        if not self.prometheus_url and (self.prometheus_token_file or self.prometheus_ca_file):
            yield "--prometheus-token-file and --prometheus-ca-file go with --prometheus-url"
        if self.prometheus_ca_file and not self.prometheus_url.startswith("https:"):
            yield "--prometheus-ca-file goes with an https address"
        yield from region_problems(self.region, self.catalogue)
