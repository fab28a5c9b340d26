import pytest

from karpool.model.taints import NO_EXECUTE, NO_SCHEDULE, PREFER_NO_SCHEDULE, Taint, Toleration, untolerated

GPU = Taint(key="gpu", value="true", effect=NO_SCHEDULE)
BARE = Taint(key="gpu", effect=NO_SCHEDULE)


@pytest.mark.parametrize(
    ("toleration", "taint", "expected"),
    [
        pytest.param(Toleration(key="gpu", operator="Exists"), GPU, True, id="exists"),
        pytest.param(
            Toleration(key="gpu", operator="Exists", effect=NO_SCHEDULE), GPU, True, id="same effect"
        ),
        pytest.param(
            Toleration(key="gpu", operator="Exists", effect=NO_EXECUTE), GPU, False, id="other effect"
        ),
        pytest.param(Toleration(key="cpu", operator="Exists"), GPU, False, id="other key"),
        pytest.param(Toleration(operator="Exists"), GPU, True, id="no key and exists: everything"),
        pytest.param(
            Toleration(operator="Exists", effect=NO_EXECUTE), GPU, False, id="everything of one effect"
        ),
        pytest.param(Toleration(key="gpu", operator="Equal", value="true"), GPU, True, id="equal"),
        pytest.param(Toleration(key="gpu", value="true"), GPU, True, id="no operator means equal"),
        pytest.param(Toleration(key="gpu", value="false"), GPU, False, id="other value"),
        pytest.param(Toleration(key="gpu"), GPU, False, id="no value is not any value"),
        pytest.param(Toleration(key="gpu"), BARE, True, id="no value equals no value"),
        pytest.param(
            Toleration(key="gpu", operator="Exist", value="true"), GPU, False, id="unknown operator"
        ),
        pytest.param(Toleration(), BARE, True, id="an empty toleration equals an empty value"),
        pytest.param(Toleration(), GPU, False, id="an empty toleration is not everything"),
    ],
)
def test_which_taints_are_tolerated(toleration: Toleration, taint: Taint, expected: bool) -> None:
    assert toleration.tolerates(taint) is expected


def test_the_first_hard_taint_that_nobody_tolerates_keeps_the_pod_away() -> None:
    soft = Taint(key="soft", effect=PREFER_NO_SCHEDULE)
    gone = Taint(key="gone", effect=NO_EXECUTE)

    assert untolerated([soft, GPU, gone], [Toleration(key="gpu", operator="Exists")]) == gone
    assert untolerated([soft, GPU], []) == GPU
    assert untolerated([soft], []) is None
    assert untolerated([GPU, gone], [Toleration(operator="Exists")]) is None


def test_tolerations_may_be_any_iterable() -> None:
    assert untolerated([GPU, BARE], iter([Toleration(key="gpu", operator="Exists")])) is None


@pytest.mark.parametrize(("taint", "shown"), [(GPU, "gpu=true:NoSchedule"), (BARE, "gpu:NoSchedule")])
def test_taints_are_shown_as_kubectl_takes_them(taint: Taint, shown: str) -> None:
    assert str(taint) == shown
