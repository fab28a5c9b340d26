// What the server said: answers that are asked for again when something they are made from changed.

import { get } from "./api.js";
import { serverTime } from "./format.js";
import { useEffect, useLayoutEffect, useRef, useState } from "./vendor/preact-htm.js";

const PACE = 1000; // an answer is asked for at most once a second, however busy the fleet is
const listeners = new Set();
export const state = { versions: {}, epoch: 0, live: "connecting", why: "", trouble: "", locked: false, file: null };

export function set(changes) {
  Object.assign(state, changes);
  for (const each of listeners) each();
}

export function useStore() {
  const [, turn] = useState(0);
  useEffect(() => {
    const look = () => turn((number) => number + 1);
    listeners.add(look);
    return () => listeners.delete(look);
  }, []);
  return state;
}

export const stamp = (areas) => [state.epoch, ...areas.map((area) => state.versions[area] ?? 0)].join("-");

export function failed(error) {
  if (error.status === 401) return set({ locked: true });
  if (error.status === 404 || error.status === 422) return undefined; // said where it was asked for
  return set({ trouble: `The figures could not be read: ${error.message}. They may be stale; the page tries again.` });
}

// The answer to `address`, kept while the next one is on its way. `areas` say when it is old; none: never.
export function useAnswer(address, areas) {
  const store = useStore();
  const [answer, setAnswer] = useState({ address: null, data: null, error: null });
  const latest = useRef({ address: null, at: 0 }); // the question that was asked last
  const seen = stamp(areas);
  useEffect(() => () => { latest.current = null; }, []);
  useLayoutEffect(() => {
    if (address === null) return undefined;
    const ask = async () => {
      const question = latest.current = { address, at: Date.now() };
      try {
        const data = await get(address, seen);
        if (latest.current !== question) return;
        if (data.at) serverTime(data.at);
        if (store.trouble) set({ trouble: "" });
        setAnswer({ address, data, error: null });
      } catch (error) {
        if (latest.current !== question) return;
        failed(error);
        setAnswer((before) => ({ address, data: before.address === address ? before.data : null, error }));
      }
    };
    // Another question: at once. The same one: not more often than the pace.
    const wait = latest.current.address === address ? latest.current.at + PACE - Date.now() : 0;
    if (wait <= 0) { ask(); return undefined; }
    const timer = setTimeout(ask, wait);
    return () => clearTimeout(timer);
  }, [address, seen]);
  return answer;
}

// Draw again every second while something counts.
export function useTick() {
  const [, turn] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => { if (!document.hidden) turn((number) => number + 1); }, 1000);
    return () => clearInterval(timer);
  }, []);
}

// Says to the outside which view has its figures.
export function useShown(name, data) {
  useEffect(() => { if (data) document.getElementById("main").dataset.shown = name; }, [name, Boolean(data)]);
}

const narrow = matchMedia("(max-width: 720px)");

export function useNarrow() {
  const [is, setIs] = useState(narrow.matches);
  useEffect(() => {
    const look = () => setIs(narrow.matches);
    narrow.addEventListener("change", look);
    return () => narrow.removeEventListener("change", look);
  }, []);
  return is;
}

// How wide an element is, in pixels, for pictures that are drawn for their place.
export function useWidth(most) {
  const place = useRef(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const look = () => {
      const style = getComputedStyle(place.current);
      setWidth(Math.max(300, Math.min(most, Math.floor(place.current.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight)))));
    };
    const observer = new ResizeObserver(look);
    observer.observe(place.current);
    look();
    return () => observer.disconnect();
  }, []);
  return [place, width];
}
