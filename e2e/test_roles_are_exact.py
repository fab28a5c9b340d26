"""What every component asked for in all scenarios before this one, held against its shipped role.

Runs last. A request that was refused is a right that is missing; a right that nothing
used is one too many, unless it is for something that no scenario here has.
"""

import pytest

from e2e.access import ACCOUNTS, Account, Right, asked, unused
from e2e.fleet import Fleet

# Rights that no scenario here needs, with the reason: by account (or all) and what is granted.
ELSEWHERE = {
    ("", "ec2nodeclasses.karpenter.k8s.aws"): "the cloud here is Karpenter's kwok provider",
    ("", "gpus.tensor-fusion.ai"): "no cluster here has TensorFusion's kinds",
    ("", "gpuresourcequotas.tensor-fusion.ai"): "the same",
    ("", "clusterresourcebindings"): "no scenario places a cluster-scoped workload",
    ("", "patch events"): "no scenario is long enough to say the same twice",
    ("estimator", "get jobs.batch"): "asked for when a descheduler asks about a Job",
    ("estimator", "get statefulsets.apps"): "the same for a StatefulSet",
    ("estimator", "get replicasets.apps"): "the same for a ReplicaSet",
    ("descheduler-ours", "get resourcebindings.work.karmada.io"): "only after a conflict",
    ("gpu-scaler", "get pods"): "only after a conflict, or an answer that was lost",
    ("consolidator", "get pods in karpool-smart-pods"): "the same",
    ("consolidator", "delete configmaps in karpool-system"): "records go after 500 others, or 30 days",
}


def used_elsewhere(user: str, right: Right) -> bool:
    return any(account in ("", user) and part in str(right) for account, part in ELSEWHERE)


@pytest.mark.parametrize("account", ACCOUNTS, ids=[account.user for account in ACCOUNTS])
def test_nothing_was_refused_and_nothing_was_granted_in_vain(whole: Fleet, account: Account) -> None:
    servers = {one.name: one for one in (whole.elastic.server, whole.static.server, whole.control.server)}
    requests = asked([servers[name] for name in account.on], account.user)
    assert requests, f"no scenario ran {account.user}; run the whole of e2e"
    assert sorted({str(each.right) for each in requests if each.refused}) == []
    in_vain = {right for right in unused(account, requests) if not used_elsewhere(account.user, right)}
    assert account.is_shared or sorted(str(right) for right in in_vain) == []
