// The OpenAI SDK for JavaScript, as applications use it. One JSON line on stdout per scenario.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { VERSION } from "openai/version";

const setting = JSON.parse(process.env.HONE_CLIENT_TEST);
const question = "What is the weather in Ulm?";
const asked = [{ role: "user", content: question }];
const short = { max_tokens: 12, temperature: 0 };
const weather = { Ulm: "rain", Bonn: "sun" };
const parameters = {
  type: "object",
  properties: { city: { type: "string", enum: ["Ulm", "Bonn"] } },
  required: ["city"],
  additionalProperties: false,
};

const scenarios = {
  async create(client, model) {
    const { data, response } = await client.chat.completions.create({ model, messages: asked, ...short }).withResponse();
    assert.ok(data.choices[0].message.content);
    assert.equal(data.usage.completion_tokens, 12);
    assert.ok(response.headers.get("x-hone-turn-id"));
    return [1, "chat.completions"];
  },

  async stream(client, model) {
    const pieces = [];
    const stream = await client.chat.completions.create({ model, messages: asked, stream: true, ...short });
    for await (const chunk of stream) pieces.push(chunk.choices[0].delta.content ?? "");
    assert.ok(pieces.filter(Boolean).length > 4);
    return [1, "chat.completions"];
  },

  async stream_helper(client, model) {
    let text = "";
    const stream = client.chat.completions.stream({ model, messages: asked, ...short });
    stream.on("content", (delta) => { text += delta; });
    assert.equal(text || (await stream.finalContent()), await stream.finalContent());
    assert.equal((await stream.finalChatCompletion()).choices[0].finish_reason, "length");
    return [1, "chat.completions"];
  },

  async tools(client, model) {
    const tools = [{ type: "function", function: { name: "weather", parameters, strict: true } }];
    const first = await client.chat.completions.create({
      model, messages: asked, tools, tool_choice: "required", max_tokens: 64, temperature: 0,
    });
    const message = first.choices[0].message;
    const call = message.tool_calls[0];
    const content = weather[JSON.parse(call.function.arguments).city];
    assert.ok(content);
    const second = await client.chat.completions.create({
      model, tools, tool_choice: "none", ...short,
      messages: [...asked, message, { role: "tool", tool_call_id: call.id, content }],
    });
    assert.ok(second.choices[0].message.content);
    return [2, "chat.completions"];
  },

  async parse(client, model) {
    const answer = await client.chat.completions.parse({
      model, messages: asked, max_tokens: 64, temperature: 0,
      response_format: { type: "json_schema", json_schema: { name: "answer", strict: true, schema: parameters } },
    });
    assert.ok(JSON.parse(answer.choices[0].message.content).city in weather);
    return [1, "chat.completions"];
  },

  async responses(client, model) {
    const answer = await client.responses.create({ model, input: question, max_output_tokens: 16, temperature: 0 });
    assert.ok(answer.output_text);
    const kinds = [];
    const stream = await client.responses.create({
      model, input: question, max_output_tokens: 16, temperature: 0, stream: true, previous_response_id: answer.id,
    });
    for await (const event of stream) kinds.push(event.type);
    assert.equal(kinds[0], "response.created");
    assert.ok(kinds.includes("response.output_text.delta"));
    return [2, "responses"];
  },

  async aborted(client, model) {
    const stream = await client.chat.completions.create({
      model, messages: asked, stream: true, max_tokens: 200, temperature: 0,
    });
    for await (const chunk of stream) if (chunk.choices[0].delta.content) break;
    assert.ok(stream.controller.signal.aborted);
    return [1, "chat.completions"];
  },

  async errors(client) {
    await assert.rejects(client.chat.completions.create({ model: "no-such-model", messages: asked }), OpenAI.NotFoundError);
    return [0, "chat.completions"];
  },
};

for (const [scenario, run] of Object.entries(scenarios)) {
  if (!(scenario in setting.keys)) continue;
  const line = { scenario, package: "openai (Node.js)", version: VERSION };
  const started = performance.now();
  try {
    const client = new OpenAI({ baseURL: `${setting.url}/v1`, apiKey: setting.keys[scenario], maxRetries: 0 });
    const [calls, surface] = await run(client, setting.model);
    Object.assign(line, { ok: true, calls, surface });
  } catch (error) {
    Object.assign(line, { ok: false, error: String(error.stack ?? error) });
  }
  line.seconds = Math.round((performance.now() - started) / 100) / 10;
  console.log(JSON.stringify(line));
}
