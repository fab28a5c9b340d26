"""Whatever stands in a flag, a status ConfigMap or an annotation is understood or refused, never a crash."""

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.cli.run.estimator import estimator
from karpool.cluster.pools import node_group_status, node_group_template
from karpool.estimator.serving.options import EstimatorOptions
from karpool.manager.feature_gates import estimator_gates
from karpool.manager.options import InvalidOptions, option_fields, read_options
from karpool.model.catalogue.catalogue import Catalogue
from karpool.model.errors import Invalid
from karpool.wire.addresses import listener

STATUS = """\
time: 2026-01-01 00:00:00 +0000 UTC
autoscalerStatus: Running
clusterWide: {health: {status: Healthy}}
nodeGroups:
- name: workers
  health: {status: Healthy, cloudProviderTarget: 2, minSize: 0, maxSize: 10}
  scaleUp: {status: NoActivity}
"""
TEMPLATE = '{"instanceType": "m7i.large", "labels": {"a": "b"}, "allocatable": {"cpu": "2"}}'

FLAGS = option_fields(EstimatorOptions)
texts = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        ["", "0", "-1", "1e9", ":", ":70000", "[::1]:8080", "127.0.0.1:", "9" * 5000, "3m", "-3m", "*"]
    ),
)


def spoilt(good: str) -> st.SearchStrategy[str]:
    """The good text with a piece of it replaced."""
    places = st.tuples(st.integers(0, len(good)), st.integers(0, 8), st.text(max_size=6))
    return places.map(lambda place: good[: place[0]] + place[2] + good[place[0] + place[1] :])


@given(flag=st.sampled_from(FLAGS), text=texts)
def test_any_value_of_any_flag(flag, text):
    try:
        context = estimator.make_context("estimator", [f"--{flag.name}={text}"])
    except click.UsageError as error:
        assert error.exit_code == 2
        return
    assert flag.name.replace("-", "_") in context.params


@given(flag=st.sampled_from([flag for flag in FLAGS if isinstance(flag.default, str)]), text=texts)
def test_any_text_is_valid_or_named(flag, text):
    try:
        read_options(EstimatorOptions, {"cluster-name": "member", flag.name: text})
    except InvalidOptions as refused:
        assert all(str(error) for error in refused.errors)


@given(texts)
def test_any_gates_and_addresses(text):
    for read in (estimator_gates, lambda value: listener("--metrics-bind-address", value)):
        try:
            read(text)
        except Invalid as error:
            assert error.path.startswith("--")


@given(st.one_of(spoilt(STATUS), st.text(max_size=200)))
def test_any_autoscaler_status(text):
    try:
        groups = node_group_status.parse(text)
    except Invalid:
        return
    assert isinstance(groups, list)


@pytest.mark.long
@given(st.one_of(spoilt(TEMPLATE), st.text(max_size=100)))
def test_any_group_template(text):
    with_types = Catalogue("aws", "us-east-1")
    try:
        template = node_group_template.described(text, "workers", with_types)
    except Invalid:
        return
    assert template is not None


def test_the_good_ones_are_good():
    assert [group.name for group in node_group_status.parse(STATUS)] == ["workers"]
    with pytest.raises(Invalid):
        node_group_status.parse("nodeGroups: 3")
