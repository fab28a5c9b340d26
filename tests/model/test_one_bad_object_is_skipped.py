"""Lists with bad objects in them: reported and skipped, the others go on."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from karpool.model.karpenter import pool_of
from karpool.model.pod import Pod
from karpool.model.problems import Problem, compile_all, decode_all
from karpool.model.shape import shape_of
from tests.model.build import container, pod, pool, requires


def raw_pod(name: str, cpu: Any = "100m") -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "shop"}, "spec": {"containers": [container(cpu=cpu)]}}


def test_one_bad_pod_of_a_thousand_is_reported_and_the_others_are_there() -> None:
    raws = [raw_pod(f"web-{n}") for n in range(1000)]
    raws[500]["spec"]["priority"] = "high"

    pods, problems = decode_all(raws, Pod)

    assert [each.name for each in pods] == [f"web-{n}" for n in range(1000) if n != 500]
    assert [(each.kind, each.name, each.field, each.value) for each in problems] == [
        ("Pod", "shop/web-500", "spec.priority", "high")
    ]


def test_a_pod_that_decodes_and_means_nothing_is_skipped_as_well() -> None:
    pods, _ = decode_all([raw_pod("a"), raw_pod("b", cpu="many"), raw_pod("c")], Pod)

    shapes, problems = compile_all(pods, shape_of)

    assert len(shapes) == 2
    assert str(problems[0]) == (
        "Pod shop/b: spec.containers[0].resources.requests.cpu: 'many': is not a quantity; "
        'write a number with an optional suffix, like "500m", "2", "1.5Gi", "1e3"'
    )


def test_a_pool_is_named_without_a_namespace() -> None:
    pools, problems = compile_all([pool("a"), pool("b", requires("k", "Near", "x")), pool("c")], pool_of)

    assert [each.name for each in pools] == ["a", "c"]
    assert problems == [
        Problem(
            "NodePool",
            "b",
            "spec.template.spec.requirements[0].operator",
            "Near",
            "must be one of DoesNotExist, Exists, Gt, Gte, In, Lt, Lte, NotIn",
        )
    ]


def test_an_object_without_a_name_is_found_by_its_place() -> None:
    _, problems = decode_all([raw_pod("a"), None, {"metadata": {"name": 5}}, {"metadata": "x"}, []], Pod)

    assert [each.name for each in problems] == ["items[1]", "items[2]", "items[3]", "items[4]"]


def test_a_decoded_object_without_a_name_says_so() -> None:
    _, problems = compile_all([pod("", container(cpu="x"), meta={"namespace": ""})], shape_of)

    assert problems[0].name == "(no name)"


@given(st.lists(st.booleans(), max_size=30))
def test_every_object_is_either_there_or_reported(good: list[bool]) -> None:
    raws = [
        raw_pod(f"p{n}") if fine else {"metadata": {"name": f"p{n}"}, "spec": 5}
        for n, fine in enumerate(good)
    ]

    pods, problems = decode_all(raws, Pod)

    assert [each.name for each in pods] == [f"p{n}" for n, fine in enumerate(good) if fine]
    assert [each.name for each in problems] == [f"p{n}" for n, fine in enumerate(good) if not fine]
