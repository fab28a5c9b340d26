// Live events of all clusters, the newest first.

import { useAddress } from "./address.js";
import { address } from "./api.js";
import { ClusterChoice } from "./cluster-choice.js";
import { clock, plural } from "./format.js";
import { Badge, Choose, Empty, Find, Heading, Table, useMore, Why } from "./parts.js";
import { useAnswer, useShown } from "./store.js";
import { html, useRef, useState } from "./vendor/preact-htm.js";

const COLUMNS = [
  { name: "When", cell: (event) => html`<span class="line">${clock(event.at)}</span>` },
  { name: "Type", cell: (event) => html`<${Badge} kind=${event.type === "Warning" ? "warn" : "accent"}>${event.type}</${Badge}>` },
  { name: "Cluster", cell: (event) => html`<span class="name">${event.cluster}</span>` },
  { name: "Object", cell: (event) => html`<span class="object">${event.object}</span>` },
  { name: "Reason", cell: (event) => html`<b class="object">${event.reason}</b>` },
  { name: "Message", cell: (event) => `${event.message}${event.count > 1 ? ` (${event.count} times)` : ""}` },
  { name: "Why", cell: (event) => html`<${Why} about=${`${event.reason} of ${event.object}`} of=${["event", event.cluster, event.object, event.reason]} />` },
];

export function View() {
  const { asked } = useAddress();
  const [typed, setTyped] = useState(null);
  const [paused, setPaused] = useState(false);
  const [limit, more] = useMore(100);
  const { data } = useAnswer(address("events", { cluster: asked.cluster, type: asked.type, q: asked.q }), ["events"]);
  const held = useRef(null);
  if (!paused || !held.current) held.current = data;
  useShown("events", data);
  const words = (typed ?? asked.q ?? "").trim().toLowerCase();
  const items = (held.current?.items ?? []).filter((event) => !words || [event.object, event.reason, event.message, event.cluster].some((text) => text.toLowerCase().includes(words)));
  return html`<${Heading} title="Live events"><${Find} id="event-text" placeholder="object, reason or message" onType=${setTyped} /><${ClusterChoice} />
      <${Choose} id="event-type" name="type" label="Type" options=${[["", "all"], ["Warning", "warnings"], ["Normal", "normal"]]} />
      <button type="button" aria-pressed=${String(paused)} onClick=${() => setPaused(!paused)}>${paused ? "Go on" : "Pause"}</button></${Heading}>
    ${data && !items.length && html`<${Empty}>${data.items.length || words || asked.type || asked.cluster ? "No event matches." : "No events yet."}</${Empty}>`}
    ${items.length > 0 && html`<div class="card"><${Table} caption="Events" columns=${COLUMNS} items=${items.slice(0, limit)} itemKey=${(event) => [event.cluster, event.object, event.reason, event.at, event.message].join("\0")} />${more(items.length)}
      ${data?.leftOut > 0 && html`<p class="soft small">${plural(data.leftOut, "older event")} are not listed</p>`}</div>`}`;
}
