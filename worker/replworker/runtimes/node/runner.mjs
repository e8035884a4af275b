// Runner of an eval: from its frame to its result, with interrupts.

import { types } from 'node:util';

import { MESSAGE_BYTES, cut } from './bounds.mjs';
import { Map, MessageChannel, MessagePort, String, setImmediate as later } from './builtins.mjs';
import { prepare } from './cell.mjs';
import { evaluate } from './engine.mjs';
import { EXIT_HINT, Exit } from './process_guard.mjs';
import { render, typeName } from './render.mjs';
import { clean, misread, raised, strip, unsaid } from './trace.mjs';

const DECLARED = /^Identifier '(.*)' has already been declared$/;
const KIND_HINT =
  'an earlier eval declared it with another keyword: assign to it, or use the same keyword again';

const SPARED_INTERRUPTS = 30; // interrupts that spare imports and Node's own code, about a millisecond each
const [NO, LATER, SOON] = [0, 1, 2]; // shared with watcher.mjs

/** An eval in progress. */
class Run {
  n;
  code;
  name;
  silent;
  stdin;
  history;
  file;
  before; // the user's names and values
  outcome = null; // {value}, {error} or {wrong}, once there is one
  ours = false; // code of this eval runs: its first turn, or its value's inspect
  interrupts = 0;
  exit = null; // argument of process.exit()
  reads = false; // it has requested input
  reading = false; // the request was not checked yet
  turn; // schedules the check for the next turn of the event loop

  constructor(message, turn) {
    this.n = message.n;
    this.code = message.code;
    this.file = typeof message.file === 'string' ? message.file : null;
    this.name = this.file ?? message.name;
    this.silent = message.silent === true;
    this.stdin = message.stdin === true;
    this.history = message.history === true;
    this.turn = turn;
  }
}

export class Runner {
  #parts;
  #turn;
  #soon;
  #loaded = new Map(); // file to the names bound by its last load

  /** `parts`: scope, channel, streams, input, modules, names, engine, limits, halt. */
  constructor(parts) {
    this.#parts = parts;
    const { port1, port2 } = new MessageChannel();
    const { postMessage } = MessagePort.prototype;
    // A message, not setImmediate, which is faster: when a callback is stopped, Node may lose the other immediates of
    // its turn. An eval that ended by itself can use the fast way: an interrupt arrives with the other one.
    this.#turn = () => postMessage.call(port1, null);
    this.#soon = () => this.#look();
    port2.on('message', this.#soon);
    port2.unref();
  }

  /** Run an eval frame. Its code starts after this has returned. */
  begin(message) {
    const { scope } = this.#parts;
    const run = new Run(message, this.#turn);
    scope.last = run.n;
    scope.running = run;
    try {
      this.#begin(run, message);
    } catch (error) {
      this.#fail(run, error);
    }
  }

  #begin(run, message) {
    const { scope, streams, input, modules, names, engine } = this.#parts;
    if (scope.early.delete(run.n)) run.interrupts = 1;
    scope.early.clear();
    streams.restore();
    input.restore();
    if (run.file === null) modules.follow();
    else modules.settle(directoryOf(run.file));
    if (message.reload === true && run.file !== null) {
      modules.forget(run.file);
      names.forget(this.#loaded.get(run.file) ?? []);
    }
    run.before = names.all();
    if (run.interrupts > 0) return this.#turn();
    const text = `${prepare(run.code, engine, run.file !== null)}\n//# sourceURL=${urlOf(run.name)}`;
    const end = (outcome) => {
      run.outcome = outcome;
      later(this.#soon);
    };
    const wrong = scope.within(run.n, () => evaluate(text, (value) => end({ value }), (error) => end({ error })));
    if (wrong !== null) end({ wrong });
    else run.ours = true;
    this.#turn(); // it may wait for input, or not be first to run
  }

  /** Called by the watcher inside whatever code runs. Returns whether to repeat it: NO, LATER, SOON. */
  interrupt(number) {
    const { scope, halt, modules } = this.#parts;
    const run = scope.running;
    if (run === null || run.n !== number) {
      if (number > scope.last) scope.early.add(number);
      return NO;
    }
    run.interrupts++;
    this.#turn();
    // Awaiting code is just abandoned. But if the loop has not turned since the first call, or the code is in its
    // first turn, it is stopped where it is.
    if (scope.closed || !(run.ours || run.interrupts > 1)) return LATER;
    const insist = run.interrupts > SPARED_INTERRUPTS;
    return (insist || modules.pending === 0) && halt(insist) ? LATER : SOON;
  }

  /** Handle process.exit(): its eval ends with the next turn. */
  exit(code) {
    const { scope } = this.#parts;
    if (scope.late()) return false;
    scope.running.exit ??= { code };
    this.#turn();
    return true;
  }

  /** Run user code. */
  #enter(run, body) {
    const { scope } = this.#parts;
    run.ours = true;
    scope.closed = false;
    scope.within(run.n, body);
    scope.closed = true;
    run.ours = false;
  }

  /** Answer the eval if it is over, after a turn of the event loop. An interrupt may have aborted an earlier check. */
  #look() {
    const { scope, input } = this.#parts;
    const run = scope.running;
    if (run === null) return;
    scope.closed = true;
    scope.ours();
    run.ours = false;
    try {
      if (run.interrupts > 0 || run.exit !== null || run.outcome !== null) this.#end(run);
      else input.waiting();
    } catch (error) {
      this.#fail(run, error);
    }
    scope.closed = false;
  }

  /** Report that the driver cannot continue after changes by user code; the worker ends it. */
  #fail(run, error) {
    const { scope, channel } = this.#parts;
    if (scope.running !== run) return;
    const [cause] = cut(`the code broke what node needs to run more: ${error?.message}`, MESSAGE_BYTES);
    channel.send({ t: 'broken', cause });
  }

  #end(run) {
    const { scope, channel, names, modules } = this.#parts;
    const answer = { t: 'result', n: run.n, outcome: 'ok', stacktrace: [] };
    const { outcome } = run;
    if (run.interrupts === 0) {
      if (run.exit !== null || outcome.error instanceof Exit) this.#exited(run, run.exit ?? outcome.error, answer);
      else if (outcome.wrong) this.#misread(run, outcome.wrong, answer);
      else if ('error' in outcome) this.#raised(run, outcome.error, answer);
      else this.#valued(run, outcome.value, answer);
    }
    if (run.interrupts > 0) interrupted(answer);
    answer.changed = names.changed(run.before);
    if (run.file !== null) {
      this.#loaded.set(run.file, answer.changed);
      modules.follow();
    }
    scope.running = null;
    channel.send(answer);
  }

  #valued(run, value, answer) {
    const { names, limits } = this.#parts;
    if (run.history && value !== undefined) names.keep('_', value);
    if (run.silent) return;
    answer.type = typeName(value);
    this.#enter(run, () => {
      try {
        if (types.isNativeError(value)) strip(value);
        const [text, dropped] = render(value, limits.valueBytes);
        answer.value = clean(text);
        answer['value-dropped'] = dropped;
      } catch (error) {
        answer['repr-error'] = typeName(error);
      }
    });
  }

  #raised(run, error, answer) {
    const { names, limits } = this.#parts;
    answer.outcome = 'error';
    names.keep('_error', error);
    this.#enter(run, () => {
      try {
        Object.assign(answer, raised(error, limits));
      } catch {
        Object.assign(answer, unsaid(error));
      }
    });
  }

  #misread(run, wrong, answer) {
    answer.outcome = 'error';
    Object.assign(answer, misread(wrong, run.code, run.name, this.#parts.limits));
    if (DECLARED.test(wrong.message) && wrong.line === 0 && wrong.column < 0) answer.hint = KIND_HINT;
  }

  #exited(run, { code }, answer) {
    answer.hint = EXIT_HINT;
    if (code === undefined || code === null || Number(code) === 0) {
      if (!run.silent) Object.assign(answer, { value: 'undefined', type: 'undefined' });
      return;
    }
    const message = cut(`process.exit(${String(code)})`, MESSAGE_BYTES)[0];
    Object.assign(answer, { outcome: 'error', ex: { type: 'Exit', message }, traceback: `Exit: ${message}\n` });
  }
}

function interrupted(answer) {
  for (const key of ['value', 'type', 'value-dropped', 'repr-error', 'hint']) delete answer[key];
  answer.outcome = 'interrupted';
  answer.ex = { type: 'Interrupted', message: 'the eval was interrupted' };
  answer.traceback = 'Interrupted: the eval was interrupted\n';
}

function directoryOf(file) {
  return file.slice(0, file.lastIndexOf('/')) || '/';
}

/** Return a name usable as a sourceURL: without white space and quotes. */
function urlOf(name) {
  return name.replace(/[\s'"]/g, (sign) => encodeURIComponent(sign).replace("'", '%27'));
}
