"""Node forms of every system that hands out accelerators: how many devices, of which model, shared how.

`node_forms.json` holds what matters of each form: its labels, registers and allocatable, and what it means.
"""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.model.devices.amounts import DeviceAmount
from karpool.model.devices.gpu_models import find_model, gpu_models
from karpool.model.devices.inventory import REGISTERS, DeviceForm, inventory_of
from karpool.model.devices.node_devices import labelled_devices, model_name
from karpool.model.devices.partitions import PartitionHost, place_partition, templates_of

FORMS = json.loads(Path(__file__).with_name("node_forms.json").read_text())
GFD = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.memory": "81920"}


@pytest.mark.parametrize("name", FORMS)
def test_the_form_is_read_as_what_it_is(name: str) -> None:
    form = FORMS[name]
    inventory = inventory_of(form["labels"], form["annotations"], form["allocatable"])

    assert inventory.physical_devices == form["physical"]
    assert not inventory.problem
    groups = [
        {
            "resource": group.resource,
            "units": group.units,
            "devices": group.devices,
            "units_per_device": group.units_per_device,
            "device_kind": group.form.value,
            "model": group.model or None,
            "memory_mib": group.memory_mib,
            "compute_share": None if group.compute_share is None else round(group.compute_share, 4),
            "shareable": group.shareable,
            "sharers_max": group.sharers_max,
            "memory_isolated": group.memory_isolated,
            "profile": group.profile,
            "cores_per_device": group.cores_per_device,
            "unstable": group.unstable,
        }
        for group in inventory.groups
    ]
    defaults = {"profile": "", "cores_per_device": 0, "unstable": False}
    assert groups == [defaults | group for group in form["groups"]]
    assert {group.handed_out_by for group in inventory.groups} <= {form["by"]}


def test_slices_of_single_strategy_may_be_shared_too() -> None:
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED",
        "nvidia.com/gpu.memory": "4864",
        "nvidia.com/gpu.replicas": "3",
        "nvidia.com/gpu.sharing-strategy": "time-slicing",
    }
    (group,) = inventory_of(labels, {}, {"nvidia.com/gpu": 21}).groups
    assert (group.form, group.profile, group.devices, group.sharers_max) == (DeviceForm.MIG, "1g.5gb", 7, 3)
    assert group.memory_mib == 4864
    assert not group.memory_isolated


def test_gke_says_its_partition_in_a_label_of_its_own() -> None:
    labels = {
        "cloud.google.com/gke-accelerator": "nvidia-tesla-a100",
        "cloud.google.com/gke-gpu-partition-size": "1g.5gb",
    }
    inventory = inventory_of(labels, {}, {"nvidia.com/gpu": 7})
    (group,) = inventory.groups
    assert (group.model, group.form, group.devices) == ("A100-SXM4-40GB", DeviceForm.MIG, 7)
    assert group.memory_mib == 4864
    assert inventory.physical_devices == 1


def test_amd_partitions_have_resources_of_their_own_where_naming_is_mixed() -> None:
    labels = {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}
    inventory = inventory_of(labels, {}, {"amd.com/cpx_nps4": 32, "amd.com/spx_nps1": 4})
    assert [(group.profile, group.devices, group.form) for group in inventory.groups] == [
        ("cpx_nps4", 32, DeviceForm.PARTITION),
        ("", 4, DeviceForm.WHOLE),
    ]
    assert inventory.physical_devices == 8


def test_a_profile_with_a_media_engine_is_named_with_a_dot() -> None:
    (group,) = inventory_of(GFD, {}, {"nvidia.com/mig-1g.10gb.me": 1}).groups
    assert group.profile == "1g.10gb+me"
    assert group.compute_share == pytest.approx(1 / 7)


def test_a_sick_device_of_a_register_is_not_there() -> None:
    register = json.dumps(
        [
            {"id": "a", "count": 10, "devmem": 15360, "type": "NVIDIA-Tesla T4", "health": True},
            {"id": "b", "count": 10, "devmem": 15360, "type": "NVIDIA-Tesla T4"},
        ]
    )
    inventory = inventory_of({}, {REGISTERS[0]: register}, {"nvidia.com/gpu": 10})
    (group,) = inventory.groups
    assert (group.devices, group.names, group.model) == (1, ("a",), "T4")
    assert inventory.physical_devices == 2


@pytest.mark.parametrize(
    "register", ["[{", '[{"id": 7}]', "a,b,c:", "x,1,2,3,t,0", '[{"count": -1}]', "[" * 9000]
)
def test_a_register_that_cannot_be_read_is_said_and_gives_no_device(register: str) -> None:
    inventory = inventory_of(GFD, {REGISTERS[0]: register}, {"nvidia.com/gpu": 10})
    assert inventory.groups == ()
    assert inventory.physical_devices is None
    assert REGISTERS[0] in inventory.problem


def test_shares_are_given_of_registered_devices_not_of_their_units() -> None:
    register = "GPU-1,10,15360,100,NVIDIA-Tesla T4,0,true:GPU-2,10,15360,100,NVIDIA-Tesla T4,0,true:"
    devices = labelled_devices("n", {}, {"nvidia.com/gpu": 20}, {REGISTERS[0]: register})
    assert [(device.name, device.model, device.capacity.vram_bytes) for device in devices] == [
        ("GPU-1", "T4", 15360 * 2**20),
        ("GPU-2", "T4", 15360 * 2**20),
    ]


@pytest.mark.parametrize(
    ("name", "memory", "model"),
    [
        ("a100", 40960, "A100-SXM4-40GB"),
        ("a100", 81920, "A100-SXM4-80GB"),
        ("v100", 16384, "V100-SXM2-16GB"),
        ("nvidia-tesla-a100", 0, "A100-SXM4-40GB"),
        ("h100", 81920, "H100-SXM5-80GB"),
        ("NVIDIA H200", 0, "H200-SXM-141GB"),
    ],
)
def test_memory_tells_cards_of_one_name_apart(name: str, memory: int, model: str) -> None:
    found = find_model(name, memory)
    assert found is not None
    assert found.name == model


def test_of_an_ambiguous_name_only_what_is_common_is_known() -> None:
    found = find_model("a100")
    assert found is not None
    assert (found.name, found.memory_mib, found.tflops_milli) == ("A100", None, 312_000)
    assert find_model("NVIDIA GeForce RTX 3060") is None


def test_every_alias_leads_to_a_model_of_its_family() -> None:
    for model in gpu_models():
        for alias in (model.name, *model.aliases):
            found = find_model(alias, model.memory_mib or 0)
            assert found is not None
            assert found.family == model.family
            assert model_name(alias) == model.family


@pytest.mark.long
@given(st.data())
def test_instances_never_overlap_and_stay_on_the_card(data: st.DataObject) -> None:
    model = data.draw(st.sampled_from([model for model in gpu_models() if model.slots]))
    templates = templates_of(model)

    enough = DeviceAmount(10**9, 2**50)
    held = []
    for name in data.draw(st.lists(st.sampled_from(sorted(templates)), max_size=9)):
        placed = place_partition(templates[name], PartitionHost("NVIDIA", enough, enough, held), templates)
        if hasattr(placed, "start"):
            held.append(placed)
    slots = [
        slot
        for partition in held
        for slot in range(partition.start, partition.start + templates[partition.template].slots)
    ]
    assert len(slots) == len(set(slots))
    assert all(slot < model.slots for slot in slots)
    assert all(partition.start in templates[partition.template].placement for partition in held)


@pytest.mark.long
@given(
    st.dictionaries(
        st.sampled_from([key for form in FORMS.values() for key in form["labels"]]), st.text(max_size=12)
    ),
    st.dictionaries(st.sampled_from(REGISTERS), st.text(max_size=60), max_size=1),
    st.dictionaries(
        st.sampled_from([key for form in FORMS.values() for key in form["allocatable"]]),
        st.integers(-(2**63), 2**63 - 1),
    ),
)
def test_odd_nodes_give_bounded_answers(labels, registers, allocatable) -> None:
    inventory = inventory_of(labels, registers, allocatable)
    assert sum(group.devices for group in inventory.groups) <= 6 * 131_072
    assert all(group.devices >= 1 and group.units >= group.devices for group in inventory.groups)


def test_renamed_shares_of_slices_are_shares_of_slices() -> None:
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB",
        "nvidia.com/mig-1g.5gb.memory": "4864",
        "nvidia.com/mig-1g.5gb.replicas": "2",
    }
    (group,) = inventory_of(labels, {}, {"nvidia.com/mig-1g.5gb.shared": 14}).groups

    assert (group.devices, group.profile, group.memory_mib, group.sharers_max) == (7, "1g.5gb", 4864, 2)


def test_the_memory_of_a_card_is_not_that_of_its_partition() -> None:
    labels = {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM", "amd.com/gpu.vram": "192G"}
    groups = inventory_of(labels, {}, {"amd.com/cpx_nps4": 8, "amd.com/spx_nps1": 1}).groups

    assert [(group.profile, group.memory_mib) for group in groups] == [("cpx_nps4", None), ("", 196608)]
