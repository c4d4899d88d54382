"""The host of `examples/agent_host` as a process that gets requests, is killed, and is started again."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio
import httpx
import pytest

from tests.book.snippets import DOCS, blocks
from tests.support.browser import CHROMIUM, WHY_NOT, Browser, Page, browser
from tests.support.programs import started

for library in ("fastapi", "mcp", "opentelemetry.sdk", "uvicorn"):
    pytest.importorskip(library)

ROOT = Path(__file__).parents[1]
HOST = ROOT / "examples" / "agent_host"
PAGE = DOCS / "how-to" / "agent-host.md"
TENANTS = ("acme", "beta", "third", "poor", "traced", "seen", "lead")
PARENT = "4bf92f3577b34da6a3ce929d0e0e4736"


class Host:
    """The process, which starts at its first use, and the address of its last start."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process: subprocess.Popen[str] | None = None
        self._address = ""

    def start(self) -> None:
        environment = {
            "AGENT_FOLDER": str(self.folder),
            "AGENT_MODEL": "understudy:any",
            "AGENT_DAILY_USD": "0.02",
            "AGENT_PORT": "0",
            "AGENT_TENANTS": ",".join(f"key-of-{tenant}={tenant}" for tenant in TENANTS),
            "CALLBOARD_HOME": str(self.folder),
        }
        self._process = started("from examples.agent_host.__main__ import main; main()", **environment)
        assert self._process.stdout is not None
        self._address = self._process.stdout.readline().split("/ with")[0]

    def end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.communicate(timeout=30)
        self._process = None

    def browser(self, key: str) -> httpx.Client:
        """A browser that has signed in with a key."""
        if self._process is None:
            self.start()
        return httpx.Client(base_url=self._address, cookies={"key": key}, timeout=30)

    @property
    def address(self) -> str:
        """The address of the server, without a slash at the end."""
        return self._address

    def tenant(self, name: str) -> httpx.Client:
        return self.browser(f"key-of-{name}")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    host = Host(tmp_path_factory.mktemp("agent_host"))
    yield host
    host.end(signal.SIGKILL)


def say(tenant: httpx.Client, chat: str, text: str) -> str:
    """Start a turn. Returns the address of its events."""
    answer = tenant.post(f"/api/chats/{chat}/turns", json={"text": text})
    assert answer.status_code == 202, answer.text
    return f"/api/chats/{chat}/turns/{answer.json()['turn']}"


def frames(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return answer.text.split("\n\n")[:-1]


def last_event_id(frame: str) -> dict[str, str]:
    (seen,) = (line.removeprefix("id: ") for line in frame.splitlines() if line.startswith("id: "))
    return {"last-event-id": seen}


def ended(tenant: httpx.Client, events: str) -> None:
    assert "event: turn.complete" in frames(tenant.get(events))[-1]


def test_a_stream_continues_after_the_last_event_of_the_browser(host: Host) -> None:
    """After a connection breaks during a turn, no event is sent twice and none is missing."""
    with host.tenant("acme") as browser:
        events = say(browser, "stream", "one two three four five six seven eight")
        with browser.stream("GET", events) as broken:
            lines = broken.iter_lines()
            seen = [next(line for line in lines if line.startswith("id: ")) for _ in range(3)]
        rest = frames(browser.get(events, headers={"last-event-id": seen[-1].removeprefix("id: ")}))
        whole = frames(browser.get(events))
        assert rest == whole[3:]
        assert "turn.complete" in whole[-1]
        assert frames(browser.get(events, headers=last_event_id(whole[-2]))) == whole[-1:]
        assert browser.get(events, headers={"last-event-id": "none"}).status_code == 400


def test_tenants_are_isolated(host: Host) -> None:
    """A tenant cannot read another tenant's chats, streams, waiting calls or costs."""
    with host.tenant("acme") as acme, host.tenant("beta") as beta, host.browser("guessed") as stranger:
        events = say(acme, "secret", "a secret")
        ended(acme, events)
        ended(beta, say(beta, "own", "hello"))
        assert "secret" in acme.get("/api/chats").json()
        assert beta.get("/api/chats").json() == ["own"]
        assert beta.get("/api/chats/secret").status_code == 404
        assert beta.get(events).status_code == 404
        assert beta.get(events.replace("secret", "own")).status_code == 404
        call = {"id": "any", "input": {}, "approved": True}
        assert beta.post("/api/chats/secret/decisions", json=call).status_code == 404
        (row,) = beta.get("/api/costs").json()
        assert (row["calls"], row["model"]) == (1, "understudy:any")
        assert [each["session_id"] for each in beta.get("/api/costs?by=session_id").json()] == ["beta/own"]
        for path in ("/api/chats", "/api/costs", "/api/account", events):
            assert stranger.get(path).status_code == 401


def test_a_wrong_key_is_refused_at_the_sign_in(host: Host) -> None:
    """A wrong key gets status 401 and no cookie. A tenant's key and the operator's key are accepted."""
    with host.browser("") as browser:
        refused = browser.post("/api/sign-in", json={"key": "guessed"})
        assert (refused.status_code, "set-cookie" in refused.headers) == (401, False)
        for key in ("key-of-acme", "key-of-operator"):
            assert browser.post("/api/sign-in", json={"key": key}).status_code == 204


def test_a_failed_turn_reports_its_error(host: Host) -> None:
    """The response has already started, so the last event reports the failure."""
    with host.tenant("acme") as browser:
        last = frames(browser.get(say(browser, "broken", "Please break off.")))[-1]
        assert "event: turn.complete" in last
        assert '"status":"failed"' in last
        assert '"error":"OverloadedError: ' in last


def test_a_tool_of_the_mcp_server_is_run(host: Host) -> None:
    """The tool needs no approval, and the reply has its result."""
    with host.tenant("acme") as browser:
        ended(browser, say(browser, "order", "Where is my order?"))
        assert "a music stand" in browser.get("/api/chats/order").json()["messages"][-1]["text"]


def test_two_researchers_read_files_for_one_turn(host: Host) -> None:
    """The researchers' calls count for the tenant and for the turn. Their sessions are not listed as chats."""
    with host.tenant("lead") as lead:
        events = say(lead, "cellos", "Compare cellos.")
        text = lead.get(events).text
        assert "student 450 USD" in text
        assert "4.6 of 5 stars" in text
        (root,) = lead.get("/api/costs?by=root").json()
        assert root["calls"] == 6
        assert lead.get("/api/chats").json() == ["cellos"]


@pytest.mark.deep("the example over a kill")
def test_waiting_calls_and_messages_survive_a_kill(host: Host) -> None:
    """A waiting call can be approved once in the next process, and only with the input that was shown."""
    with host.tenant("acme") as browser:
        ended(browser, say(browser, "money", "Refund it, please."))
        cut = say(browser, "cut", " ".join(["word"] * 100))
        with browser.stream("GET", cut) as broken:
            next(line for line in broken.iter_lines() if line.startswith("event: text.delta"))
            host.end(signal.SIGKILL)
    with host.tenant("acme") as browser:
        (call,) = browser.get("/api/chats/money").json()["waiting"]
        assert call["input"] == {"order": "A-17", "cents": 1250}
        decisions = "/api/chats/money/decisions"
        other = {"id": call["id"], "input": {"order": "A-17", "cents": 1}, "approved": True}
        assert browser.post(decisions, json=other).status_code == 409
        asked = {"id": call["id"], "input": call["input"], "approved": True}
        turn = browser.post(decisions, json=asked).json()["turn"]
        ended(browser, f"/api/chats/money/turns/{turn}")
        assert browser.post(decisions, json=asked).status_code == 409
        assert browser.get("/api/account").json()["refunds"] == ["A-17 refunded, 12.50 USD"]
        assert browser.get(cut).status_code == 404
        ended(browser, say(browser, "cut", "again"))
        assert browser.get("/api/chats/cut").json()["messages"][-1]["text"] == "You said: again "


def test_a_call_that_is_denied_is_not_run(host: Host) -> None:
    """The model receives the reason."""
    with host.tenant("third") as browser:
        ended(browser, say(browser, "denied", "A refund!"))
        (call,) = browser.get("/api/chats/denied").json()["waiting"]
        decision = {"id": call["id"], "input": call["input"], "approved": False, "why": "not ours"}
        turn = browser.post("/api/chats/denied/decisions", json=decision).json()["turn"]
        ended(browser, f"/api/chats/denied/turns/{turn}")
        assert "not ours" in browser.get("/api/chats/denied").json()["messages"][-1]["text"]
        assert browser.get("/api/account").json()["refunds"] == []


def test_a_turn_is_cancelled(host: Host) -> None:
    """The stream of a cancelled turn ends normally for its readers."""
    with host.tenant("third") as browser:
        events = say(browser, "long", " ".join(["word"] * 200))
        assert browser.get("/api/chats/long").json()["turn"] == events.rpartition("/")[2]
        assert browser.delete("/api/chats/long/turns").status_code == 204
        assert '"status":"cancelled"' in frames(browser.get(events))[-1]


def test_a_tenant_spends_no_more_than_its_budget(host: Host) -> None:
    """The response has the remaining budget and the time of the next refill. Other tenants continue."""
    with host.tenant("poor") as poor, host.tenant("acme") as acme:
        for _ in range(20):
            answer = poor.post("/api/chats/dear/turns", json={"text": "x" * 4000})
            if answer.status_code != 202:
                break
            ended(poor, f"/api/chats/dear/turns/{answer.json()['turn']}")
        assert answer.status_code == 402
        left = float(poor.get("/api/account").json()["left_usd"])
        assert float(answer.json()["left_usd"]) == pytest.approx(left, abs=1e-6)
        assert 0 < int(answer.headers["retry-after"]) <= 86_400
        spent = sum(float(row["usd"]) for row in poor.get("/api/costs").json())
        assert spent + left == pytest.approx(0.02, abs=1e-6)
        ended(acme, say(acme, "rich", "hello"))


def test_the_live_view_is_the_operators(host: Host) -> None:
    """Tenants have no access to the live view. The page for tenants needs no key."""
    with host.browser("key-of-operator") as operator, host.tenant("acme") as tenant:
        assert operator.get("/callboard/api/me").json()["scopes"] == ["change", "content", "view"]
        assert tenant.get("/callboard/api/me").status_code in (401, 403)
        assert "page.js" in tenant.get("/").text
        assert tenant.get("/page.js").status_code == 200
        answer = tenant.post("/api/sign-in", json={"key": "key-of-acme"})
        assert "HttpOnly" in answer.headers["set-cookie"]


@pytest.mark.deep("the spans of turns and calls have quick tests")
def test_a_turns_spans_are_below_its_requests(host: Host) -> None:
    """The trace of the client continues through the request to each call of the model."""
    with host.tenant("traced") as browser:
        browser.headers["traceparent"] = f"00-{PARENT}-00f067aa0ba902b7-01"
        ended(browser, say(browser, "spans", "hello"))
    host.end(signal.SIGTERM)
    spans = [json.loads(line) for line in (host.folder / "spans.jsonl").read_text().splitlines()]
    by_id = {span["context"]["span_id"]: span for span in spans}
    (call,) = (
        span
        for span in spans
        if span["attributes"].get("gen_ai.conversation.id") == "traced/spans" and span["name"].startswith("chat ")
    )
    above = [call]
    while above[-1]["parent_id"] in by_id:
        above.append(by_id[above[-1]["parent_id"]])
    assert above[1]["name"].startswith("invoke_agent")
    assert above[-1]["name"] == "POST /api/chats/{chat}/turns"
    assert above[-1]["parent_id"] == "0x00f067aa0ba902b7"
    assert {span["context"]["trace_id"] for span in above} == {f"0x{PARENT}"}


@pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT)
@pytest.mark.timeout(120)
def test_the_page_works_in_a_browser(host: Host) -> None:
    """After the sign-in, a reply appears while it streams, a call waits for a click, and another browser shows the
    same.
    """
    host.browser("").close()  # this starts the host
    anyio.run(chat_in_a_browser, host.address)


async def chat_in_a_browser(address: str) -> None:
    async with browser() as chromium:
        page = await signed_in(chromium, address)
        await type_into(page, "#say", "one two three four")
        await page.until("document.querySelector('.assistant').innerText.includes('said: one two three four')")
        await type_into(page, "#say", "Refund it, please.")
        await page.until("document.querySelector('.waiting').innerText.includes('May I refund')")
        await page.click(".waiting button")
        await page.until("document.querySelector('#log').innerText.includes('Done:')")
        await page.until("document.querySelector('#account').innerText.includes('12.50')")
        again = await signed_in(chromium, address)
        await again.until("document.querySelector('#log').innerText.includes('Done:')")
        assert await again.text("#log") == await page.text("#log")
        await type_into(page, "#say", "Please break off.")
        await page.until("document.querySelector('.error')?.innerText === 'The model failed: OverloadedError.'")
        unexpected = [each for each in (*page.errors, *again.errors) if "401" not in each and "404" not in each]
        assert unexpected == [], "401 before the sign-in and 404 for a new chat are expected"


async def signed_in(chromium: Browser, address: str) -> Page:
    page = await chromium.page()
    await page.open(f"{address}/#seen")
    await type_into(page, "#sign-in", "key-of-seen")
    await page.until("!document.querySelector('main').hidden")
    return page


async def type_into(page: Page, form: str, text: str) -> None:
    """Fill a form's field, and submit it with Enter."""
    await page.until(f"document.querySelector('{form} input')?.getBoundingClientRect().width")
    await page.click(f"{form} input")
    await page.type(text)
    await page.press("Enter")


def test_the_page_shows_the_files() -> None:
    """A file of the example has each code block of the page, unchanged."""
    files = [path.read_text() for path in HOST.rglob("*.*") if path.suffix in (".py", ".js", ".yaml")]
    shown = [block.code for block in blocks(PAGE) if block.language in ("python", "javascript")]
    assert len(shown) >= 8
    for code in shown:
        assert any(code.strip() in text for text in files), code
