"""A look at a broker, over a connection of its own. Nothing is made there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from nats.js.client import JetStreamContext


class Kept(msgspec.Struct, frozen=True):
    """What a broker keeps in one of its streams."""

    messages: int
    """The number of messages."""
    bytes: int
    """Their bytes."""


class BrokerCondition(msgspec.Struct, frozen=True):
    """What a broker says of itself."""

    server: str
    """Its address, without a password."""
    version: str
    """Its version."""
    jetstream: bool
    """Whether it can keep messages."""
    events: Kept | None
    """The events that it keeps for the cluster; None if it never kept any."""
    frames: Kept | None
    """The frames of streams that it keeps for the cluster, for some minutes; None if it keeps none."""


async def broker_condition(url: str, cluster: str, seconds: float) -> BrokerCondition:
    """What the broker at an address says of itself.

    Args:
        url: The address, or several with commas between them.
        cluster: The cluster's name.
        seconds: The time that it may take.

    Raises:
        OSError: It can't be reached.
    """
    import anyio
    from nats.aio.client import Client
    from nats.errors import Error

    servers = [address.strip() for address in url.split(",") if address.strip()]
    failures: list[Exception] = []

    async def failed(error: Exception) -> None:
        failures.append(error)
        if len(failures) >= len(servers):
            raise error  # else it would try for ever

    client = Client()
    try:
        with anyio.fail_after(seconds):
            await client.connect(servers, allow_reconnect=False, connect_timeout=2, error_cb=failed)
            jetstream = client.jetstream(timeout=2)
            place = client.connected_url
            events, frames, keeps = None, None, True
            try:
                await jetstream.account_info()
                events = await _kept(jetstream, f"callboard_{cluster}_events")
                frames = await _kept(jetstream, f"callboard_{cluster}_streams")
            except Error:
                keeps = False
            where = "" if place is None else f"{place.hostname}:{place.port}"
            version = client.connected_server_version
            said = f"{version.major}.{version.minor}.{version.patch}"
            return BrokerCondition(where, said, keeps, events, frames)
    except TimeoutError as error:
        raise OSError(f"no answer within {seconds:g} s") from error
    except (Error, OSError, ValueError) as error:
        raise OSError(str(error) or type(error).__name__) from error
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(1):
            await client.close()


async def _kept(jetstream: JetStreamContext, stream: str) -> Kept | None:
    from nats.js.errors import NotFoundError

    try:
        state = (await jetstream.stream_info(stream)).state
    except NotFoundError:
        return None
    return Kept(state.messages, state.bytes)
