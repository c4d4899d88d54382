"""Serve it on this machine: python -m examples.agent_host, with settings from the environment."""

from __future__ import annotations

import os
import socket

import uvicorn

from .app import make_app
from .settings import Settings


def main() -> None:
    settings = Settings.from_environment()
    # The socket is open already, so requests wait while the engine starts.
    with socket.create_server(("127.0.0.1", int(os.environ.get("AGENT_PORT", "8000")))) as listening:
        host, port = listening.getsockname()
        print(
            f"http://{host}:{port}/ with the key {next(iter(settings.tenants))}; {settings.model} answers",
            flush=True,
        )
        # Open event streams would block the shutdown, so it has a time limit.
        config = uvicorn.Config(make_app(settings), log_level="warning", timeout_graceful_shutdown=2)
        uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
