// The consolidation board: what could go, what is worth it, and what holds every other node.

import { get } from "./api.js";
import { h, keep, paged, rows, say, table, widthOf } from "./dom.js";
import { ago, count, money, percent, plural } from "./format.js";
import { scatter } from "./scatter.js";
import { explain, pairs, part, reasons, whyButton } from "./why.js";

export const title = "Consolidation";
export const areas = ["consolidation"];
let parts = null;

export const load = () => get("consolidation");

export function mount(root) {
  const list = h("div");
  const none = h("p", { class: "empty" });
  root.append(h("div", { class: "heading" }, h("h1", {}, "Consolidation board")),
    h("p", { class: "lead" }, "A plan for looking at: nothing is carried out from here. It is made anew while you look and the cluster changes."), none, list);
  parts = { list, none };
}

export function show(data) {
  parts.none.hidden = data.boards.length > 0;
  say(parts.none, data.pending.length ? `Still reading ${data.pending.join(", ")}…` : "No cluster has nodes or pools that could be consolidated.");
  keep(parts.list, data.boards, (each) => each.cluster, make, (element, each) => element.show(each));
  resized(); // pictures are as wide as their place, which they have only now
}

export const resized = () => { for (const each of parts?.list.children ?? []) each.resized(); };

function make(first) {
  const id = `board-${first.cluster}`;
  const made = h("span", { class: "soft small" });
  const stopped = h("p", { class: "badge bad" });
  const facts = h("div", { class: "glance inset" });
  const picture = h("figure", { class: "picture" });
  const notes = h("p", { class: "soft small break" });
  const moves = table("Moves", [{ name: "Verdict" }, { name: "Move" }, { name: "Saves per hour", number: true }, { name: "Pods", number: true }, { name: "Savings", number: true }, { name: "Disruption", number: true }, { name: "Score" }, { name: "Why" }]);
  const movePages = paged(30);
  const held = table("Nodes that stay", [{ name: "Reason" }, { name: "Nodes", number: true }, { name: "Per hour", number: true }, { name: "Why" }]);
  const heldPages = paged(20);
  const pools = table("Pools", [{ name: "Pool" }, { name: "Policy" }, { name: "Nodes", number: true }, { name: "Per hour", number: true }, { name: "May still be disturbed" }, { name: "Why" }]);
  const [movesTitle, poolsTitle] = ["Moves", "Pools"].map((name) => h("h3", { class: "gap" }, name));
  const side = h("div", { class: "side" }, picture, facts);
  const element = h("section", { class: "card", "aria-labelledby": id },
    h("div", { class: "row" }, h("h2", { id, class: "break" }, first.cluster), made), stopped, side, notes,
    movesTitle, moves.whole, movePages.button,
    h("h3", { class: "gap" }, "Nodes that stay, by what holds them"), held.whole, heldPages.button,
    poolsTitle, pools.whole);
  let latest = first;
  const lists = () => {
    rows(moves, movePages.cut(latest.points), (each) => each.id, (each) => moveCells(latest.cluster, each));
    for (const each of [moves.whole, movesTitle]) each.hidden = !latest.points.length;
    for (const each of [pools.whole, poolsTitle]) each.hidden = !latest.pools.length;
    side.classList.toggle("plain", !latest.points.length);
    rows(held, heldPages.cut(byReason(latest.held)), (each) => each.reason, heldCells);
    rows(pools, latest.pools, (each) => each.name, poolCells);
  };
  const draw = () => {
    picture.hidden = facts.hidden = !latest.points.length;
    if (picture.hidden) return;
    const width = widthOf(picture, 820);
    const drawn = JSON.stringify([latest.points, width]);
    if (picture.drawn === drawn) return;
    picture.drawn = drawn;
    picture.replaceChildren(...scatter(latest, width, (point) => explain(heading(point), moveWhy(latest.cluster, point))));
  };
  element.resized = draw;
  movePages.grow(lists);
  heldPages.grow(lists);
  element.show = (each) => {
    latest = each;
    say(made, each.points.length ? `planned ${ago(each.madeAt)}` : `${plural(each.nodesBefore, "node")} · ${money(each.priceBefore)} per hour · nothing could go, planned ${ago(each.madeAt)}`);
    stopped.hidden = !each.stopped;
    say(stopped, each.stopped);
    keep(facts, factsOf(each), ([name]) => name, () => h("div", { class: "fact" }, h("b"), h("span")), (fact, [name, value]) => { say(fact.firstChild, value); say(fact.lastChild, name); });
    const cut = [each.pointsLeftOut && `${plural(each.pointsLeftOut, "move")} more`, each.heldLeftOut && `${plural(each.heldLeftOut, "node")} more that stay`].filter(Boolean);
    say(notes, [...each.notes, ...(cut.length ? [`not listed: ${cut.join(", ")}`] : [])].join(" · "));
    lists();
  };
  return element;
}

function factsOf(each) {
  const saved = each.priceBefore - each.priceAfter;
  return [
    ["would be saved per hour", money(saved)],
    ...(each.listPriceBefore === null ? [] : [["by the list, before and after", `${money(each.listPriceBefore)} → ${money(each.listPriceAfter)}`]]),
    ["of the cost", percent(each.priceBefore ? saved / each.priceBefore : 0)],
    ["nodes, before and after", `${count(each.nodesBefore)} → ${count(each.nodesAfter)}`],
    ["pods disturbed", count(each.podsDisturbed)],
    ["moves approved and refused", `${count(each.approved)} / ${count(each.refused)}`],
  ];
}

const heading = (each) => `${each.approved ? "Approved" : "Refused"}: ${each.kind} ${each.nodes.join(", ")}`;

async function moveWhy(cluster, each) {
  const found = await get(`clusters/${encodeURIComponent(cluster)}/moves/${encodeURIComponent(each.id)}`);
  const fates = table("Pods that would move", [{ name: "Pod" }, { name: "From" }, { name: "To" }, { name: "Cost", number: true }]);
  rows(fates, found.pods, (pod) => pod.pod, (pod) => [pod.pod, pod.source, pod.to, pod.cost.toFixed(2)]);
  return [
    reasons(each.why),
    part("Numbers", pairs([
      ["Saves", `${money(each.savingsPerHour)} per hour, ${percent(each.savingsFraction)} of the pool's cost`],
      ["Disturbs", `${plural(each.pods, "pod")}, ${percent(each.disruptionFraction)} of the pool's disruption`],
      ["Score", each.score === null ? "none is needed" : `${each.score.toFixed(3)}, must reach ${each.threshold.toFixed(3)}`],
      ["Nodes", each.nodes.join(", ") + (each.nodesLeftOut ? ` and ${each.nodesLeftOut} more` : "")],
      ["Pools", each.pools.join(", ")],
      ["Buys", each.into.join(", ") || "nothing"],
    ])),
    part(`What becomes of its pods (${count(found.pods.length + found.podsLeftOut)})`, found.pods.length ? fates.whole : h("p", { class: "soft" }, "no pods move")),
  ];
}

function moveCells(cluster, each) {
  const needs = each.score === null ? "–" : `${each.score.toFixed(2)} ${each.approved || each.score >= each.threshold ? "≥" : "<"} ${each.threshold.toFixed(2)}`;
  return [
    h("span", { class: `badge ${each.approved ? "good" : "warn"}` }, each.approved ? "approved" : "refused"),
    h("span", {}, h("b", {}, each.kind), ` ${each.nodes.join(", ")}${each.nodesLeftOut ? ` and ${each.nodesLeftOut} more` : ""}`, each.into.length ? h("span", { class: "soft" }, ` → ${each.into.join(", ")}`) : ""),
    money(each.savingsPerHour), count(each.pods), percent(each.savingsFraction), percent(each.disruptionFraction), h("span", { class: "line" }, needs),
    whyButton(heading(each), () => moveWhy(cluster, each)),
  ];
}

// Nodes of the same kind of reason together: names of nodes and pods in it are left out of the comparison.
function byReason(held) {
  const groups = new Map();
  for (const each of held) {
    const first = each.why[0] ?? "nothing is known";
    const reason = first.replace(/ \(pods? .*\)$/, "").replaceAll(each.node, "it");
    const group = groups.get(reason) ?? { reason, nodes: [], price: 0 };
    group.nodes.push(each);
    group.price += each.pricePerHour ?? 0;
    groups.set(reason, group);
  }
  return [...groups.values()].sort((a, b) => b.nodes.length - a.nodes.length);
}

function heldCells(group) {
  const listed = group.nodes.slice(0, 100);
  const why = () => [
    h("ul", { class: "reasons" }, listed.map((each) => h("li", {}, h("b", {}, each.node), each.pool ? ` (${each.pool}): ` : ": ", each.why.join("; ")))),
    group.nodes.length > listed.length ? h("p", { class: "soft" }, `and ${group.nodes.length - listed.length} more`) : "",
  ].filter(Boolean);
  return [group.reason, count(group.nodes.length), money(group.price), whyButton(`${plural(group.nodes.length, "node")} that stay`, why)];
}

function poolCells(each) {
  const allowed = Object.entries(each.allowed).map(([reason, number]) => `${reason}: ${number}`).join(", ");
  const why = [...each.why, each.k ? `Balanced with k = ${each.k}: a share of the cost is worth ${each.k} times that share of disruption` : `${each.policy || "no policy"}: moves are not scored`];
  return [each.name, each.policy || "–", count(each.nodes), money(each.costPerHour), allowed || "–", whyButton(`pool ${each.name}`, () => [reasons(why)])];
}
