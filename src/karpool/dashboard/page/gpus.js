// Accelerators: what they are, who holds how much of them, what is free.

import { useAddress } from "./address.js";
import { ClusterChoice } from "./cluster-choice.js";
import { count, mebi } from "./format.js";
import { Badge, Fact, Find, Heading, Why } from "./parts.js";
import { useShown } from "./store.js";
import { html, useState } from "./vendor/preact-htm.js";
import { VirtualTable } from "./virtual-table.js";

export const freeOf = (device) => {
  if (device.unstable) return "changing";
  if (device.freeUnits === null || device.holders.some((holder) => holder.memoryBytes)) return device.freeMemoryBytes === null ? "not told" : mebi(device.freeMemoryBytes);
  if (device.shareable) return `${count(device.freeUnits)} shares`;
  return device.freeUnits ? "yes" : "no";
};
export const holderText = (holder) => `${holder.pod}${holder.memoryBytes ? ` (${mebi(holder.memoryBytes)})` : holder.units > 1 ? ` (${holder.units} units)` : ""}`;

const COLUMNS = [
  { name: "Device", sort: "device", share: 1.3, cell: (device) => html`<b title=${device.device}>${device.device}</b>` },
  { name: "Node", sort: "node", share: 1.3, cell: (device) => device.node },
  { name: "Cluster", sort: "cluster", cell: (device) => device.cluster },
  { name: "Model", sort: "model", share: 1.5, cell: (device) => html`${device.model || "unknown"} ${device.profile && html`<${Badge}>${device.profile}</${Badge}>`}` },
  { name: "Memory", sort: "memory", number: true, cell: (device) => (device.memoryBytes === null ? "not told" : mebi(device.memoryBytes)) },
  { name: "Free", sort: "free", number: true, cell: freeOf },
  { name: "Held by", sort: "holders", share: 1.8, cell: (device) => device.holders.slice(0, 3).map(holderText).join(", ") + (device.holders.length > 3 ? ` and ${device.holders.length - 3 + device.holdersLeftOut} more` : "") || html`<span class="soft">nobody</span>` },
  { name: "Why", cell: (device) => html`<${Why} about=${`device ${device.device}`} of=${["gpu", device.cluster, device.node, device.device]} />` },
];

export function View() {
  const { asked } = useAddress();
  const [data, setData] = useState(null);
  useShown("gpus", data);
  return html`<${Heading} title="GPUs"><${ClusterChoice} /><${Find} id="gpu-text" placeholder="device, node, model or pod" /></${Heading}>
    ${data?.models.length > 0 && html`<div class="glance inset">${data.models.slice(0, 6).map((each) => html`<${Fact} value=${`${count(each.held)} of ${count(each.devices)}`} name=${`${each.model} in use`} />`)}</div>`}
    ${data?.problems.length > 0 && html`<p class="badge warn">${data.problems.join("; ")}</p>`}
    <${VirtualTable} caption="Devices" path="gpus" asked=${{ q: asked.q, sort: asked.sort, cluster: asked.cluster }} areas=${["fleet"]} columns=${COLUMNS} itemKey=${(device) => `${device.cluster}/${device.node}/${device.device}`} none="No node here has an accelerator." onAnswer=${setData} />`;
}
