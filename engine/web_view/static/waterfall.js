// A turn over time: its calls with their attempts, and the tools between. One row each, on one scale.

import { html } from "./vendor/htm-preact.mjs";
import { T } from "./parts.js";
import { duration, plural } from "./words.js";

const STEPS = [1, 2, 5];

// Four to eight round marks for a time of so many milliseconds.
function marks(ms) {
  const power = 10 ** Math.floor(Math.log10(Math.max(ms, 1) / 4));
  const step = STEPS.map((each) => each * power).find((each) => ms / each <= 8) ?? 10 * power;
  return Array.from({ length: Math.floor(ms / step) + 1 }, (_, index) => index * step);
}

const place = (from, to, scale) => ({
  left: `${(Math.max(from - scale.start, 0) / scale.length) * 100}%`,
  width: `${(Math.max(to - from, 0) / scale.length) * 100}%`,
});

function words(bar, scale) {
  const began = `after ${duration((bar.start_us - scale.start) / 1000)}`;
  const tries = bar.attempts.length > 1 ? `, ${plural(bar.attempts.length, "attempt")}` : "";
  return `${bar.kind} ${bar.name}, started ${began}, ${length(bar)}${tries}, ${bar.status}`;
}

function Attempt({ attempt, scale }) {
  const end = attempt.end_us ?? scale.end;
  const first = attempt.first_ms === null ? null : attempt.start_us + attempt.first_ms * 1000;
  const why = attempt.error_class || attempt.status;
  const text = `attempt ${attempt.attempt}: ${why}, ${attempt.end_us ? duration(attempt.took_ms) : "in progress"}${attempt.first_ms === null ? "" : `, first token after ${duration(attempt.first_ms)}`}`;
  return html`<i class="span ${attempt.status}" style=${place(attempt.start_us, end, scale)} title=${text}></i>
    ${first !== null && first < end && html`<i class="span first ${attempt.status}" style=${place(attempt.start_us, first, scale)} title=${text}></i>`}`;
}

function Row({ bar, scale, current }) {
  const end = bar.end_us ?? scale.end, label = html`<${T}>${bar.name}<//>`;
  const sent = bar.attempts.length ? bar.attempts[0].start_us : bar.start_us;
  return html`<li class="${bar.kind} ${bar.request_id && bar.request_id === current ? "current" : ""}" aria-label=${words(bar, scale)}>
    <span class="name"><span class="soft small">${bar.kind}</span> ${bar.request_id && bar.request_id !== current
      ? html`<a href="#/calls/${encodeURIComponent(bar.request_id)}">${label}</a>` : label}</span>
    <span class="track" aria-hidden="true">
      ${sent > bar.start_us && html`<i class="span wait" style=${place(bar.start_us, sent, scale)} title="waited ${duration((sent - bar.start_us) / 1000)}"></i>`}
      ${bar.attempts.length ? bar.attempts.map((attempt) => html`<${Attempt} key=${attempt.attempt} attempt=${attempt} scale=${scale} />`)
        : html`<i class="span tool ${bar.status}" style=${place(bar.start_us, end, scale)} title=${words(bar, scale)}></i>`}
    </span>
    <span class="num small">${bar.end_us ? length(bar) : "…"}</span></li>`;
}

// The time of a bar. An imported call without a latency has none.
const length = (bar) => bar.end_us > bar.start_us ? duration((bar.end_us - bar.start_us) / 1000) : bar.end_us ? "–" : "in progress";

export function Waterfall({ turn, current }) {
  const ends = turn.bars.map((bar) => bar.end_us ?? bar.start_us);
  const open = turn.bars.some((bar) => bar.end_us === null);
  const end = Math.max(...ends, turn.end_us ?? 0, open && turn.end_us === null ? Date.now() * 1000 : 0);
  const scale = { start: turn.start_us, end, length: Math.max(end - turn.start_us, 1) };
  return html`<div class="waterfall">
    <div class="scale" aria-hidden="true"><span></span><span class="track">${marks(scale.length / 1000).map((ms) => html`
      <i key=${ms} style=${{ left: `${(ms * 1000 / scale.length) * 100}%` }}>${ms ? duration(ms) : "0"}</i>`)}</span><span></span></div>
    <ol>${turn.bars.map((bar, index) => html`<${Row} key=${bar.request_id ?? index} bar=${bar} scale=${scale} current=${current} />`)}</ol>
    <p class="legend small"><span><i class="wait"></i>waited</span><span><i class="first"></i>until the first token</span><span><i class="reply"></i>reply</span><span><i class="failed"></i>failed</span><span><i class="tool"></i>tool</span></p>
  </div>`;
}
