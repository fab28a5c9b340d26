// Parts that every view shares: fields that live in the address, tables, bars, and the button that says why.

import { change, useAddress, whyOf } from "./address.js";
import { amount } from "./format.js";
import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";

export const Badge = ({ kind = "", children }) => html`<span class=${`badge ${kind}`}>${children}</span>`;
export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;
export const reasons = (lines) => html`<ul class="reasons">${lines.map((line) => html`<li>${line}</li>`)}</ul>`;
export const pairs = (entries) => html`<dl class="pairs">${entries.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>`;
export const part = (heading, ...content) => html`<section><h3>${heading}</h3>${content}</section>`;

export function Why({ about, of, label = "Why?" }) {
  return html`<button type="button" class="why" aria-label=${`Why: ${about}`} aria-haspopup="dialog" onClick=${() => change({ why: whyOf(...of) })}>${label}</button>`;
}

// A heading with its fields; `children` are fields.
export const Heading = ({ title, lead, children }) => html`<div class="heading"><h1>${title}</h1>${children}</div>${lead && html`<p class="lead">${lead}</p>`}`;

// Text that is typed: shown at once, in the address shortly after.
export function Find({ id, name = "q", label = "Find", placeholder, onType }) {
  const { asked } = useAddress();
  const given = asked[name] ?? "";
  const [text, setText] = useState(given);
  const timer = useRef(0);
  useEffect(() => setText(given), [given]);
  const type = (event) => {
    const value = event.target.value;
    setText(value);
    onType?.(value);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => change({ [name]: value.trim() }, { replace: true }), 200);
  };
  return html`<label class="field" for=${id}>${label}<input id=${id} type="search" placeholder=${placeholder} value=${text} onInput=${type} maxlength="200" autocomplete="off" /></label>`;
}

export function Choose({ id, name, label, options, first = "" }) {
  const { asked } = useAddress();
  const chosen = asked[name] ?? first;
  const known = options.some(([value]) => value === chosen) ? options : [...options, [chosen, chosen || "all"]];
  return html`<label class="field" for=${id}>${label}<select id=${id} value=${chosen} onChange=${(event) => change({ [name]: event.target.value === first ? "" : event.target.value })}>
    ${known.map(([value, text]) => html`<option value=${value} selected=${value === chosen}>${text}</option>`)}</select></label>`;
}

// Small tables, of which everything is drawn.
export function Table({ caption, columns, items, itemKey, stacks = true }) {
  return html`<div class="wide" tabindex="0" role="region" aria-label=${caption}><table class=${stacks ? "stacks" : ""}><caption class="unseen">${caption}</caption>
    <thead><tr>${columns.map((column) => html`<th scope="col" class=${kindOf(column)}>${column.name}</th>`)}</tr></thead>
    <tbody>${items.map((item) => html`<tr key=${itemKey(item)}>${columns.map((column) => html`<td class=${kindOf(column)} data-name=${column.name}><span>${column.cell(item)}</span></td>`)}</tr>`)}</tbody></table></div>`;
}

export const kindOf = (column) => (column.number ? "number" : column.name === "Why" ? "last" : "");

// So many at first, and more on demand.
export function useMore(size) {
  const [limit, setLimit] = useState(size);
  const button = (total) => total > limit && html`<button type="button" class="more" onClick=${() => setLimit(limit + size)}>${`Show ${Math.min(size, total - limit)} more of ${total}`}</button>`;
  return [limit, button];
}

export const Fact = ({ value, name }) => html`<div class="fact"><b>${value}</b><span>${name}</span></div>`;

// A bar of one resource: requested, promised, free, and what an autoscaler could still add.
const PARTS = [["used", "requested"], ["promised", "promised"], ["free", "free"], ["potential", "could be launched"]];

export function Bar({ resource, given, words = true }) {
  const known = given ?? { allocatable: 0, requested: 0, promised: 0, potential: 0 };
  const free = Math.max(0, known.allocatable - known.requested - known.promised);
  // What is without limit is drawn as half as much again as there is.
  const potential = known.potential ?? Math.max(known.allocatable, 1) / 2;
  const sum = Math.max(1, Math.max(known.allocatable, known.requested + known.promised) + potential);
  const drawn = { used: known.requested, promised: known.promised, free, potential };
  const said = { ...drawn, potential: known.potential };
  const texts = PARTS.filter(([kind]) => kind === "used" || said[kind] !== 0)
    .map(([kind, name]) => [kind, kind === "potential" && said[kind] === null ? "no limit on what could be launched" : `${amount(resource, said[kind])} ${name}`]);
  return html`<div class="capacity"><div class="bar" role="img" aria-label=${texts.map(([, text]) => text).join(", ")}>
    ${PARTS.map(([kind]) => html`<i class=${`fill ${kind} ${kind === "potential" && known.potential === null ? "unlimited" : ""}`} style=${{ width: `${(100 * drawn[kind]) / sum}%` }}></i>`)}</div>
    ${words && html`<ul class="amounts">${texts.map(([kind, text]) => html`<li class=${kind}>${text}</li>`)}</ul>`}</div>`;
}

// A share as a thin bar with its number, for cells of tables.
export function Share({ share, about }) {
  if (share === null || share === undefined) return html`<span class="soft">–</span>`;
  const shown = `${Math.round(100 * share)} %`;
  return html`<span class="share"><span class="bar thin" role="img" aria-label=${`${about}: ${shown}`}><i class="fill used" style=${{ width: `${Math.min(100, 100 * share)}%` }}></i></span><span>${shown}</span></span>`;
}

// One tab stop for many buttons: arrows, Home and End move between them.
export function roving(container) {
  if (!container || container.roves) return;
  container.roves = true;
  container.addEventListener("keydown", (event) => {
    const all = [...container.querySelectorAll("button")];
    const at = all.indexOf(document.activeElement);
    if (at < 0) return;
    const perRow = Math.max(1, all.findIndex((each) => each.offsetTop > all[0].offsetTop));
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, ArrowDown: at + perRow, ArrowUp: at - perRow, Home: 0, End: all.length - 1 }[event.key];
    if (to === undefined || !all[to]) return;
    event.preventDefault();
    all[at].tabIndex = -1;
    all[to].tabIndex = 0;
    all[to].focus();
  });
  container.addEventListener("focusin", (event) => {
    for (const each of container.querySelectorAll('button[tabindex="0"]')) if (each !== event.target) each.tabIndex = -1;
    event.target.tabIndex = 0;
  });
}
