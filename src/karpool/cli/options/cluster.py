"""Flags shared by the commands that read a cluster, spelled as kubectl spells them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

import click

from karpool.cli.options.parameters import with_options
from karpool.manager.options import ConnectionOptions, option
from karpool.model.errors import Invalid

F = TypeVar("F", bound=Callable[..., Any])


class ClusterOptions(ConnectionOptions, frozen=True):
    """Which cluster to read: a live one, or a file saved by `karpool snapshot`."""

    snapshot: Annotated[
        Path | None,
        option(
            "Read this file of `karpool snapshot`, or YAML or JSON of objects. Default: the live cluster.",
            exists=True,
        ),
    ] = None

    def problems(self) -> Iterator[Invalid | str]:
        if self.snapshot is not None and (self.kubeconfig or self.context):
            yield "--snapshot reads a file; it cannot be combined with --kubeconfig or --context"


# Handed over as `cluster`; with --snapshot for commands that only read.
cluster_options = with_options(ClusterOptions, "cluster")
connection_options = with_options(ClusterOptions, "cluster", without=("snapshot",))


class RegionParam(click.ParamType[str]):
    """One of the shipped catalogue, or of the file given instead; empty is the cluster's own."""

    name = "region"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        # Only whoever names one waits for it.
        from karpool.model.catalogue.files import shipped_provider, unknown_region

        region = str(value)
        if ctx is not None and isinstance(ctx.params.get("catalogue"), Path):
            return region  # whoever reads the file says whether it has it
        if region and not shipped_provider(region):
            self.fail(str(unknown_region("", region)), param, ctx)
        return region


catalogue_option = click.option(
    "--catalogue",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    is_eager=True,  # --region depends on it
    help="File of instance types and prices; see docs/catalogue.md. Default: the shipped catalogue.",
)


contract_option = click.option(
    "--contract",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File of discounts, reservations and commitments; see docs/contracts.md. Default: list prices.",
)


contract_cluster_option = click.option(
    "--contract-cluster",
    default="",
    metavar="NAME",
    help="Name of this cluster in `sharedBy` of the contract. Default: its name in the kubeconfig.",
)


def output_option(*forms: str) -> Callable[[F], F]:
    return click.option(
        "-o",
        "--output",
        type=click.Choice(forms),
        default=forms[0],
        show_default=True,
        help="Output format.",
    )
