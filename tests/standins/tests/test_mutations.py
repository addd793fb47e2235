"""A correct request passes, and each with one thing changed is refused: the stand-ins look at everything."""

import asyncio
import base64
import json
import os

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from push_services.common import Refused
from push_services.control import Control
from push_services.record import Record
from push_services.setup import Setup

from .builder import NOW, ApnsDraft, FcmDraft, TokenDraft, WebDraft, aps, content, wake

SETUP = Setup()
RECORD = Record(SETUP.services())


def device(service, **options):
    return asyncio.run(Control(RECORD).do_device(service, **options))


@pytest.fixture(autouse=True)
def _fresh():
    SETUP.apns.provider_tokens.clear()


def apns(data=None):
    return ApnsDraft(SETUP, device("apns")["token"], data)


def token(data=None):
    return TokenDraft(SETUP)


def fcm(data=None):
    answer = SETUP.token.accept(TokenDraft(SETUP).request(), NOW)
    return FcmDraft(SETUP, device("fcm")["token"], json.loads(answer.body)["access_token"], data)


def web(data=None):
    return WebDraft(SETUP, device("web")["token"], data)


DRAFTS = {"apns": apns, "token": token, "fcm": fcm, "web": web}
# 2,625 bytes are the longest content.
LONGEST = 2625


def judge(name, draft):
    service = RECORD.services[name]
    service.judge(draft.request(), draft.now)


@pytest.mark.parametrize("name", DRAFTS)
def test_a_correct_request_passes(name):
    judge(name, DRAFTS[name]())
    if name == "token":
        return
    for data in (wake("true" if name == "fcm" else True), content(17), content(LONGEST)):
        judge(name, DRAFTS[name](data))


@pytest.mark.parametrize("name", ["apns", "fcm", "web"])
def test_a_push_without_a_collapse_tag_passes(name):
    draft = DRAFTS[name]()
    if name == "fcm":
        del draft.json["message"]["android"]["collapse_key"]
    else:
        del draft.headers[{"apns": "apns-collapse-id", "web": "topic"}[name]]
    judge(name, draft)


def setter(path, value):
    """Sets what stands at this path, attributes first."""

    def change(draft):
        first, *rest = path.split("/")
        if not rest:
            setattr(draft, first, value(getattr(draft, first)) if callable(value) else value)
            return
        where = getattr(draft, first)
        for step in rest[:-1]:
            where = where[step]
        if value is DELETE:
            del where[rest[-1]]
        else:
            where[rest[-1]] = value(where.get(rest[-1])) if callable(value) else value

    return change


DELETE = object()
OTHER_EC, OTHER_RSA = ec.generate_private_key(ec.SECP256R1()), rsa.generate_private_key(65537, 2048)

# What is wrong with the objects that pushes carry, whatever the service.
DATA = [
    ("ns", "ab" * 31),
    ("ns", ("ab" * 32).upper()),
    ("ns", DELETE),
    ("SENDER", "cd" * 33),
    ("SENDER", DELETE),
    ("n", "ef" * 11),
    ("n", 5),
    ("n", DELETE),
    ("c", DELETE),
    ("c", base64.b64encode(os.urandom(LONGEST + 1)).decode()),
    ("c", base64.b64encode(os.urandom(16)).decode()),
    ("c", base64.b64encode(b"\xff\xfe" * 21).decode().replace("/", "_")),
    ("c", lambda c: c.rstrip("=")),
    ("c", lambda c: c + "\n"),
    ("more", "x"),
    ("wake", True),
]
CASES = {
    "apns": [
        *[("method", value) for value in ("GET", "PUT")],
        ("scheme", "http"),
        *[("path", lambda p, f=f: f(p)) for f in (
            lambda p: p.replace("/3/", "/2/"), lambda p: p + "0", lambda p: p + "/", lambda p: p[:-2] + "zz",
            lambda p: "/3/device/", lambda p: p + "?x=1", lambda p: p[:40],
        )],
        ("key", OTHER_EC),
        ("jwt_header/alg", "none"),
        ("jwt_header/alg", "HS256"),
        ("jwt_header/kid", "ABCDEFGHIJ"),
        ("jwt_header/kid", DELETE),
        ("jwt_header/jku", "https://elsewhere.example"),
        ("jwt_header/typ", "JOSE"),
        ("claims/iss", "ABCDEFGHIJ"),
        ("claims/iss", DELETE),
        ("claims/iat", DELETE),
        ("claims/iat", str),
        ("claims/iat", float),
        ("claims/iat", lambda iat: iat + 1800),
        ("claims/iat", lambda iat: iat - 1800),
        ("claims/iat", lambda iat: iat - 7200),
        ("claims/iat", lambda iat: iat + 60),
        ("claims/iat", lambda iat: iat * 1000),
        ("claims/exp", NOW + 60),
        ("scheme_word", "Basic"),
        ("headers/authorization", None),
        ("headers/authorization", "bearer x.y.z"),
        ("headers/authorization", "bearer "),
        *[(f"headers/{name}", value) for name in ("apns-topic", "apns-push-type", "apns-priority", "apns-expiration", "apns-id")
          for value in (None, "x", "")],
        ("headers/apns-topic", "net.skaldagent.inbox.voip"),
        ("headers/apns-push-type", "background"),
        ("headers/apns-priority", "5"),
        ("headers/apns-expiration", "0"),
        ("headers/apns-expiration", str(NOW + 86400)),
        ("headers/apns-expiration", str((NOW + 604800) * 1000)),
        ("headers/apns-id", "0123456789abcdef0123456789abcdef"),
        ("headers/apns-collapse-id", ""),
        ("headers/apns-collapse-id", "ab" * 32),
        ("headers/apns-collapse-id", "AB" * 16),
        ("headers/apns-unknown", "1"),
        ("headers/x-forwarded-for", "192.0.2.1"),
        ("headers/cookie", "a=b"),
        ("headers/content-type", "text/plain"),
        ("body", b""),
        ("body", b"{}"),
        ("body", b"nonsense"),
        ("body", b"\xff"),
        ("body", b'{"aps":{},"aps":{}}'),
        *[(f"json/aps/{name}", DELETE) for name in ("alert", "badge", "sound", "mutable-content", "category")],
        ("json/aps/alert/title", "Deploy to production"),
        ("json/aps/alert/body", "x"),
        ("json/aps/alert/subtitle", "x"),
        ("json/aps/badge", 2),
        ("json/aps/badge", True),
        ("json/aps/sound", "other"),
        ("json/aps/mutable-content", True),
        ("json/aps/content-available", 1),
        ("json/aps/category", "x"),
        ("json/more", 1),
        ("json/d", DELETE),
        ("json/d", None),
        *[(f"json/d/{name.replace('SENDER', 'from')}", value) for name, value in DATA],
    ],
    "token": [
        ("method", "GET"),
        ("scheme", "http"),
        ("host", "oauth.example"),
        ("path", "/token2"),
        ("key", OTHER_RSA),
        ("jwt_header/alg", "RS512"),
        ("jwt_header/alg", "none"),
        ("jwt_header/kid", "0" * 40),
        ("jwt_header/kid", DELETE),
        ("jwt_header/typ", "x"),
        ("jwt_header/x5u", "https://elsewhere.example"),
        *[(f"claims/{name}", value) for name in ("iss", "scope", "aud", "iat", "exp") for value in (DELETE, "x", None)],
        ("claims/scope", "https://www.googleapis.com/auth/cloud-platform"),
        ("claims/iat", NOW + 60),
        ("claims/iat", NOW - 4000),
        ("claims/exp", NOW + 3601),
        ("claims/exp", NOW - 1),
        ("claims/exp", NOW),
        ("claims/iat", float(NOW)),
        ("claims/sub", "somebody@else.example"),
        ("headers/content-type", "application/json"),
        ("headers/content-type", None),
        ("headers/authorization", "Bearer x"),
        ("form/grant_type", "client_credentials"),
        ("form/grant_type", None),
        ("form/assertion", None),
        ("form/assertion", "x.y.z"),
        ("form/scope", "x"),
        ("body", b""),
        ("body", b"nonsense"),
    ],
    "fcm": [
        ("method", "GET"),
        ("scheme", "http"),
        ("host", "fcm.example"),
        ("path", "/v1/projects/another/messages:send"),
        ("path", "/fcm/send"),
        ("path", lambda p: p + "/"),
        ("headers/authorization", None),
        ("headers/authorization", "Bearer ya29.invented"),
        ("headers/authorization", lambda v: v.replace("Bearer", "key=")),
        ("headers/authorization", lambda v: v[:-1]),
        ("headers/content-type", "text/plain"),
        ("headers/content-type", None),
        ("headers/x-goog-user-project", "x"),
        ("body", b""),
        ("body", b"nonsense"),
        ("body", b"[]"),
        ("json/validate_only", True),
        ("json/message/token", DELETE),
        ("json/message/token", ""),
        ("json/message/token", "another"),
        ("json/message/topic", "news"),
        ("json/message/notification", {"title": "x"}),
        ("json/message/android", DELETE),
        ("json/message/android/priority", "normal"),
        ("json/message/android/priority", DELETE),
        ("json/message/android/ttl", "604800"),
        ("json/message/android/ttl", 604800),
        ("json/message/android/ttl", DELETE),
        ("json/message/android/collapse_key", ""),
        ("json/message/android/collapse_key", None),
        ("json/message/android/collapse_key", "AB" * 16),
        ("json/message/android/restricted_package_name", "x"),
        ("json/message/data", DELETE),
        ("json/message/data", {}),
        # The name that Google keeps to itself.
        ("json/message/data/from", "cd" * 32),
        ("json/message/data/google.x", "1"),
        ("json/message/data/n", None),
        *[(f"json/message/data/{name.replace('SENDER', 'sender')}", value) for name, value in DATA],
    ],
    "web": [
        ("method", "GET"),
        ("method", "PUT"),
        ("scheme", "http"),
        ("host", "push.example"),
        ("path", lambda p: p + "x"),
        ("path", lambda p: p + "?x"),
        ("key", OTHER_EC),
        ("k", "x"),
        ("k", lambda k: k + "="),
        ("authorization", "WebPush x"),
        ("authorization", "vapid k=x"),
        ("headers/authorization", None),
        ("jwt_header/alg", "none"),
        ("jwt_header/alg", "HS256"),
        ("jwt_header/kid", "x"),
        ("jwt_header/typ", "x"),
        ("claims/aud", "https://push.example"),
        ("claims/aud", lambda aud: aud + "/"),
        ("claims/aud", DELETE),
        ("claims/exp", NOW - 1),
        ("claims/exp", NOW + 86400 + 60),
        ("claims/exp", str),
        ("claims/exp", float),
        ("claims/exp", DELETE),
        ("claims/sub", "mailto:somebody@else.example"),
        ("claims/sub", DELETE),
        ("claims/iat", NOW),
        *[(f"headers/{name}", value) for name in ("ttl", "urgency", "content-encoding") for value in (None, "", "x")],
        ("headers/ttl", "0"),
        ("headers/urgency", "normal"),
        ("headers/topic", ""),
        ("headers/topic", "x" * 33),
        ("headers/topic", "AB" * 16),
        ("headers/content-encoding", "aesgcm"),
        ("headers/content-type", "application/json"),
        ("headers/crypto-key", "x"),
        ("encryption/auth", b"\0" * 16),
        ("encryption/record", 18),
        ("change", lambda _: lambda body: b""),
        ("change", lambda _: lambda body: body[:-1]),
        ("change", lambda _: lambda body: body[:-1] + bytes([body[-1] ^ 1])),
        ("change", lambda _: lambda body: bytes([body[0] ^ 1]) + body[1:]),
        ("change", lambda _: lambda body: body[:20] + b"\0" + body[86:]),
        ("change", lambda _: lambda body: body[:30] + bytes([body[30] ^ 1]) + body[31:]),
        ("change", lambda _: lambda body: body + b"\0" * 4096),
        ("json", []),
        *[(f"json/{name.replace('SENDER', 'from')}", value) for name, value in DATA],
    ],
}


@pytest.mark.parametrize(
    ("name", "number"), [(name, n) for name, cases in CASES.items() for n in range(len(cases))],
    ids=[f"{name}-{n}-{case[0]}" for name, cases in CASES.items() for n, case in enumerate(cases)],
)
def test_one_thing_changed_is_refused(name, number):
    path, value = CASES[name][number]
    draft = DRAFTS[name]()
    setter(path, value)(draft)
    with pytest.raises(Refused):
        judge(name, draft)
    # It was that, and nothing else.
    judge(name, DRAFTS[name]())


@pytest.mark.parametrize("name", DRAFTS)
def test_a_header_that_is_there_twice_is_refused(name):
    request = DRAFTS[name]().request()
    for header in list(request.headers):
        request = DRAFTS[name]().request()
        request.headers.append(header)
        with pytest.raises(Refused):
            RECORD.services[name].judge(request, NOW)


@pytest.mark.parametrize(("path", "value"), [
    ("json/d/wake", False), ("json/d/wake", 1), ("json/d/wake", "true"), ("json/d/from", "cd" * 32),
    ("json/aps/content-available", DELETE), ("json/aps/mutable-content", 1), ("json/aps", aps(content())),
])
def test_a_wake_push_of_apple_has_its_own_form(path, value):
    draft = apns(wake())
    setter(path, value)(draft)
    with pytest.raises(Refused):
        judge("apns", draft)


@pytest.mark.parametrize("mark", [True, "True", "", "1", 1, None])
def test_a_wake_push_of_google_says_true_as_text(mark):
    with pytest.raises(Refused):
        judge("fcm", fcm(wake(mark)))


def test_a_message_id_of_apple_and_a_key_of_web_push_serve_once():
    draft = apns()
    judge("apns", draft)
    with pytest.raises(Refused, match="BadMessageId"):
        judge("apns", draft)
    request = web().request()
    RECORD.services["web"].judge(request, NOW)
    with pytest.raises(Refused, match="used before"):
        RECORD.services["web"].judge(request, NOW)


def at(seconds):
    draft = apns()
    draft.now = NOW + seconds
    draft.claims["iat"] = draft.now // 1800 * 1800
    draft.headers["apns-expiration"] = str(draft.now + 604800)
    return draft


def test_apple_takes_one_token_for_half_an_hour_and_the_next_after_it():
    for seconds in (0, 60, 890, 900, 2690, 2700, 4500):
        judge("apns", at(seconds))
    assert len(SETUP.apns.provider_tokens) == 4


def test_apple_refuses_tokens_that_change_too_often():
    judge("apns", at(0))
    signed_anew = at(10)
    # The same claims in another order: other bytes.
    signed_anew.claims = dict(reversed(signed_anew.claims.items()))
    with pytest.raises(Refused, match="TooManyProviderTokenUpdates"):
        judge("apns", signed_anew)
    judge("apns", at(20))
    # After a change the one before is on its way for a minute at most.
    judge("apns", at(901))
    late = at(890)
    late.now = NOW + 930
    late.headers["apns-expiration"] = str(late.now + 604800)
    judge("apns", late)
    late = at(890)
    late.now = NOW + 990
    with pytest.raises(Refused):
        judge("apns", late)


def test_an_access_token_expires():
    draft = fcm()
    judge("fcm", draft)
    draft.now = NOW + 3600
    with pytest.raises(Refused, match="UNAUTHENTICATED") as refused:
        judge("fcm", draft)
    assert not refused.value.offence
