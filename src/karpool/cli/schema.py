"""`karpool schema`: the JSON Schemas of what `-o json` and `-o yaml` write."""

import click
import msgspec

from karpool.cli.inspect.listing_options import StaticListingOptions, emit_listing
from karpool.cli.options.parameters import with_options
from karpool.cli.output.listing import ListedItem, Listing
from karpool.cli.output.text import emit


@click.command(epilog="Example: karpool schema NodeUsageList > nodes.schema.json")
@click.argument("kind", required=False)
@with_options(StaticListingOptions, "listing")
def schema(kind: str | None, listing: StaticListingOptions) -> None:
    """Print the JSON Schema of one kind of document, or list the kinds and the commands that write them."""
    from karpool.cli.document_kinds import DOCUMENTS  # imports what every command answers with

    if kind is None:
        items = [
            ListedItem(name, {"kind": name, "command": entry.command}, (name, f"karpool {entry.command}"))
            for name, entry in sorted(DOCUMENTS.items())
        ]
        emit_listing(Listing("SchemaList", "schema", ("KIND", "COMMAND"), items), listing.form)
        return
    if kind not in DOCUMENTS:
        raise click.BadParameter(
            f"{kind!r} is not a kind of document; `karpool schema` lists them", param_hint="KIND"
        )
    content = msgspec.json.encode(DOCUMENTS[kind].schema(kind))
    emit(msgspec.json.format(content, indent=2).decode())
