// What would end the process, and may not: process.exit(), errors that nobody catches, SIGINT.

import { raised, unsaid } from './trace.mjs';

export const EXIT_HINT = 'process.exit() ends the eval, not the session';
const LATE_EXIT = `process.exit() outside of a running eval does nothing: the session goes on\n`;
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

/** Stop what runs. To be called from within it; takes hold when the call returns.
 *
 * V8 unwinds all of it past `finally`, so node's own record of which callback runs is left standing, and node would
 * end the process over it. What node does after an exception that was handled puts that right. */
export function halter(engine) {
  const fatal = process._fatalException;
  const { setUncaughtExceptionCaptureCallback: capture, hasUncaughtExceptionCaptureCallback: captures } = process;
  const settle = () => {
    if (typeof fatal !== 'function' || captures.call(process)) return;
    capture.call(process, quiet);
    fatal.call(process, new Error('interrupted'), false);
    capture.call(process, null);
  };
  return () => {
    settle();
    engine.terminate();
  };
}
