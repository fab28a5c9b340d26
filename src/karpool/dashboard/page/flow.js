// Workloads on the left, clusters on the right, a ribbon for every share, as wide as its replicas.

import { h } from "./vendor/preact-htm.js";
import { count, plural } from "./format.js";

const ROWS_MAX = 24;
const BAR = 12;
const LETTER = 7.2; // how wide one is, about
const NOWHERE = "no place";

// `width` in pixels: the picture is drawn for it, so that its letters are as large as all others.
export function flow(items, width) {
  const sides = { left: Math.min(300, width * 0.43), right: width - Math.min(190, width * 0.36) };
  const sized = items.map((each) => ({ ...each, total: total(each) })).filter((each) => each.total > 0);
  const shown = [...sized].sort((a, b) => b.total - a.total).slice(0, ROWS_MAX);
  if (!shown.length) return [h("p", { class: "soft" }, "No workload has replicas.")];
  const clusters = [...new Set(shown.flatMap((each) => links(each).map(([name]) => name)))].sort((a, b) => (a === NOWHERE) - (b === NOWHERE) || a.localeCompare(b));
  const replicas = shown.reduce((sum, each) => sum + each.total, 0);
  const gap = 14;
  const height = Math.max(220, shown.length * 34);
  const scale = (height - gap * (Math.max(shown.length, clusters.length) + 1)) / replicas;
  const left = stacked(shown.map((each) => [key(each), each.total]), scale, height);
  const right = stacked(clusters.map((name) => [name, shown.reduce((sum, each) => sum + linkTo(each, name), 0)]), scale, height);
  const parts = [];
  const picture = () => h("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Replicas of ${plural(shown.length, "workload")} in ${clusters.filter((name) => name !== NOWHERE).join(", ") || "no cluster"}; the table below has the numbers` }, parts);
  const used = new Map([...left, ...right].map(([name, at]) => [name, at.y]));
  for (const each of shown) {
    for (const [name, amount] of links(each)) parts.push(ribbon(sides, used, key(each), name, amount * scale, className(clusters, name), `${key(each)} → ${name}: ${plural(amount, "replica")}`));
  }
  for (const each of shown) parts.push(...label(left.get(key(each)), sides.left - BAR, key(each), each.total, "end", "ink", sides.left - BAR - 8));
  for (const name of clusters) parts.push(...label(right.get(name), sides.right, name, right.get(name).amount, "start", className(clusters, name), width - sides.right - BAR - 8));
  const more = sized.length - shown.length;
  return [picture(), h("figcaption", { class: "soft small" }, more > 0 ? `The ${shown.length} largest of ${sized.length} workloads; all are in the table.` : "The width of a ribbon is the number of replicas.")];
}

const key = (each) => (each.namespace ? `${each.namespace}/${each.name}` : each.name);
const placedOf = (each) => each.shares.reduce((sum, share) => sum + share.replicas, 0);
const total = (each) => Math.max(placedOf(each), each.replicas);
const className = (clusters, name) => (name === NOWHERE ? "lost" : `c${clusters.indexOf(name) % 8}`);

function links(each) {
  const found = each.shares.filter((share) => share.replicas > 0).map((share) => [share.cluster, share.replicas]);
  const missing = each.replicas - placedOf(each);
  return missing > 0 ? [...found, [NOWHERE, missing]] : found;
}

const linkTo = (each, name) => links(each).reduce((sum, [to, amount]) => sum + (to === name ? amount : 0), 0);

function stacked(entries, scale, height) {
  const free = height - entries.reduce((sum, [, amount]) => sum + amount * scale, 0);
  const gap = free / (entries.length + 1);
  let y = gap;
  return new Map(entries.map(([name, amount]) => {
    const found = { y, size: Math.max(amount * scale, 1.5), amount };
    y += amount * scale + gap;
    return [name, found];
  }));
}

function ribbon(sides, used, from, to, size, kind, words) {
  const [a, b, middle] = [used.get(from), used.get(to), (sides.left + sides.right) / 2];
  used.set(from, a + size);
  used.set(to, b + size);
  const path = `M${sides.left} ${a} C${middle} ${a} ${middle} ${b} ${sides.right} ${b} V${b + size} C${middle} ${b + size} ${middle} ${a + size} ${sides.left} ${a + size} Z`;
  return h("path", { class: `ribbon ${kind}`, d: path }, h("title", {}, words));
}

function label(at, x, name, amount, anchor, kind, room) {
  const letters = Math.max(6, Math.floor(room / LETTER) - count(amount).length - 2);
  const short = name.length > letters ? `${name.slice(0, letters - 1)}…` : name;
  const text = h("text", { x: anchor === "end" ? x - 8 : x + BAR + 8, y: at.y + at.size / 2 + 4, "text-anchor": anchor }, `${short}  ${count(amount)}`, h("title", {}, name));
  return [h("rect", { class: `post ${kind}`, x, y: at.y, width: BAR, height: at.size, rx: 2 }), text];
}
