"""get --watch."""

from collections.abc import Iterator

import pytest

from tests.kubectl.conftest import Kubectl, config, pod

pytestmark = pytest.mark.kubectl


def lines(stream: Iterator[str], count: int) -> list[list[str]]:
    return [next(stream).split() for _ in range(count)]


def test_a_watch_prints_every_change_as_a_row(kubectl: Kubectl) -> None:
    kubectl.apply(pod("web"))
    path = f"/api/v1/namespaces/{kubectl.namespace}/pods/web"

    with kubectl.popen("get", "pods", "--watch") as watching:
        assert watching.stdout is not None
        first = lines(watching.stdout, 2)
        kubectl.server.set_status(path, {"phase": "Running"})
        running = lines(watching.stdout, 1)
        kubectl.server.send("DELETE", path + "?gracePeriodSeconds=0")
        last = lines(watching.stdout, 1)
        watching.terminate()

    assert first[0] == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert first[1][:3] == ["web", "0/1", "Pending"]
    assert running[0][2] == "Running"
    assert last[0][0] == "web"


def test_a_watch_of_one_object_in_json(kubectl: Kubectl) -> None:
    kubectl.apply(config("settings", mode="a"))
    path = f"/api/v1/namespaces/{kubectl.namespace}/configmaps/settings"
    form = "jsonpath={.data.mode}{'\\n'}"

    with kubectl.popen("get", "configmap", "settings", "--watch", "-o", form) as watching:
        assert watching.stdout is not None
        seen = lines(watching.stdout, 1)
        kubectl.server.send("PATCH", path, {"data": {"mode": "b"}}, "application/merge-patch+json")
        seen += lines(watching.stdout, 1)
        watching.terminate()

    assert seen == [["a"], ["b"]]


def test_watch_only_begins_with_the_next_change(kubectl: Kubectl) -> None:
    kubectl.apply(config("old"))
    path = f"/api/v1/namespaces/{kubectl.namespace}/configmaps"

    with kubectl.popen("get", "configmaps", "--watch-only", "--output-watch-events") as watching:
        assert watching.stdout is not None
        kubectl.server.wait_for_watch(path)
        kubectl.server.send("POST", path, config("new"))
        header, row = lines(watching.stdout, 2)
        watching.terminate()

    assert header[:2] == ["EVENT", "NAME"]
    assert row[:2] == ["ADDED", "new"]
