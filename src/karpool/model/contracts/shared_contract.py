"""One contract for several clusters that are seen in one place: each counts the others' machines.

What a machine adds to the bill is then exact for all of them together, whichever cluster it is in.
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
        """`reader` makes what tells a member that the contract was written anew."""
        self.contract = contract
        self._ask_prices, self._ask_uses = ask_prices, ask_uses
        self._reader = reader
        self._members: dict[str, ContractedPrices] = {}

    def member(self, cluster: str) -> ContractedPrices:
        """The prices of a cluster; one that starts again takes the place of what it was."""
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
        """The prices of a cluster that does not see the others here, and has to hear of them."""
        prices = ContractedPrices(self.contract, ask_prices=self._ask_prices, name=cluster)
        self._members[cluster] = prices
        return prices

    def leave(self, cluster: str) -> None:
        self._members.pop(cluster, None)

    def bill(self) -> ContractBill:
        """Of all clusters, as far as their machines were seen, under what holds by their clocks."""
        contracts = [prices.contract for prices in self._members.values()]
        return (contracts[0] if contracts else self.contract.at(None)).bill(self._machines())

    def _machines(self, without: str = "") -> Counter[BilledKind]:
        machines: Counter[BilledKind] = Counter()
        for cluster, prices in self._members.items():
            if cluster != without:
                machines.update(prices.own)
        return machines
