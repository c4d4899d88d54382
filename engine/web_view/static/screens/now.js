// Now: what is under way, how fast it comes, what it costs; and what has just ended.

import { html, useEffect, useRef, useState } from "../vendor/htm-preact.mjs";
import { listen, post } from "../net.js";
import { Card, CallLink, Chart, Empty, Figure, Problem, SessionLink, State, Sure, T, Table, Tags, When, indent } from "../parts.js";
import { costOf, costOfSum, count, duration, plural, usd } from "../words.js";

const POINTS = 120;

const spark = (colour) => ({
  legend: { show: false }, cursor: { show: false }, padding: [2, 0, 0, 0],
  axes: [{ show: false }, { show: false }],
  scales: { x: { time: false }, y: { range: (_, low, high) => [0, Math.max(high || 0, 1)] } },
  series: [{}, { stroke: colour("--accent"), fill: colour("--accent-soft"), width: 1.5, points: { show: false } }],
});

// The speed of all streams together: what they have said since the frame before.
function useSpeed(frame) {
  const before = useRef(null), [points, set] = useState([]);
  useEffect(() => {
    if (!frame) return;
    const last = before.current;
    before.current = { at: frame.ts_us, characters: frame.characters };
    if (!last || frame.ts_us <= last.at || frame.characters < last.characters) return;
    const rate = (frame.characters - last.characters) / 4 / ((frame.ts_us - last.at) / 1e6);
    set((old) => [...old.slice(1 - POINTS), { at: frame.ts_us / 1e6, rate }]);
  }, [frame]);
  return points;
}

function speed(item) {
  const ms = item.elapsed_ms - (item.first_token_ms ?? item.elapsed_ms);
  return item.stage === "replying" && ms > 300 ? `${Math.round(item.output_tokens / (ms / 1000))}/s` : "–";
}


function UnderWay({ items, total, may, onError }) {
  const cancel = (id) => post("api/cancel", { id }).catch(onError);
  const columns = [
    { title: "Model", cell: (item) => html`${indent(item.depth)}<${T}>${item.model}<//>${item.kind === "call" ? html` <span class="soft small">${item.operation}</span>` : ""}` },
    { title: "State", cell: (item) => html`<${State} state=${item.stage} />` },
    { title: "Session", cell: (item) => html`<${SessionLink} id=${item.session_id} name=${item.session_name} /> <${Tags} tags=${item.tags} />` },
    { title: "First token", class: "num", cell: (item) => duration(item.first_token_ms) },
    { title: "Tokens", class: "num", cell: (item) => count(item.output_tokens) },
    { title: "Speed", class: "num", cell: speed },
    { title: "Cost so far", class: "num", cell: (item) => html`${costOfSum(item.cost)}${item.below.calls > 0 && html` <span class="soft small" title="of the turns and calls that its tools made">+ ${costOfSum(item.below)}</span>`}` },
    { title: "Time", class: "num", cell: (item) => duration(item.elapsed_ms) },
    { title: "", class: "num", cell: (item) => item.kind === "turn" ? html`
      <a class="small" href="#/streams/${item.id}" aria-label="Watch ${item.model}">Watch</a>${" "}
      ${may && html`<${Sure} class="plain small" sure="Cancel it?" disabled=${item.stage === "ending"} onSure=${() => cancel(item.id)}>Cancel<//>`}` : "" },
  ];
  const more = total - items.length;
  return html`<${Card} title="In progress" aside=${total ? plural(total, "turn or call", "turns and calls") : ""}>
    <${Table} label="Turns and calls in progress" columns=${columns} rows=${items} keyed=${(item) => item.id}
      empty=${html`<${Empty} title="Nothing is in progress">Calls appear here when they start.<//>`} />
    ${more > 0 && html`<p class="soft small">and ${count(more)} more, which began later</p>`}
  <//>`;
}

const ENDED = [
  { title: "Ended", cell: (row) => html`<${When} us=${row.finished_us} />` },
  { title: "Model", cell: (row) => html`<${T}>${row.model}<//>` },
  { title: "Outcome", cell: (row) => html`<${State} state=${row.status}>${row.error_class || row.status}<//>` },
  { title: "Attempt", class: "num", cell: (row) => row.attempt },
  { title: "First token", class: "num", cell: (row) => duration(row.first_ms) },
  { title: "Latency", class: "num", cell: (row) => duration(row.took_ms) },
  { title: "Cost", class: "num", cell: costOf },
  { title: "Call", class: "num", cell: (row) => html`<${CallLink} id=${row.request_id} />` },
];

const OTHERS = [
  { title: "Started", cell: (row) => html`<${When} us=${row.started_us} />` },
  { title: "Model", cell: (row) => html`<${T}>${row.model}<//>` },
  { title: "Session", cell: (row) => html`<${SessionLink} id=${row.session_id} />` },
  { title: "Call", class: "num", cell: (row) => html`<${CallLink} id=${row.request_id} />` },
];

export function Now({ me, onState }) {
  const [frame, set] = useState(null), [error, fail] = useState(null);
  useEffect(() => listen("api/now", { now: set }, { onState }), []);
  const points = useSpeed(frame);
  if (!frame) return html`<h1>Now</h1>`;
  const rate = points.length ? points[points.length - 1].rate : 0;
  const waiting = (frame.turns_waiting ?? 0) + (frame.calls_waiting ?? 0) + (frame.budget_waiting ?? 0);
  const today = frame.today, running = frame.items.reduce((sum, item) => sum + item.cost.nano_usd, 0);
  const open = frame.items.length + frame.others.length;
  const loose = today ? today.unpriced + Math.max(0, today.unknown - open) : 0;
  return html`
    <div class="head"><h1>Now</h1>${frame.uptime_seconds ? html`<span class="soft small">up ${duration(frame.uptime_seconds * 1000)}</span>` : ""}</div>
    <${Problem} error=${error} />
    <div class="figures">
      <${Figure} label="In flight" value=${count(me.engine ? frame.total : frame.others.length)} note=${frame.streams ? plural(frame.streams.open, "open stream") : ""} />
      ${me.engine && html`<${Figure} label="Waiting" value=${count(waiting)} note="for a slot, a limit or a turn" />
      <${Figure} label="Tokens a second" value=${count(Math.round(rate))} class="speed">
        <div class="spark"><${Chart} make=${spark} height=${40} label="Tokens a second in the last minutes"
          data=${[points.map((point) => point.at), points.map((point) => point.rate)]} /></div><//>`}
      <${Figure} label="Cost today (UTC)" value=${today ? usd(today.cost_nano_usd) : me.trace ? "$0" : "–"}
        note=${[running ? `+ ≈ ${usd(running)} in progress` : "", loose ? `${plural(loose, "call")} without a price` : ""].filter(Boolean).join(", ") || (today ? plural(today.calls, "call") : "no trace")} />
    </div>
    ${me.engine && html`<${UnderWay} items=${frame.items} total=${frame.total} may=${me.scopes.includes("change")} onError=${fail} />`}
    ${(!me.engine || frame.others.length > 0) && html`<${Card} title=${me.engine ? "In progress in other processes" : "In progress"} aside="according to the trace">
      <${Table} label="Calls in progress in other processes" columns=${OTHERS} rows=${frame.others} keyed=${(row) => row.request_id + row.attempt}
        empty=${html`<${Empty} title="No calls in progress">The trace is checked every second.<//>`} /><//>`}
    ${frame.recent.length > 0 && html`<${Card} title="Recent calls" aside=${html`<a href="#/calls">all calls</a>`}>
      <${Table} label="Recent calls" columns=${ENDED} rows=${frame.recent.slice(0, 12)} keyed=${(row) => row.request_id + row.attempt} /><//>`}`;
}
