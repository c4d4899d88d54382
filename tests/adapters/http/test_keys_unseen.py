"""A key appears only in its request: not in the error of an invalid key, and not when a server repeats it."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from callboard.adapters import AdapterConfig, create_adapter
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.transport.transport import check_sendable
from callboard.bus.errors import AdapterError, ConfigurationError, InvalidRequestError
from callboard.engine import AdapterEntry, Engine, ModelEntry, ModelRegistry

from ...support.fake_http import request
from ...support.scripted_server import Connection, serving
from ...support.virtual_time import runs_on
from .test_wrong_addresses import WITH_ADDRESS

pytestmark = pytest.mark.anyio
anyio_backend = runs_on("asyncio", "trio")

KEY = "sk-very-secret-0123456789"

REPLY = (
    b'{"id":"%b","model":"m","choices":[{"message":{"role":"assistant","content":"Hi"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}' % KEY.encode()
)
ECHO = (
    f"x-request-id: req-{KEY}\r\nrequest-id: req-{KEY}\r\nx-ratelimit-reset-tokens: {KEY}\r\n"
    f"x-ratelimit-limit-tokens: 5\r\nset-cookie: {KEY}\r\n"
).encode()


@pytest.mark.parametrize("kind", WITH_ADDRESS)
def test_white_space_around_a_key_is_removed_and_an_unsendable_key_is_refused_and_not_shown(kind: str) -> None:
    """Files and copied keys often have such white space. The error comes when the adapter is created, before a
    library could log the key.
    """
    config = AdapterConfig(api_key=f"  {KEY}\r\n", base_url="https://x.test", extra_headers={"x-mine": " a b\n"})
    adapter = create_adapter(kind, config, name="mine")
    assert isinstance(adapter, HttpAdapter)
    assert (adapter.config.api_key, adapter.config.extra_headers) == (KEY, {"x-mine": "a b"})
    for wrong, field, what in UNSENDABLE:
        with pytest.raises(ConfigurationError) as raised:
            create_adapter(kind, msgspec.structs.replace(config, **wrong), name="mine")
        assert str(raised.value).startswith(f"mine: {field} ")
        assert what in str(raised.value)
        assert KEY not in "".join(traceback.format_exception(raised.value))


UNSENDABLE: list[tuple[dict[str, Any], str, str]] = [
    ({"api_key": f"{KEY}\nsecond"}, "api_key", "a line break (character 26 of 32)"),
    ({"api_key": f"{KEY}ä"}, "api_key", "outside ASCII"),
    ({"api_key": f"{KEY}\x00x"}, "api_key", "a control character"),
    ({"extra_headers": {"x-token": f"{KEY}\r\nx: y"}}, "extra_headers['x-token']", "a line break"),
    ({"extra_headers": {"x token": "y"}}, "extra_headers", "an invalid header name: 'x token'"),
]


def test_any_other_header_is_checked_before_it_is_sent() -> None:
    """An example is a header that depends on the request."""
    check_sendable({"a": "plain text, with\ttabs"})
    for value in ("x\ny", "\x00", "ü", "x\x7f"):
        with pytest.raises(InvalidRequestError, match="the header 'x-session' has") as raised:
            check_sendable({"x-session": value})
        assert value not in str(raised.value)


async def test_a_key_that_a_server_repeats_is_never_visible(
    caplog: pytest.LogCaptureFixture, anyio_backend_name: str
) -> None:
    """The key is in no response, no error and no log line of any library at any level.

    On trio, httpcore logs the headers of replies.
    """
    caplog.set_level(logging.DEBUG)

    async def script(connection: Connection) -> None:
        body = await connection.request()
        if b"fail" in body:
            head = b"HTTP/1.1 400 Bad\r\ncontent-length: 0\r\n"
            return await connection.send(head + ECHO + b"\r\n")
        await connection.reply(REPLY, b"content-type: application/json\r\n" + ECHO)

    async with serving(script) as server:
        config = AdapterConfig(api_key=KEY, base_url=server.url.removesuffix("/v1/talk"))
        adapter = create_adapter("openai_compatible", config, name="mine")
        response = await adapter.complete(request(model="mine:m"))
        stream = adapter.stream(request(model="mine:m"))
        async with stream:
            events = [event async for event in stream]
        with pytest.raises(AdapterError) as raised:
            await adapter.complete(request(model="mine:fail"))
        await adapter.close()
        assert all(f"Bearer {KEY}".encode() in head for _, head, _ in server.requests)
    assert response.provider_request_id == "req-***"
    assert response.response_id == "***"
    assert response.rate_limit is not None
    assert response.rate_limit.tokens_limit == 5
    seen = [repr(response), repr(stream.response), repr(events), repr(vars(raised.value)), str(raised.value)]
    seen += [record.getMessage() for record in caplog.records]
    logged = any("receive_response_headers.complete" in text for text in seen)
    assert logged is (anyio_backend_name == "trio")
    assert not [text for text in seen if KEY in text]


async def test_keys_of_tenants_of_pools_and_of_vaults_are_in_no_event_and_not_in_the_trace(
    tmp_path: Path, anyio_backend_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A server repeats each of the keys and refuses some. No byte of them is stored."""
    if anyio_backend_name != "asyncio":
        pytest.skip("the store is asyncio's")
    caplog.set_level(logging.DEBUG)
    old, new, acme, first, second = keys = [
        f"sk-{name}-0123456789" for name in ("old", "new", "acme", "1st", "2nd")
    ]
    vault = iter([old, new])

    async def script(connection: Connection) -> None:
        while True:
            await connection.request()
            key = next(key for key in keys if key.encode() in connection.server.requests[-1][1])
            echo = b"content-type: application/json\r\n" + ECHO.replace(KEY.encode(), key.encode())
            body = REPLY.replace(KEY.encode(), key.encode())
            if key in (old, first):
                return await connection.send(
                    b"HTTP/1.1 401 No\r\ncontent-length: %d\r\n%b\r\n%b" % (len(body), echo, body)
                )
            await connection.reply(body, echo)

    async with serving(script) as server:
        address = server.url.removesuffix("/v1/talk")
        configs = {
            "vault": AdapterConfig(api_key=lambda: next(vault), base_url=address),
            "tenants": AdapterConfig(keys={"acme": acme}, base_url=address),
            "pool": AdapterConfig(
                keys={"first": first, "second": second}, key_pool=("first", "second"), base_url=address
            ),
        }
        entries = {
            name: AdapterEntry(name=name, type="openai_compatible", config=config)
            for name, config in configs.items()
        }
        models = {f"{name}:m": ModelEntry(id=f"{name}:m", adapter=name, wire_name="m") for name in configs}
        registry = ModelRegistry(entries, models)
        async with Engine(models=registry, store=tmp_path / "trace.db", capture_content=True) as engine:
            replies = [
                await engine.session("vault:m").send("Hi"),
                await engine.session("tenants:m", key="acme").send("Hi"),
                await engine.session("pool:m").send("Hi"),
            ]
            await engine.flush()
            rows = await engine.store.calls()
            assert {row.provider_request_id for row in rows} == {"req-***"}
        sent = [key for _, head, _ in server.requests for key in keys if key.encode() in head]
    assert sent == [old, new, acme, first, second]
    assert [row.key for row in reversed(rows)] == [None, None, "acme", "first", "second"]
    files = [await path.read_bytes() async for path in anyio.Path(tmp_path).iterdir()]
    seen = [repr(replies), repr(rows), repr(configs), *(record.getMessage() for record in caplog.records)]
    assert not [text for text in seen for key in keys if key in text]
    assert not [data for data in files for key in keys if key.encode() in data]
