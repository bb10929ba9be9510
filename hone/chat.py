"""``hone chat``: talk to a model through the gateway."""

from collections.abc import Iterator
from typing import cast

import httpx
from openai import APIConnectionError, APIError, APIStatusError, DefaultHttpxClient, OpenAI
from openai.types.chat import ChatCompletionMessageParam

from core.config.schema import HoneConfig
from core.errors import EngineError, EngineUnavailable, RequestError
from hone.local_keys import read_local_keys


def stream_chat(config: HoneConfig, model: str, messages: list[dict[str, str]], max_tokens: int) -> Iterator[str]:
    """Yield the answer piece by piece, as any OpenAI client would get it."""
    client = OpenAI(
        base_url=f"{config.gateway_url}/v1",
        api_key=read_local_keys(config).admin,
        http_client=DefaultHttpxClient(trust_env=False),
    )
    try:
        stream = client.chat.completions.create(
            model=model,
            messages=cast(list[ChatCompletionMessageParam], messages),
            max_tokens=max_tokens,
            stream=True,
        )
        for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                yield chunk.choices[0].delta.content
    except APIConnectionError as error:
        raise EngineUnavailable(
            f"the gateway at {config.gateway_url} does not answer", hint="start it with 'hone up'"
        ) from error
    except APIStatusError as error:
        raise RequestError(error.message) from error
    except (APIError, httpx.HTTPError) as error:
        raise EngineError(f"the answer broke off: {error}", hint="see the gateway's log, or try again") from error
