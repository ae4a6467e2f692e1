// Two turns with a tool through each client that is installed, against the server at BASE (its address without a path).
//
// usage: node clients.mjs BASE MODEL NAME...
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const [base, model, ...names] = process.argv.slice(2);
const ask = "How is the weather?";
const city = { type: "object", properties: { city: { enum: ["Bern", "Rome"] } }, required: ["city"], additionalProperties: false };
const check = (found) => {
  if (found !== "Bern" && found !== "Rome") throw new Error(`the city is ${found}`);
};

async function ai(make) {
  const { generateText, streamText, generateObject, tool, jsonSchema, embedMany } = await import("ai");
  const tools = { weather: tool({ description: "Tells the weather.", inputSchema: jsonSchema(city) }) };
  const chat = await make();
  const one = await generateText({ model: chat, tools, toolChoice: "required", maxOutputTokens: 200, prompt: ask });
  const call = one.toolCalls[0];
  check(call.input.city);
  const result = { type: "tool-result", toolCallId: call.toolCallId, toolName: "weather", output: { type: "text", value: "wet" } };
  const only = one.response.messages.map((message) => ({ ...message, content: Array.isArray(message.content) ? message.content.filter((part) => part.type !== "tool-call" || part.toolCallId === call.toolCallId) : message.content }));
  const messages = [{ role: "user", content: ask }, ...only, { role: "tool", content: [result] }];
  const two = streamText({ model: chat, tools, maxOutputTokens: 20, messages, onError: ({ error }) => { throw error; } });
  if (!(await two.text)) throw new Error("no text");
  const object = await generateObject({ model: chat, schema: jsonSchema(city), maxOutputTokens: 60, prompt: ask });
  check(object.object.city);
  return "two turns with a tool, the second streamed; an object by a schema";
}

const clients = {
  "@ai-sdk/openai": () => ai(async () => {
    const { createOpenAI } = await import("@ai-sdk/openai");
    return createOpenAI({ baseURL: `${base}/v1`, apiKey: "none" }).chat(model);
  }),
  "@ai-sdk/openai (Responses)": () => ai(async () => {
    const { createOpenAI } = await import("@ai-sdk/openai");
    const { wrapLanguageModel, defaultSettingsMiddleware } = await import("ai");
    const responses = createOpenAI({ baseURL: `${base}/v1`, apiKey: "none" }).responses(model);
    return wrapLanguageModel({ model: responses, middleware: defaultSettingsMiddleware({ settings: { providerOptions: { openai: { store: false } } } }) });
  }),
  "@ai-sdk/openai-compatible": () => ai(async () => {
    const { createOpenAICompatible } = await import("@ai-sdk/openai-compatible");
    return createOpenAICompatible({ name: "local", baseURL: `${base}/v1`, supportsStructuredOutputs: true })(model);
  }),
  "@ai-sdk/anthropic": () => ai(async () => {
    const { createAnthropic } = await import("@ai-sdk/anthropic");
    return createAnthropic({ baseURL: `${base}/v1`, apiKey: "none" })(model);
  }),
  openai: async () => {
    const { default: OpenAI } = await import("openai");
    const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: "none" });
    const tools = [{ type: "function", function: { name: "weather", parameters: city } }];
    const messages = [{ role: "user", content: ask }];
    const one = await client.chat.completions.create({ model, messages, tools, tool_choice: "required", parallel_tool_calls: false });
    const call = one.choices[0].message.tool_calls[0];
    check(JSON.parse(call.function.arguments).city);
    messages.push(one.choices[0].message, { role: "tool", tool_call_id: call.id, content: "wet" });
    const two = await client.chat.completions.create({ model, messages, tools, max_tokens: 20 });
    if (!two.choices[0].message.content) throw new Error("no text");
    return "two turns with a tool";
  },
  "@anthropic-ai/sdk": async () => {
    const { default: Anthropic } = await import("@anthropic-ai/sdk");
    const client = new Anthropic({ baseURL: base, apiKey: "none" });
    const tools = [{ name: "weather", input_schema: city }];
    const messages = [{ role: "user", content: ask }];
    const one = await client.messages.create({ model, max_tokens: 60, messages, tools, tool_choice: { type: "any", disable_parallel_tool_use: true } });
    const use = one.content.find((block) => block.type === "tool_use");
    check(use.input.city);
    messages.push({ role: "assistant", content: one.content }, { role: "user", content: [{ type: "tool_result", tool_use_id: use.id, content: "wet" }] });
    const two = await client.messages.stream({ model, max_tokens: 20, messages, tools }).finalMessage();
    if (two.content.length === 0) throw new Error("no text");
    return "two turns with a tool, the second streamed";
  },
  ollama: async () => {
    const { Ollama } = await import("ollama");
    const client = new Ollama({ host: base });
    const formed = await client.chat({ model, messages: [{ role: "user", content: ask }], format: city });
    check(JSON.parse(formed.message.content).city);
    const messages = [{ role: "user", content: ask }, { role: "assistant", content: "", tool_calls: [{ function: { name: "weather", arguments: { city: "Bern" } } }] }, { role: "tool", tool_name: "weather", content: "wet" }];
    let text = "";
    for await (const part of await client.chat({ model, messages, stream: true, options: { num_predict: 20 } })) text += part.message.content;
    if (!text) throw new Error("no text");
    const embedded = await client.embed({ model, input: ["a", "b"] });
    if (embedded.embeddings.length !== 2) throw new Error("no embeddings");
    await client.list();
    await client.show({ model });
    return "a format by schema, a turn with a tool's result (streamed), embed, list, show";
  },
  "@langchain/openai": async () => {
    const { ChatOpenAI } = await import("@langchain/openai");
    const { HumanMessage, ToolMessage } = await import("@langchain/core/messages");
    const chat = new ChatOpenAI({ model, apiKey: "none", configuration: { baseURL: `${base}/v1` }, maxTokens: 60 });
    const tools = [{ type: "function", function: { name: "weather", parameters: city } }];
    const one = await chat.bindTools(tools, { tool_choice: "required", parallel_tool_calls: false }).invoke([new HumanMessage(ask)]);
    check(one.tool_calls[0].args.city);
    const two = await chat.bindTools(tools).invoke([new HumanMessage(ask), one, new ToolMessage({ content: "wet", tool_call_id: one.tool_calls[0].id })]);
    if (!two.content) throw new Error("no text");
    return "two turns with a tool";
  },
};

for (const name of names.length > 0 ? names : Object.keys(clients)) {
  const package_ = name.split(" ")[0];
  const { version } = JSON.parse(readFileSync(`node_modules/${package_}/package.json`));
  let did;
  try {
    did = await clients[name]();
  } catch (error) {
    did = `FAILED: ${error.name}: ${String(error.message).slice(0, 300)}`;
  }
  console.log(`${name} | ${version} | ${did}`);
}
