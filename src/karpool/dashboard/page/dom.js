// Building the page. Text only ever enters as text: nothing here parses markup, and the page's policy
// (trusted types) would stop whoever tried.

// Names may hold characters that turn the direction of text, or that nobody can see.
const UNSEEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;
const clean = (text) => String(text).replace(UNSEEN, (each) => (each === "\n" ? each : "\uFFFD"));

const SVG = "http://www.w3.org/2000/svg";

export function h(tag, given = {}, ...children) {
  return fill(document.createElement(tag), given, children);
}

export function s(tag, given = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), given, children);
}

function fill(element, given, children) {
  for (const [name, value] of Object.entries(given)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "vars") for (const [key, each] of Object.entries(value)) element.style.setProperty(key, each);
    else element.setAttribute(name === "class" ? "class" : name, value === true ? "" : clean(value));
  }
  const shown = children.flat(9).filter((each) => each !== undefined && each !== null && each !== false && each !== "");
  element.append(...shown.map((each) => (each instanceof Node ? each : clean(each))));
  return element;
}

export function say(element, given) {
  const text = clean(given);
  if (element.textContent !== text) element.textContent = text;
}

export function mark(element, name, value) {
  if (value === undefined || value === null || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== clean(value)) element.setAttribute(name, value === true ? "" : clean(value));
}

// Make the children of `parent` those of `items`, keeping the elements (and the focus) of items that stay.
export function keep(parent, items, key, make, update) {
  const held = parent.kept ?? (parent.kept = new Map());
  const next = new Map();
  let at = parent.firstChild;
  for (const item of items) {
    const name = key(item);
    if (next.has(name)) continue;
    const element = held.get(name) ?? make(item);
    update(element, item);
    next.set(name, element);
    if (element === at) at = at.nextSibling;
    else parent.insertBefore(element, at);
  }
  for (const [name, element] of held) if (!next.has(name)) element.remove();
  parent.kept = next;
}

const kind = (column) => (column.number ? "number" : column.name === "Why" ? "last" : false);

export function table(caption, columns, { stacks = true } = {}) {
  const body = h("tbody");
  const head = h("tr", {}, columns.map((each) => h("th", { scope: "col", class: kind(each) }, each.name)));
  const whole = h("table", { class: stacks ? "stacks" : "" }, h("caption", { class: "unseen" }, caption), h("thead", {}, head), body);
  return { whole: h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption }, whole), body, columns };
}

// Rows of a table from `table`; `cells(item)` gives text or elements, one for each column. Cells that say
// the same as before stay, and with them the focus; handlers hold their item, so a new item is a new cell.
export function rows(shown, items, key, cells) {
  keep(shown.body, items, key, () => h("tr"), (row, item) => {
    const whole = JSON.stringify(item);
    cells(item).forEach((each, index) => {
      const text = `${each instanceof Node ? each.textContent : each}\0${whole}`;
      const old = row.children[index];
      if (old?.shown === text) return;
      const column = shown.columns[index];
      const cell = h("td", { class: kind(column), "data-name": column.name }, h("span", {}, each));
      cell.shown = text;
      const focused = old?.contains(document.activeElement);
      if (old) old.replaceWith(cell);
      else row.append(cell);
      if (focused) cell.querySelector("button")?.focus();
    });
  });
}

// One tab stop for many buttons: arrows, Home and End move between them.
export function roving(container) {
  container.addEventListener("keydown", (event) => {
    const all = [...container.querySelectorAll("button:not([hidden])")];
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

// A list that grows on demand: "show more" until everything is there.
export function paged(size) {
  let limit = size;
  const button = h("button", { type: "button", class: "more", hidden: true });
  const left = (count) => {
    button.hidden = count <= limit;
    say(button, `Show ${Math.min(size, count - limit)} more of ${count}`);
  };
  return { button, cut: (items) => (left(items.length), items.slice(0, limit)), grow: (again) => button.addEventListener("click", () => { limit += size; again(); }) };
}

// How wide a picture in this element may be, in pixels.
export function widthOf(element, most) {
  const style = getComputedStyle(element);
  const room = element.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
  return Math.max(300, Math.min(most, Math.floor(room)));
}
