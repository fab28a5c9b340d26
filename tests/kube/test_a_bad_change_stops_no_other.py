"""Changes are handed over one by one, each on its own."""

from karpool.cluster.changes import ObjectChange
from karpool.kube.watched import EachSink
from karpool.model.kubernetes.api_resources import ObjectKey


def test_the_others_of_a_batch_are_handled() -> None:
    handled: list[str] = []

    def handle(change: ObjectChange[str]) -> None:
        if change.object == "bad":
            raise ValueError("this one cannot be handled")
        handled.append(change.key.name)

    EachSink(handle).apply(
        [ObjectChange("ADDED", ObjectKey("", name), name) for name in ("first", "bad", "last")]
    )

    assert handled == ["first", "last"]
