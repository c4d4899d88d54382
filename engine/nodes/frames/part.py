"""Streams that are read on another host, as a part of a node."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from callboard.bus import StreamChannel
from callboard.bus.clock import SYSTEM_CLOCK

from ..cluster import Cluster
from .exchange import FrameBroker, Subjects, Timing
from .mirrors import Mirrors, TurnSource
from .retained import Retained, retained
from .sender import FrameSender
from .wire import Assembly, Frame, UnreadableFrame


class Frames:
    """The frames of one node: those that it sends, and those that its readers get.

    Args:
        cluster: The cluster.
        node: This node.
        broker: The broker.
        streams: The streams of this engine.
        epoch_of: A function that returns the epoch in which this node has a session; 0 if it has none.
        source: The source of turns with an unreachable owner.
        now_us: The time of the engine's clock, in microseconds since the epoch.
    """

    name = "frames"

    def __init__(
        self,
        cluster: Cluster,
        node: str,
        broker: FrameBroker,
        streams: StreamChannel,
        epoch_of: Callable[[str], int],
        source: TurnSource,
        now_us: Callable[[], int] = SYSTEM_CLOCK.now_us,
    ) -> None:
        subjects = Subjects(cluster.name)
        self.sender = FrameSender(
            broker,
            subjects,
            node,
            epoch_of,
            streams,
            frame_seconds=cluster.frame_seconds,
            frame_bytes=cluster.frame_bytes,
        )
        timing = Timing(patience=cluster.lease_seconds + 5.0)
        self.mirrors = Mirrors(broker, subjects, node, streams, source, self.sender.announce, timing, now_us)
        self._broker = broker
        self._subjects = subjects
        self._asked = (subjects.asked(node), subjects.asked(""))

    async def retained(self, session_id: str) -> Retained:
        """The messages in the kept frames of a session, for the node that takes it over."""
        return await self._kept(self._subjects.of_session(session_id))

    async def delivered(self, stream_id: str, message_id: str) -> int:
        """The output tokens that the kept frames hold of a message; 0 without any."""
        for turn in (await self._kept(self._subjects.of_stream(stream_id))).turns:
            for message in (*turn.left, *turn.appended.values()):
                if message.id == message_id and message.metadata is not None:
                    return message.metadata.usage.output_tokens
        return 0

    async def _kept(self, subject: str) -> Retained:
        frames: list[Frame] = []
        assembly = Assembly()
        async for payload in self._broker.kept(subject):
            try:
                frame = assembly.frame(payload)
            except UnreadableFrame:
                continue
            if frame is not None:
                frames.append(frame)
        return retained(frames)

    async def forget(self, session_id: str) -> None:
        """Have the broker keep nothing of a session that was deleted."""
        await self.drain()
        await self._broker.forget(self._subjects.of_session(session_id))

    async def hand_over(self, stream_id: str) -> None:
        """Release a stream completely. If this process dies later, the end that is handed over still counts."""
        if self.sender.say_now(stream_id):
            with anyio.CancelScope(shield=True):
                await self._broker.let_go()

    async def run(self) -> None:
        """Send, answer and fill mirrors until cancelled."""
        questions = [await self._broker.subscribe(subject, self.sender.asked) for subject in self._asked]
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._broker.run)
                group.start_soon(self.mirrors.run)
        finally:
            with anyio.CancelScope(shield=True):
                for subscription in questions:
                    await subscription.unsubscribe()

    async def drain(self) -> None:
        """Send the events of the streams to their end."""
        self.sender.flush()
        await self._broker.drain()

    async def close(self) -> None:
        self.mirrors.close()
