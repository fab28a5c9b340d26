// What assistive technology needs of a page, looked up in the page itself. Evaluates to a list of faults.
(() => {
  const faults = [];
  const fault = (rule, element, detail = "") => faults.push(`${rule}: <${element.tagName.toLowerCase()} class="${element.getAttribute("class") ?? ""}"> ${(element.textContent ?? "").trim().slice(0, 40)} ${detail}`);
  const scope = document.querySelector("dialog[open]") ?? document.body;
  const shown = (element) => element.checkVisibility({ visibilityProperty: true, contentVisibilityAuto: false }) && !element.closest('[aria-hidden="true"]');
  const all = (selector) => [...scope.querySelectorAll(selector)].filter(shown);

  // Names
  const byId = (ids) => ids.split(/\s+/).map((id) => document.getElementById(id)?.textContent ?? "").join(" ");
  const name = (element) => (element.getAttribute("aria-label") || (element.hasAttribute("aria-labelledby") && byId(element.getAttribute("aria-labelledby"))) || (element.labels && [...element.labels].map((each) => each.textContent).join(" ")) || element.textContent || "").trim();
  for (const element of all('button, a[href], input, select, progress, [tabindex="0"], [role="img"], [role="toolbar"], nav, dialog')) if (!name(element)) fault("no name", element);
  for (const element of all("img")) if (!element.hasAttribute("alt")) fault("no alt", element);
  for (const element of all("svg")) if (element.getAttribute("role") !== "img") fault("a picture without role", element);
  for (const element of all("table")) {
    if (!element.caption?.textContent) fault("no caption", element);
    for (const head of element.querySelectorAll("th")) if (!head.scope) fault("no scope", head);
  }

  // Structure
  const ids = [...document.querySelectorAll("[id]")].map((each) => each.id);
  for (const id of new Set(ids.filter((each, index) => ids.indexOf(each) !== index))) faults.push(`id twice: ${id}`);
  for (const attribute of ["aria-labelledby", "for", "aria-controls"]) for (const element of document.querySelectorAll(`[${attribute}]`)) for (const id of element.getAttribute(attribute).split(/\s+/)) if (!document.getElementById(id)) fault("points nowhere", element, id);
  if (!document.documentElement.lang || !document.title) faults.push("no language or title");
  if (scope === document.body) {
    if (document.querySelectorAll("main").length !== 1) faults.push("not one main");
    if (all("main h1").length !== 1) faults.push("not one h1");
    let level = 1;
    for (const heading of all("main h1, main h2, main h3, main h4")) {
      const own = Number(heading.tagName[1]);
      if (own > level + 1) fault("heading skips a level", heading);
      level = own;
    }
  }
  for (const element of all("[tabindex]")) if (element.tabIndex > 0) fault("its own tab order", element);

  // Sizes
  for (const element of all("button, select, input")) {
    const box = element.getBoundingClientRect();
    if (box.width < 23.9 || box.height < 23.9) fault("smaller than 24 pixels", element, `${box.width}x${box.height}`);
  }
  if (document.documentElement.scrollWidth > document.documentElement.clientWidth) faults.push(`wider than the screen: ${document.documentElement.scrollWidth} > ${document.documentElement.clientWidth}`);

  // Contrast
  const parse = (text) => { const found = text.match(/[\d.]+/g)?.map(Number) ?? [0, 0, 0, 0]; return text.startsWith("rgb") ? [found[0], found[1], found[2], found[3] ?? 1] : null; };
  const over = (top, below) => [0, 1, 2].map((each) => top[each] * top[3] + below[each] * (1 - top[3])).concat(1);
  const ground = (element) => {
    const layers = [];
    for (let each = element; each; each = each.parentElement) {
      const colour = parse(getComputedStyle(each).backgroundColor);
      if (colour && colour[3] > 0) { layers.push(colour); if (colour[3] === 1) break; }
    }
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255, 1]);
  };
  const light = (colour) => { const [r, g, b] = colour.slice(0, 3).map((each) => { const share = each / 255; return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ratio = (one, other) => { const [high, low] = [light(one), light(other)].sort((a, b) => b - a); return (high + 0.05) / (low + 0.05); };
  const judged = new Set();
  let texts = 0;
  const walker = document.createTreeWalker(scope, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || judged.has(element) || !shown(element) || element.closest(".unseen, .skip, title, script, option")) continue;
    judged.add(element);
    texts += 1;
    const style = getComputedStyle(element);
    const below = ground(element);
    const colour = parse(element instanceof SVGElement ? style.fill : style.color);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const found = ratio(over(colour, below), below);
    if (found < (large ? 3 : 4.5)) fault("contrast", element, found.toFixed(2));
  }
  if (texts < 5) faults.push(`only ${texts} texts were judged`);
  return faults;
})()
