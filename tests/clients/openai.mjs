// The official OpenAI client for Node against a running service:
//
//   npm install --no-save --no-package-lock --prefix tests/clients openai
//   node tests/clients/openai.mjs http://127.0.0.1:8000/v1
//
// Says what came, one line a question; the exit status is 1 if any of it is not as the API promises.
import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI({
  baseURL: process.argv[2] ?? "http://127.0.0.1:8000/v1",
  apiKey: process.env.CHAIRLIFT_API_KEY ?? "none",
  maxRetries: 0,
});
const model = (await client.models.list()).data[0].id;
const messages = [{ role: "user", content: "What is the capital of France?" }];
const asked = { model, messages, temperature: 0, seed: 1, max_tokens: 48 };
const place = {
  type: "object",
  properties: { city: { enum: ["Paris", "Rome"] }, days: { type: "integer", minimum: 1, maximum: 9 } },
  required: ["city", "days"],
  additionalProperties: false,
};
const tools = [
  { type: "function", function: { name: "weather", description: "Forecast for a city", parameters: place, strict: true } },
];

const questions = {
  async models() {
    assert.equal((await client.models.retrieve(model)).id, model);
    return model;
  },
  async chat() {
    const answer = await client.chat.completions.create(asked);
    assert.ok(answer.choices[0].message.content && answer.usage.completion_tokens > 0);
    return answer.choices[0].message.content;
  },
  async stream() {
    const whole = await client.chat.completions.create(asked);
    const stream = await client.chat.completions.create({
      ...asked, stream: true, stream_options: { include_usage: true },
    });
    let text = "", chunks = 0, usage;
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta.content ?? "";
      usage = chunk.usage ?? usage;
      chunks += 1;
    }
    assert.equal(text, whole.choices[0].message.content);
    assert.deepEqual(usage.completion_tokens, whole.usage.completion_tokens);
    return `the same text in ${chunks} chunks`;
  },
  async stream_helper() {
    const stream = client.chat.completions.stream(asked);
    let text = "";
    stream.on("content", (delta) => { text += delta; });
    const whole = await stream.finalContent();
    assert.equal(text, whole);
    return "the helper's pieces add up";
  },
  async json_schema() {
    const answer = await client.chat.completions.parse({
      ...asked,
      messages: [{ role: "user", content: "A city and some days, as JSON." }],
      response_format: { type: "json_schema", json_schema: { name: "place", strict: true, schema: place } },
    });
    const value = JSON.parse(answer.choices[0].message.content);
    assert.ok(["Paris", "Rome"].includes(value.city) && value.days >= 1 && value.days <= 9);
    return answer.choices[0].message.content;
  },
  async tool_required() {
    const ask = { ...asked, tools, tool_choice: "required", parallel_tool_calls: false };
    const whole = (await client.chat.completions.create(ask)).choices[0];
    const [call] = whole.message.tool_calls;
    assert.equal(whole.finish_reason, "tool_calls");
    assert.ok(JSON.parse(call.function.arguments).days >= 1);
    const streamed = await client.chat.completions.stream(ask).finalChatCompletion();
    assert.deepEqual(streamed.choices[0].message.tool_calls[0].function.arguments, call.function.arguments);
    const told = await client.chat.completions.create({
      ...asked,
      tools,
      tool_choice: "none",
      messages: [
        ...messages,
        whole.message,
        { role: "tool", tool_call_id: call.id, content: "Sunny, 21 degrees" },
      ],
    });
    assert.equal(told.choices[0].finish_reason === "tool_calls", false);
    return `${call.function.name}(${call.function.arguments})`;
  },
  async tool_runner() {
    const called = [];
    const runner = client.chat.completions.runTools({
      ...asked,
      tool_choice: { type: "function", function: { name: "weather" } },
      tools: [
        {
          type: "function",
          function: {
            ...tools[0].function,
            parse: JSON.parse,
            function: (fields) => { called.push(fields); return "Sunny"; },
          },
        },
      ],
    });
    await runner.done();
    assert.equal(called.length, 1);
    return `called with ${JSON.stringify(called[0])}`;
  },
  async tool_auto_strict() {
    // After turns that called, a small model calls again; of a city that the schema does not have.
    const turn = (city, days) => [
      { role: "user", content: `Weather in ${city}?` },
      {
        role: "assistant", content: null,
        tool_calls: [{ id: city, type: "function", function: { name: "weather", arguments: JSON.stringify({ city, days }) } }],
      },
    ];
    const history = [...turn("Paris", 1), ...turn("Rome", 2), { role: "user", content: "Weather in London?" }];
    const answer = await client.chat.completions.create({ ...asked, messages: history, tools, max_tokens: 200 });
    const { finish_reason: finish, message } = answer.choices[0];
    assert.equal(finish, "tool_calls", `no call was made: ${message.content}`);
    for (const call of message.tool_calls) {
      assert.ok(["Paris", "Rome"].includes(JSON.parse(call.function.arguments).city));
    }
    return message.tool_calls.map((call) => call.function.arguments).join(" ");
  },
  async completion_logprobs() {
    const answer = await client.completions.create({
      model, prompt: "The capital of France is", max_tokens: 4, temperature: 0, logprobs: 2,
    });
    assert.equal(answer.choices[0].logprobs.tokens.length, 4);
    return answer.choices[0].text;
  },
  async abort() {
    const stop = new AbortController();
    const stream = await client.chat.completions.create(
      { ...asked, stream: true, max_tokens: 400, ignore_eos: true }, { signal: stop.signal },
    );
    let chunks = 0;
    for await (const _ of stream) if (++chunks === 3) stop.abort();
    return `${chunks} chunks, then left`;
  },
  async errors() {
    const faults = [
      [{ ...asked, temperature: 9 }, "temperature", 400],
      [{ ...asked, model: "other" }, "model", 404],
      [{ ...asked, tools: [{ type: "function", function: { name: "a b" } }] }, "tools[0].function.name", 400],
      [{ ...asked, response_format: { type: "json_schema", json_schema: { name: "n", schema: { not: {} } } } },
        "response_format.json_schema.schema", 400],
    ];
    for (const [fields, param, status] of faults) {
      const error = await client.chat.completions.create(fields).catch((caught) => caught);
      assert.ok(error instanceof OpenAI.APIError, String(error));
      assert.deepEqual([error.status, error.param], [status, param]);
    }
    const error = await client.chat.completions.create({ ...faults[0][0], stream: true }).catch((caught) => caught);
    assert.equal(error.status, 400);
    return faults.map(([, param]) => param).join(", ");
  },
};

let failed = 0;
for (const [name, ask] of Object.entries(questions)) {
  try {
    console.log(`ok    ${name}: ${(await ask()).replaceAll("\n", " ")}`);
  } catch (error) {
    failed += 1;
    console.log(`FAIL  ${name}: ${error.message}`);
  }
}
process.exit(failed ? 1 : 0);
