"""Names of the gRPC services, as they are on the wire."""

from karpool.wire.proto import explain_pb2, service_pb2

ESTIMATOR: str = service_pb2.DESCRIPTOR.services_by_name["Estimator"].full_name
EXPLAINER: str = explain_pb2.DESCRIPTOR.services_by_name["Explainer"].full_name
