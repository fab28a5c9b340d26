// Every state has a link: the view, what it is filtered and sorted by, the range of time and the open answer
// are in the part of the address after #, as `#/nodes?q=east&sort=-price&why=node/east/ip-1`.

import { clean } from "./clean.js";
import { useEffect, useState } from "./vendor/preact-htm.js";

const listeners = new Set();

export function read(hash = location.hash) {
  const [view, query] = hash.replace(/^#\/?/, "").split("?", 2);
  const asked = Object.fromEntries([...new URLSearchParams(query ?? "")].map(([name, value]) => [name, clean(value)]));
  return { view: clean(decodeURIComponent(view)), asked };
}

export function href(view, asked = {}) {
  const given = Object.entries(asked).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return `#/${view}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
}

// What is typed replaces the last entry of the history; what is chosen adds one.
export function change(asked, { replace = false } = {}) {
  const now = read();
  const next = href(now.view, { ...now.asked, ...asked });
  if (next === location.hash) return;
  if (replace) history.replaceState(null, "", next);
  else history.pushState(null, "", next);
  tell();
}

function tell() {
  for (const each of listeners) each();
}

for (const name of ["hashchange", "popstate"]) addEventListener(name, tell);

export function useAddress() {
  const [state, setState] = useState(read);
  useEffect(() => {
    const look = () => setState(read());
    listeners.add(look);
    return () => listeners.delete(look);
  }, []);
  return state;
}

// What `why` names: a kind, and the names that lead to the object.
export const whyOf = (kind, ...names) => [kind, ...names].map(encodeURIComponent).join("/");
export const readWhy = (text) => text.split("/").map((each) => { try { return clean(decodeURIComponent(each)); } catch { return clean(each); } });
