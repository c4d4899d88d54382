// Supervision: running, waiting and crashed actors, and the backlog of each subscriber.

import { html } from "../vendor/htm-preact.mjs";
import { Card, Empty, Figure, State, T, Table, When, useLive } from "../parts.js";
import { count, duration, moment, plural } from "../words.js";

function Node({ child }) {
  const actor = child.actor, below = child.supervisor;
  const state = child.phase === "ended" ? (child.last_crash ? "crashed" : "idle") : child.phase;
  return html`<li><div class="node"><${State} state=${state}><b><${T}>${child.name}<//></b><//>
      <span class="soft small">${child.phase}${child.uptime_seconds ? ` for ${duration(child.uptime_seconds * 1000)}` : ""}</span>
      ${actor && html`<span class="soft small" title="waiting messages">mailbox ${count(actor.mailbox)}/${count(actor.capacity)}</span>
        <span class="soft small">${plural(actor.tasks, "task")}</span> ${actor.rejected > 0 && html`<span class="small up">${plural(actor.rejected, "message")} rejected</span>`}`}
      ${child.restarts > 0 && html`<span class="small up">${plural(child.restarts, "restart")}</span>`}</div>
    ${child.last_crash && html`<div class="crash">last crash ${moment(child.crashed_us)}: <bdi>${child.last_crash}</bdi></div>`}
    ${below && below.children.length > 0 && html`<ul>${below.children.map((each) => html`<${Node} key=${each.name} child=${each} />`)}</ul>`}</li>`;
}

const READERS = [
  { title: "Subscriber", cell: (row) => html`<${T}>${row.name}<//>` },
  { title: "Policy", cell: (row) => row.policy },
  { title: "Waiting", class: "num", cell: (row) => count(row.depth) },
  { title: "Oldest waiting", class: "num", cell: (row) => duration(row.oldest_age_ms) },
  { title: "Delivered", class: "num", cell: (row) => count(row.delivered) },
  { title: "Dropped", class: "num", cell: (row) => count(row.dropped) },
];

const ACTORS = [
  { title: "Actor", cell: (row) => html`<${T}>${row.actor}<//>` },
  { title: "Last event", cell: (row) => html`<${When} us=${row.ts_us} /> <span class="soft">${row.type.split(".")[1]}</span>` },
  { title: "", cell: (row) => html`<${T}>${row.error ?? row.reason ?? ""}<//>` },
];

const walk = (tree) => tree.children.flatMap((child) => [child, ...(child.supervisor ? walk(child.supervisor) : [])]);

export function Supervision({ onState }) {
  const data = useLive("api/supervision", "supervision", onState);
  if (!data) return html`<h1>Supervision</h1>`;
  if (!data.tree) return html`<div class="head"><div><h1>Supervision</h1><p class="sub">According to the trace. The process that writes it has the full tree.</p></div></div>
    <${Card}><${Table} label="Actors" columns=${ACTORS} rows=${data.actors} empty=${html`<${Empty} title="No actor events yet" />`} /><//>`;
  const all = walk(data.tree);
  return html`<div class="head"><div><h1>Supervision</h1><p class="sub">The supervision tree: running, waiting and crashed actors.</p></div></div>
    <div class="figures">
      <${Figure} label="Actors" value=${count(all.filter((child) => child.actor).length)} note="up ${duration(data.uptime_seconds * 1000)}" />
      <${Figure} label="Messages waiting" value=${count(all.reduce((sum, child) => sum + (child.actor ? child.actor.mailbox : 0), 0))} />
      <${Figure} label="Restarts" value=${count(all.reduce((sum, child) => sum + child.restarts, 0))} />
      <${Figure} label="Dead letters" value=${count(data.bus.dead_letters)} note=${html`<a href="#/events">see Events</a>`} />
    </div>
    <${Card} title=${html`<${T}>${data.tree.name}<//>`} aside=${data.tree.strategy.replaceAll("_", " ")}><div class="tree"><ul>${data.tree.children.map((child) => html`<${Node} key=${child.name} child=${child} />`)}</ul></div>
      ${data.tree.stuck.length > 0 && html`<p class="problem">stuck: ${data.tree.stuck.join(", ")}</p>`}<//>
    ${data.writer && html`<${Card} title="Trace writer"><div class="controls"><${State} state=${data.writer.state === "ok" ? "ok" : "failed"}>${data.writer.state}<//>
      <span>${plural(data.writer.committed, "event")} committed</span><span>${count(data.writer.waiting)} wait</span>${data.writer.lost > 0 && html`<span class="up">${count(data.writer.lost)} lost</span>`}
      ${data.writer.reason && html`<span class="soft"><${T}>${data.writer.reason}<//></span>`}</div><//>`}
    <${Card} title="Bus subscribers" aside="${count(data.bus.published)} events so far"><${Table} label="Bus subscribers" columns=${READERS} rows=${data.bus.subscriptions} keyed=${(row) => row.name} /><//>`;
}
