"""What every component asked for in all scenarios before this one, held against its shipped role.

Runs last. A request that was refused is a right that is missing; a right that nothing
used is one too many, unless it is for something that no scenario here has.
"""

import pytest

from e2e.access import ACCOUNTS, VARIANTS, Account, Right, asked, own, unused
from e2e.fleet import Fleet
from e2e.peers import Built

# Rights that no scenario here needs, with the reason: by account (or all) and what is granted.
ELSEWHERE = {
    ("", "ec2nodeclasses.karpenter.k8s.aws"): "the cloud here is Karpenter's kwok provider",
    ("", "nodeclasses.eks.amazonaws.com"): "the cloud here is Karpenter's kwok provider",
    ("", "aksnodeclasses.karpenter.azure.com"): "the cloud here is Karpenter's kwok provider",
    ("", "gcenodeclasses.karpenter.k8s.gcp"): "the cloud here is Karpenter's kwok provider",
    ("", "gpus.tensor-fusion.ai"): "no cluster here has TensorFusion's kinds",
    ("", "gpuresourcequotas.tensor-fusion.ai"): "the same",
    ("", "gpus/status.tensor-fusion.ai"): "the same",
    ("", "gpuresourcequotas/status.tensor-fusion.ai"): "the same",
    ("", "patch events"): "no scenario is long enough to say the same twice",
    ("", "watch devicetaintrules.resource.k8s.io"): "listed in vain: an alpha kind that is not served here",
    ("scheduler-ours", "get resourcebindings.work.karmada.io"): "only after a conflict",
    ("scheduler-ours", "get clusterresourcebindings.work.karmada.io"): "the same",
    ("descheduler-ours", "get resourcebindings.work.karmada.io"): "the same",
    ("descheduler-ours", "get clusterresourcebindings.work.karmada.io"): "the same",
    (
        "descheduler-ours",
        "patch clusterresourcebindings.work.karmada.io",
    ): "none of them has replicas here",
    ("gpu-scaler-buffers", "get capacitybuffers"): "only after an answer that was lost",
    ("gpu-scaler", "get pods"): "the same, or after a conflict",
    ("gpu-scaler", "create leases.coordination.k8s.io"): "there already when its variant ran first",
    ("consolidator", "get pods in karpool-smart-pods"): "only after a conflict or a lost answer",
    ("consolidator", "delete configmaps in karpool-system"): "records go after 500 others, or 30 days",
}


def used_elsewhere(user: str, right: Right) -> bool:
    return any(account in ("", user) and part in str(right) for account, part in ELSEWHERE)


ALL = (*ACCOUNTS, *VARIANTS)


@pytest.mark.parametrize("account", ALL, ids=[account.user for account in ALL])
def test_nothing_was_refused_and_nothing_was_granted_in_vain(
    whole: Fleet, peers: dict[str, Built], account: Account
) -> None:
    servers = {one.name: one for one in (whole.elastic.server, whole.static.server, whole.control.server)}
    requests = asked([servers[name] for name in account.on], account.user)
    assert requests, f"no scenario ran {account.user}; run the whole of e2e"
    assert sorted({str(request.right) for request in requests if request.refused}) == []
    grants = own(account, peers["helm"].program("helm") if account.values else None)
    in_vain = {right for right in unused(grants, requests) if not used_elsewhere(account.user, right)}
    assert account.is_shared or sorted(str(right) for right in in_vain) == []
