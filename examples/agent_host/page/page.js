// One chat. A turn's events come from an EventSource, which reconnects by itself with the id of the last one.

const log = document.querySelector("#log");
const chat = "/api/chats/" + (location.hash.slice(1) || "first");
let looks = 0; // a look at the chat that another or a new turn has overtaken isn't shown
let events = null; // of the turn that is followed

async function ask(path, body, method = body ? "POST" : "GET") {
  const options = { method, headers: { "content-type": "application/json" }, body: body && JSON.stringify(body) };
  const answer = await fetch(path, options);
  const content = answer.status === 204 ? null : await answer.json();
  if (!answer.ok) throw Object.assign(new Error(content.error ?? content.detail), { status: answer.status });
  return content;
}

function line(kind, text) {
  const element = Object.assign(document.createElement("div"), { className: kind, textContent: text });
  return log.appendChild(element);
}

async function show() {
  const look = ++looks;
  const { left_usd, refunds } = await ask("/api/account");
  document.querySelector("#account").textContent = `${left_usd} USD left today. ${refunds.join(". ")}`;
  const { messages, waiting, turn } = await ask(chat).catch((error) => {
    if (error.status !== 404) throw error;
    return { messages: [], waiting: [], turn: null };
  });
  if (look !== looks) return;
  log.replaceChildren();
  for (const { role, text } of messages) if (text) line(role, text);
  for (const call of waiting) offer(call);
  if (turn) follow(turn);
}

function offer({ id, name, input }) {
  const element = line("waiting", `May I ${name} ${JSON.stringify(input)}? `);
  for (const approved of [true, false]) {
    const button = element.appendChild(document.createElement("button"));
    button.textContent = approved ? "Yes" : "No";
    button.onclick = () => begin(chat + "/decisions", { id, input, approved, why: "the user said no" });
  }
}

async function begin(path, body) {
  looks += 1;
  try {
    follow((await ask(path, body)).turn);
  } catch (error) {
    line("error", error.message);
  }
}

function follow(turn) {
  events?.close();
  const reply = line("assistant", "");
  events = new EventSource(`${chat}/turns/${turn}`);
  events.addEventListener("text.delta", ({ data }) => { reply.textContent += JSON.parse(data).text; });
  const over = async ({ type, data }) => {
    events.close();
    await show();
    const { status, error } = type === "turn.complete" ? JSON.parse(data) : {};
    if (status === "failed") line("error", `The model failed: ${(error ?? "no reason").split(":")[0]}.`);
  };
  events.addEventListener("stream.reset", over);
  events.addEventListener("turn.complete", over);
  events.onerror = () => { if (events.readyState === EventSource.CLOSED) show(); };
}

document.querySelector("#say").onsubmit = (event) => {
  event.preventDefault();
  const { text } = Object.fromEntries(new FormData(event.target));
  event.target.reset();
  line("user", text);
  begin(chat + "/turns", { text });
};

document.querySelector("#sign-in").onsubmit = async (event) => {
  event.preventDefault();
  const refused = document.querySelector("#refused");
  try {
    await ask("/api/sign-in", Object.fromEntries(new FormData(event.target)));
    refused.textContent = "";
    enter();
  } catch (error) {
    refused.textContent = error.message;
  }
};

// Until this script runs neither form is there: the browser itself would send a form's fields in an address.
function reveal(signedIn) {
  document.querySelector("#sign-in").hidden = signedIn;
  document.querySelector("main").hidden = !signedIn;
}

const enter = () => show().then(() => reveal(true), () => reveal(false));
enter();
