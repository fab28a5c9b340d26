"""Which resource types are served, found by path or by kind.

Types are added and removed while the server runs (CustomResourceDefinitions);
`generation` grows with each change, so that documents made from the registry can
be cached until it moves.
"""

from collections.abc import Iterable

from karpool_fleet.apiserver.objects.types import ResourceType


class Registry:
    def __init__(self, types: Iterable[ResourceType] = ()) -> None:
        self.generation = 0
        self._by_path: dict[tuple[str, str, str], ResourceType] = {}
        self._by_kind: dict[tuple[str, str], ResourceType] = {}
        self._served: dict[str, list[ResourceType]] = {}  # group resource: its versions, preferred first
        self.add(types)

    def add(self, types: Iterable[ResourceType]) -> None:
        for resource in types:
            self._by_path[resource.group, resource.version, resource.plural] = resource
            versions = self._served.setdefault(resource.group_resource, [])
            versions[:] = [served for served in versions if served.version != resource.version] + [resource]
            self._by_kind.setdefault((resource.group, resource.kind), resource)
        self.generation += 1

    def replace(self, group_resource: str, types: Iterable[ResourceType]) -> None:
        """Serve exactly `types` as the versions of one resource."""
        for resource in self._served.pop(group_resource, []):
            self._by_path.pop((resource.group, resource.version, resource.plural), None)
            if self._by_kind.get((resource.group, resource.kind)) is resource:
                del self._by_kind[resource.group, resource.kind]
        self.add(types)

    def remove(self, group_resource: str) -> None:
        self.replace(group_resource, ())

    def find(self, group: str, version: str, plural: str) -> ResourceType | None:
        return self._by_path.get((group, version, plural))

    def of_kind(self, group: str, kind: str) -> ResourceType | None:
        """The preferred version of a kind; None when the kind is not served."""
        return self._by_kind.get((group, kind))

    def preferred(self, group_resource: str) -> ResourceType | None:
        versions = self._served.get(group_resource)
        return versions[0] if versions else None

    def all(self) -> list[ResourceType]:
        """Every served version, grouped by resource in order of registration."""
        return [resource for versions in self._served.values() for resource in versions]
