// Providers: who can be asked, until when one is left alone, how much room is left, and why a candidate was not taken.

import { html } from "../vendor/htm-preact.mjs";
import { Card, CallLink, Empty, State, T, Table, When, useLive, useTick } from "../parts.js";
import { count, duration, plural } from "../words.js";

const STATES = ["available", "degraded", "unavailable", "probing"];

const Machine = ({ state }) => html`<div class="machine" role="img" aria-label="state: ${state}">
  ${STATES.map((each) => html`<span class="${each} ${each === state ? "on" : ""}">${each}</span>`)}</div>`;

function Countdown({ until }) {
  const left = until / 1000 - useTick(1000);
  return until ? html`<span class="soft small">${left > 0 ? `retry in ${duration(Math.ceil(left / 1000) * 1000)}` : "retry possible now"}</span>` : null;
}

function Room({ limit }) {
  const part = limit.limit ? Math.max(0, Math.min(1, limit.left / limit.limit)) : 0;
  return html`<div class="room"><div class="small soft">${limit.kind}${limit.model && html` of <${T}>${limit.model}<//>`}${limit.key && html`, key <${T}>${limit.key}<//>`}
    <span class="faint"> ${limit.source}</span> · ${count(Math.round(limit.left))} of ${count(Math.round(limit.limit))} left</div>
    <div class="bar"><i style=${{ width: `${part * 100}%` }}></i></div></div>`;
}

function Provider({ name, configured, running, known }) {
  const own = known.find((each) => !each.model), models = known.filter((each) => each.model);
  const state = configured === "not_configured" ? "not configured" : own ? own.state : "available";
  return html`<${Card} title=${html`<${State} state=${state === "not configured" ? "idle" : state}><${T}>${name}<//><//>`}
      aside=${running ? (running.running ? "running" : "down") : configured === "configured" ? "not used yet" : ""}>
    ${configured === "not_configured" ? html`<p class="soft">Its key is not set.</p>` : html`<${Machine} state=${state} />`}
    ${own && html`<p><${T}>${own.reason}<//> <${Countdown} until=${own.retry_at_us} /></p>`}
    ${models.map((each) => html`<div key=${each.model}><p class="small"><${State} state=${each.state}><${T}>${each.model}<//><//> <span class="soft"><${T}>${each.reason}<//></span> <${Countdown} until=${each.retry_at_us} /></p></div>`)}
    ${running && html`<p class="small soft">${count(running.in_flight)} of ${plural(running.slots, "slot")} in use${running.waiting ? `, ${count(running.waiting)} wait` : ""}</p>
      <div class="bar"><i style=${{ width: `${Math.min(100, (running.in_flight / Math.max(running.slots, 1)) * 100)}%` }}></i></div>
      ${running.rate_limits.map((limit, index) => html`<${Room} key=${index} limit=${limit} />`)}
      ${running.rate_limit_queues.map((queue) => html`<p class="small up" key=${queue.model + queue.key}>${plural(queue.waiting, "call")} to <${T}>${queue.model}<//> wait: ${queue.why}, ${duration(queue.opens_in_seconds * 1000)}</p>`)}`}
  <//>`;
}

const REJECTED = [
  { title: "When", cell: (row) => html`<${When} us=${row.started_us} />` },
  { title: "Rejected", cell: (row) => html`<${T}>${row.model}<//>` },
  { title: "Reason", cell: (row) => html`<${T}>${row.why}<//>` },
  { title: "Chosen", cell: (row) => html`<${T}>${row.taken}<//>` },
  { title: "Call", class: "num", cell: (row) => html`<${CallLink} id=${row.request_id} />` },
];

const rank = { unavailable: 0, probing: 1, degraded: 2 };

export function Providers({ onState }) {
  const data = useLive("api/providers", "providers", onState);
  if (!data) return html`<h1>Providers</h1>`;
  const names = [...new Set([...Object.keys(data.configured), ...data.providers.map((each) => each.provider), ...data.availability.map((each) => each.provider)])];
  const of = (name) => ({
    name, configured: data.configured[name], running: data.providers.find((each) => each.provider === name),
    known: data.availability.filter((each) => each.provider === name),
  });
  const order = (item) => Math.min(...item.known.map((each) => rank[each.state] ?? 3), item.running ? 4 : item.configured === "configured" ? 5 : 6);
  const items = names.map(of).sort((a, b) => order(a) - order(b) || (a.name < b.name ? -1 : 1));
  return html`<div class="head"><div><h1>Providers</h1><p class="sub">Which providers are available, and when the others are retried.</p></div></div>
    ${items.length ? html`<div class="columns providers">${items.map((item) => html`<${Provider} key=${item.name} ...${item} />`)}</div>`
      : html`<${Card}><${Empty} title="No providers" /><//>`}
    <div class="gap"></div>
    ${data.rejected.length > 0 && html`<${Card} title="Rejected candidates"><${Table} label="Rejected candidates" columns=${REJECTED} rows=${data.rejected} /><//>`}`;
}
