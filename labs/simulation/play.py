"""One run of the simulation."""

from __future__ import annotations

from tests.support.virtual_time import run_virtual

from .world import Size, World


def play(seed: int, size: Size) -> dict[str, float]:
    """Run it, and return what was done.

    Raises:
        BrokenPromise: An invariant does not hold.
    """

    async def story() -> dict[str, float]:  # anyio's locks need an event loop; nothing ever waits in it
        world = World(seed, size)
        try:
            world.run()
        except AssertionError as error:
            error.add_note(f"step {world.kernel.steps}, {world.kernel.now:.3f} s")
            raise
        finally:
            world.close()
        return world.figures()

    return run_virtual(story)
