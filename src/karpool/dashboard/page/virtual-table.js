// A table of any length: the server chooses and sorts, and only rows that are seen are asked for and drawn.

import { change, useAddress } from "./address.js";
import { address as addressOf, get } from "./api.js";
import { count, now, plural, serverTime } from "./format.js";
import { kindOf } from "./parts.js";
import { failed, stamp, useNarrow, useStore } from "./store.js";
import { Component, html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/preact-htm.js";

const ROW = 46; // pixels, as in the style sheet: rows of equal height can be found without being drawn
const PIECE = 100; // rows of one question
const BESIDE = 12; // rows drawn above and below what is seen, so that scrolling shows no gap
const STEP = BESIDE / 2; // rows that are passed before others are drawn
const STILL = 200; // ms without a scroll after which rows stand still
const KEPT = 5; // pieces held above and below what is seen, so that memory does not grow with what was scrolled past
const REST = 60; // ms on one place before rows are asked for: who flies past does not read
const PACE = 1000;
const AGING = 10; // seconds after which "12 s ago" is said anew

// The address of the first piece, for whoever wants to know what it says of the whole list.
export const firstPage = (path, asked = {}) => addressOf(path, { ...asked, offset: 0, limit: PIECE });

// Pieces of the list by their number, asked for when they come into sight. `first` is the first answer.
function usePieces(path, asked, areas) {
  useStore();
  const whole = addressOf(path, asked);
  const held = useRef({ whole: null, pieces: new Map(), asking: new Set() });
  const [, turn] = useState(0);
  const [error, setError] = useState(null);
  const seen = stamp(areas);
  const last = useRef({ at: 0, seen: null }); // when all that is seen was asked for
  if (held.current.whole !== whole) held.current = { whole, pieces: new Map(), asking: new Set(), before: held.current.latest };
  const ask = async (number) => {
    const mine = held.current;
    if (mine.asking.has(number)) return;
    mine.asking.add(number);
    try {
      const data = await get(addressOf(path, { ...asked, offset: number * PIECE, limit: PIECE }), seen);
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
    if (!held.current.latest) missing.forEach(ask);
    else if (missing.length) resting.current = setTimeout(() => missing.forEach(ask), REST);
  };
  useEffect(() => () => clearTimeout(resting.current), []);
  useLayoutEffect(() => { last.current = { at: Date.now(), seen }; setError(null); want(0, 0); }, [whole]);
  useEffect(() => {
    if (last.current.seen === seen) return undefined;
    const again = () => {
      last.current = { at: Date.now(), seen };
      const [from, to] = wanted.current;
      for (const number of held.current.pieces.keys()) if (number < from || number > to) held.current.pieces.delete(number);
      for (let number = from; number <= to; number += 1) ask(number);
    };
    const timer = setTimeout(again, Math.max(0, last.current.at + PACE - Date.now()));
    return () => clearTimeout(timer);
  }, [seen]);
  const latest = held.current.latest ?? held.current.before ?? null;
  return { latest, isOld: !held.current.latest, error, want, row: (index) => held.current.pieces.get(Math.floor(index / PIECE))?.[index % PIECE] };
}

// `columns`: name, cell, `sort` where the server can sort by it, and `share`, how much wider than others it is.
// `onAnswer` sees every first answer.
export function VirtualTable({ caption, path, asked, areas, columns, itemKey, none, onAnswer }) {
  const pieces = usePieces(path, asked, areas);
  const narrow = useNarrow();
  const place = useRef(null);
  const [view, setView] = useState({ row: 0, height: 600, isMoving: false });
  const [limit, setLimit] = useState(50);
  const { latest } = pieces;
  const total = latest?.matched ?? 0;
  useEffect(() => { if (latest && !pieces.isOld) onAnswer?.(latest); }, [latest]);
  useEffect(() => { if (place.current) place.current.scrollTop = 0; setView((each) => ({ ...each, row: 0 })); setLimit(50); }, [addressOf(path, asked)]);
  const length = Math.min(total, narrow ? limit : Math.ceil(view.height / ROW) + 2 * BESIDE);
  const first = narrow ? 0 : Math.max(0, Math.min(view.row - BESIDE, total - length));
  useEffect(() => { if (total) pieces.want(Math.floor(first / PIECE), Math.floor((first + length - 1) / PIECE)); });
  // Drawn again only when what is seen comes near the end of what is drawn.
  const still = useRef(0);
  const scrolled = (event) => {
    const row = Math.floor(event.currentTarget.scrollTop / ROW);
    if (Math.abs(row - view.row) >= STEP) setView({ ...view, row, isMoving: true });
    clearTimeout(still.current);
    still.current = setTimeout(() => setView((each) => (each.isMoving ? { ...each, isMoving: false } : each)), STILL);
  };
  useEffect(() => () => clearTimeout(still.current), []);
  const isDrawn = Boolean(total) && !narrow;
  useEffect(() => {
    if (!isDrawn) return undefined;
    const observer = new ResizeObserver(([entry]) => setView((each) => ({ ...each, height: entry.contentRect.height })));
    observer.observe(place.current);
    return () => observer.disconnect();
  }, [isDrawn]);
  const rows = Array.from({ length }, (_, number) => pieces.row(first + number));
  const keys = rows.map((item, number) => (item ? itemKey(item) : first + number));
  const slots = useSlots(keys);
  const order = slots.map((_, number) => number);
  // Elements that change their places cost most of all: they do it when rows stand still, so that Tab and screen readers
  // go from row to row again.
  if (view.isMoving) order.sort((one, other) => slots[one] - slots[other]);
  useKeptFocus(place);
  if (pieces.error && !latest) return html`<p class="empty">${pieces.error.message}</p>`;
  if (!latest) return html`<p class="empty">Asking…</p>`;
  if (!total) return html`<p class="empty">${latest.total ? `Nothing matches; there are ${count(latest.total)}.` : none}</p>`;
  const seen = `${location.hash} ${Math.floor(now() / AGING)}`;
  return html`<div class="card">
    <p class="soft small row" role="status"><span>${total === latest.total ? plural(total, "row") : `${count(total)} of ${plural(latest.total, "row")}`}</span></p>
    <div class=${narrow ? "wide" : "wide tall"} tabindex="0" role="region" aria-label=${caption} ref=${place} onScroll=${narrow ? undefined : scrolled}>
      <table class=${narrow ? "stacks" : "even"} role="table" style=${narrow ? {} : widths(columns)} aria-rowcount=${total + 1}><caption class="unseen">${caption}</caption>
        <thead role="rowgroup"><tr role="row" aria-rowindex="1">${columns.map((column) => html`<${Head} column=${column} />`)}</tr></thead>
        <tbody role="rowgroup" style=${narrow ? {} : { height: `${total * ROW}px` }}>${order.map((number) => html`<${Row} key=${slots[number]} name=${keys[number]} index=${first + number} item=${rows[number]} columns=${columns} seen=${seen} narrow=${narrow} />`)}</tbody>
      </table></div>
    ${narrow && total > limit && html`<button type="button" class="more" onClick=${() => setLimit(limit + 50)}>${`Show ${Math.min(50, total - limit)} more of ${count(total)}`}</button>`}
  </div>`;
}

// Made again only for another item, place, address or moment: of the rows on a screen, a step of the wheel changes few.
class Row extends Component {
  shouldComponentUpdate(next) {
    // The focus does not go over to another row unseen: the table takes it.
    if (next.name !== this.props.name && this.base.contains(document.activeElement)) this.base.closest("[role=region]").focus({ preventScroll: true });
    return ["item", "index", "columns", "seen", "narrow"].some((name) => next[name] !== this.props[name]);
  }

  render({ index, item, columns, narrow }) {
    return html`<tr role="row" aria-rowindex=${index + 2} style=${{ transform: narrow ? "" : `translateY(${index * ROW}px)` }}>${columns.map((column) => html`<td role="cell" class=${kindOf(column)} data-name=${column.name}><span class="cut">${item ? column.cell(item) : "…"}</span></td>`)}</tr>`;
  }
}

// Which element a row has: one that stays keeps its own, and with it the focus; one that comes takes that of one that went.
function useSlots(keys) {
  const held = useRef(new Map());
  const before = held.current;
  const going = new Set(before.values());
  for (const key of keys) going.delete(before.get(key));
  const free = [...going];
  let next = before.size;
  held.current = new Map(keys.map((key) => [key, before.get(key) ?? free.shift() ?? next++]));
  return keys.map((key) => held.current.get(key));
}

// An element that gets another place among its neighbours would lose the focus.
function useKeptFocus(place) {
  const focused = place.current?.contains(document.activeElement) ? document.activeElement : null;
  useLayoutEffect(() => { if (focused?.isConnected && document.activeElement === document.body) focused.focus({ preventScroll: true }); });
}

// Columns are as wide as they are told, so that nothing is measured while rows pass by: at least so many rem, and of
// what is left over this part.
const WIDTHS = { "": [6, 1], number: [4.5, 0.7], last: [5.2, 0] };

function widths(columns) {
  const tracks = columns.map((column) => WIDTHS[kindOf(column)].map((each) => each * (column.share ?? 1)));
  return {
    "--columns": tracks.map(([least, part]) => (part ? `minmax(${least}rem, ${part}fr)` : `${least}rem`)).join(" "),
    minWidth: `${tracks.reduce((sum, [least]) => sum + least, 0)}rem`,
  };
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
