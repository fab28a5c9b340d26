// What ties the page together: which view is shown, when it is asked for again, and how it looks.

import { follow, get, setToken, takeToken } from "./api.js";
import * as consolidation from "./consolidation.js";
import { h, keep, mark, say } from "./dom.js";
import * as events from "./events.js";
import * as fleet from "./fleet.js";
import { count, money, percent, serverTime } from "./format.js";
import * as placements from "./placements.js";
import * as promises from "./promises.js";
import * as scaleUps from "./scale-ups.js";
import { explain, reasons } from "./why.js";

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
    ["clusters", count(found.clusters.length)],
    ["nodes", count(found.nodes)],
    [found.pending ? `pods, ${count(found.pending)} waiting` : "pods", count(found.pods)],
    ["of CPU requested", cpu?.allocatable ? percent(cpu.requested / cpu.allocatable) : "–"],
    ["replicas promised", count(found.promisedReplicas)],
    [found.unpriced ? `per hour, ${count(found.unpriced)} nodes unpriced` : "per hour", money(found.pricePerHour)],
  ];
  document.getElementById("glance").replaceChildren(...facts.map(([name, value]) => h("div", { class: "fact" }, h("b", {}, value), h("span", {}, name))));
}

// The stream

function onVersions(found) {
  versions = found;
  later();
}

function onState(state, why, status) {
  const live = document.getElementById("live");
  live.dataset.state = state;
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
setInterval(() => { if (!document.hidden) shown?.view.tick?.(); }, 1000);
open(route(), false);
follow(onVersions, onState);
