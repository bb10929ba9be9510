"""The plain pass-through that people write first: FastAPI and httpx, no parsing, nothing kept."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Hold one client for all requests."""
    limits = httpx.Limits(max_connections=1000, max_keepalive_connections=1000)
    async with httpx.AsyncClient(base_url=os.environ["UPSTREAM"], limits=limits, timeout=60) as client:
        app.state.client = client
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/health")
async def health() -> dict[str, str]:
    """Answer probes."""
    return {}


@app.post("/v1/chat/completions")
async def chat(request: Request) -> Response:
    """Pass the request on, and the answer back as it comes."""
    client: httpx.AsyncClient = request.app.state.client
    outgoing = client.build_request(
        "POST",
        "/v1/chat/completions",
        content=await request.body(),
        headers={"content-type": "application/json", "authorization": request.headers.get("authorization", "")},
    )
    answer = await client.send(outgoing, stream=True)
    kind = answer.headers.get("content-type", "application/json")
    if not kind.startswith("text/event-stream"):
        body = await answer.aread()
        await answer.aclose()
        return Response(body, status_code=answer.status_code, media_type=kind)

    async def events() -> AsyncIterator[bytes]:
        try:
            async for data in answer.aiter_raw():
                yield data
        finally:
            await answer.aclose()

    return StreamingResponse(events(), status_code=answer.status_code, media_type=kind)
