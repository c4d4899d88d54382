// Stream: text, thinking and arguments as they grow; back to any moment; and how far each reader is.

import { html, useEffect, useRef, useState, Component } from "../vendor/htm-preact.mjs";
import { get, listen, post, refusal } from "../net.js";
import { fold, nothing } from "../blocks.js";
import { Card, Empty, Problem, SessionLink, State, Sure, T, Table, When } from "../parts.js";
import { bytes, count, duration, plural, short, usd } from "../words.js";

const READERS_MS = 1000;
const MOST_LOTS = 20000;

const stateOf = (stream) => (stream.state === "open" ? "live" : "over");
const age = (stream) => duration(((stream.ended_us ?? Date.now() * 1000) - stream.began_us) / 1000);
const order = (a, b) => (a.state === "open" ? 0 : 1) - (b.state === "open" ? 0 : 1) || b.began_us - a.began_us;
const LIST = [
  { title: "Stream", cell: (row) => html`<a class="id" href="#/streams/${row.stream_id}">${short(row.stream_id)}</a>` },
  { title: "State", cell: (row) => html`<${State} state=${stateOf(row)}>${row.state === "open" ? "open" : row.state === "kept" ? "ended" : "ended, folded"}<//>` },
  { title: "Model", cell: (row) => html`<${T}>${row.model ?? "–"}<//>` },
  { title: "Session", cell: (row) => html`<${SessionLink} id=${row.session_id} />` },
  { title: "Started", cell: (row) => html`<${When} us=${row.began_us} />` },
  { title: "Duration", class: "num", cell: age },
  { title: "Events", class: "num", cell: (row) => count(row.events) },
  { title: "Memory", class: "num", cell: (row) => bytes(row.bytes) },
  { title: "Readers", class: "num", cell: (row) => count(row.readers.length) },
  { title: "Max lag", class: "num", cell: (row) => row.readers.length ? plural(Math.max(...row.readers.map((reader) => reader.lag)), "event") : "–" },
];

function useStreams(onState) {
  const [rows, set] = useState(null);
  useEffect(() => {
    let gone = false, timer = 0;
    const look = () => {
      if (document.hidden) { timer = setTimeout(look, READERS_MS); return; }
      get("api/streams").then((found) => { if (!gone) { set(found); onState("live"); } }, () => onState("lost"))
        .finally(() => { if (!gone) timer = setTimeout(look, READERS_MS); });
    };
    look();
    return () => { gone = true; clearTimeout(timer); };
  }, []);
  return rows;
}

function List({ me, onState }) {
  const rows = useStreams(onState);
  return html`
    <div class="head"><div><h1>Streams</h1><p class="sub">The events of each turn, with its readers.</p></div></div>
    ${!me.engine && html`<p class="note-box">Streams exist only in the process that runs the turns. This view shows a trace. Open the live view of that process to follow them.</p>`}
    ${rows && html`<${Card}><${Table} label="Streams" columns=${LIST} rows=${[...rows].sort(order)} keyed=${(row) => row.stream_id}
      empty=${html`<${Empty} title="No streams">A stream opens with its turn and is kept for a while.<//>`} /><//>`}`;
}

// One piece of text, drawn once: only the last piece of a block still changes.
class Piece extends Component {
  shouldComponentUpdate(next) { return next.text !== this.props.text; }
  render({ text }) { return html`<div class="piece">${text}</div>`; }
}

const Said = ({ block }) => html`<div class="said" dir="auto">
  ${block.pieces.map((text, index) => html`<${Piece} key=${index + (block.dropped ?? 0)} text=${text} />`)}</div>`;

function Block({ block, shown }) {
  const hidden = !shown && block.characters > 0 && html`<p class="faint">${plural(block.characters, "character")}, not shown</p>`;
  switch (block.kind) {
    case "start": return html`<div class="block"><div class="kind"><b>reply</b> <${T}>${block.model}<//> ${block.provider && html`<span>by <${T}>${block.provider}<//></span>`}</div>
      ${block.warnings.map((warning) => html`<p class="note-box">${warning.message}</p>`)}</div>`;
    case "text": return html`<div class="block text">${hidden || html`<${Said} block=${block} />`}</div>`;
    case "thinking": return html`<div class="block thinking"><div class="kind">thinking</div>${hidden || html`<${Said} block=${block} />`}</div>`;
    case "tool": return html`<div class="block tool"><div class="kind"><b>tool</b> <${T}>${block.name}<//>
      <span>${block.run === "finished" ? (block.is_error ? "failed" : "answered") : block.run ? "runs" : block.whole ? "called" : "arguments grow"}</span>
      ${block.latency_ms !== undefined && html`<span>${duration(block.latency_ms)}</span>`}</div>${hidden || html`<${Said} block=${block} />`}</div>`;
    case "user": return html`<div class="block"><div class="kind">message of the user</div><${Said} block=${block} /></div>`;
    case "provider": return html`<div class="block"><div class="kind">provider block: <${T}>${block.name}<//></div></div>`;
    case "end": return html`<div class="block"><div class="kind"><b>${block.stop_reason}</b> <span>${count(block.usage.output_tokens)} tokens out</span>
      <span>${count(block.usage.input_tokens + block.usage.cached_input_tokens + block.usage.cache_creation_input_tokens)} in</span> <span>${block.usage.source}</span></div></div>`;
    case "step": return html`<div class="block"><div class="kind">step ${block.step + 1} is done ${block.cost && html`<span>${usd(block.cost.nano_usd)}</span>`}</div></div>`;
    default: return null;
  }
}

const READERS = [
  { title: "Reader", cell: (row) => row.index + 1 },
  { title: "Position", class: "num", cell: (row) => row.seq < 0 ? "start" : count(row.seq) },
  { title: "Lag", class: "num", cell: (row) => plural(row.lag, "event") },
  { title: "Delivered", class: "num", cell: (row) => count(row.delivered) },
  { title: "Resets", class: "num", cell: (row) => count(row.resets) },
];

// The lots as they came, for going back; and what all of them add up to.
function useStream(id, onState) {
  const lots = useRef([]), live = useRef(nothing()), [seen, see] = useState({ version: 0 });
  useEffect(() => {
    lots.current = [];
    live.current = nothing();
    let due = false, over = false, shown = true, missing = null, stop = () => {};
    const draw = () => { due = false; see((old) => ({ version: old.version + 1, over, shown, missing })); };
    const ask = () => { if (!due) { due = true; requestAnimationFrame(draw); } };
    const events = (lot, at) => {
      lots.current.push({ at, lot });
      if (lots.current.length > MOST_LOTS) lots.current.splice(0, MOST_LOTS / 2);
      fold(live.current, lot);
      ask();
    };
    let gone = false;
    const path = `api/streams/${encodeURIComponent(id)}`;
    refusal(path).then((why) => {
      if (gone) return;
      if (why) { missing = why; draw(); return; }
      stop = listen(path, {
        shown: (value) => { shown = value; ask(); },
        events,
        end: () => { over = true; stop(); draw(); },
        gone: (why) => { missing = new Error(why.error); over = true; stop(); draw(); },
      }, { onState });
    });
    return () => { gone = true; stop(); };
  }, [id]);
  return { ...seen, lots: lots.current, live: live.current };
}

function One({ id, me, onState }) {
  const { lots, live, over, shown = true, missing } = useStream(id, onState);
  const [back, setBack] = useState(null), [follow, setFollow] = useState(true), [error, fail] = useState(null);
  const rows = useStreams(() => {});
  const stream = rows && rows.find((row) => row.stream_id === id);
  const state = back === null ? live : fold(nothing(), lots.slice(0, back).flatMap((lot) => lot.lot));

  useEffect(() => {
    if (follow && back === null && !over) scrollTo(0, document.body.scrollHeight);
  });
  useEffect(() => {
    const scrolled = () => setFollow(innerHeight + scrollY > document.body.scrollHeight - 80);
    addEventListener("scroll", scrolled, { passive: true });
    return () => removeEventListener("scroll", scrolled);
  }, []);

  const status = live.ended ? live.ended.status : over ? "over" : "live";
  return html`
    <div class="head"><div><h1>Stream <span class="mono">${short(id)}</span></h1>
      <p class="sub"><${State} state=${status === "live" ? "live" : status === "completed" || status === "over" ? "over" : "failed"}>${status}<//>
        · ${plural(state.characters + state.cut, "character")}${stream ? html` · ${plural(stream.events, "event")} · <${T}>${stream.model ?? ""}<//>${stream.session_id && html` · session <${SessionLink} id=${stream.session_id} />`} · began <${When} us=${stream.began_us} />, ${age(stream)}` : ""}</p></div>
      <div class="controls">${!over && me.scopes.includes("change") && html`
        <${Sure} class="plain" sure="Cancel this turn?" onSure=${() => post("api/cancel", { id }).catch(fail)}>Cancel<//>`}</div></div>
    <${Problem} error=${error || missing} />
    ${live.ended && live.ended.error && html`<p class="problem"><bdi>${live.ended.error}</bdi></p>`}
    ${!shown && html`<p class="note-box">Content is not shown, because this engine does not capture it unchanged. You see its structure and speed.</p>`}
    ${lots.length > 1 && html`<${Card}><label class="field">
      <span>${back === null ? "Live; drag to go back" : `After lot ${back} of ${lots.length}`}</span>
      <input type="range" min="0" max=${lots.length} value=${back === null ? lots.length : back} aria-label="Moment of the stream"
        onInput=${(event) => { const at = Number(event.target.value); setBack(at >= lots.length ? null : at); }} /></label>
      ${back !== null && html`<button type="button" class="quiet small" onClick=${() => setBack(null)}>Back to live</button>`}<//>`}
    <${Card} class="reply">
      ${state.cut > 0 && html`<p class="note-box">The first ${plural(state.cut, "character")} are no longer kept in this page.</p>`}
      ${state.blocks.length ? state.blocks.map((block) => html`<${Block} key=${block.id} block=${block} shown=${shown} />`)
        : !missing && html`<${Empty} title="No events yet" />`}
    <//>
    ${stream && html`<${Card} title="Readers" aside=${plural(stream.readers.length, "reader")}>
      <${Table} label="Readers" columns=${READERS} rows=${stream.readers.map((reader, index) => ({ ...reader, index }))}
        empty=${html`<p class="soft">No readers.</p>`} /><//>`}
    ${!follow && !over && back === null && html`<div class="follow"><button type="button"
      onClick=${() => { setFollow(true); scrollTo(0, document.body.scrollHeight); }}>Follow</button></div>`}`;
}

export const Streams = (props) => props.id ? html`<${One} key=${props.id} ...${props} />` : html`<${List} ...${props} />`;
