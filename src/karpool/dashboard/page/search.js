// One field that finds clusters, pools, nodes, workloads and pods of the whole fleet.

import { href, whyOf } from "./address.js";
import { address, get } from "./api.js";
import { failed } from "./store.js";
import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";

const LINKS = {
  cluster: (hit) => href("fleet", { open: hit.cluster, why: whyOf("cluster", hit.cluster) }),
  pool: (hit) => href("nodes", { cluster: hit.cluster, pool: hit.name }),
  node: (hit) => href("nodes", { cluster: hit.cluster, q: hit.name, why: whyOf("node", hit.cluster, hit.name) }),
  workload: (hit) => href("waiting", { cluster: hit.cluster, q: hit.name.split("/").pop() }),
  placement: (hit) => href("placements", { q: hit.name, why: whyOf("placement", ...split(hit.name)) }),
  pod: (hit) => href("waiting", { cluster: hit.cluster, why: whyOf("pod", hit.cluster, ...split(hit.name)) }),
};
const split = (name) => { const [namespace, ...rest] = name.split("/"); return [namespace || "-", rest.join("/")]; };

export function Search() {
  const [text, setText] = useState("");
  const [hits, setHits] = useState(null);
  const timer = useRef(0);
  const place = useRef(null);
  useEffect(() => {
    const hide = (event) => { if (!place.current?.contains(event.target)) setHits(null); };
    const slash = (event) => {
      if (event.key === "/" && !event.target.closest?.("input, select, textarea")) { event.preventDefault(); document.getElementById("search").focus(); }
    };
    document.addEventListener("click", hide);
    document.addEventListener("keydown", slash);
    return () => { document.removeEventListener("click", hide); document.removeEventListener("keydown", slash); };
  }, []);
  const type = (event) => {
    const value = event.target.value;
    setText(value);
    clearTimeout(timer.current);
    if (!value.trim()) return setHits(null);
    timer.current = setTimeout(async () => {
      try { setHits(await get(address("search", { q: value.trim() }))); } catch (error) { failed(error); }
    }, 200);
    return undefined;
  };
  const keys = (event) => {
    if (event.key === "Escape") { setHits(null); setText(""); }
    const links = [...place.current.querySelectorAll("a")];
    const at = links.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1 }[event.key];
    if (to === undefined || !links.length) return;
    event.preventDefault();
    (links[to] ?? document.getElementById("search")).focus();
  };
  return html`<div class="search" ref=${place} onKeyDown=${keys}><label class="unseen" for="search">Search the fleet</label>
    <input id="search" type="search" placeholder="Search  ( / )" value=${text} onInput=${type} maxlength="200" autocomplete="off" aria-controls="hits" aria-expanded=${String(Boolean(hits))} role="combobox" aria-autocomplete="list" />
    <div id="hits" class="hits" hidden=${!hits}>${hits && (hits.items.length ? html`<ul>${hits.items.map((hit) => html`<li key=${`${hit.kind}/${hit.cluster}/${hit.name}`}><a href=${LINKS[hit.kind]?.(hit) ?? "#/fleet"} onClick=${() => { setHits(null); setText(""); }}><span class="badge">${hit.kind}</span> <b>${hit.name}</b> <span class="soft small">${[hit.kind === "cluster" ? "" : hit.cluster, hit.detail].filter(Boolean).join(" · ")}</span></a></li>`)}</ul>${hits.leftOut > 0 && html`<p class="soft small">There is more: a longer word finds fewer.</p>`}` : html`<p class="soft small">Nothing is called so.</p>`)}</div></div>`;
}
