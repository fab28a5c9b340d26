"""ConfigMaps: Karpool's settings, switches and records."""

from karpool.model.kubernetes.meta import WireObject


class ConfigMap(WireObject, frozen=True):
    data: dict[str, str] | None = None
