// require() and import() of evals, relative to the session's working directory.

import Module, { builtinModules, createRequire } from 'node:module';
import path from 'node:path';

import { Object, SyntaxError, process } from './builtins.mjs';

const { defineProperty } = Object;
const { syncBuiltinESMExports } = Module;
const { cwd } = process;

const LOADER =
  'module.exports = (what, options) => (options === undefined ? import(what) : import(what, options))';

/** Replacements for import() in rewritten code (cell.mjs), of the same length, so that columns stay correct. */
export const IMPORT_NAMES = ['$mport', '_mport'];

export class Modules {
  pending = 0; // pending imports; an aborted one never ends, nor does any other of the same module
  #directory = null;
  #load = null;
  #require = null;

  constructor() {
    const load = (...args) => this.#import(...args);
    for (const name of IMPORT_NAMES) hidden(name, load);
    const here = createRequire(path.join(cwd(), '[eval]'));
    // As in `node -i`: fs, path and others are available, loaded on first use.
    for (const name of builtinModules) {
      if (/^[a-z]\w*$/.test(name) && !(name in globalThis) && !['sys', 'wasi', 'test'].includes(name)) lazy(name, here);
    }
    this.settle(cwd());
  }

  /** Make `require` and `import` relative to a directory. A user's `require` stays. */
  settle(directory) {
    if (directory === this.#directory) return;
    this.#directory = directory;
    const file = path.join(directory, '[eval]');
    // import() resolves from the file that contains it, so a module of that directory does it.
    const module = new Module(file);
    module.filename = file;
    module.paths = Module._nodeModulePaths(directory);
    module._compile(LOADER, file);
    this.#load = module.exports;
    const mine = !('require' in globalThis) || globalThis.require === this.#require;
    this.#require = createRequire(file);
    if (mine) hidden('require', this.#require);
  }

  /** Return the current directory, which user code may have changed or removed. */
  follow() {
    try {
      this.settle(cwd());
    } catch {
      // removed: earlier resolutions remain valid
    }
  }

  /** Drop a file from require()'s cache. */
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

/** Let `import { readSync } from 'fs'` see the driver's replacements in a Node module. */
export function publish() {
  syncBuiltinESMExports();
}
