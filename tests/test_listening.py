import signal
import socket

import pytest

from fednews.errors import FednewsError, UsageError
from fednews.listening import check_port, listen, shown_host, terminable


def test_a_listening_socket_takes_connections_and_says_that_it_is_tcp():
    with listen("127.0.0.1", 0) as sock:
        assert sock.proto == socket.IPPROTO_TCP, "asyncio leaves Nagle's delay on otherwise"
        with socket.create_connection(sock.getsockname()):
            pass


def test_ports_that_cannot_be_are_refused():
    for port in (-1, 65_536):
        with pytest.raises(UsageError, match=str(port)):
            listen("127.0.0.1", port)
    with pytest.raises(UsageError, match="port 0"):
        check_port("127.0.0.1", 0)
    with listen("127.0.0.1", 0) as sock, pytest.raises(FednewsError, match="address already in use"):
        check_port("127.0.0.1", sock.getsockname()[1])


def test_hosts_are_shown_as_a_browser_here_finds_them():
    assert shown_host("0.0.0.0") == "127.0.0.1"
    assert shown_host("::") == "[::1]"
    assert shown_host("::1") == "[::1]"
    assert shown_host("name") == "name"


def test_sigterm_ends_a_block_and_its_handler_comes_back():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), terminable():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before
