"""The template of the demo's Base: conversations without tools as the model knows them, and tools beside."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from serving.launch import DEMO_CHAT_TEMPLATE

OWN = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""SmolLM2's own template, as its tokenizer carries it."""
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Ulm"}}}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}

messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": st.text()})
)


def render(template: str, conversation: list[dict[str, Any]], **fields: Any) -> str:
    """As Hugging Face's tokenizers render."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(template).render(messages=conversation, **fields)


@given(conversation=messages, opening=st.booleans())
def test_without_tools_nothing_changes(conversation, opening):
    """What is trained and what is served stay the same text: the template is the model's own where no tool is."""
    ours = render(DEMO_CHAT_TEMPLATE.read_text(), conversation, add_generation_prompt=opening)
    assert ours == render(OWN, conversation, add_generation_prompt=opening)


@pytest.mark.parametrize("content", [None, "", "I look."])
def test_tools_their_calls_and_results_are_written(content):
    """The signatures stand in the system message, and calls and results in the places where parsers look."""
    conversation = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": content, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]
    text = render(DEMO_CHAT_TEMPLATE.read_text(), conversation, tools=[TOOL], add_generation_prompt=True)
    system, user, call, result, opening = text.split("<|im_start|>")[1:]
    assert system.startswith("system\nYou are") and '{"name": "weather", "parameters"' in system
    assert user == "user\nWeather?<|im_end|>\n"
    assert call.startswith(f"assistant\n{content or ''}") and '"arguments": {"city": "Ulm"}}\n</tool_call>' in call
    assert result == "user\n<tool_response>\nrain\n</tool_response><|im_end|>\n"
    assert opening == "assistant\n"
