"""The web application: its lifetime, its routes and its mounted live view."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

from fastapi import FastAPI, Request
from fastapi.staticfiles import StaticFiles

from callboard import Engine, McpServers, mcp_servers, web

from .agents import Agents, make_engine
from .failures import answer_failures
from .routes import routes
from .settings import Settings, is_same
from .telemetry import engine_spans, spans_in

HERE = Path(__file__).parent


def servers(engine: Engine) -> McpServers:
    """The MCP servers of `mcp.json`. The engine restarts a server that has ended."""
    os.environ.update(AGENT_PYTHON=sys.executable, AGENT_HOST=str(HERE))
    return mcp_servers(HERE / "mcp.json", engine=engine)


def make_app(settings: Settings) -> FastAPI:
    """The application. Its engine starts and ends with it."""
    settings.folder.mkdir(parents=True, exist_ok=True)
    engine = make_engine(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with spans_in(settings.folder / "spans.jsonl"):
            async with asyncio.TaskGroup() as tasks, engine, servers(engine) as mcp:
                tasks.create_task(engine_spans(engine))  # it ends with the engine
                app.state.agents = Agents(engine, settings, mcp)
                yield

    def operator(request: Request) -> list[Literal["view", "content", "change"]]:
        """The visitor's rights in the live view: all for the operator's key, else none."""
        allowed = is_same(request.cookies.get("key", ""), settings.operator_key)
        return ["view", "content", "change"] if allowed else []

    app = FastAPI(title="Agents of a music shop", lifespan=lifespan)
    app.state.settings = settings
    answer_failures(app)
    app.include_router(routes)
    app.mount("/callboard", web(engine, authorize=operator))
    app.mount("/", StaticFiles(directory=HERE / "page", html=True))
    return app
