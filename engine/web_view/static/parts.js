// The pieces that screens are made of. Text is only ever text: `bdi` keeps its direction to itself.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact.mjs";
import { get, listen } from "./net.js";
import { costOfSum, moment, plural, short } from "./words.js";

export const T = ({ children, ...rest }) => html`<bdi ...${rest}>${children}</bdi>`;

export const Dot = ({ state }) => html`<span class="dot ${state}" aria-hidden="true"></span>`;

export const State = ({ state, children }) =>
  html`<span class="state ${state}"><${Dot} state=${state} />${children ?? state}</span>`;

export const Figure = ({ label, value, note, children, class: kind = "" }) => html`
  <div class="figure ${kind}">
    <span class="label">${label}</span>
    <span class="value">${value}</span>
    ${note && html`<span class="note">${note}</span>`}
    ${children}
  </div>`;

export const Card = ({ title, aside, children, class: kind = "" }) => html`
  <section class="card ${kind}">
    ${title && html`<header><h2>${title}</h2>${aside && html`<div class="aside">${aside}</div>`}</header>`}
    ${children}
  </section>`;

export const Empty = ({ title, children }) => html`
  <div class="empty"><p class="lead">${title}</p>${children && html`<p>${children}</p>`}</div>`;

export const Problem = ({ error }) =>
  error ? html`<p class="problem" role="alert">${error.message ?? String(error)}</p>` : null;

export const CallLink = ({ id }) =>
  id ? html`<a class="id" href="#/calls/${encodeURIComponent(id)}" title=${id}>${short(id)}</a>` : "–";
export const SessionLink = ({ id, name }) =>
  id ? html`<a class="id" href="#/sessions/${encodeURIComponent(id)}" title=${id}><${T}>${name || short(id)}<//></a>` : "–";

export const Tags = ({ tags }) => Object.entries(tags || {}).map(([key, value]) => html`
  <a class="tag" key=${key} href="#/calls?${new URLSearchParams({ tag: `${key}=${value}` })}"><${T}>${key}<//>=<${T}>${value}<//></a>`);

// A moment. It never breaks within a time, and shows the exact time in UTC to whoever points at it.
export const When = ({ us }) => us ? html`<time class="when" datetime=${iso(us)} title=${iso(us)}>${moment(us)}</time>` : "–";
const iso = (us) => new Date(us / 1000).toISOString();

// A table whose cells know their headings, so that a phone can show each row as a card.
export const Table = ({ columns, rows, keyed, empty, label, foot }) => rows.length || !empty ? html`
  <div class="scroller"><table aria-label=${label}>
    <thead><tr>${columns.map((column) => html`<th scope="col" class=${column.class}>${column.title}</th>`)}</tr></thead>
    <tbody>${rows.map((row, index) => html`<tr key=${keyed ? keyed(row) : index}>
      ${columns.map((column) => html`<td class=${column.class} data-label=${column.title}>${column.cell(row)}</td>`)}</tr>`)}
    </tbody>
    ${foot && html`<tfoot><tr>${columns.map((column) =>
      html`<td class=${column.class} data-label=${column.title}>${column.foot ? column.foot(foot) : ""}</td>`)}</tr></tfoot>`}
  </table></div>` : empty;

// What a path answers; asked again when something in `again` changes, and when the server answers again.
export function useAnswer(path, again = []) {
  const [state, set] = useState({ data: null, error: null }), [returned, back] = useState(0);
  useEffect(() => {
    const count = () => back((old) => old + 1);
    addEventListener("callboard-back", count);
    return () => removeEventListener("callboard-back", count);
  }, []);
  useEffect(() => {
    let gone = false;
    if (!path) { set({ data: null, error: null }); return undefined; }
    get(path).then((data) => gone || set({ data, error: null }), (error) => gone || set((old) => ({ ...old, error })));
    return () => { gone = true; };
  }, [path, returned, ...again]);
  return state;
}

// The filters of a screen, kept in the link. Returns them, and a function that changes some of them.
export function useFilters(names) {
  const read = () => {
    const asked = new URLSearchParams(location.hash.split("?")[1] ?? "");
    return Object.fromEntries(names.map((name) => [name, asked.get(name) ?? ""]));
  };
  const [filters, set] = useState(read);
  useEffect(() => {
    const moved = () => set(read());
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  const change = (some) => {
    const next = { ...read(), ...some };
    const query = new URLSearchParams(Object.entries(next).filter(([, value]) => value));
    history.replaceState(null, "", `${location.hash.split("?")[0] || "#/now"}${String(query) && `?${query}`}`);
    set(next);
  };
  return [filters, change];
}

const SPANS = { "15m": ["last 15 minutes", 900], "1h": ["last hour", 3600], "1d": ["last day", 86400], "7d": ["last 7 days", 604800] };

// The limits of a time filter in microseconds, for a request. Whole minutes, so that the same question is asked again.
export function timeOf({ time, from, until }) {
  if (SPANS[time]) return { since: String((Math.floor(Date.now() / 60000) * 60 - SPANS[time][1]) * 1e6) };
  if (time !== "between") return {};
  const us = (text) => (Number.isNaN(Date.parse(text)) ? "" : String(Date.parse(text) * 1000));
  return { since: us(from), until: us(until) };
}

const local = (text) => {
  const at = new Date(text);
  return Number.isNaN(at.getTime()) ? "" : new Date(at.getTime() - at.getTimezoneOffset() * 60000).toISOString().slice(0, 16);
};
const utc = (text) => (text ? new Date(text).toISOString().slice(0, 16) + "Z" : "");

export const TIME = ["time", "from", "until"];
export const Times = ({ filters, change }) => html`
  <label class="field">Time<select value=${filters.time} onChange=${(event) => change({ time: event.target.value, from: "", until: "" })}>
    <option value="">any</option>${Object.entries(SPANS).map(([name, [text]]) => html`<option value=${name}>${text}</option>`)}<option value="between">between …</option></select></label>
  ${filters.time === "between" && ["from", "until"].map((name) => html`
    <label class="field" key=${name}>${name === "from" ? "From" : "Until"}<input type="datetime-local" value=${local(filters[name])}
      onChange=${(event) => change({ [name]: utc(event.target.value) })} /></label>`)}`;

// A text of a filter. It takes effect on Enter, or when the reader leaves the field.
export const Words = ({ label, name, filters, change, placeholder, list }) => html`
  <label class="field grow">${label}<input type="search" value=${filters[name]} placeholder=${placeholder} list=${list}
    onChange=${(event) => change({ [name]: event.target.value.trim() })} /></label>`;

// `key=value`, as a screen shows a tag; the server wants `key:value`.
export const tagOf = (text) => text.replace("=", ":");

// The latest frame of a path, while the screen is there.
export function useLive(path, name, onState) {
  const [data, set] = useState(null);
  useEffect(() => { set(null); return listen(path, { [name]: set }, { onState }); }, [path]);
  return data;
}

export function useTick(ms = 1000) {
  const [now, set] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => { if (!document.hidden) set(Date.now()); }, ms);
    return () => clearInterval(timer);
  }, []);
  return now;
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// A chart: `make(colour)` gives uPlot's options, drawn anew when the theme or the width changes.
export function Chart({ make, data, height = 120, label, again = "" }) {
  const place = useRef(null), plot = useRef(null), latest = useRef(data);
  latest.current = data;
  useEffect(() => {
    const draw = () => {
      if (plot.current) plot.current.destroy();
      const width = place.current.clientWidth || 300;
      plot.current = new uPlot({ width, height, ...make(colour) }, latest.current, place.current);
    };
    draw();
    const sized = new ResizeObserver(() => {
      if (plot.current && place.current) plot.current.setSize({ width: place.current.clientWidth || 300, height });
    });
    sized.observe(place.current);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", draw);
    addEventListener("callboard-theme", draw);
    return () => {
      sized.disconnect();
      dark.removeEventListener("change", draw);
      removeEventListener("callboard-theme", draw);
      plot.current.destroy();
      plot.current = null;
    };
  }, [again]);
  useEffect(() => { if (plot.current) plot.current.setData(data); }, [data]);
  return html`<div class="chart" role="img" aria-label=${label} ref=${place}></div>`;
}

// A button that asks a second time before it does something that can't be taken back at once.
export function Sure({ children, sure, onSure, disabled, class: kind = "" }) {
  const [asked, ask] = useState(false);
  useEffect(() => {
    if (!asked) return undefined;
    const timer = setTimeout(() => ask(false), 4000);
    return () => clearTimeout(timer);
  }, [asked]);
  const click = () => { if (asked) { ask(false); onSure(); } else ask(true); };
  return html`<button type="button" class="${kind} ${asked ? "asked" : ""}" disabled=${disabled} onClick=${click}>
    ${asked ? sure : children}</button>`;
}

// The place of a turn below others in a table.
export const indent = (depth) => depth ? `${"\u00a0".repeat(depth * 3)}└ ` : "";

const TREE = [
  { title: "Turn", cell: (row) => html`${indent(row.depth)}<${T}>${row.model}<//>` },
  { title: "Outcome", cell: (row) => html`<${State} state=${row.status} />` },
  { title: "Session", cell: (row) => html`<${SessionLink} id=${row.session_id} />` },
  { title: "Attempts", class: "num", cell: (row) => row.attempts },
  { title: "Own cost", class: "num", cell: (row) => costOfSum(row.own) },
  { title: "With children", class: "num", cell: (row) => costOfSum(row.whole) },
  { title: "First call", class: "num", cell: (row) => html`<${CallLink} id=${row.request_id} />` },
];

// A turn with all turns and calls that its tools made.
export const Trees = ({ trees }) => trees.length > 0 && html`<${Card} title="Turns that tools made" aside=${plural(trees.length, "tree")}>
  ${trees.map((rows) => html`<${Table} key=${rows[0].id} label="Tree of turns" columns=${TREE} rows=${rows} keyed=${(row) => row.id} />`)}<//>`;
