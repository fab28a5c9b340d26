// The fleet map: clusters, their pools, and every node as a small bar that says why it stays or goes.

import { get } from "./api.js";
import { bar } from "./bars.js";
import { h, keep, mark, roving, rows, say, table } from "./dom.js";
import { amount, count, percent, plural, price, resourceName } from "./format.js";
import { explain, pairs, part, reasons, whyButton } from "./why.js";

export const title = "Fleet";
export const areas = ["fleet"];
let resource = "cpu";
let wanted = "";
let latest = null;
let parts = null;

export async function load() {
  const fleet = await get("fleet");
  const watched = fleet.clusters.filter((each) => each.watched && each.nodes);
  const nodes = await Promise.all(watched.map((each) => get(`clusters/${encodeURIComponent(each.name)}/nodes`)));
  return { fleet, nodes: new Map(nodes.map((each) => [each.cluster, each])) };
}

export function mount(root) {
  const choose = h("select", { id: "resource", onchange: (event) => { resource = event.target.value; show(latest); } });
  const find = h("input", { id: "find", type: "search", placeholder: "name, type, zone or pool", oninput: (event) => { wanted = event.target.value.trim().toLowerCase(); show(latest); } });
  const found = h("span", { class: "soft small", role: "status" });
  const list = h("div");
  root.append(
    h("div", { class: "heading" }, h("h1", {}, "Fleet map"),
      h("label", { class: "field", for: "resource" }, "Bars show", choose),
      h("label", { class: "field", for: "find" }, "Find nodes", find), found),
    h("p", { class: "lead" }, "Every small bar is a node, filled by what its pods ask for; hatched it is cordoned, faded it is leaving, red it is not ready. Choose one, with the mouse or with Tab and the arrow keys, to see what is on it and why it stays or goes."),
    list);
  parts = { choose, found, list };
}

export function show(data) {
  latest = data;
  if (!data) return;
  offer(Object.keys(data.fleet.amounts));
  keep(parts.list, data.fleet.clusters, (each) => each.name, makeCluster, (element, each) => element.show(each, data.nodes.get(each.name)));
  const all = [...data.nodes.values()].flatMap((each) => each.items);
  say(parts.found, wanted ? `${plural(all.filter(matches).length, "node")} found` : "");
  mark(parts.found, "hidden", !wanted);
}

function offer(names) {
  keep(parts.choose, names, (name) => name, (name) => h("option", { value: name }, resourceName(name)), () => {});
  if (!names.includes(resource)) resource = names[0];
  parts.choose.value = resource;
}

function makeCluster(first) {
  const id = `cluster-${first.name}`;
  const badges = h("span", { class: "row" });
  const facts = h("p", { class: "soft small" });
  const whole = bar();
  const pools = h("div", { class: "pools" });
  let cluster = first;
  const why = whyButton(`cluster ${first.name}`, () => clusterWhy(cluster));
  const element = h("section", { class: "card cluster", "aria-labelledby": id },
    h("div", { class: "head" }, h("div", { class: "row" }, h("h2", { id, class: "break" }, first.name), badges), why), facts, whole, pools);
  element.show = (each, nodes) => {
    cluster = each;
    badges.replaceChildren(...badgesOf(each));
    say(facts, each.watched
      ? `${plural(each.nodes, "node")} · ${plural(each.pods, "pod")}${each.nodes ? ` · ${price(each)}` : ""}`
      : "known through Karmada's summary only");
    whole.hidden = !each.amounts.cpu || (each.isControlPlane && !each.nodes);
    whole.show(resource, each.amounts[resource]);
    const byPool = Map.groupBy ? Map.groupBy(nodes?.items ?? [], (node) => node.pool) : grouped(nodes?.items ?? []);
    pools.hidden = !each.pools.length;
    keep(pools, each.pools, (pool) => pool.name, (pool) => makePool(each.name, pool), (shown, pool) => shown.show(pool, byPool.get(pool.name) ?? []));
  };
  return element;
}

function grouped(items) {
  const found = new Map();
  for (const each of items) found.set(each.pool, [...(found.get(each.pool) ?? []), each]);
  return found;
}

function badgesOf(each) {
  return [
    each.region && h("span", { class: "badge" }, each.region),
    each.isControlPlane && h("span", { class: "badge accent" }, "control plane"),
    each.ready === false && h("span", { class: "badge bad" }, "not ready"),
    each.notReady && h("span", { class: "badge bad" }, "still reading"),
    each.heardSecondsAgo !== null && h("span", { class: "badge bad" }, `silent for ${each.heardSecondsAgo} s`),
    each.promisedReplicas > 0 && h("span", { class: "badge warn" }, `${count(each.promisedReplicas)} promised`),
    each.pending > 0 && h("span", { class: "badge warn" }, `${plural(each.pending, "pod")} waiting`),
    each.problems.length > 0 && h("span", { class: "badge warn" }, `${plural(each.problems.length + each.problemsLeftOut, "object")} left out`),
  ].filter(Boolean);
}

function clusterWhy(each) {
  return [
    reasons(each.why),
    each.problems.length ? part("Left out, because it cannot be read", reasons(each.problems)) : "",
    each.problemsLeftOut ? h("p", { class: "soft" }, `and ${count(each.problemsLeftOut)} more`) : "",
    part("What costs what", h("p", { class: "soft" }, each.watched ? `${price(each)}: what ${plural(each.nodes - each.unpriced, "node")} add to the bill${each.unpriced ? `; ${plural(each.unpriced, "node")} without a known price count as nothing` : ""}.` : "Prices are known only of clusters that are watched.")),
  ].filter(Boolean);
}

function makePool(cluster, first) {
  const name = first.name || "no pool";
  const facts = h("span", { class: "soft small" });
  const closed = h("span", { class: "badge warn" }, "launches nothing");
  const whole = bar();
  const cells = h("div", { class: "cells", role: "toolbar", "aria-label": `Nodes of ${name} in ${cluster}` });
  roving(cells);
  let pool = first;
  const element = h("div", { class: "pool" },
    h("div", { class: "head" }, h("div", { class: "row" }, h("h3", { class: "break" }, name), closed, facts), whyButton(`pool ${name} of ${cluster}`, () => poolWhy(pool))),
    whole, cells);
  element.show = (each, nodes) => {
    pool = each;
    say(facts, [plural(each.nodes, "node"), each.coming ? `${each.coming} coming` : "", each.nodes ? price(each) : "", each.policy].filter(Boolean).join(" · "));
    closed.hidden = each.ready || !each.name;
    whole.show(resource, each.amounts[resource]);
    cells.hidden = !nodes.length;
    cells.classList.toggle("many", nodes.length > 200);
    keep(cells, nodes, (node) => node.name, (node) => makeCell(cluster, node), showCell);
    if (!cells.querySelector('[tabindex="0"]') && cells.firstChild) cells.firstChild.tabIndex = 0;
  };
  return element;
}

function poolWhy(pool) {
  return [
    reasons(pool.why),
    part("Amounts", pairs(Object.entries(pool.amounts).map(([name, each]) => [resourceName(name), `${amount(name, each.requested)} of ${amount(name, each.allocatable)} requested; ${each.potential === null ? "no limit on what could be launched" : `${amount(name, each.potential)} could be launched`}`]))),
  ];
}

const matches = (node) => !wanted || [node.name, node.type, node.zone, node.pool].some((each) => each.toLowerCase().includes(wanted));

function makeCell(cluster, node) {
  return h("button", { type: "button", class: "cell", tabindex: "-1", onclick: () => explain(`Node ${node.name}`, nodeWhy(cluster, node.name)) });
}

function showCell(cell, node) {
  const whole = node.allocatable[resource] ?? 0;
  const used = node.requested[resource] ?? 0;
  const share = whole ? Math.min(1, used / whole) : 0;
  const state = node.ready === false ? "not ready" : node.leaving ? "leaving" : node.cordoned ? "cordoned" : "";
  const text = `${node.name}, ${node.type || "unknown type"}${node.zone ? `, ${node.zone}` : ""}: ${amount(resource, used)} of ${amount(resource, whole)} requested, ${plural(node.pods, "pod")}${node.pricePerHour ? `, ${price(node)}` : ", price unknown"}${state ? `, ${state}` : ""}`;
  if (cell.text !== text) {
    cell.text = text;
    cell.style.setProperty("--share", share.toFixed(3));
    cell.dataset.state = state;
    cell.setAttribute("aria-label", text);
    cell.title = text;
  }
  cell.classList.toggle("other", !matches(node));
}

async function nodeWhy(cluster, name) {
  const found = await get(`clusters/${encodeURIComponent(cluster)}/nodes/${encodeURIComponent(name)}`);
  const { node } = found;
  const kind = { goes: "good", stays: "accent", "could go": "warn" }[found.verdict] ?? "";
  const pods = table("Pods on this node", [{ name: "Pod" }, { name: "CPU", number: true }, { name: "Memory", number: true }, { name: "Cost of moving", number: true }]);
  rows(pods, found.pods, (pod) => pod.name, (pod) => [pod.name, amount("cpu", pod.requested.cpu ?? 0), amount("memory", pod.requested.memory ?? 0), pod.cost.toFixed(2)]);
  const use = bar();
  use.show(resource, { allocatable: node.allocatable[resource] ?? 0, requested: node.requested[resource] ?? 0, promised: 0, potential: 0 });
  return [
    h("p", { class: "row" }, h("span", { class: `badge ${kind}` }, found.verdict), h("span", { class: "soft" }, [cluster, node.pool, node.type, node.zone, node.capacityType, node.pricePerHour ? price(node) : "price unknown"].filter(Boolean).join(" · "))),
    part(found.verdict === "goes" ? "Why it would go" : "Why it stays", reasons(found.why)),
    part("Use", use, pairs(Object.entries(node.allocatable).map(([each, units]) => [resourceName(each), `${amount(each, node.requested[each] ?? 0)} of ${amount(each, units)} (${percent(units ? (node.requested[each] ?? 0) / units : 0)})`]))),
    part(`Pods (${count(found.pods.length + found.podsLeftOut)})`, found.pods.length ? pods.whole : h("p", { class: "soft" }, "none")),
    part("What it says of itself", pairs([["NodeClaim", found.claim || "none"], ["Conditions", found.conditions.join(", ") || "none"], ["Taints", found.taints.join(", ") || "none"], ...Object.entries(found.labels)])),
  ];
}
