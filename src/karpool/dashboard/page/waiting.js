// Pods without a node, and why.

import { change, useAddress } from "./address.js";
import { ClusterChoice } from "./cluster-choice.js";
import { ago, amount, count } from "./format.js";
import { Find, Heading, Why } from "./parts.js";
import { useShown } from "./store.js";
import { html, useState } from "./vendor/preact-htm.js";
import { VirtualTable } from "./virtual-table.js";

const COLUMNS = [
  { name: "Pod", sort: "name", share: 1.8, cell: (pod) => html`<b title=${`${pod.namespace}/${pod.name}`}>${pod.namespace}/${pod.name}</b>` },
  { name: "Of", sort: "workload", share: 1.3, cell: (pod) => pod.workload || "–" },
  { name: "Cluster", sort: "cluster", cell: (pod) => pod.cluster },
  { name: "Asks for", sort: "cpu", share: 1.4, cell: (pod) => Object.entries(pod.requests).map(([name, units]) => amount(name, units)).join(", ") || "nothing" },
  { name: "Main reason", sort: "reason", share: 2.5, cell: (pod) => html`<span title=${pod.said}>${pod.reason}</span>` },
  { name: "Waits", sort: "since", number: true, share: 1.9, cell: (pod) => ago(pod.since) },
  { name: "Why", cell: (pod) => html`<${Why} about=${`pod ${pod.namespace}/${pod.name}`} of=${["pod", pod.cluster, pod.namespace, pod.name]} />` },
];

export function View() {
  const { asked } = useAddress();
  const [data, setData] = useState(null);
  useShown("waiting", data);
  return html`<${Heading} title="Waiting pods" lead="Pending pods. The reason is that of most nodes; Why? shows the reason of each group of nodes, what could be launched, and starting nodes.">
      <${ClusterChoice} /><${Find} id="waiting-text" placeholder="pod, workload or reason" /></${Heading}>
    ${data?.reasons.length > 1 && html`<ul class="chips" aria-label="Reasons">${data.reasons.slice(0, 8).map((each) => html`<li><button type="button" onClick=${() => change({ q: each.reason.slice(0, 100) })}>${count(each.pods)} × ${each.reason}</button></li>`)}</ul>`}
    <${VirtualTable} caption="Waiting pods" path="waiting" asked=${{ q: asked.q, sort: asked.sort, cluster: asked.cluster }} areas=${["fleet"]} columns=${COLUMNS} itemKey=${(pod) => `${pod.cluster}/${pod.namespace}/${pod.name}`} none="No pending pods." onAnswer=${setData} />`;
}
