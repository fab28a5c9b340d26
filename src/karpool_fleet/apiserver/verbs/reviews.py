"""Access reviews. The only user may do everything, so the answer is always yes."""

import msgspec

from karpool.kube.transport_interface import HttpResponse
from karpool_fleet.apiserver.objects.cluster import ServedCluster
from karpool_fleet.apiserver.objects.metadata import identify
from karpool_fleet.apiserver.objects.types import Object
from karpool_fleet.apiserver.serve.bodies import decode_object
from karpool_fleet.apiserver.serve.call import Call
from karpool_fleet.apiserver.serve.status import JSON, method_not_allowed

_USER: Object = {"username": "karpool-admin", "groups": ["system:masters", "system:authenticated"]}
_ALLOWED: Object = {"allowed": True, "reason": "the bearer of the token may do everything"}
_EVERYTHING: Object = {
    "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
    "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    "incomplete": False,
}

ANSWERS: dict[str, Object] = {
    "selfsubjectaccessreviews.authorization.k8s.io": _ALLOWED,
    "subjectaccessreviews.authorization.k8s.io": _ALLOWED,
    "localsubjectaccessreviews.authorization.k8s.io": _ALLOWED,
    "selfsubjectrulesreviews.authorization.k8s.io": _EVERYTHING,
    "selfsubjectreviews.authentication.k8s.io": {"userInfo": _USER},
    "tokenreviews.authentication.k8s.io": {"authenticated": False, "error": "tokens are not reviewed here"},
}


def answer(cluster: ServedCluster, call: Call) -> HttpResponse:
    if call.request.method != "POST" or call.route.name:
        raise method_not_allowed(call.request.method, call.request.path)
    obj = decode_object(call.request)
    identify(call.resource, obj, call.namespace)
    obj["metadata"]["creationTimestamp"] = cluster.now()
    obj["status"] = ANSWERS[call.resource.group_resource]
    return HttpResponse(201, JSON, msgspec.json.encode(obj))
