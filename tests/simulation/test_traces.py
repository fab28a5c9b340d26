"""Traces are read by their columns; a row that cannot be read is named, never left out."""

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.fleet.fleet_file import ClusterSpec
from karpool.fleet.simulation.arrivals import RUN_SECONDS
from karpool.fleet.simulation.scenario_file import Scenario, Trace
from karpool.fleet.simulation.traces import trace_arrivals
from karpool.fleet.strict_file import FleetError

PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time\n"
    "a,1000,2048,0,0,,100,700\n"
    "b,500,1024,1,460,,0,3600\n"
    "c,2000,512,2,1000,,90000,90001\n"
)
SERVICES = (
    "instance_sn,role,app_name,cpu_request,gpu_request,memory_request,creation_time,deletion_time\n"
    "i0,HN,app_0,12,1,120.0,,\n"
    "i1,CN,app_0,24,0,96.5,1800,\n"
)
USE = "t_s,pod,gpu_duty_pct,gpu_mem_mib\n0,7,10,1000\n60,7,55,4096\n120,7,,2000\n30,8,0,\n"
MACHINES = "gpu_model,gpu_capacity_num,cpu_num,node_name\nA10,1,128,0\nA100,8,96,1\n"


def read(tmp_path, text, packed=False, **trace):
    path = tmp_path / "trace.csv"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    scenario = Scenario(
        duration="2h", clusters=[ClusterSpec(name="a")], traces=[Trace(file="trace.csv", **trace)]
    )
    return trace_arrivals(scenario, tmp_path)


def requests(arrival):
    return arrival.object["spec"]["containers"][0]["resources"]["requests"]


@pytest.mark.parametrize("packed", [False, True])
def test_pods_come_at_their_times_and_live_as_long_as_in_the_trace(tmp_path, packed):
    first, second = read(tmp_path, PODS, packed)
    assert (first.at, second.at) == (0, 100)
    assert requests(first) == {"cpu": "500m", "memory": str(2**30), "nvidia.com/gpu": "1"}
    assert requests(second) == {"cpu": "1000m", "memory": str(2**31)}
    assert second.object["metadata"]["annotations"][RUN_SECONDS] == "600"


def test_time_can_be_pressed_together_and_begun_later(tmp_path):
    found = read(tmp_path, PODS, speed=100, start="10m")
    assert [each.at for each in found] == [600, 601, 1500]
    assert found[1].object["metadata"]["annotations"][RUN_SECONDS] == "6"


def test_what_was_there_before_the_skipped_part_ended_is_there_at_the_start(tmp_path):
    [found] = read(tmp_path, PODS, skip="1000s")
    assert found.at == 0
    assert found.object["metadata"]["annotations"][RUN_SECONDS] == "2600"


def test_services_in_cores_and_gibibytes(tmp_path):
    old, new = read(tmp_path, SERVICES)
    assert (old.at, new.at) == (0, 1800)
    assert requests(new) == {"cpu": "24000m", "memory": str(round(96.5 * 2**30))}
    assert RUN_SECONDS not in old.object["metadata"]["annotations"]
    assert [each.at for each in read(tmp_path, SERVICES, select={"role": "CN"})] == [1800]


def test_samples_of_use_become_pods_of_their_peak(tmp_path):
    seven, eight = read(tmp_path, USE, gpu="fraction")
    notes = seven.object["metadata"]["annotations"]
    assert notes["tensor-fusion.ai/compute-percent-request"] == "55"
    assert notes["tensor-fusion.ai/vram-request"] == str(4096 * 2**20)
    assert notes[RUN_SECONDS] == "120"
    assert eight.at == 30


def test_machines_become_nodes(tmp_path):
    first, second = read(tmp_path, MACHINES)
    assert first.object["kind"] == "Node"
    assert second.object["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    assert len(read(tmp_path, MACHINES, limit=1)) == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "are not those of a known trace"),
        ("a,b\n1,2\n", "trace.csv:1: columns a, b are not those"),
        (PODS + "d,many,1,0,0,,0,1\n", "trace.csv:5: cpu_milli: 'many' is not a number"),
        (PODS + "d,-1,1,0,0,,0,1\n", "trace.csv:5: cpu_milli"),
        (PODS + "d,nan,1,0,0,,0,1\n", "trace.csv:5: cpu_milli"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, text, says):
    with pytest.raises(FleetError) as caught:
        read(tmp_path, text)
    assert says in str(caught.value)


def test_a_column_that_is_not_there_cannot_be_selected_by(tmp_path):
    with pytest.raises(FleetError, match="has no column 'colour'"):
        read(tmp_path, PODS, select={"colour": "red"})


def test_a_file_that_is_not_there_is_named(tmp_path):
    scenario = Scenario(duration="1h", clusters=[ClusterSpec(name="a")], traces=[Trace(file="gone.csv")])
    with pytest.raises(FleetError, match=r"gone\.csv: No such file"):
        trace_arrivals(scenario, tmp_path)


@given(data=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("any")
    (folder / "t.csv").write_bytes(b"cpu_milli,memory_mib,creation_time\n" + data)
    scenario = Scenario(duration="1h", clusters=[ClusterSpec(name="a")], traces=[Trace(file="t.csv")])
    try:
        found = trace_arrivals(scenario, folder)
    except FleetError as error:
        assert "t.csv" in str(error)
    else:
        assert all(0 <= each.at < 3600 for each in found)
