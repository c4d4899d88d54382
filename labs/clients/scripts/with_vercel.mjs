import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

// The packages are in another folder than this file.
const require = createRequire(process.env.NPM + "/package.json");
const load = (name) => import(pathToFileURL(require.resolve(name)).href);
const { generateText, streamText, generateObject, tool, stepCountIs } = await load("ai");
const { createOpenAI } = await load("@ai-sdk/openai");
const { createAnthropic } = await load("@ai-sdk/anthropic");
const { createGoogleGenerativeAI } = await load("@ai-sdk/google");
const { z } = await load("zod");

const base = process.env.GATEWAY;
const openai = createOpenAI({ baseURL: `${base}/v1`, apiKey: "any" });
const anthropic = createAnthropic({ baseURL: `${base}/v1`, apiKey: "any" });
const google = createGoogleGenerativeAI({ baseURL: `${base}/v1beta`, apiKey: "any" });
const models = {
  "Vercel AI SDK, Responses": openai("gpt-5.2"),
  "Vercel AI SDK, Chat Completions": openai.chat("gpt-5.2"),
  "Vercel AI SDK, Anthropic": anthropic("claude-opus-4-6"),
  "Vercel AI SDK, Google": google("gemini-2.5-pro"),
};
const hello = "Hello from the model.";
const tools = {
  look_up: tool({
    description: "Look a code up.",
    inputSchema: z.object({ key: z.string() }),
    execute: async () => "code-4711",
  }),
};
const tasks = {
  text: [hello, async (model) => (await generateText({ model, prompt: "Say hello.", maxRetries: 0 })).text],
  stream: [hello, async (model) => {
    let said = "", failure;
    const result = streamText({ model, prompt: "Say hello.", maxRetries: 0, onError: ({ error }) => { failure = error; } });
    for await (const piece of result.textStream) said += piece;
    if (failure) throw failure;
    return said;
  }],
  tool: ["The tool said: code-4711", async (model) => (await generateText({
    model, prompt: "Look the code up.", tools, stopWhen: stepCountIs(3), maxRetries: 0,
  })).text],
  schema: ["x 1", async (model) => {
    const schema = z.object({ name: z.string(), age: z.number() });
    const { object } = await generateObject({ model, prompt: "Who is it?", schema, maxRetries: 0 });
    return `${object.name} ${object.age}`;
  }],
};
for (const [client, model] of Object.entries(models)) {
  const told = { client };
  for (const [name, [expected, task]] of Object.entries(tasks)) {
    try {
      const said = await task(model);
      // Google's form wraps the result of a tool.
      const good = said === expected || (name === "tool" && said.startsWith("The tool said:") && said.includes("code-4711"));
      told[name] = good ? "ok" : JSON.stringify(said).slice(0, 300);
    } catch (error) {
      told[name] = String(error).slice(0, 300);
    }
  }
  console.log(JSON.stringify(told));
}
