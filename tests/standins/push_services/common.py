"""What the services have in common: requests, answers, refusals, and the shapes of what the push protocol carries."""

import base64
import binascii
import json
import re
from dataclasses import dataclass, field
from typing import Any

# Longest base64 text of a sealed message that travels along.
MAX_CONTENT = 3500
# Longest body that any of the services takes, bytes.
MAX_BODY = 4096
WEEK = 7 * 24 * 3600

HEX_32 = re.compile(r"[0-9a-f]{64}")
HEX_16 = re.compile(r"[0-9a-f]{32}")
HEX_12 = re.compile(r"[0-9a-f]{24}")


@dataclass
class Request:
    """A request as it arrived. Names of headers in lower case; HTTP/2's pseudo headers are the fields."""

    method: str
    scheme: str
    host: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        """The only header of this name."""
        values = [value for key, value in self.headers if key == name]
        return values[0] if len(values) == 1 else None


@dataclass
class Answer:
    """What the service says."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class Refused(Exception):
    """The service says no. `offence`: no correct client would have asked."""

    def __init__(self, status: int, reason: str, detail: str = "", *, offence: bool = True, headers=None, **more: Any):
        super().__init__(f"{status} {reason}: {detail}")
        self.status = status
        self.reason = reason
        self.detail = detail
        self.offence = offence
        self.headers = headers or {}
        self.more = more


@dataclass
class Accepted:
    """A correct push: whom it is for, and what it says."""

    token: str
    collapse: str | None
    # The object with `ns`, and `from`, `n`, `c` or `wake`.
    data: dict[str, Any]
    # What an app's notification part is handed.
    delivered: bytes


def parse_json(body: bytes) -> Any:
    """JSON without duplicate names and without numbers that JSON does not have."""

    def pairs(items):
        names = [name for name, _ in items]
        if len(set(names)) != len(names):
            raise ValueError("a name twice")
        return dict(items)

    def constant(name):
        raise ValueError(name)

    return json.loads(body.decode("utf-8"), object_pairs_hook=pairs, parse_constant=constant)


def no_duplicates(request: Request) -> str | None:
    """A header that is there twice."""
    names = [name for name, _ in request.headers]
    return next((name for name in names if names.count(name) > 1), None)


# What HTTP itself and the way to the stand-in add.
TRANSPORT = {"host", "content-length", "transfer-encoding", "accept-encoding", "accept", "user-agent", "connection"}


def unexpected(request: Request, known: set[str]) -> str | None:
    """A header that nobody has asked for: what else would the client tell the service?"""
    return next((name for name, _ in request.headers if name not in known | TRANSPORT), None)


def check_data(data: Any, wake: Any, sender: str = "from") -> str | None:
    """What is wrong with the object that every push carries; `wake`: the mark of one that carries no message."""
    if not isinstance(data, dict):
        return "no object"
    if not is_hex(data.get("ns"), HEX_32):
        return "ns"
    if "wake" in data:
        if set(data) != {"ns", "wake"}:
            return f"fields of a wake push: {sorted(data)}"
        return None if data["wake"] == wake and type(data["wake"]) is type(wake) else "wake"
    if set(data) != {"ns", sender, "n", "c"}:
        return f"fields: {sorted(data)}"
    if not is_hex(data[sender], HEX_32):
        return sender
    if not is_hex(data["n"], HEX_12):
        return "n"
    return check_ciphertext(data["c"])


def check_ciphertext(text: Any) -> str | None:
    if not isinstance(text, str) or len(text) > MAX_CONTENT:
        return "c: too long to travel along"
    try:
        sealed = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return "c: no base64"
    if base64.b64encode(sealed).decode() != text:
        return "c: not canonical"
    # A seal ends in a tag of 16 bytes.
    return None if len(sealed) > 16 else "c: too short for a seal"


def is_hex(value: Any, shape: re.Pattern) -> bool:
    return isinstance(value, str) and shape.fullmatch(value) is not None


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
