// What ties the page together: which view is shown, when it is asked for again, and how it looks.

import { follow, get, setToken, takeToken } from "./api.js";
import * as consolidation from "./consolidation.js";
import { h, keep, mark, say } from "./dom.js";
import * as events from "./events.js";
import * as fleet from "./fleet.js";
import { amount, count, money, percent, plural, price, serverTime } from "./format.js";
import * as placements from "./placements.js";
import * as promises from "./promises.js";
import * as scaleUps from "./scale-ups.js";
import { explain, pairs, reasons } from "./why.js";

const VIEWS = { fleet, placements, promises, "scale-ups": scaleUps, consolidation, events };
const PACE = 1000; // at most one question a second, however busy the fleet is
const main = document.getElementById("main");
const trouble = document.getElementById("trouble");
let shown = null; // {name, view, seen}
let versions = {};
let asking = false;

// Views

function route() {
  const name = location.hash.replace(/^#\/?/, "");
  return VIEWS[name] ? name : "fleet";
}

function open(name, focus) {
  const view = VIEWS[name];
  shown = { name, view, seen: null };
  main.kept = undefined;
  main.replaceChildren();
  view.mount(main);
  document.title = `${view.title} · Karpool`;
  for (const link of document.querySelectorAll("#nav a")) mark(link, "aria-current", link.dataset.name === name && "page");
  document.querySelector('#nav a[aria-current="page"]')?.scrollIntoView({ block: "nearest", inline: "nearest" });
  if (focus) {
    main.focus({ preventScroll: true });
    scrollTo(0, 0);
    say(document.getElementById("announcer"), view.title);
  }
  refresh();
}

const stamp = (view) => JSON.stringify(view.areas.map((area) => versions[area] ?? 0));

const isOld = () => shown && shown.seen !== stamp(shown.view);

async function refresh() {
  if (asking) return;
  asking = true;
  const mine = shown;
  const seen = stamp(mine.view);
  try {
    if (mine.seen !== seen) {
      const data = await mine.view.load();
      if (shown === mine) {
        serverTime(data.at ?? data.fleet.at);
        mine.view.show(data);
        mine.seen = seen;
        main.dataset.shown = mine.name;
      }
    }
    await glance();
    trouble.hidden = true;
  } catch (error) {
    if (error.status === 401) askForToken();
    trouble.hidden = false;
    say(trouble, `The figures could not be read: ${error.message}. What is shown may be old; it is tried again.`);
  } finally {
    asking = false;
    // Another view was chosen meanwhile: at once. The same one changed again: not more often than the pace.
    if (shown !== mine) refresh();
    else if (isOld()) later();
  }
}

let timer = 0;
let last = 0;

function later() {
  timer ||= setTimeout(() => { timer = 0; last = Date.now(); refresh(); }, Math.max(0, last + PACE - Date.now()));
}

// The fleet at a glance

let glanced = null;

async function glance() {
  const seen = JSON.stringify([versions.fleet, versions.promises]);
  if (glanced === seen) return;
  const found = await get("fleet");
  glanced = seen;
  const cpu = found.amounts.cpu;
  const facts = [
    ["clusters", count(found.clusters.length), (each) => each.notReady || (each.isControlPlane ? "control plane" : each.watched ? "watched" : "known through Karmada only")],
    ["nodes", count(found.nodes), (each) => each.nodes && plural(each.nodes, "node")],
    [found.pending ? `pods, ${count(found.pending)} waiting` : "pods", count(found.pods), (each) => each.pods && `${plural(each.pods, "pod")}, ${count(each.pending)} waiting`],
    ["of CPU requested", cpu?.allocatable ? percent(cpu.requested / cpu.allocatable) : "–", (each) => requestedOf(each.amounts.cpu)],
    ["replicas promised", count(found.promisedReplicas), (each) => each.promisedReplicas && `${plural(each.promisedReplicas, "replica")} placed and not known to have landed`],
    [found.unpriced ? `per hour, ${count(found.unpriced)} nodes unpriced` : Math.abs(found.listPricePerHour - found.pricePerHour) < 5e-4 ? "per hour" : `per hour, by the list ${money(found.listPricePerHour)}`, money(found.pricePerHour), (each) => each.nodes && `${price(each)} for ${plural(each.nodes, "node")}${each.unpriced ? `, ${count(each.unpriced)} without a known price` : ""}`],
  ];
  keep(document.getElementById("glance"), facts.map((each, index) => [...each, index]), ([, , , index]) => index, fact, (element, [name, value, of]) => {
    say(element.firstChild, value);
    say(element.lastChild, name);
    mark(element, "aria-label", `Why: ${value} ${name}`);
    element.why = () => breakdown(`${value} ${name}`, found.clusters, of);
  });
}

function fact() {
  const element = h("button", { type: "button", class: "fact", "aria-haspopup": "dialog", onclick: () => element.why() }, h("b"), h("span"));
  return element;
}

function breakdown(heading, clusters, of) {
  const lines = clusters.map((each) => [each.name, of(each)]).filter(([, value]) => value);
  explain(heading, [lines.length ? pairs(lines) : reasons(["no cluster has any"])]);
}

const requestedOf = (cpu) => cpu?.allocatable && `${percent(cpu.requested / cpu.allocatable)}: ${amount("cpu", cpu.requested)} of ${amount("cpu", cpu.allocatable)}`;

// The stream

function onVersions(found) {
  versions = found;
  later();
}

function onState(state, why, status) {
  const live = document.getElementById("live");
  live.dataset.state = state;
  if (state === "live") {
    // Numbers of another server, or of one that was started again, say nothing about what is shown.
    glanced = null;
    if (shown) shown.seen = null;
  }
  say(document.getElementById("live-text"), state === "live" ? "live" : "connection lost");
  mark(live, "title", why);
  if (status === 401) askForToken();
}

let asked = false;

function askForToken() {
  if (asked) return;
  asked = true;
  const input = h("input", { id: "token", type: "password", autocomplete: "off" });
  const use = () => { setToken(input.value.trim()); location.reload(); };
  input.addEventListener("keydown", (event) => { if (event.key === "Enter") use(); });
  explain("A token is needed", [
    reasons(["this dashboard is not on loopback, so that it asks who you are", "whoever started it was shown a link with the token, or gave it with --token-file"]),
    h("label", { class: "field", for: "token" }, "Token", input),
    h("button", { type: "button", onclick: use }, "Use it"),
  ]);
}

// Light and dark

const THEMES = ["auto", "light", "dark"];
const dark = matchMedia("(prefers-color-scheme: dark)");
let theme = THEMES.includes(localStorage.getItem("karpool-theme")) ? localStorage.getItem("karpool-theme") : "auto";

function dress() {
  document.documentElement.dataset.theme = theme === "auto" ? (dark.matches ? "dark" : "light") : theme;
  say(document.getElementById("theme"), `Theme: ${theme}`);
}

document.getElementById("theme").addEventListener("click", () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  localStorage.setItem("karpool-theme", theme);
  dress();
});
dark.addEventListener("change", dress);

// Starting

takeToken();
dress();
keep(document.getElementById("nav"), Object.entries(VIEWS), ([name]) => name, ([name, view]) => h("li", {}, h("a", { href: `#/${name}`, "data-name": name }, view.title)), () => {});
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
addEventListener("hashchange", () => { if (route() !== shown?.name) open(route(), true); });
addEventListener("resize", () => shown?.view.resized?.());
setInterval(() => { if (!document.hidden) shown?.view.tick?.(); }, 1000);
open(route(), false);
follow(onVersions, onState);
