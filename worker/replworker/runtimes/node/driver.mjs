// Entry point of the Node runtime: `node --no-warnings driver.mjs CONTROL_FD BACKGROUND_FD`.
//
// Runs in Node 18 or newer, with the standard library only. The worker is its parent and its only reader.
// This file builds the parts and answers frames; watcher.mjs reads them in a separate thread.

import { Worker } from 'node:worker_threads';

import { Limits, MESSAGE_BYTES, cut } from './bounds.mjs';
import { Number, Object, process } from './builtins.mjs';
import { Channel } from './channel.mjs';
import { complete } from './complete.mjs';
import { Engine } from './engine.mjs';
import { EvalScope, hideMarks } from './eval_scope.mjs';
import { guard, halter } from './process_guard.mjs';
import { lookup } from './lookup.mjs';
import { Modules, publish } from './modules.mjs';
import { Names } from './names.mjs';
import { Runner } from './runner.mjs';
import { readProject } from './project.mjs';
import { dump, restore } from './snapshot.mjs';
import { Input } from './stdin.mjs';
import { Streams } from './streams.mjs';

const EXIT_PROTOCOL = 70; // EX_SOFTWARE: protocol violation by the worker
const BREACH = Symbol('breach');
const CAN = ['vars', 'clear', 'complete', 'lookup', 'dump', 'restore', 'packages'];

const [controlFd, lateFd] = process.argv.slice(2, 4).map(Number);
const { reallyExit } = process;
const { terminate } = Worker.prototype;
let exitCode = EXIT_PROTOCOL;
process.argv.splice(1);

const limits = new Limits();
const scope = new EvalScope();
const channel = new Channel(controlFd, () => leave(0));
const streams = new Streams(scope, lateFd);
const input = new Input(scope, channel);
const engine = new Engine();
const modules = new Modules();
publish();
hideMarks();
const names = new Names(engine);
const parts = { scope, channel, streams, input, engine, modules, names, limits, halt: halter(engine, scope) };
const runner = new Runner(parts);
guard(runner, streams, limits);
const watcher = watch();
channel.send({
  t: 'ready',
  runtime: 'node',
  version: process.versions.node,
  implementation: process.release.name,
  executable: process.execPath,
  pid: process.pid,
  can: CAN,
});

/** Start the watcher. The function it calls is passed through a temporary global. */
function watch() {
  const key = `replctl ${Math.random()}`;
  const interrupt = (number) => runner.interrupt(number);
  Object.defineProperty(globalThis, key, { value: interrupt, configurable: true });
  const ops = { __proto__: null, ...answers(), up: () => delete globalThis[key], closed: () => leave(0) };
  const thread = new Worker(new URL('watcher.mjs', import.meta.url), {
    workerData: { fd: controlFd, key },
    execArgv: ['--no-warnings'],
  });
  thread.on('error', () => leave(EXIT_PROTOCOL));
  thread.on('exit', () => reallyExit.call(process, exitCode)); // bypasses the user's 'exit' handlers
  thread.on('message', (message) => {
    scope.closed = true;
    scope.ours();
    const answer = ops[message.op]?.(message) ?? BREACH;
    if (answer === BREACH) leave(EXIT_PROTOCOL);
    else if (answer.t) channel.send({ ...answer, n: message.n });
    scope.closed = false;
  });
  return thread;
}

/** End the process, the watcher first, since some versions of Node 18 crash otherwise. */
function leave(code) {
  exitCode = code;
  terminate.call(watcher);
  return true;
}

function answers() {
  return {
    assign,
    eval: (message) => {
      if (typeof message.code !== 'string' || typeof message.name !== 'string' || scope.running) return BREACH;
      runner.begin(message);
      return true;
    },
    vars: ({ max }) => (Number.isInteger(max) ? { t: 'vars', ...names.listing(max) } : BREACH),
    clear: () => ({ t: 'cleared', count: names.clear() }),
    complete: (message) => ({ t: 'completions', ...complete(message, { engine, names }) }),
    lookup: (message) => ({ t: 'found', ...lookup(message, engine) }),
    dump: (message) => ({ t: 'dumped', ...dump(message, { engine, names }) }),
    packages: (message) => ({ t: 'packages', ...packages(message) }),
    restore: (message) => ({ t: 'dumped', ...restore(message, { engine, names }) }),
  };
}

/** Use a directory of installed packages, and read the file of a project; both only if asked for. */
function packages({ path, file, modules: names }) {
  if (!Array.isArray(names)) return { error: 'modules is no list' };
  try {
    if (typeof path === 'string') modules.install(path);
    const imported = modules.outdated(names.map(String));
    return { error: null, imported, ...(typeof file === 'string' ? readProject(file) : {}) };
  } catch (failed) {
    return { error: cut(`${failed.name}: ${failed.message}`, MESSAGE_BYTES)[0] };
  }
}

/** Set directory, environment and limits. Reports an error and does the rest anyway. */
function assign({ cwd, env, limits: wanted, packages: installed }) {
  let error = null;
  try {
    limits.update(wanted);
    Error.stackTraceLimit = limits.traceFrames + 8; // 8: the driver's frames, which are not shown
    Object.assign(process.env, env ?? {});
    if (typeof installed === 'string') modules.install(installed);
    if (typeof cwd === 'string') process.chdir(cwd);
    modules.follow();
  } catch (failed) {
    [error] = cut(`${failed.name}: ${failed.message}`, MESSAGE_BYTES);
  }
  return { t: 'assigned', error };
}
