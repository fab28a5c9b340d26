"""Traces are read by their columns; a row that cannot be read is named, never left out."""

import gzip
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool_fleet.clusters.fleet_file import ClusterSpec, KarmadaSpec
from karpool_fleet.clusters.strict_file import FleetError
from karpool_fleet.simulation import trace_rows
from karpool_fleet.simulation.arrivals import RUN_SECONDS
from karpool_fleet.simulation.scenario_file import Scenario, Trace
from karpool_fleet.simulation.traces import check_traces, read_traces

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
    return traced(tmp_path, text, packed, **trace).arrivals


def traced(tmp_path, text, packed=False, told=lambda share: None, **trace):
    path = tmp_path / "trace.csv"
    data = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(gzip.compress(data) if packed else data)
    scenario = Scenario(
        duration="2h", clusters=[ClusterSpec(name="a")], traces=[Trace(file="trace.csv", **trace)]
    )
    return read_traces(scenario, tmp_path, told)


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
        ("", "trace.csv: is empty"),
        ("\n\n", "trace.csv: is empty"),
        (
            "name,cpu_milli,creation_time\n",
            "trace.csv:1: has no column memory_mib, which goes with cpu_milli",
        ),
        ("cpu_milli,cpu_milli\n", "trace.csv:1: has the column 'cpu_milli' twice"),
        ("\x1b[31mred,b\n", "trace.csv:1: columns ?[31mred, b are not"),
        (PODS + "d,1,1,0,0,,5\n", "trace.csv:5: has 7 fields, and the header has 8"),
        (PODS + "d,1,1,0,0,,5,6,7\n", "trace.csv:5: has 9 fields"),
        (PODS + "d,1,1,0.5,0,,5,6\n", "trace.csv:5: num_gpu: '0.5' is not a whole number"),
        (PODS + "d,1,1,0,0,,-5,6\n", "trace.csv:5: creation_time: '-5' is not a number from 0"),
        (PODS + "d,1,1,0,0,,7,6\n", "trace.csv:5: deletion_time: 6 is before creation_time, which is 7"),
        (PODS + '"d\ne",1,1,0,0,,0,x\n', "trace.csv:5: deletion_time: 'x'"),
        (PODS + '"d,1,1,0,0,,0,1\n', "trace.csv:5: is not CSV: unexpected end of data"),
        (PODS + "d" * 300_000, "trace.csv:5: is a line of 256 KiB or more"),
        (PODS.replace("\n", "\r"), "trace.csv:1: is not CSV: lines end with CR alone"),
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


def test_bytes_that_are_no_text_are_named_with_their_line(tmp_path):
    with pytest.raises(FleetError, match=r"trace\.csv:5: is not a text file in UTF-8: byte 0xff"):
        read(tmp_path, PODS.encode() + b"d,1,\xff\n")


def test_a_broken_archive_is_named_with_how_far_it_could_be_read(tmp_path):
    packed = gzip.compress((PODS + "".join(f"x{i},{i},1,0,0,,1,2\n" for i in range(500))).encode())
    with pytest.raises(FleetError, match=r"trace\.csv:\d+: cannot be read further"):
        read(tmp_path, packed[: len(packed) // 2])
    spoilt = bytes(each ^ 255 if 20 < index < 30 else each for index, each in enumerate(packed))
    with pytest.raises(FleetError, match=r"trace\.csv:\d+: cannot be read further"):
        read(tmp_path, spoilt)


def test_a_file_larger_than_the_bound_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_rows, "BYTES_MAX", len(PODS) - 1)
    with pytest.raises(FleetError, match="is larger than 0 MiB; cut it into parts"):
        read(tmp_path, PODS)


def test_line_ends_marks_and_quotes_of_other_systems_are_read(tmp_path):
    plain = [each.object for each in read(tmp_path, PODS)]
    assert [each.object for each in read(tmp_path, PODS.replace("\n", "\r\n"))] == plain
    assert [each.object for each in read(tmp_path, "\ufeff" + PODS)] == plain
    assert [each.object for each in read(tmp_path, PODS.replace("\na,", '\n"a\nb",'))] == plain
    assert [each.object for each in read(tmp_path, PODS.rstrip("\n"))] == plain


def test_what_a_limit_leaves_out_is_said_and_what_is_kept_is_what_comes_first(tmp_path):
    found = traced(tmp_path, PODS, limit=1)
    assert [arrival.at for arrival in found.arrivals] == [0]
    assert found.notes == [f"{tmp_path / 'trace.csv'}: the first 1 of 2 pods come (limit)"]
    assert traced(tmp_path, PODS, limit=2).notes == []
    assert traced(tmp_path, MACHINES, limit=1).notes == [
        f"{tmp_path / 'trace.csv'}: only the first 1 machines are there (limit)"
    ]


def test_a_trace_without_rows_is_said(tmp_path):
    header = PODS.splitlines()[0]
    assert traced(tmp_path, header).notes == [f"{tmp_path / 'trace.csv'}: has no rows"]
    [said] = traced(tmp_path, PODS, select={"name": "z"}).notes
    assert said.endswith("has no rows that are selected")


def test_reading_tells_how_far_it_is(tmp_path):
    told = []
    traced(tmp_path, PODS.splitlines()[0] + "\n" + "a,1,1,0,0,,1,2\n" * 20_000, told=told.append)
    assert len(told) > 3
    assert told == sorted(told)
    assert 0 <= told[0] < told[-1] <= 1


def test_pods_without_times_are_there_at_the_start_and_stay(tmp_path):
    text = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1000,1,1,460\nb,1000,1,0,0\n"
    found = read(tmp_path, text)
    assert [each.at for each in found] == [0, 0]
    assert all(RUN_SECONDS not in each.object["metadata"]["annotations"] for each in found)


def test_machines_with_their_memory_become_nodes(tmp_path):
    text = "sn,cpu_milli,memory_mib,gpu,model\nn0,32000,1024,0,\nn1,96000,2048,8,V100M16\n"
    plain, gpu = (each.object for each in read(tmp_path, text))
    assert plain["status"]["allocatable"] == {"cpu": "32000m", "memory": str(2**30), "pods": "110"}
    assert "gpu-model" not in plain["metadata"]["labels"]
    assert gpu["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    assert gpu["metadata"]["labels"]["gpu-model"] == "V100M16"


def test_machines_cannot_be_karmadas(tmp_path):
    (tmp_path / "trace.csv").write_text(MACHINES)
    scenario = Scenario(
        clusters=[ClusterSpec(name="a")], karmada=KarmadaSpec(), traces=[Trace(file="trace.csv")]
    )
    for asked in (check_traces, read_traces):
        with pytest.raises(FleetError, match=r"set traces\[0\]\.cluster"):
            asked(scenario, tmp_path)


def test_a_pipe_is_not_read_before_its_time(tmp_path):
    os.mkfifo(tmp_path / "trace.csv")
    scenario = Scenario(clusters=[ClusterSpec(name="a")], traces=[Trace(file="trace.csv")])
    check_traces(scenario, tmp_path)  # and does not wait for somebody who writes


def test_a_column_that_is_not_there_cannot_be_selected_by(tmp_path):
    with pytest.raises(FleetError, match="has no column 'colour'"):
        read(tmp_path, PODS, select={"colour": "red"})


def test_a_file_that_is_not_there_is_named(tmp_path):
    scenario = Scenario(duration="1h", clusters=[ClusterSpec(name="a")], traces=[Trace(file="gone.csv")])
    with pytest.raises(FleetError, match=r"gone\.csv: No such file"):
        read_traces(scenario, tmp_path)


@given(data=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("any")
    (folder / "t.csv").write_bytes(b"cpu_milli,memory_mib,creation_time\n" + data)
    scenario = Scenario(duration="1h", clusters=[ClusterSpec(name="a")], traces=[Trace(file="t.csv")])
    try:
        found = read_traces(scenario, folder).arrivals
    except FleetError as error:
        assert "t.csv" in str(error)
    else:
        assert all(0 <= each.at < 3600 for each in found)
