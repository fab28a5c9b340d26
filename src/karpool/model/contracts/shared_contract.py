"""One contract for several clusters that are seen in one place: each counts the others' machines.

What a machine adds to the bill is then exact for all of them together, whichever cluster it is in.
"""

from collections import Counter

from karpool.model.contracts.contract import BilledKind, Contract, ContractBill
from karpool.model.contracts.contracted_prices import ContractedPrices


class SharedContract:
    def __init__(self, contract: Contract) -> None:
        self.contract = contract
        self._members: dict[str, ContractedPrices] = {}

    def member(self, cluster: str) -> ContractedPrices:
        """The prices of a cluster; one that starts again takes the place of what it was."""
        prices = ContractedPrices(self.contract, lambda: self._machines(without=cluster))
        self._members[cluster] = prices
        return prices

    def leave(self, cluster: str) -> None:
        self._members.pop(cluster, None)

    def bill(self) -> ContractBill:
        """Of all clusters, as far as their machines were seen."""
        return self.contract.bill(self._machines())

    def _machines(self, without: str = "") -> Counter[BilledKind]:
        machines: Counter[BilledKind] = Counter()
        for cluster, prices in self._members.items():
            if cluster != without:
                machines.update(prices.own)
        return machines
