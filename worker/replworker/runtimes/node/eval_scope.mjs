// Eval scope: the running eval, and whether the calling code belongs to it.

import { AsyncLocalStorage } from 'node:async_hooks';
import { inspect } from 'node:util';

import { Object, Promise, Set, String } from './builtins.mjs';

const { defineProperty, getOwnPropertySymbols } = Object;
const MARKS = /^Symbol\((async_id_symbol|trigger_async_id_symbol|kResourceStore)\)$/;

/** Active while an eval runs. Timers, servers and promises of earlier evals are background code. */
export class EvalScope {
  running = null; // the Run, or null
  last = 0; // number of the eval that began last
  early = new Set(); // numbers of evals to be interrupted as soon as they begin
  closed = true; // the driver's code runs and must not be interrupted

  #origin = new AsyncLocalStorage(); // number of the eval that a callback comes from

  /** Call `body` and its continuations as part of an eval. */
  within(number, body) {
    return this.#origin.run(number, body);
  }

  /** Attribute this callback to the driver. An interrupt may have aborted `within`. */
  ours() {
    this.#origin.enterWith(undefined);
  }

  /** Stop tracking until the next ours() or within().
   *
   * Before Node 24 it uses a hook around each promise job. Unwinding between the two halves of one would make Node
   * abort, so there must be none while V8 unwinds. */
  pause() {
    this.#origin.disable();
  }

  /** Return whether the calling code does not belong to the running eval. */
  late() {
    if (this.running === null) return true;
    const origin = this.#origin.getStore();
    return origin !== undefined && origin !== this.running.n;
  }
}

/** Hide the tracking symbols of promises, which inspect would show before Node 24. */
export function hideMarks() {
  const { custom } = inspect;
  defineProperty(Promise.prototype, custom, {
    configurable: true,
    writable: true,
    enumerable: false,
    value(_depth, options, inner) {
      for (const symbol of getOwnPropertySymbols(this)) {
        if (MARKS.test(String(symbol))) defineProperty(this, symbol, { enumerable: false });
      }
      defineProperty(this, custom, { value: undefined, configurable: true, writable: true, enumerable: false });
      return inner(this, options);
    },
  });
}
