"""The refusals of the live view: hosts, origins, tokens, forged changes, paths, markup and frames."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

from callboard import ConfigurationError, Engine, web
from callboard.engine.web_view.access import CSRF_HEADER, HEADERS, MOST_BYTES, SignIn
from callboard.engine.web_view.app import FOLDER, SCREENS, Assets, WebView
from tests.support.engines import keeping, registry, running
from tests.support.scripted import Say
from tests.support.virtual_time import FakeClock

from ..support.programs import ended
from .serving import HERE, asking, served, sign_in, token_of

pytestmark = pytest.mark.anyio

GETS = [path for method, path, _, _ in SCREENS if method == "GET"]
POSTS = [path for method, path, _, _ in SCREENS if method == "POST"]
FORBIDDEN = (
    *("innerHTML", "outerHTML", "insertAdjacentHTML", "dangerouslySetInnerHTML"),
    *("document.write", "eval(", "new Function"),
)
"""Ways to turn text into markup or code."""
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>\u202e javascript:alert(1)"


@asynccontextmanager
async def viewed(*, signed_in: bool = True, **options: object) -> AsyncIterator[tuple[WebView, httpx.AsyncClient]]:
    """A live view of an engine without a trace, and a client of that view."""
    async with running() as (engine, _):
        view = web(engine, **options)  # type: ignore[arg-type]
        async with asking(view) as client:
            if signed_in:
                await sign_in(client, view)
            yield view, client


def concrete(path: str) -> str:
    return path.removeprefix("/").replace("{id}", "some")


# -- hosts and origins


FOREIGN = (
    *("evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "evil.example:8000", "", "[::1"),
    *("127.0.0.1@evil.example", "127.0.0.1:8000/evil.example", "127.0.0.1:evil", "0.0.0.0", "127.0.0.2"),
    *("LOCALHOST.", "127.0.0.1,evil.example"),
)


async def test_another_host_is_refused_on_every_request() -> None:
    """With DNS rebinding, another page has the same origin as the live view. Only the list of hosts shows the
    difference.
    """
    async with viewed() as (_, client):
        for host in FOREIGN:
            for path in ("", "static/app.js", "api/me", "api/now"):
                answer = await client.get(path, headers={"host": host, "origin": f"http://{host}"})
                assert (answer.status_code, "host" in answer.json()["error"]) == (403, True), (host, path)
            answer = await client.post("api/cancel", json={"id": "x"}, headers={"host": host})
            assert answer.status_code == 403, host


async def test_the_hosts_on_the_list_are_accepted() -> None:
    """The names of this machine are always on the list. The host adds others. The port doesn't matter."""
    async with viewed(hosts=["watch.example"]) as (_, client):
        for host in ("127.0.0.1:8372", "localhost", "LocalHost:1", "[::1]:8372", "watch.example"):
            assert (await client.get("", headers={"host": host})).status_code == 200, host


async def test_a_request_with_two_hosts_is_refused() -> None:
    """A proxy in between may read the other host."""
    async with viewed() as (_, client):
        headers = httpx.Headers([("host", "127.0.0.1:8000"), ("host", "evil.example")])
        assert (await client.get("api/me", headers=headers)).status_code == 403


async def test_a_list_of_hosts_has_only_names_and_addresses() -> None:
    """A pattern would allow unknown hosts. A port would never match."""
    async with running() as (engine, _):
        for bad in ("*", "*.example", "http://x.example", "x.example:80", "", "a/b", "a@b"):
            with pytest.raises(ConfigurationError, match="is not the name or address"):
                web(engine, hosts=[bad])


async def test_another_origin_is_refused() -> None:
    """Another port of this machine is another origin, although a browser counts it as the same site."""
    foreign = ("http://evil.example", "null", "http://127.0.0.1:9999", "http://localhost:8000", f"{HERE}.evil")
    async with viewed() as (_, client):
        for origin in foreign:
            for method, path in (("GET", "api/me"), ("POST", "api/cancel")):
                answer = await client.request(method, path, headers={"origin": origin})
                assert (answer.status_code, "origin" in answer.json()["error"]) == (403, True), origin
        assert (await client.get("api/me", headers={"origin": HERE})).status_code == 200


async def test_a_request_from_another_site_is_refused_but_a_link_is_followed() -> None:
    """A link opens the page, which has no data. A fetch or an embedded file from another site is refused."""
    async with viewed() as (_, client):
        for site in ("cross-site", "same-site"):
            fetched = {"sec-fetch-site": site, "sec-fetch-mode": "no-cors"}
            assert (await client.get("api/me", headers=fetched)).status_code == 403
            assert (await client.get("static/app.js", headers=fetched)).status_code == 403
            linked = {"sec-fetch-site": site, "sec-fetch-mode": "navigate"}
            assert (await client.get("", headers=linked)).status_code == 200


async def test_a_web_socket_is_refused() -> None:
    """The live view has no web sockets. A browser would open one from any page."""
    async with running() as (engine, _):
        sent: list[object] = []

        async def send(message: object) -> None:
            sent.append(message)

        async def receive() -> dict[str, str]:
            return {"type": "websocket.connect"}

        scope = {"type": "websocket", "path": "/api/now", "headers": [(b"host", b"127.0.0.1")]}
        await web(engine)(scope, receive, send)  # type: ignore[arg-type]
        assert sent == [{"type": "websocket.close", "code": 1008}]


# -- tokens and cookies


async def test_each_path_requires_a_sign_in() -> None:
    """No header replaces the sign-in. The error of a GET mentions the printed link."""
    async with viewed(signed_in=False) as (_, client):
        for path in GETS:
            answer = await client.get(concrete(path))
            assert (answer.status_code, "printed" in answer.json()["error"]) == (401, True), path
        for path in POSTS:
            answer = await client.post(concrete(path), json={}, headers={CSRF_HEADER: "x", "origin": HERE})
            assert answer.status_code == 401, path


async def test_a_token_is_valid_once() -> None:
    """A token in the history of a terminal is useless."""
    async with viewed(signed_in=False) as (view, client):
        token = token_of(view)
        assert (await client.post("api/sign-in", json={"token": token})).status_code == 200
        again = await client.post("api/sign-in", json={"token": token})
        assert (again.status_code, "already used" in again.json()["error"]) == (401, True)


async def test_a_guessed_token_is_refused() -> None:
    async with viewed(signed_in=False) as (_, client):
        for token in ("", "x", "A" * 43, "é", "\x00", "a" * 10_000):
            answer = await client.post("api/sign-in", json={"token": token})
            assert (answer.status_code, answer.headers.get("set-cookie")) == (401, None), token


async def test_only_the_latest_sixteen_tokens_are_valid() -> None:
    async with viewed(signed_in=False) as (view, client):
        old = token_of(view)
        for _ in range(16):
            token_of(view)
        assert (await client.post("api/sign-in", json={"token": old})).status_code == 401


async def test_the_cookie_is_restricted_to_this_page() -> None:
    """No script reads the cookie. Browsers send it only from this site and only for this path."""
    async with running() as (engine, _):
        view = web(engine)
        app = Starlette(routes=[Mount("/callboard", view)])
        async with asking(app, f"{HERE}/callboard/") as client:
            answer = await client.post("api/sign-in", json={"token": token_of(view)})
            cookie = answer.headers["set-cookie"]
            assert "HttpOnly" in cookie
            assert "SameSite=strict" in cookie
            assert "Path=/callboard/" in cookie
            assert "Secure" not in cookie
        async with asking(app, "https://127.0.0.1/callboard/") as client:
            answer = await client.post("api/sign-in", json={"token": token_of(view)})
            assert "Secure" in answer.headers["set-cookie"]


async def test_two_live_views_of_a_machine_have_separate_cookies() -> None:
    """Cookies are shared between ports. One sign-in must not end the other."""
    async with running() as (engine, _):
        one, other = web(engine), web(engine)
        async with asking(one) as client:
            await sign_in(client, one)
            async with asking(other, cookies=client.cookies) as elsewhere:
                assert (await elsewhere.get("api/me")).status_code == 401


async def test_a_sign_in_ends() -> None:
    """A sign-in ends by signing out, after a week, and when too many newer ones exist."""
    clock = FakeClock()
    sign = SignIn(clock, ["view"])
    secrets = [sign.exchange(sign.new_token()) for _ in range(65)]
    first, *_, last = [secret or "" for secret in secrets]
    assert (sign.visitor(first), sign.visitor(last) is not None) == (None, True)
    sign.leave(last)
    assert sign.visitor(last) is None
    kept = secrets[-2] or ""
    clock.advance(7 * 24 * 3600 - 1)
    assert sign.visitor(kept) is not None
    clock.advance(2)
    assert sign.visitor(kept) is None


async def test_a_cookie_is_invalid_after_signing_out() -> None:
    """A copy of the cookie is invalid too."""
    async with viewed() as (_, client):
        stolen = dict(client.cookies)
        assert (await client.post("api/sign-out", json={})).status_code == 200
        client.cookies.update(stolen)
        assert (await client.get("api/me")).status_code == 401


# -- changes


async def test_a_change_needs_the_header_that_only_the_page_can_read() -> None:
    """A form or an image of another page never sends this header."""
    async with viewed() as (_, client):
        del client.headers[CSRF_HEADER]
        for path in POSTS:
            for value in (None, "", "x", "0" * 32):
                headers = {} if value is None else {CSRF_HEADER: value}
                answer = await client.post(concrete(path), json={}, headers=headers)
                assert (answer.status_code, CSRF_HEADER in answer.json()["error"]) == (403, True), (path, value)


async def test_the_header_of_another_visitor_is_refused() -> None:
    """Each sign-in has its own header value."""
    async with viewed() as (view, client), asking(view) as other:
        await sign_in(other, view)
        client.headers[CSRF_HEADER] = other.headers[CSRF_HEADER]
        assert (await client.post("api/cancel", json={"id": "x"})).status_code == 403


ID, JSON = b'{"id": "x"}', "application/json"


BODIES = (
    *((ID, kind, 415) for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "")),
    *((body, JSON, 400) for body in (b"", b"{", b"[]", b'{"id": 1}', b'{"id": null}', b"null", b"\xff\xfe")),
    (b'{"id": "x", "more": 1}', JSON, 400),
    (b'{"id": "' + b"x" * MOST_BYTES + b'"}', JSON, 413),
)


async def test_a_wrong_body_is_refused() -> None:
    """A body must be JSON and have the content type of JSON, which no form can send."""
    async with viewed() as (_, client):
        for body, kind, code in BODIES:
            answer = await client.post("api/cancel", content=body, headers={"content-type": kind})
            assert (answer.status_code, "Traceback" in answer.text) == (code, False), (body[:20], kind)


async def test_changes_are_accepted_only_as_post() -> None:
    """A link, an image or a prefetch can't change anything."""
    async with viewed() as (_, client):
        for path in POSTS:
            for method in ("GET", "PUT", "DELETE", "PATCH", "HEAD"):
                assert (await client.request(method, concrete(path))).status_code in (404, 405), (path, method)


async def test_a_visitor_without_the_scope_change_changes_nothing() -> None:
    """The server checks the scope. Hidden buttons would not be enough."""
    async with viewed(scopes=["view", "content"]) as (_, client):
        for path in [path for _, path, needs, _ in SCREENS if needs == "change"]:
            answer = await client.post(concrete(path), json={})
            assert (answer.status_code, "'change'" in answer.json()["error"]) == (403, True), path


async def test_an_unknown_scope_is_refused() -> None:
    """A typing error must not give more rights."""
    async with running() as (engine, _):
        with pytest.raises(ConfigurationError, match="unknown chagne"):
            web(engine, scopes=["view", "chagne"])  # type: ignore[list-item]


# -- authentication by the host


async def test_authorize_of_the_host_decides() -> None:
    """The function gets the request. An empty list, None and a list without `view` refuse the request."""

    def authorize(request: Request) -> list[str] | None:
        return {"ada": ["view", "change"], "bob": ["view"], "eve": [], "mad": ["change"]}.get(
            request.headers.get("x-user", "")
        )

    async with viewed(signed_in=False, authorize=authorize) as (view, client):
        codes = {}
        for user in ("ada", "bob", "eve", "mad", "nobody"):
            answer = await client.get("api/me", headers={"x-user": user})
            codes[user] = answer.status_code
            if user == "ada":
                csrf = answer.json()["csrf"]
        assert codes == {"ada": 200, "bob": 200, "eve": 401, "mad": 401, "nobody": 401}
        changes = {}
        for user in ("ada", "bob"):
            headers = {"x-user": user, CSRF_HEADER: csrf}
            changes[user] = (await client.post("api/cancel", json={"id": "x"}, headers=headers)).status_code
        assert changes == {"ada": 409, "bob": 403}
        forged = await client.post("api/cancel", json={"id": "x"}, headers={"x-user": "ada"})
        assert forged.status_code == 403
        with pytest.raises(ConfigurationError):
            view.sign_in_url(HERE)
        assert (await client.post("api/sign-in", json={"token": "x"})).status_code == 404


async def test_authorize_can_be_a_coroutine_function() -> None:
    """The function is awaited. An error in it refuses the request."""

    async def authorize(request: Request) -> set[str]:
        if "broken" in request.headers:
            raise RuntimeError("the directory is down")
        return {"view"}

    async with running() as (engine, _):
        async with served(web(engine, authorize=authorize)) as address, httpx.AsyncClient() as client:  # type: ignore[arg-type]
            assert (await client.get(f"{address}/api/me")).status_code == 200
            broken = await client.get(f"{address}/api/me", headers={"broken": "yes"})
            assert (broken.status_code, "directory" in broken.text) == (500, False)


# -- paths, headers, markup


OUTSIDE = (
    *("static/../app.py", "static/../../../pyproject.toml", "static/%2e%2e/app.py", "static/..%2fapp.py"),
    *(
        "static//etc/passwd",
        "static/%00",
        "static/vendor/../../app.py",
        "static/app.js%00.png",
        "static/",
        "static",
    ),
    *("static/\\..\\app.py", "app.py"),
)


async def test_no_path_leads_out_of_the_folder_of_the_page() -> None:
    """The test uses a real server, which does not normalise the path."""
    async with running() as (engine, _), served(web(engine)) as address:
        host, port = address.removeprefix("http://").split(":")
        for path in OUTSIDE:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"GET /{path} HTTP/1.1\r\nhost: {host}:{port}\r\nconnection: close\r\n\r\n".encode())
            answer = await reader.read()
            writer.close()
            assert answer.split(b" ")[1] in (b"404", b"400"), path
            assert b"import" not in answer, path


async def test_every_response_has_the_headers_of_the_policy() -> None:
    """The policy allows no inline code, no other host and no frame. Refusals have the headers too."""
    async with viewed() as (_, client):
        for path in ("", "static/app.js", "api/me", "api/nothing", "nothing", "api/calls"):
            for headers in ({}, {"host": "evil.example"}):
                answer = await client.get(path, headers=headers)
                assert {name: answer.headers[name] for name in HEADERS} == HEADERS, path
        for path in ("api/me", "api/streams", "api/calls"):
            assert (await client.get(path)).headers["cache-control"] == "no-store"
    policy = HEADERS["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


async def test_the_page_follows_the_policy() -> None:
    """The page has no inline code or style, and loads nothing from another host."""
    page = (FOLDER / "index.html").read_text()
    assert "<style" not in page
    assert all("src=" in tag for tag in page.split("<script")[1:])
    for path in FOLDER.rglob("*"):
        if path.suffix in (".js", ".html", ".css") and "vendor" not in path.parts:
            text = path.read_text()
            assert "http://" not in text.replace("http://www.w3.org", ""), path
            assert "https://" not in text, path
            assert not [way for way in FORBIDDEN if way in text], path


async def test_a_script_in_any_field_is_sent_as_json(tmp_path: Path) -> None:
    """A model or a server may put markup into names, tags, texts, tools, errors and ids."""
    reply = Say(HOSTILE, calls=[(HOSTILE[:60], {HOSTILE: HOSTILE})])
    async with keeping(tmp_path / "t.db", reply, Say(fails=RuntimeError(HOSTILE))) as engine:
        session = engine.session("s:m", name=HOSTILE, tags={HOSTILE: HOSTILE}, session_id="ses_<b>")
        for _ in range(2):
            with suppress(Exception):
                await session.send(HOSTILE)
        view = web(engine)
        async with asking(view) as client:
            await sign_in(client, view)
            seen = ""
            for path in (
                "api/calls",
                "api/sessions",
                "api/sessions/ses_<b>",
                "api/events/history",
                "api/streams",
                "api/costs?by=session_id&left=&right=",
                "api/costs?by=tag:x",
                "api/clients",
                "api/prices",
                "api/dead-letters",
            ):
                answer = await client.get(path)
                assert answer.status_code == 200, (path, answer.text)
                assert answer.headers["content-type"] == "application/json"
                json.loads(answer.content)
                seen += answer.text
            assert "<script>alert(1)</script>" in seen  # unchanged: the page shows it as text nodes


async def test_an_internal_error_has_no_details() -> None:
    async with running() as (engine, _):
        view = web(engine)
        async with served(view) as address, httpx.AsyncClient(base_url=f"{address}/") as client:
            await sign_in(client, view)
            view._subject.engine = object()  # type: ignore[assignment]
            answer = await client.get("api/streams")
            assert (answer.status_code, answer.json()) == (
                500,
                {"error": "internal error. See the log"},
            )


QUERIES = (
    *("calls?limit=-1", "calls?limit=x", "calls?since=x", "calls?status=nonsense", "costs?by=nonsense"),
    *("costs?by=day;drop table calls", "events?topics=a..b", "events?topics=>.a", "events/history?topics=**"),
    "streams/x?after=y:1",
)


async def test_a_wrong_query_is_refused_with_a_reason(tmp_path: Path) -> None:
    async with running(store=tmp_path / "t.db") as (engine, _):
        view = web(engine)
        async with asking(view) as client:
            await sign_in(client, view)
            for query in QUERIES:
                answer = await client.get(f"api/{query}")
                assert answer.status_code in (400, 404), (query, answer.text)
                assert answer.json()["error"], query


async def test_web_needs_an_engine_or_a_trace(tmp_path: Path) -> None:
    """An engine without a trace shows no content."""
    with pytest.raises(ConfigurationError, match="needs an engine or a trace"):
        web()
    assert Engine(models=registry(), trace=False).shows_content is False


# -- The files of the page: vendor files are unchanged and have their licences, and every file is shipped.


VENDOR = FOLDER / "vendor"
LISTED = json.loads((VENDOR / "vendor.json").read_text())
WITHOUT = """
import sys

class Hides:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("starlette", "uvicorn"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hides())
from callboard import *
from callboard import ConfigurationError, web

try:
    web(trace="t.db")
except ConfigurationError as error:
    print(error)
"""
OWN = sorted(path for path in FOLDER.rglob("*.js") if VENDOR not in path.parents)


def test_a_vendor_file_is_listed_and_unchanged() -> None:
    """The checksum is that of the file in the package of that version. The licence is in the same folder."""
    for row in LISTED:
        assert hashlib.sha256((VENDOR / row["file"]).read_bytes()).hexdigest() == row["sha256"], row["file"]
        assert all((VENDOR / licence).is_file() for licence in row["license_files"]), row["file"]
        assert re.fullmatch(r"\d+\.\d+\.\d+", row["version"]), row["file"]
    unlisted = {"vendor.json", "README.txt"}
    assert {path.name for path in VENDOR.iterdir()} - unlisted == {row["file"] for row in LISTED}


def test_a_module_imports_existing_files_and_names() -> None:
    """No build step checks imports. Each imported name must be an export of the other module."""
    for path in OWN:
        for names, source in re.findall(r'import \{([^}]*)\} from "([^"]+)"', path.read_text()):
            target = (path.parent / source).resolve()
            assert target.is_file(), (path, source)
            text = target.read_text()
            exported = set(re.findall(r"export (?:async )?(?:const|function|class|let) (\w+)", text))
            for lot in re.findall(r"export\s*\{([^}]*)\}", text):
                exported |= {each.split(" as ")[-1].strip() for each in lot.split(",")}
            assert {name.strip() for name in names.split(",")} <= exported, (path, source)


def test_every_file_has_a_content_type_and_is_served() -> None:
    """A file with an unknown extension would be missing from the page."""
    files = {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file()}
    assert set(Assets()) == files  # type: ignore[arg-type]


def test_callboard_is_imported_without_the_extra() -> None:
    """`web` then raises an error that names the package to install."""
    done = ended(WITHOUT, fresh=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert 'pip install "callboard[web]"' in done.stdout
