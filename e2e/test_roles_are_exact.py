"""What every component asked for in all scenarios before this one, held against its shipped role.

Runs last. A request that was refused is a right that is missing; a right that nothing
used is one too many, unless it is for something that no scenario here has.
"""

import pytest

from e2e.access import ACCOUNTS, Account, Right, asked, unused
from e2e.fleet import Fleet

# Rights for what real clusters have and these do not, with the reason.
ELSEWHERE = {
    "ec2nodeclasses": "the cloud is Karpenter's kwok provider",
    "gpus": "no cluster here has TensorFusion's device objects",
    "gpuresourcequotas": "the same",
    "clusterresourcebindings": "get and patch: no scenario places a cluster-scoped workload",
    "clusterresourcebindings/status": "the same",
}


def used_elsewhere(right: Right) -> bool:
    return right.resource in ELSEWHERE


@pytest.mark.parametrize("account", ACCOUNTS, ids=[account.user for account in ACCOUNTS])
def test_nothing_was_refused_and_nothing_was_granted_in_vain(whole: Fleet, account: Account) -> None:
    servers = {one.name: one for one in (whole.elastic.server, whole.static.server, whole.control.server)}
    requests = asked([servers[name] for name in account.on], account.user)
    assert requests, f"no scenario ran {account.user}; run the whole of e2e"
    assert sorted({str(each.right) for each in requests if each.refused}) == []
    in_vain = (right for right in unused(account, requests) if not used_elsewhere(right))
    assert sorted(str(right) for right in in_vain) == []
