// V8's REPL mode, used through the inspector in this process, without a port.
//
// V8 has a REPL mode for browser consoles: top-level `await`; `const`, `let` and `class` that persist and may be
// redeclared; and the value of the last expression - with V8's own parser, so that strings, regexes, templates and
// comments are never misread, and syntax errors are found before anything has run. The alternatives are worse:
// Node's `repl` rewrites `await` with a parser that lags behind V8, rejects a second `const`, and
// uses domains; its parser needs --expose-internals, which would expose Node's internals to user code as well.
// vm.createContext creates a second realm, in which `[] instanceof Array` fails for Node's objects. So evals run in
// the main context.

import { Session } from 'node:inspector';
import v8 from 'node:v8';
import vm from 'node:vm';

import { Error, Object, Promise, Set, stringify } from './builtins.mjs';

const { defineProperty, getOwnPropertyDescriptor, prototype: objects } = Object;
const { connect, disconnect, post } = Session.prototype;
const { onInit } = v8.promiseHooks;
const { then } = Promise.prototype;
const call = Function.prototype.call.bind(Function.prototype.call);

const RESULT = '.repl_result'; // V8 stores the value here, so promises are shown and not awaited
// Put before every eval: its code runs after the inspector has returned, which must not be interrupted. It has no
// value, and no code can continue it. Columns of the first line are reported without it (trace.mjs).
export const DELAY = 'while(await 0);';
const DIRECTIVE = "'use strict';";
const STRICT = /^(?:\s|\/\/.*\n|\/\*[^]*?\*\/)*(['"])use strict\1[^\S\n]*(?:;|\n|$)/;
const POISON = '\n@'; // never valid: text that ends like this is parsed but never runs
export const LINE_END = /\r\n?|[\n\u2028\u2029]/g;
// Node treats a signal to its own process as its end, and shuts the inspector down before sending one.
const SHUT = 'its inspector is shut, as by process.kill() of its own process or of all';
const LOOK_MS = 100; // for examining a name; only a user's proxy takes any time

function opened() {
  const session = new Session();
  call(connect, session);
  return session;
}

/** Call the inspector, with a user's toJSON on Object.prototype disabled; no user code runs meanwhile. */
function ask(session, method, parameters, answered) {
  const foreign = getOwnPropertyDescriptor(objects, 'toJSON');
  if (foreign !== undefined) delete objects.toJSON;
  call(post, session, method, parameters, answered);
  if (foreign !== undefined) defineProperty(objects, 'toJSON', foreign);
}

/** Run a text as an eval in the next microtask. Return its error, or null; then one of `settled`
 * (with the value) and `failed` (with the exception) is called. */
export function evaluate(text, settled, failed) {
  const session = opened();
  let inside = true;
  let promise = null;
  let wrong = null;
  // V8 would report a copy of the value through the inspector. It waits for the first promise created now: that one is
  // captured, and the session ended, so that a promise that never settles keeps nothing of the inspector alive (Node
  // 22 crashes when such a one is collected).
  const stop = onInit((made) => {
    stop();
    promise = made;
  });
  const expression = (STRICT.test(text) ? DIRECTIVE : '') + DELAY + text;
  ask(session, 'Runtime.evaluate', { expression, replMode: true, silent: true }, (_, answer) => {
    if (inside && answer?.exceptionDetails) wrong = seen(answer.exceptionDetails);
  });
  inside = false;
  stop();
  const { stackTraceLimit } = Error;
  Error.stackTraceLimit = 0; // waiting code gets an error now, whose stack would be expensive
  call(disconnect, session);
  Error.stackTraceLimit = stackTraceLimit;
  // Not `await`, which would add the driver to users' stacks.
  if (wrong === null) call(then, promise, (made) => settled(made[RESULT]), failed);
  else if (wrong.line === 0) wrong.column -= expression.length - text.length;
  return wrong;
}

/** Static analysis of code and names. */
export class Engine {
  #session = opened();

  /** Return the first error of a text: {type, message, line, column}, from 0; null for a valid beginning. */
  wrong(text) {
    const found = this.#ask('Runtime.evaluate', { expression: text + POISON, replMode: true, silent: true });
    const error = seen(found.exceptionDetails);
    return error.line === lines(text + POISON) ? null : error;
  }

  /** Return whether the text is complete statements, valid in a function. */
  whole(text) {
    try {
      new vm.Script(`async () => {\n${text}\n}`);
      return true;
    } catch {
      return false;
    }
  }

  /** Return names bound by const, let and class. */
  lexical() {
    const found = this.#ask('Runtime.globalLexicalScopeNames', {});
    if (found === null) throw new Error(SHUT);
    return new Set(found.names);
  }

  /** Evaluate an expression without side effects: {value} or null. */
  look(expression) {
    const ask = { expression, throwOnSideEffect: true, silent: true, timeout: LOOK_MS, objectGroup: 'look' };
    const found = this.#ask('Runtime.evaluate', ask);
    const value = found && !found.exceptionDetails ? this.#value(found.result) : null;
    this.#ask('Runtime.releaseObjectGroup', { objectGroup: 'look' });
    return value;
  }

  /** Return whether a function's source refers only to globals and, for a class, to itself. */
  global(fn, source) {
    const inner = this.#parts(this.#id(fn)).internalProperties;
    const scopes = inner?.find((each) => each.name === '[[Scopes]]')?.value?.objectId;
    const found = scopes === undefined ? [] : this.#parts(scopes).result;
    const isGlobal = ({ value }) => {
      if (/^(Global|Script)$/.test(value.description)) return true;
      const { result } = this.#parts(value.objectId);
      return value.description === 'Block' && result.length === 1 && result[0].value?.description === source;
    };
    const all = found.length > 0 && found.every(isGlobal);
    this.#ask('Runtime.releaseObjectGroup', { objectGroup: 'look' });
    return all;
  }

  /** Bind names in the evals' scope to their `values`. */
  declare(kind, values) {
    const names = [...values.keys()];
    if (names.length === 0) return true;
    const key = `replctl ${Math.random()}`;
    defineProperty(globalThis, key, { value: (name) => values.get(name), configurable: true });
    const parts = names.map((name) => `${name} = globalThis[${stringify(key)}](${stringify(name)})`);
    const expression = `${kind} ${parts.join(', ')}; undefined`;
    const found = this.#ask('Runtime.evaluate', { expression, replMode: true, silent: true });
    delete globalThis[key];
    return !found?.exceptionDetails;
  }

  #value(remote) {
    if (remote.objectId === undefined && remote.unserializableValue === undefined) {
      return { value: remote.subtype === 'null' ? null : remote.value };
    }
    if (remote.objectId === undefined) return { value: vm.runInThisContext(remote.unserializableValue) };
    return this.#fetch(remote.objectId);
  }

  /** Make V8 unwind the running code. */
  terminate() {
    ask(this.#session, 'Runtime.terminateExecution', {}, () => {});
  }

  #fetch(objectId) {
    let box = null;
    const taker = this.#id((value) => void (box = { value }));
    const functionDeclaration = 'function (value) { this(value); }';
    const ask = { objectId: taker, functionDeclaration, arguments: [{ objectId }] };
    this.#ask('Runtime.callFunctionOn', { ...ask, silent: true, objectGroup: 'look' });
    return box;
  }

  #parts(objectId) {
    return this.#ask('Runtime.getProperties', { objectId, ownProperties: true });
  }

  #id(value) {
    const key = `replctl ${Math.random()}`;
    defineProperty(globalThis, key, { value, configurable: true });
    const expression = `globalThis[${stringify(key)}]`;
    const found = this.#ask('Runtime.evaluate', { expression, silent: true, objectGroup: 'look' });
    delete globalThis[key];
    return found.result.objectId;
  }

  #ask(method, parameters) {
    let found = null;
    ask(this.#session, method, parameters, (error, answer) => (found = error ? null : answer));
    return found;
  }
}

function seen(details) {
  const text = details.exception?.description ?? details.text;
  const [head] = text.split('\n    at ', 1);
  const type = details.exception?.className ?? 'SyntaxError';
  const message = head.startsWith(`${type}: `) ? head.slice(type.length + 2) : head;
  return { type, message, line: details.lineNumber, column: details.columnNumber };
}

/** Count line ends as V8 does. */
function lines(text) {
  let found = 0;
  LINE_END.lastIndex = 0;
  while (LINE_END.exec(text) !== null) found++;
  return found;
}
