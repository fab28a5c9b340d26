"""ConfigMaps: settings, switches and records of ours."""

from karpool.model.kubernetes.meta import WireObject


class ConfigMap(WireObject, frozen=True):
    data: dict[str, str] | None = None
