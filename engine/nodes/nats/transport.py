"""The transport of a connection. nats-py leaves one behind whose server took it and then said nothing."""

from __future__ import annotations

from urllib.parse import ParseResult

from nats.aio.transport import TcpTransport


class ClosingTransport(TcpTransport):
    """A transport that closes the connection before, when it makes another one."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        self.close()  # type: ignore[no-untyped-call]
        await super().connect(uri, buffer_size, connect_timeout)

    def __bool__(self) -> bool:
        return True  # else nats-py would make one of its own
