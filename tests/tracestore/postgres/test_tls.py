"""An encrypted way to the server, which has to prove its name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from callboard.bus.errors import StoreError
from tests.support.certificate import local_certificate
from tests.support.postgres_server import NOBODY, StartedServer, own_server, why_not
from tests.tracestore.shipping.test_shipping import of_run
from callboard.tracestore import PostgresStore, TraceShipper, TraceStore

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def secure() -> Iterator[tuple[StartedServer, Path]]:
    """A server that takes encrypted connections alone, and its certificate."""
    if (reason := why_not(own=True)) is not None:
        pytest.skip(reason)
    with own_server() as server:
        with psycopg.connect(server.dsn) as asked:
            if asked.execute("SHOW ssl_library").fetchall() == [("",)]:
                pytest.skip("this PostgreSQL server is built without TLS, as that of the wheel")
        certificate = server.data / "server.pem"
        certificate.write_bytes(local_certificate())
        certificate.chmod(0o600)
        if os.getuid() == 0:
            os.chown(certificate, NOBODY, NOBODY)
        with (server.data / "postgresql.auto.conf").open("a") as settings:
            settings.write("ssl = on\nssl_cert_file = 'server.pem'\nssl_key_file = 'server.pem'\n")
        (server.data / "pg_hba.conf").write_text("hostssl all all 127.0.0.1/32 scram-sha-256\n")
        server.restart()
        yield server, certificate


def encrypted(server: StartedServer, mode: str, root: Path | None = None) -> str:
    return f"{server.dsn}?sslmode={mode}" + ("" if root is None else f"&sslrootcert={root}")


async def test_a_server_that_proves_its_name_is_believed(
    secure: tuple[StartedServer, Path], tmp_path: Path
) -> None:
    """A trace is shipped over an encrypted connection."""
    server, certificate = secure
    dsn = encrypted(server, "verify-full", certificate)
    async with TraceStore(tmp_path / "trace.db") as local:
        await local.write(of_run("one", 3))
    shipper = TraceShipper(tmp_path / "trace.db", dsn)
    await shipper.ship()
    await shipper.close()
    async with PostgresStore(dsn, path=tmp_path / "shared") as store:
        assert len(await store.calls()) == 3
        found = await store.sql("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
        assert found.rows == ((True,),)


async def test_a_server_that_somebody_else_signed_is_refused(
    secure: tuple[StartedServer, Path], tmp_path: Path
) -> None:
    server, _ = secure
    other = tmp_path / "other.pem"
    other.write_bytes(local_certificate())
    with pytest.raises(StoreError, match="certificate"):
        await PostgresStore(encrypted(server, "verify-full", other), path=tmp_path / "shared").open()


async def test_a_server_under_another_name_is_refused(secure: tuple[StartedServer, Path], tmp_path: Path) -> None:
    """Its certificate is for 127.0.0.1."""
    server, certificate = secure
    dsn = encrypted(server, "verify-full", certificate).replace("127.0.0.1", "localhost") + "&hostaddr=127.0.0.1"
    with pytest.raises(StoreError, match="localhost"):
        await PostgresStore(dsn, path=tmp_path / "shared").open()


async def test_a_connection_without_encryption_is_refused_there(
    secure: tuple[StartedServer, Path], tmp_path: Path
) -> None:
    server, _ = secure
    with pytest.raises(StoreError, match="no encryption"):
        await PostgresStore(encrypted(server, "disable"), path=tmp_path / "shared").open()
