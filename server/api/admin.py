"""What an operator changes while the server runs: /admin/tables. Needs the admin key."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.responses import Response

from engram_core.errors import EngramError, StateError
from server.load_errors import LoadError
from server.runtime import Runtime
from server.wire.answers import dump
from server.wire.errors import ApiError, validation_error

router = APIRouter()


class TablesBody(BaseModel):
    """Which artefact to serve from now on."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(min_length=1, max_length=255)


@router.post(
    "/admin/tables",
    summary="Serve another memory from now on",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": TablesBody.model_json_schema()}},
        }
    },
)
async def tables(request: Request) -> Response:
    """Load an artefact of --engram-dir, verify it, and let new requests read it.

    Answers when that is done; requests that run keep the memory they began with.
    """
    runtime: Runtime = request.app.state.runtime
    runtime.require_backend()
    name = _read_name(await request.body())
    before = runtime.memory_id
    try:
        after = await asyncio.to_thread(runtime.swap_memory, name)
    except StateError as error:
        raise ApiError(409, "conflict", str(error)) from None
    except (EngramError, LoadError) as error:
        raise validation_error(str(error)) from None
    answer = {"artefact": name, "memory": after, "previous": before}
    return Response(dump(answer), media_type="application/json")


def _read_name(body: bytes) -> str:
    try:
        return TablesBody.model_validate_json(body).name
    except ValidationError:
        raise validation_error(
            'the body must be {"name": "..."}, the name of an artefact inside --engram-dir'
        ) from None
