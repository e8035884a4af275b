// Which eval is running, and whether the code that asks belongs to it.

import { AsyncLocalStorage } from 'node:async_hooks';
import { inspect } from 'node:util';

import { Object, Promise, Set, String } from './builtins.mjs';

const { defineProperty, getOwnPropertySymbols } = Object;
const MARKS = /^Symbol\((async_id_symbol|trigger_async_id_symbol|kResourceStore)\)$/;

/** Open while an eval runs. What an earlier eval left behind - timers, servers, promises - is late. */
export class Gate {
  running = null; // the Run, or null
  last = 0; // number of the eval that began last
  early = new Set(); // numbers of evals to be interrupted as soon as they begin
  closed = true; // the driver's own code runs, and is not to be stopped

  #origin = new AsyncLocalStorage(); // number of the eval that a callback comes from

  /** Call `body` as part of an eval, and everything that follows from it. */
  within(number, body) {
    return this.#origin.run(number, body);
  }

  /** Forget where this callback comes from: it is the driver's. An interrupt may have cut `within` short. */
  ours() {
    this.#origin.enterWith(undefined);
  }

  /** Stop keeping track, until ours() or within(), which do it again.
   *
   * Before node 24 a hook around each promise's turn does it. Were one left between its two halves, node would end the
   * process: so there is none while V8 unwinds. */
  pause() {
    this.#origin.disable();
  }

  /** Whether the calling code is not the running eval's. */
  late() {
    if (this.running === null) return true;
    const origin = this.#origin.getStore();
    return origin !== undefined && origin !== this.running.n;
  }
}

/** Before node 24 every promise carries marks of what keeps track of the origin, and inspect would show them. */
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
