// Call: what was asked of a model, how it ended, and its bill line by line.

import { html, useState } from "../vendor/htm-preact.mjs";
import { Card, CallLink, Empty, Problem, SessionLink, State, T, TIME, Table, Tags, Times, Trees, When, Words, tagOf, timeOf, useAnswer, useFilters } from "../parts.js";
import { Said } from "./session.js";
import { Waterfall } from "../waterfall.js";
import { costOf, count, duration, exactUsd, plural } from "../words.js";

const LIST = [
  { title: "Started", cell: (row) => html`<${When} us=${row.started_us} />` },
  { title: "Model", cell: (row) => html`<${T}>${row.model}<//>` },
  { title: "Outcome", cell: (row) => html`<${State} state=${row.status}>${row.error_class || row.stop_reason || row.status}<//>` },
  { title: "Attempt", class: "num", cell: (row) => row.attempt },
  { title: "In", class: "num", cell: (row) => row.usage ? count(input(row.usage)) : "–" },
  { title: "Out", class: "num", cell: (row) => row.usage ? count(row.usage.output_tokens) : "–" },
  { title: "First token", class: "num", cell: (row) => duration(row.first_ms) },
  { title: "Latency", class: "num", cell: (row) => duration(row.took_ms) },
  { title: "Cost", class: "num", cell: costOf },
  { title: "Call", class: "num", cell: (row) => html`<${CallLink} id=${row.request_id} />` },
];

const input = (usage) => usage.input_tokens + usage.cached_input_tokens + usage.cache_creation_input_tokens;

const OUTCOMES = ["", "started", "completed", "failed", "cancelled"];

function List({ onState }) {
  const [filters, change] = useFilters(["status", "model", "session", "tag", ...TIME]), [again, setAgain] = useState(0);
  const asked = { status: filters.status, model: filters.model, session_id: filters.session, tag: tagOf(filters.tag), ...timeOf(filters), limit: "100" };
  const query = new URLSearchParams(Object.entries(asked).filter(([, value]) => value));
  const { data, error } = useAnswer(`api/calls?${query}`, [again]);
  if (data) onState("live");
  return html`
    <div class="head"><div><h1>Calls</h1><p class="sub">One row for each attempt, newest first. The address of this page includes the filters.</p></div></div>
    <${Card}><form class="controls" onSubmit=${(event) => { event.preventDefault(); setAgain(again + 1); }}>
      <label class="field">Outcome<select value=${filters.status} onChange=${(event) => change({ status: event.target.value })}>
        ${OUTCOMES.map((each) => html`<option value=${each}>${each || "any"}</option>`)}</select></label>
      <${Times} filters=${filters} change=${change} />
      <${Words} label="Model" name="model" filters=${filters} change=${change} placeholder="provider:name, or a prefix with *" />
      <${Words} label="Session" name="session" filters=${filters} change=${change} placeholder="an id" />
      <${Words} label="Tag" name="tag" filters=${filters} change=${change} placeholder="team=search" />
      <button class="plain">Refresh</button></form><//>
    <${Problem} error=${error} />
    ${data && html`<${Card}><${Table} label="Calls" columns=${LIST} rows=${data} keyed=${(row) => row.request_id + row.attempt}
      empty=${html`<${Empty} title="No matching calls">The trace has the calls of all engines that write to it.<//>`} /><//>`}`;
}

function Prompt({ prompt }) {
  const { system_prompt: system, messages, left_out: left, reply, shown } = prompt;
  return html`<${Card} title="Prompt and reply" aside=${plural(messages.length + left, "message")}>
    ${system && html`<div class="bubble"><div class="kind small soft">system</div><div class="said" dir="auto">${system}</div></div>`}
    ${left > 0 && html`<p class="soft small">${plural(left, "earlier message")} not shown here</p>`}
    ${messages.map((message) => html`<${Said} key=${message.id} message=${message} shown=${shown} />`)}
    <${Said} message=${reply} shown=${shown} /><//>`;
}

const SOURCES = { computed: "computed from the price table", provider: "as the provider states it", unpriced: "no price" };
const perMillion = (pico) => `$${(pico / 1e6).toLocaleString("en-US", { maximumFractionDigits: 6 })}`;

const BILL = [
  { title: "Line", cell: (line) => html`${line.name.replaceAll("_", " ")}${line.rate_name && html` <span class="soft small">at the rate of ${line.rate_name}</span>`}` },
  { title: "Count", class: "num", cell: (line) => count(line.count) },
  { title: "Rate per million", class: "num", cell: (line) => perMillion(line.rate) },
  { title: "Amount", class: "num", cell: (line) => exactUsd(Math.round(line.pico_usd / 1000)), foot: (bill) => exactUsd(bill.nano_usd) },
];

function Bill({ bill, row }) {
  const current = row.cost && row.cost.pricing_version === bill.version;
  const atCall = row.at_call_time && row.at_call_time.pricing_version === bill.version;
  return html`<${Card} title=${html`<${T}>${bill.label || "Prices"}<//> <span class="mono soft">${bill.version}</span>`}
    aside=${[current && "current", atCall && "at call time"].filter(Boolean).map((word) => html`<span class="tag">${word}</span>`)}>
    ${bill.lines.length ? html`<${Table} label="Bill" columns=${BILL} rows=${bill.lines} foot=${bill} />` : html`<p class="soft">No price: <${T}>${bill.reason}<//></p>`}
    <p class="faint small">${bill.row && html`row <code><bdi>${bill.row}</bdi></code>, found by ${bill.rule}`}${bill.lines.length > 0 && bill.reason ? `; ${bill.reason}` : ""}</p>
    ${bill.note && html`<p class="faint small"><${T}>${bill.note}<//></p>`}<//>`;
}

const Fact = ({ name, children }) => html`<div><dt>${name}</dt><dd>${children}</dd></div>`;

function Attempt({ row, bills, many }) {
  const stated = row.cost && row.cost.source === "provider";
  return html`<${Card} title=${html`Attempt ${row.attempt} <${State} state=${row.status}>${row.status}<//>`} aside=${row.reason && row.reason !== "first" ? row.reason : ""}>
    <dl class="facts">
      <${Fact} name="Model"><${T}>${row.model}<//>${row.served_model && row.served_model !== row.model && html` <span class="soft">served by <${T}>${row.served_model}<//></span>`}<//>
      <${Fact} name="Started"><${When} us=${row.started_us} /><//>
      <${Fact} name="First token">${duration(row.first_ms)}<//>
      <${Fact} name="Latency">${duration(row.took_ms)}${row.waited_ms > 0 && html` <span class="soft">after ${duration(row.waited_ms)} of waits${row.attempt > 1 ? " and earlier attempts" : ""}</span>`}<//>
      ${row.stop_reason && html`<${Fact} name="Stopped">${row.stop_reason}${row.raw_stop_reason && html` <span class="soft">(<${T}>${row.raw_stop_reason}<//>)</span>`}<//>`}
      ${row.usage && html`<${Fact} name="Tokens">${count(row.usage.input_tokens)} uncached in, ${count(row.usage.cached_input_tokens)} from a cache,
        ${count(row.usage.cache_creation_input_tokens)} into it, ${count(row.usage.output_tokens)} out <span class="soft">(${row.usage.source})</span><//>`}
      <${Fact} name="Cost">${costOf(row)} ${row.cost && html`<span class="soft">${SOURCES[row.cost.source]}${row.cost.reason ? html`; <${T}>${row.cost.reason}<//>` : ""}</span>`}<//>
      ${row.facts.map(([name, value]) => html`<${Fact} name=${name}><${T} class="mono">${value}<//><//>`)}
    </dl>
    ${row.error_message && html`<p class="problem"><b>${row.error_type}</b>${row.provider_status ? ` ${row.provider_status}` : ""}: <bdi>${row.error_message}</bdi></p>`}
    ${row.warnings.length > 0 && html`<p class="note-box">Not as asked: ${row.warnings.join(", ")}</p>`}
    ${stated && html`<p class="note-box">The provider reported this cost. The bills below come from the price tables.</p>`}
    ${row.usage && html`<div class="columns bills">${bills.map((bill) => html`<${Bill} bill=${bill} row=${row} key=${bill.version} />`)}</div>`}
  <//>`;
}

const CANDIDATES = [
  { title: "Candidate", cell: (row) => html`<${T}>${row.model}<//>` },
  { title: "", cell: (row) => row.rejected ? html`<span class="soft"><${T}>${row.rejected}<//></span>` : html`<${State} state="ok">taken<//>` },
];

function One({ id, onState }) {
  const { data, error } = useAnswer(`api/calls/${encodeURIComponent(id)}`);
  if (data) onState("live");
  const last = data && data.attempts[data.attempts.length - 1];
  const routed = data && data.attempts.find((row) => row.routing);
  return html`
    <div class="head"><div><h1>Call <span class="mono">${id}</span></h1>
      ${last && html`<p class="sub">${plural(data.attempts.length, "attempt")}${last.session_id && html`, session <${SessionLink} id=${last.session_id} />`}
        ${last.caused_by && html`, after <${CallLink} id=${last.caused_by} />`} <${Tags} tags=${last.tags} /></p>`}</div></div>
    <${Problem} error=${error} />
    ${data && data.turn && html`<${Card} title="Turn" aside=${[data.turn.status ?? "in progress", plural(data.turn.bars.length, "step")].join(", ")}>
      <${Waterfall} turn=${data.turn} current=${id} /><//>`}
    ${data && html`<${Trees} trees=${data.trees} />`}
    ${data && data.attempts.map((row, index) => html`<${Attempt} key=${row.attempt} row=${row} bills=${data.bills[index]} />`)}
    ${data && (data.prompt ? html`<${Prompt} prompt=${data.prompt} />` : html`<${Card} title="Prompt and reply">
      <p class="soft">Not stored. An engine with capture_content=True stores the messages of a session after each reply.</p><//>`)}
    ${routed && routed.routing.candidates.length > 0 && html`<${Card} title="Routing" aside=${html`<span>requested <${T}>${routed.routing.requested}<//>, resolved by ${routed.routing.resolved_by}</span>`}>
      <${Table} label="Candidates" columns=${CANDIDATES} rows=${routed.routing.candidates} /><//>`}
    ${data && data.events.length > 0 && html`<${Card} title="Events"><div class="log">${data.events.map((event) => html`
      <div class="line" key=${event.event_id}><${When} us=${event.ts_us} /><span class="topic"><${T}>${event.topic}<//></span><span class="words"><${T}>${event.words}<//></span></div>`)}</div><//>`}`;
}

export const Calls = (props) => props.id ? html`<${One} key=${props.id} ...${props} />` : html`<${List} ...${props} />`;
