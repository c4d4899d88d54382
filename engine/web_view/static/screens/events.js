// Events: the bus as it goes by, filtered by topic and by word; and the letters that nobody will read.

import { html, useEffect, useMemo, useRef, useState } from "../vendor/htm-preact.mjs";
import { get, listen } from "../net.js";
import { Card, CallLink, Empty, SessionLink, T, TIME, Table, Times, When, Words, tagOf, timeOf, useAnswer, useFilters } from "../parts.js";
import { count, plural } from "../words.js";

const MOST = 1000;
const TOPICS = [
  ["", "everything"], ["llm.*", "calls"], ["session.*", "sessions"], ["tool.*", "tools"], ["provider.*,config.*", "providers"],
  ["actor.*", "actors"], ["pricing.*,budget.*", "money"], ["store.*", "the trace"], ["job.*", "jobs"],
];
const BAD = /failed|crashed|escalated|refused/;

function Line({ event }) {
  const [open, set] = useState(false);
  return html`<div class="line">
    <${When} us=${event.ts_us} />
    <span class="topic ${BAD.test(event.topic) ? "bad" : ""}"><${T}>${event.topic}<//></span>
    <span class="words"><${T}>${event.words}<//> ${event.request_id && html` <${CallLink} id=${event.request_id} />`}
      ${!event.request_id && event.session_id && html` <${SessionLink} id=${event.session_id} />`}
      <button type="button" class="quiet small" aria-expanded=${open} onClick=${() => set(!open)}>${open ? "less" : "more"}</button></span>
    ${open && html`<pre class="json" dir="auto">${JSON.stringify(event, null, 2)}</pre>`}
  </div>`;
}

// History from the trace and news from the bus overlap: an event is shown once, by its id.
function useEvents(query, onState) {
  const [state, set] = useState({ events: [], missed: 0 });
  useEffect(() => {
    set({ events: [], missed: 0 });
    const known = new Set();
    let pending = [], due = false, gone = false;
    const draw = () => {
      due = false;
      const lot = pending;
      pending = [];
      set((old) => {
        const events = [...old.events, ...lot].slice(-MOST);
        return { ...old, events };
      });
    };
    const add = (lot) => {
      for (const event of lot) {
        if (known.has(event.event_id)) continue;
        known.add(event.event_id);
        pending.push(event);
      }
      if (known.size > 20 * MOST) { known.clear(); for (const event of pending) known.add(event.event_id); }
      if (!due && pending.length) { due = true; setTimeout(draw, 100); }
    };
    const stop = listen(`api/events${query}`, {
      events: add,
      ready: () => {},
      missed: ({ count: number }) => set((old) => ({ ...old, missed: old.missed + number })),
    }, { onState });
    get(`api/events/history${query}`).then((lot) => {
      if (gone) return;
      const fresh = lot.filter((event) => !known.has(event.event_id));
      for (const event of fresh) known.add(event.event_id);
      set((old) => ({ ...old, events: [...fresh, ...old.events].slice(-MOST) }));
    }, () => {});
    return () => { gone = true; stop(); };
  }, [query]);
  return state;
}

const LETTERS = [
  { title: "Time", cell: (row) => html`<${When} us=${row.ts_us} />` },
  { title: "To", cell: (row) => html`<${T}>${row.recipient}<//>` },
  { title: "Message", cell: (row) => html`<${T} class="mono">${row.message_type}<//>` },
  { title: "Reason", cell: (row) => html`<${T}>${row.reason}<//>` },
];

export function Events({ me, onState }) {
  const [filters, change] = useFilters(["topics", "words", "session", "tag", ...TIME]), [held, hold] = useState(null);
  const { topics, words } = filters;
  const asked = { topics, session_id: filters.session, tag: tagOf(filters.tag), ...timeOf(filters) };
  const query = String(new URLSearchParams(Object.entries(asked).filter(([, value]) => value)));
  const { events, missed } = useEvents(query && `?${query}`, onState);
  const letters = useAnswer(me.engine ? "api/dead-letters" : null, [topics]);
  const kept = held ?? events;
  const shown = useMemo(() => {
    const wanted = words.trim().toLowerCase();
    const found = wanted ? kept.filter((event) => JSON.stringify(event).toLowerCase().includes(wanted)) : kept;
    return found.slice(-300).reverse();
  }, [kept, words]);
  return html`
    <div class="head"><div><h1>Events</h1><p class="sub">Newest first${me.engine ? ", live from the bus" : ", from the trace"}.</p></div></div>
    <${Card}><div class="controls">
      <label class="field">Topics<select value=${topics} onChange=${(event) => change({ topics: event.target.value })}>
        ${TOPICS.map(([value, text]) => html`<option value=${value}>${text}</option>`)}</select></label>
      <label class="field grow">Search<input type="search" value=${words} placeholder="a session, a model, an error …"
        onInput=${(event) => change({ words: event.target.value })} /></label>
      <${Times} filters=${filters} change=${change} />
      <${Words} label="Session" name="session" filters=${filters} change=${change} placeholder="an id" />
      <${Words} label="Tag" name="tag" filters=${filters} change=${change} placeholder="team=search" />
      <button type="button" class="plain" aria-pressed=${held !== null} onClick=${() => hold(held ? null : events)}>${held ? "Resume" : "Pause"}</button>
    </div><//>
    ${missed > 0 && html`<p class="note-box">${plural(missed, "event")} came while this page was away, and are only in the trace.</p>`}
    <${Card} aside=${plural(shown.length, "event")} title=${held ? "Paused" : "Live"}>
      ${shown.length ? html`<div class="log" role="log" aria-live="off">${shown.map((event) => html`<${Line} key=${event.event_id} event=${event} />`)}</div>`
        : html`<${Empty} title="No matching events yet" />`}<//>
    ${letters.data && letters.data.total > 0 && html`<${Card} title="Dead letters" aside=${count(letters.data.total)}>
      <${Table} label="Dead letters" columns=${LETTERS} rows=${letters.data.letters} /><//>`}`;
}
