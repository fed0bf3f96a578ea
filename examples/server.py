"""A server that answers over HTTP, one flag per sensor: python examples/server.py runs/one [--port 8000]."""

import argparse
import asyncio
from typing import Any, Literal

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

import equipoise
from equipoise.deploy.recorded import expected
from equipoise.util.errors import BadInput, unknown_name

MOST = 8 * 2**20  # bytes of a question
SAMPLES = 10_000  # of a question
SECONDS = 10.0  # in which the head of a request has to be there, and then its body


class Reading(BaseModel):
    """What one sensor gave, as nested lists; `present` or `valid`, as the exported graph calls it, is its flag."""

    model_config = ConfigDict(extra="forbid")
    present: bool = True
    valid: bool = True
    values: Any = None


class Question(BaseModel):
    """One sample, or many; a sensor that is left out is missing."""

    model_config = ConfigDict(extra="forbid")
    sensors: dict[str, Reading]
    decision: Literal["committee", "fused"] = "committee"


class Limited:
    """Reads a question whole before the application sees it: so many bytes at most, in so many seconds."""

    def __init__(self, app: ASGIApp, most: int, seconds: float) -> None:
        self.app, self.most, self.seconds = app, most, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read, and pass it on or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            body, size = await asyncio.wait_for(self._read(receive), self.seconds)
        except asyncio.TimeoutError:
            await _refusal(408, f"expected a question within {self.seconds:g} s")(scope, receive, send)
            return
        if size > self.most:
            told = f"expected a question of at most {self.most:,} bytes, found {size:,}"
            await _refusal(413, told)(scope, receive, send)
            return
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def again() -> Message:
            return messages.pop() if messages else await receive()

        await self.app(scope, again, send)

    async def _read(self, receive: Receive) -> tuple[bytes, int]:
        """Read a body to its end, so that the client listens again, and keep no more than is allowed."""
        parts, size, more = list[bytes](), 0, True
        while more:
            message = await receive()
            part = message.get("body", b"")
            size, more = size + len(part), message.get("more_body", False)
            if size <= self.most:
                parts.append(part)
        return b"".join(parts), size


class Impatient(H11Protocol):
    """Hangs up on clients that do not send the head of a request in time, however slowly they go on sending it."""

    seconds = SECONDS

    def connection_made(self, transport: Any) -> None:
        """Wait for the first request."""
        super().connection_made(transport)
        self._wait(None)

    def on_response_complete(self) -> None:
        """Wait for the next one."""
        self._wait(self.cycle)
        super().on_response_complete()

    def _wait(self, before: Any) -> None:
        self.loop.call_later(self.seconds, lambda: self.transport.close() if self.cycle is before else None)


def create_app(run: str, *, most: int = MOST, seconds: float = SECONDS) -> FastAPI:
    """Make the application for the model of a finished run."""
    model = equipoise.load(run)
    specs = model.saved.input_specs
    app = FastAPI(title=f"equipoise: {model.saved.row['label']} on {model.saved.row['data']}")
    app.add_middleware(Limited, most=most, seconds=seconds)

    @app.get("/health")
    def health() -> dict[str, Any]:
        """Tell that it is there, and what it takes and says."""
        sensors = {name: expected(spec) for name, spec in specs.items()}
        return {"status": "ok", "task": model.kind, "names": model.names, "sensors": sensors}

    @app.post("/predict")
    def predict(question: Question) -> dict[str, Any]:
        """Answer; in threads of the server's own, so that requests do not wait for each other to arrive."""
        readings = question.sensors.items()
        given = {name: reading.values if reading.present and reading.valid else None for name, reading in readings}
        return model.predict(given, question.decision, most=SAMPLES).as_dict()

    @app.exception_handler(BadInput)
    def refuse(_: Request, problem: BadInput) -> JSONResponse:
        """Say everything that is wrong with a question, in the words of the package."""
        return JSONResponse({"detail": str(problem)}, status_code=422)

    @app.exception_handler(RequestValidationError)
    def correct(_: Request, problem: RequestValidationError) -> JSONResponse:
        """Say what is wrong with the form of a question, without repeating it."""
        return JSONResponse({"detail": "\n".join(map(_problem, problem.errors()))}, status_code=422)

    return app


def _refusal(status: int, told: str) -> JSONResponse:
    return JSONResponse({"detail": told}, status_code=status, headers={"connection": "close"})


def _problem(error: dict[str, Any]) -> str:
    place = [str(part) for part in error["loc"][1:]]
    if error["type"] == "extra_forbidden":
        known = (Reading if place[0] == "sensors" else Question).model_fields
        return f"{'.'.join(place[:-1]) or 'question'}: unknown key: {unknown_name(place[-1], known)}"
    hint = "" if place else '; expected {"sensors": {…}}, with the header content-type: application/json'
    return f"{'.'.join(place) or 'question'}: {error['msg']}{hint}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", help="the folder of a finished run")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--most", type=int, default=MOST, help="bytes of a question")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="in which a question has to arrive")
    given = parser.parse_args()
    Impatient.seconds = given.seconds
    app = create_app(given.run, most=given.most, seconds=given.seconds)
    uvicorn.run(app, host="127.0.0.1", port=given.port, http=Impatient, timeout_graceful_shutdown=5)
