// Costs: what was spent, under two price versions side by side; and the past priced anew, tried, done and undone.

import { html, useEffect, useMemo, useState } from "../vendor/htm-preact.mjs";
import { listen, post } from "../net.js";
import { Card, Chart, Empty, Figure, Problem, State, Sure, T, Table, When, useAnswer } from "../parts.js";
import { change, count, exactUsd, moment, percent, plural, usd } from "../words.js";

const BY = [["day", "day"], ["model", "model"], ["provider", "provider"], ["session_id", "session"], ["operation", "operation"], ["key", "key"], ["origin", "source"], ["tag:project", "project"]];
const CALL_TIME = "call-time";

const bars = (days) => (colour) => ({
  legend: { show: false }, cursor: { show: false }, padding: [8, 4, 0, 0],
  scales: { x: { time: false, range: [-0.6, days.length - 0.4] }, y: { range: (_, low, high) => [0, Math.max((high || 0) * 1.08, 1e-9)] } },
  axes: [
    { stroke: colour("--faint"), grid: { show: false }, ticks: { show: false }, splits: () => days.map((_, index) => index),
      values: (_, splits) => splits.map((index) => (days.length <= 14 || index % Math.ceil(days.length / 10) === 0 ? days[index].slice(5) : "")) },
    { stroke: colour("--faint"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, size: 68, values: (_, splits) => splits.map((value) => `$${value}`) },
  ],
  series: [{},
    { fill: colour("--left"), stroke: colour("--left"), width: 0, points: { show: false }, paths: uPlot.paths.bars({ size: [0.4, 40], align: -1, radius: 0.15 }) },
    { fill: colour("--right"), stroke: colour("--right"), width: 0, points: { show: false }, paths: uPlot.paths.bars({ size: [0.4, 40], align: 1, radius: 0.15 }) }],
});

function Days({ rows }) {
  const sorted = useMemo(() => [...rows].filter((row) => row.key[0]).sort((a, b) => (a.key[0] < b.key[0] ? -1 : 1)).slice(-60), [rows]);
  const days = sorted.map((row) => row.key[0]);
  const data = [days.map((_, index) => index), sorted.map((row) => (row.left ? row.left.nano_usd / 1e9 : null)), sorted.map((row) => (row.right ? row.right.nano_usd / 1e9 : null))];
  return days.length ? html`<${Chart} make=${bars(days)} again=${days.join()} data=${data} height=${190} label="Cost by day under both price versions" />` : null;
}

const side = (sum) => sum === null ? "–" : html`${usd(sum.nano_usd)}${sum.unpriced ? html` <span class="soft small">+ ${count(sum.unpriced)} unpriced</span>` : ""}`;
const total = (rows, name, field = "nano_usd") => rows.reduce((sum, row) => sum + (row[name] ? row[name][field] : 0), 0);
const whole = (rows, name) => side({ nano_usd: total(rows, name), unpriced: total(rows, name, "unpriced") });
const sum = (rows, field) => count(rows.reduce((all, row) => all + row[field], 0));
const latest = (a, b) => (a.key[0] < b.key[0] ? 1 : -1);

function Difference({ before, after }) {
  const by = after - before;
  if (!by) return html`<span class="faint">same</span>`;
  return html`<span class=${by > 0 ? "up" : "down"}>${change(by)} <span class="small">${percent(before, after)}</span></span>`;
}

function Sums({ data, by }) {
  const columns = [
    { title: BY.find(([value]) => value === by)?.[1] ?? by, cell: (row) => html`<${T}>${row.key[0] || "none"}<//>`, foot: () => "All" },
    { title: "Calls", class: "num", cell: (row) => count(row.calls), foot: (rows) => sum(rows, "calls") },
    { title: "Tokens in", class: "num", cell: (row) => count(row.input_tokens), foot: (rows) => sum(rows, "input_tokens") },
    { title: "out", class: "num", cell: (row) => count(row.output_tokens), foot: (rows) => sum(rows, "output_tokens") },
    { title: "Left", class: "num", cell: (row) => side(row.left), foot: (rows) => whole(rows, "left") },
    { title: "Right", class: "num", cell: (row) => side(row.right), foot: (rows) => whole(rows, "right") },
    { title: "Difference", class: "num", cell: (row) => row.left && row.right ? html`<${Difference} before=${row.left.nano_usd} after=${row.right.nano_usd} />` : "–",
      foot: (rows) => html`<${Difference} before=${total(rows, "left")} after=${total(rows, "right")} />` },
  ];
  return html`<${Table} label="Sums" columns=${columns} rows=${by === "day" ? [...data].sort(latest) : data} foot=${data} keyed=${(row) => row.key.join("/")}
    empty=${html`<${Empty} title="No call has ended yet" />`} />`;
}

function names(prices) {
  const found = new Map();
  if (prices.engine) found.set(prices.engine.version, prices.engine);
  for (const table of prices.tables) found.set(table.version, table);
  return found;
}

const called = (table) => `${table.label || "prices"} (${table.version})`;

function SidePicker({ label, value, prices, onChange }) {
  const applied = [...new Set(prices.runs.filter((run) => run.state === "finished").map((run) => run.version))];
  const tables = names(prices);
  return html`<label class="field">${label}<select value=${value} onChange=${(event) => onChange(event.target.value)}>
    <option value="">current</option><option value=${CALL_TIME}>at call time</option>
    ${applied.map((version) => html`<option value=${version}>${tables.has(version) ? called(tables.get(version)) : version}</option>`)}</select></label>`;
}

const EFFECT = [
  { title: "Model or day", cell: (row) => html`<${T}>${row.model ?? row.day}<//>`, foot: () => "All" },
  { title: "Calls", class: "num", cell: (row) => count(row.calls), foot: (report) => count(report.calls) },
  { title: "Before", class: "num", cell: (row) => exactUsd(row.before_nano_usd), foot: (report) => exactUsd(report.sum_before_nano_usd) },
  { title: "After", class: "num", cell: (row) => exactUsd(row.after_nano_usd), foot: (report) => exactUsd(report.sum_after_nano_usd) },
  { title: "Difference", class: "num", cell: (row) => html`<${Difference} before=${row.before_nano_usd} after=${row.after_nano_usd} />`,
    foot: (report) => html`<${Difference} before=${report.sum_before_nano_usd} after=${report.sum_after_nano_usd} />` },
  { title: "Not included", cell: (row) => [row.unpriced && `${count(row.unpriced)} unpriced`, row.newly_priced && `${count(row.newly_priced)} newly priced`,
    row.no_longer_priced && `${count(row.no_longer_priced)} no longer priced`].filter(Boolean).join(", ") },
];

function Report({ report }) {
  const words = report.dry_run || report.as_model ? "Trial, nothing changed" : "Done";
  return html`<div class="report" data-report=${report.dry_run ? "dry" : "done"}>
    <div class="figures">
      <${Figure} label="Before" value=${usd(report.sum_before_nano_usd)} note=${plural(report.calls - report.unpriced - report.newly_priced, "call")} />
      <${Figure} label="After" value=${usd(report.sum_after_nano_usd)} note=${report.label} />
      <${Figure} label=${words} value=${html`<${Difference} before=${report.sum_before_nano_usd} after=${report.sum_after_nano_usd} />`}
        note=${[report.estimated && `${count(report.estimated)} estimated`, report.unknown && `${count(report.unknown)} unknown`, report.in_flight && `${count(report.in_flight)} in progress`].filter(Boolean).join(", ")} />
    </div>
    <${Table} label="Effect by model" columns=${EFFECT} rows=${report.models} foot=${report} />
    ${report.days.length > 1 && html`<details><summary class="soft small">by day</summary><${Table} label="Effect by day" columns=${EFFECT} rows=${report.days} /></details>`}
  </div>`;
}

function Reprice({ me, prices, job, onError }) {
  const tables = [...names(prices).values()];
  const [version, setVersion] = useState("published"), [model, setModel] = useState(""), [alsoNew, setAlsoNew] = useState(false), [asked, ask] = useState("");
  const may = me.scopes.includes("change"), running = job.state === "running";
  const latest = prices.runs.find((run) => run.state === "finished");
  const start = (dry_run) => {
    ask("");
    post("api/reprice", { version, dry_run, for_new_calls: alsoNew && !dry_run, where: model.trim() ? { model: model.trim() } : {} }).catch(onError);
  };
  const undo = () => post("api/undo").catch(onError);
  return html`<${Card} title="Reprice past calls" aside="events and costs at call time do not change">
    <div class="controls">
      <label class="field grow">Prices<select value=${version} disabled=${running} onChange=${(event) => setVersion(event.target.value)}>
        <option value="published">the published table (${prices.published.version})</option>
        ${prices.engine && html`<option value="engine">this engine (${prices.engine.version})</option>`}
        ${tables.map((table) => html`<option value=${table.version}>${called(table)}</option>`)}</select></label>
      <label class="field">Model<input value=${model} placeholder="all" disabled=${running} onInput=${(event) => setModel(event.target.value)} /></label>
      ${me.engine && html`<label class="small soft"><input type="checkbox" checked=${alsoNew} disabled=${running} onChange=${(event) => setAlsoNew(event.target.checked)} /> also for new calls</label>`}
      <button type="button" class="plain" disabled=${running || !may} onClick=${() => start(true)}>Try</button>
      <${Sure} sure="Reprice now?" disabled=${running || !may} onSure=${() => start(false)}>Reprice<//>
      <${Sure} class="plain" sure="Undo?" disabled=${running || !may || !latest} onSure=${undo}>Undo the latest<//>
    </div>
    ${!may && html`<p class="soft small">This sign-in is read-only.</p>`}
    ${running && html`<p class="soft small" role="status">${job.dry_run ? "Trying" : "Repricing"} … ${job.last ? `${count(job.done)} of ${count(job.last)}` : ""}</p><progress value=${job.last ? job.done : null} max=${job.last || null}></progress>`}
    ${job.state === "failed" && html`<${Problem} error=${job.error} />`}
    ${job.state === "done" && job.report && html`<${Report} report=${job.report} />`}
  <//>`;
}

const RUNS = [
  { title: "Finished", cell: (run) => html`<${When} us=${run.finished_us} />` },
  { title: "Prices", cell: (run) => html`<${T}>${run.label || "prices"}<//> <span class="mono soft">${run.version}</span>` },
  { title: "State", cell: (run) => html`<${State} state=${run.state === "finished" ? "done" : run.state === "undone" ? "idle" : "lost"}>${run.state}<//>` },
  { title: "Calls", class: "num", cell: (run) => run.calls === null ? "–" : count(run.calls) },
  { title: "Before", class: "num", cell: (run) => run.sum_before_nano_usd === null ? "–" : usd(run.sum_before_nano_usd) },
  { title: "After", class: "num", cell: (run) => run.sum_after_nano_usd === null ? "–" : usd(run.sum_after_nano_usd) },
];

const amounts = (requests, tokens) => [requests && `${count(requests)} requests`, tokens && `${count(tokens)} tokens`].filter(Boolean).join(", ");

const CLIENTS = [
  { title: "Client", cell: (row) => html`<${T}>${row.name}<//>${row.revoked_us === null ? "" : html` <${State} state="lost">revoked<//>`}` },
  { title: "Budget", cell: (row) => row.budget_nano_usd === null ? "–" : `${usd(row.budget_nano_usd)}${row.window ? ` a ${row.window}` : ""}` },
  { title: "Spent", class: "num", cell: (row) => row.spent_nano_usd === null ? "–" : usd(row.spent_nano_usd) },
  { title: "Left", class: "num", cell: (row) => row.left_nano_usd === null ? "–" : usd(row.left_nano_usd) },
  { title: "Models", cell: (row) => html`<${T}>${row.models.join(", ") || "all"}<//>` },
  { title: "A minute", cell: (row) => amounts(row.requests_per_minute, row.tokens_per_minute) || "–" },
  { title: "Calls so far", class: "num", cell: (row) => count(row.calls) },
  { title: "Cost so far", class: "num", cell: (row) => usd(row.cost_nano_usd) },
];

export function Costs({ me, onState }) {
  const [by, setBy] = useState("day"), [tag, setTag] = useState(""), [left, setLeft] = useState(CALL_TIME), [right, setRight] = useState("");
  const [job, setJob] = useState({ state: "idle", changed: 0 }), [error, fail] = useState(null);
  useEffect(() => (me.trace ? listen("api/repricing", { repricing: setJob }, { onState }) : undefined), []);
  const dimension = by === "tag" ? `tag:${tag.trim()}` : by;
  const ready = me.trace && (by !== "tag" || tag.trim());
  const query = new URLSearchParams({ by: dimension, left, right });
  const sums = useAnswer(ready ? `api/costs?${query}` : null, [job.changed]);
  const prices = useAnswer(me.trace ? "api/prices" : null, [job.changed, job.state]);
  const clients = useAnswer(me.trace ? "api/clients" : null, [job.changed]);
  useEffect(() => { if (job.state === "running") fail(null); }, [job.state]);
  if (!me.trace) return html`<h1>Costs</h1><${Card}><${Empty} title="No trace is kept">There are no recorded costs.<//><//>`;
  return html`
    <div class="head"><div><h1>Costs</h1><p class="sub">Compare two price versions. Calls of unknown cost are not included in sums and are counted separately.</p></div></div>
    <${Problem} error=${error || sums.error || prices.error || clients.error} />
    ${prices.data && html`<${Card}><div class="controls">
      <label class="field">By<select value=${by} onChange=${(event) => setBy(event.target.value)}>
        ${BY.map(([value, text]) => html`<option value=${value}>${text}</option>`)}<option value="tag">a tag</option></select></label>
      ${by === "tag" && html`<label class="field">Tag<input value=${tag} placeholder="team" onInput=${(event) => setTag(event.target.value)} /></label>`}
      <${SidePicker} label="Left" value=${left} prices=${prices.data} onChange=${setLeft} />
      <${SidePicker} label="Right" value=${right} prices=${prices.data} onChange=${setRight} />
      <span class="legend"><span><i class="left"></i>left</span><span><i class="right"></i>right</span></span>
    </div>
    ${sums.data && by === "day" && html`<${Days} rows=${sums.data} />`}
    ${sums.data && html`<${Sums} data=${sums.data} by=${by} />`}<//>`}
    ${clients.data && clients.data.length > 0 && html`<${Card} title="Clients of the gateway" aside="spent and left in the current window of each budget">
      <${Table} label="Clients" columns=${CLIENTS} rows=${clients.data} keyed=${(row) => row.name} /><//>`}
    ${prices.data && html`<${Reprice} me=${me} prices=${prices.data} job=${job} onError=${fail} />`}
    ${prices.data && prices.data.runs.length > 0 && html`<${Card} title="Repricings so far"><${Table} label="Repricings" columns=${RUNS} rows=${prices.data.runs} keyed=${(run) => run.id} /><//>`}`;
}
