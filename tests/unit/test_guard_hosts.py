"""``allow_hosts``: what its entries mean."""

from __future__ import annotations

import pytest

from tracekit._capture.guard import Hosts, numeric


@pytest.mark.parametrize(
    ("entry", "yes", "no"),
    [
        ("127.0.0.1", ("127.0.0.1", 80), ("127.0.0.2", 80)),
        ("127.0.0.1:80", ("127.0.0.1", 80), ("127.0.0.1", 81)),
        ("127.0.0.1", ("::ffff:127.0.0.1", 80, 0, 0), ("::1", 80, 0, 0)),
        ("::1", ("0:0:0:0:0:0:0:1", 80, 0, 0), ("::2", 80, 0, 0)),
        ("[::1]:5432", ("::1", 5432, 0, 0), ("::1", 80, 0, 0)),
        ("fe80::1", ("fe80::1%eth0", 80, 0, 2), ("fe80::2%eth0", 80, 0, 2)),
        ("localhost:80", ("::1", 80, 0, 0), ("::1", 81, 0, 0)),
        ("DB.test.", ("db.test", 80), ("db.test.evil", 80)),
        ("/run/pg.sock", "/run/pg.sock", "/run/docker.sock"),
        ("/run/pg.sock", b"/run/pg.sock", b"\0abstract"),
    ],
)
def test_entries(entry: str, yes: object, no: object) -> None:
    """An entry is a host, with or without a port, in any spelling, or a socket's path; nothing else passes."""
    assert Hosts([entry]).permits(yes)
    assert not Hosts([entry]).permits(no)
    assert not Hosts().permits(yes)


def test_look_ups_extend_the_entry_that_named_them() -> None:
    """An address that was looked up is allowed on the port of its entry alone."""
    hosts = Hosts(["db.test:5432", "cache.test"])
    assert hosts.looks_up("DB.test")
    assert hosts.looks_up(b"cache.test")
    assert not hosts.looks_up("other.test")
    hosts.note("db.test", [("10.0.0.1", 0)])
    hosts.note("cache.test", ["10.0.0.2"])
    hosts.note("other.test", [("10.0.0.3", 0)])
    assert hosts.permits(("10.0.0.1", 5432))
    assert not hosts.permits(("10.0.0.1", 22))
    assert hosts.permits(("10.0.0.2", 22))
    assert not hosts.permits(("10.0.0.3", 5432))


def test_digits_are_no_name() -> None:
    """Addresses in digits ask no server, names do."""
    assert all(numeric(host) for host in (None, "", "1.2.3.4", b"1.2.3.4", "::1", "fe80::1%eth0"))
    assert not any(numeric(host) for host in ("localhost", "1.2.3.4.test", b"db"))
