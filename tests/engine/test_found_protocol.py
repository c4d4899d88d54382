"""OPENAI_BASE_URL at a server of any kind: the protocol is found out once, and kept."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from callboard import Engine
from tests.support.reply_server import Chat, Responses
from tests.support.virtual_time import runs_on

pytestmark = pytest.mark.anyio
anyio_backend = runs_on("asyncio")


@contextmanager
def server(*, responses: bool) -> Iterator[tuple[str, list[str]]]:
    """A server of Chat Completions and, if asked for, of Responses; its URL, and the paths that it was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            asked.append(self.path)
            status, reply = 200, Chat.whole()
            if self.path == "/v1/embeddings":
                assert body.get("encoding_format") != "base64"
                vectors = [{"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}]
                reply = {"object": "list", "data": vectors, "model": "m", "usage": {"prompt_tokens": 1}}
            elif self.path == "/v1/responses":
                status, reply = (200, Responses.whole()) if responses else (404, {"detail": "Not Found"})
                if responses and not body:
                    status, reply = 400, {"error": {"message": "model is required", "code": None}}
            data = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_address[1]}/v1", asked
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize(
    ("responses", "path"), [(False, "/v1/chat/completions"), (True, "/v1/responses")], ids=["chat", "responses"]
)
async def test_a_server_in_the_environment_is_asked_once_which_protocol_it_speaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, responses: bool, path: str, listed: bool
) -> None:
    """One empty request, which costs nothing. All calls after that speak the protocol that was found."""
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path))
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    if listed:
        (tmp_path / "models.yaml").write_text("adapters: {openai: {type: openai, api_key_env: OPENAI_API_KEY}}")
    with server(responses=responses) as (url, asked):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        async with Engine(trace=False) as engine:
            for _ in range(2):
                assert (await engine.generate("openai:some-model", "Hi")).text.startswith("The curtain")
            result = await engine.embed(["Hi"], model="openai:vectors")
            assert [list(vector) for vector in result.vectors] == [[0.5, 0.25]]
    assert asked == ["/v1/responses", path, path, "/v1/embeddings"]
