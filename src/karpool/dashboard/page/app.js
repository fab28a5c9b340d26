// What ties the page together: which view is shown, the figures at a glance, the connection, and how it looks.

import { change, href, useAddress, whyOf } from "./address.js";
import { follow, setToken, takeToken } from "./api.js";
import * as clusters from "./clusters.js";
import * as consolidation from "./consolidation.js";
import * as events from "./events.js";
import { count, money, percent } from "./format.js";
import * as gpus from "./gpus.js";
import * as nodes from "./nodes.js";
import { reasons } from "./parts.js";
import * as placements from "./placements.js";
import * as promises from "./promises.js";
import * as scaleUps from "./scale-ups.js";
import { Search } from "./search.js";
import { set, state, useAnswer, useStore } from "./store.js";
import * as time from "./time.js";
import { html, render, useEffect, useState } from "./vendor/preact-htm.js";
import * as waiting from "./waiting.js";
import { WhyContent } from "./why.js";

const VIEWS = { fleet: clusters, nodes, waiting, gpus, consolidation, placements, promises, "scale-ups": scaleUps, events, time };
const main = document.getElementById("main");
const dialog = document.getElementById("why");
const viewOf = (name) => (VIEWS[name] ? name : "fleet");

function Nav() {
  const name = viewOf(useAddress().view);
  useEffect(() => document.querySelector('#nav a[aria-current="page"]')?.scrollIntoView({ block: "nearest", inline: "nearest" }), [name]);
  return Object.entries(VIEWS).map(([key, view]) => html`<li><a href=${href(key)} data-name=${key} aria-current=${key === name ? "page" : undefined}>${view.title}</a></li>`);
}

let opened = null;

function Main() {
  const name = viewOf(useAddress().view);
  if (opened !== name) delete main.dataset.shown;
  useEffect(() => {
    document.title = `${VIEWS[name].title} · Karpool`;
    if (opened !== null && opened !== name) {
      main.focus({ preventScroll: true });
      scrollTo(0, 0);
      document.getElementById("announcer").textContent = VIEWS[name].title;
    }
    opened = name;
  }, [name]);
  const { View } = VIEWS[name];
  return html`<${View} key=${name} />`;
}

function Glance() {
  const { data } = useAnswer("clusters?limit=0", ["fleet", "promises"]);
  useEffect(() => { if (data) set({ file: data.file }); }, [data?.file?.name]);
  if (!data) return null;
  const cpu = data.amounts.cpu;
  const listed = data.unpriced ? `per hour, ${count(data.unpriced)} nodes unpriced` : Math.abs(data.listPricePerHour - data.pricePerHour) < 5e-4 ? "per hour" : `per hour, by the list ${money(data.listPricePerHour)}`;
  const facts = [
    ["clusters", count(data.total), "clusters"],
    ["nodes", count(data.nodes), "nodes"],
    ["pods", count(data.pods), data.pending ? `pods, ${count(data.pending)} waiting` : "pods"],
    ["cpu", cpu?.allocatable ? percent(cpu.requested / cpu.allocatable) : "–", "of CPU requested"],
    ["promised", count(data.promisedReplicas), "replicas promised"],
    ["price", money(data.pricePerHour), listed],
  ];
  return facts.map(([key, value, name]) => html`<button key=${key} type="button" class="fact" aria-haspopup="dialog" aria-label=${`Why: ${value} ${name}`} onClick=${() => change({ why: whyOf("fact", key) })}><b>${value}</b>${" "}<span>${name}</span></button>`);
}

const ofFile = (file) => `file ${file.name}, ${file.takenAt ? `taken ${new Date(file.takenAt * 1000).toLocaleString([], { dateStyle: "medium", timeStyle: "short" })}` : "which does not say when it was taken"}`;

function Live() {
  const store = useStore();
  useEffect(() => {
    const live = document.getElementById("live");
    live.dataset.state = store.live;
    live.title = store.file ? "Figures are those of a file; nothing changes while you look." : store.why;
    const trouble = document.getElementById("trouble");
    trouble.hidden = !store.trouble;
    if (trouble.textContent !== store.trouble) trouble.textContent = store.trouble;
  });
  return html`<span class="dot" aria-hidden="true"></span><span id="live-text">${store.live === "live" && store.file ? ofFile(store.file) : { live: "live", lost: "connection lost" }[store.live] ?? "connecting"}</span>`;
}

function Dialog() {
  const { locked } = useStore();
  const [token, setText] = useState("");
  useEffect(() => { if (locked && !dialog.open) dialog.showModal(); }, [locked]);
  const use = () => { setToken(token.trim()); location.reload(); };
  return html`<${WhyContent} locked=${locked} />${locked && html`<header><h2 id="why-title">A token is needed</h2></header><div id="why-body">
    ${reasons(["this dashboard is not on loopback, so that it asks who you are", "whoever started it was shown a link with the token, or gave it with --token-file"])}
    <label class="field" for="token">Token<input id="token" type="password" autocomplete="off" onInput=${(event) => setText(event.target.value)} onKeyDown=${(event) => { if (event.key === "Enter") use(); }} /></label>
    <button type="button" onClick=${use}>Use it</button></div>`}`;
}

// Light and dark

const THEMES = ["auto", "light", "dark"];
const dark = matchMedia("(prefers-color-scheme: dark)");
let theme = THEMES.includes(localStorage.getItem("karpool-theme")) ? localStorage.getItem("karpool-theme") : "auto";

function dress() {
  document.documentElement.dataset.theme = theme === "auto" ? (dark.matches ? "dark" : "light") : theme;
  document.getElementById("theme").textContent = `Theme: ${theme}`;
  set({});
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
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
main.replaceChildren();
for (const [part, id] of [[Nav, "nav"], [Main, "main"], [Glance, "glance"], [Live, "live"], [Search, "search-place"], [Dialog, "why"]]) render(html`<${part} />`, document.getElementById(id));
follow(
  (versions) => set({ versions }),
  (live, why = "", status) => {
    // Numbers of another server, or of one that was started again, say nothing about what is shown.
    set({ live, why, ...(live === "live" ? { epoch: state.epoch + 1 } : {}), ...(status === 401 ? { locked: true } : {}) });
  },
);
