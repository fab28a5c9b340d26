// Live events of all clusters, the newest first.

import { get } from "./api.js";
import { h, keep, paged, rows, say, table } from "./dom.js";
import { ago, clock, plural } from "./format.js";
import { pairs, reasons, whyButton } from "./why.js";

export const title = "Events";
export const areas = ["events"];
const asked = { text: "", cluster: "", type: "" };
let parts = null;
let latest = null;
let paused = false;

export const load = () => get("events");

export function mount(root) {
  const find = h("input", { id: "event-text", type: "search", placeholder: "object, reason or message", oninput: (event) => { asked.text = event.target.value.trim().toLowerCase(); draw(); } });
  const cluster = h("select", { id: "event-cluster", onchange: (event) => { asked.cluster = event.target.value; draw(); } });
  const type = h("select", { id: "event-type", onchange: (event) => { asked.type = event.target.value; draw(); } }, h("option", { value: "" }, "all"), h("option", { value: "Warning" }, "warnings"), h("option", { value: "Normal" }, "normal"));
  const pause = h("button", { type: "button", "aria-pressed": "false", onclick: () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    say(pause, paused ? "Go on" : "Pause");
    if (!paused) draw();
  } }, "Pause");
  const list = table("Events", [{ name: "When" }, { name: "Type" }, { name: "Cluster" }, { name: "Object" }, { name: "Reason" }, { name: "Message" }, { name: "Why" }]);
  const none = h("p", { class: "empty" });
  const pages = paged(100);
  pages.grow(draw);
  const left = h("p", { class: "soft small" });
  const whole = h("div", { class: "card" }, list.whole, pages.button, left);
  root.append(h("div", { class: "heading" }, h("h1", {}, "Live events"),
    h("label", { class: "field", for: "event-text" }, "Find", find), h("label", { class: "field", for: "event-cluster" }, "Cluster", cluster), h("label", { class: "field", for: "event-type" }, "Type", type), pause), none, whole);
  parts = { cluster, list, none, pages, whole, left };
}

export function show(data) {
  latest = data;
  if (!paused) draw();
}

function draw() {
  if (!latest) return;
  const names = [...new Set(latest.items.map((each) => each.cluster))].sort();
  keep(parts.cluster, ["", ...names], (name) => name, (name) => h("option", { value: name }, name || "all"), () => {});
  const found = latest.items.filter((each) => (!asked.cluster || each.cluster === asked.cluster) && (!asked.type || each.type === asked.type)
    && (!asked.text || [each.object, each.reason, each.message].some((text) => text.toLowerCase().includes(asked.text))));
  parts.none.hidden = found.length > 0;
  parts.whole.hidden = !found.length;
  say(parts.none, latest.items.length ? "No event matches." : "No events yet.");
  say(parts.left, latest.leftOut ? `${plural(latest.leftOut, "older event")} are not listed` : "");
  rows(parts.list, parts.pages.cut(found), (each) => [each.cluster, each.object, each.reason, each.at, each.message].join("\0"), (each) => [
    h("span", { class: "line" }, clock(each.at)),
    h("span", { class: `badge ${each.type === "Warning" ? "warn" : "accent"}` }, each.type),
    h("span", { class: "name" }, each.cluster), h("span", { class: "object" }, each.object),
    h("b", { class: "object" }, each.reason),
    `${each.message}${each.count > 1 ? ` (${each.count} times)` : ""}`,
    whyButton(`${each.reason} of ${each.object}`, () => [reasons([each.message || "it says nothing"]), pairs([["Said by", each.source || "unknown"], ["When", `${clock(each.at)}, ${ago(each.at)}`], ["How often", plural(each.count, "time")], ["Object", each.object], ["Cluster", each.cluster]])]),
  ]);
}
