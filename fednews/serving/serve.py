"""Run the service until Ctrl-C."""

import uvicorn
from fastapi import FastAPI

from fednews.listening import listen, shown_host, terminable

_STOP_SECONDS = 5


def serve(app: FastAPI, host: str = "127.0.0.1", port: int = 8000) -> None:
    """Serve ``app`` until Ctrl-C or SIGTERM; prints its address once it takes connections.

    Args:
        app: from :func:`~fednews.serving.service.create_app`.
        host: where to listen.
        port: likewise; 0 takes any free one.

    Raises:
        UsageError: the port is not one.
        FednewsError: it is taken, or the host is not this machine's.
    """
    with listen(host, port) as sock:
        # Warnings would be one line for every malformed request, which anybody can send.
        config = uvicorn.Config(app, log_level="error", access_log=False, timeout_graceful_shutdown=_STOP_SECONDS)
        print(f"fednews service: http://{shown_host(host)}:{sock.getsockname()[1]} (Ctrl-C ends it)", flush=True)
        with terminable():
            try:
                uvicorn.Server(config).run(sockets=[sock])
            except KeyboardInterrupt:  # uvicorn has ended in order and passes the signal on
                print("service stopped", flush=True)
