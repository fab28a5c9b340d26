// Scale-ups as timelines: no device, smart pod, claim, machine, node, devices, retry.

import { ago, clock, lasting, now, plural } from "./format.js";
import { Badge, Empty, Heading, Why } from "./parts.js";
import { useAnswer, useShown, useTick } from "./store.js";
import { html } from "./vendor/preact-htm.js";

const KINDS = { Completed: "good", Ended: "good", Exhausted: "bad", Rejected: "bad", Backoff: "warn", Cancelled: "" };

export function View() {
  useTick();
  const { data } = useAnswer("scale-ups", ["scale-ups"]);
  useShown("scale-ups", data);
  return html`<${Heading} title="Scale-ups" lead="A worker that finds no device wakes the autoscaler through a smart pod. Each line is one node that was asked for, from the failure to the retry." />
    ${data?.problems.length > 0 && html`<p class="badge warn">${data.problems.join("; ")}</p>`}
    ${data && !data.items.length && html`<${Empty}>No scale-ups: no worker waits for a GPU node.</${Empty}>`}
    ${(data?.items ?? []).map((row) => html`<${ScaleUp} key=${`${row.cluster}/${row.name}`} row=${row} />`)}`;
}

function ScaleUp({ row }) {
  const id = `scale-up-${row.cluster}-${row.name}`;
  const facts = [row.cluster, row.demand, row.over ? "" : `${plural(row.waiting, "worker")} waiting`, `attempt ${row.attempt}, round ${row.round}`, row.endedAt ? `took ${lasting(row.endedAt - row.firstSeen)}, ended ${ago(row.endedAt)}` : `began ${ago(row.firstSeen)}`];
  const next = row.nextAttempt && !row.over && row.nextAttempt > now() ? `; next attempt in ${lasting(row.nextAttempt - now())}` : "";
  return html`<section class="card" aria-labelledby=${id}><div class="head"><div class="row"><h2 id=${id} class="break">${`${row.model === "*" ? "Any GPU" : row.model} in ${row.pool || "any pool"}`}</h2><${Badge} kind=${KINDS[row.state] ?? "accent"}>${row.state}</${Badge}></div>
      <${Why} about=${`scale-up ${row.name}`} of=${["scale-up", row.cluster, row.name]} /></div>
    <p class="soft small break">${facts.filter(Boolean).join(" · ")}</p><p class="break">${row.means}${next}</p>
    <div class="units">${row.units.map((unit) => html`<${Unit} key=${unit.index} unit=${unit} record=${row} />`)}</div></section>`;
}

function Unit({ unit, record }) {
  const steps = unit.steps.map((step, index) => {
    const before = unit.steps.slice(0, index).findLast((each) => each.at);
    const took = step.at && before && step.at >= before.at ? `+${lasting(step.at - before.at)}` : "";
    const words = { done: "done", now: "under way", waiting: "not yet", failed: `failed${unit.ended ? `: ${unit.ended}` : ""}` }[step.state];
    const since = step.state === "now" && before ? `for ${lasting(now() - before.at)}` : "";
    const when = step.at ? html`${clock(step.at)} ${took && html`<span class="took">${took}</span>`}` : step.state === "waiting" ? "" : since || words;
    return html`<li class=${`stop ${step.state}`} aria-current=${step.state === "now" ? "step" : undefined}><span class="pin" aria-hidden="true">${{ done: "✓", failed: "✕" }[step.state] ?? ""}</span><b>${step.name}</b><span class="unseen">, ${words}</span><span class="soft small">${when}</span></li>`;
  });
  return html`<div class="unit"><p class="soft small break">${`Node ${unit.index + 1}: ${unit.candidate.replaceAll("|", " or ")}${unit.ended ? ` — ended: ${unit.ended}` : ""}`}</p><ol class="timeline" aria-label=${`Timeline of node ${unit.index + 1} of ${record.name}`}>${steps}</ol></div>`;
}
