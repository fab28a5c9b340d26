"""What can be bought, as a file says it or as is shipped."""

from pathlib import Path

from karpool.cluster.market.market import Market
from karpool.kube.bounded_input import read_bounded
from karpool.model.catalogue.files import read_catalogue
from karpool.model.errors import Invalid
from karpool.model.safe_yaml import SIZE_LIMIT


def market_of(catalogue: Path | None, region: str = "") -> Market:
    """What a catalogue file sells; without one, what is shipped. Raises Invalid, naming the file."""
    if catalogue is None:
        return Market(region=region)
    try:
        found = read_catalogue(read_bounded(catalogue, SIZE_LIMIT), region)
    except OSError as error:
        raise Invalid("--catalogue", str(catalogue), f"cannot be read: {error.strerror or error}") from None
    except Invalid as error:
        raise Invalid("--catalogue", str(catalogue), str(error)) from None
    if region and found.region != region:
        raise Invalid("--region", region, f"{catalogue} is of {found.region}")
    return Market(found)
