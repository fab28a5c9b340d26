"""The options of `karpool dashboard`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar

from karpool.dashboard.server.access import is_loopback
from karpool.manager.options import (
    Catalogue,
    ConnectionOptions,
    ContractFile,
    Options,
    option,
    region_problems,
)
from karpool.model.errors import Invalid
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
    port: Annotated[int, option("Port to listen on; 0 takes a free one.", least=0, most=65535)] = PORT
    token_file: Annotated[
        Path | None,
        option(
            "Token to ask for, never shown. Outside loopback one is made and shown, if none is given.",
            exists=True,
        ),
    ] = None
    tls_cert_file: Annotated[Path | None, option("Certificate of the server, PEM.", exists=True)] = None
    tls_private_key_file: Annotated[Path | None, option("Key of the certificate, PEM.", exists=True)] = None
    insecure_http: Annotated[
        bool, option("No TLS outside loopback: only behind a proxy that ends TLS itself.")
    ] = False
    allowed_hosts: Annotated[
        tuple[str, ...], option("A name it may be asked by, beside loopback's.", flag="allowed-host")
    ] = ()
    history_file: Annotated[
        Path | None,
        option("SQLite file that keeps the past of the fleet; without it only memory does.", metavar="FILE"),
    ] = None
    region: Annotated[
        str, option("Region whose prices are used where a cluster does not say its own.", chart="region")
    ] = ""
    catalogue: Catalogue = None
    contract: ContractFile = None
    connection: ConnectionOptions = ConnectionOptions()
    decisions: DecisionOptions = DecisionOptions()

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
        yield from region_problems(self.region, self.catalogue)
