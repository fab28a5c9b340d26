"""Random worlds of devices, claims and nodes, as JSON: for twins, and for Kubernetes' own allocator."""

from random import Random
from typing import Any

DRIVERS = ("gpu.example.com", "nic.example.com")
MODELS = ("A100", "H100", "L4")
Json = dict[str, Any]


def world(seed: int) -> Json:
    """`nodes`, `slices`, `classes`, `allocated` claims, and the `claims` of one pod."""
    random = Random(seed)
    nodes = [node(index, random) for index in range(random.randint(1, 3))]
    slices: list[Json] = []
    for number, one in enumerate(nodes):
        for driver in DRIVERS[: random.randint(1, 2)]:
            slices += pool(one["metadata"]["name"], driver, number, random)
    if random.random() < 0.25:
        slices += network_pool(random)
    spoil(slices, random)
    requests = [request(f"r{index}", random) for index in range(random.randint(1, 3))]
    devices: Json = {"requests": requests}
    if random.random() < 0.4:
        kind = random.choice(("matchAttribute", "distinctAttribute"))
        devices["constraints"] = [{kind: f"{DRIVERS[0]}/{random.choice(('numa', 'model', 'index'))}"}]
    claims = [claim(f"c{index}", devices) for index in range(1 if random.random() < 0.8 else 2)]
    return {
        "nodes": nodes,
        "slices": slices,
        "classes": [device_class(driver) for driver in DRIVERS] + [{"metadata": {"name": "any"}, "spec": {}}],
        "allocated": held(slices, random),
        "claims": claims,
        "pods": 6,
    }


def node(index: int, random: Random) -> Json:
    labels = {"zone": random.choice("ab")}
    return {"metadata": {"name": f"n{index}", "labels": labels}, "status": {}}


def device_class(driver: str) -> Json:
    selector = {"cel": {"expression": f'device.driver == "{driver}"'}}
    return {"metadata": {"name": driver.partition(".")[0]}, "spec": {"selectors": [selector]}}


def device(index: int, driver: str, random: Random) -> Json:
    made: Json = {
        "name": f"d{index}",
        "attributes": {
            "index": {"int": index},
            "numa": {"int": random.randint(0, 1)},
            "ver": {"version": random.choice(("1.2.0", "2.0.0-rc.1", "2.0.0"))},
        },
        "capacity": {"memory": {"value": random.choice(("24Gi", "40Gi", "80Gi"))}},
    }
    if random.random() < 0.9:
        made["attributes"]["model"] = {"string": random.choice(MODELS)}
    if random.random() < 0.15:
        made["taints"] = [
            {"key": "bad", "value": "x", "effect": random.choice(("NoSchedule", "NoExecute", "None"))}
        ]
    if random.random() < 0.25:
        made["allowMultipleAllocations"] = True
        made["capacity"]["memory"]["requestPolicy"] = random.choice(
            (
                {"default": "10Gi", "validRange": {"min": "10Gi", "step": "5Gi"}},
                {"default": "8Gi", "validValues": ["8Gi", "16Gi", "24Gi"]},
                {"default": "1Gi"},
            )
        )
    return made


def pool(name: str, driver: str, number: int, random: Random) -> list[Json]:
    devices = [device(index, driver, random) for index in range(random.randint(0, 5))]
    parts = [devices] if random.random() < 0.7 or len(devices) < 2 else [devices[:1], devices[1:]]
    counters: list[Json] = []
    if random.random() < 0.35:
        counters = [{"name": "set", "counters": {"slots": {"value": str(random.randint(1, 5))}}}]
        for one in devices:
            if random.random() < 0.8:
                uses = {"counterSet": "set", "counters": {"slots": {"value": str(random.randint(1, 3))}}}
                one["consumesCounters"] = [uses]
    about = {"name": name, "generation": 1, "resourceSliceCount": len(parts) + bool(counters)}
    base = {"driver": driver, "pool": about, "nodeName": name}
    order = list(range(len(parts)))
    random.shuffle(order)
    made = [
        {"metadata": {"name": f"{driver}-{number}-{order[index]}"}, "spec": {**base, "devices": part}}
        for index, part in enumerate(parts)
    ]
    if counters:
        spec = {**base, "sharedCounters": counters}
        made.append({"metadata": {"name": f"{driver}-{number}-counters"}, "spec": spec})
    return made


def network_pool(random: Random) -> list[Json]:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [random.choice("ab")]}]}]
    place: Json = random.choice(({"allNodes": True}, {"nodeSelector": {"nodeSelectorTerms": terms}}))
    about = {"name": "net", "generation": 1, "resourceSliceCount": 1}
    devices = [device(index, DRIVERS[1], random) for index in range(random.randint(1, 3))]
    if random.random() < 0.3:
        for one in devices:
            one.update(random.choice(({"allNodes": True}, {"nodeName": "n0"})))
        place = {"perDeviceNodeSelection": True}
    spec = {"driver": DRIVERS[1], "pool": about, "devices": devices, **place}
    return [{"metadata": {"name": "network"}, "spec": spec}]


def spoil(slices: list[Json], random: Random) -> None:
    """What drivers get wrong while they publish."""
    if not slices or random.random() > 0.15:
        return
    chosen = random.choice(slices)["spec"]
    match random.randint(0, 2):
        case 0:
            chosen["pool"] = {
                **chosen["pool"],
                "resourceSliceCount": chosen["pool"]["resourceSliceCount"] + 1,
            }
        case 1:
            chosen["pool"] = {**chosen["pool"], "generation": 2}
        case 2 if chosen.get("devices"):
            chosen["devices"] = [*chosen["devices"], chosen["devices"][0]]


def selectors(random: Random) -> list[Json]:
    texts = (
        f'device.attributes["{DRIVERS[0]}"].model == "{random.choice(MODELS)}"',
        f'device.attributes["{DRIVERS[0]}"].?model.orValue("") in ["A100", "H100"]',
        f'device.capacity["{DRIVERS[0]}"].memory.compareTo(quantity("40Gi")) >= 0',
        f'has(device.attributes["{DRIVERS[0]}"].numa) && device.attributes["{DRIVERS[0]}"].numa == 1',
        f'device.attributes["{DRIVERS[0]}"].ver.isLessThan(semver("2.0.0"))',
        f'device.attributes["{DRIVERS[0]}"].index % 2 == 0',
        "!device.allowMultipleAllocations",
    )
    return [{"cel": {"expression": random.choice(texts)}}] if random.random() < 0.5 else []


def request_fields(random: Random) -> Json:
    fields: Json = {
        "deviceClassName": random.choice(("gpu", "gpu", "nic", "any")),
        "selectors": selectors(random),
    }
    if random.random() < 0.12:
        fields["allocationMode"] = "All"
    else:
        fields |= {"allocationMode": "ExactCount", "count": random.choice((1, 1, 1, 2, 3))}
    if random.random() < 0.2:
        fields["tolerations"] = [{"key": "bad", "operator": random.choice(("Exists", "Equal")), "value": ""}]
    if random.random() < 0.2:
        fields["capacity"] = {"requests": {"memory": random.choice(("1Gi", "12Gi", "30Gi"))}}
    return fields


def request(name: str, random: Random) -> Json:
    if random.random() < 0.25:
        alternatives = [
            {"name": f"a{index}", **request_fields(random)} for index in range(random.randint(1, 3))
        ]
        return {"name": name, "firstAvailable": alternatives}
    fields = request_fields(random)
    if random.random() < 0.08:
        fields["adminAccess"] = True
    return {"name": name, "exactly": fields}


def claim(name: str, devices: Json) -> Json:
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"devices": devices}}


def held(slices: list[Json], random: Random) -> list[Json]:
    results: list[Any] = []
    for one in slices:
        spec = one["spec"]
        for entry in spec.get("devices", ()):
            if random.random() > 0.15:
                continue
            result = {
                "request": "r",
                "driver": spec["driver"],
                "pool": spec["pool"]["name"],
                "device": entry["name"],
            }
            if entry.get("allowMultipleAllocations"):
                result |= {
                    "shareID": f"00000000-0000-0000-0000-{len(results):012}",
                    "consumedCapacity": {"memory": "10Gi"},
                }
            results.append(result)
    if not results:
        return []
    other = claim("other", {"requests": []})
    return [{**other, "status": {"allocation": {"devices": {"results": results}}}}]
