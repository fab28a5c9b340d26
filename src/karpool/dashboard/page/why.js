// The one dialog of the page: why something is as it is.

import { h, say } from "./dom.js";

const dialog = document.getElementById("why");
const title = document.getElementById("why-title");
const body = document.getElementById("why-body");

document.getElementById("why-close").addEventListener("click", () => dialog.close());
dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });

export function reasons(lines) {
  return lines.length ? h("ul", { class: "reasons" }, lines.map((line) => h("li", {}, line))) : h("p", { class: "soft" }, "Nothing more is known.");
}

// `content`: elements, or a promise of them for what has to be asked for first.
export async function explain(heading, content) {
  say(title, heading);
  const asked = Promise.resolve(content);
  body.replaceChildren(h("p", { class: "soft" }, "Asking…"));
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
  try {
    body.replaceChildren(...[await asked].flat());
  } catch (error) {
    body.replaceChildren(h("p", { class: "badge bad" }, error.message));
  }
}

export function whyButton(about, content) {
  return h("button", { type: "button", class: "why", "aria-label": `Why: ${about}`, "aria-haspopup": "dialog", onclick: () => explain(about, content()) }, "Why?");
}

export function part(heading, ...content) {
  return h("section", {}, h("h3", {}, heading), content);
}

export function pairs(entries) {
  return h("dl", { class: "pairs" }, entries.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}
