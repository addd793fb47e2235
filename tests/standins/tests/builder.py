"""Correct requests, made from primitives alone: neither the libraries that the stand-ins judge with, nor the relay's."""

import base64
import json
import os
import uuid
from urllib.parse import urlencode

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from push_services.common import Request
from push_services.setup import Setup

# In the middle of a half hour.
NOW = 1_796_094_900
WEEK = 604_800
TOPIC = "0123456789abcdef0123456789abcdef"


def b64u(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def signed(header: dict, claims: dict, sign) -> str:
    text = ".".join(b64u(json.dumps(part).encode()) for part in (header, claims))
    return f"{text}.{b64u(sign(text.encode()))}"


def es256(key):
    def sign(text: bytes) -> bytes:
        # The same text has the same signature, so that the same token is presented.
        r, s = decode_dss_signature(key.sign(text, ec.ECDSA(hashes.SHA256(), deterministic_signing=True)))
        return r.to_bytes(32, "big") + s.to_bytes(32, "big")

    return sign


def rs256(key):
    return lambda text: key.sign(text, padding.PKCS1v15(), hashes.SHA256())


def content(length: int = 200) -> dict:
    return {"ns": "ab" * 32, "from": "cd" * 32, "n": "ef" * 12, "c": base64.b64encode(os.urandom(length)).decode()}


def wake(mark=True) -> dict:
    return {"ns": "ab" * 32, "wake": mark}


def aps(data: dict) -> dict:
    common = {"alert": {"title": "Skald", "body": "Action required"}, "badge": 1, "sound": "default"}
    if "wake" in data:
        return {**common, "content-available": 1}
    return {**common, "mutable-content": 1, "category": "skald_inbox"}


class Draft:
    """A request before it is written down: every part can be changed."""

    def __init__(self, setup: Setup):
        self.setup = setup
        self.method = "POST"
        self.scheme = "https"
        self.now = NOW


class ApnsDraft(Draft):
    def __init__(self, setup: Setup, token: str, data: dict | None = None):
        super().__init__(setup)
        data = content() if data is None else data
        self.path = f"/3/device/{token}"
        self.host = "localhost:1"
        self.key = setup.apns_key
        self.jwt_header = {"alg": "ES256", "kid": setup.apns.key_id}
        self.claims = {"iss": setup.apns.team_id, "iat": self.now // 1800 * 1800}
        self.scheme_word = "bearer"
        self.headers = {
            "apns-topic": setup.apns.topic,
            "apns-push-type": "alert",
            "apns-priority": "10",
            "apns-expiration": str(self.now + WEEK),
            "apns-id": str(uuid.uuid4()),
            "apns-collapse-id": TOPIC,
        }
        self.json = {"aps": aps(data), "d": data}
        self.body = None

    def request(self) -> Request:
        token = signed(self.jwt_header, self.claims, es256(self.key))
        headers = {"authorization": f"{self.scheme_word} {token}", **self.headers}
        body = json.dumps(self.json).encode() if self.body is None else self.body
        headers = [(name, value) for name, value in headers.items() if value is not None]
        return Request(self.method, self.scheme, self.host, self.path, headers, body)


class TokenDraft(Draft):
    def __init__(self, setup: Setup):
        super().__init__(setup)
        account = setup.fcm.account
        self.host, self.path = "oauth2.googleapis.com", "/token"
        self.key = setup.fcm_key
        self.jwt_header = {"alg": "RS256", "typ": "JWT", "kid": account.key_id}
        self.claims = {
            "iss": account.email,
            "scope": "https://www.googleapis.com/auth/firebase.messaging",
            "aud": "https://oauth2.googleapis.com/token",
            "iat": self.now,
            "exp": self.now + 3600,
        }
        self.headers = {"content-type": "application/x-www-form-urlencoded"}
        self.form = {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer"}
        self.body = None

    def request(self) -> Request:
        form = {"assertion": signed(self.jwt_header, self.claims, rs256(self.key)), **self.form}
        form = {name: value for name, value in form.items() if value is not None}
        body = urlencode(form).encode() if self.body is None else self.body
        headers = [(name, value) for name, value in self.headers.items() if value is not None]
        return Request(self.method, self.scheme, self.host, self.path, headers, body)


class FcmDraft(Draft):
    def __init__(self, setup: Setup, token: str, access: str, data: dict | None = None):
        super().__init__(setup)
        data = content() if data is None else data
        if "from" in data:
            data["sender"] = data.pop("from")
        self.host = "fcm.googleapis.com"
        self.path = f"/v1/projects/{setup.fcm.account.project}/messages:send"
        self.headers = {"authorization": f"Bearer {access}", "content-type": "application/json"}
        android = {"priority": "high", "collapse_key": TOPIC, "ttl": "604800s"}
        self.json = {"message": {"token": token, "android": android, "data": data}}
        self.body = None

    def request(self) -> Request:
        body = json.dumps(self.json).encode() if self.body is None else self.body
        headers = [(name, value) for name, value in self.headers.items() if value is not None]
        return Request(self.method, self.scheme, self.host, self.path, headers, body)


def encrypt(text: bytes, subscription: dict, *, record: int = 4096, auth: bytes | None = None) -> bytes:
    """RFC 8291, in one record."""

    def derive(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
        return HKDF(hashes.SHA256(), length, salt, info).derive(secret)

    def decode(text: str) -> bytes:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))

    point = decode(subscription["keys"]["p256dh"])
    receiver = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point)
    auth = decode(subscription["keys"]["auth"]) if auth is None else auth
    key = ec.generate_private_key(ec.SECP256R1())
    own = key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    secret = derive(key.exchange(ec.ECDH(), receiver), auth, b"WebPush: info\0" + point + own, 32)
    salt = os.urandom(16)
    content_key = derive(secret, salt, b"Content-Encoding: aes128gcm\0", 16)
    nonce = derive(secret, salt, b"Content-Encoding: nonce\0", 12)
    sealed = AESGCM(content_key).encrypt(nonce, text + b"\x02", None)
    return salt + record.to_bytes(4, "big") + bytes([len(own)]) + own + sealed


class WebDraft(Draft):
    def __init__(self, setup: Setup, subscription: str, data: dict | None = None):
        super().__init__(setup)
        self.subscription = json.loads(subscription)
        rest = self.subscription["endpoint"].removeprefix("https://")
        self.host, self.path = rest.split("/", 1)[0], "/" + rest.split("/", 1)[1]
        self.key = setup.vapid_key
        self.jwt_header = {"typ": "JWT", "alg": "ES256"}
        self.claims = {"aud": f"https://{self.host}", "exp": self.now + 12 * 3600, "sub": setup.web.subject}
        point = setup.vapid_key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        self.k = b64u(point)
        self.headers = {"ttl": "604800", "urgency": "high", "topic": TOPIC, "content-encoding": "aes128gcm"}
        self.json = content() if data is None else data
        self.encryption = {}
        self.change = None
        self.authorization = None

    def request(self) -> Request:
        body = encrypt(json.dumps(self.json).encode(), self.subscription, **self.encryption)
        body = self.change(body) if self.change else body
        token = signed(self.jwt_header, self.claims, es256(self.key))
        headers = {"authorization": self.authorization or f"vapid t={token}, k={self.k}", **self.headers}
        headers = [(name, value) for name, value in headers.items() if value is not None]
        return Request(self.method, self.scheme, self.host, self.path, headers, body)
