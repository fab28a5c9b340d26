"""The market, read from files or from the shipped catalogue."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import structlog

from karpool.cluster.market.market import Market
from karpool.kube.bounded_input import read_bounded
from karpool.model.catalogue.files import read_catalogue
from karpool.model.contracts.contract import Contract
from karpool.model.contracts.contract_file import read_contract
from karpool.model.contracts.contracted_prices import ContractedPrices, ReadAgain
from karpool.model.contracts.shared_contract import SharedContract
from karpool.model.errors import Invalid
from karpool.model.safe_yaml import SIZE_LIMIT
from karpool.provisioning.contract_uses import use_asker
from karpool.provisioning.price_answers import price_asker

log = structlog.get_logger(__name__)


def market_of(
    catalogue: Path | None,
    region: str = "",
    contract: Path | ContractedPrices | None = None,
    *,
    fallback_region: str = "",
    contract_cluster: str | None = "",
) -> Market:
    """Return the market of a catalogue file, or the shipped one, at the prices of a contract if there is one.

    `contract_cluster` is as for `contracted_prices`. Raises Invalid, which names the file.
    """
    contracted = contracted_prices(contract, contract_cluster) if isinstance(contract, Path) else contract
    if catalogue is None:
        return Market(region=region, fallback_region=fallback_region, contract=contracted)
    try:
        catalogue_of_file = read_catalogue(read_bounded(catalogue, SIZE_LIMIT), region)
    except OSError as error:
        raise Invalid("--catalogue", str(catalogue), f"cannot be read: {error.strerror or error}") from None
    except Invalid as error:
        raise Invalid("--catalogue", str(catalogue), str(error)) from None
    if region and catalogue_of_file.region != region:
        raise Invalid("--region", region, f"{catalogue} is of {catalogue_of_file.region}")
    return Market(catalogue_of_file, contract=contracted)


def contracted_prices(path: Path, name: str | None = "", *, hears: bool = True) -> ContractedPrices:
    """Return the prices of a contract file, and follow changes of the file.

    `name` is the name of this cluster in the contract; None for a component that does not publish its own use
    and so must not act on the uses of others. `hears=False`: another component reads the uses of the others.
    Raises Invalid, which names the file.
    """
    reader = contract_reader(path)  # before the contract is read, so that no change is missed
    contract = contract_of(path)
    if name and contract.shared_by and name not in contract.shared_by:
        reason = f"is none of those that share {path}: {', '.join(sorted(contract.shared_by))}"
        raise Invalid("--contract-cluster", name, reason)
    ask_uses = use_asker() if hears and name is not None else None
    return ContractedPrices(
        contract, read_again=reader, ask_prices=price_asker(), ask_uses=ask_uses, name=name or ""
    )


def shared_contract(path: Path) -> SharedContract:
    """Return the contract that all clusters of a process share. Raises Invalid, which names the file."""
    return SharedContract(contract_of(path), partial(contract_reader, path), price_asker(), use_asker())


def contract_reader(path: Path) -> ReadAgain:
    """Return a function that returns the contract if it changed; an unreadable file keeps the last one."""
    stamp = _stamp(path)

    def read_again() -> Contract | None:
        nonlocal stamp
        before, stamp = stamp, _stamp(path)
        if stamp == before:
            return None
        try:
            contract = contract_of(path)
        except Invalid as error:
            log.error("contract not reloaded; the last valid one is used", reason=str(error))
            return None
        log.info("contract reloaded", file=str(path))
        return contract

    return read_again


def _stamp(path: Path) -> tuple[int, ...]:
    """Return a value that changes with the file; a ConfigMap update replaces the file."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_size, status.st_ino


def contract_of(path: Path) -> Contract:
    """Read a contract. Raises Invalid, which names the file."""
    try:
        contract = read_contract(read_bounded(path, SIZE_LIMIT))
        place = contract.shared_in
        if place is not None and place.kubeconfig:
            place = replace(place, kubeconfig=str(path.parent / place.kubeconfig))
        return replace(contract, prices_from=contract.prices_from.beside(path.parent), shared_in=place)
    except OSError as error:
        raise Invalid("--contract", str(path), f"cannot be read: {error.strerror or error}") from None
    except Invalid as error:
        raise Invalid("--contract", str(path), str(error)) from None
