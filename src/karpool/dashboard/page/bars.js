// A bar of one resource: requested, promised, free, and what an autoscaler could still add.

import { h, mark, say } from "./dom.js";
import { amount } from "./format.js";

const PARTS = [["used", "requested"], ["promised", "promised"], ["free", "free"], ["potential", "could be launched"]];

export function bar() {
  const fills = Object.fromEntries(PARTS.map(([kind]) => [kind, h("i", { class: `fill ${kind}` })]));
  const track = h("div", { class: "bar", role: "img" }, Object.values(fills));
  const words = h("ul", { class: "amounts" });
  const texts = Object.fromEntries(PARTS.map(([kind]) => [kind, h("li", { class: kind })]));
  words.append(...Object.values(texts));
  const whole = h("div", { class: "capacity" }, track, words);
  whole.show = (resource, given) => {
    const found = given ?? { allocatable: 0, requested: 0, promised: 0, potential: 0 };
    const free = Math.max(0, found.allocatable - found.requested - found.promised);
    // What is without limit is drawn as half as much again as there is.
    const potential = found.potential ?? Math.max(found.allocatable, 1) / 2;
    const sum = Math.max(1, Math.max(found.allocatable, found.requested + found.promised) + potential);
    const values = { used: found.requested, promised: found.promised, free, potential };
    const said = { ...values, potential: found.potential };
    for (const [kind, name] of PARTS) {
      fills[kind].style.width = `${(100 * values[kind]) / sum}%`;
      texts[kind].hidden = kind !== "used" && said[kind] === 0;
      say(texts[kind], kind === "potential" && said[kind] === null ? "no limit on what could be launched" : `${amount(resource, said[kind])} ${name}`);
    }
    fills.potential.classList.toggle("unlimited", found.potential === null);
    mark(track, "aria-label", PARTS.filter(([kind]) => !texts[kind].hidden).map(([kind]) => texts[kind].textContent).join(", "));
  };
  return whole;
}
