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
  #packages = null; // where the session's installed packages are
  #earlier = []; // where they were before
  #fallback = null; // loads from there

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
    this.#load = loader(file);
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

  /** Find packages in a directory of installed ones too, after those of the working directory.
   *
   * `require` of every module does, by NODE_PATH; `import` of evals only. Each generation has a path of its own, since
   * Node remembers for ever what it has not found at a path. */
  install(directory) {
    const others = (process.env.NODE_PATH ?? '').split(path.delimiter).filter((each) => each && each !== this.#packages);
    if (this.#packages !== null) this.#earlier.push(this.#packages);
    this.#packages = path.join(directory, 'node_modules');
    process.env.NODE_PATH = [...others, this.#packages].join(path.delimiter);
    Module._initPaths();
    this.#fallback = loader(path.join(directory, '[eval]'));
  }

  /** Return the packages among these that were required from an earlier generation than the one in use. */
  outdated(names) {
    const files = Object.keys(this.#require.cache).filter((file) => !file.startsWith(this.#packages + path.sep));
    return names.filter((name) => this.#earlier.some((place) => files.some((file) => file.startsWith(path.join(place, name) + path.sep))));
  }

  /** Drop a file from require()'s cache. */
  forget(file) {
    if (this.#require.cache[file] === undefined) return false;
    delete this.#require.cache[file];
    return true;
  }

  async #find(what, options) {
    try {
      return await this.#load(what, options);
    } catch (error) {
      const isBare = typeof what === 'string' && /^(?:@[^/]+\/)?[\w-]/.test(what) && !what.includes(':');
      if (this.#fallback === null || !isBare || error?.code !== 'ERR_MODULE_NOT_FOUND') throw error;
      return this.#fallback(what, options).catch((second) => {
        throw second?.code === 'ERR_MODULE_NOT_FOUND' ? error : second;
      });
    }
  }

  async #import(what, options, names) {
    this.pending++;
    const space = await this.#find(what, options).finally(() => this.pending--);
    for (const name of names ?? []) {
      if (!(name in space)) {
        throw new SyntaxError(`The requested module '${what}' does not provide an export named '${name}'`);
      }
    }
    return space;
  }
}

/** Return import() as a module of that name has it: it resolves from the file that contains it. */
function loader(file) {
  const module = new Module(file);
  module.filename = file;
  module.paths = Module._nodeModulePaths(path.dirname(file));
  module._compile(LOADER, file);
  return module.exports;
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
