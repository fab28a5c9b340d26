// Savings against disruption, both as shares of a pool, with the line that decides: savings = disruption / k.

import { h } from "./vendor/preact-htm.js";
import { money, percent } from "./format.js";

const [LEFT, RIGHT, TOP, BOTTOM] = [74, 28, 16, 52];

// `width` in pixels: the picture is drawn for it.
export function scatter(board, width, onChoose) {
  const height = Math.round(Math.min(400, Math.max(280, width * 0.55)));
  const points = board.points.filter((each) => each.savingsFraction !== null && each.disruptionFraction !== null);
  if (!points.length) return [h("p", { class: "soft" }, "The prices of the moves are unknown.")];
  const across = scale(Math.max(...points.map((each) => each.disruptionFraction)), LEFT, width - RIGHT);
  const up = scale(Math.max(...points.map((each) => each.savingsFraction)), height - BOTTOM, TOP);
  const ks = [...new Set(board.pools.map((each) => each.k).filter(Boolean))].sort();
  const approved = points.filter((each) => each.approved).length;
  const parts = [];
  const picture = () => h("svg", { viewBox: `0 0 ${width} ${height}`, class: "scatter", role: "img", "aria-label": `${approved} approved and ${points.length - approved} refused moves, by what they save and disturb; the table below lists them` }, parts);
  parts.push(...axes(across, up, width, height));
  for (const k of ks) parts.push(...line(k, across, up));
  for (const each of points) parts.push(point(each, across, up, onChoose));
  return [picture(), legend(ks)];
}

function scale(largest, from, to) {
  const reach = largest > 0 ? largest * 1.08 : 1;
  const raw = reach / 5;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= raw);
  const top = Math.ceil(reach / step) * step;
  const at = (value) => from + (to - from) * Math.min(1, Math.max(0, value / top));
  return { top, at, ticks: Array.from({ length: Math.round(top / step) + 1 }, (_, index) => index * step) };
}

function axes(across, up, width, height) {
  const base = up.at(0);
  return [
    ...up.ticks.flatMap((value) => [h("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: up.at(value), y2: up.at(value) }), h("text", { x: LEFT - 8, y: up.at(value) + 4, "text-anchor": "end" }, percent(value))]),
    ...across.ticks.filter((_, index) => width > 480 || index % 2 === 0).map((value) => h("text", { x: across.at(value), y: base + 20, "text-anchor": "middle" }, percent(value))),
    h("text", { x: (LEFT + width - RIGHT) / 2, y: height - 8, "text-anchor": "middle", class: "axis" }, width > 480 ? "disruption, as a share of the pool's" : "disruption"),
    h("text", { x: 16, y: height / 2 - 10, "text-anchor": "middle", class: "axis", transform: `rotate(-90 16 ${height / 2 - 10})` }, width > 480 ? "savings, as a share of the pool's cost" : "savings"),
  ];
}

function line(k, across, up) {
  const x = Math.min(across.top, up.top * k);
  const [x2, y2] = [across.at(x), up.at(x / k)];
  const area = `M${LEFT} ${up.at(0)} L${x2} ${y2} ${x < across.top ? "" : `V${TOP}`} H${LEFT} Z`;
  // Beside the line where it leaves through the top, above it where it leaves to the right.
  const beside = x < across.top;
  const name = h("text", { class: "limit-name", x: beside ? x2 + 10 : x2 - 8, y: beside ? TOP + 14 : y2 - 12, "text-anchor": beside ? "start" : "end" }, `1/k, k = ${k}`);
  return [h("path", { class: "worth", d: area }), h("line", { class: "limit", x1: LEFT, y1: up.at(0), x2, y2 }), name];
}

function point(each, across, up, onChoose) {
  const [x, y] = [across.at(each.disruptionFraction), up.at(each.savingsFraction)];
  const words = `${each.approved ? "approved" : "refused"}: ${each.kind} ${each.nodes.join(", ")}, saves ${money(each.savingsPerHour)} per hour`;
  const shape = each.approved ? h("circle", { cx: x, cy: y, r: 6 }) : h("path", { d: `M${x - 5} ${y - 5} l10 10 M${x + 5} ${y - 5} l-10 10` });
  return h("g", { class: each.approved ? "point approved" : "point refused", onClick: () => onChoose(each) }, h("circle", { class: "reach", cx: x, cy: y, r: 12 }), shape, h("title", {}, words));
}

function legend(ks) {
  return h("figcaption", { class: "row small soft" },
    h("span", { class: "key approved" }, "approved"), h("span", { class: "key refused" }, "refused"),
    ks.length ? h("span", {}, "Above the line, the saving of a move is worth its disruption.") : h("span", {}, "No pool has the Balanced policy, so there is no line."));
}
