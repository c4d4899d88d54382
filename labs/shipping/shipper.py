"""A shipper in a process of its own that the lab kills: python -m labs.shipping.shipper TRACE DSN"""

from __future__ import annotations

import sys

import anyio

from callboard.tracestore import ShippingOptions, TraceShipper

EAGER = ShippingOptions(batch_events=23, look_seconds=0.02, first_retry=0.05, longest_retry=0.3)


async def _main(trace: str, dsn: str) -> None:
    await TraceShipper(trace, dsn, options=EAGER).run()


if __name__ == "__main__":
    anyio.run(_main, *sys.argv[1:])
