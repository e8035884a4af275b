// V8's own REPL, reached through the inspector, in this process and without any port.
//
// Why so. V8 has a REPL mode, made for the console of browsers: top-level `await`, `const`, `let` and `class` that stay
// for later evals and may be declared again, and the value of the last expression - with V8's own parser, so that no
// string, regex, template or comment can be mistaken, and a syntax error is found before anything has run. The other
// roads are worse: node's `repl` rewrites `await` with a parser that lags behind V8, refuses a second `const`, and
// brings domains along; its parser needs --expose-internals, which would open node's insides to the user's code too.
// vm.createContext makes a second realm, in which `[] instanceof Array` fails for what node hands out. So evals run in
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

const RESULT = '.repl_result'; // where V8 puts the value, so that a promise is shown and not awaited
// Before every eval: its own code runs when the inspector has been left, which does not bear to be stopped. It gives no
// value, and nothing can go on with it. The columns of the first line are told without it (trace.mjs).
export const DELAY = 'while(await 0);';
const DIRECTIVE = "'use strict';";
const STRICT = /^(?:\s|\/\/.*\n|\/\*[^]*?\*\/)*(['"])use strict\1[^\S\n]*(?:;|\n|$)/;
const POISON = '\n@'; // no program goes on like this: what ends so is parsed and never run
export const LINE_END = /\r\n?|[\n\u2028\u2029]/g;
// Node takes a signal to its own process, or to all, for its end, and shuts the inspector before it sends one.
const SHUT = 'its inspector is shut, as by process.kill() of its own process or of all';
const LOOK_MS = 100; // for a look at a name; only a proxy of the user's takes any time

function opened() {
  const session = new Session();
  call(connect, session);
  return session;
}

/** Ask the inspector. It would heed a toJSON of the user's on Object.prototype; no user code runs meanwhile. */
function ask(session, method, parameters, answered) {
  const foreign = getOwnPropertyDescriptor(objects, 'toJSON');
  if (foreign !== undefined) delete objects.toJSON;
  call(post, session, method, parameters, answered);
  if (foreign !== undefined) defineProperty(objects, 'toJSON', foreign);
}

/** Run a text as an eval, from the next turn of the promises on. What is wrong with it, or null; then one of `settled`
 * (with the value) and `failed` (with what was thrown) is called. */
export function evaluate(text, settled, failed) {
  const session = opened();
  let inside = true;
  let promise = null;
  let wrong = null;
  // V8 would tell the value over the inspector, as a copy. What it waits for is the first promise that is made now: we
  // take that, and then end the session, so that a promise that never settles holds nothing of the inspector's (node
  // 22 dies when such a one is collected).
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
  Error.stackTraceLimit = 0; // what waits is told an error now, and its stack would take longer than all this
  call(disconnect, session);
  Error.stackTraceLimit = stackTraceLimit;
  // Not `await`, which would put us into the users' stacks.
  if (wrong === null) call(then, promise, (made) => settled(made[RESULT]), failed);
  else if (wrong.line === 0) wrong.column -= expression.length - text.length;
  return wrong;
}

/** Looks at code and names without running anything. */
export class Engine {
  #session = opened();

  /** The first thing wrong with a text: {type, message, line, column}, counted from 0; null for a good beginning. */
  wrong(text) {
    const found = this.#ask('Runtime.evaluate', { expression: text + POISON, replMode: true, silent: true });
    const error = seen(found.exceptionDetails);
    return error.line === lines(text + POISON) ? null : error;
  }

  /** Whether the text is whole statements, such as may stand in a function. */
  whole(text) {
    try {
      new vm.Script(`async () => {\n${text}\n}`);
      return true;
    } catch {
      return false;
    }
  }

  /** Names that const, let and class have bound. */
  lexical() {
    const found = this.#ask('Runtime.globalLexicalScopeNames', {});
    if (found === null) throw new Error(SHUT);
    return new Set(found.names);
  }

  /** What an expression refers to, if V8 can tell without any side effect: {value} or null. */
  look(expression) {
    const ask = { expression, throwOnSideEffect: true, silent: true, timeout: LOOK_MS, objectGroup: 'look' };
    const found = this.#ask('Runtime.evaluate', ask);
    const value = found && !found.exceptionDetails ? this.#value(found.result) : null;
    this.#ask('Runtime.releaseObjectGroup', { objectGroup: 'look' });
    return value;
  }

  /** Whether a function with this source sees nothing but global names, and, if it is a class, itself. */
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

  /** Bind names in the evals' scope; the values are looked up by name in `values`. */
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

  #value(told) {
    if (told.objectId === undefined && told.unserializableValue === undefined) {
      return { value: told.subtype === 'null' ? null : told.value };
    }
    if (told.objectId === undefined) return { value: vm.runInThisContext(told.unserializableValue) };
    return this.#fetch(told.objectId);
  }

  /** Have V8 unwind what runs. */
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

/** How many line ends a text has, as V8 counts them. */
function lines(text) {
  let found = 0;
  LINE_END.lastIndex = 0;
  while (LINE_END.exec(text) !== null) found++;
  return found;
}
