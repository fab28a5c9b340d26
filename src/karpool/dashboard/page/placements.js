// Placement flow: which workload has replicas in which cluster, and what the scheduler said.

import { useAddress } from "./address.js";
import { flow } from "./flow.js";
import { ago, count, plural } from "./format.js";
import { Badge, Empty, Find, Heading, Table, useMore, Why } from "./parts.js";
import { useAnswer, useShown, useWidth } from "./store.js";
import { html } from "./vendor/preact-htm.js";

export const KINDS = { placed: "good", failed: "bad", waiting: "warn", suspended: "", unreadable: "bad" };
export const nameOf = (row) => (row.namespace ? `${row.namespace}/${row.name}` : row.name);

const COLUMNS = [
  { name: "Workload", cell: (row) => html`<span class="workload"><b>${nameOf(row)}</b><br /><span class="soft small">${[row.template, row.strategy].filter(Boolean).join(" · ")}</span></span>` },
  { name: "State", cell: (row) => html`<${Badge} kind=${KINDS[row.state] ?? ""}>${row.state}</${Badge}>` },
  { name: "Replicas", number: true, cell: (row) => count(row.replicas) },
  { name: "Clusters", cell: (row) => (row.shares.length ? html`<span class="row">${row.shares.map(chip)}</span>` : html`<span class="soft">none</span>`) },
  { name: "Says the scheduler", cell: (row) => html`<span class="small"><b>${row.reason}</b> <span class="soft">${row.message}</span></span>` },
  { name: "Since", cell: (row) => html`<span class="line">${row.since ? ago(row.since) : "–"}</span>` },
  { name: "Why", cell: (row) => html`<${Why} about=${nameOf(row)} of=${["placement", row.namespace || "-", row.name]} />` },
];

function chip(share) {
  const ready = share.ready === null ? "" : `, ${share.ready} ready`;
  return html`<${Badge} kind=${share.promised ? "warn" : "accent"}>${`${share.cluster} ${share.replicas}${ready}${share.promised ? `, ${share.promised} on the way` : ""}`}</${Badge}>`;
}

export function View() {
  const { asked } = useAddress();
  const { data } = useAnswer("placements", ["placements", "promises"]);
  const [limit, more] = useMore(100);
  const [place, width] = useWidth(1180);
  useShown("placements", data);
  const words = (asked.q ?? "").toLowerCase();
  const items = (data?.items ?? []).filter((row) => !words || [nameOf(row), row.template, row.state, ...row.shares.map((share) => share.cluster)].some((text) => text.toLowerCase().includes(words)));
  return html`<${Heading} title="Placement flow"><${Find} id="placement-text" placeholder="workload, state or cluster" /></${Heading}>
    <figure class="card flow" ref=${place} hidden=${!items.length}>${width > 0 && items.length > 0 && flow(items, width)}</figure>
    ${data && !items.length && html`<${Empty}>${data.items.length ? "Nothing matches." : "No Karmada bindings are known. Connect to a Karmada control plane to see placements."}</${Empty}>`}
    ${items.length > 0 && html`<div class="card"><${Table} caption="Workloads and where their replicas are" columns=${COLUMNS} items=${items.slice(0, limit)} itemKey=${(row) => `${row.kind}/${row.namespace}/${row.name}`} />${more(items.length)}
      ${data.leftOut > 0 && html`<p class="soft small">${plural(data.leftOut, "binding")} more are not listed</p>`}</div>`}`;
}
