"""A reader of one stream that can continue on another node."""

from __future__ import annotations

from .process import NodeProcess


class Reading:
    """A reader, and the text that it has read.

    Args:
    who: A name for people.
    stream: The stream.
    """

    def __init__(self, who: str, stream: str) -> None:
        self.who = who
        self._stream = stream
        self._legs: list[tuple[NodeProcess, int]] = []

    async def begin(self, node: NodeProcess, pieces: int = -1) -> Reading:
        """Start to read on a node, up to the end or this number of text pieces."""
        self.who += f" on {node.name}"
        self._legs.append((node, await node.command(read=self._stream, pieces=pieces)))
        return self

    async def go_on(self, node: NodeProcess) -> None:
        """Continue on another node after the last event, if the stream has not ended."""
        last, number = self._legs[-1]
        end = await last.end(number)
        if not end.end:
            self.who += f", from {end.following} on {node.name}"
            command = {"read": self._stream, "from": end.following}
            self._legs.append((node, await node.command(**command)))

    async def end(self) -> tuple[str, str]:
        """The text from all nodes, and how the stream ended."""
        text, end = "", ""
        for node, number in self._legs:
            told = await node.end(number)
            text, end = told.text if told.reset else text + told.text, told.end
        return text, end
