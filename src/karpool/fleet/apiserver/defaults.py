"""Values of built-in objects that clients rely on being filled in."""

from karpool.fleet.apiserver.types import Object, ResourceType


def on_create(resource: ResourceType, obj: Object) -> None:
    pass


def on_update(resource: ResourceType, new: Object, old: Object) -> None:
    pass
