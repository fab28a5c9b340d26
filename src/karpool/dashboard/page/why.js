// The one dialog of the page: why something is as it is. What it is about is in the address, so that it has a link.

import { change, href, read, readWhy, useAddress, whyOf } from "./address.js";
import { address, get, path } from "./api.js";
import { byReason } from "./consolidation.js";
import { ago, amount, clock, count, lasting, money, percent, plural, price, resourceName } from "./format.js";
import { freeOf, holderText } from "./gpus.js";
import { Badge, Bar, pairs, part, reasons, Table } from "./parts.js";
import { KINDS } from "./placements.js";
import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";

const dialog = document.getElementById("why");

function Link({ of, children }) {
  return html`<a href=${`#`} onClick=${(event) => { event.preventDefault(); change({ why: whyOf(...of) }); }}>${children}</a>`;
}

const soft = (text) => html`<p class="soft">${text}</p>`;
const gone = (what) => [reasons([`${what} is not there any more: it was removed, or the server was started again since the link was made`])];
const amounts = (requests) => Object.entries(requests).map(([name, units]) => amount(name, units)).join(", ");

// Each kind: a heading, and a promise of what is shown.
const ANSWERS = {
  async cluster(name) {
    const { cluster, filledBy, filledByLeftOut, launchable, refused } = await get(path("clusters", name));
    return [
      cluster.why.length > 0 && reasons(cluster.why),
      part("What fills it", filledBy.length ? html`<${Table} caption="Namespaces by the requests of their pods" columns=${[{ name: "Namespace", cell: (use) => use.name }, { name: "Pods", number: true, cell: (use) => count(use.pods) }, { name: "Ask for", cell: (use) => amounts(use.requests) }]} items=${filledBy} itemKey=${(use) => use.name} />` : soft(cluster.watched ? "no pod is on a node" : "not known: it is not watched"), filledByLeftOut > 0 && soft(`and ${plural(filledByLeftOut, "namespace")} more`)),
      part("What could be launched", reasons(launchable)),
      part("What was refused", reasons(refused)),
      cluster.problems.length > 0 && part("Left out, because invalid", reasons(cluster.problems), cluster.problemsLeftOut > 0 && soft(`and ${count(cluster.problemsLeftOut)} more`)),
      part("What costs what", soft(cluster.watched ? `${price(cluster)}: what ${plural(cluster.nodes - cluster.unpriced, "node")} add to the bill${cluster.unpriced ? `; ${plural(cluster.unpriced, "node")} without a known price count as nothing` : ""}.` : "Prices are known only for watched clusters.")),
    ];
  },
  async pool(name, pool) {
    const { cluster } = await get(path("clusters", name));
    const found = cluster.pools.find((each) => each.name === pool);
    if (!found) return gone(`pool ${pool}`);
    return [
      reasons(found.why.length ? found.why : ["it has no limit, no taint and no failure: it launches what pods need"]),
      part("Amounts", pairs(Object.entries(found.amounts).map(([resource, each]) => [resourceName(resource), `${amount(resource, each.requested)} of ${amount(resource, each.allocatable)} requested; ${each.potential === null ? "no limit on what could be launched" : `${amount(resource, each.potential)} could be launched`}`]))),
      part("Policy", soft(`${found.policy || "none"}; weight ${found.weight}; ${plural(found.coming, "node")} on the way`)),
      html`<p><a href=${href("nodes", { cluster: name, pool })}>Its nodes in the table</a></p>`,
    ];
  },
  async node(cluster, name) {
    const found = await get(path("clusters", cluster, "nodes", name));
    const { node } = found;
    const kind = { goes: "good", stays: "accent", "could go": "warn" }[found.verdict] ?? "";
    return [
      html`<p class="row"><${Badge} kind=${kind}>${found.verdict}</${Badge}><span class="soft">${[cluster, node.pool, node.type, node.zone, node.capacityType, node.pricePerHour ? price(node) : "price unknown"].filter(Boolean).join(" · ")}</span></p>`,
      part(found.verdict === "goes" ? "Why it would go" : "Why it stays", reasons(found.why)),
      part("Use", html`<${Bar} resource="cpu" given=${{ allocatable: node.allocatable.cpu ?? 0, requested: node.requested.cpu ?? 0, promised: 0, potential: 0 }} />`, pairs(Object.entries(node.allocatable).map(([each, units]) => [resourceName(each), `${amount(each, node.requested[each] ?? 0)} of ${amount(each, units)} (${percent(units ? (node.requested[each] ?? 0) / units : 0)})`]))),
      part(`Pods (${count(found.pods.length + found.podsLeftOut)})`, found.pods.length ? html`<${Table} caption="Pods on this node" columns=${[{ name: "Pod", cell: (pod) => pod.name }, { name: "CPU", number: true, cell: (pod) => amount("cpu", pod.requested.cpu ?? 0) }, { name: "Memory", number: true, cell: (pod) => amount("memory", pod.requested.memory ?? 0) }, { name: "Cost of moving", number: true, cell: (pod) => pod.cost.toFixed(2) }]} items=${found.pods} itemKey=${(pod) => pod.name} />` : soft("none")),
      part("What it says of itself", pairs([["NodeClaim", found.claim || "none"], ["Conditions", found.conditions.join(", ") || "none"], ["Taints", found.taints.join(", ") || "none"], ...Object.entries(found.labels)])),
    ];
  },
  async pod(cluster, namespace, name) {
    const { items: [pod] } = await get(address("pods", { cluster, namespace, name }));
    if (!pod) return gone(`pod ${namespace}/${name}`);
    return podParts(pod);
  },
  async gpu(cluster, node, name) {
    const { items } = await get(address("gpus", { cluster, q: `${node} ${name}`.slice(0, 250), limit: 500 }));
    const device = items.find((each) => each.node === node && each.device === name);
    if (!device) return gone(`device ${name}`);
    return [
      part("Who holds it", device.holders.length ? reasons(device.holders.map(holderText)) : soft("nobody: it is free")),
      part("What it is", pairs([["Model", device.model || "unknown"], ["Memory", device.memoryBytes === null ? "not told" : amount("memory", device.memoryBytes)], ["Free", freeOf(device)], ["Form", [device.form, device.profile].filter(Boolean).join(", ")], ["Handed out by", device.handedOutBy], ["Resource", device.resource || "none"], ["Shared", device.shareable ? "several pods may have a part of it" : "one pod has all of it"]])),
      html`<p><${Link} of=${["node", cluster, node]}>Node ${node}</${Link}></p>`,
    ];
  },
  async move(cluster, id) {
    const { move, pods, podsLeftOut } = await get(path("clusters", cluster, "moves", id));
    return [
      html`<p class="row"><${Badge} kind=${move.approved ? "good" : "warn"}>${move.approved ? "approved" : "refused"}</${Badge}><span class="soft">${move.kind} ${move.nodes.join(", ")}</span></p>`,
      reasons(move.why.length ? move.why : ["nothing speaks against it, and its policy asks for no score"]),
      part("Numbers", pairs([["Saves", `${money(move.savingsPerHour)} per hour, ${percent(move.savingsFraction)} of the pool's cost`], ["Disturbs", `${plural(move.pods, "pod")}, ${percent(move.disruptionFraction)} of the pool's disruption`], ["Score", move.score === null ? "none is needed" : `${move.score.toFixed(3)}, must reach ${move.threshold.toFixed(3)}`], ["Nodes", move.nodes.join(", ") + (move.nodesLeftOut ? ` and ${move.nodesLeftOut} more` : "")], ["Pools", move.pools.join(", ")], ["Buys", move.into.join(", ") || "nothing"]])),
      part(`What becomes of its pods (${count(pods.length + podsLeftOut)})`, pods.length ? html`<${Table} caption="Pods that would move" columns=${[{ name: "Pod", cell: (pod) => pod.pod }, { name: "From", cell: (pod) => pod.source }, { name: "To", cell: (pod) => pod.to }, { name: "Cost", number: true, cell: (pod) => pod.cost.toFixed(2) }]} items=${pods} itemKey=${(pod) => pod.pod} />` : soft("no pods move")),
    ];
  },
  async made(cluster, name) {
    const { items } = await get(address("moves", { cluster, q: name.slice(0, 250) }));
    const move = items.find((each) => each.name === name);
    if (!move) return gone(`the record ${name}`);
    const known = (value) => (value === null ? "not known" : money(value));
    return [
      reasons(move.why),
      part("Numbers", pairs([["Nodes", move.nodes.join(", ") + (move.nodesLeftOut ? ` and ${move.nodesLeftOut} more` : "")], ["New nodes", move.newNodes.join(", ") || "none"], ["Bought beside the plan", move.extraNodes.join(", ") || "none"], ["Predicted", `${money(move.predictedSavingsPerHour)} per hour`], ["Came true", `${known(move.realisedSavingsPerHour)} per hour`], ["Saved so far", known(move.savedDollars)], ["Paid while nothing was saved", known(move.costDollars)], ["Pods disturbed", count(move.podsDisturbed)], ["Attempt", count(move.attempt)]])),
      part("When", pairs([["Began", `${clock(move.began)}, ${ago(move.began)}`], ["This phase since", ago(move.since)], ["Ended", move.ended ? ago(move.ended) : "not yet"]])),
    ];
  },
  async held(cluster, reason) {
    const { boards } = await get(address("consolidation", { cluster }));
    const group = byReason(boards[0]?.held ?? []).find((each) => each.reason === reason);
    if (!group) return gone("this group");
    return [
      html`<ul class="reasons">${group.nodes.slice(0, 100).map((each) => html`<li><${Link} of=${["node", cluster, each.node]}>${each.node}</${Link}>${each.pool ? ` (${each.pool}): ` : ": "}${each.why.join("; ")}</li>`)}</ul>`,
      group.nodes.length > 100 && soft(`and ${group.nodes.length - 100} more`),
    ];
  },
  async placement(namespace, name) {
    const found = await get(path("placements", namespace || "-", name)).catch((error) => { if (error.status === 422) return { problem: error.message }; throw error; });
    if (found.problem) return [reasons([found.problem, "correct the binding, or the policy it comes from; until then it is left alone"])];
    const row = found.placement;
    const placed = row.shares.map((share) => `${share.replicas} in ${share.cluster}${share.promised ? `, ${share.promised} of them not landed` : ""}`).join("; ");
    return [
      html`<p class="row"><${Badge} kind=${KINDS[row.state]}>${row.state}</${Badge}><span class="soft">${row.scheduler}</span></p>`,
      part("What was decided then", reasons([[row.reason, row.message].filter(Boolean).join(": ") || `${row.scheduler} has written nothing yet`, placed ? `of ${plural(row.replicas, "replica")}: ${placed}` : `none of ${plural(row.replicas, "replica")} has a place`, row.since ? `${ago(row.since)}, as ${row.strategy || "its policy says"}` : "it is not known when"])),
      part("What would be decided now", reasons([found.verdict, `${found.due ? "it would be scheduled now" : "it would not be scheduled now"}: ${found.why}`])),
      part("Step by step, as of now", html`<ol class="steps">${found.steps.map((step) => html`<li class="step"><h3>${step.title}</h3><div class="lines">${step.lines.join("\n")}</div></li>`)}</ol>`),
      html`<p class="soft small">${found.askedEstimators ? "Free capacity comes from the estimators." : "Free capacity comes from the clusters' summaries, without nodes that could be launched. Start the dashboard with --enable-scheduler-estimator to ask the estimators."}</p>`,
    ];
  },
  async promise(cluster, namespace, name) {
    const { items } = await get("promises");
    const found = items.find((each) => each.cluster === cluster && each.namespace === namespace && each.name === name);
    if (!found) return [reasons(["it has ended: its pods were seen on nodes, the member reported them ready, or its time was over"])];
    return [reasons(found.why), part("What it holds", pairs(Object.entries(found.requests).map(([resource, units]) => [resourceName(resource), amount(resource, units)])))];
  },
  async "scale-up"(cluster, name) {
    const { items } = await get("scale-ups");
    const found = items.find((each) => each.cluster === cluster && each.name === name);
    if (!found) return gone(`scale-up ${name}`);
    return [
      reasons(found.why),
      found.waitingPods.length > 0 && part("Who waits", html`<p class="break">${found.waitingPods.join(", ") + (found.waiting > found.waitingPods.length ? ` and ${count(found.waiting - found.waitingPods.length)} more` : "")}</p>`),
      found.tried.length > 0 && part("What was tried", reasons(found.tried.map((tried) => `${tried.candidate}: ${tried.result}, ${ago(tried.at)}, ${plural(tried.times, "time")}; tried again: ${tried.again}`))),
      ...found.units.map((unit) => part(`Node ${unit.index + 1}`, reasons([`it ${unit.ended ? `ended: ${unit.ended}` : `is at: ${unit.steps.findLast((step) => step.state !== "waiting")?.name ?? "the beginning"}`}`, ...unit.steps.filter((step) => step.detail).map((step) => `${step.name}: ${step.detail}`)]))),
    ];
  },
  async event(cluster, object, reason) {
    const { items } = await get(address("events", { cluster, object }));
    const [first] = items.filter((each) => each.reason === reason);
    const [kind, where] = [object.split(" ")[0], object.split(" ").slice(1).join(" ")];
    const now = await objectNow(kind, cluster, where);
    return [
      first ? reasons([first.message || "it has no message", `${first.source || "somebody"} said so ${plural(first.count, "time")}, last ${ago(first.at)} (${clock(first.at)})`]) : reasons(["the event itself was forgotten since; what is known of its object follows"]),
      part(`${object} now`, now),
      items.length > 1 && part("What else was said of it", reasons(items.filter((each) => each !== first).slice(0, 20).map((each) => `${clock(each.at)} ${each.reason}: ${each.message}`))),
    ];
  },
  async fact(name) {
    const { items } = await get(address("clusters", { sort: FACTS[name]?.[0] ?? "name", limit: 500 }));
    const lines = items.map((row) => [row.name, FACTS[name]?.[1](row)]).filter(([, value]) => value);
    return [lines.length ? pairs(lines) : reasons(["no cluster has any"])];
  },
};

const cpuOf = (cpu) => cpu?.allocatable && `${percent(cpu.requested / cpu.allocatable)}: ${amount("cpu", cpu.requested)} of ${amount("cpu", cpu.allocatable)}`;
const FACTS = {
  clusters: ["name", (row) => row.notReady || (row.isControlPlane ? "control plane" : row.watched ? "watched" : "known through Karmada only")],
  nodes: ["-nodes", (row) => row.nodes && plural(row.nodes, "node")],
  pods: ["-pods", (row) => row.pods && `${plural(row.pods, "pod")}, ${count(row.pending)} waiting`],
  cpu: ["-cpu", (row) => cpuOf(row.amounts.cpu)],
  promised: ["-promised", (row) => row.promisedReplicas && `${plural(row.promisedReplicas, "replica")} placed and not known to have landed`],
  price: ["-price", (row) => row.nodes && `${price(row)} for ${plural(row.nodes, "node")}${row.unpriced ? `, ${count(row.unpriced)} without a known price` : ""}`],
};

function podParts(pod) {
  return [
    html`<p class="row"><${Badge} kind=${pod.node ? "good" : "warn"}>${pod.verdict}</${Badge}><span class="soft">${[pod.cluster, pod.waitsSince ? `since ${lasting(Date.now() / 1000 - pod.waitsSince)}` : ""].filter(Boolean).join(" · ")}</span></p>`,
    reasons(pod.why),
    pod.node && html`<p><${Link} of=${["node", pod.cluster, pod.node]}>Node ${pod.node}</${Link}></p>`,
    pod.said.length > 0 && part("What others say", reasons(pod.said)),
    pod.obstacles.length > 0 && part(`Nodes that exist: ${count(pod.openNodes)} of ${count(pod.nodes)} take it`, html`<${Table} caption="What is in the way" columns=${[{ name: "Nodes", number: true, cell: (row) => count(row.nodes) }, { name: "Why not", cell: (row) => row.detail }, { name: "What would have to change", cell: (row) => row.remedy || "–" }]} items=${pod.obstacles} itemKey=${(row) => row.detail} />`),
    pod.offers.length > 0 && part("New nodes", html`<${Table} caption="What could be launched" columns=${[{ name: "Pool", cell: (row) => row.pool }, { name: "Fits", cell: (row) => row.outlook }, { name: "Would launch", cell: (row) => row.instanceTypes.slice(0, 3).join(", ") || "–" }, { name: "Per hour", number: true, cell: (row) => (row.pricePerHour === null ? "–" : money(row.pricePerHour)) }, { name: "In the way", cell: (row) => row.reasons.join("; ") || "–" }]} items=${pod.offers} itemKey=${(row) => row.pool} />`),
    pod.coming.length > 0 && part("On their way", reasons(pod.coming.map((row) => `${row.claim} (${row.pool}): ${row.stage}; ${row.takesPod ? "takes it" : "does not take it"}`))),
    pod.volumes.length > 0 && part("Volumes", reasons(pod.volumes)),
    pod.others.length > 0 && part("Besides", reasons(pod.others)),
  ];
}

// What the object of an event is at present, where the dashboard knows such objects.
async function objectNow(kind, cluster, where) {
  try {
    if (kind === "Pod") {
      const [namespace, name] = where.split("/");
      const { items: [pod] } = await get(address("pods", { cluster, namespace, name }));
      if (pod) return podParts(pod);
    } else if (kind === "Node") {
      const found = await get(path("clusters", cluster, "nodes", where));
      return [html`<p class="row"><${Badge}>${found.verdict}</${Badge}><${Link} of=${["node", cluster, where]}>${where}</${Link}></p>`, reasons(found.why)];
    } else if (kind === "NodePool") {
      const { cluster: row } = await get(path("clusters", cluster));
      const pool = row.pools.find((each) => each.name === where);
      if (pool) return [reasons(pool.why.length ? pool.why : ["it launches what pods need"])];
    } else if (kind.endsWith("ResourceBinding")) {
      const [name, namespace = ""] = where.split("/").reverse();
      const found = await get(path("placements", namespace || "-", name));
      return [html`<p class="row"><${Badge} kind=${KINDS[found.placement.state]}>${found.placement.state}</${Badge}><${Link} of=${["placement", namespace || "-", name]}>${where}</${Link}></p>`, reasons([found.verdict, found.why])];
    }
  } catch (error) {
    if (error.status !== 404) throw error;
    return reasons([`${kind} ${where} is gone`]);
  }
  return reasons([`a ${kind || "thing"} is not watched by the dashboard: kubectl describe has what it says of itself`]);
}

const HEADINGS = { cluster: "Cluster", pool: "Pool", node: "Node", pod: "Pod", gpu: "Device", move: "Move", made: "Move", held: "Nodes that stay:", placement: "Placement", promise: "Promise to", "scale-up": "Scale-up", event: "Event:", fact: "Where it comes from:" };
const headingOf = (kind, names) => `${HEADINGS[kind] ?? kind} ${kind === "held" ? names[1] : names.filter((name) => name && name !== "-").join(kind === "event" ? " · " : " / ")}`;

// The content of the dialog; it follows the address, and the address follows it when it is closed.
export function WhyContent({ locked }) {
  const { asked } = useAddress();
  const [shown, setShown] = useState(null);
  const why = asked.why ?? "";
  const latest = useRef("");
  useEffect(() => {
    latest.current = why;
    if (locked) return;
    if (!why) { if (dialog.open) dialog.close(); return; }
    const [kind, ...names] = readWhy(why);
    setShown({ why, heading: headingOf(kind, names), content: null });
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
    const answer = ANSWERS[kind] ? ANSWERS[kind](...names) : Promise.resolve([reasons([`there is no answer of the kind ${kind}`])]);
    answer.then((content) => content, (error) => html`<p class="badge bad">${error.status === 404 ? "It is not there any more: " : ""}${error.message}</p>`)
      .then((content) => { if (latest.current === why) setShown({ why, heading: headingOf(kind, names), content }); });
  }, [why, locked]);
  useEffect(() => {
    // Something else may have been asked for before this is told.
    const closed = () => { if (!locked && !dialog.open && (read().asked.why ?? "") === latest.current) change({ why: "" }, { replace: true }); };
    const beside = (event) => { if (event.target === dialog) dialog.close(); };
    dialog.addEventListener("close", closed);
    dialog.addEventListener("click", beside);
    return () => { dialog.removeEventListener("close", closed); dialog.removeEventListener("click", beside); };
  }, [locked]);
  if (locked) return null;
  return html`<header><h2 id="why-title">${shown?.heading ?? ""}</h2><button id="why-close" type="button" class="quiet" aria-label="Close" onClick=${() => dialog.close()}>✕</button></header>
    <div id="why-body">${shown?.content ?? html`<p class="soft">Asking…</p>`}</div>`;
}
