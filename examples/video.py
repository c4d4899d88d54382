"""Make a video in one of two ways: wait for it, or fetch it later. Both print the price of a second.

    python examples/video.py MODEL wait "A red boat on a lake."
    python examples/video.py MODEL create "A red boat on a lake."      (prints the job's id)
    python examples/video.py MODEL fetch ID                            (as often as you like, until it is done)

Set the price of a second in $CALLBOARD_HOME/prices.yaml; docs/media.md shows how.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from callboard import Engine, VideoResult


async def wait_for(engine: Engine, model: str, prompt: str, target: Path) -> None:
    """Blocking: poll the job until the file is there."""
    handle = await engine.create_video(prompt, model=model)
    result = await handle.wait(on_progress=lambda job: print(job.status, job.progress))
    await handle.download(to=target)
    print(f"{target}: {bill(result)}")


async def create(engine: Engine, model: str, prompt: str) -> str:
    """Not blocking: keep the job's id, nothing else."""
    handle = await engine.create_video(prompt, model=model)
    print(handle.id)
    return handle.id


async def fetch(engine: Engine, model: str, job_id: str, target: Path) -> bool:
    """Ask for the job's state once, and download a finished video. Returns whether the job has ended."""
    handle = await engine.resume_video(job_id, model)
    if not handle.job.done:
        print(handle.status, handle.job.progress)
        return False
    result = await handle.wait()  # the job is done: returns immediately, or raises its error
    await handle.download(to=target)
    print(f"{target}: {bill(result)}")
    return True


def bill(result: VideoResult) -> str:
    """The seconds, the total price and the price of one second."""
    pieces = sum((result.usage.details or {}).values())
    if result.cost.usd is None:
        return f"{pieces} seconds, unpriced: {result.cost.reason}"
    return (
        f"{pieces} seconds, {result.cost.usd.normalize()} USD, {(result.cost.usd / pieces).normalize()} a second"
    )


async def main(model: str, how: str, what: str) -> None:
    async with Engine() as engine:
        match how:
            case "wait":
                await wait_for(engine, model, what, Path("video.mp4"))
            case "create":
                await create(engine, model, what)
            case "fetch":
                await fetch(engine, model, what, Path("video.mp4"))
            case _:
                print(__doc__)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]) if len(sys.argv) == 4 else main("", "", ""))
