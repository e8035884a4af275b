"""Keeps the model up to date over one connection at a time: live events plus regular polls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from replctl.client.aio import AsyncClient
from replctl.client.errors import ReplError
from replctl.client.result import Result
from replctl.top.entities import EvalRow, SessionRow
from replctl.top.model import TopModel
from replctl.top.polling import CONNECTION_FAULTS, PollRequest, PollSteps, identify, poll_broker
from replctl.top.records import Event
from replwire.replies import Reply

SESSIONS_A_ROUND = 5  # sessions polled for jobs and processor time per round
GIVE_UP_SECONDS = 60.0  # time for a broker to come back
_RETRY_SECONDS = 1.0
_EVENTS_PER_TURN = 200  # events before other tasks get a turn
_OUTPUT_BYTES = 65_536  # bytes of an eval's earlier output

clock = time.monotonic


class BrokerFeed:
    """Feeds a broker's events and metrics to the model. `interval` is the time between polls in seconds."""

    def __init__(self, model: TopModel, connect: Callable[[], AsyncClient], interval: float) -> None:
        self.model = model
        self.client: AsyncClient | None = None
        self._connect = connect
        self._since = clock()  # start of the time without a connection
        self._interval = interval

    async def run(self) -> None:
        """Run until cancelled. Raises ReplError if the broker stays away or refuses access."""
        while True:
            try:
                async with self._connect() as client:
                    await self._drive(client, identify(self.model))
                    self.model.on_reconnect(clock() - self._since)
                    self.client = client
                    await self._follow(client)
            except ReplError as error:
                if self.model.connected:
                    self._since = clock()
                self._on_disconnect(error)
                if error.code not in CONNECTION_FAULTS or clock() >= self._since + GIVE_UP_SECONDS:
                    raise
            finally:
                if self.client is not None:
                    self.client, self._since = None, clock()
            await asyncio.sleep(_RETRY_SECONDS)

    def _on_disconnect(self, error: ReplError) -> None:
        self.model.connected = False
        self.model.revision += 1
        why = "the broker ended" if error.code == "shutdown" else error.message
        self.model.warning = f"{why}; reconnecting"

    async def _follow(self, client: AsyncClient) -> None:
        """Follow events and poll until one of the two ends, which is always with an error."""
        tasks = [asyncio.create_task(self._listen(client)), asyncio.create_task(self._poll(client))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            raise ReplError("broker-lost", "the broker ended the subscription")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self, client: AsyncClient) -> None:
        count = 0
        try:
            async for event in client.events(output=True):
                self.model.apply_event(event, clock())
                count += 1
                if count % _EVENTS_PER_TURN == 0:
                    await asyncio.sleep(0)
        except ReplError as error:
            if error.code in CONNECTION_FAULTS or error.code == "unauthorized":
                raise
            self.model.warning = f"no events: {error.message}"
            await asyncio.Event().wait()  # continue with polling only

    async def _poll(self, client: AsyncClient) -> None:
        while True:
            await self._drive(client, poll_broker(self.model, clock, SESSIONS_A_ROUND))
            await asyncio.sleep(self._interval)

    async def _drive(self, client: AsyncClient, steps: PollSteps) -> None:
        """Send the requests one after the other."""
        try:
            ask = next(steps)
            while True:
                ask = steps.send(await self._request(client, ask))
        except StopIteration:
            pass

    @staticmethod
    async def _request(client: AsyncClient, ask: PollRequest) -> Reply | ReplError:
        try:
            return await client.request(ask.op, **ask.fields)
        except ReplError as error:
            if error.code in CONNECTION_FAULTS:
                raise
            if error.retry_after_ms:
                await asyncio.sleep(min(error.retry_after_ms / 1000, GIVE_UP_SECONDS))
            return error

    @staticmethod
    async def _read_output(
        client: AsyncClient, session: SessionRow, job: EvalRow, pieces: list[tuple[str, str]]
    ) -> Result:
        return await client.read(
            session.id,
            job.eval_id,
            max_bytes=_OUTPUT_BYTES,
            on_output=lambda stream, text: pieces.append((stream, text)),
        )

    def earlier_output_of(self, session: SessionRow) -> EvalRow | None:
        """Return the session's last eval if its earlier output has yet to be loaded, else None."""
        known = session.output_known or session.state == "vacant" or self.client is None
        return None if known else self.model.last_job(session.id)

    async def load_earlier_output(self, session: SessionRow, job: EvalRow) -> None:
        """Load an eval's earlier output, once."""
        if session.output_known or self.client is None:
            return
        session.output_known = True
        pieces: list[tuple[str, str]] = []
        try:
            # The reply includes live output that arrived meanwhile, since it came over the same connection.
            result = await self._read_output(self.client, session, job, pieces)
            if result.running and job.key not in self.model.active:  # the end arrived before this reply
                pieces.clear()
                result = await self._read_output(self.client, session, job, pieces)
        except ReplError:
            return  # worker or connection lost: no earlier output
        if (last := self.model.last_job(session.id)) is not None and last.key != job.key:
            return  # another eval has begun and its output is shown
        end: Event | None = None
        if not result.running:
            end = {
                "status": job.end or "ok",
                "value": result.value,
                "traceback": result.traceback,
                "error": result.error,
                "duration-ms": result.duration_ms,
                "state": result.state,
            }
        self.model.update_output(job, pieces, result.dropped_bytes or 0, end)
