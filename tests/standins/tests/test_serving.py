"""The stand-ins as a program: sockets, orders, and the forwarder that a relay on one's own machine reaches Apple through."""

import asyncio
import base64
import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from push_services import apns, fcm, webpush
from push_services.common import Request
from push_services.setup import Setup

from . import builder

ROOT = Path(__file__).parents[3]


class Program:
    """The program, and what is known of its keys: it is told them."""

    def __init__(self):
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests/standins"), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "push_services"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        self.facts = json.loads(self.process.stdout.readline())
        self.setup = as_told(self.facts["variables"])

    def ask(self, do, **question):
        with socket.create_connection(("127.0.0.1", self.facts["control"]), timeout=20) as control:
            control.sendall(json.dumps({"do": do, **question}).encode() + b"\n")
            answer = json.loads(control.makefile().readline())
        assert not isinstance(answer, dict) or "error" not in answer, answer
        return answer

    def send(self, draft, timeout=20):
        """By the way on which a relay's requests arrive; gives status, headers and body."""
        request: Request = draft.request()
        connection = http.client.HTTPConnection("127.0.0.1", self.facts["outbound"], timeout=timeout)
        headers = {"Host": request.host, "X-Forwarded-Proto": request.scheme, **dict(request.headers)}
        connection.request(request.method, request.path, request.body, headers)
        with connection.getresponse() as response:
            return response.status, dict(response.headers), response.read()

    def draft(self, service, **device):
        kind = {"apns": builder.ApnsDraft, "fcm": builder.FcmDraft, "web": builder.WebDraft}[service]
        token = self.ask("device", service=service, **device)["token"]
        draft = kind(self.setup, token, *([self.access()] if service == "fcm" else []))
        return now(draft)

    def access(self):
        status, _, body = self.send(now(builder.TokenDraft(self.setup)))
        assert status == 200, body
        return json.loads(body)["access_token"]


def as_told(variables):
    """The accounts, by what a relay is told of them."""
    setup = Setup()
    setup.apns_key = load_pem_private_key(variables["APNS_KEY"].encode(), None)
    setup.apns.key_id, setup.apns.team_id = variables["APNS_KEY_ID"], variables["APNS_TEAM_ID"]
    account = json.loads(variables["FCM_SERVICE_ACCOUNT"])
    setup.fcm_key = load_pem_private_key(account["private_key"].encode(), None)
    setup.fcm.account.project, setup.fcm.account.email = account["project_id"], account["client_email"]
    setup.fcm.account.key_id = account["private_key_id"]
    text = variables["VAPID_PRIVATE_KEY"]
    setup.vapid_key = ec.derive_private_key(int.from_bytes(base64.urlsafe_b64decode(text + "=")), ec.SECP256R1())
    return setup


def now(draft):
    """The same, at the time on the clock."""
    moved = int(time.time()) - draft.now
    draft.now += moved
    claims = getattr(draft, "claims", {})
    claims.update({name: claims[name] + moved for name in ("iat", "exp") if name in claims})
    if isinstance(draft, builder.ApnsDraft):
        draft.claims["iat"] = draft.now // 1800 * 1800
        draft.headers["apns-expiration"] = str(draft.now + builder.WEEK)
    return draft


@pytest.fixture(scope="module")
def program():
    program = Program()
    yield program
    program.process.stdin.close()
    assert program.process.wait(20) == 0


@pytest.fixture(autouse=True)
def _withdrawn(program):
    program.ask("withdraw")
    yield
    program.ask("withdraw")


async def by_http2(program, request):
    """One request to the stand-in for Apple, by the same library's client: its status, headers, body."""
    context = ssl.create_default_context(cafile=program.facts["authority"])
    context.set_alpn_protocols(["h2"])
    reader, writer = await asyncio.open_connection("localhost", program.facts["apns"], ssl=context)
    connection = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
    connection.initiate_connection()
    pseudo = [(":method", request.method), (":scheme", request.scheme), (":authority", request.host), (":path", request.path)]
    connection.send_headers(1, [*pseudo, *request.headers], end_stream=False)
    connection.send_data(1, request.body, end_stream=True)
    writer.write(connection.data_to_send())
    status, headers, body = 0, {}, b""
    try:
        while data := await reader.read(65536):
            for event in connection.receive_data(data):
                if isinstance(event, h2.events.ResponseReceived):
                    headers = dict(event.headers)
                    status = int(headers[":status"])
                elif isinstance(event, h2.events.DataReceived):
                    body += event.data
                elif isinstance(event, h2.events.StreamEnded):
                    return status, headers, body
                elif isinstance(event, h2.events.StreamReset):
                    raise ConnectionResetError
            writer.write(connection.data_to_send())
        raise ConnectionResetError
    finally:
        writer.close()


def push(program, service, draft):
    return asyncio.run(by_http2(program, draft.request())) if service == "apns" else program.send(draft)


SERVICES = {"apns": 200, "fcm": 200, "web": 201}


@pytest.mark.parametrize("service", SERVICES)
def test_a_correct_push_is_taken_and_what_the_app_gets_is_told(program, service):
    draft = program.draft(service)
    assert push(program, service, draft)[0] == SERVICES[service]
    entry = program.ask("entries", service=service, at_least=1)[-1]
    data = draft.json["d"] if service == "apns" else draft.json["message"]["data"] if service == "fcm" else draft.json
    assert entry["data"]["c"] == data["c"]
    assert entry["data"]["from"] == "cd" * 32
    assert program.ask("offences") == []


REASONS = [
    *[("apns", status, reason) for status, reasons in apns.REASONS.items() for reason in reasons],
    *[("fcm", status, own or rpc) for status, errors in fcm.REASONS.items() for rpc, own in errors],
    *[("web", status, "x") for status in webpush.STATUSES],
    ("web", 302, "elsewhere"),
]


@pytest.mark.parametrize(("service", "status", "reason"), REASONS)
def test_every_documented_error_comes_on_command_and_once(program, service, status, reason):
    program.ask("order", service=service, status=status, reason=reason, headers={"retry-after": "7"})
    draft = program.draft(service)
    answer, headers, body = push(program, service, draft)
    assert (answer, {name.lower(): value for name, value in headers.items()}["retry-after"]) == (status, "7")
    assert service == "web" or reason.encode() in body
    assert push(program, service, program.draft(service))[0] == SERVICES[service]


def test_an_app_that_was_deleted_and_a_device_that_never_was_have_answers_of_their_own(program):
    for service, gone in {"apns": 410, "fcm": 404, "web": 410}.items():
        name = program.ask("device", service=service)
        draft = now({"apns": builder.ApnsDraft, "web": builder.WebDraft}[service](program.setup, name["token"])
                    if service != "fcm" else builder.FcmDraft(program.setup, name["token"], program.access()))
        program.ask("uninstall", service=service, name=name["name"])
        assert push(program, service, draft)[0] == gone
    draft = now(builder.ApnsDraft(program.setup, "ab" * 32))
    status, _, body = push(program, "apns", draft)
    assert (status, json.loads(body)["reason"]) == (400, "BadDeviceToken")
    assert program.ask("offences") == []


@pytest.mark.parametrize("service", SERVICES)
def test_answers_are_held_dropped_cut_or_nonsense_on_command(program, service):
    for order in ({"drop": "before"}, {"drop": "middle"}, {"garbage": True}):
        program.ask("order", service=service, **order)
        with pytest.raises((ConnectionError, http.client.HTTPException, h2.exceptions.ProtocolError, OSError)):
            push(program, service, program.draft(service))
    if service == "apns":
        return
    program.ask("order", service=service, hold=True)
    with pytest.raises(TimeoutError):
        program.send(program.draft(service), timeout=0.2)


def test_access_tokens_expire_on_command(program):
    draft = program.draft("fcm")
    program.ask("access", expire=True)
    assert program.send(draft)[0] == 401
    assert program.send(program.draft("fcm"))[0] == 200


def test_a_request_to_anywhere_else_is_an_offence():
    program = Program()
    draft = program.draft("web")
    draft.host = "192.168.1.1"
    assert program.send(draft)[0] == 421
    assert program.ask("offences") == ["POST to https://192.168.1.1: nobody's address"]
    program.process.stdin.close()
    program.process.wait(20)


def test_apple_speaks_nothing_but_http_2(program):
    for alpn in (["http/1.1"], None):
        context = ssl.create_default_context(cafile=program.facts["authority"])
        if alpn:
            context.set_alpn_protocols(alpn)
        with pytest.raises((ssl.SSLError, http.client.HTTPException, ConnectionError)):
            connection = http.client.HTTPSConnection("localhost", program.facts["apns"], context=context, timeout=20)
            connection.request("POST", "/3/device/" + "ab" * 32)
            connection.getresponse()


@contextmanager
def forwarder(program, upstream, log):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "APNS_FORWARDER_PORT": str(port),
        "APNS_UPSTREAM": upstream,
        "SSL_CERT_FILE": program.facts["authority"],
    }
    command = ["caddy", "run", "--config", str(ROOT / "docs/Caddyfile.apns"), "--adapter", "caddyfile"]
    with log.open("wb") as out, subprocess.Popen(command, env=environment, stdout=out, stderr=out) as caddy:
        try:
            until = time.monotonic() + 20
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except ConnectionRefusedError:
                    assert time.monotonic() < until and caddy.poll() is None, log.read_text()
                    time.sleep(0.02)
            yield port
        finally:
            caddy.terminate()


@pytest.mark.skipif(shutil.which("caddy") is None, reason="needs Caddy (on Debian: apt-get install caddy)")
def test_the_forwarder_passes_pushes_on_as_they_are_and_writes_no_token_down(program, tmp_path):
    def through(port, draft):
        request = draft.request()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request(request.method, request.path, request.body, dict(request.headers))
        with connection.getresponse() as response:
            return response.status, response.read()

    before = program.ask("offences")
    token = program.ask("device", service="apns")["token"]
    logs = [tmp_path / "up", tmp_path / "down"]
    with forwarder(program, f"localhost:{program.facts['apns']}", logs[0]) as port:
        draft = now(builder.ApnsDraft(program.setup, token))
        assert through(port, draft) == (200, b"")
        entry = program.ask("entries", service="apns", token=token, at_least=1)[0]
        sent = dict(draft.request().headers)
        assert {name: entry["headers"].get(name) for name in sent} == sent
        program.ask("order", service="apns", status=429, reason="TooManyRequests")
        status, body = through(port, now(builder.ApnsDraft(program.setup, token)))
        assert (status, json.loads(body)["reason"]) == (429, "TooManyRequests")
        program.ask("order", service="apns", drop="before")
        assert through(port, now(builder.ApnsDraft(program.setup, token)))[0] == 502
    with forwarder(program, "localhost:1", logs[1]) as port:
        assert through(port, now(builder.ApnsDraft(program.setup, token)))[0] == 502
    assert program.ask("offences") == before
    for log in logs:
        assert log.stat().st_size > 0
        assert token not in log.read_text()
        assert sent["authorization"][-40:] not in log.read_text()
