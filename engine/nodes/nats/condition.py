"""A look at a broker, over a connection of its own. Nothing is made there."""

from __future__ import annotations

import msgspec


class BrokerCondition(msgspec.Struct, frozen=True):
    """What a broker says of itself."""

    server: str
    """Its address, without a password."""
    version: str
    """Its version."""
    jetstream: bool
    """Whether it can keep messages."""
    kept_bytes: int | None
    """The bytes of events that it keeps for the cluster; None if it has kept none."""


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
    from nats.js.errors import NotFoundError

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
            kept, keeps = None, True
            try:
                await jetstream.account_info()
                kept = (await jetstream.stream_info(f"callboard_{cluster}_events")).state.bytes
            except NotFoundError:
                pass
            except Error:
                keeps = False
            where = "" if place is None else f"{place.hostname}:{place.port}"
            version = client.connected_server_version
            return BrokerCondition(where, f"{version.major}.{version.minor}.{version.patch}", keeps, kept)
    except TimeoutError as error:
        raise OSError(f"no answer within {seconds:g} s") from error
    except (Error, OSError, ValueError) as error:
        raise OSError(str(error) or type(error).__name__) from error
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(1):
            await client.close()
