"""What is served under an object's own path: status, scale, binding, eviction and others."""

from typing import TYPE_CHECKING

from karpool.fleet.apiserver.cluster import Cluster
from karpool.fleet.apiserver.status import no_such_path
from karpool.kube.transport import Response

if TYPE_CHECKING:
    from karpool.fleet.apiserver.rest import Call


def answer(cluster: Cluster, call: "Call") -> Response:
    raise no_such_path(call.request.path)
