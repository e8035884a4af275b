// The user's names: those of var and function, which are global properties, and those of const, let and
// class, which are not. Listing them runs no user code.

import vm from 'node:vm';

import { CHANGED_NAMES, NAME_CHARS } from './bounds.mjs';
import { Map, Object, Reflect, Set } from './builtins.mjs';
import { row } from './render.mjs';

const { defineProperty, getOwnPropertyDescriptor, getOwnPropertyNames, is, keys } = Object;
const { runInThisContext } = vm;
const MOST_LISTED = 1000;

export class Names {
  #engine;
  #base = new Map(); // names before any user code
  #readers = new Map(); // name of const, let or class to its reader function
  #forgotten = new Set(); // cleared names: they cannot be removed, so they are undefined and hidden
  #kept = {}; // values bound to _ and _error

  constructor(engine) {
    this.#engine = engine;
    for (const name of getOwnPropertyNames(globalThis)) {
      this.#base.set(name, getOwnPropertyDescriptor(globalThis, name).value);
    }
  }

  /** Return the user's names without a leading underscore, with their values. */
  all() {
    const found = new Map();
    // Only enumerable ones: those that code binds, and a few of Node's own.
    for (const name of keys(globalThis)) {
      if (name[0] === '_') continue;
      const { value, get } = getOwnPropertyDescriptor(globalThis, name);
      if (this.#base.has(name) && (get || is(value, this.#base.get(name)))) continue;
      if (!this.#hidden(name, value)) found.set(name, value);
    }
    for (const name of this.lexical()) {
      const value = this.#read(name);
      if (value !== null && name[0] !== '_' && !this.#hidden(name, value.value)) found.set(name, value.value);
    }
    return found;
  }

  /** Return names of const, let and class, including those without a value. */
  lexical() {
    return this.#engine.lexical();
  }

  /** Return at most `most` rows sorted by name, and the total. */
  listing(most) {
    const found = [...this.all()].sort(([a], [b]) => (a < b ? -1 : 1));
    const limit = most < 0 ? 0 : most > MOST_LISTED ? MOST_LISTED : most;
    return { vars: found.slice(0, limit).map(([name, value]) => row(name, value)), total: found.length };
  }

  /** Return names bound or rebound since `before`, from all(). */
  changed(before) {
    const names = [];
    for (const [name, value] of this.all()) {
      if (!before.has(name) || !is(before.get(name), value)) names.push(name.slice(0, NAME_CHARS));
    }
    return names.sort().slice(0, CHANGED_NAMES);
  }

  /** Delete these names. */
  forget(names) {
    const lexical = this.lexical();
    for (const name of names) {
      if (lexical.has(name)) {
        const nothing = new Map([[name, undefined]]);
        if (!this.#engine.declare('let', nothing)) this.#engine.declare('const', nothing);
      } else if (this.#base.has(name)) {
        globalThis[name] = this.#base.get(name);
        continue;
      } else if (!Reflect.deleteProperty(globalThis, name)) globalThis[name] = undefined;
      this.#forgotten.add(name);
    }
  }

  /** Delete all names and return their number. */
  clear() {
    const names = [...this.all().keys()];
    this.forget(names);
    for (const name of ['_', '_error']) this.keep(name, undefined);
    return names.length;
  }

  /** Bind _ or _error, unless the user has bound it. */
  keep(name, value) {
    const there = getOwnPropertyDescriptor(globalThis, name);
    if (there !== undefined && !(name in this.#kept && is(there.value, this.#kept[name]))) return;
    this.#kept[name] = value;
    defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: false });
  }

  #hidden(name, value) {
    if (!this.#forgotten.has(name)) return false;
    if (value === undefined) return true;
    this.#forgotten.delete(name);
    return false;
  }

  #read(name) {
    let read = this.#readers.get(name);
    if (read === undefined) this.#readers.set(name, (read = runInThisContext(`() => ${name}`)));
    try {
      return { value: read() };
    } catch {
      return null; // its declaration threw, so it has no value
    }
  }
}
