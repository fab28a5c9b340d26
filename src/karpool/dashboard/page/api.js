// Asking the server: answers as JSON, and a stream of version numbers that says what to ask for again.

import { cleaned, needsCleaning } from "./clean.js";

const KEY = "karpool-token";

export function takeToken() {
  const found = /^#token=(.*)$/.exec(location.hash);
  if (found) {
    sessionStorage.setItem(KEY, decodeURIComponent(found[1]));
    history.replaceState(null, "", location.pathname); // not in the address bar, not in the history
  }
}

export const setToken = (token) => sessionStorage.setItem(KEY, token);

function headers() {
  const token = sessionStorage.getItem(KEY);
  return token ? { Authorization: `Bearer ${token}` } : {};
}

export class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

// `asked`: what is undefined or empty is not asked for.
export function address(path, asked = {}) {
  const given = Object.entries(asked).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

export const path = (...parts) => parts.map(encodeURIComponent).join("/");

const flying = new Map(); // questions that are being asked

// Parts of the page that ask the same share one answer, if they have `seen` the same state of the server.
export function get(path, seen = "") {
  const question = `${seen} ${path}`;
  if (!flying.has(question)) flying.set(question, ask(path).finally(() => flying.delete(question)));
  return flying.get(question);
}

async function ask(path) {
  const answer = await fetch(`/api/v1/${path}`, { headers: headers() });
  const text = await answer.text();
  const body = readJson(text) ?? { detail: `the server answered ${answer.status}` };
  if (!answer.ok) throw new Refused(answer.status, cleaned(body.detail));
  return needsCleaning(text) ? cleaned(body) : body;
}

function readJson(text) {
  try { return JSON.parse(text); } catch { return null; }
}

// Follow for ever; a stream that ends is opened again, later and later.
export async function follow(onVersions, onState) {
  for (let failures = 0; ; failures += 1) {
    try {
      const quiet = new AbortController();
      const answer = await fetch("/api/v1/stream", { headers: headers(), signal: quiet.signal });
      if (!answer.ok) throw new Refused(answer.status, (await answer.json()).detail);
      onState("live");
      failures = 0;
      await read(answer.body.getReader(), onVersions, quiet);
      onState("lost", "the server closed the connection");
    } catch (error) {
      onState("lost", error.message, error.status);
    }
    await new Promise((done) => setTimeout(done, Math.min(15000, 500 * 2 ** failures)));
  }
}

// A server that lives says something every 15 s; a connection that died unnoticed says nothing.
const QUIET = 45000;

async function read(reader, onVersions, quiet) {
  const decoder = new TextDecoder();
  let held = "";
  for (;;) {
    const timer = setTimeout(() => quiet.abort(new Error("nothing was heard for 45 s")), QUIET);
    const { done, value } = await reader.read().finally(() => clearTimeout(timer));
    if (done) return;
    held += decoder.decode(value, { stream: true });
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").find((line) => line.startsWith("data: "));
      if (data) onVersions(JSON.parse(data.slice(6)));
    }
  }
}
