// Protection of the process from process.exit(), uncaught errors and SIGINT.

import { Error, Object, process } from './builtins.mjs';
import { raised, unsaid } from './trace.mjs';

export const EXIT_HINT = 'process.exit() ends the eval, not the session';
const LATE_EXIT = `process.exit() outside of a running eval does nothing: the session goes on\n`;
const DRIVER = new URL('driver.mjs', import.meta.url).href;
const DELICATE = /[ (]node:(?:async_hooks|internal\/(?:async_hooks|promise_hooks|timers|process\/task_queues)):/;
const INNER = /[ (]node:internal\//;
const SIGINT = 'SIGINT';

/** Thrown by process.exit() to leave the calling code. */
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
  ignoreSigint();
  keep('uncaughtException', (error) => report('uncaughtException', error, 'Uncaught '));
  keep('unhandledRejection', (error) => report('unhandledRejection', error, 'Uncaught (in promise) '));

  function report(event, error, prefix) {
    if (process.listenerCount(event) > 1) return; // handled by the user
    if (error instanceof Exit) {
      if (error.message === LATE_EXIT.trim()) streams.warn(LATE_EXIT);
      return;
    }
    streams.warn(`${prefix}${describe(error)}`);
  }

  function describe(error) {
    try {
      return raised(error, limits).traceback.replace(/^Uncaught /, '');
    } catch {
      return unsaid(error).traceback;
    }
  }
}

/** Keep the internal listeners of Node and the driver when the user removes all. */
function holdTogether() {
  const { removeAllListeners } = process;
  process.removeAllListeners = function (...events) {
    for (const event of events.length > 0 ? events : this.eventNames()) {
      if (event !== 'newListener' && event !== 'removeListener') removeAllListeners.call(this, event);
    }
    return this;
  };
}

/** SIGINT accompanies each interrupt; the watcher knows of it by then. It neither kills nor reaches the
 * user's handlers, which would stop a server of an earlier eval when a later one reaches its time limit. */
function ignoreSigint() {
  const { emit } = process;
  const listen = () => {
    // Node binds process.emit when the first listener is added, and calls it for each signal.
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

/** A listener that remains when the user removes all. */
function keep(event, listener) {
  process.on(event, listener);
  process.on('removeListener', (name, removed) => {
    if (name === event && removed === listener) process.on(event, listener);
  });
}

/** Create the function that stops the running code, called from inside it; takes effect when the call returns. It
 * returns whether it did: some parts of Node must not be stopped or, unless the caller insists, should
 * not be; then it has to be called again soon.
 *
 * V8 unwinds everything, skipping `finally`. So Node's own record of the running callback would remain, and Node
 * would abort; its handling after a caught exception repairs the record. But not where Node is
 * just about to write that record. */
export function halter(engine, scope) {
  const fatal = process._fatalException;
  const { setUncaughtExceptionCaptureCallback: capture } = process;
  let theirs = null;
  process.setUncaughtExceptionCaptureCallback = (callback) => {
    capture.call(process, callback);
    theirs = callback;
  };
  return (insist) => {
    const place = interruptedPlace();
    if (place === null || DELICATE.test(place)) return false; // null: between two promise jobs, or nothing runs
    // Node's own work finishes soon, and may serve other code.
    if (!insist && INNER.test(place)) return false;
    if (typeof fatal === 'function') {
      for (const callback of [null, quiet]) capture.call(process, callback);
      fatal.call(process, new Error('interrupted'), false);
      for (const callback of [null, theirs]) capture.call(process, callback);
    }
    scope.pause();
    engine.terminate();
    return true;
  };
}

/** Return the stack line interrupted by the watcher's call, null if it was not a function. */
function interruptedPlace() {
  const { prepareStackTrace, stackTraceLimit } = Error;
  try {
    Error.prepareStackTrace = undefined; // the user's
    Error.stackTraceLimit = 16;
    const lines = new Error().stack.split('\n');
    const below = lines.slice(lines.findIndex((line) => line.includes(DRIVER)) + 2); // 2: skips the watcher's call
    return below.find((line) => !line.endsWith('(<anonymous>)')) ?? below[0] ?? null; // not builtins such as Array.pop
  } finally {
    Error.prepareStackTrace = prepareStackTrace;
    Error.stackTraceLimit = stackTraceLimit;
  }
}
