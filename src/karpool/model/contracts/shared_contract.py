"""One contract for several clusters of one process: each counts the machines of the others.

What a machine adds to the bill is then exact for all of them together.
"""

from collections import Counter
from collections.abc import Callable

from karpool.model.contracts.contract import BilledKind, Contract, ContractBill
from karpool.model.contracts.contracted_prices import AskPrices, AskUses, ContractedPrices, ReadAgain


class SharedContract:
    def __init__(
        self,
        contract: Contract,
        reader: Callable[[], ReadAgain] | None = None,
        ask_prices: AskPrices | None = None,
        ask_uses: AskUses | None = None,
    ) -> None:
        """`reader` creates the function by which a member learns of contract changes."""
        self.contract = contract
        self._ask_prices, self._ask_uses = ask_prices, ask_uses
        self._reader = reader
        self._members: dict[str, ContractedPrices] = {}

    def member(self, cluster: str) -> ContractedPrices:
        """Return the prices of a cluster; a restarted cluster replaces its earlier entry."""
        prices = ContractedPrices(
            self.contract,
            lambda: self._machines(without=cluster),
            read_again=None if self._reader is None else self._reader(),
            seen_clusters=self._members.keys,
            ask_prices=self._ask_prices,
            ask_uses=self._ask_uses,
            name=cluster,
        )
        self._members[cluster] = prices
        return prices

    def apart(self, cluster: str) -> ContractedPrices:
        """Return the prices of a cluster that does not see the others here, and reads what they publish."""
        prices = ContractedPrices(self.contract, ask_prices=self._ask_prices, name=cluster)
        self._members[cluster] = prices
        return prices

    def leave(self, cluster: str) -> None:
        self._members.pop(cluster, None)

    def bill(self) -> ContractBill:
        """Return the bill of all clusters whose machines are known, under the contract in force."""
        contracts = [prices.contract for prices in self._members.values()]
        return (contracts[0] if contracts else self.contract.at(None)).bill(self._machines())

    def _machines(self, without: str = "") -> Counter[BilledKind]:
        machines: Counter[BilledKind] = Counter()
        for cluster, prices in self._members.items():
            if cluster != without:
                machines.update(prices.own)
        return machines
