// The ledger of promises: replicas that were placed and are not known to have landed.

import { get } from "./api.js";
import { h, keep, paged, rows, say, table } from "./dom.js";
import { amount, count, lasting, now, plural, resourceName } from "./format.js";
import { pairs, part, reasons, whyButton } from "./why.js";

export const title = "Promises";
export const areas = ["promises"];
let parts = null;
let latest = null;

export const load = () => get("promises");

export function mount(root) {
  const sums = h("div", { class: "glance inset" });
  const list = table("Promises in flight", [{ name: "Cluster" }, { name: "Binding" }, { name: "In flight", number: true }, { name: "Of", number: true }, { name: "Holds" }, { name: "Age", number: true }, { name: "Ends in" }, { name: "Why" }]);
  const none = h("p", { class: "empty" }, "Nothing is promised: every replica that was placed is known to have landed.");
  const pages = paged(100);
  const left = h("p", { class: "soft small" });
  const whole = h("div", { class: "card" }, list.whole, pages.button, left);
  pages.grow(() => show(latest));
  root.append(h("div", { class: "heading" }, h("h1", {}, "Promises")),
    h("p", { class: "lead" }, "Between a decision and the moment its pods have nodes, nobody else can see that the room is taken. What is listed here is given to nobody else until it lands or its time is over."), none, sums, whole);
  parts = { sums, list, none, pages, whole, left };
}

export function show(data) {
  latest = data;
  parts.none.hidden = data.items.length > 0;
  parts.whole.hidden = parts.sums.hidden = !data.items.length;
  say(parts.left, data.leftOut ? `${plural(data.leftOut, "promise")} more are not listed` : "");
  const sums = new Map();
  for (const each of data.items) sums.set(each.cluster, (sums.get(each.cluster) ?? 0) + each.replicas);
  keep(parts.sums, [...sums], ([name]) => name, () => h("div", { class: "fact" }, h("b"), h("span")), (fact, [name, replicas]) => {
    say(fact.firstChild, count(replicas));
    say(fact.lastChild, `in flight to ${name}`);
  });
  tick();
}

export function tick() {
  if (!latest) return;
  const passed = Math.max(0, now() - latest.at);
  rows(parts.list, parts.pages.cut(latest.items), (each) => `${each.cluster}/${each.kind}/${each.namespace}/${each.name}`, (each) => {
    const left = Math.max(0, each.expiresInSeconds - passed);
    return [
      each.cluster,
      each.namespace ? `${each.namespace}/${each.name}` : each.name,
      count(each.replicas),
      count(each.desired),
      Object.entries(each.requests).map(([name, units]) => amount(name, units)).join(", ") || "–",
      lasting(each.ageSeconds + passed),
      h("span", { class: "ends" }, h("progress", { max: latest.lifetimeSeconds, value: left, "aria-label": `time left of the promise to ${each.name} in ${each.cluster}` }), h("span", {}, lasting(left))),
      whyButton(`promise to ${each.name} in ${each.cluster}`, () => [reasons(each.why), part("What it holds", pairs(Object.entries(each.requests).map(([name, units]) => [resourceName(name), amount(name, units)])))]),
    ];
  });
}
