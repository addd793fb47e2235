"""A browser's push service: RFC 8030 (the push itself), RFC 8291 and 8188 (its encryption), RFC 8292 (who sends)."""

import json
import re
import secrets
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import http_ece
import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from .common import (
    HEX_16,
    MAX_BODY,
    Accepted,
    Answer,
    Refused,
    Request,
    base64url,
    check_data,
    is_hex,
    no_duplicates,
    parse_json,
    unexpected,
)

TTL = "604800"
# Longest life of a VAPID token, seconds.
DAY = 24 * 3600
SKEW = 10

# What the three large services answer, by the RFCs and their own pages.
STATUSES = [400, 401, 403, 404, 410, 413, 429, 500, 502, 503]

HEADERS = {"authorization", "ttl", "urgency", "topic", "content-encoding", "content-type"}


def raw_point(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


@dataclass
class Subscription:
    """A browser's, with the keys that stay in it; without them if a phone has its own."""

    endpoint: str
    key: ec.EllipticCurvePrivateKey | None
    auth: bytes
    alive: bool = True

    @classmethod
    def make(cls, host: str, with_keys: bool) -> "Subscription":
        key = ec.generate_private_key(ec.SECP256R1()) if with_keys else None
        return cls(f"https://{host}/wpush/v2/{secrets.token_urlsafe(32)}", key, secrets.token_bytes(16))

    def to_json(self) -> str:
        if self.key is None:
            return json.dumps({"endpoint": self.endpoint})
        keys = {"p256dh": base64url(raw_point(self.key.public_key())), "auth": base64url(self.auth)}
        return json.dumps({"endpoint": self.endpoint, "keys": keys})


@dataclass
class WebPush:
    """All browsers' services."""

    # The application server's key that subscriptions are bound to, and who it says it is.
    server_key: ec.EllipticCurvePublicKey
    subject: str
    # By endpoint.
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    ephemeral_keys: set[bytes] = field(default_factory=set)

    name = "web"

    def hosts(self) -> set[str]:
        return {urlsplit(endpoint).netloc for endpoint in self.subscriptions}

    def judge(self, request: Request, now: float) -> Accepted:
        endpoint = f"{request.scheme}://{request.host}{request.path}"
        if request.method != "POST":
            raise Refused(405, "method", request.method)
        subscription = self.subscriptions.get(endpoint)
        if subscription is None:
            raise Refused(404, "no such subscription", offence=False)
        if twice := no_duplicates(request):
            raise Refused(400, "header", f"{twice} twice")
        self._authorize(request, subscription, now)
        if request.header("ttl") != TTL:
            raise Refused(400, "TTL", str(request.header("ttl")))
        if request.header("urgency") != "high":
            raise Refused(400, "Urgency", str(request.header("urgency")))
        topic = request.header("topic")
        if topic is not None and not is_hex(topic, HEX_16):
            raise Refused(400, "Topic", topic)
        if request.header("content-encoding") != "aes128gcm":
            raise Refused(400, "Content-Encoding", str(request.header("content-encoding")))
        if request.header("content-type") not in (None, "application/octet-stream"):
            raise Refused(400, "Content-Type", str(request.header("content-type")))
        if name := unexpected(request, HEADERS):
            raise Refused(400, "header", name)
        if not request.body:
            raise Refused(400, "body", "empty")
        if len(request.body) > MAX_BODY:
            raise Refused(413, "body", f"{len(request.body)} bytes")
        data, delivered = self._open(request.body, subscription)
        if not subscription.alive:
            raise Refused(410, "gone", offence=False)
        return Accepted(endpoint, topic, data, delivered)

    def _authorize(self, request: Request, subscription: Subscription, now: float) -> None:
        value = request.header("authorization")
        if value is None:
            raise Refused(401, "authorization", "missing")
        shape = re.fullmatch(r"vapid t=([A-Za-z0-9_.-]+), ?k=([A-Za-z0-9_-]+)", value)
        if shape is None:
            raise Refused(401, "authorization", "no vapid")
        token, key = shape.groups()
        if key != base64url(raw_point(self.server_key)):
            raise Refused(403, "authorization", "not the key that the subscription is bound to")
        try:
            header = jwt.get_unverified_header(token)
            claims = jwt.decode(
                token, self.server_key, algorithms=["ES256"], options={"verify_exp": False, "verify_aud": False}
            )
        except jwt.PyJWTError as error:
            raise Refused(403, "authorization", type(error).__name__) from error
        if set(header) - {"typ"} != {"alg"} or header.get("typ", "JWT") != "JWT":
            raise Refused(403, "authorization", "header")
        if set(claims) != {"aud", "exp", "sub"}:
            raise Refused(403, "authorization", f"claims: {sorted(claims)}")
        where = urlsplit(subscription.endpoint)
        if claims["aud"] != f"{where.scheme}://{where.netloc}":
            raise Refused(403, "authorization", "aud is not the service's origin")
        if type(claims["exp"]) is not int or not now < claims["exp"] <= now + DAY + SKEW:
            raise Refused(403, "authorization", "exp is past, or more than a day ahead")
        if claims["sub"] != self.subject:
            raise Refused(403, "authorization", "sub")

    def _open(self, body: bytes, subscription: Subscription) -> tuple[dict[str, Any], bytes]:
        if len(body) < 21 or len(body) < 21 + body[20]:
            raise Refused(400, "body", "no header of aes128gcm")
        sender = body[21 : 21 + body[20]]
        if len(sender) != 65:
            raise Refused(400, "body", "the key's identifier is no public key")
        if int.from_bytes(body[16:20], "big") < len(body) - 86:
            raise Refused(400, "body", "more than one record")
        if sender in self.ephemeral_keys:
            raise Refused(400, "body", "a key that was used before")
        self.ephemeral_keys.add(sender)
        if subscription.key is None:
            # Only the phone can open it.
            return {}, body
        try:
            text = http_ece.decrypt(
                body, private_key=subscription.key, auth_secret=subscription.auth, version="aes128gcm"
            )
            data = parse_json(text)
        except (http_ece.ECEException, ValueError) as error:
            raise Refused(400, "body", "it does not open") from error
        if wrong := check_data(data, True):
            raise Refused(400, "body", wrong)
        return data, text

    def accept(self, request: Request) -> Answer:
        return Answer(201, {"location": f"https://{request.host}/m/{secrets.token_urlsafe(16)}", "ttl": TTL})

    def refuse(self, refused: Refused) -> Answer:
        body = {"code": refused.status, "errno": 100, "error": refused.reason, "message": refused.detail}
        return Answer(refused.status, {"content-type": "application/json", **refused.headers}, json.dumps(body).encode())
