// Scale-ups as timelines: no device, smart pod, claim, machine, node, devices, retry.

import { get } from "./api.js";
import { h, keep, say } from "./dom.js";
import { ago, clock, count, lasting, now, plural } from "./format.js";
import { part, reasons, whyButton } from "./why.js";

export const title = "Scale-ups";
export const areas = ["scale-ups"];
const KINDS = { Completed: "good", Ended: "good", Exhausted: "bad", Rejected: "bad", Backoff: "warn", Cancelled: "" };
let parts = null;
let latest = null;

export const load = () => get("scale-ups");

export function mount(root) {
  const list = h("div");
  const none = h("p", { class: "empty" }, "No scale-ups: no worker waits for a GPU node.");
  const problems = h("p", { class: "badge warn", hidden: true });
  root.append(h("div", { class: "heading" }, h("h1", {}, "Scale-ups")),
    h("p", { class: "lead" }, "A worker that finds no device wakes the autoscaler through a smart pod. Each line is one node that was asked for, from the failure to the retry."), problems, none, list);
  parts = { list, none, problems };
}

export function show(data) {
  latest = data;
  parts.none.hidden = data.items.length > 0;
  parts.problems.hidden = !data.problems.length;
  say(parts.problems, data.problems.join("; "));
  keep(parts.list, data.items, (each) => `${each.cluster}/${each.name}`, make, (element, each) => element.show(each));
}

export const tick = () => latest && show(latest);

function make(first) {
  const id = `scale-up-${first.cluster}-${first.name}`;
  const state = h("span", { class: "badge" });
  const facts = h("p", { class: "soft small break" });
  const means = h("p", { class: "break" });
  const units = h("div", { class: "units" });
  let latestOne = first;
  const element = h("section", { class: "card", "aria-labelledby": id },
    h("div", { class: "head" }, h("div", { class: "row" }, h("h2", { id, class: "break" }, `${first.model === "*" ? "Any GPU" : first.model} in ${first.pool || "any pool"}`), state), whyButton(`scale-up ${first.name}`, () => whyOf(latestOne))), facts, means, units);
  element.show = (each) => {
    latestOne = each;
    say(state, each.state);
    state.className = `badge ${KINDS[each.state] ?? "accent"}`;
    say(facts, [each.cluster, each.demand, each.over ? "" : plural(each.waiting, "worker") + " waiting", `attempt ${each.attempt}, round ${each.round}`, each.endedAt ? `took ${lasting(each.endedAt - each.firstSeen)}, ended ${ago(each.endedAt)}` : `began ${ago(each.firstSeen)}`].filter(Boolean).join(" · "));
    say(means, `${each.means}${each.nextAttempt && !each.over && each.nextAttempt > now() ? `; next attempt in ${lasting(each.nextAttempt - now())}` : ""}`);
    keep(units, each.units, (unit) => unit.index, () => h("div", { class: "unit" }), (shown, unit) => showUnit(shown, unit, each));
  };
  return element;
}

function showUnit(element, unit, record) {
  const text = JSON.stringify([unit, Math.floor(now())]);
  if (element.shown === text) return;
  element.shown = text;
  const steps = unit.steps.map((step, index) => {
    const before = unit.steps.slice(0, index).findLast((each) => each.at);
    const took = step.at && before && step.at >= before.at ? `+${lasting(step.at - before.at)}` : "";
    const words = { done: "done", now: "under way", waiting: "not yet", failed: `failed${unit.ended ? `: ${unit.ended}` : ""}` }[step.state];
    const since = step.state === "now" && before ? `for ${lasting(now() - before.at)}` : "";
    return h("li", { class: `stop ${step.state}`, "aria-current": step.state === "now" && "step" },
      h("span", { class: "pin", "aria-hidden": "true" }, { done: "✓", failed: "✕" }[step.state] ?? ""),
      h("b", {}, step.name), h("span", { class: "unseen" }, `, ${words}`),
      h("span", { class: "soft small" }, step.at ? h("span", {}, clock(step.at), " ", took && h("span", { class: "took" }, took)) : step.state === "waiting" ? "" : since || words));
  });
  element.replaceChildren(h("p", { class: "soft small break" }, `Node ${unit.index + 1}: ${unit.candidate.replaceAll("|", " or ")}${unit.ended ? ` — ended: ${unit.ended}` : ""}`), h("ol", { class: "timeline", "aria-label": `Timeline of node ${unit.index + 1} of ${record.name}` }, steps));
}

function whyOf(each) {
  return [
    reasons(each.why),
    each.waitingPods.length ? part("Who waits", h("p", { class: "break" }, each.waitingPods.join(", ") + (each.waiting > each.waitingPods.length ? ` and ${count(each.waiting - each.waitingPods.length)} more` : ""))) : "",
    each.tried.length ? part("What was tried", reasons(each.tried.map((tried) => `${tried.candidate}: ${tried.result}, ${ago(tried.at)}, ${plural(tried.times, "time")}; tried again: ${tried.again}`))) : "",
    ...each.units.map((unit) => part(`Node ${unit.index + 1}`, reasons(unit.steps.filter((step) => step.detail).map((step) => `${step.name}: ${step.detail}`)))),
  ].filter(Boolean);
}
