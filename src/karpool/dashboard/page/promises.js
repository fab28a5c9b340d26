// The ledger of promises: replicas that were placed and are not known to have landed.

import { amount, count, lasting, now, plural } from "./format.js";
import { Empty, Fact, Heading, Table, useMore, Why } from "./parts.js";
import { useAnswer, useShown, useTick } from "./store.js";
import { html } from "./vendor/preact-htm.js";

const columns = (data) => {
  const passed = Math.max(0, now() - data.at);
  const left = (row) => Math.max(0, row.expiresInSeconds - passed);
  return [
    { name: "Cluster", cell: (row) => row.cluster },
    { name: "Binding", cell: (row) => (row.namespace ? `${row.namespace}/${row.name}` : row.name) },
    { name: "In flight", number: true, cell: (row) => count(row.replicas) },
    { name: "Of", number: true, cell: (row) => count(row.desired) },
    { name: "Holds", cell: (row) => Object.entries(row.requests).map(([name, units]) => amount(name, units)).join(", ") || "–" },
    { name: "Age", number: true, cell: (row) => lasting(row.ageSeconds + passed) },
    { name: "Ends in", cell: (row) => html`<span class="ends"><progress max=${data.lifetimeSeconds} value=${left(row)} aria-label=${`time left of the promise to ${row.name} in ${row.cluster}`}></progress><span>${lasting(left(row))}</span></span>` },
    { name: "Why", cell: (row) => html`<${Why} about=${`promise to ${row.name} in ${row.cluster}`} of=${["promise", row.cluster, row.namespace, row.name]} />` },
  ];
};

export function View() {
  useTick();
  const { data } = useAnswer("promises", ["promises"]);
  const [limit, more] = useMore(100);
  useShown("promises", data);
  const sums = new Map();
  for (const row of data?.items ?? []) sums.set(row.cluster, (sums.get(row.cluster) ?? 0) + row.replicas);
  return html`<${Heading} title="Promises" lead="Capacity reserved for replicas that are placed but do not run on a node yet. A promise ends when the pods are on nodes, or when it expires." />
    ${data && !data.items.length && html`<${Empty}>Nothing is promised: every replica that was placed is known to have landed.</${Empty}>`}
    ${data?.items.length > 0 && html`<div class="glance inset">${[...sums].map(([name, replicas]) => html`<${Fact} value=${count(replicas)} name=${`in flight to ${name}`} />`)}</div>
    <div class="card"><${Table} caption="Promises in flight" columns=${columns(data)} items=${data.items.slice(0, limit)} itemKey=${(row) => `${row.cluster}/${row.kind}/${row.namespace}/${row.name}`} />${more(data.items.length)}
      ${data.leftOut > 0 && html`<p class="soft small">${plural(data.leftOut, "promise")} more are not listed</p>`}</div>`}`;
}
