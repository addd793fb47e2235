"""HTTP/1.1 for what the relay sends anywhere else than to Apple: it arrives here instead, with its Host."""

import asyncio
import os

import h11

from .common import Answer, Request
from .record import Record, Service


class Outbound:
    """Finds out which service a request was meant for. Whatever was meant for nobody here is an offence."""

    def __init__(self, record: Record):
        self.record = record

    def service(self, request: Request) -> Service | None:
        services = self.record.services
        token, fcm, web = services["token"], services["fcm"], services["web"]
        if f"{request.scheme}://{request.host}{request.path}" == token.account.token_uri:
            return token
        if request.host == fcm.host and request.path.startswith("/v1/"):
            return fcm
        return web if request.host in web.hosts() else None

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._requests(reader, writer)
        except (ConnectionError, h11.RemoteProtocolError):
            pass
        finally:
            writer.close()

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        http = h11.Connection(h11.SERVER)
        while True:
            request = await read(http, reader)
            if request is None:
                return
            service = self.service(request)
            if service is None:
                await self.record.offend(f"{request.method} to {request.scheme}://{request.host}: nobody's address")
                await send(http, writer, Answer(421))
                return
            reply = await self.record.handle(service, request)
            if reply.drop == "before":
                return
            if reply.garbage:
                writer.write(os.urandom(64))
                await writer.drain()
                return
            await send(http, writer, reply.answer, cut=reply.drop == "middle")
            if reply.drop or http.our_state is not h11.DONE or http.their_state is not h11.DONE:
                return
            http.start_next_cycle()


async def read(http: h11.Connection, reader: asyncio.StreamReader) -> Request | None:
    """The next request; None at the end of the connection."""
    head, body = None, b""
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await reader.read(65536))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            break
        else:
            return None
    headers = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in head.headers]
    # The way here is plain; this header says which scheme the address had.
    scheme = next((value for name, value in headers if name == "x-forwarded-proto"), "http")
    host = next((value for name, value in headers if name == "host"), "")
    headers = [(name, value) for name, value in headers if name != "x-forwarded-proto"]
    return Request(head.method.decode(), scheme, host, head.target.decode("latin-1"), headers, body)


async def send(http: h11.Connection, writer: asyncio.StreamWriter, answer: Answer, *, cut: bool = False) -> None:
    # What is cut in the middle had promised more.
    length = len(answer.body) + (10 if cut else 0)
    headers = [*answer.headers.items(), ("content-length", str(length))]
    writer.write(http.send(h11.Response(status_code=answer.status, headers=headers)))
    if answer.body:
        writer.write(http.send(h11.Data(data=answer.body)))
    if not cut:
        writer.write(http.send(h11.EndOfMessage()))
    await writer.drain()
