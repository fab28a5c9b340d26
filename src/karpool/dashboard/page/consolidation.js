// Moves: those that were made and what they saved, and beside them the plan of what could be next.

import { change, useAddress, whyOf } from "./address.js";
import { address } from "./api.js";
import { ClusterChoice } from "./cluster-choice.js";
import { ago, count, money, percent, plural } from "./format.js";
import { Badge, Empty, Fact, Find, Heading, Table, useMore, Why } from "./parts.js";
import { scatter } from "./scatter.js";
import { useAnswer, useShown, useWidth } from "./store.js";
import { html, useState } from "./vendor/preact-htm.js";
import { VirtualTable } from "./virtual-table.js";

const ALL_MAX = 6; // clusters that are planned without being chosen: each costs the server up to a second
const PHASES = { Done: "good", RolledBack: "bad", Rejected: "warn" };
const names = (row) => `${row.nodes.join(", ")}${row.nodesLeftOut ? ` and ${row.nodesLeftOut} more` : ""}`;
const dollars = (value) => (value === null ? "not known" : money(value));

const LEDGER = [
  { name: "Move", sort: "kind", share: 2, cell: (row) => html`<b>${row.kind}</b> <span title=${names(row)}>${names(row)}</span>` },
  { name: "Phase", sort: "phase", cell: (row) => html`<${Badge} kind=${PHASES[row.phase] ?? "accent"}>${row.phase}</${Badge}>` },
  { name: "Cluster", sort: "cluster", cell: (row) => row.cluster },
  { name: "Began", sort: "began", number: true, share: 1.9, cell: (row) => ago(row.began) },
  { name: "Predicted per hour", sort: "predicted", number: true, share: 1.9, cell: (row) => money(row.predictedSavingsPerHour) },
  { name: "Came true", sort: "realised", number: true, share: 1.3, cell: (row) => dollars(row.realisedSavingsPerHour) },
  { name: "Saved so far", number: true, share: 1.4, cell: (row) => dollars(row.savedDollars) },
  { name: "Pods", sort: "pods", number: true, cell: (row) => count(row.podsDisturbed) },
  { name: "Why", cell: (row) => html`<${Why} about=${`move ${row.name}`} of=${["made", row.cluster, row.name]} />` },
];

export function View() {
  const { asked } = useAddress();
  const [ledger, setLedger] = useState(null);
  const known = useAnswer("clusters?limit=500", ["fleet"]).data;
  const many = known && known.items.filter((row) => row.watched && row.nodes).length > ALL_MAX;
  const { data } = useAnswer(known && (!many || asked.cluster) ? address("consolidation", { cluster: asked.cluster }) : null, ["consolidation"]);
  useShown("consolidation", ledger && (data || (many && !asked.cluster)));
  return html`<${Heading} title="Moves and plan"><${ClusterChoice} /><${Find} id="move-text" placeholder="node, phase or kind" /></${Heading}>
    <h2 class="gap">Moves that were made</h2>
    ${ledger?.total > 0 && html`<div class="glance inset"><${Fact} value=${money(ledger.savedDollars)} name="saved so far" /><${Fact} value=${`${money(ledger.realisedSavingsPerHour)} of ${money(ledger.predictedSavingsPerHour)}`} name="per hour came true" /><${Fact} value=${`${count(ledger.done)} / ${count(ledger.rolledBack)}`} name="done and rolled back" /><${Fact} value=${count(ledger.underWay)} name="under way" /></div>`}
    ${ledger?.problems.length > 0 && html`<p class="badge warn">${ledger.problems.join("; ")}</p>`}
    <${VirtualTable} caption="Moves that were made" path="moves" asked=${{ q: asked.q, sort: asked.sort, cluster: asked.cluster }} areas=${["moves"]} columns=${LEDGER} itemKey=${(row) => `${row.cluster}/${row.name}`} none="No moves yet. karpool apply and the consolidator record their moves." onAnswer=${setLedger} />
    <h2 class="gap">What could be next</h2>
    <p class="lead">A plan for looking at: nothing is carried out from here. It is made anew while you look and the cluster changes.</p>
    ${many && !asked.cluster && html`<${Empty}>Choose a cluster: a plan is made of those that somebody looks at.</${Empty}>`}
    ${data && !data.boards.length && html`<${Empty}>${data.pending.length ? `Still reading ${data.pending.join(", ")}…` : "No cluster has nodes or pools to consolidate."}</${Empty}>`}
    ${(data?.boards ?? []).map((board) => html`<${Board} key=${board.cluster} board=${board} />`)}`;
}

function Board({ board }) {
  const [place, width] = useWidth(820);
  const [limit, more] = useMore(30);
  const id = `board-${board.cluster}`;
  const has = board.points.length > 0;
  const cut = [board.pointsLeftOut && `${plural(board.pointsLeftOut, "move")} more`, board.heldLeftOut && `${plural(board.heldLeftOut, "node")} more that stay`].filter(Boolean);
  const groups = byReason(board.held);
  const choose = (point) => change({ why: whyOf("move", board.cluster, point.id) });
  return html`<section class="card" aria-labelledby=${id}><div class="row"><h2 id=${id} class="break">${board.cluster}</h2><span class="soft small">${has ? `planned ${ago(board.madeAt)}` : `${plural(board.nodesBefore, "node")} · ${money(board.priceBefore)} per hour · nothing could go, planned ${ago(board.madeAt)}`}</span></div>
    ${board.stopped && html`<p class="badge bad">${board.stopped}</p>`}
    <div class=${`side ${has ? "" : "plain"}`}><figure class="picture" ref=${place} hidden=${!has}>${has && width > 0 && scatter(board, width, choose)}</figure>
      ${has && html`<div class="glance inset">${factsOf(board).map(([name, value]) => html`<${Fact} value=${value} name=${name} />`)}</div>`}</div>
    <p class="soft small break">${[...board.notes, ...(cut.length ? [`not listed: ${cut.join(", ")}`] : [])].join(" · ")}</p>
    ${has && html`<h3 class="gap">Moves</h3><${Table} caption=${`Moves of ${board.cluster}`} columns=${planColumns(board.cluster)} items=${board.points.slice(0, limit)} itemKey=${(point) => point.id} />${more(board.points.length)}`}
    ${groups.length > 0 && html`<h3 class="gap">Nodes that stay, by what holds them</h3><${Table} caption=${`Nodes of ${board.cluster} that stay`} columns=${heldColumns(board.cluster)} items=${groups.slice(0, 40)} itemKey=${(group) => group.reason} />`}
    ${board.pools.length > 0 && html`<h3 class="gap">Pools</h3><${Table} caption=${`Pools of ${board.cluster}`} columns=${poolColumns(board.cluster)} items=${board.pools} itemKey=${(pool) => pool.name} />`}</section>`;
}

function factsOf(board) {
  const saved = board.priceBefore - board.priceAfter;
  return [
    ["would be saved per hour", money(saved)],
    ...(board.listPriceBefore === null ? [] : [["by the list, before and after", `${money(board.listPriceBefore)} → ${money(board.listPriceAfter)}`]]),
    ["of the cost", percent(board.priceBefore ? saved / board.priceBefore : 0)],
    ["nodes, before and after", `${count(board.nodesBefore)} → ${count(board.nodesAfter)}`],
    ["pods disturbed", count(board.podsDisturbed)],
    ["moves approved and refused", `${count(board.approved)} / ${count(board.refused)}`],
  ];
}

const needs = (point) => (point.score === null ? "–" : `${point.score.toFixed(2)} ${point.approved || point.score >= point.threshold ? "≥" : "<"} ${point.threshold.toFixed(2)}`);

const planColumns = (cluster) => [
  { name: "Verdict", cell: (point) => html`<${Badge} kind=${point.approved ? "good" : "warn"}>${point.approved ? "approved" : "refused"}</${Badge}>` },
  { name: "Move", cell: (point) => html`<b>${point.kind}</b> ${names(point)}${point.into.length > 0 && html`<span class="soft"> → ${point.into.join(", ")}</span>`}` },
  { name: "Saves per hour", number: true, cell: (point) => money(point.savingsPerHour) },
  { name: "Pods", number: true, cell: (point) => count(point.pods) },
  { name: "Savings", number: true, cell: (point) => percent(point.savingsFraction) },
  { name: "Disruption", number: true, cell: (point) => percent(point.disruptionFraction) },
  { name: "Score", cell: (point) => html`<span class="line">${needs(point)}</span>` },
  { name: "Why", cell: (point) => html`<${Why} about=${`${point.kind} ${names(point)}`} of=${["move", cluster, point.id]} />` },
];

// Nodes of the same kind of reason together: names of nodes and pods in it are left out of the comparison.
export function byReason(held) {
  const groups = new Map();
  for (const node of held) {
    const reason = (node.why[0] ?? "the plan gives no reason").replace(/ \(pods? .*\)$/, "").replaceAll(node.node, "it");
    const group = groups.get(reason) ?? { reason, nodes: [], price: 0 };
    group.nodes.push(node);
    group.price += node.pricePerHour ?? 0;
    groups.set(reason, group);
  }
  return [...groups.values()].sort((a, b) => b.nodes.length - a.nodes.length);
}

const heldColumns = (cluster) => [
  { name: "Reason", cell: (group) => group.reason },
  { name: "Nodes", number: true, cell: (group) => count(group.nodes.length) },
  { name: "Per hour", number: true, cell: (group) => money(group.price) },
  { name: "Why", cell: (group) => html`<${Why} about=${`${plural(group.nodes.length, "node")} that stay`} of=${["held", cluster, group.reason]} />` },
];

const poolColumns = (cluster) => [
  { name: "Pool", cell: (pool) => pool.name },
  { name: "Policy", cell: (pool) => pool.policy || "–" },
  { name: "Nodes", number: true, cell: (pool) => count(pool.nodes) },
  { name: "Per hour", number: true, cell: (pool) => money(pool.costPerHour) },
  { name: "May still be disturbed", cell: (pool) => Object.entries(pool.allowed).map(([reason, number]) => `${reason}: ${number}`).join(", ") || "–" },
  { name: "Why", cell: (pool) => html`<${Why} about=${`pool ${pool.name} of ${cluster}`} of=${["pool", cluster, pool.name]} />` },
];
