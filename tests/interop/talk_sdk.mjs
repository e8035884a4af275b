// The official TypeScript client: talk_sdk.mjs v1|v2 COMMAND ARGS... prints what it saw as JSON.
const [generation, command, ...args] = process.argv.slice(2);
const name = { name: "interop", version: "1" };
const [{ Client }, { StdioClientTransport }] = await Promise.all(
  generation === "v1"
    ? [import("@modelcontextprotocol/sdk/client/index.js"), import("@modelcontextprotocol/sdk/client/stdio.js")]
    : [import("@modelcontextprotocol/client"), import("@modelcontextprotocol/client/stdio")],
);
const client = new Client(name);
await client.connect(new StdioClientTransport({ command, args, env: process.env, stderr: "inherit" }));
const call = (tool, values, options) =>
  generation === "v1"
    ? client.callTool({ name: tool, arguments: values }, undefined, options)
    : client.callTool({ name: tool, arguments: values }, options);
const session = `ts-${generation}`;
const progress = [];
const seen = {
  tools: (await client.listTools()).tools.map((tool) => tool.name),
  value: await call("eval", { code: "x = 41\nx + 1", session }),
  error: await call("eval", { code: "1/0", session }),
  info: await call("info", { session, what: "variables" }),
  slow: await call(
    "eval",
    { code: "import time\nfor i in range(4):\n    print('step', i, flush=True)\n    time.sleep(.4)", session },
    { onprogress: (step) => progress.push(step.message) },
  ),
};
const cancel = new AbortController();
const running = call("eval", { code: "import time\ntime.sleep(600)", session }, { signal: cancel.signal });
setTimeout(() => cancel.abort("the user pressed escape"), 500);
seen.cancelled = await running.then(() => false, () => true);
for (let tries = 0; tries < 200; tries++) {
  const { structuredContent } = await call("info", { session, what: "jobs" });
  seen.last = structuredContent.jobs.at(-1).state;
  if (seen.last === "interrupted") break;
  await new Promise((resolve) => setTimeout(resolve, 50));
}
seen.after = await call("eval", { code: "x", session });
console.log(JSON.stringify({ ...seen, progress }));
await client.close();
