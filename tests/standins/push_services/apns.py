"""Apple's service, as "Sending notification requests to APNs", "Establishing a token-based connection to APNs" and "Handling
notification responses from APNs" describe it, and what the push protocol adds.
"""

import json
import re
import uuid
from dataclasses import dataclass, field
from typing import Any

import jwt

from .common import (
    HEX_16,
    MAX_BODY,
    WEEK,
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

# A provider token is valid for so long, and is not to be renewed more often than so, seconds.
OLDEST = 3600
UPDATES = 20 * 60
# The protocol's window: all objects of a relay present the same token.
WINDOW = 30 * 60
# How long after a new token one that was signed before may still arrive.
CROSSING = 60

# Every reason in Apple's table, by status.
REASONS = {
    400: [
        "BadCollapseId",
        "BadDeviceToken",
        "BadExpirationDate",
        "BadMessageId",
        "BadPriority",
        "BadTopic",
        "DeviceTokenNotForTopic",
        "DuplicateHeaders",
        "IdleTimeout",
        "InvalidPushType",
        "MissingDeviceToken",
        "MissingTopic",
        "PayloadEmpty",
        "TopicDisallowed",
    ],
    403: [
        "BadCertificate",
        "BadCertificateEnvironment",
        "ExpiredProviderToken",
        "Forbidden",
        "InvalidProviderToken",
        "MissingProviderToken",
        "UnrelatedKeyIdInToken",
        "BadEnvironmentKeyIdInToken",
    ],
    404: ["BadPath"],
    405: ["MethodNotAllowed"],
    410: ["ExpiredToken", "Unregistered"],
    413: ["PayloadTooLarge"],
    429: ["TooManyProviderTokenUpdates", "TooManyRequests"],
    500: ["InternalServerError"],
    503: ["ServiceUnavailable", "Shutdown"],
}

HEADERS = {
    "authorization",
    "apns-topic",
    "apns-push-type",
    "apns-priority",
    "apns-expiration",
    "apns-id",
    "apns-collapse-id",
    "content-type",
}
# Ours: what the protocol says about every body.
PAYLOAD = "PayloadNotOfTheProtocol"

ALERT = {"title": "Skald", "body": "Action required"}
CONTENT_APS = {"alert": ALERT, "badge": 1, "sound": "default", "mutable-content": 1, "category": "skald_inbox"}
WAKE_APS = {"alert": ALERT, "badge": 1, "sound": "default", "content-available": 1}


@dataclass
class Apns:
    """An account with one key and one app."""

    key_id: str
    team_id: str
    topic: str
    # PEM.
    public_key: str
    # Registered device tokens; False: the app was deleted.
    devices: dict[str, bool] = field(default_factory=dict)
    # Provider tokens in the order in which they were first presented: token, its iat, and when.
    provider_tokens: list[tuple[str, int, float]] = field(default_factory=list)
    message_ids: set[str] = field(default_factory=set)

    name = "apns"

    def judge(self, request: Request, now: float) -> Accepted:
        """The push, or why it is refused."""
        token = self._device(request)
        if twice := no_duplicates(request):
            raise Refused(400, "DuplicateHeaders", twice)
        self._authorize(request, now)
        self._headers(request, now)
        data = self._payload(request)
        if token not in self.devices:
            raise Refused(400, "BadDeviceToken", "nobody has it", offence=False)
        if not self.devices[token]:
            raise Refused(410, "Unregistered", offence=False, timestamp=int((now - 60) * 1000))
        return Accepted(token, request.header("apns-collapse-id"), data, request.body)

    def accept(self, request: Request) -> Answer:
        return Answer(200, {"apns-id": request.header("apns-id") or str(uuid.uuid4())})

    def refuse(self, refused: Refused) -> Answer:
        body = json.dumps({"reason": refused.reason, **refused.more}).encode()
        return Answer(refused.status, {"apns-id": str(uuid.uuid4()).upper(), **refused.headers}, body)

    def _device(self, request: Request) -> str:
        if request.method != "POST":
            raise Refused(405, "MethodNotAllowed", request.method)
        if request.scheme != "https":
            raise Refused(404, "BadPath", "not https")
        prefix = "/3/device/"
        if not request.path.startswith(prefix):
            raise Refused(404, "BadPath", "not /3/device/TOKEN")
        token = request.path.removeprefix(prefix)
        if not token:
            raise Refused(400, "MissingDeviceToken")
        if not re.fullmatch(r"(?:[0-9a-fA-F]{2}){32,100}", token):
            raise Refused(400, "BadDeviceToken", "no hex text")
        return token

    def _authorize(self, request: Request, now: float) -> None:
        value = request.header("authorization")
        if value is None:
            raise Refused(403, "MissingProviderToken")
        scheme, _, token = value.partition(" ")
        if scheme != "bearer":
            raise Refused(403, "InvalidProviderToken", "authorization: bearer TOKEN")
        try:
            header = jwt.get_unverified_header(token)
            claims = jwt.decode(
                token, self.public_key, algorithms=["ES256"], options={"verify_iat": False, "verify_aud": False}
            )
        except jwt.PyJWTError as error:
            raise Refused(403, "InvalidProviderToken", type(error).__name__) from error
        if header.get("kid") != self.key_id or set(header) - {"typ"} != {"alg", "kid"}:
            raise Refused(403, "InvalidProviderToken", f"header: {header}")
        if header.get("typ", "JWT") != "JWT":
            raise Refused(403, "InvalidProviderToken", "typ")
        if claims.get("iss") != self.team_id or set(claims) != {"iss", "iat"}:
            raise Refused(403, "InvalidProviderToken", f"claims: {sorted(claims)}")
        issued = claims["iat"]
        if type(issued) is not int or issued > now:
            raise Refused(403, "InvalidProviderToken", "iat is in the future, or none")
        if issued < now - OLDEST:
            raise Refused(403, "ExpiredProviderToken")
        # Around the turn of a window a token may be on its way.
        if issued not in {int(at // WINDOW) * WINDOW for at in (now, now - CROSSING)}:
            raise Refused(403, "InvalidProviderToken", "iat is not the start of the current half hour")
        self._update(token, issued, now)

    def _update(self, token: str, issued: int, now: float) -> None:
        """Refuses an account that presents new tokens more often than every 20 minutes."""
        if not self.provider_tokens:
            self.provider_tokens.append((token, issued, now))
            return
        current, current_issued, since = self.provider_tokens[-1]
        if token == current:
            return
        known = any(token == earlier for earlier, _, _ in self.provider_tokens)
        if known and now - since <= CROSSING:
            return
        recent = [at for _, _, at in self.provider_tokens if at > now - UPDATES]
        # Clocks of tests stand where they like in a window: one change is fair at any time, if the tokens themselves
        # are far enough apart.
        if known or issued < current_issued + UPDATES or len(recent) > 1:
            raise Refused(429, "TooManyProviderTokenUpdates")
        self.provider_tokens.append((token, issued, now))

    def _headers(self, request: Request, now: float) -> None:
        topic = request.header("apns-topic")
        if topic is None:
            raise Refused(400, "MissingTopic")
        if topic != self.topic:
            raise Refused(400, "TopicDisallowed", topic)
        if request.header("apns-push-type") != "alert":
            raise Refused(400, "InvalidPushType", str(request.header("apns-push-type")))
        if request.header("apns-priority") != "10":
            raise Refused(400, "BadPriority", str(request.header("apns-priority")))
        expiration = request.header("apns-expiration")
        if expiration is None or not re.fullmatch(r"[1-9][0-9]{9}", expiration):
            raise Refused(400, "BadExpirationDate", str(expiration))
        if abs(int(expiration) - (now + WEEK)) > 60:
            raise Refused(400, "BadExpirationDate", "not in 7 days")
        message = request.header("apns-id")
        if message is None or not re.fullmatch(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", message):
            raise Refused(400, "BadMessageId", str(message))
        if message in self.message_ids:
            raise Refused(400, "BadMessageId", "it had another push before")
        collapse = request.header("apns-collapse-id")
        if collapse is not None and not is_hex(collapse, HEX_16):
            raise Refused(400, "BadCollapseId", collapse)
        kind = request.header("content-type")
        if kind is not None and kind != "application/json":
            raise Refused(400, PAYLOAD, f"content-type: {kind}")
        if name := unexpected(request, HEADERS):
            raise Refused(400, PAYLOAD, f"header {name}")
        self.message_ids.add(message)

    def _payload(self, request: Request) -> dict[str, Any]:
        if not request.body:
            raise Refused(400, "PayloadEmpty")
        if len(request.body) > MAX_BODY:
            raise Refused(413, "PayloadTooLarge", str(len(request.body)))
        try:
            body = parse_json(request.body)
        except ValueError as error:
            raise Refused(400, PAYLOAD, "no JSON") from error
        if not isinstance(body, dict) or set(body) != {"aps", "d"}:
            raise Refused(400, PAYLOAD, "fields")
        if wrong := check_data(body["d"], True):
            raise Refused(400, PAYLOAD, wrong)
        expected = WAKE_APS if "wake" in body["d"] else CONTENT_APS
        # Compared as text: to Python 1 and true are the same.
        if json.dumps(body["aps"], sort_keys=True) != json.dumps(expected, sort_keys=True):
            raise Refused(400, PAYLOAD, "aps")
        return body["d"]
