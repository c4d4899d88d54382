"""A reader of one stream, who may leave it and go on on another node."""

from __future__ import annotations

from .process import NodeProcess


class Reading:
    """A reader, and what it has read.

    Args:
        who: A name for people.
        stream: The stream.
    """

    def __init__(self, who: str, stream: str) -> None:
        self.who = who
        self._stream = stream
        self._legs: list[tuple[NodeProcess, int]] = []

    async def begin(self, node: NodeProcess, pieces: int = -1) -> Reading:
        """Attach on a node, to read to the end, or so many pieces of text."""
        self.who += f" on {node.name}"
        self._legs.append((node, await node.command(read=self._stream, pieces=pieces)))
        return self

    async def go_on(self, node: NodeProcess) -> None:
        """Go on on another node behind what was read, if that was not all."""
        last, number = self._legs[-1]
        told = await last.end(number)
        if not told.end:
            self.who += f", from {told.following} on {node.name}"
            command = {"read": self._stream, "from": told.following}
            self._legs.append((node, await node.command(**command)))

    async def end(self) -> tuple[str, str]:
        """The text of all legs, and how the stream ended."""
        text, end = "", ""
        for node, number in self._legs:
            told = await node.end(number)
            text, end = told.text if told.reset else text + told.text, told.end
        return text, end
