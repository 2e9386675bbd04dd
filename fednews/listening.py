"""What every server here needs: a free port, the address to show, and SIGTERM ending it as Ctrl-C does."""

import contextlib
import signal
import socket
from collections.abc import Iterator
from types import FrameType

from fednews.errors import FednewsError, UsageError

_BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections on ``host:port``; port 0 is any free one.

    Raises:
        UsageError: ``port`` is not one.
        FednewsError: nothing can listen there.
    """
    if not 0 <= port < 65536:
        raise UsageError(f"port {port} is not between 1 and 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio switches Nagle's delay off (40 ms a request) only on sockets that say that they are TCP.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(_BACKLOG)
        return sock
    except OSError as error:
        sock.close()
        reason = (error.strerror or str(error)).lower()
        raise FednewsError(f"cannot serve on {host}:{port}: {reason}; choose another --port or --host") from error


def check_port(host: str, port: int) -> None:
    """Raise as :func:`listen` does, for a server that opens its port by itself."""
    if port == 0:
        raise UsageError("port 0 is not between 1 and 65535")
    listen(host, port).close()


def shown_host(host: str) -> str:
    """Name the address at which a browser on this machine finds ``host``."""
    if host in ("0.0.0.0", "::"):
        return "127.0.0.1" if host == "0.0.0.0" else "[::1]"
    return f"[{host}]" if ":" in host else host


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, and give both handlers back in the end."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
