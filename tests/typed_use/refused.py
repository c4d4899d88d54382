# pyright: reportUnnecessaryTypeIgnoreComment=true
"""Wrong user code: each marked line must be an error for both type checkers."""

from __future__ import annotations

from callboard import CanonicalRequest, Engine, generate, stream


async def wrong(engine: Engine, request: CanonicalRequest) -> None:
    await generate("sonnet", "Hi", n=2)  # type: ignore[call-arg]
    await generate("sonnet", 3)  # type: ignore[arg-type]
    await generate("sonnet", "Hi", temperature="hot")  # type: ignore[arg-type]
    stream("sonnet", "Hi", max_tokens=3)  # type: ignore[call-arg]
    engine.stream(request, temperature=0.5)  # type: ignore[call-overload]
    await engine.generate(request)  # type: ignore[arg-type]
