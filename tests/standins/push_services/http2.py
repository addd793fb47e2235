"""HTTP/2 over TLS, and nothing else, as Apple speaks it."""

import asyncio
import os
import ssl

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions

from .common import Request
from .record import Record, Reply, Service


def context(certificate: str, key: str) -> ssl.SSLContext:
    """TLS that agrees on h2 or fails."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["h2"])
    return context


class Http2:
    """Serves one service."""

    def __init__(self, record: Record, service: Service):
        self.record = record
        self.service = service

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        agreed = writer.get_extra_info("ssl_object").selected_alpn_protocol()
        if agreed != "h2":
            await self.record.offend(f"{self.service.name}: a connection that is no HTTP/2")
            writer.close()
            return
        try:
            async with asyncio.TaskGroup() as tasks:
                await Connection(self, reader, writer, tasks).run()
        except* (ConnectionError, h2.exceptions.ProtocolError, ssl.SSLError):
            pass
        finally:
            writer.close()


class Connection:
    """One client's, with any number of requests at once."""

    def __init__(self, server: Http2, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tasks):
        self.server = server
        self.reader = reader
        self.writer = writer
        self.tasks = tasks
        self.http = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
        self.streams: dict[int, tuple[list[tuple[str, str]], bytearray]] = {}

    async def run(self) -> None:
        self.http.initiate_connection()
        await self.flush()
        while data := await self.reader.read(65536):
            for event in self.http.receive_data(data):
                self.on_event(event)
            await self.flush()

    def on_event(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.RequestReceived):
            self.streams[event.stream_id] = (list(event.headers), bytearray())
        elif isinstance(event, h2.events.DataReceived):
            self.streams[event.stream_id][1].extend(event.data)
            self.http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            headers, body = self.streams.pop(event.stream_id)
            self.tasks.create_task(self.answer(event.stream_id, headers, bytes(body)))
        elif isinstance(event, h2.events.StreamReset):
            self.streams.pop(event.stream_id, None)

    async def answer(self, stream: int, headers: list[tuple[str, str]], body: bytes) -> None:
        pseudo = {name: value for name, value in headers if name.startswith(":")}
        rest = [(name, value) for name, value in headers if not name.startswith(":")]
        request = Request(pseudo[":method"], pseudo[":scheme"], pseudo[":authority"], pseudo[":path"], rest, body)
        self.send(stream, await self.server.record.handle(self.server.service, request))
        await self.flush()

    def send(self, stream: int, reply: Reply) -> None:
        if reply.garbage:
            self.writer.write(os.urandom(64))
            self.writer.close()
            return
        if reply.drop == "before":
            self.writer.close()
            return
        answer = reply.answer
        try:
            head = [(":status", str(answer.status)), *answer.headers.items()]
            self.http.send_headers(stream, head, end_stream=not answer.body and not reply.drop)
            if answer.body:
                self.http.send_data(stream, answer.body, end_stream=not reply.drop)
            if reply.drop == "middle":
                self.http.reset_stream(stream, h2.errors.ErrorCodes.INTERNAL_ERROR)
        except h2.exceptions.ProtocolError:
            # The client has given up waiting.
            pass

    async def flush(self) -> None:
        if data := self.http.data_to_send():
            self.writer.write(data)
        if not self.writer.is_closing():
            await self.writer.drain()
