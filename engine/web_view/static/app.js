// The frame around the screens: who is looking, where they are, and how to get elsewhere.

import { html, render, useEffect, useRef, useState } from "./vendor/htm-preact.mjs";
import { get, isListening, signIn } from "./net.js";
import { Problem, State, useTick } from "./parts.js";
import { clock } from "./words.js";
import { Now } from "./screens/now.js";
import { Streams } from "./screens/stream.js";
import { Events } from "./screens/events.js";
import { Calls } from "./screens/call.js";
import { Costs } from "./screens/costs.js";
import { Sessions } from "./screens/session.js";
import { Supervision } from "./screens/supervision.js";
import { Providers } from "./screens/providers.js";

const SCREENS = [
  ["now", "Now", Now], ["streams", "Streams", Streams], ["calls", "Calls", Calls], ["sessions", "Sessions", Sessions],
  ["costs", "Costs", Costs], ["providers", "Providers", Providers], ["supervision", "Supervision", Supervision], ["events", "Events", Events],
];

function place() {
  const [path] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/"), screen = name === "stage" ? "supervision" : name;  // old bookmarks
  const known = SCREENS.some(([each]) => each === screen);
  let id = "";
  try { id = decodeURIComponent(rest.join("/")); } catch { /* no id then */ }
  return { screen: known ? screen : "now", id: known ? id : "" };
}

function usePlace() {
  const [where, set] = useState(place());
  useEffect(() => {
    const moved = () => set(place());
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  return where;
}

const THEMES = { auto: "Theme: system", light: "Theme: light", dark: "Theme: dark" };

function Theme() {
  const [theme, set] = useState(document.documentElement.dataset.theme || "auto");
  const turn = () => {
    const next = { auto: "light", light: "dark", dark: "auto" }[theme];
    if (next === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    try { localStorage.setItem("callboard-theme", next); } catch { /* it lasts as long as the page */ }
    set(next);
    dispatchEvent(new Event("callboard-theme"));
  };
  return html`<button type="button" class="quiet theme" title=${THEMES[theme]} aria-label=${THEMES[theme]} onClick=${turn}>
    ${{ auto: "◐", light: "○", dark: "●" }[theme]}</button>`;
}

const STATES = { live: "live", lost: "reconnecting", out: "signed out", wait: "connecting" };

const CHECK_MS = 5000;
const PATIENCE_MS = 1500;

// While the server does not answer, every screen says so, and since when.
function Banner() {
  const [lost, set] = useState(null), now = useTick(500);
  useEffect(() => {
    let state = "live";
    const heard = ({ detail }) => {
      if (detail === state) return;
      if (detail === "live" && state !== "live") setTimeout(() => dispatchEvent(new Event("callboard-back")));
      state = detail;
      set(detail === "live" ? null : { detail, at: Date.now() });
    };
    // A screen that listens hears by itself that the server is gone. The others ask.
    const timer = setInterval(() => { if (!document.hidden && (state !== "live" || !isListening())) get("api/me").catch(() => {}); }, CHECK_MS);
    addEventListener("callboard-connection", heard);
    return () => { clearInterval(timer); removeEventListener("callboard-connection", heard); };
  }, []);
  if (!lost || (lost.detail === "lost" && now - lost.at < PATIENCE_MS)) return null;
  return html`<p class="banner" role="alert">${lost.detail === "out"
    ? html`<b>You are signed out.</b> Open the latest address that Callboard printed.`
    : html`<b>Callboard does not answer.</b> This page shows the state of ${clock(lost.at * 1000)} and reconnects automatically.`}</p>`;
}

function Frame({ me }) {
  const { screen, id } = usePlace();
  const [state, setState] = useState("wait");
  const main = useRef(null), first = useRef(true);
  const [, title, Screen] = SCREENS.find(([name]) => name === screen);

  useEffect(() => {
    document.title = `${title} · Callboard`;
    if (!first.current) main.current.focus({ preventScroll: true });
    first.current = false;
    scrollTo(0, 0);
  }, [screen, id]);

  useEffect(() => {
    const pressed = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.target.closest("input, textarea, select")) return;
      const number = Number(event.key);
      if (number >= 1 && number <= SCREENS.length) location.hash = `#/${SCREENS[number - 1][0]}`;
    };
    addEventListener("keydown", pressed);
    document.body.dataset.ready = "yes";
    return () => removeEventListener("keydown", pressed);
  }, []);

  const skip = (event) => { event.preventDefault(); main.current.focus(); };
  return html`
    <a class="skip" href="#/${screen}" onClick=${skip}>Skip to the content</a>
    <aside class="rail">
      <a class="brand" href="#/now"><img src="static/icon.svg" alt="" width="26" height="26" /> Callboard</a>
      <nav aria-label="Screens">
        ${SCREENS.map(([name, text], index) => html`
          <a href="#/${name}" key=${name} aria-current=${name === screen ? "page" : null} aria-keyshortcuts=${index + 1}>
            <span>${text}</span><kbd aria-hidden="true">${index + 1}</kbd></a>`)}
      </nav>
      <footer>
        <div class="connection" role="status"><${State} state=${state}>${STATES[state]}<//></div>
        <div class="what" title=${me.trace || "no trace"}>${me.engine ? "engine" : "trace"}${me.trace ? html` · <bdi>${me.trace.split("/").pop()}</bdi>` : ""}</div>
        <${Theme} />
      </footer>
    </aside>
    <main tabindex="-1" ref=${main} aria-label=${title}>
      <${Banner} />
      <${Screen} key=${screen} id=${id} me=${me} onState=${setState} />
    </main>`;
}

function Door({ error }) {
  const out = error.status === 401;
  return html`<main class="door">
    <img src="static/icon.svg" alt="" width="56" height="56" />
    <h1>${out ? "Sign in to Callboard" : "Callboard"}</h1>
    ${out ? html`<p>Open the address that was printed where Callboard runs. It begins with this page's address, is good
      once, and signs this browser in.</p>` : null}
    <${Problem} error=${error} />
    <button type="button" onClick=${() => location.reload()}>Try again</button>
  </main>`;
}

const app = document.getElementById("app");
signIn().then(
  (me) => render(html`<${Frame} me=${me} />`, app),
  (error) => render(html`<${Door} error=${error} />`, app),
);
