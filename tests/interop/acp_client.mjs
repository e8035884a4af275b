// The TypeScript SDK's client drives an agent through every method; what it saw leaves as JSON.
import { spawn } from "node:child_process";
import { pathToFileURL } from "node:url";
import { Readable, Writable } from "node:stream";

const [sdk, cwd, ...command] = process.argv.slice(2);
const acp = await import(pathToFileURL(`${sdk}/dist/v1/stable/acp.js`));
const agent = spawn(command[0], command.slice(1), { stdio: ["pipe", "pipe", "inherit"] });
const ended = new Promise((resolve) => agent.on("exit", resolve));
const stream = acp.ndJsonStream(Writable.toWeb(agent.stdin), Readable.toWeb(agent.stdout));
const m = acp.methods;
const seen = { updates: [], permissions: 0 };
let allow = true;

const client = acp
  .client({ name: "interop" })
  .onRequest(m.client.session.requestPermission, () => {
    seen.permissions += 1;
    return { outcome: { outcome: "selected", optionId: allow ? "allow" : "reject" } };
  })
  .onNotification(m.client.session.update, ({ params }) => {
    seen.updates.push(params.update);
  });

const text = (updates) =>
  updates
    .filter((each) => each.sessionUpdate === "agent_message_chunk")
    .map((each) => each.content.text)
    .join("");

await client.connectWith(stream, async (ctx) => {
  seen.initialize = await ctx.request(m.agent.initialize, { protocolVersion: acp.PROTOCOL_VERSION, clientCapabilities: {} });
  seen.made = await ctx.request(m.agent.session.new, { cwd, mcpServers: [] });
  const sessionId = seen.made.sessionId;
  const prompt = async (code) => {
    const from = seen.updates.length;
    const { stopReason } = await ctx.request(m.agent.session.prompt, { sessionId, prompt: [{ type: "text", text: code }] });
    return { stopReason, text: text(seen.updates.slice(from)) };
  };
  seen.value = await prompt("x = 6*7\nprint('out')\nx");
  seen.raised = await prompt("1/0");
  await ctx.request(m.agent.session.setMode, { sessionId, modeId: "ask" });
  seen.allowed = await prompt("x + 1");
  allow = false;
  seen.rejected = await prompt("x + 2");
  seen.options = await ctx.request(m.agent.session.setConfigOption, { sessionId, configId: "mode", value: "auto" });
  const slow = prompt("import time; time.sleep(30)");
  while (!seen.updates.some((each) => each.sessionUpdate === "tool_call" && each.title.startsWith("import time")))
    await new Promise((resolve) => setTimeout(resolve, 5));
  await ctx.notify(m.agent.session.cancel, { sessionId });
  seen.cancelled = await slow;
  seen.listed = await ctx.request(m.agent.session.list, {});
  const from = seen.updates.length;
  seen.loaded = await ctx.request(m.agent.session.load, { sessionId, cwd, mcpServers: [] });
  seen.replayed = seen.updates.slice(from).filter((each) => each.sessionUpdate === "user_message_chunk").length;
  seen.resumed = await ctx.request(m.agent.session.resume, { sessionId, cwd });
  seen.closed = await ctx.request(m.agent.session.close, { sessionId });
  seen.unknown = await ctx
    .request(m.agent.session.prompt, { sessionId, prompt: [] })
    .catch((error) => ({ code: error.code, data: error.data }));
  seen.missing = await ctx.request("session/fork", { sessionId }).catch((error) => ({ code: error.code }));
  seen.deleted = await ctx.request(m.agent.session.delete, { sessionId });
});
agent.stdin.end();
seen.exit = await ended;
seen.updates = seen.updates.map((each) => each.sessionUpdate);
console.log(JSON.stringify(seen));
process.exit(0);
