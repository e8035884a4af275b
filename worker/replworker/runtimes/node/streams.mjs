// process.stdout and process.stderr: writes are in their pipe, or the background pipe, when they return.

import { Buffer } from 'node:buffer';
import fs from 'node:fs';
import { Writable } from 'node:stream';
import { types } from 'node:util';

import { Object, console, process } from './builtins.mjs';
import { writeAll } from './channel.mjs';

const { defineProperty } = Object;
const { from } = Buffer;
const { isUint8Array } = types;
const { nextTick } = process;
const { O_WRONLY, O_NONBLOCK } = fs.constants;

export class Streams {
  #scope;
  #lateFd;
  #fds = [0, quick(1), quick(2)];
  #streams = [];

  constructor(scope, lateFd) {
    this.#scope = scope;
    this.#lateFd = quick(lateFd);
    this.restore();
    for (const [name, fd] of [['stdout', 1], ['stderr', 2]]) {
      defineProperty(process, name, { configurable: true, enumerable: true, get: () => this.#streams[fd] });
    }
  }

  /** Restore streams that user code ended or destroyed. */
  restore() {
    for (const fd of [1, 2]) {
      const stream = this.#streams[fd];
      if (stream !== undefined && !stream.destroyed && !stream.writableEnded) continue;
      this.#streams[fd] = new Output(fd, (data) => this.write(fd, data));
      console[fd === 1 ? '_stdout' : '_stderr'] = this.#streams[fd]; // console caches the first stream
    }
  }

  /** Write for the running code: to fd 1 or 2, or to the background pipe. */
  write(fd, data) {
    try {
      writeAll(this.#scope.late() ? this.#lateFd : this.#fds[fd], data);
    } catch {
      // nobody reads it any more
    }
  }

  /** Write a notice to stderr or the background pipe. */
  warn(text) {
    this.write(2, from(text));
  }
}

class Output extends Writable {
  fd;
  _type = 'pipe';
  #put;

  constructor(fd, put) {
    super({ emitClose: false });
    this.fd = fd;
    this.#put = put;
  }

  /** Write at once, bypassing Writable's queue, which an interrupt could block forever. */
  write(chunk, encoding, done) {
    if (typeof encoding === 'function') [encoding, done] = [null, encoding];
    const odd = typeof chunk !== 'string' && !isUint8Array(chunk);
    if (odd || this.writableEnded || this.destroyed) return super.write(chunk, encoding, done); // reports the error
    this.#put(typeof chunk === 'string' ? from(chunk, encoding ?? 'utf8') : chunk);
    if (typeof done === 'function') nextTick(done, null);
    return true;
  }
}

/** Reopen the pipe so that a write never blocks in the kernel, where interrupts would not reach it. The
 * descriptor itself stays blocking, because child processes share it. */
function quick(fd) {
  try {
    return fs.openSync(`/proc/self/fd/${fd}`, O_WRONLY | O_NONBLOCK);
  } catch {
    return fd; // no /proc in this sandbox, or another user's pipe
  }
}
