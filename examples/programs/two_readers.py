# One reply, two readers. The late reader gets all of it, too.
import asyncio

from callboard import ViewReader, stream


async def show(name: str, reader: ViewReader) -> None:
    async for text in reader.text_stream:
        print(name, text)


async def main() -> None:
    async with stream("anthropic:claude-haiku-4-5", "Tell a story.") as reply, asyncio.TaskGroup() as group:
        group.create_task(show("early", reply.reader()))
        await anext(reply.text_stream)
        group.create_task(show("late", reply.reader()))


asyncio.run(main())
