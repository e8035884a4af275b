// The user's names: those of var and function, which are properties of the global object, and those of const, let and
// class, which are not. To look at them runs no code of the user's.

import vm from 'node:vm';

import { CHANGED_NAMES, NAME_CHARS } from './bounds.mjs';
import { Map, Object, Reflect, Set } from './builtins.mjs';
import { row } from './render.mjs';

const { defineProperty, getOwnPropertyDescriptor, getOwnPropertyNames, is, keys } = Object;
const { runInThisContext } = vm;
const MOST_LISTED = 1000;

export class Names {
  #engine;
  #base = new Map(); // what was there before any user code
  #readers = new Map(); // name of const, let or class to a function that reads it
  #forgotten = new Set(); // cleared: neither kind can be taken away again, so these are undefined and not shown
  #kept = {}; // what we bound to _ and _error

  constructor(engine) {
    this.#engine = engine;
    for (const name of getOwnPropertyNames(globalThis)) {
      this.#base.set(name, getOwnPropertyDescriptor(globalThis, name).value);
    }
  }

  /** Every name the user bound and that does not begin with an underscore, with its value. */
  all() {
    const found = new Map();
    // Only what can be enumerated: that is what code binds, and of node's own it is a handful.
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

  /** Names of const, let and class, those without a value too. */
  lexical() {
    return this.#engine.lexical();
  }

  /** At most `most` rows, sorted by name, and how many there would be. */
  listing(most) {
    const found = [...this.all()].sort(([a], [b]) => (a < b ? -1 : 1));
    const limit = most < 0 ? 0 : most > MOST_LISTED ? MOST_LISTED : most;
    return { vars: found.slice(0, limit).map(([name, value]) => row(name, value)), total: found.length };
  }

  /** Names that were bound, or bound to something else, since `before` was taken with all(). */
  changed(before) {
    const names = [];
    for (const [name, value] of this.all()) {
      if (!before.has(name) || !is(before.get(name), value)) names.push(name.slice(0, NAME_CHARS));
    }
    return names.sort().slice(0, CHANGED_NAMES);
  }

  /** Forget these names. */
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

  /** Forget all of them; how many these were. */
  clear() {
    const names = [...this.all().keys()];
    this.forget(names);
    for (const name of ['_', '_error']) this.keep(name, undefined);
    return names.length;
  }

  /** Bind _ or _error, unless the user has taken the name. */
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
      return null; // its declaration threw: the name has no value
    }
  }
}
