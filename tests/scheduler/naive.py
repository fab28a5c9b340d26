"""Karmada's scheduling as its reference describes it, slow and obvious, on raw objects.

Nothing is shared with the scheduler under test: seats are handed out one by one,
combinations of regions are all tried, and objects are read where they are needed.
"""

from typing import Any

Object = dict[str, Any]


class Failed(Exception):
    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


def is_odd(uid: str) -> bool:
    number = 2166136261
    for byte in uid.encode():
        number = (number ^ byte) * 16777619 % 2**32
    return bool(uid) and number % 2 == 1


def divide(seats: int, weights: dict[str, int], held: dict[str, int], uid: str = "") -> dict[str, int]:
    names = sorted({*weights, *held}, reverse=is_odd(uid))
    have = {name: held.get(name, 0) for name in names}
    if not sum(weights.values()):
        return have
    for _ in range(seats):
        best = names[0]
        for name in names[1:]:
            mine, other = (
                weights.get(name, 0) / (2 * have[name] + 1),
                weights.get(best, 0) / (2 * have[best] + 1),
            )
            if mine > other or (mine == other and have[name] < have[best]):
                best = name
        have[best] += 1
    return have


# Matching and filters


def matches(affinity: Object, cluster: Object) -> bool:
    name, labels, spec = cluster["metadata"]["name"], cluster["metadata"].get("labels") or {}, cluster["spec"]
    if name in affinity.get("exclude", ()):
        return False
    wanted = (affinity.get("labelSelector") or {}).get("matchLabels") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    for term in (affinity.get("fieldSelector") or {}).get("matchExpressions") or ():
        values = term.get("values") or []
        has = (
            spec.get("zones") or []
            if term["key"] == "zone"
            else [spec[term["key"]]]
            if spec[term["key"]]
            else []
        )
        listed = any(each in values for each in has)
        verdict = {"In": listed, "NotIn": not listed, "Exists": bool(has), "DoesNotExist": not has}
        if not verdict[term["operator"]]:
            return False
    names = affinity.get("clusterNames") or ()
    return not names or name in names


def group_tier(group: Object, cluster: Object) -> int:
    for place, affinity in enumerate([group, *(group.get("overflowAffinities") or ())]):
        if matches(affinity, cluster):
            return place
    return 1000


def tolerated(taint: Object, tolerations: list[Object]) -> bool:
    for toleration in tolerations:
        effect, key = toleration.get("effect") or taint["effect"], toleration.get("key") or taint["key"]
        same_value = toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get(
            "value", ""
        )
        if effect == taint["effect"] and key == taint["key"] and same_value:
            return True
    return False


def refusal(binding: Object, group: Object, cluster: Object) -> str:
    spec, name = binding["spec"], cluster["metadata"]["name"]
    is_target = any(each["name"] == name for each in spec["clusters"])
    if not is_target:
        served = [
            (entry["groupVersion"], each["kind"])
            for entry in cluster["status"]["apiEnablements"]
            for each in entry["resources"]
        ]
        if (spec["resource"]["apiVersion"], spec["resource"]["kind"]) not in served:
            return "cluster(s) did not have the API resource"
        for taint in cluster["spec"].get("taints") or ():
            hard = taint["effect"] in ("NoSchedule", "NoExecute")
            if hard and not tolerated(taint, spec["placement"].get("clusterTolerations") or []):
                value = f"={taint['value']}" if taint.get("value") else ""
                return f"cluster(s) had untolerated taint {{{taint['key']}{value}:{taint['effect']}}}"
    tier = group_tier(group, cluster)
    if tier == 1000 or (tier and not is_workload(spec)):
        return "cluster(s) did not match the placement cluster affinity constraint"
    for constraint in spec["placement"].get("spreadConstraints") or ():
        field = constraint["spreadByField"]
        if field in ("provider", "region") and not cluster["spec"][field]:
            return f"cluster(s) did not have {field} property"
        if field == "zone" and not cluster["spec"]["zones"]:
            return "cluster(s) did not have zones property"
    if any(task["fromCluster"] == name for task in spec["gracefulEvictionTasks"]):
        return "cluster(s) is in the process of eviction"
    return ""


def is_workload(spec: Object) -> bool:
    return spec["replicas"] > 0 or "replicaRequirements" in spec or bool(spec.get("components"))


# Selection


def select_groups(groups: list[Object], least: int, most: int, clusters: int) -> list[Object] | None:
    """Depth first through all combinations. Groups are `{name, value, weight}`."""
    if len(groups) < least:
        return None
    ordered = sorted(groups, key=lambda each: (each["value"], -each["weight"], each["name"]))
    found: list[list[Object]] = []

    def walk(start: int, path: list[Object]) -> None:
        if least <= len(path) <= most and sum(each["value"] for each in path) >= clusters:
            found.append(list(path))
            return
        if len(path) >= most:
            return
        for place in range(start, len(ordered)):
            walk(place + 1, [*path, ordered[place]])
            if len(ordered) == least:
                break

    walk(0, [])
    if not found:
        return None

    def rank(path: list[Object]) -> tuple[int, int]:
        return (-sum(each["weight"] for each in path), -sum(each["value"] for each in path))

    ranked = [
        sorted(path, key=lambda each: (-each["weight"], each["name"])) for path in sorted(found, key=rank)
    ]
    chosen = ranked[0]
    for path in ranked[1:]:
        if len(path) < len(chosen) and chosen[: len(path)] == path:
            chosen = path
    return chosen


def group_weight(members: list[Object], spec: Object, least: int, cluster_least: int) -> int:
    if is_duplicated(spec):
        able = [each for each in members if each["total"] >= spec["replicas"]]
        return len(able) * 1000 + sum(each["score"] for each in able) // len(able) if able else 0
    share = (spec["replicas"] + least - 1) // least
    added: list[Object] = []
    for member in members:
        if len(added) >= max(cluster_least, least) and sum(one["total"] for one in added) >= share:
            break
        added.append(member)
    room = sum(each["total"] for each in added)
    if room < share:
        return room * 1000 + sum(each["score"] for each in members) // len(members)
    return share * 1000 + sum(each["score"] for each in added) // len(added)


def is_duplicated(spec: Object) -> bool:
    scheduling = spec["placement"].get("replicaScheduling")
    return scheduling is None or scheduling["replicaSchedulingType"] == "Duplicated"


def strategy_of(spec: Object) -> str:
    if is_duplicated(spec):
        return "Duplicated"
    scheduling = spec["placement"]["replicaScheduling"]
    if scheduling.get("replicaDivisionPreference") == "Aggregated":
        return "Aggregated"
    return "Dynamic" if (scheduling.get("weightPreference") or {}).get("dynamicWeight") else "Static"


def select(candidates: list[Object], spec: Object) -> list[Object]:
    constraints = {each["spreadByField"]: each for each in spec["placement"].get("spreadConstraints") or ()}
    if not constraints or strategy_of(spec) == "Static":
        return candidates
    if "region" in constraints:
        return by_region(candidates, spec, constraints)
    if "cluster" in constraints:
        return by_cluster(candidates, spec, constraints["cluster"])
    raise Failed("SchedulerError", "just support cluster and region spread constraint")


def by_cluster(candidates: list[Object], spec: Object, constraint: Object) -> list[Object]:
    if len(candidates) < constraint["minGroups"]:
        raise Failed(
            "SchedulerError", "the number of feasible clusters is less than spreadConstraint.MinGroups"
        )
    size = min(len(candidates), constraint["maxGroups"])
    chosen, rest = candidates[:size], candidates[size:]
    if is_duplicated(spec):
        return chosen
    for place in reversed(range(size)):
        if sum(each["total"] for each in chosen) >= spec["replicas"] or not rest:
            break
        best = 0
        for index in range(len(rest)):
            if rest[index]["total"] > rest[best]["total"]:
                best = index
        if rest[best]["total"] > chosen[place]["total"]:
            chosen[place], rest[best] = rest[best], chosen[place]
    if not size or sum(each["total"] for each in chosen) < spec["replicas"]:
        raise Failed("SchedulerError", f"no enough resource when selecting {size} clusters")
    return chosen


def by_region(candidates: list[Object], spec: Object, constraints: Object) -> list[Object]:
    region, cluster = constraints["region"], constraints["cluster"]
    members: dict[str, list[Object]] = {}
    for candidate in candidates:
        members.setdefault(candidate["region"], []).append(candidate)
    if len(members) < region["minGroups"]:
        raise Failed(
            "SchedulerError", "the number of feasible region is less than spreadConstraint.MinGroups"
        )
    groups = [
        {
            "name": name,
            "value": len(found),
            "weight": group_weight(found, spec, region["minGroups"], cluster["minGroups"]),
        }
        for name, found in members.items()
    ]
    picked = select_groups(groups, region["minGroups"], region["maxGroups"], cluster["minGroups"])
    if picked is None:
        raise Failed(
            "SchedulerError", "the number of clusters is less than the cluster spreadConstraint.MinGroups"
        )
    chosen = [members[each["name"]][0] for each in picked]
    rest = in_order([one for each in picked for one in members[each["name"]][1:]])
    while len(chosen) < cluster["maxGroups"] and rest:
        chosen.append(rest.pop(0))
    return chosen


def in_order(candidates: list[Object]) -> list[Object]:
    return sorted(candidates, key=lambda each: (each["tier"], -each["score"], -each["total"], each["name"]))


# Assignment


def assign(chosen: list[Object], spec: Object, raw: dict[str, Object], *, fresh: bool, tiers: bool) -> Object:
    if not chosen:
        raise Failed("SchedulerError", "no clusters available to schedule")
    strategy = strategy_of(spec)
    if strategy == "Duplicated":
        return {each["name"]: spec["replicas"] for each in chosen}
    if not tiers or strategy == "Static":
        return within(chosen, spec, raw, spec["replicas"], fresh=fresh)
    left, result = spec["replicas"], {}
    for tier in sorted({each["tier"] for each in chosen}):
        members = [each for each in chosen if each["tier"] == tier]
        share = min(left, sum(member["total"] for member in members))
        if left:
            result |= within(members, spec, raw, share, fresh=fresh)
        left -= share
    if left:
        raise Failed("Unschedulable", "Clusters available replicas are not enough to schedule.")
    return result


def within(
    chosen: list[Object], spec: Object, raw: dict[str, Object], replicas: int, *, fresh: bool
) -> Object:
    uid, names = spec["resource"]["uid"], [each["name"] for each in chosen]
    if strategy_of(spec) == "Static":
        rules = (spec["placement"]["replicaScheduling"].get("weightPreference") or {}).get(
            "staticWeightList"
        ) or []
        weights: dict[str, int] = {}
        for rule in rules:
            for name in names:
                if matches(rule["targetCluster"], raw[name]):
                    weights[name] = max(weights.get(name, 0), rule["weight"])
        return divide(replicas, weights or dict.fromkeys(names, 1), {}, uid)
    scheduled = {each["name"]: each.get("replicas", 0) for each in spec["clusters"] if each["name"] in names}
    assigned = sum(scheduled.values())
    if fresh:
        room = [(each["name"], each["available"] + scheduled.get(each["name"], 0)) for each in chosen]
        target, start = replicas, {}
    elif assigned > replicas:
        room, target, start = list(scheduled.items()), replicas, {}
    elif assigned < replicas:
        room = [(each["name"], each["available"]) for each in chosen]
        target, start = replicas - assigned, scheduled
    else:
        return scheduled
    room.sort(key=lambda each: -each[1])
    total = sum(each for _, each in room)
    if total < target:
        raise Failed("Unschedulable", f"Clusters available replicas {total} are not enough to schedule.")
    if strategy_of(spec) == "Aggregated":
        room = [each for each in room if start.get(each[0])] + [
            each for each in room if not start.get(each[0])
        ]
        size = next(n for n in range(1, len(room) + 1) if sum(each for _, each in room[:n]) >= target)
        room = room[:size]
    more = divide(target, dict(room), {}, uid)
    return {name: start.get(name, 0) + more.get(name, 0) for name in {*start, *more}}


def schedule(
    binding: Object, clusters: list[Object], available: dict[str, int], *, fresh: bool = False
) -> tuple[str, dict[str, int]]:
    """The affinity group that was used, and replicas by cluster without zeros; raises Failed."""
    spec = binding["spec"]
    placement = spec["placement"]
    if not spec["replicas"] and not spec.get("components"):
        available = dict.fromkeys(available, 2**31 - 1)  # nobody is asked
    groups = placement.get("clusterAffinities") or [placement.get("clusterAffinity") or {}]
    observing = binding["status"].get("schedulerObservingAffinityName", "")
    names = [each.get("affinityName", "") for each in groups]
    start = names.index(observing) if observing in names and not fresh else 0
    first: Failed | None = None
    for group in groups[start:]:
        try:
            return group.get("affinityName", ""), attempt(binding, group, clusters, available, fresh=fresh)
        except Failed as error:
            first = first or error
    assert first is not None
    raise first


def attempt(
    binding: Object, group: Object, clusters: list[Object], available: dict[str, int], *, fresh: bool
) -> dict[str, int]:
    spec = binding["spec"]
    held: dict[str, int] = {}
    for each in spec["clusters"]:
        held.setdefault(each["name"], each.get("replicas", 0))
    reasons, candidates = [], []
    for cluster in clusters:
        if cluster["metadata"].get("deletionTimestamp"):
            continue
        reason, name = refusal(binding, group, cluster), cluster["metadata"]["name"]
        if reason:
            reasons.append(reason)
            continue
        candidates.append(
            {
                "name": name,
                "region": cluster["spec"]["region"],
                "tier": group_tier(group, cluster),
                "score": 100 if name in held else 0,
                "available": available[name],
                "total": available[name] + held.get(name, 0),
            }
        )
    if not candidates:
        counts = sorted(f"{reasons.count(each)} {each}" for each in set(reasons))
        shown = ", ".join(counts) or "no cluster exists"
        raise Failed("NoClusterFit", f"0/{len(clusters)} clusters are available: {shown}.")
    chosen = select(in_order(candidates), spec)
    if not (spec["replicas"] or "replicaRequirements" in spec):
        return {each["name"]: 0 for each in chosen}
    raw = {each["metadata"]["name"]: each for each in clusters}
    result = assign(chosen, spec, raw, fresh=fresh, tiers=bool(group.get("overflowAffinities")))
    return {name: replicas for name, replicas in result.items() if replicas}
