// Nodes of the whole fleet, in one table.

import { href, useAddress } from "./address.js";
import { amount, count, money } from "./format.js";
import { Badge, Find, Heading, Share, Why } from "./parts.js";
import { useShown } from "./store.js";
import { html, useState } from "./vendor/preact-htm.js";
import { VirtualTable } from "./virtual-table.js";
import { ClusterChoice } from "./cluster-choice.js";

const share = (node, resource) => (node.allocatable[resource] ? (node.requested[resource] ?? 0) / node.allocatable[resource] : null);
const devices = (node) => Object.entries(node.allocatable).filter(([name]) => name.includes("/")).map(([name, units]) => amount(name, units)).join(", ");

const COLUMNS = [
  { name: "Node", sort: "name", share: 2.1, cell: ({ node }) => html`<b title=${node.name}>${node.name}</b> ${state(node)}` },
  { name: "Cluster", sort: "cluster", share: 0.95, cell: ({ cluster }) => html`<a href=${href("fleet", { open: cluster })}>${cluster}</a>` },
  { name: "Pool", sort: "pool", share: 0.95, cell: ({ node }) => node.pool || "–" },
  { name: "Type", sort: "type", share: 1.6, cell: ({ node }) => [node.type || "unknown", node.capacityType].filter(Boolean).join(" · ") },
  { name: "Zone", sort: "zone", share: 1.1, cell: ({ node }) => node.zone || "–" },
  { name: "CPU", sort: "cpu", number: true, share: 1.6, cell: ({ node }) => html`<${Share} share=${share(node, "cpu")} about="CPU requested" />` },
  { name: "Memory", sort: "memory", number: true, share: 1.6, cell: ({ node }) => html`<${Share} share=${share(node, "memory")} about="memory requested" />` },
  { name: "Devices", share: 0.8, cell: ({ node }) => devices(node) || "–" },
  { name: "Pods", sort: "pods", number: true, cell: ({ node }) => count(node.pods) },
  { name: "Per hour", sort: "price", number: true, cell: ({ node }) => (node.pricePerHour === undefined ? "unknown" : money(node.pricePerHour)) },
  { name: "Why", cell: ({ cluster, node }) => html`<${Why} about=${`node ${node.name}`} of=${["node", cluster, node.name]} />` },
];

const state = (node) => (node.ready === false ? html`<${Badge} kind="bad">not ready</${Badge}>` : node.leaving ? html`<${Badge} kind="warn">leaving</${Badge}>` : node.cordoned ? html`<${Badge}>cordoned</${Badge}>` : "");

export function View() {
  const { asked } = useAddress();
  const [data, setData] = useState(null);
  useShown("nodes", data);
  return html`<${Heading} title="Nodes"><${ClusterChoice} /><${Find} id="node-text" placeholder="name, pool, type, zone or cluster" /></${Heading}>
    <${VirtualTable} caption="Nodes" path="nodes" asked=${{ q: asked.q, sort: asked.sort, cluster: asked.cluster, pool: asked.pool }} areas=${["fleet"]} columns=${COLUMNS} itemKey=${(each) => `${each.cluster}/${each.node.name}`} none="No node is known." onAnswer=${setData} />`;
}
