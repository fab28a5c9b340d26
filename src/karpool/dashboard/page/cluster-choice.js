// Which cluster a view is about: all, or one that is typed or chosen.

import { change, useAddress } from "./address.js";
import { useAnswer } from "./store.js";
import { html } from "./vendor/preact-htm.js";

export function ClusterChoice({ all = "all" }) {
  const { asked } = useAddress();
  const names = (useAnswer("clusters?limit=500&sort=name", ["fleet"]).data?.items ?? []).map((row) => row.name);
  const chosen = asked.cluster ?? "";
  const known = chosen && !names.includes(chosen) ? [chosen, ...names] : names;
  return html`<label class="field" for="cluster">Cluster<select id="cluster" value=${chosen} onChange=${(event) => change({ cluster: event.target.value })}>
    <option value="" selected=${!chosen}>${all}</option>${known.map((name) => html`<option value=${name} selected=${name === chosen}>${name}</option>`)}</select></label>`;
}
