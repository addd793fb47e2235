"""Serves all stand-ins until its standard input ends. The first line it prints is JSON: where they listen, and a relay's
variables.
"""

import asyncio
import json
import sys
import tempfile
from pathlib import Path

from .control import Control
from .http1 import Outbound
from .http2 import Http2, context
from .record import Record
from .setup import Setup, certificates


async def serve(folder: Path) -> None:
    setup = Setup()
    authority, certificate, key = certificates(folder)
    record = Record(setup.services())
    # Apple's port is by its own; the others are reached as the hosts that they are.
    apns = await listen(Http2(record, setup.apns), tls=context(certificate, key))
    outbound, control = await listen(Outbound(record)), await listen(Control(record))
    ports = {"apns": apns, "outbound": outbound, "control": control}
    facts = {"authority": authority, "webpush_key": setup.webpush_key(), "variables": setup.variables()}
    print(json.dumps({**ports, **facts}), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)


async def listen(server, tls=None) -> int:
    listener = await asyncio.start_server(server.connection, "127.0.0.1", 0, ssl=tls)
    return listener.sockets[0].getsockname()[1]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="push-services-") as folder:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(serve(Path(folder)))


main()
