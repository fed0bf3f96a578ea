"""A server that answers over HTTP, one flag per sensor: python examples/server.py runs/one [--port 8000]."""

import argparse
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

import equipoise
from equipoise.deploy.recorded import expected
from equipoise.util.errors import BadInput


class Reading(BaseModel):
    """What one sensor gave, as nested lists; `present` is its flag."""

    present: bool = True
    values: Any = None


class Question(BaseModel):
    """One sample, or many; a sensor that is left out is missing."""

    sensors: dict[str, Reading]
    decision: Literal["committee", "fused"] = "committee"


def create_app(run: str) -> FastAPI:
    """Make the application for the model of a finished run."""
    model = equipoise.load(run)
    specs = model.saved.input_specs
    app = FastAPI(title=f"equipoise: {model.saved.row['label']} on {model.saved.row['data']}")

    @app.get("/health")
    def health() -> dict[str, Any]:
        """Tell that it is there, and what it takes and says."""
        sensors = {name: expected(spec) for name, spec in specs.items()}
        return {"status": "ok", "task": model.kind, "names": model.names, "sensors": sensors}

    @app.post("/predict")
    def predict(question: Question) -> dict[str, Any]:
        """Answer; in threads of the server's own, so that requests do not wait for each other to arrive."""
        readings = question.sensors.items()
        return model.predict(
            {name: reading.values if reading.present else None for name, reading in readings}, question.decision
        ).as_dict()

    @app.exception_handler(BadInput)
    def refuse(_: Request, problem: BadInput) -> JSONResponse:
        """Say everything that is wrong with a question, in the words of the package."""
        return JSONResponse({"detail": str(problem)}, status_code=422)

    return app


if __name__ == "__main__":
    import uvicorn

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", help="the folder of a finished run")
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args()
    uvicorn.run(create_app(given.run), host="127.0.0.1", port=given.port)
