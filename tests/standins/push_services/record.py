"""What came, what of it no correct client would have sent, and what is to be answered next."""

import asyncio
import base64
import time
from dataclasses import dataclass, field
from typing import Any

from .apns import Apns
from .common import Accepted, Answer, Refused, Request
from .fcm import Fcm, TokenEndpoint
from .webpush import WebPush

Service = Apns | Fcm | TokenEndpoint | WebPush


@dataclass
class Order:
    """An answer that a test has ordered, for correct requests."""

    service: str
    # Only for this device.
    token: str | None
    # How many times; None for always.
    times: int | None
    # An HTTP status, with a reason in the service's words, or a body as it is.
    status: int | None = None
    reason: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: str | None = None
    more: dict[str, Any] = field(default_factory=dict)
    # The answer waits until it is released.
    hold: bool = False
    # The connection is closed: before the answer, or in the middle of it.
    drop: str | None = None
    # Bytes that are no HTTP.
    garbage: bool = False


@dataclass
class Reply:
    """What to do with a request."""

    answer: Answer
    drop: str | None = None
    garbage: bool = False


@dataclass
class Record:
    """Everything of one run."""

    services: dict[str, Service]
    entries: list[dict[str, Any]] = field(default_factory=list)
    offences: list[str] = field(default_factory=list)
    orders: list[Order] = field(default_factory=list)
    # Seconds by which the services' clock is ahead of the machine's.
    ahead: float = 0
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    released: asyncio.Event = field(default_factory=asyncio.Event)

    def now(self) -> float:
        return time.time() + self.ahead

    async def offend(self, what: str) -> None:
        async with self.changed:
            self.offences.append(what)
            self.changed.notify_all()

    async def handle(self, service: Service, request: Request) -> Reply:
        """The answer to a request; it is noted as soon as it is understood, however late it is answered."""
        now = self.now()
        entry: dict[str, Any] = {"service": service.name, "at": now, "headers": dict(request.headers)}
        order = None
        try:
            accepted = service.judge(request, now)
            order = self._order(service, accepted)
            entry |= self._describe(accepted)
        except Refused as refused:
            answer = service.refuse(refused)
            entry |= {"refused": refused.reason, "detail": refused.detail}
            if refused.offence:
                await self.offend(f"{service.name}: {refused}")
        else:
            answer = self._accept(service, request, now) if order is None or order.status is None else None
            if answer is None:
                answer = ordered(service, order)
        reply = Reply(answer) if order is None else Reply(answer, order.drop, order.garbage)
        entry["status"] = 0 if reply.drop or reply.garbage else answer.status
        async with self.changed:
            entry["n"] = len(self.entries)
            self.entries.append(entry)
            self.changed.notify_all()
        if order is not None and order.hold:
            await self.released.wait()
        return reply

    @staticmethod
    def _describe(accepted: Accepted) -> dict[str, Any]:
        return {
            "token": accepted.token,
            "collapse": accepted.collapse,
            "data": accepted.data,
            "delivered": base64.b64encode(accepted.delivered).decode(),
        }

    def _order(self, service: Service, accepted: Accepted) -> Order | None:
        for order in self.orders:
            if order.service == service.name and order.token in (None, accepted.token):
                if order.times is not None:
                    order.times -= 1
                    if order.times == 0:
                        self.orders.remove(order)
                return order
        return None

    @staticmethod
    def _accept(service: Service, request: Request, now: float) -> Answer:
        return service.accept(request, now) if isinstance(service, TokenEndpoint) else service.accept(request)


def ordered(service: Service, order: Order) -> Answer:
    """An answer as the service would give it."""
    if order.body is not None:
        return Answer(order.status, order.headers, order.body.encode())
    return service.refuse(Refused(order.status, order.reason, "ordered", headers=order.headers, **order.more))
