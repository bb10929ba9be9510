"""Images in requests, over every API: they reach the engine as they are, and its refusal reaches the client."""

import anthropic
import openai
import pytest
from aiohttp import web

from serving.engines.fake import FakeEngineServer
from serving.engines.fake_shapes import error_body
from tests.gateway_harness import BASE, POLICY, Harness, running_gateway

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
URL = f"data:image/png;base64,{PIXEL}"
PARTS = [
    {"type": "text", "text": "What is this?"},
    {"type": "image_url", "image_url": {"url": URL, "detail": "low"}},
]


class TextOnlyEngine(FakeEngineServer):
    """An engine whose Base sees no images; it says so as vLLM does."""

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(await request.json())
        body = error_body(f"{BASE} is not a multimodal model", type_="BadRequestError", code=400, param=None)
        return web.json_response(body, status=400)


@pytest.fixture
async def harness(fresh_sqlite_url, open_store, make_config):
    """A gateway before an engine that sees no images."""
    async with running_gateway(await open_store(fresh_sqlite_url), make_config) as harness:
        harness.engines["dep_a"] = TextOnlyEngine(base_name=BASE)
        await harness.engine.start()
        await harness.deploy("dep_a")
        yield harness


async def test_chat_completions_pass_an_image_and_its_refusal(harness: Harness):
    """The message reaches the engine unchanged, and the client gets a 400 in OpenAI's shape that says why."""
    with pytest.raises(openai.BadRequestError) as refused:
        await harness.client().chat.completions.create(
            model=POLICY, messages=[{"role": "user", "content": PARTS}], max_tokens=4
        )
    assert harness.engine.requests[-1]["messages"] == [{"role": "user", "content": PARTS}]
    assert refused.value.type == "invalid_request_error"
    assert "is not a multimodal model" in refused.value.message


async def test_responses_pass_an_image_and_its_refusal(harness: Harness):
    """An ``input_image`` becomes the engine's image part."""
    content = [
        {"type": "input_text", "text": "What is this?"},
        {"type": "input_image", "image_url": URL, "detail": "low"},
    ]
    with pytest.raises(openai.BadRequestError) as refused:
        await harness.client().responses.create(model=POLICY, input=[{"role": "user", "content": content}])
    assert harness.engine.requests[-1]["messages"] == [{"role": "user", "content": PARTS}]
    assert "is not a multimodal model" in refused.value.message


async def test_messages_pass_an_image_and_its_refusal(harness: Harness):
    """A base64 image block becomes the engine's image part, and the refusal has Anthropic's shape."""
    source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    content = [{"type": "text", "text": "What is this?"}, {"type": "image", "source": source}]
    client = anthropic.AsyncAnthropic(base_url=harness.url, api_key=harness.keys["user"], max_retries=0)
    with pytest.raises(anthropic.BadRequestError) as refused:
        await client.messages.create(model=POLICY, messages=[{"role": "user", "content": content}], max_tokens=4)
    seen = harness.engine.requests[-1]["messages"][-1]["content"]
    assert seen[0] == PARTS[0] and seen[1]["image_url"]["url"] == URL
    assert refused.value.body["error"]["type"] == "invalid_request_error"
    assert "is not a multimodal model" in refused.value.body["error"]["message"]
