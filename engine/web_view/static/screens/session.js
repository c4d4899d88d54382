// Session: what was said, by whom, at what cost; the swaps of models; and what another one would be sent.

import { html, useState } from "../vendor/htm-preact.mjs";
import { post } from "../net.js";
import { Card, CallLink, Empty, Problem, SessionLink, State, T, TIME, Table, Tags, Times, Trees, When, Words, timeOf, useAnswer, useFilters } from "../parts.js";
import { Waterfall } from "../waterfall.js";
import { bytes, costOf, count, duration, plural, usd } from "../words.js";

const LIST = [
  { title: "Session", cell: (row) => html`<${SessionLink} id=${row.session_id} name=${row.name} />` },
  { title: "State", cell: (row) => html`<${State} state=${row.open ? "live" : "idle"}>${row.open ? "open" : "stored"}<//>` },
  { title: "Model", cell: (row) => html`<${T}>${row.model || "–"}<//>` },
  { title: "Turns", class: "num", cell: (row) => row.stored ? count(row.stored.turns) : "–" },
  { title: "Calls", class: "num", cell: (row) => row.stored ? count(row.stored.calls) : "–" },
  { title: "Tokens out", class: "num", cell: (row) => row.stored ? count(row.stored.output_tokens) : "–" },
  { title: "Cost", class: "num", cell: (row) => row.stored ? `${usd(row.stored.cost_nano_usd)}${row.stored.unpriced + row.stored.unknown ? " + ?" : ""}` : "–" },
  { title: "Last", class: "num", cell: (row) => html`<${When} us=${row.stored && row.stored.last_us} />` },
  { title: "", cell: (row) => html`<${Tags} tags=${row.tags} />` },
];

const tagsIn = (row) => Object.entries(row.tags || {}).map(([key, value]) => `${key}=${value}`);

function List({ onState }) {
  const { data, error } = useAnswer("api/sessions");
  const [filters, change] = useFilters(["words", "tag", ...TIME]);
  if (data) onState("live");
  const { since, until } = timeOf(filters), wanted = filters.words.toLowerCase();
  const last = (row) => (row.stored ? row.stored.last_us : Date.now() * 1000);
  const rows = data && data.filter((row) => (!wanted || `${row.session_id} ${row.name ?? ""} ${row.model}`.toLowerCase().includes(wanted))
    && (!filters.tag || tagsIn(row).includes(filters.tag)) && (!since || last(row) >= Number(since)) && (!until || last(row) < Number(until)));
  return html`<div class="head"><div><h1>Sessions</h1><p class="sub">Sessions open in this engine, and sessions stored in the trace.</p></div></div>
    <${Card}><form class="controls" onSubmit=${(event) => event.preventDefault()}>
      <${Times} filters=${filters} change=${change} />
      <${Words} label="Name, id or model" name="words" filters=${filters} change=${change} placeholder="any part" />
      <${Words} label="Tag" name="tag" filters=${filters} change=${change} placeholder="team=search" /></form><//>
    <${Problem} error=${error} />
    ${rows && html`<${Card}><${Table} label="Sessions" columns=${LIST} rows=${rows} keyed=${(row) => row.session_id}
      empty=${html`<${Empty} title=${data.length ? "No matching sessions" : "No sessions yet"} />`} /><//>`}`;
}

function Part({ block }) {
  switch (block.kind) {
    case "text": return html`<div class="said" dir="auto">${block.text ?? ""}</div>`;
    case "thinking": return html`<div class="block thinking"><div class="kind">thinking</div><div class="said" dir="auto">${block.text ?? ""}</div></div>`;
    case "tooluse": return html`<div class="block tool"><div class="kind"><b>calls</b> <${T}>${block.name ?? "a tool"}<//></div>${block.input && html`<pre class="said" dir="auto">${JSON.stringify(block.input, null, 2)}</pre>`}</div>`;
    case "toolresult": return html`<div class="block tool"><div class="kind"><b>${block.is_error ? "failed" : "answers"}</b></div>
      ${typeof block.content === "string" ? html`<pre class="said" dir="auto">${block.content}</pre>` : (block.content ?? []).map((part) => html`<${Part} block=${part} />`)}</div>`;
    default: return html`<p class="soft">${block.kind}${block.bytes ? `, ${bytes(block.bytes)}` : ""}${block.url ? html`, <${T}>${block.url}<//>` : ""}</p>`;
  }
}

export function Said({ message, shown }) {
  return html`<div class="bubble ${message.role}">
    <div class="kind small soft">${message.role}${message.steers ? ", meanwhile" : ""}${message.model && html` · <${T}>${message.model}<//>`}
      ${message.nano_usd !== null && html` · ${usd(message.nano_usd)}`} ${message.request_id && html` · <${CallLink} id=${message.request_id} />`}</div>
    ${shown ? message.content.map((block) => html`<${Part} block=${block} />`) : html`<p class="faint">${message.content.map((block) => block.kind).join(", ")}, not shown</p>`}
    ${message.warnings.map((warning) => html`<p class="note-box">${warning.message}</p>`)}
  </div>`;
}

const CALLS = [
  { title: "Started", cell: (row) => html`<${When} us=${row.started_us} />` },
  { title: "Model", cell: (row) => html`<${T}>${row.model}<//>` },
  { title: "Outcome", cell: (row) => html`<${State} state=${row.status}>${row.error_class || row.status}<//>` },
  { title: "Attempt", class: "num", cell: (row) => row.attempt },
  { title: "Latency", class: "num", cell: (row) => duration(row.took_ms) },
  { title: "Cost", class: "num", cell: costOf },
  { title: "Call", class: "num", cell: (row) => html`<${CallLink} id=${row.request_id} />` },
];

function pretty(text) {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}

function Preview({ id }) {
  const models = useAnswer("api/models");
  const [model, setModel] = useState(""), [content, setContent] = useState("And now?"), [found, set] = useState(null), [error, fail] = useState(null);
  const look = (event) => {
    event.preventDefault();
    fail(null);
    post("api/preview", { session_id: id, model: model.trim(), content }).then(set, (problem) => { set(null); fail(problem); });
  };
  return html`<${Card} title="Preview a request to another provider" aside="no request is sent">
    <form class="controls" onSubmit=${look}>
      <label class="field grow">Model<input list="models" value=${model} placeholder="the current model" onInput=${(event) => setModel(event.target.value)} />
        <datalist id="models">${(models.data ?? []).map((each) => html`<option value=${each.id}></option>`)}</datalist></label>
      <label class="field grow">Next message<input value=${content} onInput=${(event) => setContent(event.target.value)} /></label>
      <button class="plain">Show</button></form>
    <${Problem} error=${error} />
    ${found && html`<div class="preview"><p class="sub"><b><${T}>${found.model}<//></b>${found.input_tokens !== null && html` · about ${plural(found.input_tokens, "token")} in`}
        ${found.input_nano_usd !== null ? html` · ${usd(found.input_nano_usd)} for the input` : found.refused ? "" : " · no price"}</p>
      ${found.refused && html`<p class="problem">This model can't be used: <bdi>${found.refused}</bdi></p>`}
      ${found.losses.map((loss) => html`<p class="note-box">${loss.message !== null && html`<b>message ${loss.message + 1}</b>, `}${loss.tool && html`<b><${T}>${loss.tool}<//></b>, `}<${T}>${loss.what}<//>: <${T}>${loss.reason}<//></p>`)}
      ${found.warnings.filter((warning) => warning.code !== "content_dropped" && !found.losses.some((loss) => loss.reason === warning.message)).map((warning) => html`<p class="note-box">${warning.message} <span class="faint">(${warning.code})</span></p>`)}
      ${found.body ? html`<p class="small soft">POST <code><bdi>${found.path}</bdi></code></p><pre class="json" dir="auto">${pretty(found.body)}</pre>` : found.refused ? "" : html`<p class="soft">This adapter can't show its requests.</p>`}</div>`}
  <//>`;
}

function One({ id, me, onState }) {
  const { data, error } = useAnswer(`api/sessions/${encodeURIComponent(id)}`);
  if (data) onState("live");
  return html`<div class="head"><div><h1>Session <span class="mono"><bdi>${(data && data.name) || id}</bdi></span></h1>
      ${data && html`<p class="sub">${plural(data.calls.length, "call")}, ${plural(data.messages.length, "stored message")} <${Tags} tags=${data.tags} /></p>`}</div></div>
    <${Problem} error=${error} />
    ${data && html`
      ${data.swaps.length > 0 && html`<${Card} title="Swaps">${data.swaps.map((swap) => html`<p key=${swap.ts_us}><span class="soft"><${When} us=${swap.ts_us} /></span> <${T}>${swap.previous}<//> → <b><${T}>${swap.current}<//></b></p>`)}<//>`}
      <${Card} title="Messages" aside=${data.missing.length ? plural(data.missing.length, "part is missing", "parts are missing") : ""}>
        ${data.system_prompt && html`<div class="bubble"><div class="kind small soft">system</div><div class="said" dir="auto">${data.system_prompt}</div></div>`}
        ${data.messages.length ? data.messages.map((message) => html`<${Said} key=${message.id} message=${message} shown=${data.shown} />`)
          : html`<${Empty} title="Content was not captured">${data.tags.origin ? "An import with --content stores the messages." : "An engine with capture_content=True stores the messages."}<//>`}<//>
      ${me.engine && me.content && html`<${Preview} id=${id} />`}
      <${Trees} trees=${data.trees} />
      ${data.turns.length > 0 && html`<${Card} title="Turns over time" aside="newest first">${data.turns.map((turn) => html`<div class="turn" key=${turn.turn_id}>
        <p class="small soft"><${When} us=${turn.start_us} /> · ${turn.status ?? "in progress"}</p><${Waterfall} turn=${turn} /></div>`)}<//>`}
      <${Card} title="Calls" aside=${html`<a href="#/calls?session=${encodeURIComponent(id)}">filter</a> <a href="#/events?session=${encodeURIComponent(id)}">events</a>`}><${Table} label="Calls of the session" columns=${CALLS} rows=${data.calls} keyed=${(row) => row.request_id + row.attempt} empty=${html`<${Empty} title="No call yet" />`} /><//>`}`;
}

export const Sessions = (props) => props.id ? html`<${One} key=${props.id} ...${props} />` : html`<${List} ...${props} />`;
