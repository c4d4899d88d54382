"""Serve it on this machine: python -m examples.agent_host, with settings from the environment."""

from __future__ import annotations

import os
import socket

import uvicorn

from .app import make_app
from .settings import Settings


def main() -> None:
    settings = Settings.from_environment()
    # Who asks while the engine starts waits for it, as the socket is there already.
    with socket.create_server(("127.0.0.1", int(os.environ.get("AGENT_PORT", "8000")))) as listening:
        host, port = listening.getsockname()
        print(
            f"http://{host}:{port}/ with the key {next(iter(settings.tenants))}; {settings.model} answers",
            flush=True,
        )
        # Pages that listen would keep a server that ends waiting for them, so there is a limit to it.
        config = uvicorn.Config(make_app(settings), log_level="warning", timeout_graceful_shutdown=2)
        uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
