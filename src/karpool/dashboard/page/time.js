// Figures over the last hour, day and 30 days: hovered together, zoomed by dragging; the range is in the address.

import { change, useAddress } from "./address.js";
import { address } from "./api.js";
import { ClusterChoice } from "./cluster-choice.js";
import { amount, count, money } from "./format.js";
import { Choose, Heading } from "./parts.js";
import { useAnswer, useShown, useWidth } from "./store.js";
import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";

const RANGES = [["hour", "the last hour"], ["day", "the last day"], ["month", "the last 30 days"]];
const CHARTS = [
  ["Cost per hour", money, [["cost", "cost", "--s0"]]],
  ["Nodes", (value) => count(Math.round(10 * value) / 10), [["nodes", "nodes", "--s0"]]],
  ["CPU", (value) => amount("cpu", value), [["cpuRequested", "requested", "--s0"], ["cpuFree", "free", "--s1"]]],
  ["Memory", (value) => amount("memory", value), [["memoryRequested", "requested", "--s0"], ["memoryFree", "free", "--s1"]], 2 ** 30],
  ["Waiting pods", (value) => count(Math.round(10 * value) / 10), [["waiting", "waiting", "--s3"]]],
  ["Evictions", (value) => count(value), [["evictions", "pods told to leave", "--s4"]]],
  ["Promised replicas", (value) => count(Math.round(10 * value) / 10), [["promises", "promised", "--s3"]]],
];

export function View() {
  const { asked } = useAddress();
  const { data, error } = useAnswer(address("time", { range: asked.range, cluster: asked.cluster, begin: asked.begin, end: asked.end }), ["time"]);
  const [library, setLibrary] = useState(null);
  useEffect(() => { import("./vendor/uplot.js").then((module) => setLibrary(() => module.default)); }, []);
  useShown("time", (data || error) && library);
  const zoomed = asked.begin || asked.end;
  const some = data && data.series.nodes.some((value) => value !== null);
  return html`<${Heading} title="Time"><${ClusterChoice} all="the whole fleet" /><${Choose} id="range" name="range" label="Range" first="hour" options=${RANGES} />
      ${zoomed && html`<button type="button" onClick=${() => change({ begin: "", end: "" })}>Whole range</button>`}</${Heading}>
    <p class="lead">Means of what was seen; evictions are counted. Drag over a chart to zoom in. Where there is no line, nobody looked.</p>
    ${data?.remarks.length > 0 && html`<p class="badge warn">${data.remarks.join("; ")}</p>`}
    ${error && !data && html`<p class="empty">${error.message}</p>`}
    ${data && !some && html`<p class="empty">Nothing was seen in this time yet; a sample is taken every ten seconds.</p>`}
    ${library && some && html`<div class="charts">${CHARTS.map(([name, show, lines, unit]) => html`<${Chart} key=${name} library=${library} name=${name} show=${show} lines=${lines} unit=${unit} data=${data} />`)}</div>`}`;
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Round steps of an axis; `unit` is what one of them is called.
const steps = (unit = 1) => Array.from({ length: 36 }, (_, index) => unit * [1, 2, 5][index % 3] * 10 ** (Math.floor(index / 3) - 3));

function Chart({ library: UPlot, name, show, lines, unit, data }) {
  const [place, width] = useWidth(900);
  const root = useRef(null);
  const plot = useRef(null);
  const theme = document.documentElement.dataset.theme;
  const columns = [data.times, ...lines.map(([key]) => data.series[key])];
  useEffect(() => {
    if (!width) return undefined;
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 }, font: "12px system-ui" };
    const made = new UPlot({
      width, height: 190,
      cursor: { sync: { key: "karpool" }, drag: { x: true, y: false, setScale: false } },
      scales: { y: { range: (_, least, most) => [Math.min(0, least ?? 0), (most ?? 0) > 0 ? most * 1.1 : 1] } },
      axes: [axis, { ...axis, size: 76, incrs: steps(unit), values: (_, ticks) => ticks.map((value) => show(value)) }],
      series: [{ value: (_, at) => (at ? new Date(at * 1000).toLocaleString() : "–") }, ...lines.map(([key, label, stroke]) => ({ label, stroke: colour(stroke), width: 2, spanGaps: false, points: { show: data.times.length < 40 || data.series[key].filter((each) => each !== null).length < 40, size: 6 }, value: (_, value) => (value === null || value === undefined ? "–" : show(value)) }))],
      hooks: { setSelect: [(chart) => {
        if (chart.select.width < 8) return;
        const [begin, end] = [chart.posToVal(chart.select.left, "x"), chart.posToVal(chart.select.left + chart.select.width, "x")];
        chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        change({ begin: Math.floor(begin), end: Math.ceil(end) });
      }] },
    }, columns, root.current);
    plot.current = made;
    const legend = made.root.querySelector("table"); // for those who hear the page: what it is about, and what its heads head
    Object.assign(legend.createCaption(), { textContent: name, className: "unseen" });
    for (const head of legend.querySelectorAll("th")) head.scope = "row";
    return () => { made.destroy(); plot.current = null; };
  }, [width, theme]);
  useEffect(() => plot.current?.setData(columns), [data]);
  const known = lines.map(([key, label]) => {
    const values = data.series[key].filter((value) => value !== null);
    return values.length ? `${label}: ${show(values.at(-1))} last, ${show(Math.min(...values))} to ${show(Math.max(...values))}` : `${label}: nothing was seen`;
  });
  return html`<figure class="card chart" ref=${place}><figcaption class="row"><h2>${name}</h2><span class="soft small">${known.join(" · ")}</span></figcaption><div ref=${root} role="img" aria-label=${`${name}; ${known.join("; ")}`}></div></figure>`;
}
