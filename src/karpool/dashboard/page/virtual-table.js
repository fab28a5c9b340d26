// A table of any length: the server chooses and sorts, and only rows that are seen are asked for and drawn.

import { change, useAddress } from "./address.js";
import { address as addressOf, get } from "./api.js";
import { count, plural, serverTime } from "./format.js";
import { kindOf } from "./parts.js";
import { failed, stamp, useNarrow, useStore } from "./store.js";
import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";

const ROW = 46; // pixels, as in the style sheet: rows of equal height can be found without being drawn
const PIECE = 100; // rows of one question
const BESIDE = 12; // rows drawn above and below what is seen, so that scrolling shows no gap
const KEPT = 5; // pieces held above and below what is seen, so that memory does not grow with what was scrolled past
const REST = 60; // ms on one place before rows are asked for: who flies past does not read
const PACE = 1000;

// Pieces of the list by their number, asked for when they come into sight. `first` is the first answer.
function usePieces(path, asked, areas) {
  useStore();
  const whole = addressOf(path, asked);
  const held = useRef({ whole: null, pieces: new Map(), asking: new Set() });
  const [, turn] = useState(0);
  const [error, setError] = useState(null);
  const seen = stamp(areas);
  const last = useRef(0);
  if (held.current.whole !== whole) held.current = { whole, pieces: new Map(), asking: new Set(), before: held.current.latest };
  const ask = async (number) => {
    const mine = held.current;
    if (mine.asking.has(number)) return;
    mine.asking.add(number);
    try {
      const data = await get(addressOf(path, { ...asked, offset: number * PIECE, limit: PIECE }));
      if (held.current !== mine) return;
      serverTime(data.at);
      mine.pieces.set(number, data.items);
      const [from, to] = wanted.current;
      for (const each of mine.pieces.keys()) if (each < from - KEPT || each > to + KEPT) mine.pieces.delete(each);
      mine.latest = data;
      setError(null);
    } catch (problem) {
      if (held.current !== mine) return;
      failed(problem);
      setError(problem);
    } finally {
      mine.asking.delete(number);
      turn((each) => each + 1);
    }
  };
  const wanted = useRef([0, 0]);
  const resting = useRef(0);
  const want = (from, to) => {
    wanted.current = [from, to];
    const missing = [];
    for (let number = from; number <= to; number += 1) if (!held.current.pieces.has(number)) missing.push(number);
    clearTimeout(resting.current);
    if (missing.length) resting.current = setTimeout(() => missing.forEach(ask), held.current.latest ? REST : 0);
  };
  useEffect(() => () => clearTimeout(resting.current), []);
  useEffect(() => { last.current = Date.now(); setError(null); want(0, 0); }, [whole]);
  useEffect(() => {
    if (!held.current.latest) return undefined;
    const again = () => {
      last.current = Date.now();
      const [from, to] = wanted.current;
      for (const number of held.current.pieces.keys()) if (number < from || number > to) held.current.pieces.delete(number);
      for (let number = from; number <= to; number += 1) ask(number);
    };
    const timer = setTimeout(again, Math.max(0, last.current + PACE - Date.now()));
    return () => clearTimeout(timer);
  }, [seen]);
  const latest = held.current.latest ?? held.current.before ?? null;
  return { latest, isOld: !held.current.latest, error, want, row: (index) => held.current.pieces.get(Math.floor(index / PIECE))?.[index % PIECE] };
}

// `columns`: name, cell, and `sort` where the server can sort by it. `onAnswer` sees every first answer.
export function VirtualTable({ caption, path, asked, areas, columns, itemKey, none, onAnswer }) {
  const pieces = usePieces(path, asked, areas);
  const narrow = useNarrow();
  const place = useRef(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const [limit, setLimit] = useState(50);
  const { latest } = pieces;
  const total = latest?.matched ?? 0;
  useEffect(() => { if (latest && !pieces.isOld) onAnswer?.(latest); }, [latest]);
  useEffect(() => { if (place.current) place.current.scrollTop = 0; setView((each) => ({ ...each, top: 0 })); setLimit(50); }, [addressOf(path, asked)]);
  const first = narrow ? 0 : Math.max(0, Math.floor(view.top / ROW) - BESIDE);
  const end = narrow ? Math.min(total, limit) : Math.min(total, Math.ceil((view.top + view.height) / ROW) + BESIDE);
  useEffect(() => { if (total) pieces.want(Math.floor(first / PIECE), Math.floor(Math.max(first, end - 1) / PIECE)); });
  const scrolled = (event) => {
    const { scrollTop, clientHeight } = event.currentTarget;
    // Drawn again only when the rows that are seen have left those that are drawn behind them.
    if (Math.abs(scrollTop - view.top) >= ROW * (BESIDE / 2) || clientHeight !== view.height) setView({ top: scrollTop, height: clientHeight });
  };
  useEffect(() => { if (place.current && place.current.clientHeight !== view.height) setView((each) => ({ ...each, height: place.current.clientHeight })); });
  if (pieces.error && !latest) return html`<p class="empty">${pieces.error.message}</p>`;
  if (!latest) return html`<p class="empty">Asking…</p>`;
  if (!total) return html`<p class="empty">${latest.total ? `Nothing matches; there are ${count(latest.total)}.` : none}</p>`;
  const drawn = Array.from({ length: end - first }, (_, index) => [first + index, pieces.row(first + index)]);
  return html`<div class="card">
    <p class="soft small row" role="status"><span>${total === latest.total ? plural(total, "row") : `${count(total)} of ${plural(latest.total, "row")}`}</span></p>
    <div class=${narrow ? "wide" : "wide tall"} tabindex="0" role="region" aria-label=${caption} ref=${place} onScroll=${narrow ? undefined : scrolled}>
      <div class="whole" style=${narrow ? {} : { paddingTop: `${first * ROW}px`, paddingBottom: `${(total - end) * ROW}px` }}>
        <table class=${narrow ? "stacks" : "even"} aria-rowcount=${total + 1}><caption class="unseen">${caption}</caption>
          <thead><tr aria-rowindex="1">${columns.map((column) => html`<${Head} column=${column} />`)}</tr></thead>
          <tbody>${drawn.map(([index, item]) => html`<tr key=${item ? itemKey(item) : `row-${index}`} aria-rowindex=${index + 2}>${columns.map((column) => html`<td class=${kindOf(column)} data-name=${column.name}><span class="cut">${item ? column.cell(item) : "…"}</span></td>`)}</tr>`)}</tbody>
        </table></div></div>
    ${narrow && total > limit && html`<button type="button" class="more" onClick=${() => setLimit(limit + 50)}>${`Show ${Math.min(50, total - limit)} more of ${count(total)}`}</button>`}
  </div>`;
}

// A head that sorts: down first for numbers, up first for names.
function Head({ column }) {
  const { asked } = useAddress();
  if (!column.sort) return html`<th scope="col" class=${kindOf(column)}>${column.name}</th>`;
  const [up, down] = [column.sort, `-${column.sort}`];
  const now = asked.sort ?? "";
  const next = column.number ? (now === down ? up : down) : now === up ? down : up;
  const state = now === up ? "ascending" : now === down ? "descending" : "none";
  return html`<th scope="col" class=${kindOf(column)} aria-sort=${state}><button type="button" class="sort" onClick=${() => change({ sort: next })}>${column.name}<span aria-hidden="true">${{ ascending: " ▲", descending: " ▼", none: "" }[state]}</span></button></th>`;
}
