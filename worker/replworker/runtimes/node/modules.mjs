// require() and import() of the evals, relative to the folder that the session is in.

import Module, { builtinModules, createRequire } from 'node:module';
import path from 'node:path';

import { Object, SyntaxError, process } from './builtins.mjs';

const { defineProperty } = Object;
const { syncBuiltinESMExports } = Module;
const { cwd } = process;

const LOADER =
  'module.exports = (what, options) => (options === undefined ? import(what) : import(what, options))';

/** Names that stand for import() in rewritten code (cell.mjs): as long as the word, so that columns stay true. */
export const IMPORT_NAMES = ['$mport', '_mport'];

export class Modules {
  pending = 0; // imports on their way; one that is cut short never ends, and no other of the same module either
  #folder = null;
  #load = null;
  #require = null;

  constructor() {
    const load = (...args) => this.#import(...args);
    for (const name of IMPORT_NAMES) hidden(name, load);
    const here = createRequire(path.join(cwd(), '[eval]'));
    // As `node -i` has it: fs, path and the others are there, loaded when they are first touched.
    for (const name of builtinModules) {
      if (/^[a-z]\w*$/.test(name) && !(name in globalThis) && !['sys', 'wasi', 'test'].includes(name)) lazy(name, here);
    }
    this.settle(cwd());
  }

  /** Make `require` and `import` relative to a folder. A `require` that the user made stays. */
  settle(folder) {
    if (folder === this.#folder) return;
    this.#folder = folder;
    const file = path.join(folder, '[eval]');
    // import() resolves from the file of the code that it stands in: a module of that folder does it for us.
    const module = new Module(file);
    module.filename = file;
    module.paths = Module._nodeModulePaths(folder);
    module._compile(LOADER, file);
    this.#load = module.exports;
    const mine = !('require' in globalThis) || globalThis.require === this.#require;
    this.#require = createRequire(file);
    if (mine) hidden('require', this.#require);
  }

  /** The folder of now, which user code may have changed or removed. */
  follow() {
    try {
      this.settle(cwd());
    } catch {
      // removed: what was found from there before is found still
    }
  }

  /** Drop a file from the cache of require(). */
  forget(file) {
    if (this.#require.cache[file] === undefined) return false;
    delete this.#require.cache[file];
    return true;
  }

  async #import(what, options, names) {
    this.pending++;
    const space = await this.#load(what, options).finally(() => this.pending--);
    for (const name of names ?? []) {
      if (!(name in space)) {
        throw new SyntaxError(`The requested module '${what}' does not provide an export named '${name}'`);
      }
    }
    return space;
  }
}

function hidden(name, value) {
  defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: false });
}

function lazy(name, require) {
  defineProperty(globalThis, name, {
    configurable: true,
    enumerable: false,
    get: () => require(name),
    set: (value) => defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: true }),
  });
}

/** Let `import { readSync } from 'fs'` see what the driver put into a module of node. */
export function publish() {
  syncBuiltinESMExports();
}
