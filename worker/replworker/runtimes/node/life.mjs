// What would end the process, and may not: process.exit(), errors that nobody catches, SIGINT.

import { Error, Object, process } from './builtins.mjs';
import { raised, unsaid } from './trace.mjs';

export const EXIT_HINT = 'process.exit() ends the eval, not the session';
const LATE_EXIT = `process.exit() outside of a running eval does nothing: the session goes on\n`;
const DRIVER = new URL('driver.mjs', import.meta.url).href;
const DELICATE = /[ (]node:(?:async_hooks|internal\/(?:async_hooks|promise_hooks|timers|process\/task_queues)):/;
const INNER = /[ (]node:internal\//;
const SIGINT = 'SIGINT';

/** What process.exit() throws to leave the code that called it. */
export class Exit extends Error {
  code;

  constructor(code) {
    super(`process.exit(${code ?? ''})`);
    this.name = 'Exit';
    this.code = code;
  }
}

export function guard(runner, streams, limits) {
  process.exit = function exit(code) {
    const left = new Exit(code);
    if (!runner.exit(code)) left.message = LATE_EXIT.trim();
    throw left;
  };
  holdTogether();
  deafen();
  keep('uncaughtException', (error) => report('uncaughtException', error, 'Uncaught '));
  keep('unhandledRejection', (error) => report('unhandledRejection', error, 'Uncaught (in promise) '));

  function report(event, error, prefix) {
    if (process.listenerCount(event) > 1) return; // the user's own handler has it
    if (error instanceof Exit) {
      if (error.message === LATE_EXIT.trim()) streams.tell(LATE_EXIT);
      return;
    }
    streams.tell(`${prefix}${told(error)}`);
  }

  function told(error) {
    try {
      return raised(error, limits).traceback.replace(/^Uncaught /, '');
    } catch {
      return unsaid(error).traceback;
    }
  }
}

/** All listeners may go, but for those by which node itself, and we, hear of listeners. */
function holdTogether() {
  const { removeAllListeners } = process;
  process.removeAllListeners = function (...events) {
    for (const event of events.length > 0 ? events : this.eventNames()) {
      if (event !== 'newListener' && event !== 'removeListener') removeAllListeners.call(this, event);
    }
    return this;
  };
}

/** SIGINT comes with each interrupt; the watcher's thread has heard of it by then. It neither kills nor reaches the
 * user's handlers, which would stop a server of an earlier eval when a later one meets its time limit. */
function deafen() {
  const { emit } = process;
  const listen = () => {
    // Node binds process.emit when the first listener comes, to call it at each signal.
    const own = Object.hasOwn(process, 'emit') ? process.emit : null;
    process.emit = (event, ...args) => event !== SIGINT && emit.call(process, event, ...args);
    process.on(SIGINT, quiet);
    if (own === null) delete process.emit;
    else process.emit = own;
  };
  listen();
  process.on('removeListener', (event) => {
    if (event === SIGINT && process.listenerCount(SIGINT) === 0) listen();
  });
}

function quiet() {}

/** A listener that stays when the user removes all. */
function keep(event, listener) {
  process.on(event, listener);
  process.on('removeListener', (name, gone) => {
    if (name === event && gone === listener) process.on(event, listener);
  });
}

/** Makes the function that stops what runs, to be called from within it; it takes hold when the call returns. That one
 * tells whether it did: there are places in node where nothing may be stopped or, as long as the caller does not
 * insist, should be; then it is to be called again soon.
 *
 * V8 unwinds everything past `finally`. So node's own record of whose callback runs would be left standing, and node
 * ends the process over that; what node does after an exception that was handled puts it right. But not where node is
 * just about to write that record. */
export function halter(engine, gate) {
  const fatal = process._fatalException;
  const { setUncaughtExceptionCaptureCallback: capture } = process;
  let theirs = null;
  process.setUncaughtExceptionCaptureCallback = (callback) => {
    capture.call(process, callback);
    theirs = callback;
  };
  return (insist) => {
    const place = interruptedPlace();
    if (place === null || DELICATE.test(place)) return false; // null: between two promises' turns, or nothing runs
    // Node's own work is soon done, and may be for others too.
    if (!insist && INNER.test(place)) return false;
    if (typeof fatal === 'function') {
      for (const callback of [null, quiet]) capture.call(process, callback);
      fatal.call(process, new Error('interrupted'), false);
      for (const callback of [null, theirs]) capture.call(process, callback);
    }
    gate.pause();
    engine.terminate();
    return true;
  };
}

/** The stack's line of what the watcher's call interrupted, null where that was no function. */
function interruptedPlace() {
  const { prepareStackTrace, stackTraceLimit } = Error;
  try {
    Error.prepareStackTrace = undefined; // the user's
    Error.stackTraceLimit = 16;
    const lines = new Error().stack.split('\n');
    const below = lines.slice(lines.findIndex((line) => line.includes(DRIVER)) + 2); // 2: past the watcher's call
    return below.find((line) => !line.endsWith('(<anonymous>)')) ?? below[0] ?? null; // not the likes of Array.pop
  } finally {
    Error.prepareStackTrace = prepareStackTrace;
    Error.stackTraceLimit = stackTraceLimit;
  }
}
