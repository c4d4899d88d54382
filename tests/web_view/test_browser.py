"""The page in a real browser with a real engine: each screen, hostile text, lost connections and a dead server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from starlette.responses import PlainTextResponse

from callboard import Engine, OverloadedError, PriceRow, PriceTable, TokenUsage, agent_tool, web
from callboard.engine.web_view.app import WebView
from callboard.engine.web_view.subject import Tail
from tests.support.browser import CHROMIUM, WHY_NOT, Browser, Page, browser
from tests.support.depth import first_is_quick
from tests.support.engines import keeping, registry
from tests.support.scripted import ADD, Say
from tests.support.virtual_time import runs_on

from .serving import served, subscriptions

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT),
    pytest.mark.timeout(180),
]

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script> \u202etfel\u202c שלום {{7*7}} javascript:alert(3)"
CHEAP = PriceTable.from_rows([PriceRow(model="s:*", input=1_000_000, output=10_000_000)], "cheap")
DEAR = PriceTable.from_rows([PriceRow(model="s:*", input=9_000_000, output=90_000_000)], f"dear {HOSTILE}")
SCREENS = ("now", "streams", "calls", "sessions", "costs", "providers", "supervision", "events")


anyio_backend = runs_on("asyncio", scope="module")


@pytest.fixture(scope="module")
async def chromium() -> AsyncIterator[Browser]:
    """One browser for all tests. Each page has its own context."""
    async with browser() as found:
        yield found


@asynccontextmanager
async def looked_at(
    engine: Engine, chromium: Browser, *, view: WebView | None = None, **page: Any
) -> AsyncIterator[tuple[Page, str]]:
    """A page that is signed in, and its address. At the end, the page must have no error and no request to another
    host.
    """
    view = view or web(engine)
    async with served(view) as address:
        opened = await open_page(chromium, view, address, **page)
        yield opened, address
        assert opened.errors == []
        assert opened.strangers(address.removeprefix("http://")) == []


async def open_page(found: Browser, view: WebView, address: str, **options: Any) -> Page:
    page = await found.page(**options)
    await page.open(view.sign_in_url(address))
    await page.until("document.body.dataset.ready && document.querySelector('main h1')")
    return page


async def go(page: Page, screen: str) -> None:
    await page.run(f"location.hash = '#/{screen}'")
    await page.until("document.querySelector('main h1, main .empty')")


async def a_hostile_engine(folder: Path, go_on: Callable[[], Awaitable[object]]) -> Engine:
    """An engine with markup in each field that a model, a server or a host fills. Its last reply waits for
    `go_on`.
    """
    replies = [
        Say(HOSTILE, calls=[("add", {"a": 1, "b": 2, HOSTILE: HOSTILE})]),
        Say(f"{HOSTILE} again"),
        Say(fails=OverloadedError(HOSTILE, provider="s", request_id="r")),
        Say(f"{HOSTILE} under way ", "…", pause=go_on),
    ]
    engine = keeping(folder / "t.db", models=registry(*replies, t=[Say("elsewhere")]), prices=CHEAP)
    await engine.start()
    session = engine.session("s:m", name=HOSTILE, tags={HOSTILE: HOSTILE}, tools=[ADD], system_prompt=HOSTILE)
    await session.send(HOSTILE, max_tool_rounds=2)
    session.model = ["s:m", "t:m"]
    await session.send(HOSTILE)
    engine.bus.dead_letter(HOSTILE, object(), HOSTILE)
    await engine.reprice(DEAR)
    return engine


async def test_every_screen_shows_markup_only_as_text(tmp_path: Path, chromium: Browser) -> None:
    """Each field has scripts, handlers and direction marks. None of them runs or turns the text of the page."""
    end = anyio.Event()
    asked = 0

    async def pause() -> None:
        nonlocal asked
        asked += 1
        if asked > 2:
            await end.wait()

    engine = await a_hostile_engine(tmp_path, pause)
    async with engine, looked_at(engine, chromium) as (page, _):
        session = engine.session("s:m", name=HOSTILE)
        turn = asyncio.create_task(session.stream("Hi").message())
        await page.until("document.querySelector('main tbody')?.innerText.includes('replying')")
        await each_screen(page, session.id)
        end.set()
        await turn
        await go(page, "now")
        await page.until("document.querySelector('main').innerText.includes('Nothing is in progress')")


async def each_screen(page: Page, session_id: str) -> None:
    """Open each screen and one item of its list, and check the text of each page."""
    expected = {
        "now": "In flight", "streams": "Memory", "calls": "Attempt", "sessions": "Turns",
        "costs": "Reprice past calls",
        "providers": "in use", "supervision": "session manager", "events": "Dead letters",
    }  # fmt: skip
    for screen in SCREENS:
        await go(page, screen)
        await page.until(f"document.querySelector('main').innerText.includes({expected[screen]!r})")
        await check_text(page, shows=screen in ("now", "sessions", "costs", "events"))
        if screen in ("streams", "calls", "sessions"):
            await page.click(f"main tbody tr:last-child a[href^='#/{screen}/']")
            await page.until("/^(Stream|Call|Session) /.test(document.querySelector('main h1').innerText)")
            await page.until("document.querySelectorAll('main .card').length > 1")
            await check_text(page, shows=screen != "streams")


async def check_text(page: Page, *, shows: bool) -> None:
    if shows:
        await page.until("document.querySelector('main').textContent.includes('onerror')")
    assert await page.run("document.querySelectorAll('main img, main script, main [onerror]').length") == 0
    turned = await page.run(
        """[...document.querySelectorAll("main *")].filter((element) =>
            [...element.childNodes].some((node) => node.nodeType === 3 && node.data.includes("\\u202e"))
            && !element.closest("bdi, [dir], option, pre, .said")).map((element) => element.outerHTML)"""
    )
    assert turned == []


@pytest.mark.deep("a load of a hundred thousand deltas")
async def test_a_page_follows_a_hundred_thousand_deltas(tmp_path: Path, chromium: Browser) -> None:
    """The page shows all of the text in the end. It reacts to a click meanwhile, and its memory stays small."""
    count = 100_000
    words = [f"{number} word{'.' if number % 9 else chr(10)}" for number in range(count)]

    async def breathe() -> None:
        await asyncio.sleep(0)

    async with keeping(tmp_path / "t.db", Say(*words, pause=breathe)) as engine:
        async with looked_at(engine, chromium) as (page, _):
            stream = engine.session("s:m").stream("Hi")
            async with stream as turn:
                await go(page, f"streams/{stream.stream_id}")
                await page.until("document.querySelector('.said')?.textContent.length > 1000")
                began = asyncio.get_running_loop().time()
                await page.click("button.theme")
                await page.until("document.documentElement.dataset.theme === 'light'")
                assert asyncio.get_running_loop().time() - began < 5
                await turn.message()
            await page.until(f"document.querySelector('.said').textContent.includes('{count - 1} word')", 60)
            length = await page.run("document.querySelector('.said').textContent.length")
            assert length == sum(map(len, words))
            assert await page.heap() < 200_000_000


async def test_a_broken_connection_loses_and_repeats_no_text(tmp_path: Path, chromium: Browser) -> None:
    """The browser connects again by itself and sends the position of its last event."""
    steps = [anyio.Event() for _ in range(60)]
    waits = iter(steps)
    words = [f"w{number} " for number in range(59)]
    async with keeping(tmp_path / "t.db", Say(*words, pause=lambda: next(waits, steps[-1]).wait())) as engine:
        view = web(engine)
        cut: list[asyncio.Event] = []

        async def breaking(scope: Any, receive: Any, send: Any) -> None:
            """The live view. Its connection breaks on request."""
            broken = asyncio.Event()
            if "/api/streams/" in scope["path"]:
                cut.append(broken)
            serving = asyncio.ensure_future(view(scope, receive, send))
            breaks = asyncio.ensure_future(broken.wait())
            await asyncio.wait((serving, breaks), return_when=asyncio.FIRST_COMPLETED)
            for each in (serving, breaks):
                each.cancel()
            if broken.is_set():
                raise ConnectionResetError("cut")

        async with served(breaking) as address:
            page = await open_page(chromium, view, address)
            stream = engine.session("s:m").stream("Hi")
            async with stream as turn:
                await go(page, f"streams/{stream.stream_id}")
                for number in range(0, 60, 20):
                    for step in steps[number : number + 20]:
                        step.set()
                    last = min(number + 18, 58)
                    await page.until(f"document.querySelector('.said')?.textContent.includes('w{last} ')")
                    cut[-1].set()
                await turn.message()
            await page.until("document.querySelector('main').innerText.includes('completed')")
            assert await page.run("document.querySelector('.said').textContent") == "".join(words)
            assert len(cut) >= 4
            assert [each for each in page.errors if "ERR_" not in each] == []


async def test_the_slider_shows_earlier_text_of_a_stream(tmp_path: Path, chromium: Browser) -> None:
    """The button `Back to live` shows the current text again."""
    steps = [anyio.Event() for _ in range(4)]
    waits = iter(steps)
    async with keeping(
        tmp_path / "t.db", Say("one ", "two ", "three ", pause=lambda: next(waits).wait())
    ) as engine:
        async with looked_at(engine, chromium) as (page, _):
            stream = engine.session("s:m").stream("Hi")
            async with stream as turn:
                await go(page, f"streams/{stream.stream_id}")
                for step, word in zip(steps, ("one", "two", "three"), strict=False):
                    step.set()
                    await page.until(f"document.querySelector('.said')?.textContent.includes('{word}')")
                steps[-1].set()
                await turn.message()
            await page.until("document.querySelector('main').innerText.includes('completed')")
            await page.run("document.querySelector('input[type=range]').focus()")
            for _ in range(3):
                await page.press("ArrowLeft")
            await page.until("!document.querySelector('.said')?.textContent.includes('three')")
            assert "one" in await page.text(".said")
            await page.run(
                "[...document.querySelectorAll('button')].find((b) => b.innerText === 'Back to live').click()"
            )
            await page.until("document.querySelector('.said').textContent.includes('three')")


async def test_a_repricing_changes_the_sums_on_the_page(tmp_path: Path, chromium: Browser) -> None:
    """The page tries the repricing, does it, and undoes it. The sums in the table change without a reload."""
    usage = TokenUsage(1_000_000, 0)
    async with keeping(tmp_path / "t.db", *[Say("Hello", usage=usage)] * 3, prices=CHEAP) as engine:
        for _ in range(3):
            await engine.session("s:m").send("Hi")
        await engine.reprice(DEAR)
        await engine.undo_reprice()
        async with looked_at(engine, chromium) as (page, _):
            await go(page, "costs")
            await page.until("document.querySelector('tfoot')?.innerText.includes('$3.00')")
            await page.run(
                f"""(() => {{ const select = [...document.querySelectorAll("select")].find((each) =>
                    [...each.options].some((option) => option.value === "published"));
                    select.value = "{DEAR.version}";
                    select.dispatchEvent(new Event("change", {{ bubbles: true }})); }})()"""
            )
            await press_button(page, "Try")
            await page.until("document.querySelector('[data-report=dry]')?.innerText.includes('$27.00')")
            assert "$27.00" not in await page.text("main table")
            await press_button(page, "Reprice")
            await press_button(page, "Reprice now?")
            await page.until("document.querySelector('[data-report=done]')")
            await page.until("document.querySelector('main table').innerText.includes('$27.00')")
            assert "$3.00" in await page.text("main table")
            await press_button(page, "Undo the latest")
            await press_button(page, "Undo?")
            await page.until("!document.querySelector('main table').innerText.includes('$27.00')")


async def press_button(page: Page, text: str) -> None:
    """Click the button with this text as soon as it is enabled."""
    buttons = "[...document.querySelectorAll('main button')]"
    found = f"{buttons}.find((b) => b.innerText.trim() === '{text}' && !b.disabled)"
    await page.until(f"Boolean({found})")
    await page.run(f"{found}.click()")


@pytest.mark.parametrize("dark", first_is_quick([False, True], "the same in the dark"))
async def test_the_page_fits_on_a_phone(tmp_path: Path, chromium: Browser, dark: bool) -> None:
    """No screen is wider than the phone, in light and in dark mode. Each tab leads to a screen, and is visible."""
    end = anyio.Event()
    asked = 0

    async def pause() -> None:
        nonlocal asked
        asked += 1
        if asked > 2:
            await end.wait()

    engine = await a_hostile_engine(tmp_path, pause)
    async with engine, looked_at(engine, chromium, width=375, height=700, phone=True, dark=dark) as (page, _):
        turn = asyncio.create_task(engine.session("s:m", name=HOSTILE).send("Hi"))
        outside = """[...document.querySelectorAll("nav a")].filter((tab) => {
            const box = tab.getBoundingClientRect();
            return box.left < 0 || box.right > innerWidth || box.bottom > innerHeight; }).length"""
        assert await page.run("document.querySelectorAll('nav a').length") == len(SCREENS)
        assert await page.run(outside) == 0
        for screen in SCREENS:
            await page.click(f"nav a[href='#/{screen}']")
            await page.until("document.querySelector('main .card, main .figures')")
            wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert await page.run(wide) <= 0, screen
        ground = await page.run("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", ground))) < 200) is dark
        end.set()
        await turn


async def test_the_page_works_with_the_keyboard_only(tmp_path: Path, chromium: Browser) -> None:
    """Number keys open the screens, Tab reaches a button, and pressing Enter twice cancels a turn."""
    end = anyio.Event()
    async with keeping(tmp_path / "t.db", Say("Hello", pause=end.wait)) as engine:
        async with looked_at(engine, chromium) as (page, _):
            turn = asyncio.create_task(engine.session("s:m").send("Hi"))
            for number, screen in [*enumerate(SCREENS, 1)][1:]:
                await page.press(str(number))
                await page.until(f"location.hash === '#/{screen}' && document.querySelector('nav [aria-current]')")
                await page.until("document.activeElement === document.querySelector('main')")
            await page.press("1")
            await page.until("[...document.querySelectorAll('button')].some((b) => b.innerText === 'Cancel')")
            for _ in range(30):
                await page.press("Tab")
                if await page.run("document.activeElement.innerText") == "Cancel":
                    break
            outline = await page.run("getComputedStyle(document.activeElement).outlineStyle")
            assert outline != "none"
            await page.press("Enter")
            await page.until("document.activeElement.innerText === 'Cancel it?'")
            await page.press("Enter")
            with pytest.raises(Exception, match="cancelled"):
                await turn
            await page.until("document.querySelector('main').innerText.includes('Nothing is in progress')")


async def test_the_sign_in_page_explains_a_missing_or_used_token(tmp_path: Path, chromium: Browser) -> None:
    """The address in the browser doesn't keep the token."""
    async with keeping(tmp_path / "t.db") as engine:
        view = web(engine)
        async with served(view) as address:
            url = view.sign_in_url(address)
            page = await chromium.page()
            await page.open(url)
            await page.until("document.querySelector('nav')")
            assert "token" not in await page.run("location.href")
            await page.open(f"{address}/?again")
            await page.until("document.querySelector('nav')")
            stranger = await chromium.page()
            await stranger.open(f"{address}/")
            await stranger.until("document.querySelector('.door')?.innerText.includes('printed')")
            await stranger.open("about:blank")
            await stranger.open(url)
            await stranger.until("document.querySelector('.problem')?.innerText.includes('already used')")


async def test_a_hidden_page_has_no_subscription(tmp_path: Path, chromium: Browser) -> None:
    """A tab in the background ends its subscription. A tab that is visible again subscribes again."""
    async with keeping(tmp_path / "t.db", Say("Hello")) as engine:
        view = web(engine)
        view._subject.tail = Tail(engine.bus, linger=0.0)
        before = subscriptions(engine)

        async def listeners(wanted: bool) -> None:
            async with asyncio.timeout(20):
                while (subscriptions(engine) != before) is not wanted:  # noqa: ASYNC110 (nobody tells)
                    await asyncio.sleep(0.01)

        async with looked_at(engine, chromium, view=view) as (page, _):
            hide = """(hidden) => {
                Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
                document.dispatchEvent(new Event("visibilitychange")); }"""
            for screen in ("now", "events", "supervision"):
                await go(page, screen)
                await listeners(True)
                await page.run(f"({hide})(true)")
                await listeners(False)
                await page.run(f"({hide})(false)")
                await listeners(True)


def contrast(text: str, ground: str) -> float:
    """The contrast of two colours as WCAG 2.2 defines it, from 1 to 21. A colour is ``rgb(r, g, b)``."""

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(text), luminance(ground)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_muted_text_has_enough_contrast(tmp_path: Path, chromium: Browser, dark: bool) -> None:
    """WCAG AA requires a contrast of 4.5 for text, on a card and on the background of the page."""
    async with keeping(tmp_path / "t.db") as engine, looked_at(engine, chromium, dark=dark) as (page, _):
        for name in ("soft", "faint"):
            for ground in ("card", "ground"):
                pair = await page.run(
                    f"""(() => {{ const made = document.createElement("p");
                        made.style.color = "var(--{name})"; made.style.backgroundColor = "var(--{ground})";
                        document.body.append(made); const style = getComputedStyle(made);
                        const found = [style.color, style.backgroundColor]; made.remove(); return found; }})()"""
                )
                assert contrast(*pair) >= 4.5, (name, ground)


async def test_the_details_of_an_event_have_the_width_of_the_page(tmp_path: Path, chromium: Browser) -> None:
    async with keeping(tmp_path / "t.db", Say("Hello")) as engine:
        await engine.session("s:m").send("Hi")
        async with looked_at(engine, chromium) as (page, _):
            await go(page, "events")
            await page.click(".log .line button")
            await page.until("document.querySelector('.log .json')")
            widths = "['.log .json', '.log'].map((each) => document.querySelector(each).clientWidth)"
            details, log = await page.run(widths)
            assert details > 0.95 * log


async def test_the_page_of_a_call_has_its_timeline_and_its_prompt(tmp_path: Path, chromium: Browser) -> None:
    """Calls and tools are in the order of their starts. A click on a call opens its page."""
    replies = [Say("Adding.", calls=[("add", {"a": 1, "b": 2})]), Say("Three.")]
    async with keeping(tmp_path / "t.db", *replies) as engine:
        session = engine.session("s:m", tools=[ADD], system_prompt="Be brief.", tags={"team": "search"})
        await session.send("What is 1 + 2?")
        assert engine.store is not None
        await engine.flush()
        first = (await engine.store.calls())[-1]
        async with looked_at(engine, chromium) as (page, _):
            await go(page, f"calls/{first.request_id}")
            await page.until("document.querySelectorAll('.waterfall li').length === 3")
            kinds = "[...document.querySelectorAll('.waterfall li')].map((each) => each.classList[0]).join()"
            assert await page.run(kinds) == "call,tool,call"
            text = await page.text("main")
            assert all(each in text for each in ("Be brief.", "What is 1 + 2?", "Adding."))
            await page.click(".waterfall li:last-child a")
            await page.until("document.querySelector('main').innerText.includes('Three.')")


async def test_a_tree_of_turns_is_shown_during_its_run_and_afterwards(tmp_path: Path, chromium: Browser) -> None:
    """Children are below their parent, each with its cost."""
    go_on = anyio.Event()
    agents = [agent_tool(name, model=f"{name}:m") for name in ("a", "b")]
    asked = [("a", {"task": "Look."}), ("b", {"task": "Look."})]
    script = {"a": [Say("found")], "b": [Say("part ", "found", pause=go_on.wait)]}
    prices = PriceTable.from_rows(
        [PriceRow(model=f"{name}:*", input=10**6, output=10**7) for name in "sab"], "three"
    )
    models = registry(Say(calls=asked), Say("Done."), **script)
    async with keeping(tmp_path / "t.db", models=models, prices=prices) as engine:
        session = engine.session("s:m", tools=agents)
        async with looked_at(engine, chromium) as (page, _):
            sending = asyncio.create_task(session.send("Go.", max_tool_rounds=2))
            await go(page, "now")
            table = "table[aria-label='Turns and calls in progress'] tbody tr"
            await page.until(
                f"[...document.querySelectorAll({table!r})].some((row) => /└ b:m/.test(row.innerText))"
            )
            await page.until(f"document.querySelector({table!r}).innerText.includes('+ $')")
            go_on.set()
            await sending
            await engine.flush()
            assert engine.store is not None
            child = next(row for row in await engine.store.calls() if row.provider == "a")
            for screen in (f"calls/{child.request_id}", f"sessions/{session.id}"):
                await go(page, screen)
                rows = "[...document.querySelectorAll(\"table[aria-label='Tree of turns'] tbody tr\")]"
                await page.until(f"{rows}.length === 3")
                cells = f"{rows}.map((row) => [...row.cells].map((cell) => cell.innerText.trim()))"
                seen = await page.run(cells)
                assert [row[0].replace("\u00a0", "") for row in seen] == ["s:m", "└ a:m", "└ b:m"]
                assert [row[1] for row in seen] == ["completed"] * 3
                own, whole = ([float(row[place].strip("$")) for row in seen] for place in (4, 5))
                assert whole[0] == pytest.approx(sum(own))
                assert whole[1:] == own[1:] != [0, 0]


async def test_filters_are_part_of_the_link(tmp_path: Path, chromium: Browser) -> None:
    """A link with filters opens the screen with these filters. A changed filter changes the link."""
    async with keeping(tmp_path / "t.db", Say("One"), Say("Two")) as engine:
        await engine.session("s:m", tags={"team": "search"}).send("Hi")
        await engine.session("s:m", tags={"team": "ads"}).send("Hi")
        async with looked_at(engine, chromium) as (page, _):
            await go(page, "calls?tag=team%3Dsearch")
            await page.until("document.querySelectorAll('main tbody tr').length === 1")
            await page.run(
                """(() => { const field = [...document.querySelectorAll("label.field")].find((each) =>
                    each.innerText.startsWith("Tag")).querySelector("input");
                    field.value = "team=none"; field.dispatchEvent(new Event("change", { bubbles: true })); })()"""
            )
            await page.until("document.querySelector('main').innerText.includes('No matching calls')")
            assert await page.run("location.hash") == "#/calls?tag=team%3Dnone"
            await go(page, "calls")
            await page.until("document.querySelectorAll('main tbody tr').length === 2")


async def test_an_ended_stream_looks_different_from_an_open_one(tmp_path: Path, chromium: Browser) -> None:
    """The list also has the sessions, and the model of the open stream."""
    end = anyio.Event()
    async with keeping(tmp_path / "t.db", Say("One"), Say("Two", pause=end.wait)) as engine:
        await engine.session("s:m", session_id="first").send("Hi")
        turn = asyncio.create_task(engine.session("s:m", session_id="second").send("Hi"))
        async with looked_at(engine, chromium) as (page, _):
            await go(page, "streams")
            await page.until("document.querySelectorAll('main tbody tr').length === 2")
            await page.until("document.querySelector('main tbody tr:last-child').innerText.includes('ended')")
            rows = "[...document.querySelectorAll('main tbody tr')].map((each) => each.innerText)"
            opened, ended = await page.run(rows)
            assert all(word in opened for word in ("open", "second", "s:m"))
            assert all(word in ended for word in ("ended", "first"))
            dots = "[...document.querySelectorAll('tbody .dot')]"
            grounds = f"{dots}.map((dot) => getComputedStyle(dot).backgroundColor)"
            assert len(set(await page.run(grounds))) == 2
        end.set()
        await turn


async def test_a_banner_appears_when_the_server_does_not_answer(tmp_path: Path, chromium: Browser) -> None:
    """The banner disappears when the server answers again."""
    async with keeping(tmp_path / "t.db") as engine:
        view = web(engine)
        gone = False

        async def may_be_gone(scope: Any, receive: Any, send: Any) -> None:
            """A proxy in front of the live view."""
            if gone:
                await PlainTextResponse("nobody there", 502)(scope, receive, send)
                return
            await view(scope, receive, send)

        async with served(may_be_gone) as address:
            page = await open_page(chromium, view, address)
            assert await page.run("document.querySelector('.banner')") is None
            gone = True
            view.close()
            await page.until("document.querySelector('.banner')?.innerText.includes('does not answer')", 30)
            gone = False
            await page.until("!document.querySelector('.banner')", 30)
            view.close()
