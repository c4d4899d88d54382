"""A key that a function gives: asked for at its first use, kept, and asked for again when it is refused."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from callboard.adapters import AdapterConfig, AttemptReport, AttemptStarted, KeyFile, create_adapter
from callboard.adapters.cassettes import RecordingTransport
from callboard.adapters.http.adapter import HttpAdapter
from callboard.bus.errors import AdapterError, AuthError, CancelledError, InvalidRequestError, RequestTimeoutError

from ...support.fake_http import request
from .sources import NEW, OLD, ROWS, Gate, Vault, adapter_of

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("row", ROWS)
async def test_a_refused_key_is_asked_for_again_and_the_attempt_repeated(row: str) -> None:
    """On every wire that sends a key, and with no retry left: a new key is no retry."""
    kind, ask = ROWS[row]
    vault, gate = Vault(OLD, NEW), Gate(NEW)
    adapter = adapter_of(kind, gate, api_key=vault)
    for _ in range(2):
        with pytest.raises(InvalidRequestError) as raised:
            await ask(adapter)
        assert NEW not in "".join(traceback.format_exception(raised.value))
    assert gate.sent == [OLD, NEW, NEW]
    assert vault.asked == 2
    await adapter.close()


@pytest.mark.parametrize("row", ROWS)
async def test_a_key_that_stays_the_same_is_refused_for_good(row: str) -> None:
    """It is asked for once more in each call, and nothing is sent twice."""
    kind, ask = ROWS[row]
    vault, gate = Vault(OLD), Gate(NEW)
    adapter = adapter_of(kind, gate, api_key=vault)
    with pytest.raises(AuthError):
        await ask(adapter)
    assert (gate.sent, vault.asked) == ([OLD], 2)
    await adapter.close()


@pytest.mark.parametrize("row", ["anthropic whole", "anthropic streamed", "voyage embeddings"])
async def test_a_new_key_that_is_refused_too_ends_the_call(row: str) -> None:
    """A call looks for a new key once, so that a broken vault can't keep it going."""
    kind, ask = ROWS[row]
    vault, gate = Vault(OLD, "sk-second", "sk-third", NEW), Gate(NEW)
    adapter = adapter_of(kind, gate, api_key=vault)
    with pytest.raises(AuthError):
        await ask(adapter)
    assert gate.sent == [OLD, "sk-second"]
    await adapter.close()


async def test_calls_that_are_refused_together_ask_once() -> None:
    """Ten calls with the old key, refused at the same moment."""
    vault, gate = Vault(OLD, NEW), Gate(NEW)
    adapter = adapter_of("openai", gate, api_key=vault)

    async def call(number: int) -> None:
        with pytest.raises(InvalidRequestError):
            await adapter.complete(request(model="mine:m", request_id=f"req_{number}"))

    async with anyio.create_task_group() as group:
        for number in range(10):
            group.start_soon(call, number)
    assert sorted(gate.sent) == sorted([OLD] * 10 + [NEW] * 10)
    assert vault.asked == 2
    await adapter.close()


async def test_calls_that_are_refused_together_ask_once_also_where_the_key_stays_the_same() -> None:
    """The answer counts for all of them, whatever it is."""
    vault, gate = Vault(OLD), Gate(NEW)
    adapter = adapter_of("openai", gate, api_key=vault)

    async def call(number: int) -> None:
        with pytest.raises(AuthError):
            await adapter.complete(request(model="mine:m", request_id=f"req_{number}"))

    async with anyio.create_task_group() as group:
        for number in range(10):
            group.start_soon(call, number)
    assert (len(gate.sent), vault.asked) == (10, 2)
    await adapter.close()


def _raises() -> str:
    raise ValueError(f"the vault says: {NEW} expired")


async def _raises_later() -> str:
    return _raises()


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (_raises, "it raised ValueError"),
        (_raises_later, "it raised ValueError"),
        (lambda: None, "it gave no text, but NoneType"),
        (lambda: NEW.encode(), "it gave no text, but bytes"),
        (lambda: "  \n", "it is empty"),
        (lambda: f"{NEW}\nsecond", "it holds a line break"),
        (KeyFile("/nowhere/key"), "it raised FileNotFoundError"),
    ],
)
@pytest.mark.parametrize("row", ["gemini whole", "gemini streamed", "gemini embeddings", "openai videos"])
async def test_what_keeps_a_key_from_coming_names_the_adapter_and_never_the_value(
    row: str, source: Callable[[], str], why: str
) -> None:
    """Neither in the text nor in what the exception drags along."""
    kind, ask = ROWS[row]
    gate = Gate(NEW)
    adapter = adapter_of(kind, gate, api_key=source)
    with pytest.raises(AuthError) as raised:
        await ask(adapter)
    assert str(raised.value).startswith(f"mine: no key could be had from api_key: {why}")
    assert gate.sent == []
    assert NEW not in "".join(traceback.format_exception(raised.value))
    assert raised.value.__context__ is None
    await adapter.close()


async def test_a_key_that_does_not_come_counts_against_the_call_s_time() -> None:
    """And a cancelled call doesn't wait for it either."""

    async def never() -> str:
        await anyio.sleep_forever()
        raise AssertionError

    adapter = adapter_of("anthropic", Gate(), api_key=never, timeout_seconds=3.0)
    with pytest.raises(RequestTimeoutError):
        await adapter.complete(request(model="mine:m"))
    async with anyio.create_task_group() as group:
        group.start_soon(_cancel_soon, adapter)
        with pytest.raises(CancelledError):
            await adapter.complete(request(model="mine:m"))
    await adapter.close()


async def _cancel_soon(adapter: HttpAdapter) -> None:
    await anyio.sleep(1)
    await adapter.cancel("req_1")


async def test_a_call_that_leaves_while_it_asks_lets_the_next_one_ask() -> None:
    """No waiter hangs on a question whose asker was cancelled."""
    vault, gate = Vault(NEW), Gate(NEW)
    adapter = adapter_of("anthropic", gate, api_key=vault)

    async def call() -> None:
        with pytest.raises(InvalidRequestError):
            await adapter.complete(request(model="mine:m", request_id="req_2"))

    async with anyio.create_task_group() as group:
        with anyio.move_on_after(0.005):
            group.start_soon(call)
            await adapter.complete(request(model="mine:m"))
    assert gate.sent == [NEW]
    await adapter.close()


async def test_a_file_is_read_again_when_its_key_is_refused(tmp_path: Path) -> None:
    """As a secret that is mounted into a container is replaced. White space around the key is taken off."""
    file = tmp_path / "key"
    file.write_text(f"{OLD}\n")
    gate = Gate(OLD)
    adapter = adapter_of("anthropic", gate, api_key=KeyFile(str(file)))
    for taken in (OLD, OLD, NEW, NEW):
        file.write_text(f"{taken}\n")
        gate.taken = {taken}
        with pytest.raises(InvalidRequestError):
            await adapter.complete(request(model="mine:m"))
    assert gate.sent == [OLD, OLD, OLD, NEW, NEW]
    await adapter.close()


async def test_the_attempt_with_a_new_key_says_so() -> None:
    """An observer sees the refused attempt end, and the next one begin for its reason."""
    reports: list[AttemptReport] = []
    adapter = adapter_of("anthropic", Gate(NEW), api_key=Vault(OLD, NEW))
    with pytest.raises(InvalidRequestError):
        await adapter.complete(request(model="mine:m"), on_attempt=reports.append)
    assert [report.reason for report in reports if isinstance(report, AttemptStarted)] == ["first", "key"]
    assert OLD not in repr(reports)
    await adapter.close()


@pytest.mark.parametrize("kind", ["anthropic", "openai", "gemini", "ollama", "tgi", "openai_compatible"])
async def test_a_health_check_asks_for_the_key_and_for_a_new_one(kind: str) -> None:
    """Its finding is about the key that calls would use now."""
    gate = Gate(NEW, status=200)
    adapter = adapter_of(kind, gate, api_key=Vault(OLD, NEW))
    assert await adapter.health_check()
    assert gate.sent == [OLD, NEW]
    await adapter.close()
    adapter = adapter_of(kind, gate, api_key=_raises)
    health = await adapter.health_check()
    assert health.detail == "mine: no key could be had from api_key: it raised ValueError"
    assert health.fix
    await adapter.close()


async def test_a_download_asks_for_a_new_key() -> None:
    """The file of a job is fetched with the key as it is now."""
    gate = Gate(NEW)
    adapter = adapter_of("openai", gate, api_key=Vault(OLD, NEW))
    from callboard.adapters.videos import VideoJob

    job = VideoJob(id="video_1", model="mine:sora-2", provider="mine", status="completed")
    with pytest.raises(InvalidRequestError) as raised:
        await adapter.open_video(job)
    assert gate.sent == [OLD, NEW]
    assert NEW not in str(raised.value)
    await adapter.close()


@pytest.mark.parametrize("row", ROWS)
async def test_a_key_that_came_while_it_worked_is_seen_nowhere(
    row: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Neither in an error that repeats it, nor in a log, nor on a cassette."""
    caplog.set_level(logging.DEBUG)
    kind, ask = ROWS[row]
    recording = RecordingTransport(Gate(NEW), tmp_path / "cassette.json")
    config = AdapterConfig(api_key=Vault(OLD, NEW), base_url="https://x.test", max_retries=0)
    adapter = create_adapter(kind, config, name="mine", transport=recording)
    assert isinstance(adapter, HttpAdapter)
    with pytest.raises(AdapterError) as raised:
        await ask(adapter)
    await adapter.close()
    error = raised.value
    logging.getLogger("httpcore.http11").debug("receive_response_headers.complete %s" % NEW)  # noqa: UP031
    seen = [str(error), repr(vars(error)), "".join(traceback.format_exception(error)), repr(config)]
    seen += [record.getMessage() for record in caplog.records]
    seen.append((tmp_path / "cassette.json").read_text())
    assert not [text for text in seen if NEW in text or OLD in text]
