"""Packing new nodes the slow way: one pod at a time, every count taken afresh, no tables.

Reads like the algorithm: existing nodes, planned nodes, new nodes. Shares nothing
with the packer but the model's value sets, taints and selectors.
"""

from dataclasses import dataclass, field, replace
from itertools import product

from karpool.model.karpenter.objects import CAPACITY_TYPE, NODEPOOL
from karpool.model.kubernetes.node import HOSTNAME, INSTANCE_TYPE, ZONE
from karpool.model.requirements import WELL_KNOWN, ValueSet, canonical_key
from karpool.model.taints import untolerated
from tests.packing.naive_topology import NaiveCluster, label_selector_matches, node_matches


@dataclass
class NaiveNode:
    pool: object
    requirements: dict
    within: set
    reserved: dict
    pods: list = field(default_factory=list)  # (pod, shape, requirements when it came)


@dataclass
class NaiveResult:
    nodes: list
    placed: dict
    left: list


class NaivePacker:
    def __init__(self, cluster, pods, pools, types, *, daemons, usage, unavailable, options, room):
        self.cluster: NaiveCluster = cluster
        self.pods = sorted(pods, key=self.size_order)
        self.pools = sorted(
            sorted((pool for pool in pools if pool.is_usable), key=lambda pool: pool.name, reverse=True),
            key=lambda pool: -pool.weight,
        )
        self.types = types
        self.declared = {key for each in types for key in each.requirements} - {ZONE, CAPACITY_TYPE}
        self.declared.add(INSTANCE_TYPE)
        self.daemons = daemons
        self.unavailable = unavailable
        self.options = options
        self.room = room  # of existing nodes: name to resource to amount
        self.left_of = {
            pool.name: {
                name: units - usage.get(pool.name, {}).get(name, 0) for name, units in pool.limits.items()
            }
            for pool in self.pools
        }
        self.planned: list[NaiveNode] = []
        self.placed = {}
        self.ports = {}  # of existing nodes

    @staticmethod
    def size_order(pod):
        asked = dict(pod.shape.requests)
        return -asked.get("cpu", 0), -asked.get("memory", 0), pod.created, pod.uid, pod.name

    def run(self):
        self.everyone = [variant for pod in self.pods for variant, _, _ in self.variants(pod.shape)]
        waiting, left = list(self.pods), []
        while waiting:
            failed = [pod for pod in waiting if not self.place(pod)]
            if len(failed) == len(waiting):
                left += failed
                break
            waiting = failed
        return NaiveResult(
            [self.result(node) for node in self.planned], self.placed, sorted(p.name for p in left)
        )

    # Preferences

    def variants(self, shape):
        """The shape with its preferences made hard, then one fewer each time."""
        hard = tuple(each for each in shape.spreads if each.required)
        plain = replace(shape, spreads=hard)
        soft_taints = any(taint.effect == "PreferNoSchedule" for pool in self.pools for taint in pool.taints)
        if self.options.preferences == "ignore":
            return [(plain, None, False)]
        by_weight = lambda entries: [entry.term for entry in sorted(entries, key=lambda each: -each.weight)]  # noqa: E731
        together, apart = by_weight(shape.preferred_affinity), by_weight(shape.preferred_anti_affinity)
        nodes = by_weight(shape.preferred_nodes)
        soft = [replace(spread, required=True) for spread in shape.spreads if not spread.required]
        found = []
        while together or apart or nodes or soft:
            variant = replace(
                shape,
                affinity=shape.affinity + tuple(together),
                anti_affinity=shape.anti_affinity + tuple(apart),
                spreads=hard + tuple(soft),
            )
            found.append((variant, nodes[0] if nodes else None, soft_taints))
            if together:
                together = together[1:]
            elif apart:
                apart = apart[1:]
            elif nodes:
                nodes = nodes[1:]
            else:
                soft = soft[1:]
        if soft_taints:
            found.append((plain, None, True))
        return [*found, (plain, None, False)]

    # One pod

    def place(self, pod):
        for shape, preferred, avoids_soft in self.variants(pod.shape):
            if self.place_on_existing(pod, shape, preferred):
                return True
            for choice in self.choices(shape, preferred):
                by_pods = sorted(range(len(self.planned)), key=lambda row: (len(self.planned[row].pods), row))
                for row in by_pods:
                    if self.join(pod, shape, choice, self.planned[row], avoids_soft):
                        return True
                for pool in self.pools:
                    if self.open(pod, shape, choice, pool, avoids_soft):
                        return True
        return False

    def choices(self, shape, preferred):
        """Alternatives to try in turn; each is a list of ways to reach the volumes."""
        fixed = [{key: ValueSet(frozenset((value,)))} for key, value in shape.node_selector]
        terms = [None] if shape.node_terms is None else shape.node_terms
        for term in terms:
            ways = []
            for combination in product(*shape.volume_terms):
                parts = [*fixed]
                parts += [{key: wanted} for each in (term, preferred) if each for key, wanted in each.labels]
                parts += [{key: wanted} for each in combination for key, wanted in each.labels]
                whole = together(parts)
                if whole is not None:
                    ways.append(whole)
            if ways:
                yield ways

    def place_on_existing(self, pod, shape, preferred):
        if not self.options.existing:
            return False
        for row in sorted(range(len(self.cluster.nodes)), key=lambda each: self.cluster.nodes[each].name):
            node = self.cluster.nodes[row]
            if untolerated(node.taints, shape.tolerations) or not node_matches(shape, node):
                continue
            if preferred and not node_matches(replace(shape, node_terms=(preferred,)), node):
                continue
            if not all(
                node_matches(replace(shape, node_selector=(), node_terms=terms), node)
                for terms in shape.volume_terms
            ):
                continue
            room = self.room[node.name]
            if any(room.get(name, 0) < units for name, units in (*shape.requests, ("pods", 1))):
                continue
            if clashes(self.ports.get(row, ()), shape.host_ports):
                continue
            if not self.node_allows(shape, row):
                continue
            for name, units in (*shape.requests, ("pods", 1)):
                room[name] = room.get(name, 0) - units
            self.ports[row] = {*self.ports.get(row, ()), *shape.host_ports}
            self.cluster.pods.append((pod.shape, row))
            self.placed[pod.name] = node.name
            return True
        return False

    def join(self, pod, shape, ways, node, avoids_soft):
        if self.refuses(node.pool, shape, avoids_soft):
            return False
        held = {port for _, other, _ in node.pods for port in other.host_ports}
        if clashes(held, shape.host_ports) or not self.host_allows(shape, node):
            return False
        for wanted in ways:
            whole = self.narrow(node.pool, node.requirements, wanted)
            if whole is None or not self.matching_types(node.pool, whole):
                continue
            within = (
                node.within if self.options.limits == "pessimistic" else self.within(node.pool, node.reserved)
            )
            found = self.settle(pod, shape, node, whole, within)
            if found is None:
                continue
            self.commit(pod, shape, node, *found)
            return True
        return False

    def open(self, pod, shape, ways, pool, avoids_soft):
        if self.refuses(pool, shape, avoids_soft) or self.left_of[pool.name].get("nodes", 1) < 1:
            return False
        node = NaiveNode(pool, self.pool_requirements(pool), self.within(pool, {}), {})
        if not self.host_allows(shape, node):
            return False
        for wanted in ways:
            whole = self.narrow(pool, node.requirements, wanted)
            if whole is None or not self.matching_types(pool, whole):
                continue
            found = self.settle(pod, shape, node, whole, node.within)
            if found is None:
                continue
            if "nodes" in self.left_of[pool.name]:
                self.left_of[pool.name]["nodes"] -= 1
            self.planned.append(node)
            if self.options.limits == "pessimistic":
                self.charge(node, found[1])
            self.commit(pod, shape, node, *found)
            return True
        return False

    def commit(self, pod, shape, node, requirements, types):
        if self.options.limits == "exact":
            self.charge(node, [self.by_price(requirements, types)[0][0]])
        if shape.host_ports:
            node.within = {
                each.name
                for each in self.types
                if each.name in node.within and not self.port_taken(node.pool, each, shape)
            }
        node.requirements = requirements
        node.pods.append((pod, pod.shape, requirements))

    def charge(self, node, types):
        left = self.left_of[node.pool.name]
        for name in left:
            if name != "nodes":
                left[name] += node.reserved.get(name, 0)
                node.reserved[name] = max(each.capacity.get(name, 0) for each in types)
                left[name] -= node.reserved[name]

    def within(self, pool, spare):
        left = self.left_of[pool.name]
        return {
            each.name
            for each in self.types
            if all(
                each.capacity.get(name, 0) <= units + spare.get(name, 0)
                for name, units in left.items()
                if name != "nodes"
            )
        }

    def result(self, node):
        types = self.fitting(node.pool, node.requirements, [shape for _, shape, _ in node.pods], node.within)
        if self.options.limits == "exact":
            allowed = self.within(node.pool, node.reserved)
            types = [each for each in types if each.name in allowed]
        options = [
            (each.name, offering.zone, offering.capacity_type, offering.price_per_hour)
            for each, offering in self.by_price(node.requirements, types)
        ]
        return node.pool.name, [pod.name for pod, _, _ in node.pods], options

    def by_price(self, requirements, types):
        """Each type with its cheapest offering, cheapest first; unknown prices last, small ones first."""
        found = []
        for each in sorted(
            types, key=lambda each: (each.capacity["cpu"], each.capacity["memory"], each.name)
        ):
            offerings = sorted(
                (o for o in self.in_stock(each) if admitted(requirements, o)),
                key=lambda o: (price(o), o.zone, o.capacity_type),
            )
            found.append((each, offerings[0]))
        return sorted(found, key=lambda pair: price(pair[1]))

    # Pools and types

    @staticmethod
    def refuses(pool, shape, avoids_soft):
        if untolerated(pool.taints, shape.tolerations):
            return True
        return avoids_soft and any(
            not any(toleration.tolerates(taint) for toleration in shape.tolerations) for taint in pool.taints
        )

    @staticmethod
    def pool_requirements(pool):
        return together([pool.requirements, {NODEPOOL: ValueSet(frozenset((pool.name,)))}])

    def narrow(self, pool, have, wanted):
        result = dict(have)
        for key, values in wanted.items():
            if key == HOSTNAME:
                if not values.complement:
                    return None
            elif key in result:
                if not result[key].intersects(values):
                    return None
                result[key] = result[key] & values
            elif key in WELL_KNOWN or key in self.declared:
                result[key] = values
            elif not values.admits_absence:
                return None
        return result

    def in_stock(self, each):
        return [
            o
            for o in each.offerings
            if o.available
            and not any(
                out.instance_type in (None, each.name)
                and out.zone in (None, o.zone)
                and out.capacity_type in (None, o.capacity_type)
                for out in self.unavailable
            )
            and (o.price_per_hour is not None or not self.options.needs_price)
        ]

    def type_matches(self, each, requirements):
        labels = {INSTANCE_TYPE: ValueSet(frozenset((each.name,))), **each.requirements}
        for key, wanted in requirements.items():
            if key in (ZONE, CAPACITY_TYPE) or key not in self.declared:
                continue
            if key in labels:
                if not labels[key].intersects(wanted):
                    return False
            elif not wanted.admits_absence:
                return False
        return True

    def matching_types(self, pool, requirements):
        return [
            each
            for each in self.types
            if self.type_matches(each, requirements)
            and any(admitted(requirements, o) and admitted(pool.requirements, o) for o in self.in_stock(each))
        ]

    def daemons_on(self, pool, each):
        for shape in self.daemons:
            if untolerated(pool.taints, shape.tolerations):
                continue
            for ways in self.choices(replace(shape, volume_terms=()), None):
                whole = self.narrow(pool, self.pool_requirements(pool), ways[0])
                if (
                    whole is not None
                    and self.type_matches(each, whole)
                    and any(admitted(whole, o) for o in each.offerings)
                ):
                    yield shape
                    break

    def port_taken(self, pool, each, shape):
        return any(clashes(daemon.host_ports, shape.host_ports) for daemon in self.daemons_on(pool, each))

    def fitting(self, pool, requirements, shapes, within):
        found = []
        for each in self.matching_types(pool, requirements):
            daemons = list(self.daemons_on(pool, each))
            total = {"pods": len(shapes) + len(daemons)}
            for shape in (*shapes, *daemons):
                for name, units in shape.requests:
                    total[name] = total.get(name, 0) + units
            if each.name not in within or any(self.port_taken(pool, each, shape) for shape in shapes):
                continue
            if all(each.allocatable.get(name, 0) >= units for name, units in total.items()):
                found.append(each)
        for key, wanted in requirements.items():
            if wanted.min_values:
                values = {
                    value for each in found for value in self.label_values(pool, each, key) if value in wanted
                }
                if len(values) < wanted.min_values:
                    return []
        return found

    def label_values(self, pool, each, key):
        sold = [o for o in each.offerings if admitted(pool.requirements, o)]
        if key == ZONE:
            return {o.zone for o in sold}
        if key == CAPACITY_TYPE:
            return {o.capacity_type for o in sold}
        if key == INSTANCE_TYPE:
            return {each.name}
        return each.requirements[key].values if key in each.requirements else set()

    # Topology

    def values(self, pool, requirements, key):
        """Where a planned node can still be; None stands for "without the label"."""
        types = self.matching_types(pool, requirements)
        stock = [o for each in types for o in self.in_stock(each) if admitted(requirements, o)]
        if key == ZONE:
            return {o.zone for o in stock}
        if key == CAPACITY_TYPE:
            return {o.capacity_type for o in stock}
        wanted = requirements.get(key)
        if key in self.declared:
            found = set()
            for each in types:
                label = self.label_values(pool, each, key)
                found |= {value for value in label if wanted is None or value in wanted} or {None}
            return found
        return {None} if wanted is None else set(wanted.values) or {None}

    def domain(self, node, requirements, key):
        """The settled domain of a planned node: a value, None for no label, or () while it is open."""
        if key == HOSTNAME:
            return f"planned {self.planned.index(node)}" if node in self.planned else "a new host"
        values = self.values(node.pool, requirements, key)
        return next(iter(values)) if len(values) == 1 else ()

    def counted(self, key, test, eligible=None):
        """Pods per domain, existing and planned."""
        counts = {}
        for other, row in self.cluster.pods:
            value = self.cluster.nodes[row].labels.get(key)
            if value is not None and test(other) and (eligible is None or eligible(row)):
                counts[value] = counts.get(value, 0) + 1
        for node in self.planned:
            for _, other, then in node.pods:
                value = self.domain(node, then, key)
                if (
                    value not in (None, ())
                    and test(other)
                    and (eligible is None or eligible((node.pool, then)))
                ):
                    counts[value] = counts.get(value, 0) + 1
        return counts

    def eligible(self, shape, spread):
        def test(where):
            if isinstance(where, int):
                return self.cluster.is_eligible(shape, spread, self.cluster.nodes[where])
            pool, requirements = where
            for each in shape.spreads:
                key = each.topology_key
                if each.required and key != HOSTNAME and self.values(pool, requirements, key) == {None}:
                    return False
            if spread.honour_taints and untolerated(pool.taints, shape.tolerations):
                return False
            if not spread.honour_node_affinity:
                return True
            plain = replace(shape, volume_terms=())
            return any(
                self.narrow(pool, requirements, ways[0]) is not None for ways in self.choices(plain, None)
            )

        return test

    def spread_counts(self, shape, spread, *, new):
        """Pods per domain, with a zero for each domain that exists or, for new nodes, could."""
        eligible, key = self.eligible(shape, spread), spread.topology_key
        counts = {}
        for row, node in enumerate(self.cluster.nodes):
            if eligible(row):
                counts.setdefault(node.labels[key], 0)
        for node in self.planned:
            value = self.domain(node, node.requirements, key)
            if value not in (None, ()) and eligible((node.pool, node.requirements)):
                counts.setdefault(value, 0)
        if new:
            for pool in self.pools:
                if spread.honour_taints and untolerated(pool.taints, shape.tolerations):
                    continue
                asked = (
                    replace(shape, volume_terms=())
                    if spread.honour_node_affinity
                    else replace(shape, volume_terms=(), node_selector=(), node_terms=None)
                )
                for ways in self.choices(asked, None):
                    whole = self.narrow(pool, self.pool_requirements(pool), ways[0])
                    if whole is not None and self.matching_types(pool, whole):
                        for value in self.values(pool, whole, key) - {None}:
                            counts.setdefault(value, 0)

        def test(other):
            return (
                bool(spread.selector.requirements)
                and other.namespace == shape.namespace
                and label_selector_matches(spread.selector, dict(other.labels))
            )

        in_domains = self.counted(key, test, eligible)
        return {**counts, **in_domains}, counts.keys()

    def spread_allows(self, shape, spread, value, *, new):
        counts, domains = self.spread_counts(shape, spread, new=new)
        least = min((counts[domain] for domain in domains), default=0)
        if len(domains) < spread.min_domains or (new and spread.topology_key == HOSTNAME):
            least = 0
        itself = 1 if label_selector_matches(spread.selector, dict(shape.labels)) else 0
        return value is not None and counts.get(value, 0) + itself - least <= spread.max_skew

    def allows(self, shape, key, value, *, new):
        """Whether every constraint on one topology key admits a domain (None: no label)."""
        for spread in shape.spreads:
            here = spread.required and spread.topology_key == key
            if here and not self.spread_allows(shape, spread, value, new=new):
                return False
        if any(term.topology_key == key for term in shape.affinity):
            friend = lambda other: all(self.cluster.selects(term, shape, other) for term in shape.affinity)  # noqa: E731
            keys = {term.topology_key for term in shape.affinity}
            anywhere = any(self.counted(each, friend) for each in keys)
            if value is None:
                return False
            if not self.counted(key, friend).get(value) and (anywhere or not friend(shape)):
                return False
        for term in shape.anti_affinity:
            if term.topology_key == key:
                foe = lambda other, term=term: self.cluster.selects(term, shape, other)  # noqa: E731
                if self.counted(key, foe).get(value):
                    return False
        repels = lambda other: any(  # noqa: E731
            term.topology_key == key and self.cluster.selects(term, other, shape)
            for term in other.anti_affinity
        )
        return not self.counted(key, repels).get(value)

    def keys(self, shape):
        found = {spread.topology_key for spread in shape.spreads if spread.required}
        found |= {term.topology_key for term in (*shape.affinity, *shape.anti_affinity)}
        others = [*self.everyone, *(other for other, _ in self.cluster.pods)]
        for other in others:
            found |= {
                term.topology_key for term in other.anti_affinity if self.cluster.selects(term, other, shape)
            }
        return found

    def node_allows(self, shape, row):
        labels = self.cluster.nodes[row].labels
        return all(self.allows(shape, key, labels.get(key), new=False) for key in self.keys(shape))

    def host_allows(self, shape, node):
        if HOSTNAME not in self.keys(shape):
            return True
        return self.allows(shape, HOSTNAME, self.domain(node, node.requirements, HOSTNAME), new=True)

    def must_settle(self, pod, shape):
        """Keys of constraints, of any pod in this packing, that count this pod."""
        found = {spread.topology_key for spread in shape.spreads if spread.required}
        found |= {term.topology_key for term in pod.shape.anti_affinity}
        for other in self.everyone:
            for spread in other.spreads:
                if (
                    spread.required
                    and spread.selector.requirements
                    and other.namespace == shape.namespace
                    and label_selector_matches(spread.selector, dict(shape.labels))
                ):
                    found.add(spread.topology_key)
            if other.affinity and all(self.cluster.selects(term, other, shape) for term in other.affinity):
                found |= {term.topology_key for term in other.affinity}
            found |= {
                term.topology_key for term in other.anti_affinity if self.cluster.selects(term, other, shape)
            }
        return found

    def settle(self, pod, shape, node, requirements, within):
        keys = sorted((self.keys(shape) | self.must_settle(pod, shape)) - {HOSTNAME})
        return self.settle_keys(pod, shape, node, requirements, within, keys)

    def settle_keys(self, pod, shape, node, requirements, within, keys):
        shapes = [*(each for _, each, _ in node.pods), shape]
        for position, key in enumerate(keys):
            values = self.values(node.pool, requirements, key)
            is_open = [value for value in values if self.allows(shape, key, value, new=True)]
            if len(values) == 1:
                if not is_open:
                    return None
                continue
            if key in self.must_settle(pod, shape):
                types = self.fitting(node.pool, requirements, shapes, within)
                options = [{value} for value in self.by_preference(shape, key, is_open, requirements, types)]
                if len(is_open) > 1 and not types:
                    return None
            elif len(is_open) < len(values):
                options = [set(is_open)]
            else:
                continue
            for option in options:
                wanted = {key: ValueSet(frozenset(option - {None}))}
                whole = self.narrow(node.pool, requirements, wanted) if option else None
                if whole is None or not self.matching_types(node.pool, whole):
                    continue
                found = self.settle_keys(pod, shape, node, whole, within, keys[position + 1 :])
                if found is not None:
                    return found
            return None
        types = self.fitting(node.pool, requirements, shapes, within)
        return (requirements, types) if types else None

    def by_preference(self, shape, key, values, requirements, types):
        counts = [
            self.spread_counts(shape, spread, new=True)[0]
            for spread in shape.spreads
            if spread.required and spread.topology_key == key
        ]

        def rank(value):
            field_name = {ZONE: "zone", CAPACITY_TYPE: "capacity_type"}.get(key)
            cheapest = 0.0
            if field_name is not None:
                cheapest = min(
                    (
                        price(o)
                        for each in types
                        for o in self.in_stock(each)
                        if admitted(requirements, o) and getattr(o, field_name) == value
                    ),
                    default=float("inf"),
                )
            return *(count.get(value, 0) for count in counts), cheapest, value or ""

        return sorted(values, key=rank)


def price(offering):
    return float("inf") if offering.price_per_hour is None else offering.price_per_hour


def together(parts):
    result = {}
    for part in parts:
        for raw, wanted in part.items():
            key = canonical_key(raw)
            if key not in result:
                result[key] = wanted
            elif result[key].intersects(wanted):
                result[key] = result[key] & wanted
            else:
                return None
    return result


def admitted(requirements, offering):
    zones, kinds = requirements.get(ZONE), requirements.get(CAPACITY_TYPE)
    return (zones is None or offering.zone in zones) and (kinds is None or offering.capacity_type in kinds)


def clashes(held, wanted):
    return any(
        here[1:] == there[1:] and (here[0] == there[0] or "0.0.0.0" in (here[0], there[0]))
        for here in held
        for there in wanted
    )
