// What ties the page together: which view is shown, the figures at a glance, the connection, and how it looks.

import { change, href, useAddress, whyOf } from "./address.js";
import { follow, setToken, takeToken } from "./api.js";
import { count, money, percent } from "./format.js";
import { reasons } from "./parts.js";
import { Search } from "./search.js";
import { failed, set, state, useAnswer, useStore } from "./store.js";
import { html, render, useEffect, useLayoutEffect, useState } from "./vendor/preact-htm.js";
import { firstPage } from "./virtual-table.js";

// By the name in the address: the title, and the file, which is read when somebody first looks at the view.
const VIEWS = {
  fleet: ["Clusters", "./clusters.js"],
  nodes: ["Nodes", "./nodes.js"],
  waiting: ["Waiting", "./waiting.js"],
  gpus: ["GPUs", "./gpus.js"],
  consolidation: ["Moves & plan", "./consolidation.js"],
  placements: ["Placements", "./placements.js"],
  promises: ["Promises", "./promises.js"],
  "scale-ups": ["Scale-ups", "./scale-ups.js"],
  events: ["Events", "./events.js"],
  time: ["Time", "./time.js"],
};
const WHY = "./why.js";
const main = document.getElementById("main");
const dialog = document.getElementById("why");
const viewOf = (name) => (VIEWS[name] ? name : "fleet");

const loaded = new Map(); // modules by their file

// What a file exports; undefined until it was read, and for as long as nobody wants it.
function useModule(file, isWanted = true) {
  const [, turn] = useState(0);
  useLayoutEffect(() => {
    if (!isWanted || loaded.has(file)) return;
    import(file).then((module) => { loaded.set(file, module); turn((number) => number + 1); }, failed);
  }, [file, isWanted]);
  return loaded.get(file);
}

function Nav() {
  const name = viewOf(useAddress().view);
  useEffect(() => document.querySelector('#nav a[aria-current="page"]')?.scrollIntoView({ block: "nearest", inline: "nearest" }), [name]);
  return Object.entries(VIEWS).map(([key, [title]]) => html`<li><a href=${href(key)} data-name=${key} aria-current=${key === name ? "page" : undefined}>${title}</a></li>`);
}

let opened = null;

function Main() {
  const name = viewOf(useAddress().view);
  const [title, file] = VIEWS[name];
  const module = useModule(file);
  if (opened !== name) delete main.dataset.shown;
  useEffect(() => {
    document.title = `${title} · Karpool`;
    if (opened !== null && opened !== name) {
      main.focus({ preventScroll: true });
      scrollTo(0, 0);
      document.getElementById("announcer").textContent = title;
    }
    opened = name;
  }, [name]);
  return module && html`<${module.View} key=${name} />`;
}

function Glance() {
  const { data } = useAnswer(firstPage("clusters"), ["fleet", "promises"]);
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
    live.title = store.file ? "Figures from a file; they do not change." : store.why;
    const trouble = document.getElementById("trouble");
    trouble.hidden = !store.trouble;
    if (trouble.textContent !== store.trouble) trouble.textContent = store.trouble;
  });
  return html`<span class="dot" aria-hidden="true"></span><span id="live-text">${store.live === "live" && store.file ? ofFile(store.file) : { live: "live", lost: "connection lost" }[store.live] ?? "connecting"}</span>`;
}

function Dialog() {
  const { locked } = useStore();
  const { asked } = useAddress();
  const module = useModule(WHY, Boolean(asked.why));
  const [token, setText] = useState("");
  useEffect(() => { if (locked && !dialog.open) dialog.showModal(); }, [locked]);
  const use = () => { setToken(token.trim()); location.reload(); };
  return html`${module ? html`<${module.WhyContent} locked=${locked} />` : !locked && html`<h2 id="why-title">Why?</h2>`}${locked && html`<header><h2 id="why-title">A token is needed</h2></header><div id="why-body">
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
