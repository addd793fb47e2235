"""How a test asks and tells: a TCP port of this machine, one JSON object a line in each direction, an answer for each."""

import asyncio
import json
import secrets
from typing import Any

from .record import Order, Record
from .webpush import Subscription


class Control:
    """See `do_…` for what can be asked."""

    def __init__(self, record: Record):
        self.record = record

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                try:
                    question = json.loads(line)
                    answer = await getattr(self, f"do_{question.pop('do')}")(**question)
                except Exception as error:  # noqa: BLE001: the test is to see it
                    answer = {"error": f"{type(error).__name__}: {error}"}
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def do_device(self, service: str, host: str = "updates.push.services.mozilla.com", keys: bool = True) -> Any:
        """A new device: its token, for the browsers' a subscription, without `keys` only its endpoint."""
        known = self.record.services[service]
        if service == "web":
            subscription = Subscription.make(host, keys)
            known.subscriptions[subscription.endpoint] = subscription
            return {"token": subscription.to_json() if keys else subscription.endpoint, "name": subscription.endpoint}
        token = secrets.token_hex(32) if service == "apns" else f"{secrets.token_urlsafe(16)}:APA91{secrets.token_hex(64)}"
        known.devices[token] = True
        return {"token": token, "name": token}

    async def do_uninstall(self, service: str, name: str) -> Any:
        """The app was deleted there."""
        known = self.record.services[service]
        if service == "web":
            known.subscriptions[name].alive = False
        else:
            known.devices[name] = False
        return {}

    async def do_order(self, service: str, token: str | None = None, times: int | None = 1, **answer: Any) -> Any:
        """What correct requests are answered next; see `Order`."""
        self.record.orders.append(Order(service, token, times, **answer))
        return {}

    async def do_withdraw(self, token: str | None = None) -> Any:
        """No order stands any more, or none for this device."""
        self.record.orders[:] = [order for order in self.record.orders if token not in (None, order.token)]
        return {}

    async def do_release(self) -> Any:
        """Whatever is held is answered, and what comes to be held is not."""
        self.record.released.set()
        return {}

    async def do_entries(self, at_least: int = 0, **of: Any) -> Any:
        """What has come, of those with these fields (`service`, `token`, …), once there are so many."""

        def found() -> list[dict[str, Any]]:
            return [entry for entry in self.record.entries if all(entry.get(name) == of[name] for name in of)]

        async with self.record.changed:
            await self.record.changed.wait_for(lambda: len(found()) >= at_least)
            return found()

    async def do_offences(self) -> Any:
        """What no correct client would have sent."""
        return self.record.offences

    async def do_provider_tokens(self) -> Any:
        """How many different tokens the relay has presented to Apple's."""
        return len(self.record.services["apns"].provider_tokens)

    async def do_access(self, lifetime: int | None = None, expire: bool = False) -> Any:
        """How many access tokens were given out. `lifetime` of further ones, seconds; `expire`: none is valid any more."""
        tokens = self.record.services["token"]
        if lifetime is not None:
            tokens.lifetime = lifetime
        if expire:
            for access in tokens.given.values():
                access.expires = 0
        return len(tokens.given)

    async def do_credentials(self) -> Any:
        """Every token that the relay has authorized itself by."""
        services = self.record.services
        return [*services["token"].given, *(token for token, _, _ in services["apns"].provider_tokens)]

    async def do_ahead(self, seconds: float) -> Any:
        """The services' clock is so far ahead of the machine's."""
        self.record.ahead = seconds
        return {}
