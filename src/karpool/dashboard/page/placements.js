// Placement flow: which workload has replicas in which cluster, what the scheduler said, and why.

import { get } from "./api.js";
import { flow } from "./flow.js";
import { h, paged, rows, say, table, widthOf } from "./dom.js";
import { ago, count, plural } from "./format.js";
import { part, reasons, whyButton } from "./why.js";

export const title = "Placements";
export const areas = ["placements", "promises"];
const KINDS = { placed: "good", failed: "bad", waiting: "warn", suspended: "", unreadable: "bad" };
let parts = null;
let latest = null;

export const load = () => get("placements");

export function mount(root) {
  const picture = h("figure", { class: "card flow" });
  const list = table("Workloads and where their replicas are", [{ name: "Workload" }, { name: "State" }, { name: "Replicas", number: true }, { name: "Clusters" }, { name: "Says the scheduler" }, { name: "Since" }, { name: "Why" }]);
  const none = h("p", { class: "empty" }, "No Karmada bindings are known. Connect to a Karmada control plane to see placements.");
  const left = h("p", { class: "soft small" });
  const pages = paged(100);
  const whole = h("div", { class: "card" }, list.whole, pages.button, left);
  pages.grow(() => show(latest));
  root.append(h("div", { class: "heading" }, h("h1", {}, "Placement flow")), none, picture, whole);
  parts = { picture, list, none, left, pages, whole };
}

export function show(data) {
  latest = data;
  const { items } = data;
  parts.none.hidden = items.length > 0;
  parts.whole.hidden = parts.picture.hidden = !items.length;
  draw();
  say(parts.left, data.leftOut ? `${plural(data.leftOut, "binding")} more are not listed` : "");
  rows(parts.list, parts.pages.cut(items), (each) => `${each.kind}/${each.namespace}/${each.name}`, (each) => [
    h("span", { class: "workload" }, h("b", {}, each.namespace ? `${each.namespace}/${each.name}` : each.name), h("br"), h("span", { class: "soft small" }, [each.template, each.strategy].filter(Boolean).join(" · "))),
    h("span", { class: `badge ${KINDS[each.state] ?? ""}` }, each.state),
    count(each.replicas),
    each.shares.length ? h("span", { class: "row" }, each.shares.map(chip)) : h("span", { class: "soft" }, "none"),
    h("span", { class: "small" }, h("b", {}, each.reason), each.reason ? " " : "", h("span", { class: "soft" }, each.message)),
    h("span", { class: "line" }, each.since ? ago(each.since) : "–"),
    whyButton(each.namespace ? `${each.namespace}/${each.name}` : each.name, () => placementWhy(each)),
  ]);
}

function draw() {
  const width = widthOf(parts.picture, 1180);
  const drawn = JSON.stringify([latest.items, width]);
  if (parts.drawn === drawn) return;
  parts.drawn = drawn;
  parts.picture.replaceChildren(...flow(latest.items, width));
}

export const resized = () => { if (latest) draw(); };

function chip(share) {
  const ready = share.ready === null ? "" : `, ${share.ready} ready`;
  return h("span", { class: `badge ${share.promised ? "warn" : "accent"}` }, `${share.cluster} ${share.replicas}${ready}${share.promised ? `, ${share.promised} on the way` : ""}`);
}

async function placementWhy(each) {
  if (each.state === "unreadable") return [reasons([each.message, "correct the binding, or the policy it comes from; until then it is left alone"])];
  const found = await get(`placements/${encodeURIComponent(each.namespace || "-")}/${encodeURIComponent(each.name)}`);
  return [
    h("p", { class: "row" }, h("span", { class: `badge ${KINDS[each.state]}` }, each.state), h("span", { class: "soft" }, each.scheduler)),
    part("What the scheduler wrote", reasons([[each.reason, each.message].filter(Boolean).join(": ") || "nothing yet"])),
    part("What would be decided now", reasons([found.verdict, `${found.due ? "it would be scheduled now" : "it would not be scheduled now"}: ${found.why}`])),
    part("Step by step", h("ol", { class: "steps" }, found.steps.map((step) => h("li", { class: "step" }, h("h3", {}, step.title), h("div", { class: "lines" }, step.lines.join("\n")))))),
    h("p", { class: "soft small" }, found.askedEstimators ? "Estimators were asked." : "From the clusters' summaries; estimators are not asked by this dashboard."),
  ];
}
