"""Run the server of flows/serving until it is stopped."""

from __future__ import annotations

import logging
from pathlib import Path

import uvicorn

from flows.serving.app import Server
from flows.serving.limits import Limits, PatientProtocol, hosts_of
from flows.serving.served import Served
from tasks.progress import say

_HEAD_BYTES = 16 * 1024
_CONNECTIONS = 256


def serve(model: str | None, workspace: Path, host: str, port: int, most: int, refresh: float) -> None:
    """Serve a registered model. most: pictures a batch. refresh: seconds between two looks at the alias."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    logging.getLogger("attend.serve").setLevel(logging.INFO)
    served = Served(model, workspace, refresh)
    app = Server(served, Limits(), most, hosts_of(host)).app()
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=PatientProtocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=_CONNECTIONS,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=30,
        h11_max_incomplete_event_size=_HEAD_BYTES,
    )
    shown = f"[{host}]" if ":" in host else host
    say(f"serving {served.current.uri} at http://{shown}:{port}")
    uvicorn.Server(config).run()
