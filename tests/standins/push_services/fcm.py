"""Google's service: the HTTP v1 API of Firebase Cloud Messaging (its reference of `projects.messages`, its table of error
codes, "About FCM messages"), and the token endpoint of "Using OAuth 2.0 for server to server applications".
"""

import json
import secrets
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

import jwt

from .common import (
    HEX_16,
    MAX_BODY,
    Accepted,
    Answer,
    Refused,
    Request,
    check_data,
    is_hex,
    no_duplicates,
    parse_json,
    unexpected,
)

SCOPE = "https://www.googleapis.com/auth/firebase.messaging"
GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
# Longest life of an assertion, and the life of an access token, seconds.
HOUR = 3600
# How far clocks may be apart.
SKEW = 10
TTL = "604800s"

# Every error of the table, by status: the RPC's code and the service's own.
REASONS = {
    400: [("INVALID_ARGUMENT", "INVALID_ARGUMENT")],
    401: [("UNAUTHENTICATED", None), ("UNAUTHENTICATED", "THIRD_PARTY_AUTH_ERROR")],
    403: [("PERMISSION_DENIED", "SENDER_ID_MISMATCH"), ("PERMISSION_DENIED", None)],
    404: [("NOT_FOUND", "UNREGISTERED")],
    429: [("RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED")],
    500: [("INTERNAL", "INTERNAL")],
    503: [("UNAVAILABLE", "UNAVAILABLE")],
}

# "The key should not be a reserved word", and what is answered to one: 400.
RESERVED = {"from", "message_type", "gcm"}
RESERVED_PREFIXES = ("google.", "gcm.notification.", "gcm.", "google")
# So the field for the sender has another name here than in the other services' pushes.
SENDER = "sender"


@dataclass
class Account:
    """A service account, as its JSON names it."""

    project: str
    email: str
    key_id: str
    token_uri: str
    # PEM.
    public_key: str


@dataclass
class Access:
    """An access token that was given out."""

    expires: float


@dataclass
class TokenEndpoint:
    """Where assertions are exchanged."""

    account: Account
    # How long access tokens are valid; the endpoint says so.
    lifetime: int = HOUR
    given: dict[str, Access] = field(default_factory=dict)

    name = "token"

    def judge(self, request: Request, now: float) -> Accepted:
        if twice := no_duplicates(request):
            raise Refused(400, "invalid_request", f"{twice} twice")
        if request.method != "POST":
            raise Refused(405, "invalid_request", request.method)
        if f"{request.scheme}://{request.host}{request.path}" != self.account.token_uri:
            raise Refused(404, "invalid_request", "another address")
        if request.header("content-type") != "application/x-www-form-urlencoded":
            raise Refused(400, "invalid_request", "content-type")
        if name := unexpected(request, {"content-type"}):
            raise Refused(400, "invalid_request", f"header {name}")
        try:
            fields = parse_qsl(request.body.decode("ascii"), strict_parsing=True)
        except ValueError as error:
            raise Refused(400, "invalid_request", "no form") from error
        if sorted(name for name, _ in fields) != ["assertion", "grant_type"]:
            raise Refused(400, "invalid_request", "fields")
        form = dict(fields)
        if form["grant_type"] != GRANT:
            raise Refused(400, "unsupported_grant_type")
        self._assertion(form["assertion"], now)
        return Accepted("", None, {}, b"")

    def _assertion(self, assertion: str, now: float) -> None:
        account = self.account
        try:
            header = jwt.get_unverified_header(assertion)
            claims = jwt.decode(
                assertion,
                account.public_key,
                algorithms=["RS256"],
                options={"verify_iat": False, "verify_exp": False, "verify_aud": False, "verify_nbf": False},
            )
        except jwt.PyJWTError as error:
            raise Refused(400, "invalid_grant", type(error).__name__) from error
        if header.get("kid") != account.key_id or header.get("typ", "JWT") != "JWT":
            raise Refused(400, "invalid_grant", "header")
        if set(header) - {"typ"} != {"alg", "kid"}:
            raise Refused(400, "invalid_grant", "further fields in the header")
        if set(claims) != {"iss", "scope", "aud", "iat", "exp"}:
            raise Refused(400, "invalid_grant", f"claims: {sorted(claims)}")
        if claims["iss"] != account.email:
            raise Refused(400, "invalid_grant", "iss")
        if claims["scope"] != SCOPE:
            raise Refused(400, "invalid_scope", "scope")
        if claims["aud"] != account.token_uri:
            raise Refused(400, "invalid_grant", "aud")
        issued, expires = claims["iat"], claims["exp"]
        if type(issued) is not int or type(expires) is not int or expires <= issued:
            raise Refused(400, "invalid_grant", "times")
        if issued > now + SKEW or issued < now - HOUR or expires <= now or expires - issued > HOUR:
            raise Refused(400, "invalid_grant", "a short-lived token, in a reasonable timeframe")

    def accept(self, request: Request, now: float) -> Answer:
        token = f"ya29.{secrets.token_urlsafe(48)}"
        self.given[token] = Access(now + self.lifetime)
        body = {"access_token": token, "expires_in": self.lifetime, "token_type": "Bearer"}
        return Answer(200, {"content-type": "application/json; charset=utf-8"}, json.dumps(body).encode())

    def refuse(self, refused: Refused) -> Answer:
        body = json.dumps({"error": refused.reason, "error_description": refused.detail}).encode()
        return Answer(refused.status, {"content-type": "application/json; charset=utf-8", **refused.headers}, body)


@dataclass
class Fcm:
    """One project."""

    account: Account
    tokens: TokenEndpoint
    host: str = "fcm.googleapis.com"
    # Registration tokens; False: the app was deleted.
    devices: dict[str, bool] = field(default_factory=dict)

    name = "fcm"

    def judge(self, request: Request, now: float) -> Accepted:
        if request.scheme != "https" or request.host != self.host:
            raise Refused(404, "NOT_FOUND", "another address")
        if request.path != f"/v1/projects/{self.account.project}/messages:send":
            raise Refused(404, "NOT_FOUND", "another path")
        if request.method != "POST":
            raise Refused(405, "INVALID_ARGUMENT", request.method)
        if twice := no_duplicates(request):
            raise Refused(400, "INVALID_ARGUMENT", f"{twice} twice")
        self._authorize(request, now)
        if (request.header("content-type") or "").replace(" ", "").lower() not in (
            "application/json",
            "application/json;charset=utf-8",
        ):
            raise Refused(400, "INVALID_ARGUMENT", "content-type")
        if name := unexpected(request, {"authorization", "content-type"}):
            raise Refused(400, "INVALID_ARGUMENT", f"header {name}")
        return self._message(request.body)

    def _authorize(self, request: Request, now: float) -> None:
        value = request.header("authorization")
        if value is None:
            raise Refused(401, "UNAUTHENTICATED", "no authorization")
        scheme, _, token = value.partition(" ")
        access = self.tokens.given.get(token) if scheme == "Bearer" else None
        if access is None:
            raise Refused(401, "UNAUTHENTICATED", "this access token was given to nobody")
        if access.expires <= now:
            raise Refused(401, "UNAUTHENTICATED", "the access token has expired", offence=False)

    def _message(self, body: bytes) -> Accepted:
        def invalid(what: str) -> Refused:
            return Refused(400, "INVALID_ARGUMENT", what)

        try:
            request = parse_json(body)
        except ValueError as error:
            raise invalid("no JSON") from error
        if not isinstance(request, dict) or set(request) != {"message"}:
            raise invalid("fields of the request")
        message = request["message"]
        if not isinstance(message, dict) or set(message) != {"token", "android", "data"}:
            raise invalid("fields of the message")
        android, data, token = message["android"], message["data"], message["token"]
        if not isinstance(android, dict) or set(android) - {"collapse_key"} != {"priority", "ttl"}:
            raise invalid("fields of android")
        if android["priority"] != "high":
            raise invalid("android.priority")
        if android["ttl"] != TTL:
            raise invalid("android.ttl")
        collapse = android.get("collapse_key")
        if "collapse_key" in android and not is_hex(collapse, HEX_16):
            raise invalid("android.collapse_key")
        self._data(data, invalid)
        if not isinstance(token, str) or not token:
            raise invalid("token")
        if token not in self.devices:
            raise Refused(400, "INVALID_ARGUMENT", "the registration token is not a valid one", offence=False)
        if not self.devices[token]:
            raise Refused(404, "UNREGISTERED", offence=False)
        same = {"from" if name == SENDER else name: value for name, value in data.items()}
        return Accepted(token, collapse, same, json.dumps(data).encode())

    def _data(self, data: Any, invalid) -> None:
        if not isinstance(data, dict) or not all(isinstance(value, str) for value in data.values()):
            raise invalid("data: a map of strings")
        for name in data:
            if name in RESERVED or name.startswith(RESERVED_PREFIXES):
                raise invalid(f"Invalid data payload key: {name}")
        if sum(len(name.encode()) + len(value.encode()) for name, value in data.items()) > MAX_BODY:
            raise invalid("data: too big")
        if wrong := check_data(data, "true", SENDER):
            raise invalid(f"data: {wrong}")

    def accept(self, request: Request) -> Answer:
        name = f"projects/{self.account.project}/messages/0:{secrets.randbelow(10**16)}%{secrets.token_hex(8)}"
        return Answer(200, {"content-type": "application/json; charset=UTF-8"}, json.dumps({"name": name}).encode())

    def refuse(self, refused: Refused) -> Answer:
        rpc = next(
            (rpc for known in REASONS.values() for rpc, own in known if refused.reason in (rpc, own)), refused.reason
        )
        own = refused.reason if refused.reason != "UNAUTHENTICATED" else None
        error: dict[str, Any] = {"code": refused.status, "message": refused.detail or refused.reason, "status": rpc}
        if own:
            kind = "type.googleapis.com/google.firebase.fcm.v1.FcmError"
            error["details"] = [{"@type": kind, "errorCode": own}]
        headers = {"content-type": "application/json; charset=UTF-8", **refused.headers}
        return Answer(refused.status, headers, json.dumps({"error": error}).encode())
