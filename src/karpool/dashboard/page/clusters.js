// Clusters: a table that is searched and sorted, and below it the map, of which only open clusters are drawn.

import { change, href, read, useAddress, whyOf } from "./address.js";
import { address, path } from "./api.js";
import { amount, count, plural, price, resourceName } from "./format.js";
import { Badge, Bar, Choose, Find, Heading, roving, Share, Why } from "./parts.js";
import { useAnswer, useShown } from "./store.js";
import { html, useEffect, useState } from "./vendor/preact-htm.js";
import { firstPage, VirtualTable } from "./virtual-table.js";

const AREAS = ["fleet", "promises"];
const OPEN_MAX = 6; // clusters that are open without being asked for; of more, people open what they want
const CELLS_MAX = 3000; // nodes of one cluster that are drawn one by one

const share = (row, resource) => (row.amounts[resource]?.allocatable ? row.amounts[resource].requested / row.amounts[resource].allocatable : null);

const COLUMNS = [
  { name: "Cluster", sort: "name", share: 3, cell: (row) => html`${row.nodes ? html`<a href=${href("fleet", { ...read().asked, open: row.name })} title=${`${row.name} on the map`}><b>${row.name}</b></a>` : html`<b>${row.name}</b>`} ${badges(row)}` },
  { name: "Region", sort: "region", cell: (row) => row.region || "–" },
  { name: "Nodes", sort: "nodes", number: true, cell: (row) => (row.watched ? html`<a href=${href("nodes", { cluster: row.name })}>${count(row.nodes)}</a>` : "–") },
  { name: "Pods", sort: "pods", number: true, cell: (row) => count(row.pods) },
  { name: "Waiting", sort: "waiting", number: true, cell: (row) => (row.pending ? html`<a href=${href("waiting", { cluster: row.name })}>${count(row.pending)}</a>` : "0") },
  { name: "CPU", sort: "cpu", number: true, share: 1.6, cell: (row) => html`<${Share} share=${share(row, "cpu")} about="CPU requested" />` },
  { name: "Memory", sort: "memory", number: true, share: 1.6, cell: (row) => html`<${Share} share=${share(row, "memory")} about="memory requested" />` },
  { name: "Per hour", sort: "price", number: true, share: 1.6, cell: (row) => (row.nodes ? price(row).replace(" per hour", "") : "–") },
  { name: "Why", cell: (row) => html`<${Why} about=${`cluster ${row.name}`} of=${["cluster", row.name]} />` },
];

export function View() {
  const { asked } = useAddress();
  const [typed, setTyped] = useState(null);
  const words = (typed ?? asked.q ?? "").trim().toLowerCase();
  const { data } = useAnswer(asked.open ? address("clusters", { sort: asked.sort, limit: 500 }) : firstPage("clusters", { sort: asked.sort }), AREAS);
  const [drawn, setDrawn] = useState([]);
  const resource = asked.resource ?? "cpu";
  const names = Object.keys(data?.amounts ?? { cpu: 0 });
  const few = data && data.total <= data.items.length && data.items.filter((each) => each.watched && each.nodes).length <= OPEN_MAX;
  // Of many clusters only those are on the map that somebody opened; the table has them all.
  const shown = (data?.items ?? []).filter((row) => few || asked.open?.split(",").includes(row.name));
  const isOpen = (row) => row.nodes > 0 && (asked.open ? asked.open.split(",").includes(row.name) : few);
  useShown("fleet", data && shown.filter(isOpen).every((row) => drawn.includes(row.name)));
  const onDrawn = (name) => setDrawn((before) => [...before, name]);
  return html`<${Heading} title="Clusters" lead="Each bar on the map is a node, filled by the requests of its pods. Hatched: cordoned; faded: being removed; red: not ready. Select a node with the mouse, or with Tab and the arrow keys, to see its pods and why it stays or is removed.">
      <${Choose} id="resource" name="resource" label="Bars show" first="cpu" options=${names.map((name) => [name, resourceName(name)])} />
      <${Find} id="find" label="Find" placeholder="cluster, pool, node, type or zone" onType=${setTyped} /></${Heading}>
    ${data?.total !== 1 && html`<${VirtualTable} caption="Clusters" path="clusters" asked=${{ q: asked.q, sort: asked.sort }} areas=${AREAS} columns=${COLUMNS} itemKey=${(row) => row.name} none="No cluster is known." />`}
    ${shown.map((row) => html`<${Cluster} key=${row.name} row=${row} resource=${resource} words=${words} opened=${few} open=${isOpen(row)} onDrawn=${onDrawn} />`)}`;
}

function badges(row) {
  return [
    row.isControlPlane && html`<${Badge} kind="accent">control plane</${Badge}>`,
    row.ready === false && html`<${Badge} kind="bad">not ready</${Badge}>`,
    row.notReady && html`<${Badge} kind="bad">still reading</${Badge}>`,
    row.heardSecondsAgo !== null && html`<${Badge} kind="bad">silent for ${row.heardSecondsAgo} s</${Badge}>`,
    row.promisedReplicas > 0 && html`<${Badge} kind="warn">${count(row.promisedReplicas)} promised</${Badge}>`,
    row.problems.length > 0 && html`<${Badge} kind="warn">${plural(row.problems.length + row.problemsLeftOut, "object")} left out</${Badge}>`,
  ].filter(Boolean);
}

// Folded it is a line; open it has its pools and nodes. What is open is in the address.
function Cluster({ row, resource, words, opened, open, onDrawn }) {
  const chosen = useAddress().asked.open?.split(",");
  const id = `cluster-${row.name}`;
  const toggle = () => {
    const before = chosen ?? [];
    change({ open: (open ? before.filter((name) => name !== row.name) : [...before, row.name]).join(",") || (opened ? "-" : "") });
  };
  const empty = row.isControlPlane && !row.nodes;
  return html`<section class=${`card cluster ${open ? "" : "folded"}`} aria-labelledby=${id}>
    <div class="head"><div class="row"><h2 id=${id} class="break">${row.nodes ? html`<button type="button" class="fold" aria-expanded=${String(open)} onClick=${toggle}>${row.name}</button>` : row.name}</h2><span class="row">${row.region && html`<${Badge}>${row.region}</${Badge}>`}${badges(row)}</span></div>
      <${Why} about=${`cluster ${row.name}`} of=${["cluster", row.name]} /></div>
    <p class="soft small">${row.watched ? `${plural(row.nodes, "node")} · ${plural(row.pods, "pod")}${row.pending ? ` · ${count(row.pending)} waiting` : ""}${row.nodes ? ` · ${price(row)}` : ""}` : "known through Karmada's summary only"}</p>
    ${row.amounts.cpu && !empty && (open || !row.nodes) && html`<${Bar} resource=${resource} given=${row.amounts[resource]} />`}
    ${open && html`<${Pools} row=${row} resource=${resource} words=${words} onDrawn=${onDrawn} />`}</section>`;
}

function Pools({ row, resource, words, onDrawn }) {
  const { data, error } = useAnswer(path("clusters", row.name), AREAS);
  const drawn = row.nodes <= CELLS_MAX;
  const nodes = useAnswer(drawn ? `${path("clusters", row.name, "nodes")}` : null, ["fleet"]).data;
  const ready = error || (data && (nodes || !drawn));
  useEffect(() => { if (ready) onDrawn(row.name); }, [Boolean(ready)]);
  const byPool = new Map();
  for (const node of nodes?.items ?? []) byPool.set(node.pool, [...(byPool.get(node.pool) ?? []), node]);
  return html`${error && !data && html`<p class="badge bad">${error.message}</p>`}${!drawn && html`<p class="soft small">Too many nodes to be drawn one by one: <a href=${href("nodes", { cluster: row.name })}>see them in the table</a>.</p>`}
    <div class="pools">${(data?.cluster.pools ?? []).map((pool) => html`<${Pool} key=${pool.name} cluster=${row.name} pool=${pool} nodes=${byPool.get(pool.name) ?? []} resource=${resource} words=${words} />`)}</div>`;
}

function Pool({ cluster, pool, nodes, resource, words }) {
  const name = pool.name || "no pool";
  const facts = [plural(pool.nodes, "node"), pool.coming ? `${pool.coming} coming` : "", pool.nodes ? price(pool) : "", pool.policy].filter(Boolean).join(" · ");
  return html`<div class="pool"><div class="head"><div class="row"><h3 class="break">${name}</h3>${!pool.ready && pool.name && html`<${Badge} kind="warn">launches nothing</${Badge}>`}<span class="soft small">${facts}</span></div>
      <${Why} about=${`pool ${name} of ${cluster}`} of=${["pool", cluster, pool.name]} /></div>
    <${Bar} resource=${resource} given=${pool.amounts[resource]} />
    ${nodes.length > 0 && html`<div class=${`cells ${nodes.length > 200 ? "many" : ""}`} role="toolbar" aria-label=${`Nodes of ${name} in ${cluster}`} ref=${roving}>
      ${nodes.map((node, index) => html`<${Cell} key=${node.name} cluster=${cluster} node=${node} resource=${resource} first=${index === 0} other=${!matches(node, cluster, words)} />`)}</div>`}</div>`;
}

const matches = (node, cluster, words) => !words || words.split(/\s+/).every((word) => [node.name, node.type, node.zone, node.pool, cluster].some((text) => text.toLowerCase().includes(word)));

function Cell({ cluster, node, resource, first, other }) {
  const whole = node.allocatable[resource] ?? 0;
  const used = node.requested[resource] ?? 0;
  const state = node.ready === false ? "not ready" : node.leaving ? "leaving" : node.cordoned ? "cordoned" : "";
  const text = `${node.name}, ${node.type || "unknown type"}${node.zone ? `, ${node.zone}` : ""}: ${amount(resource, used)} of ${amount(resource, whole)} requested, ${plural(node.pods, "pod")}${node.pricePerHour ? `, ${price(node)}` : ", price unknown"}${state ? `, ${state}` : ""}`;
  return html`<button type="button" class=${`cell ${other ? "other" : ""}`} tabindex=${first ? 0 : -1} data-state=${state} aria-label=${text} title=${text} style=${{ "--share": (whole ? Math.min(1, used / whole) : 0).toFixed(3) }} onClick=${() => change({ why: whyOf("node", cluster, node.name) })}></button>`;
}
