"""The options of every command that plans: settings for all pools, whatever their policy.

A saved plan contains them by field name, so that it is validated with the same ones.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from karpool.consolidation.policy.policy import LARGEST_K, PolicyName, PolicyOverride
from karpool.manager.options import (
    Amount,
    Catalogue,
    ContractCluster,
    ContractFile,
    Duration,
    InvalidOptions,
    Options,
    option,
    read_fields,
    region_problems,
)
from karpool.model.errors import Invalid

if TYPE_CHECKING:
    from karpool.consolidation.policy.settings import PlanSettings

# A person waits for the plan, and a controller for the next one; 10,000 nodes take less than a quarter of it.
DEADLINE_SECONDS = 60.0
_K = "k of the Balanced policy."
_HeedBudgets = Annotated[bool, option("Ignore disruption budgets.", flag="ignore-budgets", negated=True)]

_OF_THE_MARKET = ("catalogue", "contract", "contract_cluster")  # never in a plan


class PlanningOptions(Options, frozen=True):
    spot_to_spot: Annotated[bool, option("Also replace spot nodes by cheaper spot nodes.")] = False
    replace: Annotated[
        bool, option("Only delete nodes; never replace them.", flag="no-replace", negated=True)
    ] = True
    delete: Annotated[
        bool, option("Only replace nodes; never delete without replacement.", flag="no-delete", negated=True)
    ] = True
    min_savings_per_hour: Annotated[
        Amount, option("Minimum saving of a move in $ per hour. Default: 0, any saving.", flag="min-savings")
    ] = 0.0
    min_age_seconds: Annotated[Duration, option("Keep nodes younger than this.", flag="min-age")] = 0.0
    protect_young_targets: Annotated[
        bool,
        option(
            "Also send pods to nodes that are inside their consolidateAfter.",
            flag="fill-young-nodes",
            negated=True,
        ),
    ] = True
    deadline_seconds: Annotated[
        float | None,
        msgspec.Meta(ge=0, extra={"unit": "duration"}),
        option(
            "Return the best plan found after this time; 0 means no limit. Default: 60s.",
            flag="deadline",
            process_only=True,
        ),
    ] = None
    region: Annotated[
        str,
        option(
            "Region whose prices are used. Default: the region of the cluster.",
            chart="region",
            process_only=True,
        ),
    ] = ""
    catalogue: Annotated[Catalogue, option(process_only=True)] = None
    contract: Annotated[ContractFile, option(process_only=True)] = None
    contract_cluster: Annotated[ContractCluster, option(process_only=True)] = ""

    def problems(self) -> Iterator[Invalid | str]:
        if not self.replace and not self.delete:
            yield "--no-replace and --no-delete cannot be combined"
        yield from region_problems(self.region, self.catalogue)

    def settings(self, override: PolicyOverride, *, heed_budgets: bool = True) -> "PlanSettings":
        from karpool.consolidation.policy.settings import PlanSettings  # with numpy: not for --help

        return PlanSettings(
            override=override,
            spot_to_spot=self.spot_to_spot,
            delete=self.delete,
            replace=self.replace,
            min_savings_per_hour=self.min_savings_per_hour,
            min_age_seconds=self.min_age_seconds,
            protect_young_targets=self.protect_young_targets,
            heed_budgets=heed_budgets,
            deadline_seconds=(
                DEADLINE_SECONDS if self.deadline_seconds is None else self.deadline_seconds or None
            ),
        )


class PlanOptions(PlanningOptions, frozen=True):
    """Options of `karpool plan`, which compares policies."""

    policies: Annotated[
        tuple[PolicyName, ...],
        option("Policy of every pool. Repeat to compare. Default: the pool's own.", flag="policy"),
    ] = ()
    thresholds: Annotated[
        tuple[int, ...], option(f"{_K} Repeat to compare.", flag="threshold", least=1, most=LARGEST_K)
    ] = ()
    heed_budgets: _HeedBudgets = True
    free_devices: Annotated[bool, option("Also show which shares of GPUs could move to free whole GPUs.")] = (
        False
    )

    def saved(self, override: PolicyOverride) -> dict[str, Any]:
        """The options as a plan of this policy stores them."""
        fields: dict[str, Any] = msgspec.to_builtins(self, enc_hook=str)
        for name in (*_OF_THE_MARKET, "policies", "thresholds", "free_devices"):
            del fields[name]
        return {**fields, "policy": str(override.name or ""), "threshold": override.k or 0}


class OnePolicyOptions(PlanningOptions, frozen=True):
    policy: Annotated[
        PolicyName | None, option("Policy of every pool. Default: the pool's own.", chart="policy")
    ] = None
    threshold: Annotated[
        int | None,
        option(
            "k of the Balanced policy. Default: the pool's own.", chart="threshold", least=1, most=LARGEST_K
        ),
    ] = None

    def problems(self) -> Iterator[Invalid | str]:
        yield from super().problems()
        if self.threshold and self.policy is not None and not self.policy.is_scored:
            yield f"--threshold is for --policy Balanced, not for {self.policy}"

    @property
    def override(self) -> PolicyOverride:
        return PolicyOverride(self.policy, self.threshold)


class ReplanOptions(OnePolicyOptions, frozen=True):
    """Options for one policy: of `karpool explain node`, and of a saved plan."""

    heed_budgets: _HeedBudgets = True


def saved_options(saved: Mapping[str, Any]) -> ReplanOptions:
    """Read the options of a saved plan. Raises Invalid. Ignores catalogue and contract: plans are
    untrusted.
    """
    fields = {name: value for name, value in saved.items() if name not in _OF_THE_MARKET}
    for name in ("policy", "threshold"):
        fields[name] = fields.get(name) or None  # empty and 0: as the pools say
    try:
        return read_fields(ReplanOptions, fields)
    except InvalidOptions as error:
        raise Invalid("flags", dict(saved), str(error)) from None
