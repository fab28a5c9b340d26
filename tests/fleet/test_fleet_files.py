"""A fleet file is checked as a whole; what is wrong is one line with its place in the file."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool_fleet.clusters.fleet_file import parse_fleet
from karpool_fleet.clusters.strict_file import FleetError

GOOD = """\
apiVersion: karpool.dev/v1alpha1
kind: Fleet
seed: 7
clusters:
  - name: east
    timing:
      launch: uniform(1s, 5s)
      register: lognormal(20s, 0.3)
    nodes:
      - type: m7i.large
        count: 3
  - name: west
    autoscaler: none
karmada:
  members: [east, west]
faults:
  - cluster: east
    at: 5m
    lasts: 10m
    stockOut: {type: "m7i.*"}
"""


def test_a_good_file_is_read() -> None:
    fleet = parse_fleet(GOOD.encode())

    assert [cluster.name for cluster in fleet.clusters] == ["east", "west"]
    assert fleet.clusters[0].timing.delays()["launch"].kind == "uniform"
    assert fleet.faults[0].kinds == ["stock_out"]


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        pytest.param("seed: 7", "sede: 7", 1, "unknown field `sede`", id="a typo at the top"),
        pytest.param(
            "count: 3", "count: -3", 11, "nodes[0].count: -3: must not be negative", id="less than no"
        ),
        pytest.param("count: 3", "count: three", 11, "Expected `int`", id="a wrong type"),
        pytest.param("uniform(1s, 5s)", "uniform(5s, 1s)", 7, "longer than the second", id="a bad delay"),
        pytest.param("20s, 0.3", "soon, 0.3", 8, "'soon': is not a delay", id="a bad duration"),
        pytest.param("name: west", "name: east", 12, "taken", id="a name twice"),
        pytest.param("name: west", "name: West Coast", 12, "lower-case", id="a bad name"),
        pytest.param(
            "autoscaler: none", "autoscaler: magic", 13, "'magic': must be", id="an unknown autoscaler"
        ),
        pytest.param("[east, west]", "[east, north]", 15, "'north': is not one of", id="an unknown member"),
        pytest.param("at: 5m", "at: noon", 18, "'noon': must be a duration", id="a bad time"),
        pytest.param("- cluster: east", "- cluster: north", 17, "'north'", id="a fault nowhere"),
        pytest.param("lasts: 10m", "crash: karpenter", 17, "exactly one kind", id="two faults in one"),
        pytest.param(
            "stockOut: {type", "apiHang: {path: '('}\n    #", 17, "regular expression", id="a bad pattern"
        ),
        pytest.param("kind: Fleet", "kind: Deployment", 2, "must be karpool.dev", id="another kind"),
    ],
)
def test_an_error_names_line_field_and_value(old: str, new: str, line: int, words: str) -> None:
    with pytest.raises(FleetError) as caught:
        parse_fleet(GOOD.replace(old, new, 1).encode(), "fleet.yaml")

    assert str(caught.value).startswith(f"fleet.yaml:{line}: ")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "clusters: []", "[1, 2]", "a: &a [*a]", "x: !!python/object:os.system 1", "\x00"]
)
def test_what_is_no_fleet_is_refused(text: str) -> None:
    with pytest.raises(FleetError):
        parse_fleet(text.encode())


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        parse_fleet(data)
    except FleetError as error:
        assert "\n" not in str(error).strip() or len(str(error)) < 2000


@given(st.data())
def test_a_spoilt_good_file_is_read_or_refused(data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(GOOD) - 1))
    piece = data.draw(st.text(max_size=5))
    try:
        parse_fleet((GOOD[:position] + piece + GOOD[position + 1 :]).encode("utf-8", "surrogatepass"))
    except FleetError:
        return
