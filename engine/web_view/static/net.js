// Asking and listening. Everything is relative to the page, wherever a host has mounted it.

let csrf = "";
let listening = 0;

// Whether the server answers. The frame shows a banner while it does not.
const tell = (state) => dispatchEvent(new CustomEvent("callboard-connection", { detail: state }));
export const isListening = () => listening > 0;

export class Failed extends Error {
  constructor(status, text) { super(text); this.status = status; }
}

async function ask(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", cache: "no-store", ...options });
  } catch {
    tell("lost");
    throw new Failed(0, "Callboard does not answer.");
  }
  // A proxy answers 502 to 504 in place of a server that is gone. A 500 is an error of one request.
  if (response.status !== 500) tell(response.status === 401 ? "out" : response.status > 500 ? "lost" : "live");
  let found = null;
  try { found = await response.json(); } catch { /* its status says enough */ }
  if (!response.ok) throw new Failed(response.status, (found && found.error) || `Status ${response.status}`);
  return found;
}

export const get = (path) => ask(path);

// Why a stream of events is refused; null if it is not. Nothing of it is read.
export async function refusal(path) {
  const leave = new AbortController();
  try {
    const response = await fetch(path, { credentials: "same-origin", cache: "no-store", signal: leave.signal });
    return response.ok ? null : new Failed(response.status, (await response.json()).error);
  } catch {
    return new Failed(0, "Callboard does not answer.");
  } finally {
    leave.abort();
  }
}

export const post = (path, body = {}) => ask(path, {
  method: "POST",
  headers: { "content-type": "application/json", "x-callboard-csrf": csrf },
  body: JSON.stringify(body),
});

// The token of the printed address, once; it must not stay in the address or the history.
export async function signIn() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token) {
    history.replaceState(null, "", location.pathname + location.search + "#/now");
    await post("api/sign-in", { token });
  }
  const me = await get("api/me");
  csrf = me.csrf;
  return me;
}

// Server-sent events while somebody looks: a hidden page listens to nothing, and goes on where it was.
export function listen(path, handlers, { onState = () => {}, id = null } = {}) {
  let source = null, last = id, closed = false, timer = 0;

  function open() {
    if (closed || source || document.hidden) return;
    const mark = path.includes("?") ? "&" : "?";
    source = new EventSource(last ? `${path}${mark}after=${encodeURIComponent(last)}` : path);
    listening += 1;
    source.onopen = () => { onState("live"); tell("live"); };
    source.onerror = () => {
      tell("lost");
      if (source.readyState !== EventSource.CLOSED) { onState("lost"); return; }
      source = null;
      listening -= 1;
      onState("lost");
      get("api/me").then(() => { timer = setTimeout(open, 2000); }, (error) => {
        if (error.status === 401) onState("out"); else timer = setTimeout(open, 2000);
      });
    };
    for (const [name, handler] of Object.entries(handlers)) {
      source.addEventListener(name, (event) => {
        if (event.lastEventId) last = event.lastEventId;
        handler(JSON.parse(event.data), event.lastEventId);
      });
    }
  }

  function shut() {
    clearTimeout(timer);
    if (source) { source.close(); source = null; listening -= 1; }
  }

  function turned() { if (document.hidden) shut(); else open(); }

  document.addEventListener("visibilitychange", turned);
  addEventListener("pagehide", shut);
  addEventListener("pageshow", turned);
  open();
  return () => {
    closed = true;
    shut();
    document.removeEventListener("visibilitychange", turned);
    removeEventListener("pagehide", shut);
    removeEventListener("pageshow", turned);
  };
}
